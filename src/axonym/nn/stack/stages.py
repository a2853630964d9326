"""Internal. How a pipeline splits layers into stages and arrays into microbatches, and joins them again.

`pipeline` and `one_f_one_b` call it. All stages are in one program: their arrays have an axis of stages, which the
mapping splits over devices, and a `vmap` over it applies the layers of each. Indices that depend on the stage and on
time are computed from the number of the tick, so that one compiled loop runs all ticks.
"""

import dataclasses
import functools
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from ...array import NamedArray, is_named_array, named
from ...axis import Axis, shown
from ...create import arange
from ...errors import AxisSizeError, OperandError, message
from ...layout import constraints, context, explicit
from ...layout.assignment import AxisMapping, Entry
from ...ops.index import index
from ...ops.join import concatenate
from ...ops.reduce import mean
from ...ops.roll import roll
from ...ops.shape import broadcast_axis, flatten_axes, rearrange, unflatten_axis
from ...ops.where import where
from ...partitioning.collectives import ppermute
from ...partitioning.options import Microbatches
from ...partitioning.shard import auto_sharded
from ...partitioning.shard_map import shard_map
from ...transform.leaves import drop_axis_of_hole
from . import rounds as by_rounds, running

T = TypeVar("T")
Arrays = Sequence[NamedArray]


