"""Activations and one_hot, against `jax.nn`: of named arrays, of plain ones, and in tree maps."""

import axonym.compat.haliax  # noqa: F401  # makes `haliax` resolve

# isort: split

import haliax as hax
import haliax.nn as hnn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

Batch, Embed = hax.Axis("batch", 2), hax.Axis("embed", 6)
VALUES = np.linspace(-4, 4, 12, dtype=np.float32).reshape(2, 6)
X = hax.named(VALUES, (Batch, Embed))
JAX = [
    *("celu", "elu", "gelu", "hard_sigmoid", "hard_silu", "hard_swish", "hard_tanh", "leaky_relu", "log_sigmoid"),
    *("relu", "relu6", "selu", "sigmoid", "silu", "soft_sign", "softplus", "swish"),
]
REFERENCES = {name: getattr(jax.nn, name) for name in JAX} | {
    "quick_gelu": lambda x: x * jax.nn.sigmoid(1.702 * x),
    "relu_squared": lambda x: jnp.maximum(x, 0) ** 2,
}


@pytest.mark.parametrize("name", REFERENCES)
def test_of_named_arrays_plain_ones_and_leaves(name):
    activation, reference = getattr(hnn, name), REFERENCES[name](VALUES)
    assert activation is getattr(hnn.activations, name)
    out = activation(X)
    assert type(out) is hax.NamedArray
    assert out.axes == (Batch, Embed)
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out.array, reference, rtol=1e-6, atol=1e-6)
    plain = activation(jnp.asarray(VALUES))
    assert isinstance(plain, jax.Array)
    np.testing.assert_allclose(plain, reference, rtol=1e-6, atol=1e-6)
    mapped = jax.tree_util.tree_map(activation, X)
    assert type(mapped) is hax.NamedArray
    np.testing.assert_allclose(mapped.array, reference, rtol=1e-6, atol=1e-6)


def test_gelu_is_the_tanh_approximation_unless_told_otherwise():
    np.testing.assert_allclose(hnn.gelu(X).array, jax.nn.gelu(VALUES, approximate=True), rtol=1e-6)
    for out in (hnn.gelu(X, approximate=False), hnn.gelu(X, False)):
        np.testing.assert_allclose(out.array, jax.nn.gelu(VALUES, approximate=False), rtol=1e-5)


def test_the_dtype_stays_and_a_number_is_a_plain_array():
    assert hnn.relu_squared(X.astype(jnp.bfloat16)).dtype == jnp.bfloat16
    np.testing.assert_allclose(hnn.relu_squared(0.5), 0.25)


@pytest.mark.parametrize("axis", ["embed", Embed])
def test_glu_halves_an_axis(axis):
    out = hnn.glu(X, axis)
    assert type(out) is hax.NamedArray
    assert out.axes == (Batch, Embed.resize(3))
    np.testing.assert_allclose(out.array, jax.nn.glu(VALUES, axis=1), rtol=1e-6)
    with pytest.raises(ValueError, match="cannot be split into two halves"):
        hnn.glu(hax.named(np.ones(3), "odd"), "odd")


def test_one_hot_of_an_array_has_the_classes_last():
    Class = hax.Axis("class", 3)
    ids = hax.named(jnp.array([[0, 2], [1, 3]]), (Batch, "pos"))
    out = hnn.one_hot(ids, Class)
    assert type(out) is hax.NamedArray
    assert out.axes == (Batch, hax.Axis("pos", 2), Class)
    assert out.dtype == jnp.float32
    np.testing.assert_array_equal(out.array, np.array([[[1, 0, 0], [0, 0, 1]], [[0, 1, 0], [0, 0, 0]]]))
    assert hnn.one_hot(ids, Class, dtype=jnp.bfloat16).dtype == jnp.bfloat16
    assert hnn.one_hot(ids, Class, dtype="int32").dtype == jnp.int32


@pytest.mark.parametrize(("number", "hot"), [(1, 1), (-1, 2), (np.int64(0), 0), (jnp.array(2), 2), (jnp.array(-3), 0)])
def test_one_hot_of_one_number(number, hot):
    out = hnn.one_hot(number, hax.Axis("class", 3))
    assert type(out) is hax.NamedArray
    assert out.axes == (hax.Axis("class", 3),)
    assert out.dtype == jnp.float32
    np.testing.assert_array_equal(out.array, np.eye(3)[hot])
    assert hnn.one_hot(number, hax.Axis("class", 3), dtype=jnp.int32).dtype == jnp.int32


@pytest.mark.parametrize("number", [3, -4])
@pytest.mark.parametrize("error", [AssertionError, ValueError])
def test_one_hot_of_no_class(number, error):
    with pytest.raises(error, match=r"one_hot: the class number is out of range\n  axis of classes: class=3"):
        hnn.one_hot(number, hax.Axis("class", 3))


@pytest.mark.parametrize("error", [TypeError, ValueError])
def test_one_hot_of_what_is_no_class_number(error):
    for wrong in (1.5, jnp.arange(3)):
        with pytest.raises(error, match="a class number must be a NamedArray, an int or a single integer"):
            hnn.one_hot(wrong, hax.Axis("class", 3))
