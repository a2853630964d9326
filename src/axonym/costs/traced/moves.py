"""Internal. The collectives that bring an array from one layout to another.

`Walk` and `lookups` call it. The order of steps is that of XLA's partitioner. It must not know equations.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ...engine import Entry, only, without
from ..shared.ring import Pairs
from .compilers import ACCELERATOR, Compiler
from .equations import Value, divide_shape
from .propagation import Sum


class Move(NamedTuple):
    """One collective.

    Attributes:
        kind: the same as in `Collective`.
        mesh_axes: the mesh axes along which devices take part.
        shape: the shape of the operand on one device.
        sizes: the full sizes of the dimensions that are summed over, gathered or moved.
    """

    kind: str
    mesh_axes: Entry
    shape: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def elements(self) -> int:
        """The number of elements in one device's shard of the operand."""
        return math.prod(self.shape)


class Sent(NamedTuple):
    """A collective of a traced function.

    Attributes:
        move: what is sent.
        dtype: the dtype of the operand.
        itemsize: bytes of one element.
        source: the name of the operation.
        runs: how often it runs.
        is_windowed: whether a product sends each part of its result around as soon as the part is computed.
        pairs: source and target of each message of a permute, by their places along the mesh axis.
    """

    move: Move
    dtype: str
    itemsize: int
    source: str
    runs: int
    is_windowed: bool = False
    pairs: Pairs = frozenset()


def order(axes: Iterable[str], mesh: Mapping[str, int]) -> Entry:
    """Return mesh axes in the order of the mesh, without axes of size 1."""
    several = [axis for axis, size in mesh.items() if size > 1]
    return only(several, set(axes))


def list_moves(
    value: Value,
    wanted: Sequence[Entry],
    mesh: Mapping[str, int],
    *,
    sums: Sequence[Sum] = (),
    keeping: Iterable[str] = (),
    compiler: Compiler = ACCELERATOR,
) -> list[Move]:
    """List the collectives that bring an array to another layout.

    First, partial sums are added, by a reduce-scatter along mesh axes that divide the result. Then mesh axes move to
    other dimensions, and at last dimensions are gathered. A device that only keeps a part of its shard sends nothing.

    Args:
        value: the array before.
        wanted: the mesh axes of each dimension in the new layout.
        mesh: sizes of the mesh axes.
        sums: the unfinished sums over single dimensions.
        keeping: mesh axes along which sums stay unfinished.
        compiler: how the sums are added.
    """
    found: list[Move] = []
    now = list(value.entries)
    has = [axis for entry in now for axis in entry]
    wants = {axis for entry in wanted for axis in entry}
    parts = without(value.partial, set(keeping))

    def find_shape() -> tuple[int, ...]:
        return divide_shape(value.shape, now, mesh)

    # A mesh axis that divides nothing yet costs nothing: each device keeps a part of its array.
    for i, entry in enumerate(wanted):
        fresh = without(entry, {*now[i], *has, *parts})
        now[i] = (*now[i], *fresh)
    scattered = order(only(parts, wants), mesh)
    if scattered and compiler.scatters:
        found.append(Move("reduce-scatter", scattered, find_shape(), _list_sizes(sums)))
        for i, entry in enumerate(wanted):
            now[i] = (*now[i], *only(entry, scattered))
    elif scattered:
        # Each device gets the complete sum by all-reduce, and keeps a part.
        found.append(Move("all-reduce", scattered, find_shape(), _list_sizes(sums)))
    rest = order(without(parts, scattered), mesh)
    # One all-reduce for all dimensions, or one for each.
    together = [sums]
    if not compiler.folds and sums:
        together = [(one,) for one in sums]
    for several in together:
        own = only(rest, _collect_axes(several)) if several else rest
        if own:
            found.append(Move("all-reduce", own, find_shape(), _list_sizes(several)))
    # A device keeps its part of a sum along these mesh axes at no cost.
    rest = order(parts, mesh)
    for i, entry in enumerate(wanted):
        now[i] = (*now[i], *without(only(entry, rest), now[i]))

    # A mesh axis that leaves one dimension for another is an all-to-all.
    for i, entry in enumerate(wanted):
        arriving = order((axis for axis in without(entry, now[i]) if axis in has), mesh)
        if arriving:
            sizes = (value.shape[i],)
            found.append(Move("all-to-all", arriving, find_shape(), sizes))
            for j, own in enumerate(now):
                now[j] = without(own, arriving)
            now[i] = (*now[i], *arriving)
    # A mesh axis that is left over is gathered.
    for i, entry in enumerate(wanted):
        leaving = order(without(now[i], entry), mesh)
        if leaving:
            found.append(Move("all-gather", leaving, find_shape(), (value.shape[i],)))
            now[i] = without(now[i], leaving)
    return found


def _list_sizes(sums: Sequence[Sum]) -> tuple[int, ...]:
    return tuple(one.size for one in sums)


def _collect_axes(sums: Sequence[Sum]) -> set[str]:
    return {axis for one in sums for axis in one.mesh_axes}


def count_group(move: Move, mesh: Mapping[str, int]) -> int:
    """Return the number of devices in a group."""
    counts = (axis.partition(":") for axis in move.mesh_axes)
    return math.prod(int(count or mesh[name]) for name, _, count in counts)
