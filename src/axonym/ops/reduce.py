"""Functions that remove axes: sums, means, extrema and their indices.

`axis` is one axis, several, or None for all; `where` is a mask whose axes are among those of the array. Anonymous
dimensions are never reduced.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from .. import _constraints
from ..axis import AxisSelection
from ..core import Core, Operand, facts
from ..errors import OperandError, message
from . import _lift
from ._widen import as_inexact, limits

if TYPE_CHECKING:
    from ..array import NamedArray

__all__ = [
    "all",
    "any",
    "argmax",
    "argmin",
    "average",
    "count_nonzero",
    "logmeanexp",
    "logsumexp",
    "max",
    "mean",
    "min",
    "nanargmax",
    "nanargmin",
    "nanmax",
    "nanmean",
    "nanmin",
    "nanprod",
    "nanstd",
    "nansum",
    "nanvar",
    "prod",
    "ptp",
    "std",
    "sum",
    "var",
]


def all(x: "NamedArray", axis: AxisSelection | None = None, *, where: Operand | None = None) -> "NamedArray":
    """Test whether all elements over `axis` are true."""
    return _lift.reduction(jnp.all, x, axis, where)


def any(x: "NamedArray", axis: AxisSelection | None = None, *, where: Operand | None = None) -> "NamedArray":
    """Test whether any element over `axis` is true."""
    return _lift.reduction(jnp.any, x, axis, where)


def argmax(x: "NamedArray", axis: AxisSelection | None = None) -> "NamedArray":
    """Return the index of the largest element over `axis`.

    Over several axes, it is the index into these axes flattened in the given order; None means all, in storage order.
    """
    return _lift.search(jnp.argmax, x, axis)


def argmin(x: "NamedArray", axis: AxisSelection | None = None) -> "NamedArray":
    """Return the index of the smallest element over `axis`.

    Over several axes, it is the index into these axes flattened in the given order; None means all, in storage order.
    """
    return _lift.search(jnp.argmin, x, axis)


def average(x: "NamedArray", axis: AxisSelection | None = None, weights: "NamedArray | None" = None) -> "NamedArray":
    """Return the weighted mean over `axis`.

    Args:
        x: axes {axis, ...}.
        axis: one axis, several, or None for all.
        weights: axes among those of `x`; None for equal weights.

    Example:
        >>> x = axn.named([[1., 2.], [3., 7.]], ("batch", "embed"))
        >>> axn.average(x, "embed", axn.named([3., 1.], "embed"))
        NamedArray(float32[batch=2])
        [1.25 4.  ]
    """
    if weights is not None and isinstance(x, Core) and not isinstance(weights, Core):
        problem = f"weights must be a NamedArray, not {type(weights).__name__}"
        raise OperandError(message("average", problem, f"array has: {facts(x)}", hint='axn.named(weights, "axis")'))
    return _lift.reduction(_average, x, axis, weights)


def _average(x: jax.Array, axis: tuple[int, ...], where: jax.Array | None = None) -> jax.Array:
    """Average; the weights are passed as the mask, which the engine aligns: axes that they lack have size 1."""
    if where is None:
        return jnp.mean(x, axis)
    if not jnp.issubdtype(x.dtype, jnp.inexact) and not jnp.issubdtype(where.dtype, jnp.inexact):
        return _average(as_inexact(x), axis, as_inexact(where))  # sums of integers could overflow
    copies = math.prod(x.shape[at] for at in axis if where.shape[at] == 1)
    return jnp.sum(x * where, axis) / (jnp.sum(where, axis) * copies)


def count_nonzero(x: "NamedArray", axis: AxisSelection | None = None) -> "NamedArray":
    """Count the nonzero elements over `axis`."""
    return _lift.reduction(jnp.count_nonzero, x, axis)


def logmeanexp(x: "NamedArray", axis: AxisSelection | None = None, *, where: Operand | None = None) -> "NamedArray":
    """Return the logarithm of the mean of exponentials over `axis`, without overflow."""
    return _lift.reduction(jax.nn.logmeanexp, x, axis, where)


def logsumexp(x: "NamedArray", axis: AxisSelection | None = None, *, where: Operand | None = None) -> "NamedArray":
    """Return the logarithm of the sum of exponentials over `axis`, without overflow."""
    return _lift.reduction(jax.nn.logsumexp, x, axis, where)


def max(
    x: "NamedArray", axis: AxisSelection | None = None, *, where: Operand | None = None, initial: float | None = None
) -> "NamedArray":
    """Return the maximum over `axis`; with no elements to include, `initial` or the lowest value of the dtype."""
    return _lift.reduction(_max, x, axis, where, **_start("max", initial))


def _max(x: jax.Array, axis: tuple[int, ...], where: Any = None, initial: Any = None) -> jax.Array:
    if where is not None and initial is None:
        initial = limits(x.dtype)[0]
    return jnp.max(x, axis, where=where, initial=initial)


def mean(
    x: "NamedArray",
    axis: AxisSelection | None = None,
    *,
    dtype: DTypeLike | None = None,
    where: Operand | None = None,
) -> "NamedArray":
    """Return the mean over `axis`, computed and returned in `dtype`."""
    return _lift.reduction(jnp.mean, x, axis, where, **_dtype(dtype))


def min(
    x: "NamedArray", axis: AxisSelection | None = None, *, where: Operand | None = None, initial: float | None = None
) -> "NamedArray":
    """Return the minimum over `axis`; with no elements to include, `initial` or the highest value of the dtype."""
    return _lift.reduction(_min, x, axis, where, **_start("min", initial))


def _min(x: jax.Array, axis: tuple[int, ...], where: Any = None, initial: Any = None) -> jax.Array:
    if where is not None and initial is None:
        initial = limits(x.dtype)[1]
    return jnp.min(x, axis, where=where, initial=initial)


def nanargmax(x: "NamedArray", axis: AxisSelection | None = None) -> "NamedArray":
    """Return the index of the largest number over `axis`, like `argmax`; -1 if all elements are NaN."""
    return _lift.search(jnp.nanargmax, x, axis)


def nanargmin(x: "NamedArray", axis: AxisSelection | None = None) -> "NamedArray":
    """Return the index of the smallest number over `axis`, like `argmin`; -1 if all elements are NaN."""
    return _lift.search(jnp.nanargmin, x, axis)


def nanmax(
    x: "NamedArray", axis: AxisSelection | None = None, *, where: Operand | None = None, initial: float | None = None
) -> "NamedArray":
    """Return the maximum over `axis`, ignoring NaN; if no elements are left, `initial` or NaN."""
    return _lift.reduction(_nanmax, x, axis, where, **_start("nanmax", initial))


def _nanmax(x: jax.Array, axis: tuple[int, ...], where: Any = None, initial: Any = None) -> jax.Array:
    if where is None or initial is not None:
        return jnp.nanmax(x, axis, where=where, initial=initial)
    return _nan_where_none(x, axis, where, jnp.nanmax(x, axis, where=where, initial=limits(x.dtype)[0]))


def nanmean(
    x: "NamedArray",
    axis: AxisSelection | None = None,
    *,
    dtype: DTypeLike | None = None,
    where: Operand | None = None,
) -> "NamedArray":
    """Return the mean over `axis`, ignoring NaN, computed and returned in `dtype`."""
    return _lift.reduction(jnp.nanmean, x, axis, where, **_dtype(dtype))


def nanmin(
    x: "NamedArray", axis: AxisSelection | None = None, *, where: Operand | None = None, initial: float | None = None
) -> "NamedArray":
    """Return the minimum over `axis`, ignoring NaN; if no elements are left, `initial` or NaN."""
    return _lift.reduction(_nanmin, x, axis, where, **_start("nanmin", initial))


def _nanmin(x: jax.Array, axis: tuple[int, ...], where: Any = None, initial: Any = None) -> jax.Array:
    if where is None or initial is not None:
        return jnp.nanmin(x, axis, where=where, initial=initial)
    return _nan_where_none(x, axis, where, jnp.nanmin(x, axis, where=where, initial=limits(x.dtype)[1]))


def nanprod(
    x: "NamedArray",
    axis: AxisSelection | None = None,
    *,
    dtype: DTypeLike | None = None,
    where: Operand | None = None,
    initial: complex | None = None,
) -> "NamedArray":
    """Return the product over `axis`, ignoring NaN, times `initial`."""
    return _lift.reduction(_nanprod, x, axis, where, **_dtype(dtype), **_start("nanprod", initial))


def _nanprod(x: jax.Array, axis: tuple[int, ...], where: Any = None, **options: Any) -> jax.Array:
    return _multiplied(jnp.nanprod, x, axis, where, options)


def nanstd(
    x: "NamedArray",
    axis: AxisSelection | None = None,
    *,
    dtype: DTypeLike | None = None,
    ddof: int = 0,
    where: Operand | None = None,
) -> "NamedArray":
    """Return the standard deviation over `axis`, ignoring NaN, with `ddof` subtracted from the count."""
    return _lift.reduction(jnp.nanstd, x, axis, where, ddof=ddof, **_dtype(dtype))


def nansum(
    x: "NamedArray",
    axis: AxisSelection | None = None,
    *,
    dtype: DTypeLike | None = None,
    where: Operand | None = None,
    initial: complex | None = None,
) -> "NamedArray":
    """Return the sum over `axis`, ignoring NaN, plus `initial`."""
    return _lift.reduction(jnp.nansum, x, axis, where, **_dtype(dtype), **_start("nansum", initial))


def nanvar(
    x: "NamedArray",
    axis: AxisSelection | None = None,
    *,
    dtype: DTypeLike | None = None,
    ddof: int = 0,
    where: Operand | None = None,
) -> "NamedArray":
    """Return the variance over `axis`, ignoring NaN, with `ddof` subtracted from the count."""
    return _lift.reduction(jnp.nanvar, x, axis, where, ddof=ddof, **_dtype(dtype))


def prod(
    x: "NamedArray",
    axis: AxisSelection | None = None,
    *,
    dtype: DTypeLike | None = None,
    where: Operand | None = None,
    initial: complex | None = None,
) -> "NamedArray":
    """Return the product over `axis`, times `initial`, computed and returned in `dtype`."""
    return _lift.reduction(_prod, x, axis, where, **_dtype(dtype), **_start("prod", initial))


def _prod(x: jax.Array, axis: tuple[int, ...], where: Any = None, **options: Any) -> jax.Array:
    return _multiplied(jnp.prod, x, axis, where, options)


def _multiplied(
    fn: Callable[..., jax.Array], x: jax.Array, axis: tuple[int, ...], where: Any, options: dict[str, Any]
) -> jax.Array:
    """Multiply over axes within `local`: JAX's gradient reshapes and slices sharded dimensions."""
    removed = {at % x.ndim for at in axis}
    kept = [entry for at, entry in enumerate(_constraints.entries_of(x)) if at not in removed]

    def call(x: jax.Array, where: Any = None) -> jax.Array:
        return fn(x, axis, where=where, **options)

    product: jax.Array = _lift.local(call, [x] if where is None else [x, where], kept)
    return product


