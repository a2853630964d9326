"""Elementwise functions of one or two arrays, and their aliases.

Unlike in Axonym, all operands may be plain arrays: the result is then that of `jax.numpy`.
"""

from typing import Any, TypeVar

import jax
import jax.numpy as jnp

import axonym as axn
from axonym import NamedArray

from ._adapt import Function, KindError, Operand, adapted

__all__ = [
    "abs",
    "absolute",
    "add",
    "angle",
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctan2",
    "arctanh",
    "around",
    "bitwise_and",
    "bitwise_count",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_not",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "cbrt",
    "ceil",
    "conj",
    "conjugate",
    "copy",
    "cos",
    "cosh",
    "deg2rad",
    "degrees",
    "divide",
    "divmod",
    "equal",
    "exp",
    "exp2",
    "expm1",
    "fabs",
    "fix",
    "float_power",
    "floor",
    "floor_divide",
    "fmax",
    "fmin",
    "fmod",
    "frexp",
    "greater",
    "greater_equal",
    "hypot",
    "i0",
    "imag",
    "invert",
    "iscomplex",
    "isfinite",
    "isinf",
    "isnan",
    "isneginf",
    "isposinf",
    "isreal",
    "left_shift",
    "less",
    "less_equal",
    "log",
    "log1p",
    "log2",
    "log10",
    "logaddexp",
    "logaddexp2",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "maximum",
    "minimum",
    "mod",
    "multiply",
    "ndim",
    "negative",
    "nextafter",
    "not_equal",
    "positive",
    "power",
    "rad2deg",
    "radians",
    "real",
    "reciprocal",
    "remainder",
    "right_shift",
    "rint",
    "round",
    "rsqrt",
    "sign",
    "signbit",
    "sin",
    "sinc",
    "sinh",
    "sqrt",
    "square",
    "subtract",
    "tan",
    "tanh",
    "true_divide",
    "trunc",
]
F = TypeVar("F", bound=Function)


def unary(named: Function, positional: Function) -> Function:
    """Make a function of one array; a plain array gives the plain result of `jax.numpy`."""
    by_kind = of_either(named, positional)

    def call(a: Operand) -> Any:
        return by_kind(a)

    return titled(call, named, "Apply `{}` to each element; a plain array gives a plain array.")


def of_either(named: Function, positional: Function) -> Function:
    """Make a function that calls the first one if its first argument is a NamedArray, else the second one."""
    of_named = adapted(named)

    def call(a: Operand, *args: object, **kwargs: object) -> Any:
        if isinstance(a, NamedArray):
            return of_named(a, *args, **kwargs)
        return positional(a, *args, **kwargs)

    return call


def binary(named: Function, positional: Function) -> Function:
    """Make a function of two arrays by name; two plain arrays give the plain result of `jax.numpy`."""
    of_named = adapted(named)

    def call(a: Operand, b: Operand) -> Any:
        if not (isinstance(a, NamedArray) or isinstance(b, NamedArray)):
            return positional(a, b)
        try:
            return of_named(a, b)
        except KindError:
            if axisless_meets_plain(a, b):
                return positional(raw(a), raw(b))
            raise

    return titled(
        call,
        named,
        "Apply `{}` to each pair of elements by name; two plain arrays give a plain array.",
    )


def titled(call: F, named: Function, doc: str) -> F:
    """Name a function after the one that it adapts, and set its docstring."""
    function: Any = call
    function.__name__ = function.__qualname__ = named.__name__
    function.__doc__ = doc.format(named.__name__)
    return call


def raw(x: Any) -> Any:
    """Return the array of a NamedArray, and anything else as it is."""
    if isinstance(x, NamedArray):
        return x.array
    return x


def boolean(mask: Any) -> Any:
    """Convert a mask of zeros and ones to booleans, as `jax.numpy` requires; return others unchanged."""
    if isinstance(mask, NamedArray) and mask.dtype != bool:
        return mask != 0
    return mask


def axisless_meets_plain(*operands: object) -> bool:
    """Return whether the named operands have no axes but a plain one has dimensions, so nothing could name these."""
    is_met = False
    for x in operands:
        if not isinstance(x, NamedArray):
            is_met = is_met or bool(getattr(x, "ndim", 0))
        elif jnp.ndim(x.array):
            return False
    return is_met


def ndim(a: Operand) -> int:
    """Return the number of dimensions."""
    if isinstance(a, NamedArray):
        return a.ndim
    return jnp.ndim(a)


def round(a: Operand, decimals: int = 0) -> Any:
    """Round each element to a number of decimals; a plain array gives a plain array."""
    return _round(a, decimals)


