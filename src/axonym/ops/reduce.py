"""Functions that remove axes: sums, means, extrema and their indices.

`axis` is one axis, several, or None for all; `where` is a mask whose axes are among those of the array. Anonymous
dimensions are never reduced.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from ..axis import AxisSelection
from ..core import Core, Operand, facts
from ..dtypes import as_inexact, limits, of_one_rank
from ..engine import along, auto, reduction
from ..engine.root import root
from ..errors import ArgumentError, OperandError, message
from ..faults.lost_nan import find_max, find_min, restore_nan
from ..kinds import type_text
from ..layout import explicit

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

At: TypeAlias = tuple[int, ...]
"""The dimensions to reduce, counted from the last."""
Mask: TypeAlias = jax.Array | None


def all(
    x: "NamedArray", axis: AxisSelection | None = None, *, where: Operand | None = None
) -> "NamedArray":
    """Test whether all elements over `axis` are true."""
    return reduction.reduction(jnp.all, x, axis, where)


def any(
    x: "NamedArray", axis: AxisSelection | None = None, *, where: Operand | None = None
) -> "NamedArray":
    """Test whether any element over `axis` is true."""
    return reduction.reduction(jnp.any, x, axis, where)


def argmax(x: "NamedArray", axis: AxisSelection | None = None) -> "NamedArray":
    """Return the index of the largest element over `axis`.

    Over several axes, it is the index into these axes flattened in the given order; None means all, in storage order.
    """
    return along.search(jnp.argmax, x, axis)


def argmin(x: "NamedArray", axis: AxisSelection | None = None) -> "NamedArray":
    """Return the index of the smallest element over `axis`.

    Over several axes, it is the index into these axes flattened in the given order; None means all, in storage order.
    """
    return along.search(jnp.argmin, x, axis)


def average(
    x: "NamedArray", axis: AxisSelection | None = None, weights: "NamedArray | None" = None
) -> "NamedArray":
    """Return the weighted mean over `axis`.

    Args:
        x: axes {axis, ...}.
        axis: one axis, several, or None for all.
        weights: axes among those of `x`; None for equal weights.

    Examples:
        >>> x = axn.named([[1., 2.], [3., 7.]], ("batch", "embed"))
        >>> axn.average(x, "embed", axn.named([3., 1.], "embed"))
        NamedArray(float32[batch=2])
        [1.25 4.  ]
    """
    if weights is not None and isinstance(x, Core) and not isinstance(weights, Core):
        problem = f"weights must be a NamedArray, not {type_text(weights)}"
        hint = 'axn.named(weights, "axis")'
        raise OperandError(message("average", problem, f"array has: {facts(x)}", hint=hint))
    return reduction.reduction(_average, x, axis, weights)


def _average(x: jax.Array, axis: At, where: Mask = None) -> jax.Array:
    """Average; the weights are passed as the mask, which the engine aligns: axes that they lack have size 1."""
    if where is None:
        return jnp.mean(x, axis)
    if not jnp.issubdtype(x.dtype, jnp.inexact) and not jnp.issubdtype(where.dtype, jnp.inexact):
        return _average(as_inexact(x), axis, as_inexact(where))  # sums of integers could overflow
    x, weights = of_one_rank(x, where)
    copies = math.prod(x.shape[at] for at in axis if weights.shape[at] == 1)
    total = jnp.sum(weights, axis) * copies
    return jnp.sum(x * weights, axis) / total


def count_nonzero(x: "NamedArray", axis: AxisSelection | None = None) -> "NamedArray":
    """Count the nonzero elements over `axis`."""
    return reduction.reduction(jnp.count_nonzero, x, axis)


def logmeanexp(
    x: "NamedArray", axis: AxisSelection | None = None, *, where: Operand | None = None
) -> "NamedArray":
    """Return the logarithm of the mean of exponentials over `axis`, without overflow."""
    return reduction.reduction(jax.nn.logmeanexp, x, axis, where)


def logsumexp(
    x: "NamedArray", axis: AxisSelection | None = None, *, where: Operand | None = None
) -> "NamedArray":
    """Return the logarithm of the sum of exponentials over `axis`, without overflow."""
    return reduction.reduction(jax.nn.logsumexp, x, axis, where)


def max(
    x: "NamedArray",
    axis: AxisSelection | None = None,
    *,
    where: Operand | None = None,
    initial: float | None = None,
) -> "NamedArray":
    """Return the maximum over `axis`, and of `initial`, which `where` needs: it might include no elements.

    Raises:
        AxisSizeError: if there are no elements and no `initial`.
        ArgumentError: if there is a mask and no `initial`.
    """
    _check_start("max", x, where, initial)
    return reduction.reduction(_max, x, axis, where, **_start("max", initial))


def _max(x: jax.Array, axis: At, where: Mask = None, initial: float | None = None) -> jax.Array:
    return find_max(x, axis, where=where, initial=_typed(initial, x.dtype))


def mean(
    x: "NamedArray",
    axis: AxisSelection | None = None,
    *,
    dtype: DTypeLike | None = None,
    where: Operand | None = None,
) -> "NamedArray":
    """Return the mean over `axis`, computed and returned in `dtype`."""
    return reduction.reduction(jnp.mean, x, axis, where, **_dtype(dtype))


def min(
    x: "NamedArray",
    axis: AxisSelection | None = None,
    *,
    where: Operand | None = None,
    initial: float | None = None,
) -> "NamedArray":
    """Return the minimum over `axis`, and of `initial`, which `where` needs: it might include no elements.

    Raises:
        AxisSizeError: if there are no elements and no `initial`.
        ArgumentError: if there is a mask and no `initial`.
    """
    _check_start("min", x, where, initial)
    return reduction.reduction(_min, x, axis, where, **_start("min", initial))


def _min(x: jax.Array, axis: At, where: Mask = None, initial: float | None = None) -> jax.Array:
    return find_min(x, axis, where=where, initial=_typed(initial, x.dtype))


def nanargmax(x: "NamedArray", axis: AxisSelection | None = None) -> "NamedArray":
    """Return the index of the largest number over `axis`, like `argmax`; -1 if all elements are NaN."""
    return along.search(jnp.nanargmax, x, axis)


def nanargmin(x: "NamedArray", axis: AxisSelection | None = None) -> "NamedArray":
    """Return the index of the smallest number over `axis`, like `argmin`; -1 if all elements are NaN."""
    return along.search(jnp.nanargmin, x, axis)


def nanmax(
    x: "NamedArray",
    axis: AxisSelection | None = None,
    *,
    where: Operand | None = None,
    initial: float | None = None,
) -> "NamedArray":
    """Return the maximum over `axis`, ignoring NaN; if no numbers are left, `initial` or NaN.

    Raises:
        AxisSizeError: if there are no elements and no `initial`.
        ArgumentError: if there is a mask of integers, which have no NaN, and no `initial`.
    """
    return reduction.reduction(_nanmax, x, axis, where, **_start("nanmax", initial))


def _nanmax(x: jax.Array, axis: At, where: Mask = None, initial: float | None = None) -> jax.Array:
    if where is None or initial is not None:
        return jnp.nanmax(x, axis, where=where, initial=initial)
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        raise _without_start("nanmax", f"array has dtype: {x.dtype}")
    found = jnp.nanmax(x, axis, where=where, initial=limits(x.dtype)[0])
    return jnp.where(jnp.all(jnp.isnan(x), axis, where=where), jnp.nan, found)


def nanmean(
    x: "NamedArray",
    axis: AxisSelection | None = None,
    *,
    dtype: DTypeLike | None = None,
    where: Operand | None = None,
) -> "NamedArray":
    """Return the mean over `axis`, ignoring NaN, computed and returned in `dtype`."""
    return reduction.reduction(jnp.nanmean, x, axis, where, **_dtype(dtype))


def nanmin(
    x: "NamedArray",
    axis: AxisSelection | None = None,
    *,
    where: Operand | None = None,
    initial: float | None = None,
) -> "NamedArray":
    """Return the minimum over `axis`, ignoring NaN; if no numbers are left, `initial` or NaN.

    Raises:
        AxisSizeError: if there are no elements and no `initial`.
        ArgumentError: if there is a mask of integers, which have no NaN, and no `initial`.
    """
    return reduction.reduction(_nanmin, x, axis, where, **_start("nanmin", initial))


def _nanmin(x: jax.Array, axis: At, where: Mask = None, initial: float | None = None) -> jax.Array:
    if where is None or initial is not None:
        return jnp.nanmin(x, axis, where=where, initial=initial)
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        raise _without_start("nanmin", f"array has dtype: {x.dtype}")
    found = jnp.nanmin(x, axis, where=where, initial=limits(x.dtype)[1])
    return jnp.where(jnp.all(jnp.isnan(x), axis, where=where), jnp.nan, found)


def nanprod(
    x: "NamedArray",
    axis: AxisSelection | None = None,
    *,
    dtype: DTypeLike | None = None,
    where: Operand | None = None,
    initial: complex | None = None,
) -> "NamedArray":
    """Return the product over `axis`, ignoring NaN, times `initial`."""
    options = {**_dtype(dtype), **_start("nanprod", initial)}
    return reduction.reduction(_nanprod, x, axis, where, **options)


def _nanprod(x: jax.Array, axis: At, where: Mask = None, **options: object) -> jax.Array:
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
    return reduction.reduction(_nanstd, x, axis, where, ddof=ddof, **_dtype(dtype))


def _nanstd(x: jax.Array, axis: At, where: Mask = None, **options: Any) -> jax.Array:
    return root(jnp.nanvar(x, axis, where=where, **options))


def nansum(
    x: "NamedArray",
    axis: AxisSelection | None = None,
    *,
    dtype: DTypeLike | None = None,
    where: Operand | None = None,
    initial: complex | None = None,
) -> "NamedArray":
    """Return the sum over `axis`, ignoring NaN, plus `initial`."""
    options = {**_dtype(dtype), **_start("nansum", initial)}
    return reduction.reduction(jnp.nansum, x, axis, where, **options)


def nanvar(
    x: "NamedArray",
    axis: AxisSelection | None = None,
    *,
    dtype: DTypeLike | None = None,
    ddof: int = 0,
    where: Operand | None = None,
) -> "NamedArray":
    """Return the variance over `axis`, ignoring NaN, with `ddof` subtracted from the count."""
    return reduction.reduction(jnp.nanvar, x, axis, where, ddof=ddof, **_dtype(dtype))


def prod(
    x: "NamedArray",
    axis: AxisSelection | None = None,
    *,
    dtype: DTypeLike | None = None,
    where: Operand | None = None,
    initial: complex | None = None,
) -> "NamedArray":
    """Return the product over `axis`, times `initial`, computed and returned in `dtype`."""
    return reduction.reduction(_prod, x, axis, where, **_dtype(dtype), **_start("prod", initial))


def _prod(x: jax.Array, axis: At, where: Mask = None, **options: object) -> jax.Array:
    return _multiplied(jnp.prod, x, axis, where, options)


def _multiplied(
    fn: Callable[..., jax.Array],
    x: jax.Array,
    axis: At,
    where: Mask,
    options: dict[str, object],
) -> jax.Array:
    """Multiply over axes within `local`: JAX's gradient reshapes and slices sharded dimensions."""
    removed = {at % x.ndim for at in axis}
    kept = [entry for at, entry in enumerate(explicit.read_layout(x)) if at not in removed]

    def call(x: jax.Array, where: jax.Array | None = None) -> jax.Array:
        return fn(x, axis, where=where, **options)

    arrays = [x]
    if where is not None:
        arrays.append(where)
    product: jax.Array = auto.local(call, arrays, kept)
    return product


