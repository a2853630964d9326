"""Reductions, and functions along axes.

Unlike in Axonym, the array may be a plain one, for which `axis` is that of `jax.numpy`, or a tree of arrays, each of
which is reduced; and `where` of a named array must be named.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

import axonym as axn
from axonym import Axis, AxisSelection, AxisSelector, NamedArray
from axonym.engine import facts, limits
from axonym.errors import ArgumentError, message

from ._adapt import KindError, adapted
from ._elementwise import boolean, titled

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

Function = Callable[..., Any]


def reduction(named: Function, positional: Function) -> Function:
    """Make a reduction of a NamedArray, a plain array or a tree of both."""
    return _reduction(named, positional, ())


def typed_reduction(named: Function, positional: Function) -> Function:
    """Make a reduction with the dtype to compute in."""
    return _reduction(named, positional, ("dtype",))


def spread(named: Function, positional: Function) -> Function:
    """Make a reduction with the dtype to compute in and `ddof`."""
    return _reduction(named, positional, ("ddof", "dtype"))


def _reduction(named: Function, positional: Function, options: tuple[str, ...]) -> Function:
    of_named, name = adapted(named), named.__name__

    def reduced(array: Any, axis: Any, where: Any, options: dict[str, Any]) -> Any:
        if isinstance(array, NamedArray):
            if where is not None and not isinstance(where, NamedArray):
                problem = f"where must be a NamedArray, not {type(where).__name__}"
                raise KindError(message(name, problem, f"array has: {facts(array)}"))
            start = {} if where is None else _start(name, array)
            return of_named(array, axis, where=boolean(where), **options, **start)
        return of_leaves(
            lambda x: reduced(x, axis, where, options),
            positional,
            name,
            array,
            axis,
            where,
            options,
        )

    def plain(array: Any, axis: AxisSelection | None = None, *, where: Any = None) -> Any:
        return reduced(array, axis, where, {})

    def typed(
        array: Any,
        axis: AxisSelection | None = None,
        *,
        where: Any = None,
        dtype: DTypeLike | None = None,
    ) -> Any:
        return reduced(array, axis, where, {} if dtype is None else {"dtype": dtype})

    def spread(
        array: Any,
        axis: AxisSelection | None = None,
        *,
        where: Any = None,
        ddof: int = 0,
        dtype: DTypeLike | None = None,
    ) -> Any:
        return reduced(
            array, axis, where, {"ddof": ddof} if dtype is None else {"ddof": ddof, "dtype": dtype}
        )

    call: Function = spread if "ddof" in options else typed if options else plain
    return titled(
        call,
        named,
        "Apply `{}` over axes, of a NamedArray, of a plain array, or of each array of a tree.",
    )


def _start(name: str, array: NamedArray) -> dict[str, Any]:
    """Return where masked extrema start, which Axonym wants to be told: at the limit of the dtype."""
    lowest, highest = limits(array.dtype)
    starts = {"max": lowest, "min": highest, "nanmax": lowest, "nanmin": highest}
    is_optional = name.startswith("nan") and jnp.issubdtype(array.dtype, jnp.inexact)
    return {"initial": starts[name]} if name in starts and not is_optional else {}


def of_leaves(
    of_named: Function,
    positional: Function,
    name: str,
    array: Any,
    axis: Any,
    where: Any = None,
    options: dict[str, Any] | None = None,
) -> Any:
    """Reduce a plain array, or each array of a tree."""

    def leaf(x: Any) -> Any:
        if isinstance(x, NamedArray):
            return of_named(x)
        if isinstance(where, NamedArray) or isinstance(axis, str | Axis | dict) or _names_any(axis):
            problem = f"a plain {type(x).__name__} has no named axes"
            raise KindError(message(name, problem, hint="name it first: hax.named(array, (...))"))
        masks = {} if where is None else {"where": where}
        return positional(x, axis=axis, **masks, **(options or {}))

    return jax.tree.map(leaf, array, is_leaf=axn.is_named_array)


def _names_any(axis: Any) -> bool:
    return isinstance(axis, tuple | list) and bool([x for x in axis if isinstance(x, str | Axis)])


def _ptp(array: NamedArray, axis: Any, where: Any = None) -> NamedArray:
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


def _search(named: Function, positional: Function, array: Any, axis: Any) -> Any:
    """Find a position over one axis, or in the flattened array."""
    if isinstance(array, NamedArray):
        if axis is not None and not isinstance(axis, str | Axis) and len(axis) != 1:
            problem = f"takes one axis or None, not {len(axis)} axes"
            raise ArgumentError(message(named.__name__, problem, f"array has: {facts(array)}"))
        return named(array, axis)
    return of_leaves(
        lambda x: _search(named, positional, x, axis), positional, named.__name__, array, axis
    )


def argmax(array: Any, axis: AxisSelector | None) -> Any:
    """Return the index of the largest element over one axis; None searches the flattened array."""
    return _search(_argmax, jnp.argmax, array, axis)


def argmin(array: Any, axis: AxisSelector | None) -> Any:
    """Return the index of the smallest element over one axis; None searches the flattened array."""
    return _search(_argmin, jnp.argmin, array, axis)


def nanargmax(array: Any, axis: AxisSelector | None = None) -> Any:
    """Return `argmax`, ignoring NaN."""
    return _search(_nanargmax, jnp.nanargmax, array, axis)


def nanargmin(array: Any, axis: AxisSelector | None = None) -> Any:
    """Return `argmin`, ignoring NaN."""
    return _search(_nanargmin, jnp.nanargmin, array, axis)


_argmax, _argmin = adapted(axn.argmax), adapted(axn.argmin)
_nanargmax, _nanargmin = adapted(axn.nanargmax), adapted(axn.nanargmin)


def _along(named: Function, positional: Function, array: Any, axis: Any, **options: Any) -> Any:
    """Apply a function along one axis; without axis, or on a plain array, return the plain result of `jax.numpy`."""
    if isinstance(array, NamedArray) and axis is not None:
        return named(array, axis, **options)
    return positional(array.array if isinstance(array, NamedArray) else array, axis=axis, **options)


def argsort(a: Any, axis: AxisSelector | None, *, stable: bool = False) -> Any:
    """Return the indices that would sort along an axis; `axis=None` sorts the flattened array, as a plain array."""
    return _along(_argsort, jnp.argsort, a, axis, stable=stable)


def cumprod(a: Any, axis: AxisSelector, dtype: DTypeLike | None = None) -> Any:
    """Return the cumulative product; `axis=None` gives that of the flattened array, as a plain array."""
    return _along(_cumprod, jnp.cumprod, a, axis, dtype=dtype)


def cumsum(a: Any, axis: AxisSelector, *, dtype: DTypeLike | None = None) -> Any:
    """Return the cumulative sum; `axis=None` gives that of the flattened array, as a plain array."""
    return _along(_cumsum, jnp.cumsum, a, axis, dtype=dtype)


def nancumprod(a: Any, axis: AxisSelector, dtype: DTypeLike | None = None) -> Any:
    """Return `cumprod` with NaN counted as one."""
    return _along(_nancumprod, jnp.nancumprod, a, axis, dtype=dtype)


def nancumsum(a: Any, axis: AxisSelector, *, dtype: DTypeLike | None = None) -> Any:
    """Return `cumsum` with NaN counted as zero."""
    return _along(_nancumsum, jnp.nancumsum, a, axis, dtype=dtype)


def sort(a: Any, axis: AxisSelector) -> Any:
    """Sort along an axis; `axis=None` sorts the flattened array, as a plain array."""
    return _along(_sort, jnp.sort, a, axis)


_argsort, _sort = adapted(axn.argsort), adapted(axn.sort)
_cumprod, _cumsum = adapted(axn.cumprod), adapted(axn.cumsum)
_nancumprod, _nancumsum = adapted(axn.nancumprod), adapted(axn.nancumsum)
