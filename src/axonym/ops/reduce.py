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
from ..errors import ArgumentError, OperandError, message
from . import _lift
from ._extremum import highest, lowest, with_nan
from ._root import root
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
    """Return the maximum over `axis`, and of `initial`, which `where` needs: it might include no elements.

    Raises:
        AxisSizeError: if there are no elements and no `initial`.
        ArgumentError: if there is a mask and no `initial`.
    """
    _check_start("max", x, where, initial)
    return _lift.reduction(_max, x, axis, where, **_start("max", initial))


def _max(x: jax.Array, axis: tuple[int, ...], where: Any = None, initial: Any = None) -> jax.Array:
    return highest(x, axis, where=where, initial=_typed(initial, x.dtype))


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
    """Return the minimum over `axis`, and of `initial`, which `where` needs: it might include no elements.

    Raises:
        AxisSizeError: if there are no elements and no `initial`.
        ArgumentError: if there is a mask and no `initial`.
    """
    _check_start("min", x, where, initial)
    return _lift.reduction(_min, x, axis, where, **_start("min", initial))


def _min(x: jax.Array, axis: tuple[int, ...], where: Any = None, initial: Any = None) -> jax.Array:
    return lowest(x, axis, where=where, initial=_typed(initial, x.dtype))


def nanargmax(x: "NamedArray", axis: AxisSelection | None = None) -> "NamedArray":
    """Return the index of the largest number over `axis`, like `argmax`; -1 if all elements are NaN."""
    return _lift.search(jnp.nanargmax, x, axis)


def nanargmin(x: "NamedArray", axis: AxisSelection | None = None) -> "NamedArray":
    """Return the index of the smallest number over `axis`, like `argmin`; -1 if all elements are NaN."""
    return _lift.search(jnp.nanargmin, x, axis)


def nanmax(
    x: "NamedArray", axis: AxisSelection | None = None, *, where: Operand | None = None, initial: float | None = None
) -> "NamedArray":
    """Return the maximum over `axis`, ignoring NaN; if no numbers are left, `initial` or NaN.

    Raises:
        AxisSizeError: if there are no elements and no `initial`.
        ArgumentError: if there is a mask of integers, which have no NaN, and no `initial`.
    """
    return _lift.reduction(_nanmax, x, axis, where, **_start("nanmax", initial))


def _nanmax(x: jax.Array, axis: tuple[int, ...], where: Any = None, initial: Any = None) -> jax.Array:
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
    return _lift.reduction(jnp.nanmean, x, axis, where, **_dtype(dtype))


def nanmin(
    x: "NamedArray", axis: AxisSelection | None = None, *, where: Operand | None = None, initial: float | None = None
) -> "NamedArray":
    """Return the minimum over `axis`, ignoring NaN; if no numbers are left, `initial` or NaN.

    Raises:
        AxisSizeError: if there are no elements and no `initial`.
        ArgumentError: if there is a mask of integers, which have no NaN, and no `initial`.
    """
    return _lift.reduction(_nanmin, x, axis, where, **_start("nanmin", initial))


def _nanmin(x: jax.Array, axis: tuple[int, ...], where: Any = None, initial: Any = None) -> jax.Array:
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
    return _lift.reduction(_nanstd, x, axis, where, ddof=ddof, **_dtype(dtype))


def _nanstd(x: jax.Array, axis: tuple[int, ...], where: Any = None, **options: Any) -> jax.Array:
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


def ptp(
    x: "NamedArray", axis: AxisSelection | None = None, *, where: Operand | None = None, initial: float | None = None
) -> "NamedArray":
    """Return the maximum minus the minimum over `axis`; `initial` is an element more, which `where` needs.

    Raises:
        AxisSizeError: if there are no elements and no `initial`.
        ArgumentError: if there is a mask and no `initial`.
    """
    _check_start("ptp", x, where, initial)
    return _lift.reduction(_ptp, x, axis, where, **_start("ptp", initial))


def _ptp(x: jax.Array, axis: tuple[int, ...], where: Any = None, initial: Any = None) -> jax.Array:
    if initial is None:
        return with_nan(jnp.ptp(x, axis), x, axis)
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
    return _lift.reduction(_std, x, axis, where, ddof=ddof, **_dtype(dtype))


def _std(x: jax.Array, axis: tuple[int, ...], where: Any = None, **options: Any) -> jax.Array:
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
        join = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum", "ptp": "maximum"}[
            function.removeprefix("nan")
        ]
        problem = f"initial must be a number, not {type(initial).__name__}"
        raise OperandError(message(function, problem, hint=f"join it to the result: axn.{join}(result, initial)"))
    return {"initial": initial}


def _typed(initial: Any, dtype: Any) -> Any:
    """Give an int the dtype of the array, since JAX takes none of more than 31 bits."""
    if type(initial) is not int or not jnp.issubdtype(dtype, jnp.integer):
        return initial
    lowest, highest = limits(dtype)
    return jnp.dtype(dtype).type(initial) if lowest <= initial <= highest else initial


def _check_start(function: str, x: Any, where: Any, initial: Any) -> None:
    """Check that an extremum of elements that a mask includes, perhaps none, has an initial value."""
    if where is not None and initial is None and isinstance(x, Core):
        raise _without_start(function, f"array has: {facts(x)}")


def _without_start(function: str, fact: str) -> ArgumentError:
    problem = f"there is no {function} of no elements, and the mask might include none"
    return ArgumentError(message(function, problem, fact, hint="give a value to start from: initial=..."))
