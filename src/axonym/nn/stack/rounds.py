"""Internal. Layers that are stored by rounds, for circular pipelines: each stage has some layers of every round.

Two rounds store eight layers along two axes, `layers_round=2` and `layers=4`, in order of depth. A mapping of `layers`
to four stages gives the first one layers 0 and 4, the second one layers 1 and 5, and so on. One axis in order of depth
would give a stage neighbouring layers, which had to move between devices before each step.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ...axis import Axis, shown
from ...engine.core import rename_hole
from ...errors import ArgumentError, AxisSizeError, ShardingError, message
from ...layout.assignment import Entry
from ...ops.shape import flatten_axes, unflatten_axis
from ...transform.leaves import drop_axis_of_hole
from ...transform.vmap import vmap
from . import running

T = TypeVar("T")


def list_storage_axes(Block: Axis, rounds: int) -> tuple[Axis, ...]:
    """Return the axes along which layers are stored, outermost first."""
    if rounds == 1:
        return (Block,)
    # A mapping of `layers` also applies to derived names such as `layers.round`, so this name has no dot.
    return Axis(f"{Block.name}_round", rounds), Block.resize(Block.size // rounds)


def check_rounds(function: str, Block: Axis, rounds: int) -> None:
    """Check a number of rounds.

    Raises:
        ArgumentError: if it is not positive.
        AxisSizeError: if it does not divide the layers.
    """
    # True is an int, but whoever writes it means something else.
    if not isinstance(rounds, int) or isinstance(rounds, bool) or rounds < 1:
        problem = f"the number of rounds must be a positive int, not {rounds!r}"
        raise ArgumentError(message(function, problem, hint="write rounds=2"))
    if Block.size % rounds:
        problem = f"{shown(Block)} cannot be split evenly into {rounds} rounds"
        raise AxisSizeError(message(function, problem, hint=f"use a multiple of {rounds} layers"))


def find_block(function: str, layers: object, axes: Sequence[Axis]) -> tuple[Axis, Entry]:
    """Return the axis of the layers that this device has, and the mesh axes over which a shard_map splits them.

    Args:
        function: what the user called.
        layers: the layers.
        axes: those of `storage`.

    Raises:
        ShardingError: if it splits several rounds, whose layers are not in sequence on one device.
    """
    *outer, Stored = axes
    Block, over = running.find_block(layers, Stored)
    # The block of a device is consecutive only within one round.
    for Round in outer:
        if over:
            problem = (
                f"{shown(Stored)} of each of {Round.size} rounds are split over {', '.join(over)}"
            )
            hint = "a device would need those of others in between; make the layers without rounds"
            raise ShardingError(message(function, problem, hint=hint))
    return Block, over


def map_over_axes(fn: Callable[..., Any], axes: Sequence[Axis]) -> Callable[..., Any]:
    """Map a function over the axes of `storage`."""
    return functools.reduce(vmap, reversed(axes), fn)


def split_rounds(tree: T, Block: Axis, rounds: int) -> T:
    """Split the axis of layers of all arrays into rounds; plain arrays have it first."""
    axes = list_storage_axes(Block, rounds)
    if len(axes) == 1:
        return tree

    Round = axes[0]
    return running.map_layers(
        lambda leaf: unflatten_axis(leaf, Block.name, axes),
        tree,
        Block.name,
        (Block.name,),
        lambda hole: rename_hole(hole, (Round.name, *hole.names), Round),
    )


def join_rounds(tree: T, Block: Axis, rounds: int) -> T:
    """Join the rounds of all arrays to one axis of layers, in order of depth."""
    axes = list_storage_axes(Block, rounds)
    if len(axes) == 1:
        return tree
    Round = axes[0].name
    return running.map_layers(
        lambda leaf: flatten_axes(leaf, (Round, Block.name), Block),
        tree,
        Round,
        (Round, Block.name),
        lambda hole: drop_axis_of_hole(hole, Round),
    )
