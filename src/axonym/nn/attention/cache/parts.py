"""Internal. Writing into a cache that devices share: each writes into its own part, in a `shard_map`.

The compiler would turn a write along a split axis into a scatter. A TPU may then transpose the complete cache and back,
and a write along split positions gathers it.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from ....array import NamedArray
from ....engine.core import wrap
from ....layout import context, explicit, modes, tracing
from ....layout.assignment import Entry, MeshLike
from ....layout.blocks import find_entries
from ....layout.layout import Layout
from ....layout.partition import count_shards
from ....layout.records import AUDIT
from ....names.plans import Names

Index = Mapping[str, Any]


class Parts(NamedTuple):
    """How devices share a cache.

    Attributes:
        mesh: the mesh.
        entries: the mesh axes of each axis of the cache.
    """

    mesh: MeshLike
    entries: Mapping[str, Entry]

    def list_entries(self, names: Names) -> list[Entry]:
        """Return the mesh axes of each dimension of an array that is sharded like the cache."""
        return [self.entries.get(name, ()) for name in names]


def find_parts(old: NamedArray, new: NamedArray, index: Index, *, ring: bool) -> Parts | None:
    """Return how devices share a cache; None if the compiler writes into the complete array.

    Args:
        old: the cache.
        new: what is written.
        index: the layer, if there is one, and then the slots of the tokens.
        ring: whether slots go on at 0 behind the last one.
    """
    mesh, mapping = context.context_mesh(), context.current_mapping()
    if mesh is None or not tracing.tracing() or context.get_taken_axes():
        return None
    if AUDIT.get() is not None:  # A check is to see whole arrays.
        return None
    is_typed = explicit.has_explicit_axes(old.array)
    if not modes.is_one_mode(mesh) or is_typed != modes.has_explicit(mesh):
        return None
    if not is_typed and (mapping is None or mapping.uneven):
        return None
    # Each named dimension has a spec; anonymous ones, and sizes that are not known or zero, have none.
    *layers, k_pos = index
    for x in (old, new, index[k_pos]):
        sizes = x.array.shape
        if len(sizes) != len(x.names) or not all(isinstance(size, int) and size for size in sizes):
            return None

    entries = dict(zip(old.names, find_entries(old.array, old.names), strict=True))
    ways = {name: count_shards(mesh, entry) for name, entry in entries.items()}
    if any(old.axis_size(name) % own for name, own in ways.items()):
        return None
    # A layer at a traced index is in one part only, which no other device can tell.
    if any(ways[name] > 1 for name in layers):
        return None
    if set(ways.values()) == {1}:  # nothing is split
        return None
    tokens = [name for name in index[k_pos].names if name not in old.names]
    number = new.axis_size(tokens[0]) if tokens else 1
    # A part must have room for all tokens at once; in a ring, several might go on at the start of another part.
    own = old.axis_size(k_pos) // ways[k_pos]
    if ways[k_pos] > 1 and (number > own or (ring and number > 1)):
        return None
    return Parts(mesh, entries)


def write_in_parts(
    write: Callable[[NamedArray, NamedArray, dict[str, Any]], NamedArray],
    parts: Parts,
    old: NamedArray,
    new: NamedArray,
    index: Index,
) -> NamedArray:
    """Write into the parts of a cache; each device drops the tokens of others.

    Args:
        write: writes into a whole cache, and drops tokens whose slots are out of range.
        parts: how devices share it.
        old: the cache.
        new: what is written.
        index: as that of `find_parts`.
    """
    *layers, k_pos = index
    places = index[k_pos]
    operands = old, new, places
    layouts = [parts.list_entries(x.names) for x in operands]
    arrays = [x.array for x in operands]
    if modes.has_explicit(parts.mesh):
        # A shard_map takes only what its type says to be split so.
        arrays = [
            explicit.reshard(x.array, own, x.names)
            for x, own in zip(operands, layouts, strict=True)
        ]
    specs = [Layout(entries).spec for entries in layouts]
    numbers = [jnp.asarray(index[name]) for name in layers]

    def write_own(own: jax.Array, tokens: jax.Array, slots: jax.Array, *at: jax.Array) -> jax.Array:
        split = parts.entries[k_pos]
        if split:
            # Slots of other devices are then negative or too large, and dropped.
            first = lax.axis_index(split) * own.shape[old.names.index(k_pos)]
            slots = slots - first.astype(slots.dtype)
        here = {**dict(zip(layers, at, strict=True)), k_pos: wrap(places, slots, places.names)}
        return write(wrap(old, own, old.names), wrap(new, tokens, new.names), here).array

    mapped = jax.shard_map(
        write_own,
        in_specs=(*specs, *[PartitionSpec()] * len(numbers)),
        out_specs=specs[0],
    )
    return wrap(old, mapped(*arrays, *numbers), old.names)
