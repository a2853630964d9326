"""Functions that remove axes: sums, means, extrema, and where those are.

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
    """Tell whether all elements over `axis` are true."""
    return _lift.reduction(jnp.all, x, axis, where)


def any(x: "NamedArray", axis: AxisSelection | None = None, *, where: Operand | None = None) -> "NamedArray":
    """Tell whether any element over `axis` is true."""
    return _lift.reduction(jnp.any, x, axis, where)


def argmax(x: "NamedArray", axis: AxisSelection | None = None) -> "NamedArray":
    """Return the index of the largest element over `axis`.

    Over several axes, it is the index in what they flatten to in the order given; None takes all axes in storage order.
    """
    return _lift.search(jnp.argmax, x, axis)


def argmin(x: "NamedArray", axis: AxisSelection | None = None) -> "NamedArray":
    """Return the index of the smallest element over `axis`.

    Over several axes, it is the index in what they flatten to in the order given; None takes all axes in storage order.
    """
    return _lift.search(jnp.argmin, x, axis)


def average(x: "NamedArray", axis: AxisSelection | None = None, weights: "NamedArray | None" = None) -> "NamedArray":
    """Return the mean over `axis` in which each element counts as much as its weight.

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
        problem = f"weights are a NamedArray, not {type(weights).__name__}"
        raise OperandError(message("average", problem, f"array has: {facts(x)}", hint='axn.named(weights, "axis")'))
    return _lift.reduction(_average, x, axis, weights)


def _average(x: jax.Array, axis: tuple[int, ...], where: jax.Array | None = None) -> jax.Array:
    """Average; the weights come where the engine lines up a mask: axes that they lack are of size 1."""
    if where is None:
        return jnp.mean(x, axis)
    if not jnp.issubdtype(x.dtype, jnp.inexact) and not jnp.issubdtype(where.dtype, jnp.inexact):
        return _average(as_inexact(x), axis, as_inexact(where))  # sums of integers could overflow
    copies = math.prod(x.shape[at] for at in axis if where.shape[at] == 1)
    return jnp.sum(x * where, axis) / (jnp.sum(where, axis) * copies)


def count_nonzero(x: "NamedArray", axis: AxisSelection | None = None) -> "NamedArray":
    """Return how many elements over `axis` are not zero."""
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
    """Return the largest element over `axis`; where no element takes part, `initial` or the dtype's lowest value."""
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
    """Return the mean over `axis`; `dtype` is the one to compute and return."""
    return _lift.reduction(jnp.mean, x, axis, where, **_dtype(dtype))


def min(
    x: "NamedArray", axis: AxisSelection | None = None, *, where: Operand | None = None, initial: float | None = None
) -> "NamedArray":
    """Return the smallest element over `axis`; where no element takes part, `initial` or the dtype's highest value."""
    return _lift.reduction(_min, x, axis, where, **_start("min", initial))


def _min(x: jax.Array, axis: tuple[int, ...], where: Any = None, initial: Any = None) -> jax.Array:
    if where is not None and initial is None:
        initial = limits(x.dtype)[1]
    return jnp.min(x, axis, where=where, initial=initial)


def nanargmax(x: "NamedArray", axis: AxisSelection | None = None) -> "NamedArray":
    """Return the index of the largest number over `axis` as `argmax` does; -1 where all elements are NaN."""
    return _lift.search(jnp.nanargmax, x, axis)


def nanargmin(x: "NamedArray", axis: AxisSelection | None = None) -> "NamedArray":
    """Return the index of the smallest number over `axis` as `argmin` does; -1 where all elements are NaN."""
    return _lift.search(jnp.nanargmin, x, axis)


def nanmax(
    x: "NamedArray", axis: AxisSelection | None = None, *, where: Operand | None = None, initial: float | None = None
) -> "NamedArray":
    """Return the largest element over `axis` that is not NaN; where there is none, `initial` or NaN."""
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
    """Return the mean over `axis` of what is not NaN; `dtype` is the one to compute and return."""
    return _lift.reduction(jnp.nanmean, x, axis, where, **_dtype(dtype))


