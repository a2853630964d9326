"""Functions along an axis that keep it: softmax, cumulative sums, reversing, rolling and rotating, packing bits.

The axis stays where it is and keeps its name, also where its size changes.
"""

import operator
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike

from .. import plans
from ..axis import AxisSelection, AxisSelector, selection
from ..core import Core, Operand, facts
from ..errors import ArgumentError, OperandError, message
from . import _lift, reduce
from ._batch import batched, hashable
from ._padded import summed

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
    "flip",
    "log_softmax",
    "nancumprod",
    "nancumsum",
    "packbits",
    "roll",
    "rot90",
    "softmax",
    "standardize",
    "unpackbits",
]

Positions = tuple[int, ...]


def cumlogsumexp(x: "NamedArray", axis: AxisSelector, *, reverse: bool = False) -> "NamedArray":
    """Return the cumulative log-sum-exp along `axis`, without overflow.

    Args:
        x: axes {axis, ...}.
        axis: the axis to accumulate along.
        reverse: accumulate from the end.
    """
    return _lift.along_with(_cumlogsumexp, x, axis, reverse=reverse)


def cummax(x: "NamedArray", axis: AxisSelector, *, reverse: bool = False) -> "NamedArray":
    """Return the cumulative maximum along `axis`, from the end if `reverse`."""
    return _lift.along_with(_cummax, x, axis, reverse=reverse)


def cummin(x: "NamedArray", axis: AxisSelector, *, reverse: bool = False) -> "NamedArray":
    """Return the cumulative minimum along `axis`, from the end if `reverse`."""
    return _lift.along_with(_cummin, x, axis, reverse=reverse)


def cumprod(
    x: "NamedArray", axis: AxisSelector, dtype: DTypeLike | None = None, *, reverse: bool = False
) -> "NamedArray":
    """Return the cumulative product along `axis`, from the end if `reverse`."""
    if dtype is None and not reverse:
        return _lift.along(jnp.cumprod, x, axis)
    return _lift.along_with(_cumprod, x, axis, dtype=dtype, reverse=reverse)


def cumsum(
    x: "NamedArray", axis: AxisSelector, dtype: DTypeLike | None = None, *, reverse: bool = False
) -> "NamedArray":
    """Return the cumulative sum along `axis`.

    Args:
        x: axes {axis, ...}.
        axis: the axis to accumulate along.
        dtype: the dtype to compute in and return.
        reverse: accumulate from the end, as for the returns of an episode of rewards.

    Example:
        >>> axn.cumsum(axn.named([1, 2, 3], "time"), "time", reverse=True)
        NamedArray(int32[time=3])
        [6 5 3]
    """
    if dtype is None and not reverse:
        return _lift.along(_cumsum, x, axis)
    return _lift.along_with(_cumsum, x, axis, dtype=dtype, reverse=reverse)


def cumulative_prod(
    x: "NamedArray", axis: AxisSelector, *, dtype: DTypeLike | None = None, include_initial: bool = False
) -> "NamedArray":
    """Return `cumprod`; with `include_initial`, after an additional first element of one."""
    return _lift.along_with(jnp.cumulative_prod, x, axis, dtype=dtype, include_initial=include_initial)


def cumulative_sum(
    x: "NamedArray", axis: AxisSelector, *, dtype: DTypeLike | None = None, include_initial: bool = False
) -> "NamedArray":
    """Return `cumsum`; with `include_initial`, after an additional first element of zero, as for offsets.

    Example:
        >>> lengths = axn.named([3, 1, 2], "document")
        >>> axn.cumulative_sum(lengths, "document", include_initial=True)
        NamedArray(int32[document=4])
        [0 3 4 6]
    """
    return _lift.along_with(_cumulative_sum, x, axis, dtype=dtype, include_initial=include_initial)


def flip(x: "NamedArray", axis: AxisSelection | None = None) -> "NamedArray":
    """Reverse the order of elements along `axis`: one axis, several, or None for all."""
    return _lift.normalization(_flip, x, axis)


def log_softmax(x: "NamedArray", axis: AxisSelection | None = None, *, where: Operand | None = None) -> "NamedArray":
    """Return the logarithm of `softmax`; arguments and errors are the same."""
    _check_chosen("log_softmax", x, axis)
    return _lift.normalization(jax.nn.log_softmax, x, axis, where)


def nancumprod(x: "NamedArray", axis: AxisSelector, dtype: DTypeLike | None = None) -> "NamedArray":
    """Return `cumprod` with NaN counted as one."""
    return _lift.along_with(jnp.nancumprod, x, axis, dtype=dtype)


