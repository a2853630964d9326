"""Sizes that the mesh does not divide, of inputs and of results, on both kinds of mesh against one device.

Axis `pos` is mapped. Operations take and make any size: what does not divide is whole. Layers lay their results out by
the mapping, so that there a size which does not divide is an error, and the same one on both kinds of mesh.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import axonym as axn
from axonym import nn
from axonym.errors import ShardingError
from tests.nn.layouts import halved, made

Call = Callable[[axn.NamedArray], axn.NamedArray]

Embed, Heads, HeadDim = axn.make_axes(embed=8, heads=2, head_dim=4)
TABLE = made(nn.Embedding.init, axn.Axis("vocab", 16), Embed)
CONV = {
    padding: made(nn.Conv.init, "pos", Embed, axn.Axis("out", 4), 3, padding=padding) for padding in ("SAME", "VALID")
}
UP = made(nn.ConvTranspose.init, "pos", Embed, axn.Axis("out", 4), 2, stride=2)
LINEAR = made(nn.Linear.init, Embed, Heads)
ATTENTION = halved(made(nn.Attention.init, Embed, Heads, HeadDim))


def widen(x: axn.NamedArray, by: int = 1) -> axn.NamedArray:
    return axn.pad(x, {"pos": (by, by)}, mode="wrap")


def ids(x: axn.NamedArray) -> axn.NamedArray:
    return axn.argmax(x, "embed")


OPERATIONS: dict[str, Call] = {
    "a class token in front": lambda x: axn.concatenate("pos", [x["pos", :1] * 2, x]),
    "parts of other sizes": lambda x: axn.concatenate("pos", [x["pos", :3], x, x["pos", :5]]),
    "parts, none of which divides": lambda x: axn.concatenate("pos", [x["pos", :3], x["pos", 3:8]]),
    "arange": lambda x: x * axn.arange(x.resolve_axis("pos")),
    "at": lambda x: x.at["pos", 1:].set(0.0),
    "associative_scan": axn.associative_scan(lambda a, b: a * b, "pos"),
    "convolve": lambda x: axn.convolve(x, axn.ones(axn.Axis("pos", 3)), "pos"),
    "cumulative_sum": lambda x: axn.cumulative_sum(x, "pos", include_initial=True),
    "delete": lambda x: axn.delete(x, 0, "pos"),
    "diff": lambda x: axn.diff(x, "pos"),
    "flatten_axes": lambda x: axn.flatten_axes(x, ("batch", "pos"), "rows"),
    "flip": lambda x: axn.flip(widen(x), "pos"),
    "gradient": lambda x: axn.gradient(x["pos", 1:], "pos"),
    "insert": lambda x: axn.insert(x, 0, 1.0, "pos"),
    "map": axn.map(lambda row: row * 2, "pos"),
    "pad": lambda x: axn.pad(x, {"pos": (1, 0)}),
    "quantile": lambda x: axn.quantile(widen(x), 0.4, "pos"),
    "repeat": lambda x: axn.repeat(x["pos", 1:], 3, "pos"),
    "resize": lambda x: axn.image.resize(x, {"pos": 7}, "linear"),
    "roll": lambda x: axn.roll(widen(x), 3, "pos"),
    "scan": lambda x: axn.scan(lambda carry, row: (carry + row, carry), "pos")(axn.zeros_like(x["pos", 0]), x)[1],
    "slice": lambda x: x["pos", 1:],
    "softmax": lambda x: axn.softmax(widen(x), "pos"),
    "sort": lambda x: axn.sort(widen(x), "pos"),
    "split": lambda x: axn.split(x, "pos", [axn.Axis("first", 3), axn.Axis("second", x.axis_size("pos") - 3)])[1],
    "take": lambda x: axn.take(x, "pos", axn.arange(axn.Axis("pos", 5))),
    "tile": lambda x: axn.tile(x["pos", 1:], {"pos": 3}),
    "where": lambda x: axn.where(axn.arange(x.resolve_axis("pos")) > 2, x, 0.0),
    "zeros": lambda x: x + axn.zeros((x.resolve_axis("pos"), Embed)),
}
# Layers whose input is uneven, and whose result is not.
LAYERS: dict[str, Call] = {
    "a convolution of what was padded": lambda x: CONV["VALID"](widen(x)),
    "a maximum of what was padded": lambda x: nn.max_pool(axn.Axis("pos", 3), widen(x), 1),
    "a mean of what was padded": lambda x: nn.mean_pool(axn.Axis("pos", 3), widen(x), 1),
}
# Layers whose result is uneven.
REFUSED: dict[str, Call] = {
    "attention": lambda x: ATTENTION(x),
    "convolution": lambda x: CONV["SAME"](x),
    "embedding": lambda x: TABLE(ids(x)),
    "linear": lambda x: LINEAR(x),
    "pool": lambda x: nn.max_pool(axn.Axis("pos", 3), x, 1, ((1, 1),)),
    "transposed convolution": lambda x: UP(x),
}


def weigh(x: axn.NamedArray) -> jax.Array:
    weights = jnp.arange(x.array.size, dtype=jnp.float32).reshape(x.array.shape) / x.array.size
    return (x.array * weights).sum()


def run_all(calls: dict[str, Call], x: axn.NamedArray) -> Any:
    """Return the value of each call, in the order of axes of its name, and the gradient of a weighted sum of it."""
    return {name: (call(x), jax.grad(lambda x, call=call: weigh(call(x)))(x)) for name, call in calls.items()}


def draw(size: int) -> axn.NamedArray:
    return axn.random.normal(jax.random.key(1), (axn.Axis("batch", 2), axn.Axis("pos", size), Embed))


@pytest.mark.parametrize(("size", "calls"), [(16, OPERATIONS | LAYERS), (17, OPERATIONS)], ids=["even", "uneven"])
def test_sizes_that_do_not_divide(size: int, calls: dict[str, Call], auto_mesh: Mesh, explicit_mesh: Mesh) -> None:
    x = draw(size)
    expected = jax.jit(lambda x: run_all(calls, x))(x)
    for mesh in (auto_mesh, explicit_mesh):
        with axn.set_mesh(mesh), axn.axis_mapping({"pos": "data"}):
            got = jax.jit(lambda x: run_all(calls, x))(axn.shard(x) if size == 16 else x)
        for name, (value, gradient) in got.items():
            place = f"{name} on {mesh}"
            assert value.axes == expected[name][0].axes, place
            np.testing.assert_allclose(value.array, expected[name][0].array, rtol=1e-4, atol=1e-5, err_msg=place)
            np.testing.assert_allclose(gradient.array, expected[name][1].array, rtol=1e-4, atol=1e-5, err_msg=place)


@pytest.mark.parametrize("name", REFUSED)
def test_results_of_layers_that_do_not_divide_are_refused_alike(
    name: str, auto_mesh: Mesh, explicit_mesh: Mesh
) -> None:
    texts = []
    for mesh in (auto_mesh, explicit_mesh):
        with axn.set_mesh(mesh), axn.axis_mapping({"pos": "data"}), pytest.raises(ShardingError) as error:
            jax.eval_shape(REFUSED[name], draw(17))
        texts.append(str(error.value))
    assert texts[0] == texts[1]
    assert "cannot be split evenly in 4 over mesh axis data" in texts[0]
