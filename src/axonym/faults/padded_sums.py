"""Internal. XLA sums windows wrongly over an axis of one element with equally many zeros before and after it.

XLA assumes that each window contains the element, but a window may be in the padding that the sum itself adds. The
gradient of the middle element of a cumulative sum would be wrong, since the padded gradient of the element is summed
backwards.
All versions, also on one device; `tests/upstream/test_padded_sums.py` shows it.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from .shared_paddings import separate_padding


def accumulate(
    sums: Callable[[jax.Array], jax.Array], array: jax.Array, axis: int, reverse: bool = False
) -> jax.Array:
    """Call a function that sums cumulatively along `axis`; add the last of an odd number of elements separately.

    In an even number, no element has as many elements before it as after it. A barrier is not enough here: on jax 0.10,
    XLA removes it before it merges the sum with the padding of an axis of one element.
    """
    array = separate_padding(array)
    size = array.shape[axis]
    if not isinstance(size, int):  # symbolic, of jax.export: odd or even is not known
        return sum_windows(sums, array, (axis,))
    if not _may_be_padded(size):
        return sums(array)
    first, last = (lax.slice_in_dim(array, at, at + 1, axis=axis) for at in (0, size - 1))
    if reverse:
        rest = sums(lax.slice_in_dim(array, 1, size, axis=axis))
        total = sums(first) + lax.slice_in_dim(rest, 0, 1, axis=axis)
        return jnp.concatenate([total, rest], axis)
    rest = sums(lax.slice_in_dim(array, 0, size - 1, axis=axis))
    total = sums(last) + lax.slice_in_dim(rest, size - 2, size - 1, axis=axis)
    return jnp.concatenate([rest, total], axis)


def sum_windows(
    sums: Callable[[jax.Array], jax.Array], array: jax.Array, axis: Sequence[int]
) -> jax.Array:
    """Call a function that sums over windows along `axis`, and keep XLA from merging it with a padding around it.

    The padding may be of the array or, in the gradient, of the result.
    """
    if any(_may_be_padded(array.shape[at]) for at in axis):
        array = lax.optimization_barrier(array)
    else:
        array = separate_padding(array)
    result = sums(array)
    if any(_may_be_padded(size) for at in axis for size in (array.shape[at], result.shape[at])):
        result = lax.optimization_barrier(result)
    return result


def _may_be_padded(size: int) -> bool:
    """Return whether there may be one element with as many before it as after it."""
    return not isinstance(size, int) or (size > 1 and size % 2 == 1)
