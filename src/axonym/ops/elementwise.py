"""Arithmetic and other functions of single elements, or of pairs of elements by name."""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from ..core import Core, Operand
from . import _lift

if TYPE_CHECKING:
    from ..array import NamedArray

__all__ = [
    "abs",
    "add",
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctan2",
    "arctanh",
    "astype",
    "cbrt",
    "ceil",
    "clip",
    "conj",
    "cos",
    "cosh",
    "divide",
    "divmod",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "floor_divide",
    "fmod",
    "hypot",
    "imag",
    "isfinite",
    "isinf",
    "isnan",
    "log",
    "log1p",
    "log2",
    "log10",
    "logaddexp",
    "maximum",
    "minimum",
    "multiply",
    "negative",
    "positive",
    "power",
    "real",
    "reciprocal",
    "remainder",
    "rint",
    "round",
    "rsqrt",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "stop_gradient",
    "subtract",
    "tan",
    "tanh",
    "trunc",
]


def abs(x: "NamedArray") -> "NamedArray":
    """Return the absolute value of each element."""
    return _lift.unary(jnp.abs, x)


def add(x: Operand, y: Operand) -> "NamedArray":
    """Return the sum of each pair of elements, by name."""
    return _lift.binary(jnp.add, x, y)


def arccos(x: "NamedArray") -> "NamedArray":
    """Return the inverse cosine of each element."""
    return _lift.unary(jnp.arccos, x)


def arccosh(x: "NamedArray") -> "NamedArray":
    """Return the inverse hyperbolic cosine of each element."""
    return _lift.unary(jnp.arccosh, x)


def arcsin(x: "NamedArray") -> "NamedArray":
    """Return the inverse sine of each element."""
    return _lift.unary(jnp.arcsin, x)


def arcsinh(x: "NamedArray") -> "NamedArray":
    """Return the inverse hyperbolic sine of each element."""
    return _lift.unary(jnp.arcsinh, x)


def arctan(x: "NamedArray") -> "NamedArray":
    """Return the inverse tangent of each element."""
    return _lift.unary(jnp.arctan, x)


def arctan2(x: Operand, y: Operand) -> "NamedArray":
    """Return the angle of the point (y, x) of each pair of elements, by name."""
    return _lift.binary(jnp.arctan2, x, y)


def arctanh(x: "NamedArray") -> "NamedArray":
    """Return the inverse hyperbolic tangent of each element."""
    return _lift.unary(jnp.arctanh, x)


def astype(x: "NamedArray", dtype: DTypeLike) -> "NamedArray":
    """Convert each element to another dtype."""
    return _lift.unary(_astype, x, dtype=dtype)


def _astype(x: jax.Array, *, dtype: Any) -> jax.Array:
    return x.astype(dtype)


def cbrt(x: "NamedArray") -> "NamedArray":
    """Return the cube root of each element."""
    return _lift.unary(jnp.cbrt, x)


def ceil(x: "NamedArray") -> "NamedArray":
    """Return the smallest integer that is not less of each element."""
    return _lift.unary(jnp.ceil, x)


def clip(x: "NamedArray", a_min: Operand | None = None, a_max: Operand | None = None) -> "NamedArray":
    """Limit each element to at least `a_min` and at most `a_max`, by name."""
    bounds = [bound for bound in (a_min, a_max) if bound is not None]
    if not bounds:
        return x
    return _lift.nary(_clip, x, *bounds, lower=a_min is not None, upper=a_max is not None)


def _clip(x: jax.Array, *bounds: Any, lower: bool, upper: bool) -> jax.Array:
    x = jnp.maximum(x, bounds[0]) if lower else x
    return jnp.minimum(x, bounds[-1]) if upper else x


def conj(x: "NamedArray") -> "NamedArray":
    """Return the complex conjugate of each element."""
    return _lift.unary(jnp.conj, x)


def cos(x: "NamedArray") -> "NamedArray":
    """Return the cosine of each element."""
    return _lift.unary(jnp.cos, x)


def cosh(x: "NamedArray") -> "NamedArray":
    """Return the hyperbolic cosine of each element."""
    return _lift.unary(jnp.cosh, x)


def divide(x: Operand, y: Operand) -> "NamedArray":
    """Return the quotient of each pair of elements, by name."""
    return _lift.binary(jnp.divide, x, y)


def divmod(x: Operand, y: Operand) -> tuple["NamedArray", "NamedArray"]:
    """Return the floor of the quotient and the remainder of each pair of elements, by name."""
    return floor_divide(x, y), remainder(x, y)


def exp(x: "NamedArray") -> "NamedArray":
    """Return the exponential of each element."""
    return _lift.unary(jnp.exp, x)


def exp2(x: "NamedArray") -> "NamedArray":
    """Return the power of two of each element."""
    return _lift.unary(jnp.exp2, x)


def expm1(x: "NamedArray") -> "NamedArray":
    """Return the exponential minus one, exact near zero of each element."""
    return _lift.unary(jnp.expm1, x)


def floor(x: "NamedArray") -> "NamedArray":
    """Return the largest integer that is not greater of each element."""
    return _lift.unary(jnp.floor, x)


def floor_divide(x: Operand, y: Operand) -> "NamedArray":
    """Return the largest integer not greater than the quotient of each pair of elements, by name."""
    return _lift.binary(jnp.floor_divide, x, y)


def fmod(x: Operand, y: Operand) -> "NamedArray":
    """Return the remainder with the sign of the first operand of each pair of elements, by name."""
    return _lift.binary(jnp.fmod, x, y)


