"""Polynomials, which may be plain arrays: their coefficients get an axis named `DEFAULT_POLY_AXIS_NAME`."""

from typing import Any, Literal

import jax.numpy as jnp
from jax.typing import ArrayLike

import axonym as axn
from axonym import AxisSelector, NamedArray

from ._adapt import adapted
from ._elementwise import raw

__all__ = [
    "DEFAULT_POLY_AXIS_NAME",
    "poly",
    "polyadd",
    "polyder",
    "polydiv",
    "polyfit",
    "polyint",
    "polymul",
    "polysub",
    "polyval",
    "roots",
    "trim_zeros",
    "vander",
]

DEFAULT_POLY_AXIS_NAME = "degree"


def _named(p: Any) -> Any:
    """Name a plain array of coefficients."""
    return (
        p
        if isinstance(p, NamedArray)
        else axn.named(jnp.atleast_1d(jnp.asarray(p)), DEFAULT_POLY_AXIS_NAME)
    )


def _pair(p1: Any, p2: Any) -> tuple[Any, Any]:
    """Name plain arrays of coefficients, except next to a named one, whose axis the result has."""
    if not isinstance(p1, NamedArray) and not isinstance(p2, NamedArray):
        return _named(p1), _named(p2)
    first, second = (p if isinstance(p, NamedArray) else jnp.asarray(p) for p in (p1, p2))
    return first, second


@adapted
def poly(seq_of_zeros: NamedArray | ArrayLike) -> NamedArray:
    """Return the polynomial with the given roots."""
    return axn.poly(_named(seq_of_zeros))


@adapted
def polyadd(p1: NamedArray | ArrayLike, p2: NamedArray | ArrayLike) -> NamedArray:
    """Add polynomials; the result has the axis of the first named one."""
    return axn.polyadd(*_pair(p1, p2))


@adapted
def polysub(p1: NamedArray | ArrayLike, p2: NamedArray | ArrayLike) -> NamedArray:
    """Subtract polynomials; the result has the axis of the first named one."""
    return axn.polysub(*_pair(p1, p2))


@adapted
def polymul(p1: NamedArray | ArrayLike, p2: NamedArray | ArrayLike) -> NamedArray:
    """Multiply polynomials; the result has the axis of the first named one."""
    return axn.polymul(*_pair(p1, p2))


@adapted
def polydiv(
    p1: NamedArray | ArrayLike, p2: NamedArray | ArrayLike
) -> tuple[NamedArray, NamedArray]:
    """Return the quotient and the remainder of a division of polynomials."""
    return axn.polydiv(*_pair(p1, p2))


@adapted
def polyder(p: NamedArray | ArrayLike, m: int = 1) -> NamedArray:
    """Return the derivative of order `m`."""
    return axn.polyder(_named(p), m)


@adapted
def polyint(
    p: NamedArray | ArrayLike, m: int = 1, k: NamedArray | ArrayLike | None = None
) -> NamedArray:
    """Return the integral of order `m`, with constants `k`."""
    return axn.polyint(
        _named(p), m, k if k is None or isinstance(k, NamedArray) else jnp.asarray(k)
    )


@adapted
def polyval(p: NamedArray | ArrayLike, x: Any) -> Any:
    """Evaluate a polynomial; the result has the axes of `x`, and is plain if `x` is."""
    return (
        axn.polyval(_named(p), x)
        if isinstance(x, NamedArray)
        else jnp.polyval(jnp.asarray(raw(p)), x)
    )


def _along(name: str, p: Any) -> Any:
    """Rename the only axis of an array."""
    return p.rename({p.names[0]: name}) if isinstance(p, NamedArray) and len(p.names) == 1 else p


@adapted
def polyfit(
    x: NamedArray | ArrayLike,
    y: NamedArray | ArrayLike,
    deg: int,
    rcond: float | None = None,
    full: bool = False,
    w: NamedArray | ArrayLike | None = None,
    cov: bool | Literal["unscaled"] = False,
) -> Any:
    """Fit a polynomial to points by least squares; axes are positional, and the additional results of `full` plain."""
    if not isinstance(x, NamedArray) and not isinstance(y, NamedArray):
        x, y = _named(x), _named(y)
    first: Any = x if isinstance(x, NamedArray) else y
    y, w = (_along(first.names[0], p) for p in (y, w))
    result = axn.polyfit(x, y, deg, rcond, full, w, cov)
    if not full:
        return result
    coefficients, residuals, *others = result
    return coefficients, jnp.atleast_1d(raw(residuals)), *(raw(part) for part in others)


@adapted
def roots(p: NamedArray | ArrayLike) -> NamedArray:
    """Return the roots of a polynomial; their number depends on values, so that this works only outside jit."""
    return axn.roots(_named(p))


@adapted
def trim_zeros(f: NamedArray | ArrayLike, trim: Literal["fb", "f", "b"] = "fb") -> NamedArray:
    """Remove zeros at the ends; the size depends on values, so that this works only outside jit."""
    return axn.trim_zeros(_named(f), trim)


@adapted
def vander(x: NamedArray, degree: AxisSelector) -> NamedArray:
    """Return the powers of each element along a new last axis, from the highest to the zeroth."""
    return axn.vander(x, degree)
