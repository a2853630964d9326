"""Reductions, and functions along axes.

Unlike in Axonym, the array may be a plain array, with `axis` as in `jax.numpy`, or a tree of arrays, each of which is
reduced. For a named array, `where` must be named.
"""

import builtins
import functools
from collections.abc import Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

import axonym as axn
from axonym import Axis, AxisSelection, AxisSelector, NamedArray
from axonym.engine import Tree, facts, limits
from axonym.errors import ArgumentError, message

from ._adapt import Function, KindError, Operand, adapted
from ._elementwise import boolean, raw, titled

__all__ = [
    "all",
    "amax",
    "amin",
    "any",
    "argmax",
    "argmin",
    "argsort",
    "cumprod",
    "cumsum",
    "max",
    "mean",
    "min",
    "nanargmax",
    "nanargmin",
    "nancumprod",
    "nancumsum",
    "nanmax",
    "nanmean",
    "nanmin",
    "nanprod",
    "nanstd",
    "nansum",
    "nanvar",
    "prod",
    "product",
    "ptp",
    "sort",
    "std",
    "sum",
    "var",
]

Mask: TypeAlias = Operand | None
_TEXT = "Apply `{}` over axes, of a NamedArray, of a plain array, or of each array of a tree."


def reduction(named: Function, positional: Function) -> Function:
    """Make a reduction of a NamedArray, a plain array or a tree of both."""
    reduced = _reduced(named, positional)

    def call(array: Tree, axis: AxisSelection | None = None, *, where: Mask = None) -> Tree:
        return reduced(array, axis, where)

    return titled(call, named, _TEXT)


def typed_reduction(named: Function, positional: Function) -> Function:
    """Make a reduction with the dtype to compute in."""
    reduced = _reduced(named, positional)

    def call(
        array: Tree,
        axis: AxisSelection | None = None,
        *,
        where: Mask = None,
        dtype: DTypeLike | None = None,
    ) -> Tree:
        return reduced(array, axis, where, **_told(dtype=dtype))

    return titled(call, named, _TEXT)


def spread(named: Function, positional: Function) -> Function:
    """Make a reduction with the dtype to compute in and `ddof`."""
    reduced = _reduced(named, positional)

    def call(
        array: Tree,
        axis: AxisSelection | None = None,
        *,
        where: Mask = None,
        ddof: int = 0,
        dtype: DTypeLike | None = None,
    ) -> Tree:
        return reduced(array, axis, where, ddof=ddof, **_told(dtype=dtype))

    return titled(call, named, _TEXT)


def _told(**options: object) -> dict[str, object]:
    """Return the options that are not None."""
    return {name: value for name, value in options.items() if value is not None}


def _reduced(named: Function, positional: Function) -> Function:
    """Make a reduction of a NamedArray, a plain array or a tree of both, with any options."""
    of_named, name = adapted(named), named.__name__

    def reduced(array: Tree, axis: AxisSelection | None, where: Mask, **options: object) -> Tree:
        if not isinstance(array, NamedArray):
            again = functools.partial(reduced, axis=axis, where=where, **options)
            return of_leaves(again, positional, name, array, axis, where, options)
        if where is None:
            return of_named(array, axis, where=None, **options)
        if not isinstance(where, NamedArray):
            problem = f"where must be a NamedArray, not {type(where).__name__}"
            raise KindError(message(name, problem, f"array has: {facts(array)}"))
        start = _told(initial=_start(name, array))
        return of_named(array, axis, where=boolean(where), **options, **start)

    return reduced


def _start(name: str, array: NamedArray) -> object:
    """Return the `initial` that Axonym requires for masked extrema: the limit of the dtype; otherwise None."""
    if name.startswith("nan") and jnp.issubdtype(array.dtype, jnp.inexact):
        return None
    lowest, highest = limits(array.dtype)
    starts = {"max": lowest, "min": highest, "nanmax": lowest, "nanmin": highest}
    return starts.get(name)


def of_leaves(
    of_named: Function,
    positional: Function,
    name: str,
    array: Tree,
    axis: AxisSelection | None,
    where: Mask = None,
    options: Mapping[str, object] | None = None,
) -> Tree:
    """Reduce a plain array, or each array of a tree."""

    def leaf(x: Tree) -> Tree:
        if isinstance(x, NamedArray):
            return of_named(x)
        if isinstance(where, NamedArray) or _names_any(axis):
            problem = f"a plain {type(x).__name__} has no named axes"
            raise KindError(message(name, problem, hint="name it first: hax.named(array, (...))"))
        return positional(x, axis=axis, **_told(where=where), **(options or {}))

    return jax.tree.map(leaf, array, is_leaf=axn.is_named_array)


def _names_any(axis: object) -> bool:
    if not isinstance(axis, tuple | list):
        return isinstance(axis, str | Axis | dict)
    return builtins.any(isinstance(each, str | Axis) for each in axis)


