"""Functions that remove axes: sums, means, extrema and their indices.

`axis` is one axis, several, or None for all; `where` is a mask whose axes are among those of the array. Anonymous
dimensions are never reduced. `axonym.ops.nan_reduce` has the variants that ignore NaN.
"""

import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from ..axis import AxisSelection
from ..base.calls import explain_calls
from ..base.dtypes import limits, match_ranks, to_inexact
from ..base.kinds import type_text
from ..engine import along, reduction
from ..engine.core import Core, Operand, facts
from ..engine.root import root
from ..errors import OperandError, message
from ..faults.lost_nan import find_max, find_min, restore_nan
from .initial import At, Mask, check_initial, multiply_over, pass_dtype, refuse_empty

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
    "prod",
    "ptp",
    "std",
    "sum",
    "var",
]


def all(
    x: "NamedArray", axis: AxisSelection | None = None, *, where: Operand | None = None
) -> "NamedArray":
    """Test whether all elements over `axis` are true.

    Args:
        x: axes {axis, ...}.
        axis: one axis, several, or None for all.
        where: a mask with axes of `x`; only elements where it is true count.

    Returns:
        Booleans with the axes of `x` except `axis`.

    Examples:
        >>> axn.all(axn.named([[True, False], [True, True]], ("row", "column")), "column").tolist()
        [False, True]
    """
    return reduction.reduction(jnp.all, x, axis, where)


def any(
    x: "NamedArray", axis: AxisSelection | None = None, *, where: Operand | None = None
) -> "NamedArray":
    """Test whether any element over `axis` is true.

    Args:
        x: axes {axis, ...}.
        axis: one axis, several, or None for all.
        where: a mask with axes of `x`; only elements where it is true count.

    Returns:
        Booleans with the axes of `x` except `axis`.

    Examples:
        >>> axn.any(axn.named([[False, False], [True, False]], ("row", "column")), "column").tolist()
        [False, True]
    """
    return reduction.reduction(jnp.any, x, axis, where)


def argmax(x: "NamedArray", axis: AxisSelection | None = None) -> "NamedArray":
    """Return the index of the largest element over `axis`.

    Over several axes, it is the index into these axes flattened in the given order; None means all, in storage order.

    Args:
        x: axes {axis, ...}.
        axis: one axis, several, or None for all.

    Returns:
        Integers with the axes of `x` except `axis`.

    Examples:
        >>> axn.argmax(axn.named([[3, 1, 4], [5, 9, 2]], ("row", "column")), "column").tolist()
        [2, 1]
    """
    return along.search(jnp.argmax, x, axis)