class Work(NamedTuple):
    """What each stage works on in a tick.

    Attributes:
        micro: the number of the microbatch.
        round: the number of the round.
    """

    micro: NamedArray
    round: NamedArray


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """How one stack is split into stages, and its work into microbatches.

    Attributes:
        function: the name for errors.
        Block: the axis of all layers.
        cut: the axis that is cut, and the number of microbatches.
        mesh_axes: those that the stages are split over.
        stages: their number.
        shards: the number of parts into which the mesh splits each microbatch.
        outer_shards: the number of parts into which it splits the axis that is cut outside of the pipeline.
        outer: the current mapping.
        inner: the mapping within a stage.
        of_layers: the mapping of arrays with an axis of layers.
        rounds: how often a microbatch passes all stages.
        skipped: the number of places without a layer, at the end, so that stages are equal.
    """

    function: str
    Block: Axis
    cut: Microbatches
    mesh_axes: Entry
    stages: int
    shards: int
    outer_shards: int
    outer: AxisMapping
    inner: AxisMapping
    of_layers: AxisMapping
    rounds: int = 1
    skipped: int = 0

    def __post_init__(self) -> None:
        # All stages run one program, each with its own part of an array, so parts must be of one size.
        over = f"mesh axis {', '.join(self.mesh_axes)}"
        parts, into = self.stages * self.rounds, f"{self.stages} stages"
        if self.rounds > 1:
            into = f"{self.rounds} rounds of {into}"
        if self.places % parts:
            problem = f"{shown(self.Block)} cannot be split evenly into {into} over {over}"
            hint = f"use a multiple of {parts} layers, or make the stack with stages={self.stages}"
            raise AxisSizeError(message(self.function, problem, hint=hint))
        if self.cut.count % self.stages:
            problem = (
                f"{self.cut.count} microbatches cannot be divided evenly among {self.stages} stages"
            )
            facts = f"layers: {shown(self.Block)} over {over}"
            hint = f'use a multiple: axn.pipelined("{self.cut.axis}", {2 * self.stages})'
            raise AxisSizeError(message(self.function, problem, facts, hint=hint))

    def _axis(self, role: str, size: int) -> Axis:
        """Return an axis with a derived name, which no array of the user has."""
        return Axis(f"{self.Block.name}.{role}", size)

    @property
    def Layer(self) -> Axis:  # noqa: N802
        """The axis of the layers of one stage, in one round."""
        return self.Block.resize(self.places // self.stages // self.rounds)

    @property
    def places(self) -> int:
        """The number of layers and of places without one."""
        return self.Block.size + self.skipped

    @property
    def Round(self) -> Axis:  # noqa: N802
        """The axis of the rounds."""
        return by_rounds.list_storage_axes(self.Block, self.rounds)[0]

    @property
    def _storage(self) -> Sequence[str]:
        """The names of the axes along which the layers are stored."""
        return [axis.name for axis in by_rounds.list_storage_axes(self.Block, self.rounds)]

    @property
    def Stage(self) -> Axis:  # noqa: N802
        """The axis of the stages."""
        return self._axis("stage", self.stages)

    @property
    def Slot(self) -> Axis:  # noqa: N802
        """The axis of the microbatches that wait on one stage."""
        return self._axis("slot", self.cut.count // self.stages)

    @property
    def Micro(self) -> Axis:  # noqa: N802
        """The axis of all microbatches."""
        return self._axis("micro", self.cut.count)

    @property
    def Tick(self) -> Axis:  # noqa: N802
        """The axis of time: in one tick, each stage works on one microbatch."""
        return self._axis("tick", self.steps + self.stages - 1)

    @property
    def Shards(self) -> Axis:  # noqa: N802
        """The axis of the parts of a microbatch on different devices."""
        return self._axis("shards", self.shards)

    @property
    def steps(self) -> int:
        """The number of ticks in which a stage works."""
        return self.cut.count * self.rounds

    @property
    def cycle(self) -> int:
        """The number of ticks between two groups of microbatches, as many as stages, that enter the pipeline."""
        return self.stages * self.rounds

    def choose_work(self, step: NamedArray) -> Work:
        """Return the work of a stage in a step; outside the range of steps, the work of the nearest step."""
        # In a cycle, a group of as many microbatches as stages passes all rounds, and then the next group enters.
        known = step.clip(0, self.steps - 1)
        micro = known // self.cycle * self.stages + known % self.stages
        return Work(micro, known % self.cycle // self.stages)

    def find_slot(self, now: NamedArray) -> NamedArray:
        """Return the slot of the microbatch that enters the pipeline in a tick, or of the last one that entered."""
        last = now // self.cycle * self.stages + (now % self.cycle).clip(0, self.stages - 1)
        # The queue is a ring of slots, so nothing moves within a device.
        return last % self.Slot.size

    def is_from_queue(self, now: NamedArray, is_first: NamedArray) -> NamedArray:
        """Return whether a stage works on a microbatch of the queue, not on one that another stage sent."""
        # In later rounds, stage 0 works on microbatches that come back from the last stage.
        return is_first if self.rounds == 1 else is_first & (now % self.cycle < self.stages)

    def store_results(
        self, now: NamedArray, queues: Arrays, tails: Arrays, heads: Arrays
    ) -> Arrays:
        """Put tails into queues; with rounds, only where a microbatch has passed all of them and another one enters."""
        if self.rounds > 1:
            # Otherwise the head goes back into its place.
            is_done = (now + 1) % self.cycle < self.stages
            tails = list(map(functools.partial(where, is_done), tails, heads))
        return list(map(functools.partial(self.store, self.find_slot(now).array), queues, tails))

    def take_round(self, tree: T, number: NamedArray) -> T:
        """Return the layers of a round; plain arrays have the rounds first."""
        if self.rounds == 1:
            return tree
        name = self.Round.name
        return running.map_layers(
            lambda leaf: index(leaf, {self.Round: number}),
            tree,
            name,
            (name,),
            lambda hole: drop_axis_of_hole(hole, name),
        )

    def split_by_stage(self, leaf: NamedArray) -> NamedArray:
        """Split an argument with one axis of layers, in order of depth, into stages."""
        if self.rounds > 1 or self.skipped:
            # Where no layer is, values have to be real ones all the same.
            padded = by_rounds.pad_layers(auto_sharded(leaf), self.Block, self.places, repeats=True)
            leaf = by_rounds.split_rounds(padded, self.Block.resize(self.places), self.rounds)
        return self.split_stored(leaf)

    def split_stored(self, leaf: NamedArray) -> NamedArray:
        """Split the layers of a stored array into stages, each on its device; other axes stay as they are."""
        Layer = self.Block.resize(leaf.axis_size(self.Block.name) // self.stages)
        split = unflatten_axis(leaf, self.Block.name, (self.Stage, Layer))
        # Only the stages are constrained. The layers of a stage keep their layout, such as that of tensor parallelism.
        ordered = rearrange(split, (self.Stage, ...))
        return named(constraints.shard_first(ordered.array, self.mesh_axes), ordered.names)

    def split_layers(self, layers: T) -> T:
        """Split the layers of a tree into stages; plain arrays have the layers first."""
        # A hole has names and no sizes, so its axis of layers can stay.
        return running.map_layers(
            self.split_stored, layers, self.Block.name, self._storage, lambda hole: hole
        )

    def stop_gradients(self, layers: T, has_layer: NamedArray) -> T:
        """Let no gradient reach parameters in places without a layer.

        These parameters are zero. A layer may have an infinite gradient there, and zero times infinity is NaN.

        Args:
            layers: layers by stage.
            has_layer: which places have one: booleans with the axes of the storage, by stage.
        """

        def stop(leaf: NamedArray) -> NamedArray:
            if not jnp.issubdtype(leaf.dtype, jnp.inexact):
                return leaf
            # Both values are the same, so that the compiler copies nothing.
            stopped = named(lax.stop_gradient(leaf.array), leaf.names)
            return self.choose(has_layer, leaf, stopped)

        names = (self.Stage.name, *self._storage)
        return running.map_layers(stop, layers, self.Stage.name, names, lambda hole: hole)

    def make_queue(self, leaf: NamedArray) -> NamedArray:
        """Cut an array into microbatches, which wait on the stages; repeat one that lacks the axis.

        Args:
            leaf: axes {cut axis, ...}, or without it.

        Returns:
            Axes {Stage, Slot, ...}; the cut axis has the rows of one microbatch.

        Raises:
            AxisSizeError: if the axis does not divide.
        """
        if self.cut.axis not in leaf.names:
            return auto_sharded(broadcast_axis(leaf, (self.Stage, self.Slot)))
        Rows = self._make_rows(leaf, self.cut.count * self.shards)
        # The shards are outermost, so each microbatch takes some rows of every device, and no row has to move.
        pieces = unflatten_axis(leaf, self.cut.axis, (self.Shards, self.Stage, self.Slot, Rows))
        ordered = rearrange(pieces, (self.Stage, self.Slot, ...))
        return auto_sharded(flatten_axes(ordered, (self.Shards, Rows), self.cut.axis))

    def take(self, queues: Sequence[NamedArray], slot: int | jax.Array) -> list[NamedArray]:
        """Take a microbatch out of a slot of the queues of each stage."""
        return [index(queue, {self.Slot.name: slot}) for queue in queues]

    def store(self, slot: jax.Array, queue: NamedArray, tail: NamedArray) -> NamedArray:
        """Put a microbatch into a slot of a queue of each stage."""
        # A slice is written in place, while an update at an index would be a scatter.
        piece = rearrange(broadcast_axis(tail, self.Slot.resize(1)), queue.names)
        update = explicit.reshard_like(piece.array, queue.array)
        written = lax.dynamic_update_slice_in_dim(queue.array, update, slot, axis=1)
        return named(written, queue.names)

    def dequeue(self, leaf: NamedArray) -> NamedArray:
        """Join the microbatches of a queue after all ticks; average them if they lack the axis."""
        # After all ticks, the ring of slots begins at some slot.
        leaf = roll(leaf, 1 - self.cut.count - self.stages, self.Slot.name)
        if self.cut.axis not in leaf.names:
            return mean(leaf, (self.Stage, self.Slot))
        return self._join_rows(leaf, (self.Stage, self.Slot))

    def schedule(self, leaf: NamedArray) -> NamedArray:
        """Cut an array of all stages into microbatches, and order them by tick.

        Stage `s` works on microbatch `m` in tick `m + s`, if there are no rounds.
        """
        micro = self._repeat_microbatches(self.cut_microbatches(leaf))
        first = micro[self.Micro.name, : self.stages - 1]  # in ticks in which a stage waits
        repeated = concatenate(self.Micro.name, (micro, first))
        return self._shift_in_time(repeated.rename({self.Micro.name: self.Tick.name}), 1)

    def cut_microbatches(self, leaf: T) -> T | NamedArray:
        """Cut an array with the axis into microbatches, axes {Micro, ...}, which all stages have."""
        if not isinstance(leaf, NamedArray) or self.cut.axis not in leaf.names:
            return leaf
        Rows = self._make_rows(leaf, self.cut.count * self.shards)
        pieces = unflatten_axis(leaf, self.cut.axis, (self.Shards, self.Micro, Rows))
        ordered = rearrange(pieces, (self.Micro, ...))
        return auto_sharded(flatten_axes(ordered, (self.Shards, Rows), self.cut.axis))

    def take_microbatch(self, tree: T, micro: jax.Array) -> T:
        """Take one microbatch of all arrays of a tree; a number out of range takes the first or the last one."""
        # In the first and last ticks, a stage waits and asks for a microbatch that does not exist.
        known = jnp.clip(micro, 0, self.cut.count - 1)

        def take(leaf: Any) -> Any:
            if isinstance(leaf, NamedArray) and self.Micro.name in leaf.names:
                return index(leaf, {self.Micro.name: known})
            return leaf

        taken: T = jax.tree.map(take, tree, is_leaf=is_named_array)
        return taken

    def count_rows(self, data: object) -> int:
        """Return the size of the axis that is cut in one microbatch.

        Raises:
            AxisSizeError: if no array has it.
        """
        for leaf in jax.tree.leaves(data, is_leaf=is_named_array):
            if isinstance(leaf, NamedArray) and self.cut.axis in leaf.names:
                return leaf.axis_size(self.cut.axis)
        problem = f"the work is cut along {self.cut.axis!r}, which no array of the data has"
        hint = "name another axis in axn.pipelined"
        raise AxisSizeError(message(self.function, problem, hint=hint))

    def use_mapping_of_ends(self, rows: int) -> AbstractContextManager[Any]:
        """Compute before the first and after the last stage on all devices, if the rows of a microbatch divide."""
        # Otherwise, the devices of all stages compute the same.
        mapping = self.inner if rows % self.outer_shards else self.outer
        return context.MAPPING.using(mapping)

    def copy_to_stages(self, leaf: NamedArray) -> NamedArray:
        """Give a microbatch to all stages."""
        return auto_sharded(broadcast_axis(leaf, self.Stage))

    def take_stage(self, leaf: NamedArray, stage: int) -> NamedArray:
        """Return what one stage has."""
        # The sum over stages is an all-reduce of one microbatch. An index into a sharded axis would gather all of them.
        if not jnp.issubdtype(leaf.dtype, jnp.number):
            return index(leaf, {self.Stage.name: stage})
        return where(arange(self.Stage) == stage, leaf, 0).sum(self.Stage)

    def choose(self, condition: NamedArray, one: NamedArray, other: NamedArray) -> NamedArray:
        """Choose by stage; the second array has the order of the result."""
        # `where` decides on the order of axes by itself, but the carry of a loop has to keep its own.
        return rearrange(where(condition, one, other), other.names)

    def collect(self, leaf: NamedArray) -> NamedArray:
        """Join what all stages return in all ticks, by layer; average microbatches that lack the axis.

        Args:
            leaf: axes {Tick, Stage, Block, ...}.

        Returns:
            Axes {Block, ...}, as from a loop over the layers.

        Raises:
            OperandError: if those are no floats.
        """
        aligned = self._shift_in_time(leaf, -1)[self.Tick.name, : self.steps]
        by_step = aligned.rename({self.Tick.name: self.Micro.name})
        micro = self._order_by_layer(by_step)
        if self.cut.axis in leaf.names:
            return self._join_rows(micro, (self.Micro,))
        self.check_mean("an output of the layers", leaf)
        return mean(micro, self.Micro)

    def check_mean(self, what: str, leaf: Any) -> None:
        """Check that microbatches may be averaged.

        Raises:
            OperandError: if not.
        """
        # A mean of integers is a float, and the loop needs a carry of the same dtype. Random keys have no mean.
        dtype = jnp.result_type(getattr(leaf, "array", leaf))
        if jnp.issubdtype(dtype, jnp.inexact):
            return
        problem = f"{what} has no axis {self.cut.axis!r}, and {dtype} cannot be averaged over microbatches"
        facts = f"it has: {leaf.shape if isinstance(leaf, NamedArray) else 'one number'}"
        hint = f"keep the axis {self.cut.axis!r}, or use a float"
        raise OperandError(message(self.function, problem, facts, hint=hint))

    def send(self, leaves: Sequence[NamedArray], by: int) -> list[NamedArray]:
        """Send the values of each stage to the stage that is the given number of stages ahead."""
        mesh = context.context_mesh()
        if self.stages == 1 or mesh is None:
            return list(leaves)

        def permute(*blocks: NamedArray) -> list[NamedArray]:
            return ppermute(list(blocks), shift=by, over=self.mesh_axes)

        # On Explicit axes, jax 0.10 would gather what stays outside of a partial shard_map.
        manual = {*self.mesh_axes, *explicit.free_axes(mesh)}
        return shard_map(permute, self.inner, manual_axes=manual, strict=False)(*leaves)

    def _make_rows(self, leaf: NamedArray, parts: int) -> Axis:
        """Return the axis of the rows of one part, given the number of parts."""
        size = leaf.axis_size(self.cut.axis)
        if not size % parts:
            return self._axis("rows", size // parts)
        problem = f"{self.cut.axis}={size} cannot be cut evenly into {self.cut.count} microbatches"
        if self.shards > 1:
            problem += f", each of which the mesh splits in {self.shards}"
        hint = f"use a multiple of {parts}"
        raise AxisSizeError(message(self.function, problem, f"array has: {leaf.shape}", hint=hint))

    def _join_rows(self, leaf: NamedArray, micro: tuple[Axis, ...]) -> NamedArray:
        """Join the rows of microbatches; the inverse of the cut, which took rows of every device."""
        Rows = self._make_rows(leaf, self.shards)
        pieces = unflatten_axis(leaf, self.cut.axis, (self.Shards, Rows))
        names = [axis for axis in pieces.axes if axis not in micro]
        at = names.index(self.Shards) + 1
        ordered = rearrange(pieces, (*names[:at], *micro, *names[at:]))
        # The mesh axes of the stages split the layers of an array that has them, and otherwise the rows.
        mapping = self.of_layers if self.Block.name in leaf.names else self.outer
        if self.skipped and self.Block.name in leaf.names:
            # Stages do not divide the layers without those that are skipped.
            mapping = self.inner
        with context.MAPPING.using(mapping):
            return auto_sharded(flatten_axes(ordered, (self.Shards, *micro, Rows), self.cut.axis))

    def _repeat_microbatches(self, leaf: NamedArray) -> NamedArray:
        """Repeat microbatches by round, in the order in which a stage works on them."""
        if self.rounds == 1:
            return leaf
        Group, Member = self._axis("group", self.Slot.size), self._axis("member", self.stages)
        apart = unflatten_axis(leaf, self.Micro, (Group, Member))
        return flatten_axes(apart, (Group, self.Round, Member), self.Micro.name)

    def _order_by_layer(self, leaf: NamedArray) -> NamedArray:
        """Join the layers of what all stages return in all steps."""
        stages = (self.Stage, self.Block.name)
        if self.rounds == 1 and not self.skipped:
            return flatten_axes(leaf, stages, self.Block.name)
        if self.rounds == 1:
            with context.unmap_names((self.Stage.name,)):
                gathered = auto_sharded(leaf)
            return self._drop_places(flatten_axes(gathered, stages, self.Block.name))
        Group, Member = self._axis("group", self.Slot.size), self._axis("member", self.stages)
        apart = unflatten_axis(leaf, self.Micro.name, (Group, self.Round, Member))
        micro = flatten_axes(apart, (Group, Member), self.Micro)
        # In order of depth, a stage has other layers than by rounds, so all are gathered before they are joined.
        with context.unmap_names((self.Stage.name,)):
            gathered = auto_sharded(micro)
        return self._drop_places(flatten_axes(gathered, (self.Round, *stages), self.Block.name))

    def _drop_places(self, leaf: NamedArray) -> NamedArray:
        """Drop what skipped layers return."""
        return index(leaf, {self.Block.name: slice(0, self.Block.size)}) if self.skipped else leaf

    def _shift_in_time(self, leaf: NamedArray, sign: int) -> NamedArray:
        """Shift the values of stage `s` by `s` ticks."""
        # Each round moves some stages by a power of two: log2(stages) rolls instead of one for each stage.
        stage, ticks = arange(self.Stage), 1
        while ticks < self.stages:
            moves = (stage // ticks) % 2 == 1
            leaf = where(moves, roll(leaf, sign * ticks, self.Tick.name), leaf)
            ticks *= 2
        return leaf
