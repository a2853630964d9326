"""Time eager named operations against the usual spelling in `jax.numpy`, interleaved in one process.

    python benchmarks/eager.py            the table
    python benchmarks/eager.py --fast     fewer rounds

Arrays are small, so that the cost of a call is what counts. `bar` is the largest ratio of minima that is accepted: 1.1
where `jax.numpy` needs one call, 0.6 where it needs several.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable

import jax
import jax.numpy as jnp
from measure import interleaved, median_ratio, ratio_of_minima, table

import axonym as axn
from axonym import NamedArray

B, S, E, Out, H, D = axn.make_axes(b=4, s=8, e=16, o=32, h=4, d=4)
Call = Callable[[], object]


def rows() -> dict[str, tuple[float | None, Call, Call]]:
    """Return, for each operation, its bar, the usual spelling, and Axonym's."""
    x, w = axn.random.normal(jax.random.key(0), (B, S, E)), axn.random.normal(jax.random.key(1), (E, Out))
    tail, middle, turned = axn.ones(E), axn.ones(S), x.rearrange(("e", "b", "s"))
    mask, picks = axn.arange(S) > 3, axn.named([1, 5, 2], "k")
    a, aw, at, am, ar = x.array, w.array, tail.array, middle.array, turned.array
    amask, apicks = mask.array, picks.array
    per_row = axn.vmap(lambda v: axn.tanh(v).sum("e"), "b")
    return {
        "add, same names": (1.1, lambda: a + a, lambda: x + x),
        "add, broadcast at the end": (None, lambda: a + at, lambda: x + tail),
        "add, broadcast in the middle": (0.6, lambda: a + am[:, None], lambda: x + middle),
        "add, permuted": (0.6, lambda: a + jnp.transpose(ar, (1, 2, 0)), lambda: x + turned),
        "where": (0.6, lambda: jnp.where(amask[:, None], a, 0.0), lambda: axn.where(mask, x, 0.0)),
        "sum": (1.1, lambda: jnp.sum(a, 2), lambda: x.sum("e")),
        "softmax": (0.6, lambda: jax.nn.softmax(a, 2), lambda: axn.softmax(x, "e")),
        "dot": (1.1, lambda: a @ aw, lambda: x.dot(w, axis="e")),
        "dot, spelled as einsum": (0.6, lambda: jnp.einsum("bse,eo->bso", a, aw), lambda: x.dot(w, axis="e")),
        "transpose": (0.6, lambda: jnp.transpose(a, (1, 2, 0)), lambda: x.rearrange(("s", "e", "b"))),
        "head split": (
            0.6,
            lambda: a.reshape(4, 8, 4, 4).transpose(0, 2, 1, 3),
            lambda: x.unflatten_axis("e", (H, D)).rearrange(("b", "h", "s", "d")),
        ),
        "int index": (0.6, lambda: a[:, 3], lambda: x["s", 3]),
        "slice": (0.6, lambda: a[:, 2:5], lambda: x["s", 2:5]),
        "take": (1.1, lambda: jnp.take(a, apicks, axis=1), lambda: x.take("s", picks)),
        "vmap": (0.6, lambda: jax.vmap(lambda v: jnp.tanh(v).sum(-1))(a), lambda: per_row(x)),
        "construction": (None, lambda: jnp.asarray(a), lambda: NamedArray(a, ("b", "s", "e"))),
    }


def trees() -> tuple[Call, Call]:
    """Return the round trip of a tree of 150 arrays: in dicts, and as named arrays in dicts."""
    names = [f"p{i:03}" for i in range(150)]
    plain = {name: jnp.ones((2, 2)) for name in names}
    named = {name: NamedArray(array, ("x", "y")) for name, array in plain.items()}

    def trip(tree: dict[str, object]) -> object:
        leaves, structure = jax.tree.flatten(tree)
        return jax.tree.unflatten(structure, leaves)

    return lambda: trip(plain), lambda: trip(named)


def seconds_to_import(*modules: str) -> float:
    """Return the least time that a fresh interpreter takes to import modules."""
    code = f"import time; start = time.perf_counter(); import {', '.join(modules)}; print(time.perf_counter() - start)"
    return min(float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(5))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", action="store_true", help="fewer rounds")
    rounds = 10 if parser.parse_args().fast else 60
    print(f"jax {jax.__version__} on {jax.default_backend()}, microseconds per call\n")
    lines = []
    cases = {**rows(), "tree round trip": (3.0, *trees())}
    for name, (bar, usual, ours) in cases.items():
        timed = interleaved({"usual": usual, "axonym": ours}, rounds=rounds, calls=100)
        ratio = ratio_of_minima(timed["axonym"], timed["usual"])
        lines.append(
            {
                "operation": name,
                "usual": f"{timed['usual'].minimum * 1e6:.1f}",
                "axonym": f"{timed['axonym'].minimum * 1e6:.1f}",
                "ratio of minima": f"{ratio:.2f}",
                "median ratio": f"{median_ratio(timed['axonym'], timed['usual']):.2f}",
                "bar": "" if bar is None else f"{bar}{'' if ratio <= bar else ' missed'}",
            }
        )
    print(table(lines))
    before, after = seconds_to_import("jax", "equinox"), seconds_to_import("jax", "equinox", "axonym")
    print(f"\nimport axonym: {after - before:.3f} s on top of jax and equinox ({before:.3f} s)")


if __name__ == "__main__":
    main()
