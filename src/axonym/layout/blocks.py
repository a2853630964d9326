"""Windows that slide along sharded axes: neighbours exchange the edges of their blocks.

XLA's partitioner does this too, but it gets some gradients wrong: it also sums over mesh axes that nothing is split
over, and scatters gradients of the maxima of overlapping windows to the wrong places.
"""

from collections.abc import Mapping, Sequence, Set
from itertools import chain, pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..names.plans import Names
from . import context, explicit, modes, partition, records
from .assignment import Entry, MeshLike
from .partition import ways_on

Edges = dict[int, tuple[int, int]]
"""For dimensions in blocks, how many elements of the block before and of the one after a block needs."""


class Slide(NamedTuple):
    """How a window slides along one dimension, whose elements are `apart` from each other."""

    size: int
    window: int
    step: int
    pads: tuple[int, int]
    apart: int = 1

    @property
    def positions(self) -> int:
        """The number of windows."""
        return ((self.size - 1) * self.apart + 1 + sum(self.pads) - self.window) // self.step + 1

    def of_blocks(self, count: int) -> tuple[tuple[int, int], tuple[int, int]] | None:
        """Return how many elements of its two neighbours a block needs for its windows, and the padding.

        All blocks have equally many windows; together they may be more than the whole dimension has. The result is None
        if windows start at different positions of blocks, or need more than the neighbours have.
        """
        block = self.size // count
        windows, rest = divmod(block * self.apart, self.step)
        if rest or not block or self.positions > windows * count:
            return None
        low, end = self.pads[0], (windows - 1) * self.step - self.pads[0] + self.window - 1
        before, after = max(0, -(-low // self.apart)), max(0, end // self.apart - (block - 1))
        if max(before, after) > block:
            return None
        return (before, after), (low - before * self.apart, end - (block - 1 + after) * self.apart)


def mesh_of(array: jax.Array) -> MeshLike:
    """Return the current mesh, otherwise that of an array, which may be empty."""
    return context.context_mesh() or jax.typeof(array).sharding.mesh


def manual_axes(mesh: MeshLike, entries: Sequence[Entry], typed: bool) -> set[str]:
    """Choose the mesh axes that are Manual while blocks are computed.

    With Auto axes, these are all: the compiler could use those that are not in `entries`. With Explicit ones, a
    surrounding `vmap` may use other axes.
    """
    taken = set(context.taken_axes())
    if typed and not taken:
        return set(chain.from_iterable(entries))
    free = set(mesh.axis_names) - modes.find_manual_axes(mesh)
    if typed:
        return free - taken
    return free


def may_idle(mesh: MeshLike, mesh_axes: Set[str]) -> bool:
    """Return whether an array on one of these mesh axes may leave another axis of the mesh idle."""
    return bool(mesh_axes) and sum(size > 1 for size in mesh.shape.values()) > 1


def entries_from_type_and_mapping(array: jax.Array, names: Names) -> list[Entry]:
    """Return the mesh axes of each dimension: Explicit ones by the type, Auto ones by the mapping."""
    mapping, mesh = context.current_mapping(), context.context_mesh()
    entries = list(explicit.entries_from_type(array)) or [()] * array.ndim
    if mapping is None or mesh is None or records.AUDIT.get() is not None:
        return entries
    auto = modes.find_auto_axes(mesh)
    if not auto:
        return entries
    mapped = partition.entries_from_spec(
        partition.partition_spec(names, array.shape, mapping, mesh)
    )
    both: list[Entry] = []
    for own, entry in zip(entries, mapped, strict=True):
        both.append((*own, *partition.only(entry, auto)))
    return both


def blocks_of(
    mesh: MeshLike, entries: Sequence[Entry], slides: Mapping[int, Slide]
) -> tuple[list[Entry], Edges, list[tuple[int, int]]]:
    """Choose which dimensions stay in blocks, and which are gathered.

    Args:
        mesh: the mesh.
        entries: the mesh axes of each dimension.
        slides: for each dimension that windows slide along, how.

    Returns:
        The mesh axes that each dimension keeps, the edges that blocks exchange, and the padding of each slide.
    """
    kept, edges, pads = list(entries), Edges(), [slide.pads for slide in slides.values()]
    for i, (at, slide) in enumerate(slides.items()):
        found = None
        if kept[at]:
            found = slide.of_blocks(ways_on(mesh, kept[at]))
        if found is None:
            kept[at] = ()
        else:
            edges[at], pads[i] = found
    return kept, edges, pads


def with_edges(
    block: jax.Array, edges: Edges, entries: Sequence[Entry], outside: Any = None
) -> jax.Array:
    """Put the edges of its neighbours around a block, inside a shard_map.

    Args:
        block: the block.
        edges: how much of each neighbour.
        entries: the mesh axes of each dimension.
        outside: the value where there is no neighbour; by default zeros.
    """
    for at, (before, after) in edges.items():
        mesh_axes, size = entries[at], block.shape[at]
        devices, ordered = devices_of(mesh_axes)
        pieces = [block]
        if before:
            edge = lax.slice_in_dim(block, size - before, size, axis=at)
            edge = lax.ppermute(edge, ordered, list(pairwise(devices)))
            if outside is not None:
                edge = jnp.where(lax.axis_index(mesh_axes) == 0, outside, edge)
            pieces.insert(0, edge)
        if after:
            edge = lax.slice_in_dim(block, 0, after, axis=at)
            edge = lax.ppermute(edge, ordered, list(pairwise(devices[::-1])))
            if outside is not None:
                is_last = lax.axis_index(mesh_axes) == len(devices) - 1
                edge = jnp.where(is_last, outside, edge)
            pieces.append(edge)
        block = lax.concatenate(pieces, at)
    return block


def devices_of(mesh_axes: Entry) -> tuple[list[int], Entry]:
    """List the devices of blocks in their order, and the mesh axes in that of the mesh, by which `ppermute` counts."""
    mesh = jax.sharding.get_abstract_mesh()
    ordered = partition.only(mesh.axis_names, mesh_axes)
    places = np.arange(ways_on(mesh, ordered)).reshape([mesh.shape[axis] for axis in ordered])
    turned = places.transpose([ordered.index(axis) for axis in mesh_axes])
    devices: list[int] = turned.ravel().tolist()
    return devices, ordered


def trimmed(result: jax.Array, slides: Mapping[int, Slide]) -> jax.Array:
    """Cut off the results of the last blocks beyond the last window."""
    for at, slide in slides.items():
        if result.shape[at] != slide.positions:
            result = lax.slice_in_dim(result, 0, slide.positions, axis=at)
    return result
