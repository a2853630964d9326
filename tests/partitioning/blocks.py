"""What collectives do to blocks, in numpy: the reference for `axonym.partitioning.collectives`.

A value is a list of arrays, one per device, in the order of the mesh, whose last axis runs fastest. `axes`
are mesh axes; of several, the last runs fastest too, whatever their order in the mesh is.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Blocks = list[np.ndarray]
Axes = tuple[str, ...]


class Grid:
    """The axes of a mesh and their sizes."""

    def __init__(self, **sizes: int) -> None:
        self.sizes = sizes
        self.places = [dict(zip(sizes, at, strict=True)) for at in itertools.product(*map(range, sizes.values()))]

    def axis_size(self, axes: Axes) -> int:
        """Count the devices along mesh axes."""
        return math.prod(self.sizes[axis] for axis in axes)

    def axis_index(self, axes: Axes) -> list[int]:
        """Number each device along mesh axes."""
        found = []
        for place in self.places:
            index = 0
            for axis in axes:
                index = index * self.sizes[axis] + place[axis]
            found.append(index)
        return found

    def groups(self, axes: Axes) -> list[list[int]]:
        """List, for each device, those that it talks to along mesh axes, itself among them, by their numbers."""
        index = self.axis_index(axes)
        rest = [tuple(at for axis, at in place.items() if axis not in axes) for place in self.places]
        everyone = range(len(self.places))
        return [sorted((j for j in everyone if rest[j] == rest[i]), key=index.__getitem__) for i in everyone]

    def cut(self, whole: np.ndarray, entries: Sequence[Axes]) -> Blocks:
        """Cut an array: each device gets, along each dimension, the piece of its number over the mesh axes there."""
        blocks = [whole] * len(self.places)
        for dim, axes in enumerate(entries):
            ways, index = self.axis_size(axes), self.axis_index(axes)
            blocks = [np.split(block, ways, dim)[i] for block, i in zip(blocks, index, strict=True)]
        return blocks

    def _together(self, blocks: Blocks, axes: Axes, combine: Callable[[Blocks], Any]) -> list[Any]:
        return [combine([blocks[j] for j in group]) for group in self.groups(axes)]

    def psum(self, blocks: Blocks, axes: Axes) -> Blocks:
        """Add up: all get the sum."""
        return self._together(blocks, axes, sum)

    def pmean(self, blocks: Blocks, axes: Axes) -> Blocks:
        """Average: all get the mean."""
        return [total / self.axis_size(axes) for total in self.psum(blocks, axes)]

    def pmax(self, blocks: Blocks, axes: Axes) -> Blocks:
        """Compare: all get the largest."""
        return self._together(blocks, axes, lambda group: np.max(np.stack(group), 0))

    def pmin(self, blocks: Blocks, axes: Axes) -> Blocks:
        """Compare: all get the smallest."""
        return self._together(blocks, axes, lambda group: np.min(np.stack(group), 0))

    def all_gather(self, blocks: Blocks, axes: Axes, dim: int) -> Blocks:
        """Put in a row along a dimension: all get everything."""
        return self._together(blocks, axes, lambda group: np.concatenate(group, dim))

    def psum_scatter(self, blocks: Blocks, axes: Axes, dim: int) -> Blocks:
        """Add up and cut along a dimension: each gets its piece of the sum."""
        ways, index = self.axis_size(axes), self.axis_index(axes)
        return [np.split(total, ways, dim)[i] for total, i in zip(self.psum(blocks, axes), index, strict=True)]

    def all_to_all(self, blocks: Blocks, axes: Axes, split: int, concat: int) -> Blocks:
        """Cut along one dimension, send each piece to its device, and put in a row what comes along the other one."""
        ways, index = self.axis_size(axes), self.axis_index(axes)
        pieces = [np.split(block, ways, split) for block in blocks]
        return [
            np.concatenate([pieces[j][i] for j in group], concat)
            for group, i in zip(self.groups(axes), index, strict=True)
        ]

    def ppermute(self, blocks: Blocks, axes: Axes, pairs: Sequence[tuple[int, int]]) -> Blocks:
        """Send from each source to its destination; where nothing comes, there are zeros."""
        sources = {destination: source for source, destination in pairs}
        index = self.axis_index(axes)
        return [
            blocks[group[sources[i]]] if i in sources else np.zeros_like(block)
            for block, group, i in zip(blocks, self.groups(axes), index, strict=True)
        ]

    def ring(self, axes: Axes, shift: int) -> list[tuple[int, int]]:
        """Pair each device with the one that is so many further along the ring."""
        count = self.axis_size(axes)
        return [(i, (i + shift) % count) for i in range(count)]
