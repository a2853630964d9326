"""Time eager named operations against the usual spelling in `jax.numpy`, interleaved in one process.

    python benchmarks/eager.py            the table
    python benchmarks/eager.py --fast     fewer rounds

The operations, and the largest ratio of minima that is accepted for each, are those of `operations.py`. For those of
one cheap call, the last column has the same by hand: a function of a bare object with an array and names, which looks a
jitted function of arrays up by these, and makes such an object of the result. No check, no error, no other key.
"""

import argparse
import functools
import statistics
from collections.abc import Callable

import jax
import jax.numpy as jnp
from measure import interleaved, median_ratio, ratio_of_minima, table
from operations import Arrays, named_arrays, operations, plain_arrays

from axonym import NamedArray

Call = Callable[[], object]
Names = tuple[str, ...]
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


class Bare:
    """An array and names, and nothing else."""

    __slots__ = ("node",)
    node: tuple[tuple[jax.Array], Names]


def bare(array: jax.Array, names: Names) -> Bare:
    """Put an array and names together."""
    made = object.__new__(Bare)
    made.node = ((array,), names)
    return made


def of_one(fn: Callable[[jax.Array], jax.Array], names: Names) -> Callable[[Bare], Bare]:
    """Return a function of one bare object in the fewest steps of Python."""
    new, kernels = object.__new__, {("b", "s", "e"): jax.jit(fn)}

    def call(x: Bare) -> Bare:
        (array,), own = x.node
        made = new(Bare)
        made.node = ((kernels[own](array),), names)
        return made

    return call


def of_two(fn: Callable[[jax.Array, jax.Array], jax.Array], names: Names) -> Callable[[Bare, Bare], Bare]:
    """Return a function of two bare objects in the fewest steps of Python."""
    new, kernels = object.__new__, {(("b", "s", "e"), ("k",)): jax.jit(fn)}

    def call(x: Bare, y: Bare) -> Bare:
        (left,), own = x.node
        (right,), other = y.node
        made = new(Bare)
        made.node = ((kernels[own, other](left, right),), names)
        return made

    return call


def by_hand(plain: Arrays) -> dict[str, Call]:
    """Return the operations of one cheap call in the fewest steps of Python."""
    x, picks = bare(plain.x, ("b", "s", "e")), bare(plain.picks, ("k",))
    whole = x.node[1]
    ones = {
        "exp": of_one(jnp.exp, whole),
        "compare": of_one(lambda x: x > 0.0, whole),
        "sum": of_one(lambda x: jnp.sum(x, 2), ("b", "s")),
        "sum, two axes": of_one(lambda x: jnp.sum(x, (0, 2)), ("s",)),
        "diff": of_one(lambda x: jnp.diff(x, axis=1), whole),
        "flip": of_one(lambda x: jnp.flip(x, 1), whole),
        "tril": of_one(jnp.tril, whole),
    }
    calls: dict[str, Call] = {name: functools.partial(call, x) for name, call in ones.items()}
    take = of_two(lambda x, picks: jnp.take(x, picks, axis=1), ("b", "k", "e"))
    for name in ("take", "take, by an axis with its size"):
        calls[name] = functools.partial(take, x, picks)
    return calls


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
    hands = by_hand(plain)
    for name, (bar, usual, ours) in cases.items():
        calls = {"usual": usual, "axonym": ours}
        if name in hands:
            calls["by hand"] = hands[name]
        timed = interleaved(calls, rounds=rounds, calls=100)
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
                "by hand": f"{ratio_of_minima(timed['by hand'], timed['usual']):.2f}" if name in hands else "",
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
