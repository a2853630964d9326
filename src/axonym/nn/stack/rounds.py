"""Layers that are stored by rounds, for circular pipelines: each stage has some layers of every round.

With two rounds, eight layers are stored along two axes, `layers_round=2` and `layers=4`, in order of depth. A mapping
of `layers` to four stages gives the first one layers 0 and 4, the second one layers 1 and 5, and so on.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax

from ...array import NamedArray, is_named_array
from ...axis import Axis, shown
from ...base.kinds import is_array
from ...engine.core import rename_hole
from ...errors import ArgumentError, AxisSizeError, ShardingError, message
from ...layout.assignment import Entry
from ...ops.shape import flatten_axes, unflatten_axis
from ...transform.leaves import drop_axis_of_hole, is_hole
from ...transform.vmap import vmap
from . import running
from .running import numbered

T = TypeVar("T")


def storage(Block: Axis, rounds: int) -> tuple[Axis, ...]:
    """Return the axes along which layers are stored, outermost first."""
    if rounds == 1:
        return (Block,)
    # A derived name, with a dot, would be laid out like the layers.
    return Axis(f"{Block.name}_round", rounds), Block.resize(Block.size // rounds)


def check(function: str, Block: Axis, rounds: int) -> None:
    """Check a number of rounds.

    Raises:
        ArgumentError: if it is not positive.
        AxisSizeError: if it does not divide the layers.
    """
    if not isinstance(rounds, int) or isinstance(rounds, bool) or rounds < 1:
        problem = f"the number of rounds must be a positive int, not {rounds!r}"
        raise ArgumentError(message(function, problem, hint="write rounds=2"))
    if Block.size % rounds:
        problem = f"{shown(Block)} cannot be split evenly into {rounds} rounds"
        raise AxisSizeError(message(function, problem, hint=f"use a multiple of {rounds} layers"))


def block_here(function: str, layers: object, axes: Sequence[Axis]) -> tuple[Axis, Entry]:
    """Return the axis of the layers that this device has, and the mesh axes over which a shard_map splits them.

    Args:
        function: what the user called.
        layers: the layers.
        axes: those of `storage`.

    Raises:
        ShardingError: if it splits several rounds, whose layers are not in sequence on one device.
    """
    *outer, Stored = axes
    Block, over = running.block_here(layers, Stored)
    for Round in outer:
        if over:
            problem = (
                f"{shown(Stored)} of each of {Round.size} rounds are split over {', '.join(over)}"
            )
            hint = "a device would need those of others in between; make the layers without rounds"
            raise ShardingError(message(function, problem, hint=hint))
    return Block, over


def mapped(fn: Callable[..., Any], axes: Sequence[Axis]) -> Callable[..., Any]:
    """Map a function over the axes of `storage`."""
    for axis in reversed(axes):
        fn = vmap(fn, axis)
    return fn


def split(tree: T, Block: Axis, rounds: int) -> T:
    """Split the axis of layers into rounds; plain arrays have it first."""
    axes = storage(Block, rounds)
    if len(axes) == 1:
        return tree

    def divide(leaf: Any) -> Any:
        if isinstance(leaf, NamedArray):
            if Block.name not in leaf.names:
                return leaf
            if is_hole(leaf):
                return rename_hole(leaf, (axes[0].name, *leaf.names), axes[0])
            return unflatten_axis(leaf, Block.name, axes)
        if is_array(leaf) and leaf.ndim:
            return unflatten_axis(numbered(leaf, (Block.name,)), Block.name, axes).array
        return leaf

    divided: T = jax.tree.map(divide, tree, is_leaf=is_named_array)
    return divided


def joined(tree: T, Block: Axis, rounds: int) -> T:
    """Join the rounds of all arrays to one axis of layers, in order of depth."""
    axes = storage(Block, rounds)
    if len(axes) == 1:
        return tree
    Round = axes[0].name

    def join(leaf: Any) -> Any:
        if isinstance(leaf, NamedArray):
            if Round not in leaf.names:
                return leaf
            if is_hole(leaf):
                return drop_axis_of_hole(leaf, Round)
            return flatten_axes(leaf, (Round, Block.name), Block)
        if is_array(leaf) and leaf.ndim:
            return join(numbered(leaf, (Round, Block.name))).array
        return leaf

    whole: T = jax.tree.map(join, tree, is_leaf=is_named_array)
    return whole
