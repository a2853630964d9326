"""The reference's elementwise functions, and the operators of its arrays."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.fuzz.table import RejectedError, Table, dtype_of, lined, made, one_size, rounded, widest

__all__ = ["BINARY", "EXACT", "FUNCTIONS", "UNARY", "elementwise"]


def elementwise(fn: Callable[..., Any], asked: Callable[..., Any], *operands: Any) -> Table:
    """Apply a function of NumPy to each element; the dtype is what `asked` of jax.numpy gives."""
    tables = [x for x in operands if isinstance(x, Table)]
    one_size(tables)
    names = widest(tables)
    values = fn(*(lined(x, names) if isinstance(x, Table) else x for x in operands))
    shape = [one_size(tables)[name] for name in names]
    return made(np.broadcast_to(values, shape), names, dtype_of(asked, *operands))


# Functions that only select, compare or copy have one right answer; all others round.
EXACT = {
    "abs", "negative", "sign", "floor", "ceil", "trunc", "rint", "positive", "conj", "real", "imag", "isnan",
    "isfinite", "isinf", "logical_not", "bitwise_invert", "signbit", "maximum", "minimum", "equal", "not_equal",
    "less", "less_equal", "greater", "greater_equal", "logical_and", "logical_or", "logical_xor", "bitwise_and",
    "bitwise_or", "bitwise_xor", "copysign", "heaviside", "fmax", "fmin", "left_shift", "right_shift", "gcd",
}  # fmt: skip

_erf = np.vectorize(math.erf, otypes=[float])
_gammaln = np.vectorize(math.lgamma, otypes=[float])

UNARY: dict[str, Callable[..., Any]] = {
    name: getattr(np, name)
    for name in (
        "abs", "negative", "sign", "floor", "ceil", "trunc", "rint", "square", "positive", "conj", "real", "imag",
        "exp", "sin", "cos", "tan", "tanh", "sinh", "cosh", "sqrt", "log", "log1p", "log2", "log10", "cbrt", "arctan",
        "arcsin", "arccos", "arcsinh", "arccosh", "arctanh", "expm1", "exp2", "reciprocal", "isnan", "isfinite",
        "isinf", "logical_not", "signbit", "sinc", "deg2rad", "rad2deg", "angle", "i0", "fabs",
    )
} | {"erf": _erf, "gammaln": _gammaln, "bitwise_invert": np.invert, "rsqrt": lambda x: 1 / np.sqrt(x)}  # fmt: skip

BINARY: dict[str, Callable[..., Any]] = {
    name: getattr(np, name)
    for name in (
        "add", "subtract", "multiply", "divide", "floor_divide", "remainder", "power", "maximum", "minimum", "equal",
        "not_equal", "less", "less_equal", "greater", "greater_equal", "logical_and", "logical_or", "logical_xor",
        "bitwise_and", "bitwise_or", "bitwise_xor", "arctan2", "hypot", "logaddexp", "logaddexp2", "fmod", "copysign",
        "heaviside", "fmax", "fmin", "left_shift", "right_shift", "gcd", "float_power",
    )
}  # fmt: skip

_OF_JAX = {
    "erf": jax.scipy.special.erf,
    "gammaln": jax.scipy.special.gammaln,
    "rsqrt": jax.lax.rsqrt,
}


def _lifted(name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    asked = _OF_JAX.get(name) or getattr(jnp, name)

    def function(*operands: Any) -> Table:
        return elementwise(fn, asked, *operands)

    function.__name__ = name
    return function if name in EXACT else rounded(function)


FUNCTIONS: dict[str, Callable[..., Any]] = {name: _lifted(name, fn) for name, fn in {**UNARY, **BINARY}.items()}


def where(condition: Any, x: Any, y: Any) -> Table:
    return elementwise(np.where, jnp.where, condition, x, y)


def clip(x: Any, a_min: Any, a_max: Any) -> Table:
    return elementwise(np.clip, jnp.clip, x, a_min, a_max)


def astype(x: Table, dtype: str) -> Table:
    values = x.values
    if dtype == "bool":
        values = values != 0
    elif made(0, (), dtype).kind == "int" and x.kind == "float":
        if not np.isfinite(values).all() or np.abs(values).max(initial=0) > np.iinfo(dtype).max:
            raise RejectedError("out of range of the integers")
        if (values < 0).any() and np.iinfo(dtype).min == 0:
            raise RejectedError("out of range of the integers")
        values = np.trunc(values)
    elif x.kind == "complex" and made(0, (), dtype).kind != "complex":
        raise RejectedError("complex to real")
    return made(values, x.names, dtype)


def nan_to_num(x: Table) -> Table:
    if x.kind == "float" and np.isinf(x.values).any():
        raise RejectedError("becomes the largest number")
    return made(np.nan_to_num(x.values), x.names, x.dtype)


def round_(x: Table, decimals: int = 0) -> Table:
    return made(np.round(x.values, decimals), x.names, x.dtype)


def isclose(x: Any, y: Any, rtol: float = 1e-5, atol: float = 1e-8) -> Table:
    return elementwise(functools.partial(np.isclose, rtol=rtol, atol=atol), jnp.isclose, x, y)


def stop_gradient(x: Table) -> Table:
    return x


FUNCTIONS |= {
    "where": where,
    "clip": clip,
    "astype": rounded(astype),
    "nan_to_num": nan_to_num,
    "round": rounded(round_),
    "isclose": isclose,
}


def _operator(name: str, swapped: bool = False) -> Callable[[Any, Any], Table]:
    def method(self: Table, other: Any) -> Table:
        return FUNCTIONS[name](other, self) if swapped else FUNCTIONS[name](self, other)

    return method


_OPERATORS = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "floordiv": "floor_divide",
    "mod": "remainder", "pow": "power", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
}  # fmt: skip
for _symbol, _name in _OPERATORS.items():
    setattr(Table, f"__{_symbol}__", _operator(_name))
    setattr(Table, f"__r{_symbol}__", _operator(_name, swapped=True))
for _symbol, _name in {
    "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal", "ne": "not_equal",
}.items():  # fmt: skip
    setattr(Table, f"__{_symbol}__", _operator(_name))
Table.__neg__ = lambda self: FUNCTIONS["negative"](self)  # type: ignore[attr-defined]
Table.__invert__ = lambda self: FUNCTIONS["bitwise_invert"](self)  # type: ignore[attr-defined]
Table.__abs__ = lambda self: FUNCTIONS["abs"](self)  # type: ignore[attr-defined]