def argmin(x: "NamedArray", axis: AxisSelection | None = None) -> "NamedArray":
    """Return the index of the smallest element over `axis`.

    Over several axes, it is the index into these axes flattened in the given order; None means all, in storage order.

    Args:
        x: axes {axis, ...}.
        axis: one axis, several, or None for all.

    Returns:
        Integers with the axes of `x` except `axis`.

    Examples:
        >>> axn.argmin(axn.named([[3, 1, 4], [5, 9, 2]], ("row", "column")), "column").tolist()
        [1, 2]
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

    Returns:
        The axes of `x` except `axis`.

    Raises:
        OperandError: if `weights` has no names.

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
    """Average, by weights if they are given."""
    # The weights come as the mask, which the engine aligns by name: axes that they lack have size 1.
    if where is None:
        return jnp.mean(x, axis)
    # Sums of integers could overflow.
    if not jnp.issubdtype(x.dtype, jnp.inexact) and not jnp.issubdtype(where.dtype, jnp.inexact):
        return _average(to_inexact(x), axis, to_inexact(where))
    x, weights = match_ranks(x, where)
    # Along an axis that they lack, each weight counts for all elements.
    copies = math.prod(x.shape[at] for at in axis if weights.shape[at] == 1)
    total = jnp.sum(weights, axis) * copies
    return jnp.sum(x * weights, axis) / total


def count_nonzero(x: "NamedArray", axis: AxisSelection | None = None) -> "NamedArray":
    """Count the nonzero elements over `axis`.

    Args:
        x: axes {axis, ...}.
        axis: one axis, several, or None for all.

    Returns:
        Integers with the axes of `x` except `axis`.

    Examples:
        >>> axn.count_nonzero(axn.named([0, 7, 8], "i")).item()
        2
    """
    return reduction.reduction(jnp.count_nonzero, x, axis)


def logmeanexp(
    x: "NamedArray", axis: AxisSelection | None = None, *, where: Operand | None = None
) -> "NamedArray":
    """Return the logarithm of the mean of exponentials over `axis`, without overflow.

    Args:
        x: axes {axis, ...}.
        axis: one axis, several, or None for all.
        where: a mask with axes of `x`; only elements where it is true count.

    Returns:
        The axes of `x` except `axis`.

    Examples:
        >>> axn.logmeanexp(axn.named([1000.0, 1000.0], "i")).item()
        1000.0
    """
    return reduction.reduction(jax.nn.logmeanexp, x, axis, where)


def logsumexp(
    x: "NamedArray", axis: AxisSelection | None = None, *, where: Operand | None = None
) -> "NamedArray":
    """Return the logarithm of the sum of exponentials over `axis`, without overflow.

    Args:
        x: axes {axis, ...}.
        axis: one axis, several, or None for all.
        where: a mask with axes of `x`; only elements where it is true count.

    Returns:
        The axes of `x` except `axis`.

    Examples:
        >>> axn.logsumexp(axn.named([0.0, 0.0], "i")).item()
        0.693...
    """
    return reduction.reduction(jax.nn.logsumexp, x, axis, where)


def max(
    x: "NamedArray",
    axis: AxisSelection | None = None,
    *,
    where: Operand | None = None,
    initial: float | None = None,
) -> "NamedArray":
    """Return the maximum over `axis`, NaN if there is one.

    Args:
        x: axes {axis, ...}.
        axis: one axis, several, or None for all.
        where: a mask with axes of `x`; only elements where it is true count.
        initial: an additional element, static; required with `where`, since a mask might include no elements.

    Returns:
        The axes of `x` except `axis`.

    Raises:
        AxisSizeError: if there are no elements and no `initial`.
        ArgumentError: if there is a mask and no `initial`.

    Examples:
        >>> axn.max(axn.named([[3, 1], [4, 2]], ("row", "column")), "row").tolist()
        [4, 2]
    """
    _require_initial("max", x, where, initial)
    return reduction.reduction(_max, x, axis, where, **check_initial("max", initial))


def _max(x: jax.Array, axis: At, where: Mask = None, initial: float | None = None) -> jax.Array:
    return find_max(x, axis, where=where, initial=_as_dtype(initial, x.dtype))


def mean(
    x: "NamedArray",
    axis: AxisSelection | None = None,
    *,
    dtype: DTypeLike | None = None,
    where: Operand | None = None,
) -> "NamedArray":
    """Return the mean over `axis`.

    Args:
        x: axes {axis, ...}.
        axis: one axis, several, or None for all.
        dtype: the dtype to compute in and return.
        where: a mask with axes of `x`; only elements where it is true count.

    Returns:
        The axes of `x` except `axis`.

    Examples:
        >>> axn.mean(axn.named([[1., 3.], [2., 6.]], ("batch", "embed")), "embed").tolist()
        [2.0, 4.0]
    """
    return reduction.reduction(jnp.mean, x, axis, where, **pass_dtype(dtype))


def min(
    x: "NamedArray",
    axis: AxisSelection | None = None,
    *,
    where: Operand | None = None,
    initial: float | None = None,
) -> "NamedArray":
    """Return the minimum over `axis`, NaN if there is one.

    Args:
        x: axes {axis, ...}.
        axis: one axis, several, or None for all.
        where: a mask with axes of `x`; only elements where it is true count.
        initial: an additional element, static; required with `where`, since a mask might include no elements.

    Returns:
        The axes of `x` except `axis`.

    Raises:
        AxisSizeError: if there are no elements and no `initial`.
        ArgumentError: if there is a mask and no `initial`.

    Examples:
        >>> axn.min(axn.named([[3, 1], [4, 2]], ("row", "column")), "row").tolist()
        [3, 1]
    """
    _require_initial("min", x, where, initial)
    return reduction.reduction(_min, x, axis, where, **check_initial("min", initial))


def _min(x: jax.Array, axis: At, where: Mask = None, initial: float | None = None) -> jax.Array:
    return find_min(x, axis, where=where, initial=_as_dtype(initial, x.dtype))


def prod(
    x: "NamedArray",
    axis: AxisSelection | None = None,
    *,
    dtype: DTypeLike | None = None,
    where: Operand | None = None,
    initial: complex | None = None,
) -> "NamedArray":
    """Return the product over `axis`.

    Args:
        x: axes {axis, ...}.
        axis: one axis, several, or None for all.
        dtype: the dtype to compute in and return.
        where: a mask with axes of `x`; only elements where it is true count.
        initial: a number to multiply the product by, static.

    Returns:
        The axes of `x` except `axis`.

    Examples:
        >>> axn.prod(axn.named([2, 3, 4], "i")).item()
        24
    """
    return reduction.reduction(
        _prod, x, axis, where, **pass_dtype(dtype), **check_initial("prod", initial)
    )


def _prod(x: jax.Array, axis: At, where: Mask = None, **options: object) -> jax.Array:
    return multiply_over(jnp.prod, x, axis, where, options)


def ptp(
    x: "NamedArray",
    axis: AxisSelection | None = None,
    *,
    where: Operand | None = None,
    initial: float | None = None,
) -> "NamedArray":
    """Return the maximum minus the minimum over `axis`.

    Args:
        x: axes {axis, ...}.
        axis: one axis, several, or None for all.
        where: a mask with axes of `x`; only elements where it is true count.
        initial: an additional element, static; required with `where`, since a mask might include no elements.

    Returns:
        The axes of `x` except `axis`.

    Raises:
        AxisSizeError: if there are no elements and no `initial`.
        ArgumentError: if there is a mask and no `initial`.

    Examples:
        >>> axn.ptp(axn.named([3, 1, 4], "i")).item()
        3
    """
    _require_initial("ptp", x, where, initial)
    return reduction.reduction(_ptp, x, axis, where, **check_initial("ptp", initial))


def _ptp(x: jax.Array, axis: At, where: Mask = None, initial: float | None = None) -> jax.Array:
    # `jnp.ptp` takes neither a mask nor an initial value.
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
    """Return the standard deviation over `axis`.

    Equal elements give zero, with a gradient of zero, which is one of the subgradients; the gradient of `jnp.std` is
    NaN.

    Args:
        x: axes {axis, ...}.
        axis: one axis, several, or None for all.
        dtype: the dtype to compute in and return.
        ddof: a number subtracted from the count of elements, by which the sum of squares is divided.
        where: a mask with axes of `x`; only elements where it is true count.

    Returns:
        The axes of `x` except `axis`.

    Examples:
        >>> axn.std(axn.named([1.0, 3.0], "i")).item()
        1.0
    """
    return reduction.reduction(_std, x, axis, where, ddof=ddof, **pass_dtype(dtype))


def _std(x: jax.Array, axis: At, where: Mask = None, **options: Any) -> jax.Array:
    # The slope of `jnp.sqrt` at zero is infinite, that of `root` is zero.
    return root(jnp.var(x, axis, where=where, **options))


def sum(
    x: "NamedArray",
    axis: AxisSelection | None = None,
    *,
    dtype: DTypeLike | None = None,
    where: Operand | None = None,
    initial: complex | None = None,
) -> "NamedArray":
    """Return the sum over `axis`.

    Args:
        x: axes {axis, ...}.
        axis: one axis, several, or None for all.
        dtype: the dtype to compute in and return.
        where: a mask with axes of `x`; only elements where it is true count.
        initial: a number to add to the sum, static.

    Returns:
        The axes of `x` except `axis`.

    Examples:
        >>> x = axn.ones((axn.Axis("batch", 2), axn.Axis("embed", 3)))
        >>> x.sum("embed")
        NamedArray(float32[batch=2])
        [3. 3.]
    """
    if dtype is None and initial is None:  # the most frequent reduction, without two calls
        return reduction.reduction(jnp.sum, x, axis, where)
    return reduction.reduction(
        jnp.sum, x, axis, where, **pass_dtype(dtype), **check_initial("sum", initial)
    )


def var(
    x: "NamedArray",
    axis: AxisSelection | None = None,
    *,
    dtype: DTypeLike | None = None,
    ddof: int = 0,
    where: Operand | None = None,
) -> "NamedArray":
    """Return the variance over `axis`: the mean of squared differences from the mean.

    Args:
        x: axes {axis, ...}.
        axis: one axis, several, or None for all.
        dtype: the dtype to compute in and return.
        ddof: a number subtracted from the count of elements, by which the sum of squares is divided.
        where: a mask with axes of `x`; only elements where it is true count.

    Returns:
        The axes of `x` except `axis`.

    Examples:
        >>> axn.var(axn.named([1.0, 3.0], "i"), ddof=1).item()
        2.0
    """
    return reduction.reduction(jnp.var, x, axis, where, ddof=ddof, **pass_dtype(dtype))


def _as_dtype(initial: float | None, dtype: np.dtype[Any]) -> Any:
    """Give an int the dtype of the array, since JAX refuses ints of more than 31 bits."""
    if type(initial) is not int or not jnp.issubdtype(dtype, jnp.integer):
        return initial
    lowest, highest = limits(dtype)
    # JAX refuses what does not fit.
    return dtype.type(initial) if lowest <= initial <= highest else initial


def _require_initial(function: str, x: object, where: object, initial: object) -> None:
    """Check that a masked extremum has an initial value, since the mask may include no element."""
    if where is not None and initial is None and isinstance(x, Core):
        raise refuse_empty(function, f"array has: {facts(x)}")


explain_calls(globals(), __all__)
