"""Comparisons, logic and bitwise operations on single elements, or on pairs of elements matched by name."""

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from ..base.calls import explain_calls
from ..engine import checks, pointwise
from ..engine.core import Core, Operand
from ..errors import AxisSizeError, BroadcastError
from .examples import add_examples

if TYPE_CHECKING:
    from ..array import NamedArray

__all__ = [
    "allclose",
    "array_equal",
    "array_equiv",
    "bitwise_and",
    "bitwise_count",
    "bitwise_invert",
    "bitwise_or",
    "bitwise_xor",
    "equal",
    "greater",
    "greater_equal",
    "isclose",
    "iscomplex",
    "isneginf",
    "isposinf",
    "isreal",
    "left_shift",
    "less",
    "less_equal",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "not_equal",
    "right_shift",
    "signbit",
]


def allclose(
    x: Operand, y: Operand, rtol: Operand = 1e-5, atol: Operand = 1e-8, equal_nan: bool = False
) -> jax.Array:
    """Test whether all elements differ by at most `atol + rtol * |y|`; the result is a 0-d array."""
    return isclose(x, y, rtol, atol, equal_nan).array.all()


def array_equal(x: "NamedArray", y: "NamedArray", equal_nan: bool = False) -> jax.Array:
    """Test whether two arrays have the same axes, in any order, and equal elements; the result is a 0-d array."""
    for operand in (x, y):
        if not isinstance(operand, Core):
            raise checks.no_names("array_equal", operand)
    # Names and sizes are static, so that other axes are no error but the answer.
    if set(x.axes) != set(y.axes):
        return jnp.array(False)
    same = equal(x, y)
    if equal_nan:  # only NaN differs from itself
        same = logical_or(same, logical_and(not_equal(x, x), not_equal(y, y)))
    return same.array.all()


def array_equiv(x: Operand, y: Operand) -> jax.Array:
    """Test whether two arrays are equal after one is broadcast to the axes of the other; the result is a 0-d array.

    Arrays whose axes do not fit, in name or in size, are not equal.
    """
    try:
        return pointwise.binary(_array_equiv, x, y).array.all()
    except (BroadcastError, AxisSizeError):
        return jnp.array(False)


def _array_equiv(x: jax.Array, y: jax.Array) -> jax.Array:
    # `jnp.equal` under a name of its own, which errors show.
    return jnp.equal(x, y)


def bitwise_and(x: Operand, y: Operand) -> "NamedArray":
    """Return the bits that are set in both, for each pair of elements, by name."""
    return pointwise.binary(jnp.bitwise_and, x, y)


def bitwise_count(x: "NamedArray") -> "NamedArray":
    """Return the number of bits that are set in the absolute value of each integer."""
    return pointwise.unary(jnp.bitwise_count, x)


def bitwise_invert(x: "NamedArray") -> "NamedArray":
    """Flip the bits of each element."""
    return pointwise.unary(jnp.bitwise_invert, x)


def bitwise_or(x: Operand, y: Operand) -> "NamedArray":
    """Return the bits that are set in one or both, for each pair of elements, by name."""
    return pointwise.binary(jnp.bitwise_or, x, y)


def bitwise_xor(x: Operand, y: Operand) -> "NamedArray":
    """Return the bits that are set in exactly one of the two, for each pair of elements, by name."""
    return pointwise.binary(jnp.bitwise_xor, x, y)


def equal(x: Operand, y: Operand) -> "NamedArray":
    """Test whether `x == y`, for each pair of elements, by name."""
    return pointwise.binary(jnp.equal, x, y)


def greater(x: Operand, y: Operand) -> "NamedArray":
    """Test whether `x > y`, for each pair of elements, by name."""
    return pointwise.binary(jnp.greater, x, y)


def greater_equal(x: Operand, y: Operand) -> "NamedArray":
    """Test whether `x >= y`, for each pair of elements, by name."""
    return pointwise.binary(jnp.greater_equal, x, y)


def isclose(
    x: Operand, y: Operand, rtol: Operand = 1e-5, atol: Operand = 1e-8, equal_nan: bool = False
) -> "NamedArray":
    """Test whether two elements differ by at most `atol + rtol * |y|`, by name."""
    return pointwise.nary(jnp.isclose, x, y, rtol, atol, equal_nan=equal_nan)


def iscomplex(x: "NamedArray") -> "NamedArray":
    """Test whether each element has a nonzero imaginary part."""
    return pointwise.unary(jnp.iscomplex, x)


def isneginf(x: "NamedArray") -> "NamedArray":
    """Test whether each element is minus infinity."""
    return pointwise.unary(jnp.isneginf, x)


def isposinf(x: "NamedArray") -> "NamedArray":
    """Test whether each element is plus infinity."""
    return pointwise.unary(jnp.isposinf, x)


def isreal(x: "NamedArray") -> "NamedArray":
    """Test whether each element has no imaginary part, or a zero one."""
    return pointwise.unary(jnp.isreal, x)


def left_shift(x: Operand, y: Operand) -> "NamedArray":
    """Return `x` shifted left by `y` bits, for each pair of elements, by name."""
    return pointwise.binary(jnp.left_shift, x, y)


def less(x: Operand, y: Operand) -> "NamedArray":
    """Test whether `x < y`, for each pair of elements, by name."""
    return pointwise.binary(jnp.less, x, y)


def less_equal(x: Operand, y: Operand) -> "NamedArray":
    """Test whether `x <= y`, for each pair of elements, by name."""
    return pointwise.binary(jnp.less_equal, x, y)


def logical_and(x: Operand, y: Operand) -> "NamedArray":
    """Test whether both are true, for each pair of elements, by name."""
    return pointwise.binary(jnp.logical_and, x, y)


def logical_not(x: "NamedArray") -> "NamedArray":
    """Test whether each element is false."""
    return pointwise.unary(jnp.logical_not, x)


def logical_or(x: Operand, y: Operand) -> "NamedArray":
    """Test whether one or both are true, for each pair of elements, by name."""
    return pointwise.binary(jnp.logical_or, x, y)


def logical_xor(x: Operand, y: Operand) -> "NamedArray":
    """Test whether exactly one of the two is true, for each pair of elements, by name."""
    return pointwise.binary(jnp.logical_xor, x, y)


def not_equal(x: Operand, y: Operand) -> "NamedArray":
    """Test whether `x != y`, for each pair of elements, by name."""
    return pointwise.binary(jnp.not_equal, x, y)


def right_shift(x: Operand, y: Operand) -> "NamedArray":
    """Return `x` shifted right by `y` bits, for each pair of elements, by name."""
    return pointwise.binary(jnp.right_shift, x, y)


def signbit(x: "NamedArray") -> "NamedArray":
    """Test whether the sign of each element is minus, also for zeros and NaNs."""
    return pointwise.unary(jnp.signbit, x)


add_examples({name: globals()[name] for name in __all__})


explain_calls(globals(), ["allclose", "array_equal", "isclose"])