def ptp(
    x: "NamedArray",
    axis: AxisSelection | None = None,
    *,
    where: Operand | None = None,
    initial: float | None = None,
) -> "NamedArray":
    """Return the maximum minus the minimum over `axis`; `initial` is an element more, which `where` needs.

    Raises:
        AxisSizeError: if there are no elements and no `initial`.
        ArgumentError: if there is a mask and no `initial`.
    """
    _check_start("ptp", x, where, initial)
    return reduction.reduction(_ptp, x, axis, where, **_start("ptp", initial))


def _ptp(x: jax.Array, axis: At, where: Mask = None, initial: float | None = None) -> jax.Array:
    if initial is None:
        return restore_nan(jnp.ptp(x, axis), x, axis)
    return _max(x, axis, where, initial) - _min(x, axis, where, initial)


def std(
    x: "NamedArray",
    axis: AxisSelection | None = None,
    *,
    dtype: DTypeLike | None = None,
    ddof: int = 0,
    where: Operand | None = None,
) -> "NamedArray":
    """Return the standard deviation over `axis`, with `ddof` subtracted from the count.

    Of equal elements, it is zero and so is its gradient, one of its subgradients.
    """
    return reduction.reduction(_std, x, axis, where, ddof=ddof, **_dtype(dtype))