def nancumsum(x: "NamedArray", axis: AxisSelector, dtype: DTypeLike | None = None) -> "NamedArray":
    """Return `cumsum` with NaN counted as zero."""
    return _lift.along_with(_nancumsum, x, axis, dtype=dtype)


def packbits(x: "NamedArray", axis: AxisSelector, *, bitorder: str = "big") -> "NamedArray":
    """Pack every eight elements along `axis` into the bits of a byte; the last byte is padded with zeros.

    Args:
        x: booleans, or integers, of which all but zero count as true; axes {axis, ...}.
        axis: the axis to pack; its size is divided by eight and rounded up.
        bitorder: whether the first element is the highest bit ("big") or the lowest ("little").
    """
    return _lift.along_with(_packbits, x, axis, bitorder=_order_of_bits("packbits", bitorder))


def roll(x: "NamedArray", shift: Operand | Sequence[Operand], axis: AxisSelection) -> "NamedArray":
    """Shift elements along `axis`; those shifted beyond the end reappear at the start.

    A Python int is static: each value compiles its own program. An array may be traced, and may have other axes of
    `x`, each position of which is then shifted by its own amount.

    Args:
        x: axes {axis, ...}.
        shift: one number of positions for all axes, or a sequence with one for each.
        axis: one axis or several.

    Raises:
        ArgumentError: if the number of shifts is not that of the axes.
        OperandError: if a shift is not an integer.

    Example:
        >>> x = axn.named([[0, 1, 2], [3, 4, 5]], ("batch", "time"))
        >>> axn.roll(x, axn.named([0, 1], "batch"), "time")
        NamedArray(int32[batch=2, time=3])
        [[0 1 2]
         [5 3 4]]
    """
    axis = hashable(axis, "roll")
    axes = selection(axis, "roll")
    shifts = tuple(shift) if isinstance(shift, Sequence) else (shift,) * len(axes)
    if len(shifts) != len(axes):
        names = ", ".join(name for name, _ in axes)
        raise ArgumentError(message("roll", f"{len(shifts)} shifts for {len(axes)} axes", f"axes: {names}"))
    if all(isinstance(each, int | np.integer) for each in shifts):
        return _lift.normalization(_with(_roll, shift=shifts), x, axis)
    if not isinstance(x, Core):
        raise _lift.unnamed("roll", x)
    out = tuple(name for name, _ in axes)
    return batched(_roll, [x, *shifts], [axis, *[()] * len(shifts)], out, each=True, in_place=True)


def rot90(x: "NamedArray", axis1: AxisSelector, axis2: AxisSelector, k: int = 1) -> "NamedArray":
    """Rotate values by `k` right angles in the plane of two axes, from `axis1` towards `axis2`.

    Names stay and values move: counterclockwise, if `axis1` points down and `axis2` to the right, as for the rows and
    columns of an image. If `k` is odd, the two axes exchange their sizes.

    Example:
        >>> axn.rot90(axn.named([[1, 2, 3], [4, 5, 6]], ("row", "column")), "row", "column")
        NamedArray(int32[row=3, column=2])
        [[3 6]
         [2 5]
         [1 4]]
    """
    return _lift.normalization(_with(_rot90, k=operator.index(k) % 4), x, (axis1, axis2))


def softmax(x: "NamedArray", axis: AxisSelection | None = None, *, where: Operand | None = None) -> "NamedArray":
    """Return exponentials divided by their sum over `axis`: positive numbers that sum to one.

    Args:
        x: axes {axis, ...}.
        axis: one axis, or several; for all, write `x.names`.
        where: axes among those of `x`; the elements to include; the others become zero.

    Raises:
        OperandError: without an axis.
    """
    _check_chosen("softmax", x, axis)
    return _lift.normalization(_softmax, x, axis, where)


def standardize(
    x: "NamedArray",
    axis: AxisSelection | None = None,
    *,
    mean: Operand | None = None,
    variance: Operand | None = None,
    epsilon: float = 1e-5,
    where: Operand | None = None,
) -> "NamedArray":
    """Shift and scale elements so that over `axis` their mean is zero and their variance one.

    The variance is the mean of squared differences from the mean, in two passes, which avoids cancellation.

    Args:
        x: axes {axis, ...}.
        axis: one axis, or several; for all, write `x.names`.
        mean: the mean, if already known; axes among those of `x`.
        variance: the variance, if already known; axes among those of `x`.
        epsilon: a number added to the variance.
        where: axes among those of `x`; the elements to include in the mean and the variance.

    Raises:
        OperandError: without an axis.
    """
    _check_chosen("standardize", x, axis)
    if mean is None and variance is None and isinstance(epsilon, int | float):
        return _lift.normalization(_standardize, x, axis, where, epsilon)
    axis = None if axis is None else hashable(axis, "standardize")
    if mean is None:
        mean = reduce.mean(x, axis, where=where)
    if variance is None:
        variance = reduce.mean(_lift.binary(_squared_distance, x, mean), axis, where=where)
    return _lift.nary(_standardize, x, mean, variance, epsilon)


