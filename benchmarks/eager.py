"""Time eager named operations against the usual spelling in `jax.numpy`, interleaved in one process.

    python benchmarks/eager.py            the table
    python benchmarks/eager.py --fast     fewer rounds

The operations, and the largest ratio of minima that is accepted for each, are those of `operations.py`.
"""

import argparse
import functools
import statistics
from collections.abc import Callable

import jax
import jax.numpy as jnp
from measure import interleaved, median_ratio, ratio_of_minima, table
from operations import named_arrays, operations, plain_arrays

from axonym import NamedArray

Call = Callable[[], object]
# What most programs do, in one geometric mean with the construction of an array.
USUAL = (
    "construction",
    "exp",
    "multiply by a number",
    "add, same names",
    "add, broadcast at the end",
    "add, broadcast in the middle",
    "add, permuted",
    "where",
    "sum",
    "softmax",
    "dot",
    "transpose",
    "head split, by a pattern",
    "int index",
    "slice",
    "take",
    "vmap",
)


def trees() -> tuple[Call, Call]:
    """Return the round trip of a tree of 150 arrays: in dicts, and as named arrays in dicts."""
    names = [f"p{i:03}" for i in range(150)]
    plain = {name: jnp.ones((2, 2)) for name in names}
    named = {name: NamedArray(array, ("x", "y")) for name, array in plain.items()}

    def trip(tree: dict[str, object]) -> object:
        leaves, structure = jax.tree.flatten(tree)
        return jax.tree.unflatten(structure, leaves)

    return lambda: trip(plain), lambda: trip(named)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", action="store_true", help="fewer rounds")
    rounds = 10 if parser.parse_args().fast else 60
    print(f"jax {jax.__version__} on {jax.default_backend()}, microseconds per call\n")
    lines: list[dict[str, str]] = []
    ratios: dict[str, float] = {}
    plain = plain_arrays()
    named = named_arrays(plain)
    cases = {
        name: (row.bar, functools.partial(row.usual, plain), functools.partial(row.named, named))
        for name, row in operations().items()
    }
    cases["construction"] = (None, lambda: jnp.asarray(plain.x), lambda: NamedArray(plain.x, ("b", "s", "e")))
    cases["tree round trip"] = (3.0, *trees())
    for name, (bar, usual, ours) in cases.items():
        timed = interleaved({"usual": usual, "axonym": ours}, rounds=rounds, calls=100)
        ratio = ratio_of_minima(timed["axonym"], timed["usual"])
        ratios[name] = ratio
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
    counted = [ratios[name] for name in operations()]
    print(f"\n{len(counted)} operations: median ratio {statistics.median(counted):.2f} (bar 0.7), ", end="")
    print(f"largest {max(counted):.2f} (bar 1.1)")
    mean = statistics.geometric_mean(ratios[name] for name in USUAL)
    print(f"geometric mean of {len(USUAL)} usual ones: {mean:.2f} (bar 0.45)")


if __name__ == "__main__":
    main()