def _std(x: jax.Array, axis: At, where: Mask = None, **options: Any) -> jax.Array:
    return root(jnp.var(x, axis, where=where, **options))


def sum(
    x: "NamedArray",
    axis: AxisSelection | None = None,
    *,
    dtype: DTypeLike | None = None,
    where: Operand | None = None,
    initial: complex | None = None,
) -> "NamedArray":
    """Return the sum over `axis`, plus `initial`, computed and returned in `dtype`.

    Examples:
        >>> x = axn.ones((axn.Axis("batch", 2), axn.Axis("embed", 3)))
        >>> x.sum("embed")
        NamedArray(float32[batch=2])
        [3. 3.]
    """
    if dtype is None and initial is None:
        return reduction.reduction(jnp.sum, x, axis, where)
    return reduction.reduction(jnp.sum, x, axis, where, **_dtype(dtype), **_start("sum", initial))


def var(
    x: "NamedArray",
    axis: AxisSelection | None = None,
    *,
    dtype: DTypeLike | None = None,
    ddof: int = 0,
    where: Operand | None = None,
) -> "NamedArray":
    """Return the variance over `axis`, with `ddof` subtracted from the count."""
    return reduction.reduction(jnp.var, x, axis, where, ddof=ddof, **_dtype(dtype))