def unpackbits(x: "NamedArray", axis: AxisSelector, *, count: int | None = None, bitorder: str = "big") -> "NamedArray":
    """Unpack each byte along `axis` to eight zeros or ones: the inverse of `packbits`.

    Args:
        x: bytes (uint8); axes {axis, ...}.
        axis: the axis to unpack, whose size becomes `count`.
        count: how many bits to keep, None for all; if negative, how many to drop.
        bitorder: as for `packbits`.
    """
    return _lift.along_with(_unpackbits, x, axis, count=count, bitorder=_order_of_bits("unpackbits", bitorder))


def _check_chosen(function: str, x: Any, axis: Any) -> None:
    """Check that the axes to normalise over were given: over all, elements of a batch would see each other."""
    if axis is not None or not isinstance(x, Core):
        return
    example = repr(x.names[-1]).replace("'", '"') if x.names else "..."
    problem = "say over which axis: without one, elements of a batch would be normalised together"
    hint = f"write {function}(x, {example}); for all axes, {function}(x, x.names)"
    raise OperandError(message(function, problem, f"array has: {facts(x)}", hint=hint))


def _backwards(fn: Any, forwards: Any, array: jax.Array, axis: int, dtype: DTypeLike | None) -> jax.Array:
    """Apply a function of `jax.lax` from the end, in the dtype of the `jax.numpy` one, which only runs forwards."""
    like = jax.ShapeDtypeStruct((1,), array.dtype)
    wanted = jax.eval_shape(partial(forwards, axis=0, dtype=dtype), like).dtype
    truth = wanted == np.bool_
    # Convert to booleans first: as numbers, 1 and -1 would cancel.
    numbers = (array != 0).astype(int) if truth else lax.convert_element_type(array, wanted)
    result: jax.Array = fn(numbers, axis % array.ndim, reverse=True)
    return result.astype(bool) if truth else result


def _cumlogsumexp(array: jax.Array, axis: int, reverse: bool) -> jax.Array:
    if not jnp.issubdtype(array.dtype, jnp.inexact):
        array = array.astype(jnp.result_type(float))
    return lax.cumlogsumexp(array, axis % array.ndim, reverse)


def _cummax(array: jax.Array, axis: int, reverse: bool) -> jax.Array:
    return _of_numbers(lax.cummax, array, axis, reverse)


def _cummin(array: jax.Array, axis: int, reverse: bool) -> jax.Array:
    return _of_numbers(lax.cummin, array, axis, reverse)


def _of_numbers(fn: Any, array: jax.Array, axis: int, reverse: bool) -> jax.Array:
    """Apply a function of `jax.lax` that takes no booleans."""
    numbers = array.astype(jnp.int8) if array.dtype == bool else array
    result: jax.Array = fn(numbers, axis % array.ndim, reverse)
    return result if numbers is array else result.astype(array.dtype)


def _cumprod(array: jax.Array, axis: int, dtype: DTypeLike | None, reverse: bool) -> jax.Array:
    return _backwards(lax.cumprod, jnp.cumprod, array, axis, dtype) if reverse else jnp.cumprod(array, axis, dtype)


def _cumsum(array: jax.Array, axis: int, dtype: DTypeLike | None = None, reverse: bool = False) -> jax.Array:
    if reverse:
        return summed(lambda array: _backwards(lax.cumsum, jnp.cumsum, array, axis, dtype), array, (axis,))
    return summed(lambda array: jnp.cumsum(array, axis, dtype), array, (axis,))


def _cumulative_sum(array: jax.Array, axis: int, **options: Any) -> jax.Array:
    return summed(lambda array: jnp.cumulative_sum(array, axis=axis, **options), array, (axis,))


def _nancumsum(array: jax.Array, axis: int, dtype: DTypeLike | None) -> jax.Array:
    return summed(lambda array: jnp.nancumsum(array, axis, dtype), array, (axis,))


def _flip(array: jax.Array, axis: Positions) -> jax.Array:
    return lax.rev(array, [at % array.ndim for at in axis])


