"""Polynomials, which may be plain arrays: their coefficients get an axis named `DEFAULT_POLY_AXIS_NAME`."""

from typing import Any, Literal

import jax
import jax.numpy as jnp

import axonym as axn
from axonym import AxisSelector, NamedArray

from ._adapt import Operand, adapted
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


def _named(p: Operand) -> NamedArray:
    """Name a plain array of coefficients."""
    if isinstance(p, NamedArray):
        return p
    return axn.named(jnp.atleast_1d(jnp.asarray(p)), DEFAULT_POLY_AXIS_NAME)


def _array(p: Operand) -> NamedArray | jax.Array:
    """Convert a list or a number to an array."""
    if isinstance(p, NamedArray):
        return p
    return jnp.asarray(p)


def _pair(p1: Operand, p2: Operand) -> tuple[Any, Any]:
    """Name plain arrays of coefficients, except next to a named one, whose axis the result has."""
    if not isinstance(p1, NamedArray) and not isinstance(p2, NamedArray):
        return _named(p1), _named(p2)
    return _array(p1), _array(p2)


@adapted
def poly(seq_of_zeros: Operand) -> NamedArray:
    """Return the polynomial with the given roots."""
    return axn.poly(_named(seq_of_zeros))


@adapted
def polyadd(p1: Operand, p2: Operand) -> NamedArray:
    """Add polynomials; the result has the axis of the first named one."""
    return axn.polyadd(*_pair(p1, p2))


@adapted
def polysub(p1: Operand, p2: Operand) -> NamedArray:
    """Subtract polynomials; the result has the axis of the first named one."""
    return axn.polysub(*_pair(p1, p2))


@adapted
def polymul(p1: Operand, p2: Operand) -> NamedArray:
    """Multiply polynomials; the result has the axis of the first named one."""
    return axn.polymul(*_pair(p1, p2))


@adapted
def polydiv(p1: Operand, p2: Operand) -> tuple[NamedArray, NamedArray]:
    """Return the quotient and the remainder of a division of polynomials."""
    return axn.polydiv(*_pair(p1, p2))


@adapted
def polyder(p: Operand, m: int = 1) -> NamedArray:
    """Return the derivative of order `m`."""
    return axn.polyder(_named(p), m)


@adapted
def polyint(p: Operand, m: int = 1, k: Operand | None = None) -> NamedArray:
    """Return the integral of order `m`, with constants `k`."""
    if k is not None:
        k = _array(k)
    return axn.polyint(_named(p), m, k)


@adapted
def polyval(p: Operand, x: Operand) -> Any:
    """Evaluate a polynomial; the result has the axes of `x`, and is plain if `x` is."""
    if isinstance(x, NamedArray):
        return axn.polyval(_named(p), x)
    return jnp.polyval(jnp.asarray(raw(p)), x)


def _along(name: str, p: Any) -> Any:
    """Rename the only axis of an array."""
    if isinstance(p, NamedArray) and len(p.names) == 1:
        return p.rename({p.names[0]: name})
    return p


@adapted
def polyfit(
    x: Operand,
    y: Operand,
    deg: int,
    rcond: float | None = None,
    full: bool = False,
    w: Operand | None = None,
    cov: bool | Literal["unscaled"] = False,
) -> Any:
    """Fit a polynomial to points by least squares; axes are positional, and the additional results of `full` plain."""
    if not isinstance(x, NamedArray) and not isinstance(y, NamedArray):
        x, y = _named(x), _named(y)
    name = next(each.names[0] for each in (x, y) if isinstance(each, NamedArray))
    result = axn.polyfit(x, _along(name, y), deg, rcond, full, _along(name, w), cov)
    if not full:
        return result
    coefficients, residuals, *others = result
    return coefficients, jnp.atleast_1d(raw(residuals)), *map(raw, others)


@adapted
def roots(p: Operand) -> NamedArray:
    """Return the roots of a polynomial; their number depends on values, so that this works only outside jit."""
    return axn.roots(_named(p))


@adapted
def trim_zeros(f: Operand, trim: Literal["fb", "f", "b"] = "fb") -> NamedArray:
    """Remove zeros at the ends; the size depends on values, so that this works only outside jit."""
    return axn.trim_zeros(_named(f), trim)


@adapted
def vander(x: NamedArray, degree: AxisSelector) -> NamedArray:
    """Return the powers of each element along a new last axis, from the highest to the zeroth."""
    return axn.vander(x, degree)