def nanmin(
    x: "NamedArray", axis: AxisSelection | None = None, *, where: Operand | None = None, initial: float | None = None
) -> "NamedArray":
    """Return the smallest element over `axis` that is not NaN; where there is none, `initial` or NaN."""
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
    """Return the product over `axis` of what is not NaN, times `initial`."""
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
    """Return the standard deviation over `axis` of what is not NaN, with `ddof` taken off the count."""
    return _lift.reduction(jnp.nanstd, x, axis, where, ddof=ddof, **_dtype(dtype))


def nansum(
    x: "NamedArray",
    axis: AxisSelection | None = None,
    *,
    dtype: DTypeLike | None = None,
    where: Operand | None = None,
    initial: complex | None = None,
) -> "NamedArray":
    """Return the sum over `axis` of what is not NaN, plus `initial`."""
    return _lift.reduction(jnp.nansum, x, axis, where, **_dtype(dtype), **_start("nansum", initial))


def nanvar(
    x: "NamedArray",
    axis: AxisSelection | None = None,
    *,
    dtype: DTypeLike | None = None,
    ddof: int = 0,
    where: Operand | None = None,
) -> "NamedArray":
    """Return the variance over `axis` of what is not NaN, with `ddof` taken off the count."""
    return _lift.reduction(jnp.nanvar, x, axis, where, ddof=ddof, **_dtype(dtype))


def prod(
    x: "NamedArray",
    axis: AxisSelection | None = None,
    *,
    dtype: DTypeLike | None = None,
    where: Operand | None = None,
    initial: complex | None = None,
) -> "NamedArray":
    """Return the product over `axis`, times `initial`; `dtype` is the one to compute and return."""
    return _lift.reduction(_prod, x, axis, where, **_dtype(dtype), **_start("prod", initial))


def _prod(x: jax.Array, axis: tuple[int, ...], where: Any = None, **options: Any) -> jax.Array:
    return _multiplied(jnp.prod, x, axis, where, options)


def _multiplied(
    fn: Callable[..., jax.Array], x: jax.Array, axis: tuple[int, ...], where: Any, options: dict[str, Any]
) -> jax.Array:
    """Multiply over axes; JAX's gradient of that reshapes and cuts dimensions that the types say are sharded."""
    removed = {at % x.ndim for at in axis}
    kept = [entry for at, entry in enumerate(_constraints.entries_of(x)) if at not in removed]

    def call(x: jax.Array, where: Any = None) -> jax.Array:
        return fn(x, axis, where=where, **options)

    product: jax.Array = _lift.local(call, [x] if where is None else [x, where], kept)
    return product


def ptp(x: "NamedArray", axis: AxisSelection | None = None, *, where: Operand | None = None) -> "NamedArray":
    """Return the difference of the largest and the smallest element over `axis`, of which a mask must leave one."""
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
    """Return the standard deviation over `axis`, with `ddof` degrees of freedom taken off the count."""
    return _lift.reduction(jnp.std, x, axis, where, ddof=ddof, **_dtype(dtype))


def sum(
    x: "NamedArray",
    axis: AxisSelection | None = None,
    *,
    dtype: DTypeLike | None = None,
    where: Operand | None = None,
    initial: complex | None = None,
) -> "NamedArray":
    """Return the sum over `axis`, plus `initial`; `dtype` is the one to compute and return.

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
    """Return the variance over `axis`, with `ddof` degrees of freedom taken off the count."""
    return _lift.reduction(jnp.var, x, axis, where, ddof=ddof, **_dtype(dtype))


def _dtype(dtype: DTypeLike | None) -> dict[str, Any]:
    return {} if dtype is None else {"dtype": dtype}


def _start(function: str, initial: complex | None) -> dict[str, Any]:
    """Check a start value, which is compiled in."""
    if initial is None:
        return {}
    if not isinstance(initial, bool | int | float | complex | np.generic):
        join = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum"}[function.removeprefix("nan")]
        problem = f"initial must be a number, not {type(initial).__name__}"
        raise OperandError(message(function, problem, hint=f"join it to the result: axn.{join}(result, initial)"))
    return {"initial": initial}


def _nan_where_none(x: jax.Array, axis: tuple[int, ...], where: Any, result: jax.Array) -> jax.Array:
    """Turn an extremum into NaN where no number took part in it."""
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return result
    return jnp.where(jnp.all(jnp.isnan(x), axis, where=where), jnp.nan, result)
