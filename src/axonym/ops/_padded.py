"""Sums over windows of arrays that may be padded.

Where an axis of one element was padded by as many zeros before as after it, XLA takes each window to hold the element,
though a window may lie in the padding that the sum itself adds. So the gradient of the middle element of a cumulative
sum would be wrong: the element's gradient, padded, is summed up backwards (`tests/upstream/test_padded_sums.py`).
"""

from collections.abc import Callable, Sequence

import jax
from jax import lax

__all__ = ["summed"]


def summed(sums: Callable[[jax.Array], jax.Array], array: jax.Array, axis: Sequence[int]) -> jax.Array:
    """Call a function that sums over windows along `axis`, and keep XLA from merging it with a padding around it.

    The padding may be of the array or, in the gradient, of the result.
    """
    if any(_may_be_padded(array.shape[at]) for at in axis):
        array = lax.optimization_barrier(array)
    result = sums(array)
    if any(_may_be_padded(size) for at in axis for size in (array.shape[at], result.shape[at])):
        result = lax.optimization_barrier(result)
    return result


def _may_be_padded(size: int) -> bool:
    """Return whether there may be one element with as many before it as after it."""
    return not isinstance(size, int) or (size > 1 and size % 2 == 1)
