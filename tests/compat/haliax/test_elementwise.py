"""`hax.exp`, `hax.add` and their like, by rules U and B of Haliax, against jax.numpy."""

import axonym.compat.haliax  # isort: skip

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym

A, B, C = hax.Axis("A", 2), hax.Axis("B", 3), hax.Axis("C", 4)

FLOATS = [
    "abs",
    "absolute",
    "angle",
    "arccos",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctanh",
    "around",
    "cbrt",
    "ceil",
    "conj",
    "conjugate",
    "copy",
    "cos",
    "cosh",
    "deg2rad",
    "degrees",
    "exp",
    "exp2",
    "expm1",
    "fabs",
    "fix",
    "floor",
    "i0",
    "imag",
    "iscomplex",
    "isfinite",
    "isinf",
    "isnan",
    "isneginf",
    "isposinf",
    "isreal",
    "log",
    "log10",
    "log1p",
    "log2",
    "logical_not",
    "negative",
    "positive",
    "rad2deg",
    "radians",
    "real",
    "reciprocal",
    "rint",
    "round",
    "sign",
    "signbit",
    "sin",
    "sinc",
    "sinh",
    "sqrt",
    "square",
    "tan",
    "tanh",
    "trunc",
]
INTS = ["bitwise_count", "bitwise_invert", "bitwise_not", "invert"]
PAIRS = [
    "add",
    "arctan2",
    "divide",
    "equal",
    "float_power",
    "floor_divide",
    "fmax",
    "fmin",
    "fmod",
    "greater",
    "greater_equal",
    "hypot",
    "less",
    "less_equal",
    "logaddexp",
    "logaddexp2",
    "logical_and",
    "logical_or",
    "logical_xor",
    "maximum",
    "minimum",
    "mod",
    "multiply",
    "nextafter",
    "not_equal",
    "power",
    "remainder",
    "subtract",
    "true_divide",
]
INT_PAIRS = [
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "bitwise_left_shift",
    "bitwise_right_shift",
    "left_shift",
    "right_shift",
    "mod",
    "floor_divide",
]


def named(array, *axes):
    result = hax.NamedArray(jnp.asarray(array), axes)
    assert type(result) is hax.NamedArray
    return result


def matches(result, expected, *axes):
    assert type(result) is hax.NamedArray
    assert result.axes == axes
    np.testing.assert_allclose(np.asarray(result.array), np.asarray(expected), rtol=1e-5)


def check_plain(name, fn, dtype, *arrays):
    """Plain arrays go to jax.numpy; shapes and dtypes tell, without compiling anything."""
    positional = jnp.trunc if name == "fix" else getattr(jnp, name)
    plain, expected = jax.eval_shape(fn, *arrays), jax.eval_shape(positional, *arrays)
    assert plain == expected
    assert dtype == expected.dtype


@pytest.mark.parametrize("name", FLOATS + INTS)
def test_unary(name):
    raw = np.float32([[0.2, 0.5, 0.9], [0.1, 0.3, 0.7]]) if name in FLOATS else np.int32([[1, 2, 3], [7, 0, 5]])
    result = getattr(hax, name)(a=named(raw, A, B))
    matches(result, getattr(np, "trunc" if name == "fix" else name)(raw), A, B)
    check_plain(name, getattr(hax, name), result.dtype, raw)


def test_plain_arrays_stay_plain():
    raw = jnp.array([0.5, 1.0])
    for result, expected in ((hax.exp(raw), np.exp(raw)), (hax.add(raw, 1), raw + 1), (hax.mod(7, 4), 3)):
        assert isinstance(result, jax.Array)
        np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_unary_of_other_domains():
    raw = jnp.array([1.5, 2.5, 4.0])
    matches(hax.arccosh(named(raw, B)), jnp.arccosh(raw), B)
    matches(hax.rsqrt(named(raw, B)), 1 / jnp.sqrt(raw), B)
    np.testing.assert_allclose(hax.rsqrt(raw), 1 / jnp.sqrt(raw), rtol=1e-6)
    assert float(hax.exp(0.0)) == 1.0
    half = named(raw.astype(jnp.bfloat16), B)
    assert hax.tanh(half).dtype == jnp.bfloat16
    matches(hax.round(named(raw / 7, B), 2), jnp.round(raw / 7, 2), B)
    matches(hax.round(named(raw / 7, B), decimals=1), jnp.round(raw / 7, 1), B)


