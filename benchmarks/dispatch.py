"""Time the call of a compiled step of 150 arrays, in modules and in dicts, against `jax.jit` with a dict of arrays.

    python benchmarks/dispatch.py               the table
    python benchmarks/dispatch.py --rounds 200  fewer rounds

The step multiplies 150 small arrays. It is called with what the call before returned, as a training step is, or with
the same arguments again; on a mesh of one device, with a mapping, too, against raw arrays on that mesh. `jax.jit` with
the same trees tells what part is JAX's own work on them; the dict by hand, what is left where no walk of JAX looks at
named arrays. Read the ratio of minima: on a machine with other work, a median says how often the threads of JAX were
interrupted.
"""

import argparse
import operator
from collections.abc import Callable
from itertools import chain
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from measure import interleaved, ratio_of_minima, table

import axonym as axn
from axonym import NamedArray

COUNT = 150
BARS = {"dict": 1.2, "list of dicts": 1.2, "modules": 1.25, "modules in a list": 1.25}
MAPPING = {"x": "data"}


class Layer(eqx.Module):
    """Six arrays, as a block of a transformer might have."""

    a: NamedArray
    b: NamedArray
    c: NamedArray
    d: NamedArray
    e: NamedArray
    f: NamedArray


class Layers(eqx.Module):
    """A state of many layers."""

    layers: tuple[Layer, ...] | list[Layer]


def shrink(tree: Any) -> Any:
    return jax.tree.map(lambda x: 0.999 * x, tree)


def states() -> dict[str, Any]:
    """Return the same 150 named arrays in several trees."""
    named = [NamedArray(jnp.ones((2, 2)), ("x", "y")) for _ in range(COUNT)]
    layers = [Layer(*named[i : i + 6]) for i in range(0, COUNT, 6)]
    return {
        "dict": dict(enumerate(named)),
        "list of dicts": [dict(vars(layer)) for layer in layers],
        "modules": Layers(tuple(layers)),
        "modules in a list": Layers(layers),
    }


def by_hand(state: dict[Any, NamedArray]) -> Callable[[Any], Any]:
    """Return a step for this dict alone, which reads, checks and makes its arrays in the fewest steps of Python."""
    compiled = jax.jit(lambda *arrays: [0.999 * array for array in arrays])
    keys = sorted(state)
    values, node = operator.itemgetter(*keys), operator.attrgetter("node")
    expected, kinds = tuple(state[key].names for key in keys), {type(state[key].array) for key in keys}

    def step(state: dict[Any, NamedArray]) -> dict[Any, NamedArray]:
        held = values(state)
        if type(state) is not dict or len(state) != len(keys) or {*map(type, held)} != {NamedArray}:
            raise TypeError("another tree")
        children, names = zip(*map(node, held), strict=True)
        arrays = [*chain.from_iterable(children)]
        if names != expected or {*map(type, arrays)} != kinds:
            raise TypeError("another tree")
        made: dict[Any, NamedArray] = {}
        for key, names, array in zip(keys, expected, compiled(*arrays), strict=True):
            x = made[key] = object.__new__(NamedArray)
            x.node = (array,), names
        return made

    return step


def chained(step: Callable[[Any], Any], state: Any) -> Callable[[], None]:
    """Return a call of a step with what it returned before."""

    def call() -> None:
        nonlocal state
        state = step(state)

    return call


def repeated(step: Callable[[Any], Any], state: Any) -> Callable[[], None]:
    """Return a call of a step with the same state each time."""
    first = step(state)

    def call() -> None:
        step(first)

    return call


def rows(pattern: Callable[..., Any], mapping: dict[str, str] | None, rounds: int) -> list[dict[str, str]]:
    """Time all trees in one pattern of calls."""
    raw = {i: jnp.ones((2, 2)) for i in range(COUNT)}
    named = states()
    candidates = {("raw", ""): pattern(jax.jit(shrink), raw)}
    candidates["by hand", ""] = pattern(by_hand(named["dict"]), named["dict"])
    for name, state in named.items():
        candidates[name, "named_jit"] = pattern(axn.named_jit(shrink, mapping), state)
        candidates[name, "jax.jit"] = pattern(jax.jit(shrink), state)
    timed = interleaved(candidates, rounds=rounds, calls=5)
    base = timed["raw", ""]
    lines = []
    for name, bar in BARS.items():
        ours = ratio_of_minima(timed[name, "named_jit"], base)
        line = {"tree": name, "calls": pattern.__name__, "mapping": "yes" if mapping else "no"}
        line["named_jit, us"] = f"{timed[name, 'named_jit'].minimum * 1e6:.0f}"
        line["over jax.jit of a raw dict"] = f"{ours:.2f}"
        line["bar"] = f"{bar}{'' if ours <= bar else ' missed'}"
        line["jax.jit of this tree, over the same"] = f"{ratio_of_minima(timed[name, 'jax.jit'], base):.2f}"
        lines.append(line)
    lines[0]["by hand"] = f"{ratio_of_minima(timed['by hand', ''], base):.2f}"
    return lines


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=600, help="rounds of five calls of each candidate")
    rounds = parser.parse_args().rounds
    lines = rows(chained, None, rounds) + rows(repeated, None, rounds)
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    with axn.set_mesh(mesh):
        lines += rows(chained, MAPPING, rounds)
    print(f"jax {jax.__version__} on {jax.default_backend()}\n\n{table(lines)}")


if __name__ == "__main__":
    main()
