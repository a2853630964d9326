"""An order of positions in which each device has equally much to do under a causal mask.

In order, the device with the first positions sees almost no keys, and all wait for the one with the last. In zig-zag
order, of 2n runs of positions, device i of n has run i and run 2n - 1 - i:

    positions   0 1 2 3 4 5 6 7
    device 0    0             7
    device 1      1         6
    device 2        2     5
    device 3          3 4
"""

from typing import TypeVar

import jax
import numpy as np

from ....array import NamedArray, is_named_array
from ....axis import AxisSelector, axis_name
from ....base.phrases import missing_axis
from ....engine.core import facts
from ....errors import ArgumentError, message
from ....layout import context, partition
from ....ops.index import take
from ....partitioning.trees import collect_names
from ....transform.leaves import is_hole
from ...settings import check_int

__all__ = ["zigzag"]

T = TypeVar("T")


def zigzag(tree: T, Pos: AxisSelector, ways: int | None = None, *, undo: bool = False) -> T:
    """Put the positions of all arrays of a tree in zig-zag order, or back in order.

    Masks and embeddings of positions then need the positions, which are put in that order in the same call.

    Args:
        tree: arrays, such as tokens, targets and positions; those without the axis stay as they are.
        Pos: the axis of positions.
        ways: over how many devices they are split; by default, over how many the current mapping splits them.
        undo: whether to undo it.

    Returns:
        The tree, with the arrays in the new order.

    Raises:
        AxisNotFoundError: if no array has the axis.
        ArgumentError: if there are not as many positions in each of `2 * ways` runs.

    Reference:
        Brandon et al. (2023), Striped attention: faster ring attention for causal transformers, for the imbalance;
        Zhu (2024), ring-flash-attention, for this order.

    Examples:
        >>> Pos = axn.Axis("pos", 8)
        >>> positions = axn.nn.zigzag(axn.arange(Pos), "pos", 2)
        >>> positions.tolist()
        [0, 1, 6, 7, 2, 3, 4, 5]
        >>> axn.nn.zigzag(positions, "pos", 2, undo=True).tolist()
        [0, 1, 2, 3, 4, 5, 6, 7]
    """
    name = axis_name(Pos)
    if ways is not None:
        ways = check_int("zigzag", "ways", ways)
    known = collect_names(tree)
    if name not in known:
        raise missing_axis("zigzag", name, known)

    def reorder(x: object) -> object:
        if not isinstance(x, NamedArray) or is_hole(x) or name not in x.names:
            return x
        order = _find_order(x, name, ways)
        if undo:
            order = np.argsort(order)  # the inverse of a permutation
        return take(x, name, NamedArray(order, (name,)))

    result: T = jax.tree.map(reorder, tree, is_leaf=is_named_array)
    return result


def _find_order(x: NamedArray, name: str, ways: int | None) -> np.ndarray:
    """Return which position comes where."""
    size = x.axis_size(name)
    if ways is None:
        ways = _count_ways(name, size)
    if ways < 1 or size % (2 * ways):
        problem = f"{name}={size} cannot be split evenly in twice {ways} runs"
        hint = f"use a multiple of {2 * ways}"
        raise ArgumentError(message("zigzag", problem, f"array has: {facts(x)}", hint=hint))
    # The second half of the runs backwards: the first device gets the last one.
    runs = np.arange(size).reshape(2, ways, -1)
    pairs = np.stack([runs[0], runs[1, ::-1]], axis=1)
    return pairs.ravel()


def _count_ways(name: str, size: int) -> int:
    """Return over how many devices the current mapping splits an axis."""
    mesh = context.context_mesh()
    entry = context.map_names({name: size}).get(name, ())
    if mesh is None or not entry:
        return 1
    return partition.count_shards(mesh, entry)
