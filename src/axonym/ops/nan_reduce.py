"""Reductions that ignore NaN: sums, means, extrema and their indices.

They are the functions of `axonym.ops.reduce`, applied without the NaN elements, as in `numpy`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from ..axis import AxisSelection
from ..base.calls import explain_calls
from ..base.dtypes import limits
from ..engine import along, reduction
from ..engine.core import Operand
from ..engine.root import root
from .initial import At, Mask, check_initial, multiply_over, pass_dtype, refuse_empty

if TYPE_CHECKING:
    from ..array import NamedArray

__all__ = [
    "nanargmax",
    "nanargmin",
    "nanmax",
    "nanmean",
    "nanmin",
    "nanprod",
    "nanstd",
    "nansum",
    "nanvar",
]


def nanargmax(x: "NamedArray", axis: AxisSelection | None = None) -> "NamedArray":
    """Return the index of the largest number over `axis`, like `argmax`, ignoring NaN.

    Args:
        x: axes {axis, ...}.
        axis: one axis, several, or None for all.

    Returns:
        Integers with the axes of `x` except `axis`; -1 where all elements are NaN.

    Examples:
        >>> axn.nanargmax(axn.named([1.0, jnp.nan, 3.0], "i")).item()
        2
    """
    return along.search(jnp.nanargmax, x, axis)


def nanargmin(x: "NamedArray", axis: AxisSelection | None = None) -> "NamedArray":
    """Return the index of the smallest number over `axis`, like `argmin`, ignoring NaN.

    Args:
        x: axes {axis, ...}.
        axis: one axis, several, or None for all.

    Returns:
        Integers with the axes of `x` except `axis`; -1 where all elements are NaN.

    Examples:
        >>> axn.nanargmin(axn.named([1.0, jnp.nan, 3.0], "i")).item()
        0
    """
    return along.search(jnp.nanargmin, x, axis)


def nanmax(
    x: "NamedArray",
    axis: AxisSelection | None = None,
    *,
    where: Operand | None = None,
    initial: float | None = None,
) -> "NamedArray":
    """Return the maximum over `axis`, ignoring NaN.

    Args:
        x: axes {axis, ...}.
        axis: one axis, several, or None for all.
        where: a mask with axes of `x`; only elements where it is true count.
        initial: an additional element, static.

    Returns:
        The axes of `x` except `axis`; where no numbers are left, `initial` or NaN.

    Raises:
        AxisSizeError: if there are no elements and no `initial`.
        ArgumentError: if there is a mask of integers, which have no NaN, and no `initial`.

    Examples:
        >>> axn.nanmax(axn.named([1.0, jnp.nan, 3.0], "i")).item()
        3.0
    """
    return reduction.reduction(_nanmax, x, axis, where, **check_initial("nanmax", initial))


def _nanmax(x: jax.Array, axis: At, where: Mask = None, initial: float | None = None) -> jax.Array:
    return _find_extremum(jnp.nanmax, 0, x, axis, where, initial)


def _find_extremum(
    fn: Callable[..., jax.Array], end: int, x: jax.Array, axis: At, where: Mask, initial: Any
) -> jax.Array:
    # JAX wants an initial value with a mask. NaN says that no number was left, for which it has no initial value.
    if where is None or initial is not None:
        return fn(x, axis, where=where, initial=initial)
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        raise refuse_empty(fn.__name__, f"array has dtype: {x.dtype}")
    found = fn(x, axis, where=where, initial=limits(x.dtype)[end])
    return jnp.where(jnp.all(jnp.isnan(x), axis, where=where), jnp.nan, found)


def nanmean(
    x: "NamedArray",
    axis: AxisSelection | None = None,
    *,
    dtype: DTypeLike | None = None,
    where: Operand | None = None,
) -> "NamedArray":
    """Return the mean over `axis`, ignoring NaN.

    Args:
        x: axes {axis, ...}.
        axis: one axis, several, or None for all.
        dtype: the dtype to compute in and return.
        where: a mask with axes of `x`; only elements where it is true count.

    Returns:
        The axes of `x` except `axis`.

    Examples:
        >>> axn.nanmean(axn.named([1.0, jnp.nan, 3.0], "i")).item()
        2.0
    """
    return reduction.reduction(jnp.nanmean, x, axis, where, **pass_dtype(dtype))


def nanmin(
    x: "NamedArray",
    axis: AxisSelection | None = None,
    *,
    where: Operand | None = None,
    initial: float | None = None,
) -> "NamedArray":
    """Return the minimum over `axis`, ignoring NaN.

    Args:
        x: axes {axis, ...}.
        axis: one axis, several, or None for all.
        where: a mask with axes of `x`; only elements where it is true count.
        initial: an additional element, static.

    Returns:
        The axes of `x` except `axis`; where no numbers are left, `initial` or NaN.

    Raises:
        AxisSizeError: if there are no elements and no `initial`.
        ArgumentError: if there is a mask of integers, which have no NaN, and no `initial`.

    Examples:
        >>> axn.nanmin(axn.named([1.0, jnp.nan, 3.0], "i")).item()
        1.0
    """
    return reduction.reduction(_nanmin, x, axis, where, **check_initial("nanmin", initial))


def _nanmin(x: jax.Array, axis: At, where: Mask = None, initial: float | None = None) -> jax.Array:
    return _find_extremum(jnp.nanmin, 1, x, axis, where, initial)


def nanprod(
    x: "NamedArray",
    axis: AxisSelection | None = None,
    *,
    dtype: DTypeLike | None = None,
    where: Operand | None = None,
    initial: complex | None = None,
) -> "NamedArray":
    """Return the product over `axis`, ignoring NaN.

    Args:
        x: axes {axis, ...}.
        axis: one axis, several, or None for all.
        dtype: the dtype to compute in and return.
        where: a mask with axes of `x`; only elements where it is true count.
        initial: a number to multiply the product by, static.

    Returns:
        The axes of `x` except `axis`.

    Examples:
        >>> axn.nanprod(axn.named([1.0, jnp.nan, 3.0], "i")).item()
        3.0
    """
    options = {**pass_dtype(dtype), **check_initial("nanprod", initial)}
    return reduction.reduction(_nanprod, x, axis, where, **options)


def _nanprod(x: jax.Array, axis: At, where: Mask = None, **options: object) -> jax.Array:
    return multiply_over(jnp.nanprod, x, axis, where, options)


def nanstd(
    x: "NamedArray",
    axis: AxisSelection | None = None,
    *,
    dtype: DTypeLike | None = None,
    ddof: int = 0,
    where: Operand | None = None,
) -> "NamedArray":
    """Return the standard deviation over `axis`, ignoring NaN.

    Args:
        x: axes {axis, ...}.
        axis: one axis, several, or None for all.
        dtype: the dtype to compute in and return.
        ddof: a number subtracted from the count of elements, by which the sum of squares is divided.
        where: a mask with axes of `x`; only elements where it is true count.

    Returns:
        The axes of `x` except `axis`.

    Examples:
        >>> axn.nanstd(axn.named([1.0, jnp.nan, 3.0], "i")).item()
        1.0
    """
    return reduction.reduction(_nanstd, x, axis, where, ddof=ddof, **pass_dtype(dtype))


def _nanstd(x: jax.Array, axis: At, where: Mask = None, **options: Any) -> jax.Array:
    # The gradient of `jnp.nanstd` at equal elements is NaN.
    return root(jnp.nanvar(x, axis, where=where, **options))


def nansum(
    x: "NamedArray",
    axis: AxisSelection | None = None,
    *,
    dtype: DTypeLike | None = None,
    where: Operand | None = None,
    initial: complex | None = None,
) -> "NamedArray":
    """Return the sum over `axis`, ignoring NaN.

    Args:
        x: axes {axis, ...}.
        axis: one axis, several, or None for all.
        dtype: the dtype to compute in and return.
        where: a mask with axes of `x`; only elements where it is true count.
        initial: a number to add to the sum, static.

    Returns:
        The axes of `x` except `axis`.

    Examples:
        >>> axn.nansum(axn.named([1.0, jnp.nan, 3.0], "i")).item()
        4.0
    """
    options = {**pass_dtype(dtype), **check_initial("nansum", initial)}
    return reduction.reduction(jnp.nansum, x, axis, where, **options)


def nanvar(
    x: "NamedArray",
    axis: AxisSelection | None = None,
    *,
    dtype: DTypeLike | None = None,
    ddof: int = 0,
    where: Operand | None = None,
) -> "NamedArray":
    """Return the variance over `axis`, ignoring NaN.

    Args:
        x: axes {axis, ...}.
        axis: one axis, several, or None for all.
        dtype: the dtype to compute in and return.
        ddof: a number subtracted from the count of elements, by which the sum of squares is divided.
        where: a mask with axes of `x`; only elements where it is true count.

    Returns:
        The axes of `x` except `axis`.

    Examples:
        >>> axn.nanvar(axn.named([1.0, jnp.nan, 3.0], "i")).item()
        1.0
    """
    return reduction.reduction(jnp.nanvar, x, axis, where, ddof=ddof, **pass_dtype(dtype))


explain_calls(globals(), __all__)
