"""Internal. XLA gathers the mapped axis for an all-to-all under a `vmap` over Explicit mesh axes.

XLA for CPUs does so up to at least jax 0.10.2; it does not gather parts that are sent one by one. The reproducer is
`tests/upstream/test_mapped_exchanges.py`.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def exchange_one_by_one(
    array: jax.Array,
    index: Any,
    count: int,
    send: Callable[[jax.Array, int], jax.Array],
    split: int,
    joined: int,
) -> jax.Array:
    """Do what `jax.lax.all_to_all` does with `tiled=True`, by `count - 1` permutations.

    Args:
        array: the part of a device.
        index: which of the devices it is.
        count: the number of devices.
        send: sends an array to the device whose index is larger by a number.
        split: the dimension to split over the devices.
        joined: the dimension whose parts are joined.
    """
    size, rows = array.shape[split] // count, array.shape[joined]
    shape = list(array.shape)
    shape[split], shape[joined] = size, rows * count
    result = jnp.zeros(shape, array.dtype)
    # In step `shift`, each device sends the part of the device that is `shift` ahead, and gets one from behind.
    for shift in range(count):
        start = (index + shift) % count * size
        part = lax.dynamic_slice_in_dim(array, start, size, split)
        if shift:
            part = send(part, shift)
        source = (index - shift) % count
        result = lax.dynamic_update_slice_in_dim(result, part, source * rows, joined)
    return result