def hypot(x: Operand, y: Operand) -> "NamedArray":
    """Return the length of the hypotenuse of each pair of elements, by name."""
    return _lift.binary(jnp.hypot, x, y)


def imag(x: "NamedArray") -> "NamedArray":
    """Return the imaginary part of each element."""
    return _lift.unary(jnp.imag, x)


def isfinite(x: "NamedArray") -> "NamedArray":
    """Tell whether it is neither infinite nor NaN, for each element."""
    return _lift.unary(jnp.isfinite, x)


def isinf(x: "NamedArray") -> "NamedArray":
    """Tell whether it is infinite, for each element."""
    return _lift.unary(jnp.isinf, x)


def isnan(x: "NamedArray") -> "NamedArray":
    """Tell whether it is NaN, for each element."""
    return _lift.unary(jnp.isnan, x)


def log(x: "NamedArray") -> "NamedArray":
    """Return the natural logarithm of each element."""
    return _lift.unary(jnp.log, x)


def log10(x: "NamedArray") -> "NamedArray":
    """Return the logarithm to base ten of each element."""
    return _lift.unary(jnp.log10, x)


def log1p(x: "NamedArray") -> "NamedArray":
    """Return the natural logarithm of one plus it, exact near zero of each element."""
    return _lift.unary(jnp.log1p, x)


def log2(x: "NamedArray") -> "NamedArray":
    """Return the logarithm to base two of each element."""
    return _lift.unary(jnp.log2, x)


def logaddexp(x: Operand, y: Operand) -> "NamedArray":
    """Return the logarithm of the sum of exponentials of each pair of elements, by name."""
    return _lift.binary(jnp.logaddexp, x, y)


def maximum(x: Operand, y: Operand) -> "NamedArray":
    """Return the larger one of each pair of elements, by name."""
    return _lift.binary(jnp.maximum, x, y)


def minimum(x: Operand, y: Operand) -> "NamedArray":
    """Return the smaller one of each pair of elements, by name."""
    return _lift.binary(jnp.minimum, x, y)


def multiply(x: Operand, y: Operand) -> "NamedArray":
    """Return the product of each pair of elements, by name."""
    return _lift.binary(jnp.multiply, x, y)


def negative(x: "NamedArray") -> "NamedArray":
    """Return the negative of each element."""
    return _lift.unary(jnp.negative, x)


def positive(x: "NamedArray") -> "NamedArray":
    """Return the same value of each element."""
    return _lift.unary(jnp.positive, x)


def power(x: Operand, y: Operand) -> "NamedArray":
    """Raise `x` to the power `y`, by name; a Python int as `y` is multiplied out, as `jax.numpy` does."""
    if type(y) is int and isinstance(x, Core):
        return _lift.unary(_power, x, exponent=y)
    return _lift.binary(jnp.power, x, y)


def _power(x: jax.Array, *, exponent: int) -> jax.Array:
    return jnp.power(x, exponent)


def real(x: "NamedArray") -> "NamedArray":
    """Return the real part of each element."""
    return _lift.unary(jnp.real, x)


def reciprocal(x: "NamedArray") -> "NamedArray":
    """Return the reciprocal of each element."""
    return _lift.unary(jnp.reciprocal, x)


def remainder(x: Operand, y: Operand) -> "NamedArray":
    """Return the remainder with the sign of the second operand of each pair of elements, by name."""
    return _lift.binary(jnp.remainder, x, y)


def rint(x: "NamedArray") -> "NamedArray":
    """Return the nearest integer of each element."""
    return _lift.unary(jnp.rint, x)


def round(x: "NamedArray", decimals: int = 0) -> "NamedArray":
    """Round each element to a number of decimals."""
    return _lift.unary(jnp.round, x, decimals=decimals)


def rsqrt(x: "NamedArray") -> "NamedArray":
    """Return the reciprocal of the square root of each element."""
    return _lift.unary(jax.lax.rsqrt, x)


def sign(x: "NamedArray") -> "NamedArray":
    """Return the sign of each element."""
    return _lift.unary(jnp.sign, x)


def sin(x: "NamedArray") -> "NamedArray":
    """Return the sine of each element."""
    return _lift.unary(jnp.sin, x)


def sinh(x: "NamedArray") -> "NamedArray":
    """Return the hyperbolic sine of each element."""
    return _lift.unary(jnp.sinh, x)


def sqrt(x: "NamedArray") -> "NamedArray":
    """Return the square root of each element."""
    return _lift.unary(jnp.sqrt, x)


def square(x: "NamedArray") -> "NamedArray":
    """Return the square of each element."""
    return _lift.unary(jnp.square, x)


def stop_gradient(x: "NamedArray") -> "NamedArray":
    """Return `x`, through which no gradient flows."""
    return _lift.unary(jax.lax.stop_gradient, x)


def subtract(x: Operand, y: Operand) -> "NamedArray":
    """Return the difference of each pair of elements, by name."""
    return _lift.binary(jnp.subtract, x, y)


def tan(x: "NamedArray") -> "NamedArray":
    """Return the tangent of each element."""
    return _lift.unary(jnp.tan, x)


def tanh(x: "NamedArray") -> "NamedArray":
    """Return the hyperbolic tangent of each element."""
    return _lift.unary(jnp.tanh, x)


def trunc(x: "NamedArray") -> "NamedArray":
    """Return the integer part of each element."""
    return _lift.unary(jnp.trunc, x)