def _order_of_bits(function: str, bitorder: str) -> str:
    if bitorder not in ("big", "little"):
        raise ArgumentError(message(function, f"unknown bitorder {bitorder!r}", hint="orders: big, little"))
    return bitorder


def _packbits(array: jax.Array, axis: int, bitorder: str) -> jax.Array:
    if not (array.dtype == bool or jnp.issubdtype(array.dtype, jnp.integer)):
        raise OperandError(message("packbits", f"needs booleans or integers, got {array.dtype}"))
    return jnp.packbits(array, axis, bitorder)


def _unpackbits(array: jax.Array, axis: int, count: int | None, bitorder: str) -> jax.Array:
    if array.dtype != jnp.uint8:
        raise OperandError(message("unpackbits", f"needs uint8, got {array.dtype}", hint='write x.astype("uint8")'))
    return jnp.unpackbits(array, axis, count, bitorder)


def _roll(
    array: jax.Array, *traced: jax.Array, axis: Positions | None = None, shift: tuple[int, ...] = ()
) -> jax.Array:
    """Roll along `axis` by static shifts, or along all dimensions by traced ones."""
    for each in traced:
        if not jnp.issubdtype(each.dtype, jnp.integer):
            raise OperandError(message("roll", f"a shift must be an integer, not {each.dtype}"))
    at = tuple(range(array.ndim)) if axis is None else axis
    return jnp.roll(_lift.whole(array, at), jnp.stack(traced) if traced else shift, at)


def _rot90(array: jax.Array, axis: tuple[int, int], k: int) -> jax.Array:
    return jnp.rot90(_lift.whole(array, axis), k, axis)


def _softmax(array: jax.Array, axis: Positions, where: jax.Array | None = None) -> jax.Array:
    softened: jax.Array = _softened(array, axis, where)  # by position: JAX's own checks miscount a static keyword
    return softened


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def _softened(array: jax.Array, axis: Positions, where: jax.Array | None) -> jax.Array:
    return jax.nn.softmax(array, axis, where)


@_softened.defjvp
def _softmax_jvp(axis: Positions, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    """Save only the result for the backward pass, which attention needs anyway, and not the exponentials."""
    array, where = primals
    result = _softened(array, axis, where)
    change = _softmax_change if where is None else jax.checkpoint(_masked_change, prevent_cse=False, static_argnums=2)
    return result, change(result, tangents[0], axis)


def _softmax_change(result: jax.Array, tangent: jax.Array, axis: Positions) -> jax.Array:
    weighted = result * tangent
    return weighted - result * weighted.sum(axis, keepdims=True)


def _masked_change(result: jax.Array, tangent: jax.Array, axis: Positions) -> jax.Array:
    """Treat zeros as constants: times a tangent that is not finite, they would give NaN.

    The mask follows from the result, so that it is not saved.
    """
    hidden = result == 0
    change = _softmax_change(result, jnp.where(hidden, 0, tangent), axis)
    return jnp.where(hidden, 0, change)


def _standardize(
    array: jax.Array, *numbers: Any, axis: Positions | None = None, where: jax.Array | None = None
) -> jax.Array:
    """Standardize over axes, by an epsilon alone, or by a mean, a variance and an epsilon."""
    if axis is not None:
        return _standardize_over(array, *numbers, axis=axis, where=where)
    mean, variance, epsilon = numbers
    result: jax.Array = (array - mean) * lax.rsqrt(variance + epsilon)
    return result


def _standardize_over(array: jax.Array, epsilon: Any, *, axis: Positions, where: jax.Array | None) -> jax.Array:
    # By hand, because `jnp.var` would compute the mean again, and save the differences from it twice.
    narrow = jnp.issubdtype(array.dtype, jnp.inexact) and array.dtype.itemsize < 4
    wide = array.astype(jnp.float32) if narrow else array
    centered = wide - jnp.mean(wide, axis, keepdims=True, where=where)
    squares = jnp.real(centered * jnp.conj(centered)) if jnp.iscomplexobj(centered) else jnp.square(centered)
    variance = jnp.mean(squares, axis, keepdims=True, where=where)
    # Not in float16, where a variance above 65504 overflows, as does the slope of the root near zero.
    result: jax.Array = centered * lax.rsqrt(variance + epsilon)
    return result.astype(array.dtype) if narrow else result


def _squared_distance(array: jax.Array, mean: jax.Array) -> jax.Array:
    return jnp.square(jnp.abs(array - mean))


@lru_cache(plans.CACHE)
def _with(fn: Any, **options: Any) -> Any:
    """Bind options to a function; equal options give the same object, and so one cached kernel."""
    return partial(fn, **options)
