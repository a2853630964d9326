"""Results of prefixes along an axis that is split over devices: sums, products, extrema, recurrences.

The axis becomes two, one of parts, of which each device has one, and one of the elements of a part. Each device works
on its own part, all get the result of each part, which is one element, and combine what comes before their part with
their own results. So a scan sends one element per device, where the compiler by itself gathers the whole axis.
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


def parts_along(array: jax.Array, at: int, name: str) -> tuple[Entry, int]:
    """Return over which mesh axes an axis is split in parts of equal sizes, and how many these are.

    Explicit mesh axes are those of the array's type, Auto ones those of the current mapping. There is one part if the
    axis is whole, does not divide, or its parts have one element.
    """
    size = array.shape[at]
    mesh = context.context_mesh() or explicit.mesh_of_type(array)
    if mesh.empty or records.AUDIT.get() is not None or not isinstance(size, int):
        return (), 1
    free = modes.find_auto_axes(mesh) - set(context.taken_axes())
    entry = partition.only(context.mapped((name,)).get(name, ()), free)
    if explicit.has_explicit_axes(array):
        entry = (*explicit.read_layout(array)[at], *entry)
    parts = partition.count_shards(mesh, entry)
    if size % parts or size <= parts:
        return (), 1
    return entry, parts


def in_parts(
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
        after: combines the result of what comes before with that of a part; dimension `at` is that of parts.
        arrays: the arrays.
        at: the dimension.
        parts: the number of parts, which divides the dimension.
        reverse: scan from the end; what comes before is then behind.

    Returns:
        The results, as `scan(arrays, at)` gives them, up to rounding.
    """
    own = scan([_divide(array, at, parts) for array in arrays], at + 1)
    edge = -1
    if reverse:
        edge = 0
    totals: list[jax.Array] = []
    for result in own:
        total = lax.index_in_dim(result, edge, at + 1)
        totals.append(constraints.keep_whole(total, at))
    before = lax.associative_scan(after, totals, reverse=reverse, axis=at)

    joined: list[jax.Array] = []
    for result, prefix in zip(own, before, strict=True):
        # The first part has nothing before it. It gets a result that is dropped, and from elements that are there:
        # of others, a gradient may not be finite.
        shifted = constraints.keep_whole(_shift(prefix, at, reverse), at)
        # each device takes its own before it is repeated, so that a gradient is summed before it is sent
        shifted = explicit.laid_out_like(shifted, result)
        joined.append(jnp.broadcast_to(shifted, result.shape))
    combined = after(joined, own)

    results: list[jax.Array] = []
    for alone, whole in zip(own, combined, strict=True):
        number = lax.broadcasted_iota(
            jnp.int32, [1] * at + [parts] + [1] * (alone.ndim - at - 1), at
        )
        first = 0
        if reverse:
            first = parts - 1
        chosen = jnp.where(number == first, alone, whole)
        results.append(_merge(chosen, at))
    return results


def _shift(prefix: jax.Array, at: int, reverse: bool) -> jax.Array:
    """Give each part the result of those before it, and the first one its own."""
    size = prefix.shape[at]
    if reverse:
        pieces = [
            lax.slice_in_dim(prefix, 1, size, axis=at),
            lax.slice_in_dim(prefix, size - 1, size, axis=at),
        ]
    else:
        pieces = [
            lax.slice_in_dim(prefix, 0, 1, axis=at),
            lax.slice_in_dim(prefix, 0, size - 1, axis=at),
        ]
    return lax.concatenate(pieces, at)


def _divide(array: jax.Array, at: int, parts: int) -> jax.Array:
    """Make two dimensions of one: parts, split as it was, and elements of a part."""
    shape = (*array.shape[:at], parts, array.shape[at] // parts, *array.shape[at + 1 :])
    if not explicit.has_explicit_axes(array):
        return lax.reshape(array, shape)
    entries = list(explicit.read_layout(array))
    entries.insert(at + 1, ())
    return _reshape(array, shape, entries)


def _merge(array: jax.Array, at: int) -> jax.Array:
    """Undo `_divided`."""
    shape = (*array.shape[:at], array.shape[at] * array.shape[at + 1], *array.shape[at + 2 :])
    if not explicit.has_explicit_axes(array):
        return lax.reshape(array, shape)
    entries = list(explicit.read_layout(array))
    del entries[at + 1]
    return _reshape(array, shape, entries)


def _reshape(array: jax.Array, shape: tuple[int, ...], entries: Sequence[Any]) -> jax.Array:
    reshaped: jax.Array = lax.reshape(
        array, shape, out_sharding=explicit.sharding_from(array, entries)
    )
    return reshaped
