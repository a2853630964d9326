"""Functions that remove axes: sums, means, extrema, and where those are.

`axis` is one axis, several, or None for all; `where` is a mask whose axes are among those of the array. Anonymous
dimensions are never reduced.
"""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from ..axis import AxisSelection
from ..core import Operand
from . import _lift

if TYPE_CHECKING:
    from ..array import NamedArray

__all__ = ["all", "any", "argmax", "argmin", "logsumexp", "max", "mean", "min", "prod", "ptp", "std", "sum", "var"]


def all(x: "NamedArray", axis: AxisSelection | None = None, *, where: Operand | None = None) -> "NamedArray":
    """Tell whether all elements over `axis` are true."""
    return _lift.reduction(jnp.all, x, axis, where)


def any(x: "NamedArray", axis: AxisSelection | None = None, *, where: Operand | None = None) -> "NamedArray":
    """Tell whether any element over `axis` is true."""
    return _lift.reduction(jnp.any, x, axis, where)


def argmax(x: "NamedArray", axis: AxisSelection | None = None) -> "NamedArray":
    """Return the index of the largest element over `axis`; over several axes, the index in what they flatten to."""
    return _lift.search(jnp.argmax, x, axis)


def argmin(x: "NamedArray", axis: AxisSelection | None = None) -> "NamedArray":
    """Return the index of the smallest element over `axis`; over several axes, the index in what they flatten to."""
    return _lift.search(jnp.argmin, x, axis)


def logsumexp(x: "NamedArray", axis: AxisSelection | None = None, *, where: Operand | None = None) -> "NamedArray":
    """Return the logarithm of the sum of exponentials over `axis`, without overflow."""
    return _lift.reduction(jax.nn.logsumexp, x, axis, where)


def max(
    x: "NamedArray", axis: AxisSelection | None = None, *, where: Operand | None = None, initial: float | None = None
) -> "NamedArray":
    """Return the largest element over `axis`; where no element takes part, `initial` or the dtype's lowest value."""
    return _extremum(jnp.max, x, axis, where, initial, lowest=True)


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
    return _extremum(jnp.min, x, axis, where, initial, lowest=False)


def prod(
    x: "NamedArray",
    axis: AxisSelection | None = None,
    *,
    dtype: DTypeLike | None = None,
    where: Operand | None = None,
) -> "NamedArray":
    """Return the product over `axis`; `dtype` is the one to compute and return."""
    return _lift.reduction(jnp.prod, x, axis, where, **_dtype(dtype))


def ptp(x: "NamedArray", axis: AxisSelection | None = None) -> "NamedArray":
    """Return the difference of the largest and the smallest element over `axis`."""
    return _lift.reduction(jnp.ptp, x, axis)


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
) -> "NamedArray":
    """Return the sum over `axis`; `dtype` is the one to compute and return.

    Example:
        >>> x = axn.ones((axn.Axis("batch", 2), axn.Axis("embed", 3)))
        >>> x.sum("embed")
        NamedArray(float32[batch=2])
        [3. 3.]
    """
    if dtype is None:
        return _lift.reduction(jnp.sum, x, axis, where)
    return _lift.reduction(jnp.sum, x, axis, where, dtype=dtype)


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


def _extremum(
    fn: Any, x: "NamedArray", axis: AxisSelection | None, where: Operand | None, initial: float | None, *, lowest: bool
) -> "NamedArray":
    """Reduce to an extremum; a mask needs a start value, which for want of one is the dtype's own limit."""
    if where is not None and initial is None:
        dtype = x.dtype
        if jnp.issubdtype(dtype, jnp.bool_):
            initial = not lowest
        elif jnp.issubdtype(dtype, jnp.integer):
            limits = np.iinfo(dtype)
            initial = limits.min if lowest else limits.max
        else:
            initial = -jnp.inf if lowest else jnp.inf
    return _lift.reduction(fn, x, axis, where, **({} if initial is None else {"initial": initial}))
