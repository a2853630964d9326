"""Lifting functions of arrays by hand."""

import axonym.compat.haliax  # noqa: F401 # isort: skip

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax.wrap import (
    ReductionFunction,
    SimpleReductionFunction,
    unwrap_namedarrays,
    wrap_axiswise_call,
    wrap_elemwise_binary,
    wrap_elemwise_unary,
    wrap_reduction_call,
)

A, B, C = hax.Axis("A", 2), hax.Axis("B", 3), hax.Axis("C", 4)
X = jnp.arange(24.0).reshape(2, 3, 4)


def x():
    return hax.NamedArray(X, (A, B, C))


def matches(result, expected, *axes):
    assert type(result) is hax.NamedArray
    assert result.axes == axes
    np.testing.assert_allclose(np.asarray(result.array), expected, rtol=1e-6)


def test_unary():
    def scaled(array, factor, shift=0):
        return array * factor + shift

    matches(wrap_elemwise_unary(scaled, x(), 2, shift=1), X * 2 + 1, A, B, C)
    np.testing.assert_array_equal(wrap_elemwise_unary(scaled, X, 3), X * 3)


def test_binary_without_axes():
    add = hax.wrap.wrap_elemwise_binary(jnp.add)
    assert type(add(hax.named(1, ()), hax.named(2, ()))) is hax.NamedArray
    assert type(add(hax.named(1, ()), jnp.int32(2))) is hax.NamedArray
    assert isinstance(add(hax.named(1, ()), jnp.ones(2)), jax.Array)


def test_binary():
    @wrap_elemwise_binary
    def weighted(a, b):
        return a + 10 * b

    matches(weighted(x(), 2.0), X + 20, A, B, C)
    matches(weighted(2.0, x()), 2 + 10 * X, A, B, C)
    matches(weighted(hax.NamedArray(X[0, :, 0], (B,)), x()), X[0, :, 0][:, None] + 10 * X, A, B, C)
    matches(weighted(x(), hax.NamedArray(X.T, (C, B, A))), X * 11, A, B, C)
    np.testing.assert_array_equal(weighted(X, X), X * 11)
    assert isinstance(weighted(hax.NamedArray(jnp.ones(()), ()), X), jax.Array)
    with pytest.raises(ValueError, match="name it first"):
        weighted(x(), X)
    with pytest.raises(ValueError, match="axes of all others"):
        weighted(x(), hax.NamedArray(jnp.ones(2), (hax.Axis("Q", 2),)))
    with pytest.raises(ValueError, match="two sizes"):
        weighted(x(), hax.NamedArray(jnp.ones(2), (hax.Axis("B", 2),)))


def test_reduction():
    matches(wrap_reduction_call(jnp.sum, x(), "B"), X.sum(1), A, C)
    matches(wrap_reduction_call(jnp.sum, x(), (C, A), None), X.sum((0, 2)), B)
    matches(wrap_reduction_call(jnp.sum, x(), None, dtype=jnp.int32), X.sum())
    mask = hax.NamedArray(X[:, :, 0].T > 4, (B, A))
    matches(wrap_reduction_call(jnp.mean, x(), "C", mask | True), X.mean(2), A, B)
    matches(wrap_reduction_call(jnp.sum, x(), B, mask), jnp.where(X[:, :, :1] > 4, X, 0).sum(1), A, C)
    matches(wrap_reduction_call(jnp.argmax, x(), C, single_axis_only=True, supports_where=False), X.argmax(2), A, B)
    tree = wrap_reduction_call(jnp.max, {"a": x(), "b": X}, None)
    matches(tree["a"], 23)
    assert float(tree["b"]) == 23
    with pytest.raises(ValueError, match="one axis"):
        wrap_reduction_call(jnp.argmax, x(), ("A", "B"), single_axis_only=True)
    with pytest.raises(ValueError, match="no where"):
        wrap_reduction_call(jnp.argmax, x(), A, mask, supports_where=False)
    with pytest.raises(TypeError, match="must be a NamedArray"):
        wrap_reduction_call(jnp.sum, x(), A, X > 3)


def test_axiswise():
    matches(wrap_axiswise_call(jnp.cumsum, x(), "B", single_axis_only=True), X.cumsum(1), A, B, C)
    matches(wrap_axiswise_call(jax.nn.softmax, x(), (A, C), single_axis_only=False), jax.nn.softmax(X, (0, 2)), A, B, C)
    flat = wrap_axiswise_call(jnp.cumsum, x(), None, single_axis_only=True)
    np.testing.assert_array_equal(flat, X.cumsum())
    with pytest.raises(ValueError, match="one axis"):
        wrap_axiswise_call(jnp.cumsum, x(), (A, B), single_axis_only=True)


def test_unwrapping_and_protocols():
    array, scalar = unwrap_namedarrays(x(), 2)
    assert array.shape == (2, 3, 4)
    assert scalar == 2
    assert ReductionFunction.__call__
    assert SimpleReductionFunction.__call__
