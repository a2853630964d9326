"""What compiles again: never a number that only scales."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import axonym as axn
from axonym import nn

X = axn.named(np.arange(6.0, dtype=np.float32).reshape(2, 3), ("batch", "vocab"))
IDS = axn.named([0, 2], "batch")
SCALES: dict[str, Callable[[float], Any]] = {
    "leaky_relu": lambda number: nn.leaky_relu(X, number),
    "elu": lambda number: nn.elu(X, number),
    "celu": lambda number: nn.celu(X, number),
    "squareplus": lambda number: nn.squareplus(X, number),
    "isclose": lambda number: axn.isclose(X, X + 1, atol=number),
    "allclose": lambda number: axn.allclose(X, X + 1, rtol=number),
    "standardize": lambda number: axn.standardize(X, "vocab", epsilon=number),
    "a masked standardize": lambda number: axn.standardize(X, "vocab", epsilon=number, where=X > 1),
    "z_loss": lambda number: nn.cross_entropy_loss(X, "vocab", IDS, z_loss=number),
    "label_smoothing": lambda number: nn.cross_entropy_loss(X, "vocab", IDS, label_smoothing=number),
    "dropout": lambda number: nn.dropout(X, number, key=jax.random.key(0)),
    "clip": lambda number: axn.clip(X, number, 2.0),
    "nan_to_num": lambda number: axn.nan_to_num(X, nan=number),
    "pad": lambda number: axn.pad(X, {"vocab": (1, 1)}, constant_values=number),
    "full_like": lambda number: axn.full_like(X, number),
    "uniform": lambda number: axn.random.uniform(jax.random.key(0), X.axes, minval=number),
    "bernoulli": lambda number: axn.random.bernoulli(jax.random.key(0), X.axes, number),
}


@pytest.mark.parametrize("name", SCALES)
def test_a_number_that_only_scales_does_not_compile_again(name: str, compiles: list[str]) -> None:
    SCALES[name](0.25)
    compiles.clear()
    SCALES[name](0.5)
    assert not compiles


RENAMED: dict[str, Callable[[axn.NamedArray, str, str], Any]] = {
    "add": lambda x, _, __: x + 1.0,
    "where": lambda x, _, __: axn.where(x > 1, x, 0.0),
    "an operand in another order": lambda x, a, b: x * x.rearrange((b, a)),
    "sum": lambda x, a, _: x.sum(a),
    "softmax": lambda x, a, _: axn.softmax(x, a),
    "cumsum": lambda x, a, _: x.cumsum(a),
    "dot": lambda x, a, _: axn.dot(x, x, axis=a),
    "einsum": lambda x, _, __: axn.einsum("i j, i j -> j", x, x),
    "rearrange": lambda x, _, __: axn.rearrange(x, "i j -> j i"),
    "flatten_axes": lambda x, a, b: x.flatten_axes((a, b), a + b),
    "stack": lambda x, a, b: axn.stack(a + b, [x, x]),
    "index": lambda x, a, b: x[a, 1, b, 0:2],
    "take": lambda x, _, b: axn.take(x, b, axn.named(np.array([2, 0]), b + "2")),
    "set": lambda x, a, _: x.at[a, 0].set(1.0),
    "norm": lambda x, _, b: axn.linalg.norm(x, axis=b),
    "LayerNorm": lambda x, _, b: nn.LayerNorm.init(x.resolve_axis(b))(x),
    "cross_entropy_loss": lambda x, a, b: nn.cross_entropy_loss(x, b, axn.named(np.array([0, 2]), a)),
}


@pytest.mark.parametrize("name", RENAMED)
def test_new_names_for_known_shapes_do_not_compile_again(name: str, compiles: list[str]) -> None:
    # Names that no other test has: a kernel to which names have mattered, under a mapping, has a program of its own.
    known = RENAMED[name](X.rename({"batch": "apple", "vocab": "lemon"}), "apple", "lemon")
    compiles.clear()
    found = RENAMED[name](X.rename({"batch": "berry", "vocab": "cherry"}), "berry", "cherry")
    assert not compiles
    np.testing.assert_array_equal(found.array, known.array)
    renamed = {"apple": "berry", "lemon": "cherry", "lemon2": "cherry2", "applelemon": "berrycherry"}
    assert found.names == tuple(renamed[name] for name in known.names)


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_a_probability_does_not_compile_again_on_a_mesh(
    kind: str, compiles: list[str], request: pytest.FixtureRequest
) -> None:
    with axn.set_mesh(request.getfixturevalue(f"{kind}_mesh")), axn.axis_mapping({"batch": "model"}):
        expected = axn.random.bernoulli(jax.random.key(0), X.axes, 0.25)
        compiles.clear()
        found = axn.random.bernoulli(jax.random.key(0), X.axes, 0.5)
        assert not compiles
    for made, p in ((expected, 0.25), (found, 0.5)):
        np.testing.assert_array_equal(made.array, jax.random.bernoulli(jax.random.key(0), p, (2, 3)))