_round = of_either(axn.round, jnp.round)
abs = unary(axn.abs, jnp.abs)
absolute = abs
add = binary(axn.add, jnp.add)
angle = unary(axn.angle, jnp.angle)
arccos = unary(axn.arccos, jnp.arccos)
arccosh = unary(axn.arccosh, jnp.arccosh)
arcsin = unary(axn.arcsin, jnp.arcsin)
arcsinh = unary(axn.arcsinh, jnp.arcsinh)
arctan = unary(axn.arctan, jnp.arctan)
arctan2 = binary(axn.arctan2, jnp.arctan2)
arctanh = unary(axn.arctanh, jnp.arctanh)
around = round
bitwise_and = binary(axn.bitwise_and, jnp.bitwise_and)
bitwise_count = unary(axn.bitwise_count, jnp.bitwise_count)
bitwise_invert = unary(axn.bitwise_invert, jnp.bitwise_invert)
bitwise_not = bitwise_invert
bitwise_or = binary(axn.bitwise_or, jnp.bitwise_or)
bitwise_xor = binary(axn.bitwise_xor, jnp.bitwise_xor)
cbrt = unary(axn.cbrt, jnp.cbrt)
ceil = unary(axn.ceil, jnp.ceil)
conj = unary(axn.conj, jnp.conj)
conjugate = conj
copy = unary(axn.copy, jnp.copy)
cos = unary(axn.cos, jnp.cos)
cosh = unary(axn.cosh, jnp.cosh)
deg2rad = unary(axn.deg2rad, jnp.deg2rad)
divide = binary(axn.divide, jnp.divide)
divmod = binary(axn.divmod, jnp.divmod)
equal = binary(axn.equal, jnp.equal)
exp = unary(axn.exp, jnp.exp)
exp2 = unary(axn.exp2, jnp.exp2)
expm1 = unary(axn.expm1, jnp.expm1)
fabs = unary(axn.fabs, jnp.fabs)
float_power = binary(axn.float_power, jnp.float_power)
floor = unary(axn.floor, jnp.floor)
floor_divide = binary(axn.floor_divide, jnp.floor_divide)
fmax = binary(axn.fmax, jnp.fmax)
fmin = binary(axn.fmin, jnp.fmin)
fmod = binary(axn.fmod, jnp.fmod)
frexp = unary(axn.frexp, jnp.frexp)
greater = binary(axn.greater, jnp.greater)
greater_equal = binary(axn.greater_equal, jnp.greater_equal)
hypot = binary(axn.hypot, jnp.hypot)
i0 = unary(axn.i0, jnp.i0)
imag = unary(axn.imag, jnp.imag)
invert = bitwise_invert
iscomplex = unary(axn.iscomplex, jnp.iscomplex)
isfinite = unary(axn.isfinite, jnp.isfinite)
isinf = unary(axn.isinf, jnp.isinf)
isnan = unary(axn.isnan, jnp.isnan)
isneginf = unary(axn.isneginf, jnp.isneginf)
isposinf = unary(axn.isposinf, jnp.isposinf)
isreal = unary(axn.isreal, jnp.isreal)
left_shift = binary(axn.left_shift, jnp.left_shift)
bitwise_left_shift = left_shift
less = binary(axn.less, jnp.less)
less_equal = binary(axn.less_equal, jnp.less_equal)
log = unary(axn.log, jnp.log)
log10 = unary(axn.log10, jnp.log10)
log1p = unary(axn.log1p, jnp.log1p)
log2 = unary(axn.log2, jnp.log2)
logaddexp = binary(axn.logaddexp, jnp.logaddexp)
logaddexp2 = binary(axn.logaddexp2, jnp.logaddexp2)
logical_and = binary(axn.logical_and, jnp.logical_and)
logical_not = unary(axn.logical_not, jnp.logical_not)
logical_or = binary(axn.logical_or, jnp.logical_or)
logical_xor = binary(axn.logical_xor, jnp.logical_xor)
maximum = binary(axn.maximum, jnp.maximum)
minimum = binary(axn.minimum, jnp.minimum)
multiply = binary(axn.multiply, jnp.multiply)
negative = unary(axn.negative, jnp.negative)
nextafter = binary(axn.nextafter, jnp.nextafter)
not_equal = binary(axn.not_equal, jnp.not_equal)
positive = unary(axn.positive, jnp.positive)
power = binary(axn.power, jnp.power)
rad2deg = unary(axn.rad2deg, jnp.rad2deg)
degrees = rad2deg
radians = deg2rad
real = unary(axn.real, jnp.real)
reciprocal = unary(axn.reciprocal, jnp.reciprocal)
remainder = binary(axn.remainder, jnp.remainder)
mod = remainder
right_shift = binary(axn.right_shift, jnp.right_shift)
bitwise_right_shift = right_shift
rint = unary(axn.rint, jnp.rint)
rsqrt = unary(axn.rsqrt, jax.lax.rsqrt)
sign = unary(axn.sign, jnp.sign)
signbit = unary(axn.signbit, jnp.signbit)
sin = unary(axn.sin, jnp.sin)
sinc = unary(axn.sinc, jnp.sinc)
sinh = unary(axn.sinh, jnp.sinh)
sqrt = unary(axn.sqrt, jnp.sqrt)
square = unary(axn.square, jnp.square)
subtract = binary(axn.subtract, jnp.subtract)
tan = unary(axn.tan, jnp.tan)
tanh = unary(axn.tanh, jnp.tanh)
true_divide = divide
trunc = unary(axn.trunc, jnp.trunc)
fix = trunc
