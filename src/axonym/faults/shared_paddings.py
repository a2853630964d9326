"""Internal. XLA gives one padding of an array the value of another one.

For windows that cross the ends of blocks, it pads a split array, and reuses this padding without comparing its value.
If an array is padded twice, or has a cumulative sum and a cumulative product, the second gets the value of the first at
its ends. Up to jax 0.10; `tests/upstream/test_shared_paddings.py` shows it.
"""

import jax
from jax import lax

from .merged_slices import MERGES, count_devices


def separate_padding(array: jax.Array) -> jax.Array:
    """Prepare an array for an operation on windows, so that it does not get the padding of another operation."""
    if not MERGES or count_devices(array) == 1:
        return array
    own: jax.Array = lax.optimization_barrier(array)
    return own
