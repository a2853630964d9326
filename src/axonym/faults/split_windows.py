"""Internal. XLA gets gradients wrong where a window slides along a split axis, as in convolutions and pools.

It sums gradients over mesh axes that split nothing, and passes gradients of overlapping maxima to the wrong elements.
All versions, on Auto axes of a mesh of several axes; `tests/upstream/test_split_windows.py` shows it. The guard
computes each block on its own device in a shard_map, where neighbours exchange the edges of their blocks.
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
        """Return the number of elements of each neighbour that a block needs for its windows, and the padding.

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
    """Return whether an array on one of these mesh axes may leave another mesh axis idle."""
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
        counts = (count_shards(mesh, entry) for entry in (*entries, outputs))
        return max(counts) > 1 or may_idle(mesh, manual)
    return any(count_shards(mesh, entries[at]) > 1 for at in spatial)


def choose_blocks(
    mesh: MeshLike,
    entries: Sequence[Entry],
    slides: Mapping[int, Slide],
    modes: Mapping[int, str] | None = None,
) -> tuple[list[Entry], Edges, list[tuple[int, int]]]:
    """Choose which dimensions stay in blocks, and which are gathered.

    Args:
        mesh: the mesh.
        entries: the mesh axes of each dimension.
        slides: for each dimension that windows slide along, how.
        modes: how dimensions are padded that are not padded by zeros; the edges of these have all padding.

    Returns:
        The mesh axes that each dimension keeps, the edges that blocks exchange, and the padding of each slide.
    """
    modes = modes or {}
    kept, edges, pads = list(entries), Edges(), [slide.pads for slide in slides.values()]
    for i, (at, slide) in enumerate(slides.items()):
        found = None
        if kept[at]:
            count = count_shards(mesh, kept[at])
            found = slide.of_blocks(count)
            # An element at the end of an axis is not reflected itself, so that a block needs one more.
            if found and modes.get(at) == "reflect" and max(found[0]) >= slide.size // count:
                found = None
        if found is None:
            kept[at] = ()
        else:
            edges[at], pads[i] = found
        if found is None and at in modes:
            edges[at], pads[i] = slide.pads, (0, 0)
    return kept, edges, pads


def add_edges(
    block: jax.Array,
    edges: Edges,
    entries: Sequence[Entry],
    outside: Any = None,
    modes: Mapping[int, str] | None = None,
    beyond: Sequence[jax.Array] = (),
) -> jax.Array:
    """Inside a shard_map, add the edges of its neighbours to a block.

    Args:
        block: the block.
        edges: how much of each neighbour.
        entries: the mesh axes of each dimension.
        outside: the value where there is no neighbour; by default zeros.
        modes: what is there instead along some dimensions: a mode of `jnp.pad`, or "given" for `beyond`.
        beyond: what lies before and after the dimension whose mode is "given".
    """
    modes = modes or {}
    # The given ends have the sizes of the block before other edges widen it.
    for at in sorted(edges, key=lambda at: modes.get(at) != "given"):
        pieces = [block]
        for is_after, width in enumerate(edges[at]):
            if width:
                edge = _find_edge(
                    block, at, width, entries[at], bool(is_after), outside, modes, beyond
                )
                pieces.insert(len(pieces) * is_after, edge)
        block = lax.concatenate(pieces, at)
    return block


def _find_edge(
    block: jax.Array,
    at: int,
    width: int,
    mesh_axes: Entry,
    is_after: bool,
    outside: Any,
    modes: Mapping[int, str],
    beyond: Sequence[jax.Array],
) -> jax.Array:
    """Return what lies before or after a block."""
    size, mode = block.shape[at], modes.get(at)
    end = None  # what lies beyond the first or the last block
    if mode == "given":
        own = beyond[is_after]
        start = 0 if is_after else own.shape[at] - width
        end = lax.slice_in_dim(own, start, start + width, axis=at)
    elif mode is not None and (mode != "wrap" or not mesh_axes):
        widths = [(0, 0)] * block.ndim
        widths[at] = (0, width) if is_after else (width, 0)
        start = size if is_after else 0
        end = lax.slice_in_dim(jnp.pad(block, widths, mode), start, start + width, axis=at)
    elif mode is None:
        end = outside
    if not mesh_axes and end is not None:
        return end

    devices, ordered = list_devices(mesh_axes)
    if is_after:
        devices = devices[::-1]
    pairs = list(pairwise(devices))
    if mode == "wrap":
        pairs.append((devices[-1], devices[0]))
    start = 0 if is_after else size - width
    own = lax.slice_in_dim(block, start, start + width, axis=at)
    edge: jax.Array = lax.ppermute(own, ordered, pairs)
    if end is None:
        return edge
    last = len(devices) - 1 if is_after else 0
    chosen: jax.Array = jnp.where(lax.axis_index(mesh_axes) == last, end, edge)
    return chosen


def pad_ends(
    array: jax.Array,
    sides: Mapping[int, tuple[int, int]],
    modes: Mapping[int, str],
    beyond: Sequence[jax.Array],
) -> jax.Array:
    """Pad a complete array as `add_edges` pads the blocks of a split one."""
    return add_edges(array, dict(sides), [()] * array.ndim, None, modes, beyond)


def trim(result: jax.Array, slides: Mapping[int, Slide]) -> jax.Array:
    """Cut off the results of the last blocks beyond the last window."""
    for at, slide in slides.items():
        if result.shape[at] != slide.positions:
            result = lax.slice_in_dim(result, 0, slide.positions, axis=at)
    return result
