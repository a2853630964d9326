"""Internal. Pieces and elements of an array along one dimension, even if it is split over Explicit mesh axes.

The steps of an index call it. A piece may be read in shards, by a gather that sends only the piece, or from a gathered
array: the first way that works is taken.
"""

import builtins
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.export import is_symbolic_dim

from ..base.dtypes import widen_positions
from ..base.kinds import Payload
from ..faults.merged_slices import fit_start, like, separate_gradient
from ..faults.shared_paddings import separate_padding
from ..layout import context, explicit, modes, partition
from ..names import plans
from ..names.plans import Names
from . import auto


def take_slice(array: jax.Array, at: int, start: object, length: int) -> jax.Array:
    """Take a slice, on a mesh with Explicit axes too."""
    # A traced start may be anywhere, so that devices would have to send.
    known = length == array.shape[at] or isinstance(start, int)
    if known and _can_stay_split(array, at, length):
        return _slice_dimension(array, at, start, length)
    mesh = explicit.mesh_of_type(array)
    # Beside Manual axes JAX has no gradient of a gather within `auto.local`.
    typed = modes.has_explicit(mesh) and not modes.has_manual(mesh)
    if length == 1 and typed and explicit.get_layout(array)[at]:
        return _take_one(array, at, start)
    return take_at(_slice_dimension, array, at, start, length)


def take_at(
    read: Callable[..., jax.Array], array: jax.Array, at: int, start: object, length: int
) -> jax.Array:
    """Read a piece along a dimension, which is gathered first on a mesh with Explicit axes.

    A surrounding `vmap` may map the start over such axes; JAX cannot type the resulting gather.
    """
    if isinstance(start, int):
        return auto.move_elements(lambda array: read(array, at, start, length), [array])
    if not context.get_taken_axes():
        return read(auto.whole(array, (at,)), at, start, length)

    def piece(array: jax.Array, start: object) -> jax.Array:
        return read(array, at, start, length)

    return read_locally(piece, [array, start], (), (at,), (), range(array.ndim), {})


def _take_one(array: jax.Array, at: int, start: object) -> jax.Array:
    """Take one position along a split dimension, so that only this position is communicated.

    The compiler communicates only the positions of a gather; for a slice it gathers the array, or moves parts of it.
    """

    def one(array: jax.Array, positions: jax.Array) -> jax.Array:
        array = separate_gradient(array, 1)
        found: jax.Array = array.at[(*[builtins.slice(None)] * at, positions)].get(mode="clip")
        return found

    entries = list(explicit.get_layout(array))
    entries[at] = ()
    is_known = isinstance(start, int)
    begin = jnp.asarray(start) if is_known else fit_start(start, array.shape[at])
    part: jax.Array = auto.local(one, [array, jnp.reshape(begin, 1)], entries)
    return part


def take_strided(array: jax.Array, at: int, own: builtins.slice) -> jax.Array:
    """Read a static slice along a dimension, in shards where each device has a part of the result."""
    size = array.shape[at]
    length = 0 if is_symbolic_dim(size) else len(range(*own.indices(size)))
    if not _can_stay_split(array, at, length):
        array = auto.whole(array, (at,))
    return array[(*[builtins.slice(None)] * at, own)]


def _can_stay_split(array: jax.Array, at: int, length: int) -> bool:
    """Return whether a piece of this length along a dimension can be split as the dimension is."""
    if not length or not explicit.has_explicit_axes(array):
        return False
    shape = jax.typeof(array).sharding.mesh.shape
    return not length % math.prod(shape[axis] for axis in explicit.get_layout(array)[at])


def _slice_dimension(array: jax.Array, at: int, start: object, length: int) -> jax.Array:
    """Take a slice; where arrays are concrete the start is an argument, so that a loop over starts compiles once."""
    if length == array.shape[at]:
        return array
    if isinstance(start, int):
        return lax.slice_in_dim(array, start, start + length, axis=at)
    if not length:
        return lax.slice_in_dim(array, 0, 0, axis=at)
    begin = fit_start(start, array.shape[at], length)
    array = separate_gradient(array, 1, fits=True)
    return lax.dynamic_slice_in_dim(array, begin, length, at, allow_negative_indices=False)


def take_window(array: jax.Array, at: int, start: Any, length: int) -> jax.Array:
    """Take a piece that may be out of range, with zeros for the positions outside.

    The nearest piece within the array is cut out and padded with zeros, and the piece is cut from that. This costs
    about as much as `lax.dynamic_slice` alone, in memory and in the backward pass too, unlike a gather.
    """
    size = array.shape[at]
    # Which of two sizes is smaller may not be known in `jax.export`: the whole array is then padded.
    present = size if any(map(is_symbolic_dim, (size, length))) else min(length, size)
    start = widen_positions(start)
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        # lax.pad does not accept PRNG keys.
        data = take_window(jax.random.key_data(array), at, start, length)
        keys: jax.Array = jax.random.wrap_key_data(data, impl=jax.random.key_impl(array))
        return keys
    # `jnp.clip` would trace a nested function.
    nearest = lax.clamp(like(0, start), start, like(size - present, start))
    array = separate_gradient(array, 1, fits=True)
    piece = lax.dynamic_slice_in_dim(array, nearest, present, at, allow_negative_indices=False)
    around = [(0, 0, 0)] * array.ndim
    around[at] = (length, length, 0)
    # Padded by its length on both sides, the piece holds each window that begins within reach of it.
    padded = lax.pad(separate_padding(piece), jnp.zeros((), array.dtype), around)
    shifted = lax.clamp(like(0, start), start - nearest + length, like(present + length, start))
    return lax.dynamic_slice_in_dim(padded, shifted, length, at, allow_negative_indices=False)


def read_locally(
    read: Any,
    operands: Sequence[Payload],
    names: Names,
    indexed: Collection[Any],
    indices: Sequence[tuple[Names, Any]],
    labels: Sequence[Payload],
    sizes: Mapping[str, int],
) -> jax.Array:
    """Read elements; on a mesh with Explicit axes, the layout is that of the indices, then of the array.

    The compiler decides how to read from other devices: with a type, the array would be gathered first.
    """
    if not any(map(explicit.has_explicit_axes, operands)):
        found: jax.Array = read(*operands)
        return found
    array, *positions = explicit.move_to_one_mesh(operands)
    entries = explicit.get_layout(array)
    if not explicit.has_explicit_axes(array):
        # Its gradient comes back with a type.
        array = jax.reshard(array, explicit.make_sharding(array, entries))
    # An indexed dimension offers no mesh axes: the indices say where its elements are.
    own = [*range(array.ndim - len(names)), *(None if name in indexed else name for name in names)]
    offering, arrays = map(list, zip(*indices, (own, array), strict=True))
    anonymous_first = sorted(labels, key=lambda label: isinstance(label, str))
    table = explicit.choose(anonymous_first, offering, arrays, _find_dividing(sizes))
    wanted = list(plans.values_at(table, labels))
    local: jax.Array = auto.local(read, [array, *positions], wanted)
    return local


def _find_dividing(sizes: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    """Return the mesh axes of the mapping that divide these sizes: a short slice may not split like its axis."""
    mesh = context.context_mesh()
    mapped = context.map_names(sizes)
    if mesh is None:
        return mapped
    counts = {
        name: partition.count_shards(mesh, partition.only(entry, mesh.shape))
        for name, entry in mapped.items()
    }
    return {name: entry for name, entry in mapped.items() if not sizes[name] % counts[name]}
