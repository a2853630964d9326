"""Arithmetic and other functions of single elements, or of pairs of elements matched by name."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from ..base.calls import explain_calls
from ..base.dtypes import refuse_dtype
from ..engine.checks import NUMBERS
from ..engine.core import Core, Operand, wrap
from ..engine.pointwise import between, binary, nary, unary, unary_with
from ..faults.sorted_positions import mark_varying_like
from .examples import add_examples

if TYPE_CHECKING:
    from ..array import NamedArray

__all__ = [
    "abs",
    "add",
    "angle",
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
    "copy",
    "copysign",
    "cos",
    "cosh",
    "deg2rad",
    "divide",
    "divmod",
    "exp",
    "exp2",
    "expm1",
    "fabs",
    "float_power",
    "floor",
    "floor_divide",
    "fmax",
    "fmin",
    "fmod",
    "frexp",
    "gcd",
    "heaviside",
    "hypot",
    "i0",
    "imag",
    "isfinite",
    "isinf",
    "isnan",
    "lcm",
    "ldexp",
    "log",
    "log1p",
    "log2",
    "log10",
    "logaddexp",
    "logaddexp2",
    "maximum",
    "minimum",
    "modf",
    "multiply",
    "nan_to_num",
    "negative",
    "nextafter",
    "positive",
    "power",
    "rad2deg",
    "real",
    "reciprocal",
    "remainder",
    "rint",
    "round",
    "rsqrt",
    "sign",
    "sin",
    "sinc",
    "sinh",
    "spacing",
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
    return unary(jnp.abs, x)


def add(x: Operand, y: Operand) -> "NamedArray":
    """Return the sum of each pair of elements, by name."""
    return binary(jnp.add, x, y)


def angle(x: "NamedArray", deg: bool = False) -> "NamedArray":
    """Return the angle of each complex element, in radians or degrees."""
    return unary_with(jnp.angle, x, deg=deg)


def arccos(x: "NamedArray") -> "NamedArray":
    """Return the inverse cosine of each element."""
    return unary(jnp.arccos, x)


def arccosh(x: "NamedArray") -> "NamedArray":
    """Return the inverse hyperbolic cosine of each element."""
    return unary(jnp.arccosh, x)


def arcsin(x: "NamedArray") -> "NamedArray":
    """Return the inverse sine of each element."""
    return unary(jnp.arcsin, x)


def arcsinh(x: "NamedArray") -> "NamedArray":
    """Return the inverse hyperbolic sine of each element."""
    return unary(jnp.arcsinh, x)


def arctan(x: "NamedArray") -> "NamedArray":
    """Return the inverse tangent of each element."""
    return unary(jnp.arctan, x)


def arctan2(x: Operand, y: Operand) -> "NamedArray":
    """Return the angle of the point (y, x) of each pair of elements, by name."""
    return binary(jnp.arctan2, x, y)


def arctanh(x: "NamedArray") -> "NamedArray":
    """Return the inverse hyperbolic tangent of each element."""
    return unary(jnp.arctanh, x)


def astype(x: "NamedArray", dtype: DTypeLike) -> "NamedArray":
    """Convert each element to another dtype."""
    try:
        return unary_with(_astype, x, dtype=dtype)
    except TypeError:
        refuse_dtype("astype", dtype)
        raise


def _astype(x: jax.Array, *, dtype: DTypeLike) -> jax.Array:
    return x.astype(dtype)


def cbrt(x: "NamedArray") -> "NamedArray":
    """Return the cube root of each element."""
    return unary(jnp.cbrt, x)


def ceil(x: "NamedArray") -> "NamedArray":
    """Round each element up to an integer."""
    return unary(jnp.ceil, x)


def clip(
    x: "NamedArray", a_min: Operand | None = None, a_max: Operand | None = None
) -> "NamedArray":
    """Limit each element to at least `a_min` and at most `a_max`, by name."""
    # Two numbers are the usual call; they need no matching of names.
    if a_min.__class__ in NUMBERS and a_max.__class__ in NUMBERS:
        return between(_clip, x, a_min, a_max)
    if a_min is None and a_max is None:
        return x
    if a_min is not None and a_max is not None:
        return nary(_clip, x, a_min, a_max)
    if a_min is None:
        return nary(_clip, x, a_max, side="upper")
    return nary(_clip, x, a_min, side="lower")


def _clip(x: jax.Array, *bounds: ArrayLike, side: str = "both") -> jax.Array:
    # In this order the upper bound wins where the bounds cross, as in `jnp.clip`.
    if side != "upper":
        x = jnp.maximum(x, bounds[0])
    if side != "lower":
        x = jnp.minimum(x, bounds[-1])
    return x


def conj(x: "NamedArray") -> "NamedArray":
    """Return the complex conjugate of each element."""
    return unary(jnp.conj, x)


def copy(x: "NamedArray") -> "NamedArray":
    """Return a copy in new memory, which stays valid if `x` is donated."""
    return unary(jnp.copy, x)


def copysign(x: Operand, y: Operand) -> "NamedArray":
    """Return the magnitude of `x` with the sign of `y`, for each pair of elements, by name."""
    return binary(jnp.copysign, x, y)


def cos(x: "NamedArray") -> "NamedArray":
    """Return the cosine of each element."""
    return unary(jnp.cos, x)


def cosh(x: "NamedArray") -> "NamedArray":
    """Return the hyperbolic cosine of each element."""
    return unary(jnp.cosh, x)


def deg2rad(x: "NamedArray") -> "NamedArray":
    """Convert each element from degrees to radians."""
    return unary(jnp.deg2rad, x)


def divide(x: Operand, y: Operand) -> "NamedArray":
    """Return the quotient of each pair of elements, by name."""
    return binary(jnp.divide, x, y)


def divmod(x: Operand, y: Operand) -> tuple["NamedArray", "NamedArray"]:
    """Return the floor of the quotient and the remainder of each pair of elements, by name.

    Examples:
        >>> [part.tolist() for part in axn.divmod(axn.named([7, -7], "i"), 2)]
        [[3, -4], [1, 1]]
    """
    return _name_both(binary(jnp.divmod, x, y))


def _name_both(both: "NamedArray") -> tuple["NamedArray", "NamedArray"]:
    """Name both results of a function that returns two."""
    # The engine wraps whatever a function returns; a pair becomes two arrays here.
    first, second = both.array
    return wrap(both, first, both.names), wrap(both, second, both.names)


def exp(x: "NamedArray") -> "NamedArray":
    """Return the exponential of each element."""
    return unary(jnp.exp, x)


def exp2(x: "NamedArray") -> "NamedArray":
    """Return two to the power of each element."""
    return unary(jnp.exp2, x)


def expm1(x: "NamedArray") -> "NamedArray":
    """Return exp(x) - 1 for each element, precise near zero."""
    return unary(jnp.expm1, x)


def fabs(x: "NamedArray") -> "NamedArray":
    """Return the absolute value of each real element, as a float."""
    return unary(jnp.fabs, x)


def float_power(x: Operand, y: Operand) -> "NamedArray":
    """Raise `x` to the power `y`, by name, as floats even for integers."""
    return binary(jnp.float_power, x, y)


def floor(x: "NamedArray") -> "NamedArray":
    """Round each element down to an integer."""
    return unary(jnp.floor, x)


def floor_divide(x: Operand, y: Operand) -> "NamedArray":
    """Return the largest integer not greater than the quotient of each pair of elements, by name."""
    return binary(jnp.floor_divide, x, y)


def fmax(x: Operand, y: Operand) -> "NamedArray":
    """Return the larger of each pair of elements, by name; a number is preferred to NaN."""
    return binary(jnp.fmax, x, y)


def fmin(x: Operand, y: Operand) -> "NamedArray":
    """Return the smaller of each pair of elements, by name; a number is preferred to NaN."""
    return binary(jnp.fmin, x, y)


def fmod(x: Operand, y: Operand) -> "NamedArray":
    """Return the remainder of division, with the sign of `x`, of each pair of elements, by name."""
    return binary(jnp.fmod, x, y)


def frexp(x: "NamedArray") -> tuple["NamedArray", "NamedArray"]:
    """Split each element into a mantissa with absolute value in [0.5, 1) and an exponent of two.

    Examples:
        >>> [part.tolist() for part in axn.frexp(axn.named([4.0, 5.0], "i"))]
        [[0.5, 0.625], [3, 3]]
    """
    return _name_both(unary(_frexp, x))


def _frexp(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    # JAX makes the exponent from constants, and inside a shard_map takes it to be the same on all devices.
    mantissa, exponent = jnp.frexp(x)
    return mantissa, mark_varying_like(exponent, x)


def gcd(x: Operand, y: Operand) -> "NamedArray":
    """Return the greatest common divisor of each pair of integers, by name."""
    return binary(_gcd, x, y)


def _gcd(x: ArrayLike, y: ArrayLike) -> jax.Array:
    return _divide_in_loop(jnp.gcd, jnp.asarray(x), jnp.asarray(y))


def _divide_in_loop(fn: Callable[..., jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
    """Call a function that divides in a loop, in which JAX wants operands that vary alike."""
    # Compiling such a loop for an empty array on Explicit mesh axes ends the process.
    if 0 in jnp.broadcast_shapes(x.shape, y.shape):
        return x * y
    return fn(mark_varying_like(x, y), mark_varying_like(y, x))


def heaviside(x: Operand, y: Operand) -> "NamedArray":
    """Return 0 where `x` is negative, 1 where it is positive, and `y` where it is zero, by name."""
    return binary(jnp.heaviside, x, y)


def hypot(x: Operand, y: Operand) -> "NamedArray":
    """Return the length of the hypotenuse of each pair of elements, by name."""
    return binary(jnp.hypot, x, y)


def i0(x: "NamedArray") -> "NamedArray":
    """Return the modified Bessel function of the first kind and order zero of each element."""
    return unary(jnp.i0, x)


def imag(x: "NamedArray") -> "NamedArray":
    """Return the imaginary part of each element."""
    return unary(jnp.imag, x)


def isfinite(x: "NamedArray") -> "NamedArray":
    """Test whether each element is neither infinite nor NaN."""
    return unary(jnp.isfinite, x)


def isinf(x: "NamedArray") -> "NamedArray":
    """Test whether each element is infinite."""
    return unary(jnp.isinf, x)


def isnan(x: "NamedArray") -> "NamedArray":
    """Test whether each element is NaN."""
    return unary(jnp.isnan, x)


def lcm(x: Operand, y: Operand) -> "NamedArray":
    """Return the least common multiple of each pair of integers, by name."""
    return binary(_lcm, x, y)


def _lcm(x: ArrayLike, y: ArrayLike) -> jax.Array:
    return _divide_in_loop(jnp.lcm, jnp.asarray(x), jnp.asarray(y))


def ldexp(x: Operand, y: Operand) -> "NamedArray":
    """Return `x` times two to the power of the integer `y`, by name: the inverse of `frexp`."""
    return binary(jnp.ldexp, x, y)


def log(x: "NamedArray") -> "NamedArray":
    """Return the natural logarithm of each element."""
    return unary(jnp.log, x)


def log1p(x: "NamedArray") -> "NamedArray":
    """Return log(1 + x) for each element, precise near zero."""
    return unary(jnp.log1p, x)


def log2(x: "NamedArray") -> "NamedArray":
    """Return the logarithm to base two of each element."""
    return unary(jnp.log2, x)


def log10(x: "NamedArray") -> "NamedArray":
    """Return the logarithm to base ten of each element."""
    return unary(jnp.log10, x)


def logaddexp(x: Operand, y: Operand) -> "NamedArray":
    """Return the logarithm of the sum of exponentials of each pair of elements, by name."""
    return binary(jnp.logaddexp, x, y)


def logaddexp2(x: Operand, y: Operand) -> "NamedArray":
    """Return the logarithm to base two of the sum of powers of two, of each pair of elements, by name."""
    return binary(jnp.logaddexp2, x, y)


def maximum(x: Operand, y: Operand) -> "NamedArray":
    """Return the larger of each pair of elements, by name."""
    return binary(jnp.maximum, x, y)


def minimum(x: Operand, y: Operand) -> "NamedArray":
    """Return the smaller of each pair of elements, by name."""
    return binary(jnp.minimum, x, y)


def modf(x: "NamedArray") -> tuple["NamedArray", "NamedArray"]:
    """Split each element into its fractional and its integer part, both with its sign.

    Examples:
        >>> [part.tolist() for part in axn.modf(axn.named([1.5, -2.25], "i"))]
        [[0.5, -0.25], [1.0, -2.0]]
    """
    return _name_both(unary(jnp.modf, x))


def multiply(x: Operand, y: Operand) -> "NamedArray":
    """Return the product of each pair of elements, by name."""
    return binary(jnp.multiply, x, y)


def nan_to_num(
    x: "NamedArray",
    nan: Operand = 0.0,
    posinf: Operand | None = None,
    neginf: Operand | None = None,
) -> "NamedArray":
    """Replace NaN and infinities, by name.

    Args:
        x: the array.
        nan: the replacement for NaN.
        posinf: the replacement for infinity; None means the largest number of the dtype.
        neginf: the replacement for minus infinity; None means the lowest number of the dtype.

    Returns:
        The axes of all operands.

    Examples:
        >>> x = axn.named([1.0, jnp.nan, jnp.inf], "i")
        >>> axn.nan_to_num(x, posinf=9.0).tolist()
        [1.0, 0.0, 9.0]
    """
    # Replacements may be named arrays, so they are operands and not options; `given` says which there are.
    fills = {"nan": nan, "posinf": posinf, "neginf": neginf}
    given = {kind: fill for kind, fill in fills.items() if fill is not None}
    return nary(_nan_to_num, x, *given.values(), given=tuple(given))


def _nan_to_num(x: jax.Array, *fills: jax.Array, given: tuple[str, ...]) -> jax.Array:
    replaced: dict[str, Any] = dict(zip(given, fills, strict=True))
    return jnp.nan_to_num(x, **replaced)


def negative(x: "NamedArray") -> "NamedArray":
    """Return the negative of each element."""
    return unary(jnp.negative, x)


def nextafter(x: Operand, y: Operand) -> "NamedArray":
    """Return the next float after `x` towards `y`, for each pair of elements, by name."""
    return binary(jnp.nextafter, x, y)


def positive(x: "NamedArray") -> "NamedArray":
    """Return each element as it is."""
    return unary(jnp.positive, x)


def power(x: Operand, y: Operand) -> "NamedArray":
    """Raise `x` to the power `y`, by name; a Python int `y` becomes repeated multiplication, as in `jax.numpy`."""
    # JAX multiplies only if the exponent is static.
    if type(y) is int and isinstance(x, Core):
        return unary_with(_power, x, exponent=y)
    return binary(jnp.power, x, y)


def _power(x: jax.Array, *, exponent: int) -> jax.Array:
    return jnp.power(x, exponent)


def rad2deg(x: "NamedArray") -> "NamedArray":
    """Convert each element from radians to degrees."""
    return unary(jnp.rad2deg, x)


def real(x: "NamedArray") -> "NamedArray":
    """Return the real part of each element."""
    return unary(jnp.real, x)


def reciprocal(x: "NamedArray") -> "NamedArray":
    """Return the reciprocal of each element."""
    return unary(jnp.reciprocal, x)


def remainder(x: Operand, y: Operand) -> "NamedArray":
    """Return the remainder of division, with the sign of `y`, of each pair of elements, by name."""
    return binary(jnp.remainder, x, y)


def rint(x: "NamedArray") -> "NamedArray":
    """Round each element to the nearest integer, and halves to the nearest even one."""
    return unary(jnp.rint, x)


def round(x: "NamedArray", decimals: int = 0) -> "NamedArray":
    """Round each element to a number of decimals."""
    return unary_with(jnp.round, x, decimals=decimals)


def rsqrt(x: "NamedArray") -> "NamedArray":
    """Return the reciprocal of the square root of each element."""
    return unary(jax.lax.rsqrt, x)


def sign(x: "NamedArray") -> "NamedArray":
    """Return the sign of each element."""
    return unary(jnp.sign, x)


def sin(x: "NamedArray") -> "NamedArray":
    """Return the sine of each element."""
    return unary(jnp.sin, x)


def sinc(x: "NamedArray") -> "NamedArray":
    """Return sin(pi x) / (pi x) of each element, which is one at zero."""
    return unary(jnp.sinc, x)


def sinh(x: "NamedArray") -> "NamedArray":
    """Return the hyperbolic sine of each element."""
    return unary(jnp.sinh, x)


def spacing(x: "NamedArray") -> "NamedArray":
    """Return the signed distance from each float to the next one away from zero."""
    return unary(jnp.spacing, x)


def sqrt(x: "NamedArray") -> "NamedArray":
    """Return the square root of each element."""
    return unary(jnp.sqrt, x)


def square(x: "NamedArray") -> "NamedArray":
    """Return the square of each element."""
    return unary(jnp.square, x)


def stop_gradient(x: "NamedArray") -> "NamedArray":
    """Return `x`, but stop gradients from flowing through it."""
    return unary(jax.lax.stop_gradient, x)


def subtract(x: Operand, y: Operand) -> "NamedArray":
    """Return the difference of each pair of elements, by name."""
    return binary(jnp.subtract, x, y)


def tan(x: "NamedArray") -> "NamedArray":
    """Return the tangent of each element."""
    return unary(jnp.tan, x)


def tanh(x: "NamedArray") -> "NamedArray":
    """Return the hyperbolic tangent of each element."""
    return unary(jnp.tanh, x)


def trunc(x: "NamedArray") -> "NamedArray":
    """Return the integer part of each element."""
    return unary(jnp.trunc, x)


add_examples({name: globals()[name] for name in __all__})
explain_calls(globals(), ["clip", "round"])
