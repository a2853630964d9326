"""Reading or writing a part of an axis that a mesh splits, beside any use of the whole: gradients of one device.

A compiler may merge what the two make of one array, and got it wrong (`tests/upstream`). The suite tries each of both
kinds with a few of the other; this tries all pairs, in some minutes:

    JAX_PLATFORMS=cpu XLA_FLAGS="--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0" \\
        python tests/partitioning/test_parts_beside_wholes.py
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

import axonym as axn
from axonym import nn

pytestmark = pytest.mark.sampled

A, B = axn.make_axes(a=16, b=4)
LAYOUTS: list[dict[str, Any]] = [{"a": ("data", "model")}, {"a": "data", "b": "model"}]
Function = Callable[[axn.NamedArray, jax.Array], Any]

COLUMNS = axn.named(np.array([[7, 3, 0, 15]]), ("a", "b"))
THREE = axn.named(np.array([[7, 3, 0, 15], [7, 1, 2, 3], [8, 8, 0, 0]]), ("a", "b"))
STARTS = axn.named(np.array([7, 3, 0, 15]), "b")
PARTS: Mapping[str, Function] = {
    "int": lambda x, i: x["a", 5],
    "last": lambda x, i: x["a", -1],
    "traced int": lambda x, i: x["a", i],
    "traced int out of range": lambda x, i: x["a", i + 90],
    "list of one": lambda x, i: x["a", [5]],
    "list of two": lambda x, i: x["a", [5, 2]],
    "list of nine": lambda x, i: x["a", [5, 2, 7, 5, 0, 1, 15, 9, 8]],
    "traced list": lambda x, i: x["a", jnp.stack([i])],
    "traced list out of range": lambda x, i: x["a", jnp.stack([i + 90])],
    "column by column": lambda x, i: x["a", COLUMNS["a", 0]],
    "element": lambda x, i: x["a", 5, "b", 2],
    "traced element": lambda x, i: x["a", i, "b", i - 3],
    "slice of one": lambda x, i: x["a", 5:6],
    "slice": lambda x, i: x["a", 3:7],
    "every third": lambda x, i: x["a", 1::3],
    "dslice of one": lambda x, i: x["a", axn.dslice(5, 1)],
    "traced dslice of one": lambda x, i: x["a", axn.dslice(i, 1)],
    "traced dslice": lambda x, i: x["a", axn.dslice(i, 4)],
    "dslice over the end": lambda x, i: x["a", axn.dslice(i + 9, 4)],
    "axn.slice of one": lambda x, i: axn.slice(x, "a", start=5, length=1),
    "traced axn.slice of one": lambda x, i: axn.slice(x, "a", start=i, length=1),
    "traced axn.slice": lambda x, i: axn.slice(x, "a", start=i, length=3),
    "axn.slice out of range": lambda x, i: axn.slice(x, "a", start=i + 90, length=1),
    "take": lambda x, i: axn.take(x, "a", 5),
    "traced take": lambda x, i: axn.take(x, "a", i),
    "take of one": lambda x, i: axn.take(x, "a", [5]),
    "take out of range": lambda x, i: axn.take(x, "a", jnp.stack([i + 90]), fill_value=0),
    "take_along_axis": lambda x, i: axn.take_along_axis(x, COLUMNS, "a"),
    "take_along_axis of three": lambda x, i: axn.take_along_axis(x, THREE, "a"),
    "at get": lambda x, i: x.at["a", i].get(mode="promise_in_bounds"),
    "at set": lambda x, i: x.at["a", 5].set(x["a", 6] * 2),
    "at add": lambda x, i: x.at["a", i].add(x["a", 6]),
    "at add out of range": lambda x, i: x.at["a", i + 90].add(x["a", 6]),
    "at multiply": lambda x, i: x.at["a", [5]].multiply(3.0),
    "put_along_axis": lambda x, i: axn.put_along_axis(x, COLUMNS, x["a", 5:6], "a"),
    "updated_slice": lambda x, i: axn.updated_slice(x, {"a": i}, x["a", 6]),
    "updated_slice of three": lambda x, i: axn.updated_slice(x, {"a": i}, x["a", 6:9]),
    "updated_slice out of range": lambda x, i: axn.updated_slice(x, {"a": i + 90}, x["a", 6]),
    "updated_slice of columns": lambda x, i: axn.updated_slice(x, {"a": COLUMNS["a", 0]}, x["a", 6]),
    "vmap of starts": lambda x, i: axn.vmap(lambda x, i: axn.slice(x, "a", start=i, length=1), "b")(x, STARTS),
    "vmap of ints": lambda x, i: axn.vmap(lambda x, i: x["a", i], "b")(x, STARTS),
    "vmap of an int": lambda x, i: axn.vmap(lambda i: x["a", i], "i")(axn.named(jnp.stack([i]), "i")),
    "vmap of a start": lambda x, i: axn.vmap(lambda i: x["a", axn.dslice(i, 2)], "i")(axn.named(jnp.stack([i]), "i")),
    "where it is largest": lambda x, i: x["a", x["b", 1].argmax("a")],
    "compress": lambda x, i: axn.compress(axn.arange(A) == i, x["b", 1], "a", size=axn.Axis("c", 1)),
    "quantile": lambda x, i: axn.quantile(x["b", 1], 0.3, "a"),
    "loss": lambda x, i: nn.cross_entropy_loss(x, "a", axn.named(jnp.full(4, i), "b")),
    "embedding": lambda x, i: nn.Embedding(x, A, (B,))(axn.named(jnp.stack([i]), "c")),
    "reference": lambda x, i: axn.new_ref(x)["a", i],
    "segment_sum": lambda x, i: axn.segment_sum(
        x["a", 5:6], axn.named(jnp.stack([i]), "a"), axn.Axis("c", 16), axis="a"
    ),
    "split of one": lambda x, i: axn.split(x, "a", axn.make_axes(c=1, d=15))[0],
    "last of cumsum": lambda x, i: x.cumsum("a")["a", -1],
    "median": lambda x, i: axn.median(x, "a"),
    "top_k of one": lambda x, i: axn.top_k(x, "a", 1)[0],
    "max": lambda x, i: x["b", 1].max("a"),
    "diff": lambda x, i: axn.diff(x, "a"),
}
WHOLES: Mapping[str, Function] = {
    "square": lambda x, i: x * x,
    "sum": lambda x, i: x.sum("a"),
    "max": lambda x, i: x.max("a"),
    "logsumexp": lambda x, i: axn.logsumexp(x, "a"),
    "var": lambda x, i: x.var("a"),
    "median": lambda x, i: axn.median(x, "a"),
    "softmax": lambda x, i: axn.softmax(x, "a"),
    "cumsum": lambda x, i: x.cumsum("a"),
    "cumprod": lambda x, i: x.cumprod("a"),
    "sort": lambda x, i: x.sort("a"),
    "top_k": lambda x, i: axn.top_k(x, "a", 3)[0],
    "repeat": lambda x, i: axn.repeat(x, 1, "a"),
    "repeat twice": lambda x, i: axn.repeat(x, 2, "a"),
    "tile": lambda x, i: axn.tile(x, {"a": 2}),
    "pad": lambda x, i: axn.pad(x, {"a": (1, 2)}),
    "roll": lambda x, i: axn.roll(x, 3, "a"),
    "traced roll": lambda x, i: axn.roll(x, i, "a"),
    "flip": lambda x, i: axn.flip(x, "a"),
    "diff": lambda x, i: axn.diff(x, "a"),
    "split": lambda x, i: list(axn.split(x, "a", axn.make_axes(c=6, d=10))),
    "split into 16": lambda x, i: list(axn.split(x, "a", [axn.Axis(f"c{k}", 1) for k in range(16)])),
    "unbind": lambda x, i: list(x.unbind("a")),
    "concatenate": lambda x, i: axn.concatenate("a", [x, x * 2]),
    "stack": lambda x, i: axn.stack("c", [x, x * 2]),
    "unflatten": lambda x, i: x.unflatten_axis("a", axn.make_axes(c=2, d=8)),
    "flatten": lambda x, i: x.flatten_axes(("a", "b"), "c"),
    "rename": lambda x, i: x.rename({"a": "c"}),
    "dot": lambda x, i: axn.dot(x, x.rename({"b": "c"}), axis="a"),
    "outer": lambda x, i: axn.dot(x, x.rename({"a": "c"}), axis="b"),
    "fft": lambda x, i: axn.abs(axn.fft(x, "a")),
    "scan": lambda x, i: axn.scan(lambda c, x: (c + x * x, c * x), "a")(axn.zeros(B), x),
    "fold": lambda x, i: axn.fold(lambda c, x: c * 0.5 + x, "a")(axn.zeros(B), x),
    "map": lambda x, i: axn.map(lambda x: x * x.sum("b"), "a")(x),
    "associative_scan": lambda x, i: axn.associative_scan(axn.add, "a")(x),
    "vmap": lambda x, i: axn.vmap(lambda x: axn.softmax(x, "b"), "a")(x),
    "all reversed": lambda x, i: x["a", ::-1],
    "all by index": lambda x, i: x["a", axn.flip(axn.arange(A), "a")],
    "segment_sum": lambda x, i: axn.segment_sum(x, axn.arange(A) // 3, axn.Axis("c", 6), axis="a"),
    "linear": lambda x, i: axn.dot(x, axn.sin(axn.arange((A, axn.Axis("c", 3))).astype(float)), axis="a"),
    "where": lambda x, i: axn.where(axn.arange(A) > i, x, 0.0),
    "gathered": lambda x, i: axn.auto_sharded(x) * 2,
}


def value(fn: Function, x: axn.NamedArray, i: jax.Array) -> jax.Array:
    """Make a number of the results of a function that depends on each of their elements."""
    leaves = [leaf.astype(jnp.float32) for leaf in jax.tree.leaves(fn(x, i))]
    return sum((jnp.sum(leaf**2 * (1 + leaf)) for leaf in leaves), jnp.zeros(()))


def start() -> np.ndarray:
    return np.random.default_rng(0).uniform(0.5, 1.5, (16, 4)).astype(np.float32)


def gradients(pairs: Sequence[Sequence[Function]], arrays: Sequence[Any]) -> list[Any]:
    """Compute the gradients of sums of functions, all in one program, each of an array of its own."""

    def total(arrays: Sequence[Any], i: jax.Array) -> jax.Array:
        return sum((value(fn, x, i) for fns, x in zip(pairs, arrays, strict=True) for fn in fns), jnp.zeros(()))

    return jax.jit(jax.grad(total))(arrays, jnp.int32(5))


@cache
def alone(kind: str, name: str) -> np.ndarray:
    """Return the gradient of one function on one device."""
    fn = (PARTS if kind == "part" else WHOLES)[name]
    (gradient,) = gradients([[fn]], [axn.named(start(), ("a", "b"))])
    return np.asarray(gradient.array)


def wrong(pairs: Sequence[tuple[str, str]], mesh: Mesh, layout: dict[str, Any]) -> list[str]:
    """List the pairs whose gradient is not the sum of those that each of both has on one device."""
    with jax.set_mesh(mesh):
        x = axn.shard(axn.named(start(), ("a", "b")), layout)
        found = gradients([[PARTS[part], WHOLES[whole]] for part, whole in pairs], [x] * len(pairs))
    failed = []
    for (part, whole), gradient in zip(pairs, found, strict=True):
        expected = alone("part", part) + alone("whole", whole)
        if not np.allclose(np.asarray(gradient.array), expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max()):
            failed.append(f"{part} beside {whole}")
    return failed


def sample(shift: int) -> list[tuple[str, str]]:
    """Pair each part with a whole, and each whole with a part."""
    parts, wholes = list(PARTS), list(WHOLES)
    count = max(len(parts), len(wholes))
    return [(parts[i % len(parts)], wholes[(i * 5 + shift) % len(wholes)]) for i in range(count)]


# What was wrong with jax 0.10: all these on Explicit axes, and "split" on Auto ones.
KNOWN = [
    ("int", "cumsum"),
    ("traced int", "repeat"),
    ("slice of one", "sort"),
    ("take", "pad"),
    ("list of one", "split"),
]


@pytest.mark.parametrize("mesh", ["auto_mesh", "explicit_mesh"])
def test_gradients_are_those_of_one_device(mesh: str, request: pytest.FixtureRequest) -> None:
    shift, layout = (0, LAYOUTS[0]) if mesh == "explicit_mesh" else (3, LAYOUTS[1])
    assert not wrong([*KNOWN, *sample(shift)[shift::6]], request.getfixturevalue(mesh), layout)


def main() -> None:
    """Try all pairs."""
    failed = 0
    for layout in LAYOUTS:
        for kind in (AxisType.Explicit, AxisType.Auto):
            mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind, kind))
            for part in PARTS:
                lines = wrong([(part, whole) for whole in WHOLES], mesh, layout)
                failed += len(lines)
                print(f"{kind.name} {layout} {part}: {', '.join(lines) or 'right'}", flush=True)
    raise SystemExit(f"{failed} pairs are wrong" if failed else 0)


if __name__ == "__main__":
    main()