def ptp(x: "NamedArray", axis: AxisSelection | None = None, *, where: Operand | None = None) -> "NamedArray":
    """Return the maximum minus the minimum over `axis`; a mask must leave at least one element."""
    return _lift.reduction(_ptp, x, axis, where)


def _ptp(x: jax.Array, axis: tuple[int, ...], where: Any = None) -> jax.Array:
    return jnp.ptp(x, axis) if where is None else _max(x, axis, where) - _min(x, axis, where)


def std(
    x: "NamedArray",
    axis: AxisSelection | None = None,
    *,
    dtype: DTypeLike | None = None,
    ddof: int = 0,
    where: Operand | None = None,
) -> "NamedArray":
    """Return the standard deviation over `axis`, with `ddof` subtracted from the count."""
    return _lift.reduction(jnp.std, x, axis, where, ddof=ddof, **_dtype(dtype))


def sum(
    x: "NamedArray",
    axis: AxisSelection | None = None,
    *,
    dtype: DTypeLike | None = None,
    where: Operand | None = None,
    initial: complex | None = None,
) -> "NamedArray":
    """Return the sum over `axis`, plus `initial`, computed and returned in `dtype`.

    Example:
        >>> x = axn.ones((axn.Axis("batch", 2), axn.Axis("embed", 3)))
        >>> x.sum("embed")
        NamedArray(float32[batch=2])
        [3. 3.]
    """
    if dtype is None and initial is None:
        return _lift.reduction(jnp.sum, x, axis, where)
    return _lift.reduction(jnp.sum, x, axis, where, **_dtype(dtype), **_start("sum", initial))


def var(
    x: "NamedArray",
    axis: AxisSelection | None = None,
    *,
    dtype: DTypeLike | None = None,
    ddof: int = 0,
    where: Operand | None = None,
) -> "NamedArray":
    """Return the variance over `axis`, with `ddof` subtracted from the count."""
    return _lift.reduction(jnp.var, x, axis, where, ddof=ddof, **_dtype(dtype))


def _dtype(dtype: DTypeLike | None) -> dict[str, Any]:
    return {} if dtype is None else {"dtype": dtype}


def _start(function: str, initial: complex | None) -> dict[str, Any]:
    """Check an initial value, which must be static."""
    if initial is None:
        return {}
    if not isinstance(initial, bool | int | float | complex | np.generic):
        join = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum"}[function.removeprefix("nan")]
        problem = f"initial must be a number, not {type(initial).__name__}"
        raise OperandError(message(function, problem, hint=f"join it to the result: axn.{join}(result, initial)"))
    return {"initial": initial}


def _nan_where_none(x: jax.Array, axis: tuple[int, ...], where: Any, result: jax.Array) -> jax.Array:
    """Replace an extremum by NaN where there was no number."""
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return result
    return jnp.where(jnp.all(jnp.isnan(x), axis, where=where), jnp.nan, result)
