"""Cumulative sums, products and extrema along an axis.

Along an axis that is split over devices, each device accumulates its part; `after` combines it with the result of the
parts before.
"""

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike

from ..axis import AxisSelector
from ..base.calls import explain_calls
from ..engine import along
from ..engine.checks import Function
from ..faults.padded_sums import accumulate
from ..faults.shared_paddings import separate_padding

if TYPE_CHECKING:
    from ..array import NamedArray


__all__ = [
    "cumlogsumexp",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "cumulative_prod",
    "cumulative_sum",
    "nancumprod",
    "nancumsum",
]


Positions = tuple[int, ...]


def cumlogsumexp(x: "NamedArray", axis: AxisSelector, *, reverse: bool = False) -> "NamedArray":
    """Return the cumulative log-sum-exp along `axis`, without overflow.

    Args:
        x: axes {axis, ...}.
        axis: the axis to accumulate along.
        reverse: accumulate from the end.

    Returns:
        Floats with the axes of `x`.

    Examples:
        >>> axn.cumlogsumexp(axn.named([0.0, 0.0], "time"), "time").tolist()
        [0.0, 0.693...]
    """
    return along.along_with(_cumlogsumexp, x, axis, after=jnp.logaddexp, reverse=reverse)


def cummax(x: "NamedArray", axis: AxisSelector, *, reverse: bool = False) -> "NamedArray":
    """Return the cumulative maximum along `axis`.

    Args:
        x: axes {axis, ...}.
        axis: the axis to accumulate along.
        reverse: accumulate from the end.

    Returns:
        The axes and dtype of `x`.

    Examples:
        >>> axn.cummax(axn.named([3, 1, 4], "time"), "time").tolist()
        [3, 3, 4]
    """
    return along.along_with(_cummax, x, axis, after=jnp.maximum, reverse=reverse)


def cummin(x: "NamedArray", axis: AxisSelector, *, reverse: bool = False) -> "NamedArray":
    """Return the cumulative minimum along `axis`.

    Args:
        x: axes {axis, ...}.
        axis: the axis to accumulate along.
        reverse: accumulate from the end.

    Returns:
        The axes and dtype of `x`.

    Examples:
        >>> axn.cummin(axn.named([3, 1, 4], "time"), "time").tolist()
        [3, 1, 1]
    """
    return along.along_with(_cummin, x, axis, after=jnp.minimum, reverse=reverse)


def cumprod(
    x: "NamedArray", axis: AxisSelector, dtype: DTypeLike | None = None, *, reverse: bool = False
) -> "NamedArray":
    """Return the cumulative product along `axis`.

    Args:
        x: axes {axis, ...}.
        axis: the axis to accumulate along.
        dtype: the dtype to compute in and return.
        reverse: accumulate from the end, which `jnp.cumprod` cannot.

    Returns:
        The axes of `x`.

    Examples:
        >>> axn.cumprod(axn.named([1, 2, 3], "time"), "time").tolist()
        [1, 2, 6]
    """
    if dtype is None and not reverse:
        return along.along(_cumprod, x, axis, jnp.multiply)
    return along.along_with(_cumprod, x, axis, after=jnp.multiply, dtype=dtype, reverse=reverse)


def cumsum(
    x: "NamedArray", axis: AxisSelector, dtype: DTypeLike | None = None, *, reverse: bool = False
) -> "NamedArray":
    """Return the cumulative sum along `axis`.

    Args:
        x: axes {axis, ...}.
        axis: the axis to accumulate along.
        dtype: the dtype to compute in and return.
        reverse: accumulate from the end, as for the returns of an episode of rewards; `jnp.cumsum` cannot.

    Returns:
        The axes of `x`.

    Examples:
        >>> axn.cumsum(axn.named([1, 2, 3], "time"), "time", reverse=True)
        NamedArray(int32[time=3])
        [6 5 3]
    """
    if dtype is None and not reverse:
        return along.along(_cumsum, x, axis, jnp.add)
    return along.along_with(_cumsum, x, axis, after=jnp.add, dtype=dtype, reverse=reverse)


def cumulative_prod(
    x: "NamedArray",
    axis: AxisSelector,
    *,
    dtype: DTypeLike | None = None,
    include_initial: bool = False,
) -> "NamedArray":
    """Return `cumprod`; with `include_initial`, after an additional first element of one.

    Args:
        x: axes {axis, ...}.
        axis: the axis to accumulate along.
        dtype: the dtype to compute in and return.
        include_initial: start with one; the axis is then one longer.

    Returns:
        The axes of `x`.

    Examples:
        >>> axn.cumulative_prod(axn.named([2, 3], "time"), "time", include_initial=True).tolist()
        [1, 2, 6]
    """
    # With one element more, the result does not divide into the parts of the devices.
    after = None if include_initial else jnp.multiply
    return along.along_with(
        _cumulative_prod,
        x,
        axis,
        gathers=include_initial,
        after=after,
        dtype=dtype,
        include_initial=include_initial,
    )


def cumulative_sum(
    x: "NamedArray",
    axis: AxisSelector,
    *,
    dtype: DTypeLike | None = None,
    include_initial: bool = False,
) -> "NamedArray":
    """Return `cumsum`; with `include_initial`, after an additional first element of zero, as for offsets.

    Args:
        x: axes {axis, ...}.
        axis: the axis to accumulate along.
        dtype: the dtype to compute in and return.
        include_initial: start with zero; the axis is then one longer.

    Returns:
        The axes of `x`.

    Examples:
        >>> lengths = axn.named([3, 1, 2], "document")
        >>> axn.cumulative_sum(lengths, "document", include_initial=True)
        NamedArray(int32[document=4])
        [0 3 4 6]
    """
    after = None if include_initial else jnp.add  # as in cumulative_prod
    return along.along_with(
        _cumulative_sum,
        x,
        axis,
        gathers=include_initial,
        after=after,
        dtype=dtype,
        include_initial=include_initial,
    )


