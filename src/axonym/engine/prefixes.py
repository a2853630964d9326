"""Internal. Results of prefixes along an axis that is split over devices: sums, products, extrema, recurrences.

The axis is split in two: an axis of parts, one on each device, and an axis of the elements of a part. Each device works
on its own part. Then all devices get the result of each part, one element, and combine the results of earlier parts
with their own. So a scan sends one element per device; the compiler by itself would gather the whole axis.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..layout import constraints, context, explicit, modes, partition, records
from ..layout.assignment import Entry

Arrays = Sequence[jax.Array]
Combine = Callable[[Arrays, Arrays], Arrays]


def find_parts(array: jax.Array, at: int, name: str) -> tuple[Entry, int]:
    """Return the mesh axes that split an axis into parts of equal size, and the number of parts.

    Explicit mesh axes are those of the array's type, Auto ones those of the current mapping. There is one part if the
    axis is not split, does not divide, or its parts have one element.
    """
    size = array.shape[at]
    mesh = context.context_mesh() or explicit.mesh_of_type(array)
    if mesh.empty or records.AUDIT.get() is not None or not isinstance(size, int):
        return (), 1
    free = modes.find_auto_axes(mesh) - set(context.get_taken_axes())
    entry = partition.only(context.map_names({name: size}).get(name, ()), free)
    if explicit.has_explicit_axes(array):
        entry = (*explicit.get_layout(array)[at], *entry)
    parts = partition.count_shards(mesh, entry)
    if size % parts or size <= parts:
        return (), 1
    return entry, parts


def scan_parts(
    scan: Callable[[Arrays, int], Arrays],
    after: Combine,
    arrays: Arrays,
    at: int,
    parts: int,
    *,
    reverse: bool = False,
) -> list[jax.Array]:
    """Scan arrays along a dimension, each part by itself.

    Args:
        scan: a function of arrays and a dimension, which scans arrays along it.
        after: combines the result of earlier parts with that of a part; dimension `at` is that of parts.
        arrays: the arrays.
        at: the dimension.
        parts: the number of parts, which divides the dimension.
        reverse: scan from the end; earlier parts are then those behind.

    Returns:
        The results, as `scan(arrays, at)` gives them, up to rounding.
    """
    own = scan([_divide(array, at, parts) for array in arrays], at + 1)
    # The last element of a scan is the result of its part. These few elements are replicated: each device combines them
    # all, which takes less time than to send partial results from device to device.
    edge = 0 if reverse else -1
    totals = [
        constraints.gather_dimension(lax.index_in_dim(result, edge, at + 1), at) for result in own
    ]
    before = lax.associative_scan(after, totals, reverse=reverse, axis=at)

    joined: list[jax.Array] = []
    for result, prefix in zip(own, before, strict=True):
        # The first part has nothing before it. It gets a result that is dropped, computed from real elements: the
        # gradient of made-up ones, such as zeros, may not be finite.
        shifted = constraints.gather_dimension(_shift(prefix, at, reverse), at)
        # Each device takes its own prefix before it is repeated, so that a gradient is summed before it is sent.
        shifted = explicit.reshard_like(shifted, result)
        joined.append(jnp.broadcast_to(shifted, result.shape))
    combined = after(joined, own)

    results: list[jax.Array] = []
    for alone, whole in zip(own, combined, strict=True):
        sizes = [1] * at + [parts] + [1] * (alone.ndim - at - 1)
        number = lax.broadcasted_iota(jnp.int32, sizes, at)
        chosen = jnp.where(number == (parts - 1 if reverse else 0), alone, whole)
        results.append(_merge(chosen, at))
    return results


def _shift(prefix: jax.Array, at: int, reverse: bool) -> jax.Array:
    """Give each part the combined result of earlier parts, and the first part its own result."""
    size = prefix.shape[at]
    bounds = [(1, size), (size - 1, size)] if reverse else [(0, 1), (0, size - 1)]
    pieces = [lax.slice_in_dim(prefix, start, stop, axis=at) for start, stop in bounds]
    return lax.concatenate(pieces, at)


def _divide(array: jax.Array, at: int, parts: int) -> jax.Array:
    """Split a dimension in two: the parts, sharded as it was, and the elements of a part."""
    shape = (*array.shape[:at], parts, array.shape[at] // parts, *array.shape[at + 1 :])
    if not explicit.has_explicit_axes(array):
        return lax.reshape(array, shape)
    entries = list(explicit.get_layout(array))
    entries.insert(at + 1, ())
    return _reshape(array, shape, entries)


def _merge(array: jax.Array, at: int) -> jax.Array:
    """Undo `_divide`."""
    shape = (*array.shape[:at], array.shape[at] * array.shape[at + 1], *array.shape[at + 2 :])
    if not explicit.has_explicit_axes(array):
        return lax.reshape(array, shape)
    entries = list(explicit.get_layout(array))
    del entries[at + 1]
    return _reshape(array, shape, entries)


def _reshape(array: jax.Array, shape: tuple[int, ...], entries: Sequence[Any]) -> jax.Array:
    reshaped: jax.Array = lax.reshape(
        array, shape, out_sharding=explicit.make_sharding(array, entries)
    )
    return reshaped
