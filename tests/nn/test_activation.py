"""Activations, against `jax.nn` and their formulas in float64."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import ArgumentError, AxisSizeError, OperandError
from axonym.nn import activation
from tests.nn.layouts import same
from tests.together import together

sigmoid = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
erf = np.vectorize(math.erf)
FORMULAS = {
    "celu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "gelu": lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "hard_sigmoid": lambda x: np.clip(x + 3, 0, 6) / 6,
    "hard_silu": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "hard_tanh": lambda x: np.clip(x, -1, 1),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "log_sigmoid": lambda x: np.log(sigmoid(x)),
    "quick_gelu": lambda x: x * sigmoid(1.702 * x),
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "relu_squared": lambda x: np.maximum(x, 0) ** 2,
    "selu": lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)),
    "sigmoid": sigmoid,
    "silu": lambda x: x * sigmoid(x),
    "soft_sign": lambda x: x / (np.abs(x) + 1),
    "softplus": lambda x: np.log1p(np.exp(x)),
    "sparse_plus": lambda x: np.where(x < -1, 0, np.where(x > 1, x, (x + 1) ** 2 / 4)),
    "sparse_sigmoid": lambda x: np.clip((x + 1) / 2, 0, 1),
    "squareplus": lambda x: (x + np.sqrt(x**2 + 4)) / 2,
}
X = np.linspace(-7.3, 7.1, 24).reshape(4, 6)


def test_each_has_a_row():
    # These two have tests of their own: one works along an axis, the other on positive numbers.
    assert sorted([*FORMULAS, "glu", "log1mexp"]) == sorted(activation.__all__)


def job_of(name):
    fn = getattr(nn, name)
    slope = jax.grad(lambda x: fn(x).sum().scalar())

    def all_forms(x, far):
        forms = fn(x), fn(x.untag("batch")), fn(x.astype(jnp.bfloat16))
        return forms, slope(x), (fn(far), slope(far["x", ::2]))

    return all_forms, (axn.named(X.astype(np.float32), ("batch", "embed")), axn.named(np.float32([-1e4, 0, 1e4]), "x"))


@pytest.mark.parametrize("name", FORMULAS)
def test_formula(name):
    (wide, anonymous, narrow), *_ = together(job_of, list(FORMULAS), name)
    same(wide, ("batch", "embed"), FORMULAS[name](X))
    same(anonymous, ("embed",), FORMULAS[name](X))
    assert narrow.dtype == jnp.bfloat16


@pytest.mark.parametrize("name", FORMULAS)
def test_gradient(name):
    step = 1e-6
    expected = (FORMULAS[name](X + step) - FORMULAS[name](X - step)) / (2 * step)
    _, gradient, _ = together(job_of, list(FORMULAS), name)
    same(gradient, ("batch", "embed"), expected, atol=1e-4)


def exact_gelu(x):
    return nn.gelu(x, approximate=False)


def test_derivatives_of_the_exact_gelu():
    x = axn.named(X.astype(np.float32), ("batch", "embed"))
    slope = jax.grad(lambda x: exact_gelu(x).sum().scalar())
    found = jax.jit(lambda x: (slope(x), jax.grad(lambda x: slope(x).sum().scalar())(x)))(x)
    density = np.exp(-(X**2) / 2) / math.sqrt(2 * math.pi)
    same(found[0], ("batch", "embed"), (1 + erf(X / math.sqrt(2))) / 2 + X * density)
    same(found[1], ("batch", "embed"), (2 - X**2) * density)


@pytest.mark.parametrize("name", FORMULAS)
def test_extremes_are_as_in_the_limit(name):
    _, _, found = together(job_of, list(FORMULAS), name)
    assert not any(np.isnan(part).any() for part in jax.tree.leaves(found))


def test_options():
    x = axn.named(X.astype(np.float32), ("batch", "embed"))
    same(nn.gelu(x, approximate=False), ("batch", "embed"), X / 2 * (1 + erf(X / math.sqrt(2))))
    same(nn.celu(x, alpha=0.7), ("batch", "embed"), np.where(X > 0, X, 0.7 * np.expm1(X / 0.7)))
    same(nn.elu(x, alpha=0.7), ("batch", "embed"), np.where(X > 0, X, 0.7 * np.expm1(X)))
    same(nn.squareplus(x, b=1.0), ("batch", "embed"), (X + np.sqrt(X**2 + 1)) / 2)
    same(nn.leaky_relu(x, negative_slope=0.3), ("batch", "embed"), np.where(X > 0, X, 0.3 * X))


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
def test_slopes_of_large_numbers_are_zero_or_one(dtype):
    """Their squares and cubes are infinite."""
    large = np.array([-np.inf, -6e4, -300, -90, 90, 300, 6e4], dtype)
    x = axn.named(large, "embed")
    for fn in (nn.gelu, exact_gelu, nn.silu):
        slopes = jax.jit(jax.grad(lambda x, fn=fn: fn(x).sum().scalar()))(x["embed", 1:])
        np.testing.assert_allclose(slopes.array.astype(np.float32), large[1:] > 0, atol=1e-30)
    for fn in (nn.gelu, exact_gelu):
        of_infinity = jax.jit(jax.grad(lambda x, fn=fn: fn(x).sum().scalar()))(x["embed", :1])
        assert of_infinity.tolist() == [0]


def test_gelu_takes_no_words():
    with pytest.raises(ArgumentError) as error:
        nn.gelu(axn.ones(axn.Axis("embed", 2)), approximate="none")
    assert str(error.value) == "gelu: approximate must be True (tanh) or False, not 'none'"


def test_glu_halves_an_axis():
    x = axn.named(X.astype(np.float32), ("batch", "embed"))
    same(nn.glu(x, "embed"), ("batch", "embed"), X[:, :3] * sigmoid(X[:, 3:]))
    same(nn.glu(x.rearrange(("embed", "batch")), "batch"), ("embed", "batch"), (X[:2] * sigmoid(X[2:])).T)
    with pytest.raises(AxisSizeError) as caught:
        nn.glu(x["batch", :3], "batch")
    assert str(caught.value) == "glu: batch=3 cannot be split into two halves\n  array has: batch=3, embed=6"


def test_log1mexp_is_precise_near_zero():
    near = np.array([1e-6, 1e-3, 0.7, 5.0, 30.0])
    same(nn.log1mexp(axn.named(near.astype(np.float32), "x")), ("x",), np.log(-np.expm1(-near)), atol=1e-5)


@pytest.mark.parametrize("name", FORMULAS)
def test_raw_arrays_are_refused(name):
    with pytest.raises(OperandError, match=r"expected a NamedArray, got a plain array\n  its shape: \(3,\)"):
        getattr(nn, name)(jnp.ones(3))


@pytest.mark.parametrize("name", FORMULAS)
def test_on_an_explicit_mesh_the_layout_stays(name, explicit_mesh):
    with axn.set_mesh(explicit_mesh):
        x = axn.shard(axn.named(X.astype(np.float32), ("batch", "embed")), {"batch": "data", "embed": "model"})
        out = jax.eval_shape(getattr(nn, name), x)
        assert tuple(out.array.sharding.spec) == ("data", "model")