def nancumprod(x: "NamedArray", axis: AxisSelector, dtype: DTypeLike | None = None) -> "NamedArray":
    """Return `cumprod` with NaN counted as one.

    Args:
        x: axes {axis, ...}.
        axis: the axis to accumulate along.
        dtype: the dtype to compute in and return.

    Returns:
        The axes of `x`.

    Examples:
        >>> axn.nancumprod(axn.named([2.0, jnp.nan, 3.0], "time"), "time").tolist()
        [2.0, 2.0, 6.0]
    """
    return along.along_with(_nancumprod, x, axis, after=jnp.multiply, dtype=dtype)


def nancumsum(x: "NamedArray", axis: AxisSelector, dtype: DTypeLike | None = None) -> "NamedArray":
    """Return `cumsum` with NaN counted as zero.

    Args:
        x: axes {axis, ...}.
        axis: the axis to accumulate along.
        dtype: the dtype to compute in and return.

    Returns:
        The axes of `x`.

    Examples:
        >>> axn.nancumsum(axn.named([2.0, jnp.nan, 3.0], "time"), "time").tolist()
        [2.0, 2.0, 5.0]
    """
    return along.along_with(_nancumsum, x, axis, after=jnp.add, dtype=dtype)


def _accumulate_backwards(
    fn: Function, forwards: Function, array: jax.Array, axis: int, dtype: DTypeLike | None
) -> jax.Array:
    """Apply a function of `jax.lax` from the end, in the dtype of its `jax.numpy` twin, which cannot run backwards."""
    # JAX alone knows to which dtype it promotes; asking it computes nothing.
    like = jax.ShapeDtypeStruct((1,), array.dtype)
    wanted = jax.eval_shape(partial(forwards, axis=0, dtype=dtype), like).dtype
    if wanted == np.bool_:
        # Convert to booleans first: as numbers, 1 and -1 would cancel.
        count: jax.Array = fn((array != 0).astype(int), axis % array.ndim, reverse=True)
        return count.astype(bool)
    numbers = lax.convert_element_type(array, wanted)
    result: jax.Array = fn(numbers, axis % array.ndim, reverse=True)
    return result


def _cumlogsumexp(array: jax.Array, axis: int, reverse: bool) -> jax.Array:
    if not jnp.issubdtype(array.dtype, jnp.inexact):
        array = array.astype(jnp.result_type(float))
    return lax.cumlogsumexp(separate_padding(array), axis % array.ndim, reverse)


def _cummax(array: jax.Array, axis: int, reverse: bool) -> jax.Array:
    return _accumulate_numbers(lax.cummax, array, axis, reverse)


def _cummin(array: jax.Array, axis: int, reverse: bool) -> jax.Array:
    return _accumulate_numbers(lax.cummin, array, axis, reverse)


def _accumulate_numbers(fn: Function, array: jax.Array, axis: int, reverse: bool) -> jax.Array:
    """Apply a function of `jax.lax` that takes no booleans."""
    # 0 and 1 have the order of booleans.
    if array.dtype == bool:
        return _accumulate_numbers(fn, array.astype(jnp.int8), axis, reverse).astype(bool)
    result: jax.Array = fn(separate_padding(array), axis % array.ndim, reverse)
    return result


def _cumprod(
    array: jax.Array, axis: int, dtype: DTypeLike | None = None, reverse: bool = False
) -> jax.Array:
    array = separate_padding(array)
    if reverse:
        return _accumulate_backwards(lax.cumprod, jnp.cumprod, array, axis, dtype)
    return jnp.cumprod(array, axis, dtype)


def _cumsum(
    array: jax.Array, axis: int, dtype: DTypeLike | None = None, reverse: bool = False
) -> jax.Array:
    def cumsum(array: jax.Array) -> jax.Array:
        if reverse:
            return _accumulate_backwards(lax.cumsum, jnp.cumsum, array, axis, dtype)
        return jnp.cumsum(array, axis, dtype)

    return accumulate(cumsum, array, axis, reverse=reverse)


def _cumulative_prod(array: jax.Array, axis: int, **options: Any) -> jax.Array:
    return jnp.cumulative_prod(separate_padding(array), axis=axis, **options)


def _cumulative_sum(
    array: jax.Array, axis: int, include_initial: bool = False, **options: Any
) -> jax.Array:
    # The first element is added outside: `accumulate` handles scans whose result is as long as their operand.
    sums = accumulate(lambda x: jnp.cumulative_sum(x, axis=axis, **options), array, axis)
    if not include_initial:
        return sums
    if not array.shape[axis]:  # there is no sum to take the layout of the first element from
        return jnp.cumulative_sum(array, axis=axis, include_initial=True, **options)
    zero = jnp.zeros_like(lax.slice_in_dim(sums, 0, 1, axis=axis))
    return jnp.concatenate([zero, sums], axis)


def _nancumprod(array: jax.Array, axis: int, dtype: DTypeLike | None) -> jax.Array:
    return jnp.nancumprod(separate_padding(array), axis, dtype)


def _nancumsum(array: jax.Array, axis: int, dtype: DTypeLike | None) -> jax.Array:
    return accumulate(lambda x: jnp.nancumsum(x, axis, dtype), array, axis)


explain_calls(globals(), __all__)