@pytest.mark.parametrize("name", PAIRS + INT_PAIRS)
def test_binary(name):
    fn, ref = getattr(hax, name), getattr(np, name)
    x, y = np.int32([[1, 2, 3], [4, 5, 6]]), np.int32([3, 2, 1])
    if name in PAIRS and name not in INT_PAIRS:
        x, y = x.astype(np.float32), y.astype(np.float32)
    result = fn(a=named(x, A, B), b=named(y, B))
    matches(result, ref(x, y), A, B)
    check_plain(name, fn, result.dtype, x, y)


def test_order_of_axes():
    x, y = np.float32([[1, 2, 3], [4, 5, 6]]), np.float32([3, 2, 1])
    a, b = named(x, A, B), named(y, B)
    matches(hax.subtract(b, a), y - x, A, B)  # that of the larger one
    matches(hax.subtract(a, named(2 * x.T, B, A)), -x, A, B)  # that of the first
    matches(hax.subtract(named(2 * x.T, B, A), a), x.T, B, A)
    matches(hax.power(a, 2), x**2, A, B)
    matches(hax.power(2.0, a), 2.0**x, A, B)


def test_dtypes_are_those_of_jax():
    ints, halves = named(jnp.arange(3), B), named(jnp.ones(3, jnp.bfloat16), B)
    assert (ints + 1.5).dtype == jnp.float32
    assert (halves * 2.0).dtype == jnp.bfloat16
    assert (halves + ints).dtype == jnp.bfloat16
    assert (ints / 2).dtype == jnp.float32
    assert (halves * np.float32(2)).dtype == jnp.float32
    assert (ints**2).dtype == jnp.int32


@pytest.mark.parametrize("scalar", [2, 2.0, True, np.float32(2), np.asarray(2.0), jnp.asarray(2.0)])
def test_scalars_of_all_kinds(scalar):
    x = jnp.arange(3.0)
    matches(hax.add(named(x, B), scalar), x + jnp.asarray(scalar, x.dtype), B)
    matches(hax.subtract(scalar, named(x, B)), jnp.asarray(scalar, x.dtype) - x, B)


@pytest.mark.parametrize("order", [1, -1])
def test_an_array_without_axes_leaves_a_plain_one_plain(order):
    result = hax.add(*(named(2.0), jnp.arange(3.0))[::order])
    assert isinstance(result, jax.Array)
    np.testing.assert_array_equal(result, [2, 3, 4])


def test_results_are_never_the_base_class():
    base = axonym.ones(B)
    assert type(hax.exp(base)) is hax.NamedArray
    assert type(hax.add(base, named(jnp.ones(3), B))) is hax.NamedArray
    assert type(hax.add(2, base)) is hax.NamedArray


@pytest.mark.parametrize("other", [jnp.ones(3), np.ones(3), [1.0, 2.0, 3.0]])
def test_plain_arrays_cannot_be_named(other):
    x = named(jnp.ones(3), B)
    for error in (ValueError, TypeError):
        with pytest.raises(error, match="name it first"):
            hax.add(x, other)
        with pytest.raises(error, match="name it first"):
            hax.add(other, x)
    with pytest.raises(ValueError, match="NoneType"):
        hax.equal(x, None)


def test_axes_that_do_not_fit():
    with pytest.raises(ValueError, match="no operand has the axes of all others"):
        hax.add(named(jnp.ones(2), A), named(jnp.ones(3), B))
    for error in (ValueError, RuntimeError):
        with pytest.raises(error, match="two sizes: 3 and 5"):
            hax.add(named(jnp.ones(3), B), named(jnp.ones(5), B.resize(5) if hasattr(B, "resize") else "B"))
    with pytest.raises(ValueError, match="two sizes: 3 and 1"):
        hax.multiply(named(jnp.ones(3), B), named(jnp.ones(1), hax.Axis("B", 1)))


def test_what_is_broken_in_haliax_works():
    x = jnp.array([5.0, 7.0, -3.0])
    for result, expected in zip(hax.divmod(named(x, B), 2.0), jnp.divmod(x, 2.0), strict=True):
        matches(result, expected, B)
    for result, expected in zip(hax.frexp(named(x, B)), jnp.frexp(x), strict=True):
        matches(result, expected, B)
    assert hax.ndim(named(jnp.ones((2, 3)), A, B)) == 2
    assert type(hax.ndim(named(x, B))) is int
    assert hax.ndim(jnp.ones((2, 3))) == 2


def test_under_transformations():
    x = jnp.array([0.5, 1.0, 2.0])

    def loss(a):
        return (hax.tanh(a) * hax.square(a)).sum().scalar()

    gradient = jax.jit(jax.grad(loss))(named(x, B))
    matches(gradient, jax.grad(lambda a: (jnp.tanh(a) * jnp.square(a)).sum())(x), B)
