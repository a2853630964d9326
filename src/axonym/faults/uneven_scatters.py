"""Internal. XLA scatters nonexistent elements if an axis of positions does not divide evenly among devices.

The last device then has elements beyond the end of the array. XLA's scatter adds these too, at whatever positions they
happen to have. The gradient of a gather is a scatter, such as that of an embedding of `tokens["pos", 1:]`.

All versions, on Auto axes; `tests/upstream/test_uneven_scatter.py` shows it. The guards give all devices the same
number of positions. The added positions are out of range, or their results are cut off.
"""

import builtins
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..base.dtypes import widen_positions
from ..layout import context, modes, partition
from .shared_paddings import separate_padding

At = tuple[Any, ...]
"""A positional index: a slice, an int or an array of ints for each dimension."""


def count_missing(array: jax.Array, shape: Iterable[object]) -> list[int]:
    """Return how many positions to add along each dimension of an index, so that devices get equally many."""
    shards = _count_shards(array)
    # A symbolic size, of jax.export, has no remainder.
    return [-size % shards if isinstance(size, int) else 0 for size in shape]


def _count_shards(array: jax.Array) -> int:
    """Return a number that all possible splits over Auto mesh axes divide, alone or as the mapping joins these axes.

    Without a mapping, an axis may be split over all of them.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        mesh = jax.typeof(array).sharding.mesh
    free = tuple(modes.find_auto_axes(mesh))
    mapping = context.current_mapping()
    if mapping is None:
        return partition.count_shards(mesh, free)
    # The compiler may also split over a single axis of an entry.
    several = itertools.chain.from_iterable(map(mapping.alternatives, mapping))
    joined = [partition.only(entry, free) for entry in several]
    apart = [(axis,) for axis in free]
    return math.lcm(*(partition.count_shards(mesh, axes) for axes in (*joined, *apart)))


def broadcast_shape(at: At) -> tuple[int, ...]:
    """Return the shape that the arrays of an index have together."""
    return jnp.broadcast_shapes(*(jnp.shape(part) for part in at if _is_indexed(part)))


def extend(array: jax.Array, dims: Sequence[int], more: Sequence[int]) -> jax.Array:
    """Add zeros at the end of some dimensions of an array."""
    around = [(0, 0, 0)] * array.ndim
    for dim, count in zip(dims, more, strict=True):
        around[dim] = (0, count, 0)
    zero = jnp.zeros((), array.dtype)
    longer: jax.Array = lax.pad(separate_padding(array), zero, around)
    return longer


def even_reads(at: At, more: Sequence[int]) -> At:
    """Let an index also read position 0, once for each missing position, and remove dimensions with one position.

    Compilers cannot split a dimension that is removed, so that it needs no further positions.
    """
    shape = broadcast_shape(at)
    single = _find_single(shape, more)
    added = [0 if dim in single else count for dim, count in enumerate(more)]

    def make_even(part: Any) -> jax.Array:
        longer = extend(jnp.asarray(part), *_find_own_dimensions(part, shape, added))
        first = len(shape) - longer.ndim
        return jnp.squeeze(longer, [dim - first for dim in single if dim >= first])

    return tuple(make_even(part) if _is_array(part) else part for part in at)


def restore_read(found: jax.Array, at: At, more: Sequence[int]) -> jax.Array:
    """Drop the elements that an index read because of `even_reads`, and restore the dimensions that it removed."""
    first, shape = find_first_read(at), broadcast_shape(at)
    found = jnp.expand_dims(found, [first + dim for dim in _find_single(shape, more)])
    for dim, (size, count) in enumerate(zip(shape, more, strict=True), start=first):
        if count:
            found = lax.slice_in_dim(found, 0, size, axis=dim)
    return found


def _find_single(shape: Sequence[int], more: Sequence[int]) -> list[int]:
    """Return the dimensions of an index that lack positions, and have only one."""
    return [dim for dim, missing in enumerate(more) if missing and shape[dim] == 1]


def extend_writes(at: At, sizes: Sequence[int], more: Sequence[int]) -> At:
    """Let an index of an array of given sizes write out of range, at another place for each missing position."""
    shape = broadcast_shape(at)
    longer: list[Any] = []
    for part, size in zip(at, sizes, strict=False):
        if not _is_array(part):
            longer.append(part)
            continue
        # Each added position is another one, so that a scatter with unique indices stays correct.
        part, outside = widen_positions(jnp.asarray(part)), size
        for dim, count in zip(*_find_own_dimensions(part, shape, more), strict=True):
            block = (*part.shape[:dim], count, *part.shape[dim + 1 :])
            beyond = outside + jnp.arange(math.prod(block), dtype=part.dtype).reshape(block)
            part = jnp.concatenate([part, beyond], dim)
            outside += math.prod(block)
        longer.append(part)
    return tuple(longer)


def _find_own_dimensions(
    part: Any, shape: Sequence[int], more: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return the dimensions of an array of an index that are not broadcast, and how many positions they lack."""
    own = jnp.shape(part)
    leading = len(shape) - len(own)
    dims = [dim for dim, size in enumerate(own) if size == shape[leading + dim]]
    return dims, [more[leading + dim] for dim in dims]


def find_indexed(at: Sequence[Any]) -> list[int]:
    """Return the dimensions that a positional index does not slice."""
    return [dim for dim, part in enumerate(at) if _is_indexed(part)]


def find_first_read(at: Sequence[Any]) -> int:
    """Return where the result of an index has the dimensions of its arrays: as in NumPy, in place only if adjacent."""
    indexed = find_indexed(at)
    is_adjacent = bool(indexed) and indexed == list(range(indexed[0], indexed[-1] + 1))
    return indexed[0] if is_adjacent else 0


def _is_indexed(part: object) -> bool:
    return not isinstance(part, builtins.slice)


def _is_array(part: object) -> bool:
    return _is_indexed(part) and jnp.ndim(part) > 0  # type: ignore[arg-type]  # an int or an array