def _ptp(array: NamedArray, axis: AxisSelection | None, where: Any = None) -> NamedArray:
    if where is None:
        return axn.ptp(array, axis)
    lowest, highest = limits(array.dtype)
    return axn.max(array, axis, where=where, initial=lowest) - axn.min(
        array, axis, where=where, initial=highest
    )


_ptp.__name__ = axn.ptp.__name__
all = reduction(axn.all, jnp.all)
any = reduction(axn.any, jnp.any)
max = reduction(axn.max, jnp.max)
amax = max
mean = typed_reduction(axn.mean, jnp.mean)
min = reduction(axn.min, jnp.min)
amin = min
nanmax = reduction(axn.nanmax, jnp.nanmax)
nanmean = typed_reduction(axn.nanmean, jnp.nanmean)
nanmin = reduction(axn.nanmin, jnp.nanmin)
nanprod = typed_reduction(axn.nanprod, jnp.nanprod)
nanstd = spread(axn.nanstd, jnp.nanstd)
nansum = typed_reduction(axn.nansum, jnp.nansum)
nanvar = spread(axn.nanvar, jnp.nanvar)
prod = typed_reduction(axn.prod, jnp.prod)
product = prod
ptp = reduction(_ptp, jnp.ptp)
std = spread(axn.std, jnp.std)
sum = typed_reduction(axn.sum, jnp.sum)
var = spread(axn.var, jnp.var)


def _search(named: Function, positional: Function, array: Tree, axis: AxisSelection | None) -> Tree:
    """Find a position over one axis, or in the flattened array."""
    if not isinstance(array, NamedArray):
        again = functools.partial(_search, named, positional, axis=axis)
        return of_leaves(again, positional, named.__name__, array, axis)
    if axis is not None and not isinstance(axis, str | Axis) and len(axis) != 1:
        problem = f"takes one axis or None, not {len(axis)} axes"
        raise ArgumentError(message(named.__name__, problem, f"array has: {facts(array)}"))
    return named(array, axis)


def argmax(array: Tree, axis: AxisSelector | None) -> Tree:
    """Return the index of the largest element over one axis; None searches the flattened array."""
    return _search(_argmax, jnp.argmax, array, axis)


def argmin(array: Tree, axis: AxisSelector | None) -> Tree:
    """Return the index of the smallest element over one axis; None searches the flattened array."""
    return _search(_argmin, jnp.argmin, array, axis)


def nanargmax(array: Tree, axis: AxisSelector | None = None) -> Tree:
    """Return `argmax`, ignoring NaN."""
    return _search(_nanargmax, jnp.nanargmax, array, axis)


def nanargmin(array: Tree, axis: AxisSelector | None = None) -> Tree:
    """Return `argmin`, ignoring NaN."""
    return _search(_nanargmin, jnp.nanargmin, array, axis)


_argmax, _argmin = adapted(axn.argmax), adapted(axn.argmin)
_nanargmax, _nanargmin = adapted(axn.nanargmax), adapted(axn.nanargmin)


def along(
    named: Function,
    positional: Function,
    array: Operand,
    axis: AxisSelection | None,
    **options: object,
) -> Any:
    """Apply a function along axes; without axis, or on a plain array, return the plain result of `jax.numpy`."""
    if isinstance(array, NamedArray) and axis is not None:
        return named(array, axis, **options)
    return positional(raw(array), axis=axis, **options)


def argsort(a: Operand, axis: AxisSelector | None, *, stable: bool = False) -> Any:
    """Return the indices that would sort along an axis; `axis=None` sorts the flattened array, as a plain array."""
    return along(_argsort, jnp.argsort, a, axis, stable=stable)


def cumprod(a: Operand, axis: AxisSelector, dtype: DTypeLike | None = None) -> Any:
    """Return the cumulative product; `axis=None` gives that of the flattened array, as a plain array."""
    return along(_cumprod, jnp.cumprod, a, axis, dtype=dtype)


def cumsum(a: Operand, axis: AxisSelector, *, dtype: DTypeLike | None = None) -> Any:
    """Return the cumulative sum; `axis=None` gives that of the flattened array, as a plain array."""
    return along(_cumsum, jnp.cumsum, a, axis, dtype=dtype)


def nancumprod(a: Operand, axis: AxisSelector, dtype: DTypeLike | None = None) -> Any:
    """Return `cumprod` with NaN counted as one."""
    return along(_nancumprod, jnp.nancumprod, a, axis, dtype=dtype)


def nancumsum(a: Operand, axis: AxisSelector, *, dtype: DTypeLike | None = None) -> Any:
    """Return `cumsum` with NaN counted as zero."""
    return along(_nancumsum, jnp.nancumsum, a, axis, dtype=dtype)


def sort(a: Operand, axis: AxisSelector) -> Any:
    """Sort along an axis; `axis=None` sorts the flattened array, as a plain array."""
    return along(_sort, jnp.sort, a, axis)


_argsort, _sort = adapted(axn.argsort), adapted(axn.sort)
_cumprod, _cumsum = adapted(axn.cumprod), adapted(axn.cumsum)
_nancumprod, _nancumsum = adapted(axn.nancumprod), adapted(axn.nancumsum)
