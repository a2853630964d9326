"""Internal. How layers are stored for pipelines: by rounds, and with empty places for unequal stages.

Two rounds store eight layers along two axes, `layers_round=2` and `layers=4`, in order of depth. A mapping of `layers`
to four stages gives the first one layers 0 and 4, the second one layers 1 and 5, and so on. One axis in order of depth
would give a stage neighbouring layers, which had to move between devices before each step.

For a number of stages that does not divide the layers, the last places have no layer: 30 layers for 4 stages
are stored along `layers=32`. Places hold zeros and are skipped. So their gradients are zero, too, and no sum over
parameters or gradients changes.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax.numpy as jnp

from ...array import NamedArray, named
from ...axis import Axis, shown
from ...create import arange
from ...engine.core import rename_hole
from ...errors import ArgumentError, AxisSizeError, ShardingError, message
from ...layout.assignment import Entry
from ...ops.index import index
from ...ops.join import concatenate
from ...ops.shape import flatten_axes, rearrange, unflatten_axis
from ...ops.where import where
from ...transform.leaves import drop_axis_of_hole
from ...transform.vmap import vmap
from . import running

T = TypeVar("T")


def list_storage_axes(Block: Axis, rounds: int, stages: int = 1) -> tuple[Axis, ...]:
    """Return the axes along which layers are stored, outermost first, with the empty places."""
    Stored = Block.resize(-(-Block.size // (rounds * stages)) * stages)
    if rounds == 1:
        return (Stored,)
    # A mapping of `layers` also applies to derived names such as `layers.round`, so this name has no dot.
    return Axis(f"{Block.name}_round", rounds), Stored


def count_places(Block: Axis, rounds: int, stages: int) -> int:
    """Return the number of layers that the storage has room for."""
    return rounds * list_storage_axes(Block, rounds, stages)[-1].size


def check_rounds(function: str, Block: Axis, rounds: int, stages: int = 1) -> None:
    """Check a number of rounds, and of stages that need not divide the layers.

    Raises:
        ArgumentError: if one is not positive.
        AxisSizeError: if the rounds do not divide the layers, without a number of stages.
    """
    for name, count in (("rounds", rounds), ("stages", stages)):
        # True is an int, but whoever writes it means something else.
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            problem = f"the number of {name} must be a positive int, not {count!r}"
            raise ArgumentError(message(function, problem, hint=f"write {name}=2"))
    if stages == 1 and Block.size % rounds:
        problem = f"{shown(Block)} cannot be split evenly into {rounds} rounds"
        raise AxisSizeError(message(function, problem, hint=f"use a multiple of {rounds} layers"))


def find_block(
    function: str, layers: object, axes: Sequence[Axis], *, skipped: int = 0
) -> tuple[Axis, Entry]:
    """Return the axis of the layers that this device has, and the mesh axes over which a shard_map splits them.

    Args:
        function: what the user called.
        layers: the layers.
        axes: those of `storage`.
        skipped: the number of places without a layer.

    Raises:
        ShardingError: if it splits several rounds, whose layers are not in sequence on one device, or layers for
            unequal stages, of which each device would have another number.
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
    if over and skipped:
        problem = f"layers for unequal stages are split over {', '.join(over)}"
        hint = "devices would have unequal numbers of them; make the layers without stages"
        raise ShardingError(message(function, problem, hint=hint))
    return Block, over


def map_over_axes(fn: Callable[..., Any], axes: Sequence[Axis]) -> Callable[..., Any]:
    """Map a function over the axes of `storage`."""
    return functools.reduce(vmap, reversed(axes), fn)


def pad_layers(leaf: NamedArray, Block: Axis, places: int, *, repeats: bool) -> NamedArray:
    """Fill the empty places with the last layer, or with zeros.

    Args:
        leaf: axes {Block, ...}.
        Block: the axis of layers.
        places: the number of layers with the places.
        repeats: whether to repeat the last layer, as for arguments, so that values are real ones.
    """
    if places == Block.size:
        return leaf
    last = index(leaf, {Block.name: slice(Block.size - 1, None)})
    if not repeats:
        last = named(jnp.zeros_like(last.array), last.names)
    return concatenate(Block.name, (leaf, *(last,) * (places - Block.size)))


def empty_places(tree: T, Block: Axis, rounds: int, stages: int) -> T:
    """Set the empty places of stored layers to zero."""
    places = count_places(Block, rounds, stages)
    if places == Block.size:
        return tree
    axes = list_storage_axes(Block, rounds, stages)
    has_layer = find_places(Block, axes)

    def clear(leaf: NamedArray) -> NamedArray:
        if not jnp.issubdtype(leaf.dtype, jnp.number):
            return leaf
        return rearrange(where(has_layer, leaf, jnp.zeros((), leaf.dtype)), leaf.names)

    names = [axis.name for axis in axes]
    return running.map_layers(clear, tree, Block.name, names, lambda hole: hole)


def find_places(Block: Axis, axes: Sequence[Axis]) -> NamedArray:
    """Return which places of the storage have a layer: booleans with the axes of the storage."""
    places = Block.resize(math.prod(axis.size for axis in axes))
    has_layer = arange(places) < Block.size
    return has_layer if len(axes) == 1 else unflatten_axis(has_layer, Block.name, tuple(axes))


def split_rounds(tree: T, Block: Axis, rounds: int, stages: int = 1, *, repeats: bool = True) -> T:
    """Store arrays with an axis of layers: split it into rounds, and add the empty places.

    Args:
        tree: the arrays; plain ones have the axis first.
        Block: the axis of layers.
        rounds: the number of rounds.
        stages: the number of stages.
        repeats: see `pad_layers`.
    """
    axes = list_storage_axes(Block, rounds, stages)
    places = count_places(Block, rounds, stages)
    if axes == (Block,):
        return tree

    def split(leaf: NamedArray) -> NamedArray:
        padded = pad_layers(leaf, Block, places, repeats=repeats)
        return padded if len(axes) == 1 else unflatten_axis(padded, Block.name, axes)

    def split_hole(hole: Any) -> Any:
        for Round in axes[:-1]:
            hole = rename_hole(hole, (Round.name, *hole.names), Round)
        return hole

    return running.map_layers(split, tree, Block.name, (Block.name,), split_hole)


def join_rounds(tree: T, Block: Axis, rounds: int, stages: int = 1) -> T:
    """Join the rounds of all arrays to one axis of layers, in order of depth, without empty places."""
    axes = list_storage_axes(Block, rounds, stages)
    names = [axis.name for axis in axes]
    if axes == (Block,):
        return tree

    def join(leaf: NamedArray) -> NamedArray:
        if len(axes) > 1:
            leaf = flatten_axes(leaf, names, Block.name)
        whole = leaf.axis_size(Block.name) == Block.size
        return leaf if whole else index(leaf, {Block.name: slice(0, Block.size)})

    def join_hole(hole: Any) -> Any:
        for name in names[:-1]:
            hole = drop_axis_of_hole(hole, name)
        return hole

    return running.map_layers(join, tree, names[0], names, join_hole)
