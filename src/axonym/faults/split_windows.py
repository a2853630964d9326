"""Internal. XLA gets gradients wrong where a window slides along a split axis, as in convolutions and pools.

It sums gradients over mesh axes that nothing is split over, too, and passes those of overlapping maxima to the wrong
elements. All versions, on Auto axes of a mesh of several axes; `tests/upstream/test_split_windows.py` shows it. The
guard computes each block on its own device in a shard_map, where neighbours exchange the edges of their blocks.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ..layout.assignment import Entry, MeshLike
from ..layout.blocks import list_devices
from ..layout.partition import count_shards

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


def may_idle(mesh: MeshLike, mesh_axes: Set[str]) -> bool:
    """Return whether an array on one of these mesh axes may leave another axis of the mesh idle."""
    return bool(mesh_axes) and sum(size > 1 for size in mesh.shape.values()) > 1


def must_pool_in_blocks(
    reduction: object, mesh: MeshLike, entries: Sequence[Entry], overlapping: Iterable[int]
) -> bool:
    """Return whether devices reduce windows block by block: maxima or minima that overlap along a split dimension."""
    if reduction not in (lax.max, lax.min):
        return False
    return any(count_shards(mesh, entries[at]) > 1 for at in overlapping)


def must_convolve_in_blocks(
    mesh: MeshLike,
    entries: Sequence[Entry],
    spatial: Sequence[int],
    groups: int,
    outputs: Entry,
    manual: Set[str],
) -> bool:
    """Return whether devices compute a convolution block by block.

    With groups, any split axis will do, perhaps one that only a surrounding `vmap` knows.

    Args:
        mesh: the mesh.
        entries: the mesh axes of each dimension of the input.
        spatial: its spatial dimensions.
        groups: the number of groups.
        outputs: the mesh axes of the output axis of the weight.
        manual: the mesh axes that would become Manual.
    """
    if groups > 1:
        ways = (count_shards(mesh, entry) for entry in (*entries, outputs))
        return max(ways) > 1 or may_idle(mesh, manual)
    return any(count_shards(mesh, entries[at]) > 1 for at in spatial)


def choose_blocks(
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
            found = slide.of_blocks(count_shards(mesh, kept[at]))
        if found is None:
            kept[at] = ()
        else:
            edges[at], pads[i] = found
    return kept, edges, pads


def add_edges(
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
        devices, ordered = list_devices(mesh_axes)
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


def trim(result: jax.Array, slides: Mapping[int, Slide]) -> jax.Array:
    """Cut off the results of the last blocks beyond the last window."""
    for at, slide in slides.items():
        if result.shape[at] != slide.positions:
            result = lax.slice_in_dim(result, 0, slide.positions, axis=at)
    return result