def _dtype(dtype: DTypeLike | None) -> dict[str, Any]:
    if dtype is None:
        return {}
    return {"dtype": dtype}


def _start(function: str, initial: complex | None) -> dict[str, Any]:
    """Check an initial value, which must be static."""
    if initial is None:
        return {}
    if not isinstance(initial, bool | int | float | complex | np.generic):
        join = _JOINED_BY[function.removeprefix("nan")]
        problem = f"initial must be a number, not {type_text(initial)}"
        hint = f"join it to the result: axn.{join}(result, initial)"
        raise OperandError(message(function, problem, hint=hint))
    return {"initial": initial}


_JOINED_BY = {
    "sum": "add",
    "prod": "multiply",
    "max": "maximum",
    "min": "minimum",
    "ptp": "maximum",
}
"""The function that joins an element to the result of a reduction."""


def _typed(initial: float | None, dtype: np.dtype[Any]) -> Any:
    """Give an int the dtype of the array, since JAX takes none of more than 31 bits."""
    if type(initial) is not int or not jnp.issubdtype(dtype, jnp.integer):
        return initial
    find_min, find_max = limits(dtype)
    if not find_min <= initial <= find_max:
        return initial
    return dtype.type(initial)


def _check_start(function: str, x: object, where: object, initial: object) -> None:
    """Check that an extremum of elements that a mask includes, perhaps none, has an initial value."""
    if where is not None and initial is None and isinstance(x, Core):
        raise _without_start(function, f"array has: {facts(x)}")


def _without_start(function: str, fact: str) -> ArgumentError:
    problem = f"there is no {function} of no elements, and the mask might include none"
    hint = "give a value to start from: initial=..."
    return ArgumentError(message(function, problem, fact, hint=hint))
