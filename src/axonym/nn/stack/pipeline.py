"""Internal. Pipelines: each device applies its own layers, and microbatches go from one device to the next (GPipe).

`Stacked` and `Interleaved` call it where the mapping splits the axis of layers and `axn.pipelined` says how to cut the
work. It knows nothing of the layers: it gets a function that applies those of one stage.

3 stages work on 6 microbatches a-f like this:

    tick       0   1   2   3   4   5   6   7
    stage 0    a   b   c   d   e   f   -   -
    stage 1    -   a   b   c   d   e   f   -
    stage 2    -   -   a   b   c   d   e   f

Microbatches wait in a queue that is split over the stages too, so that no device holds the full batch. In each tick,
its head enters stage 0, and the result of the last stage becomes its tail. In the end it holds all results. So a device
sends two microbatches in each tick: one for the queue and one for the stages.

    before     stage 0 [a b]   stage 1 [c d]   stage 2 [e f]
    tick 0     stage 0 [b c]   stage 1 [d e]   stage 2 [f .]

A stage that has to wait works on some microbatch, and its result is dropped. These are real values, since layers may
have no gradient at zero.

In several rounds, each stage has several groups of layers. As many microbatches as there are stages pass through all of
them before others enter, so that none has to wait between two rounds. For 2 stages and 2 rounds, the second one in
capitals:

    tick       0   1   2   3   4   5   6   7   8
    stage 0    a   b   A   B   c   d   C   D   -
    stage 1    -   a   b   A   B   c   d   C   D

Reference:
    Huang et al. (2019), GPipe: efficient training of giant neural networks using pipeline parallelism.
    Narayanan et al. (2021), Efficient large-scale language model training on GPU clusters, section 2.2: rounds.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ...array import NamedArray, is_named_array
from ...axis import Axis, shown
from ...base.kinds import Tree, is_array
from ...create import arange
from ...current.features import using
from ...engine.core import wrap
from ...errors import AxisSizeError, OperandError, ShardingError, message, suggestion
from ...layout import context, modes, partition
from ...layout.assignment import find_entry, find_key
from ...layout.records import LEDGER, note_waiting
from ...ops.where import where
from ...partitioning.options import MICROBATCHES
from ...transform.checkpoint import ScanCheckpointPolicy
from ...transform.leaves import drop_axis_of_hole, is_hole
from ...transform.loop import loop
from ...transform.vmap import vmap
from . import running
from .running import name_dimensions
from .stages import Pipeline, Work

Apply = Callable[[Tree, Tree, Tree], tuple[Tree, Tree]]
Arrays = Sequence[NamedArray]


def find_pipeline(function: str, Block: Axis, rounds: int = 1, skipped: int = 0) -> Pipeline | None:
    """Return how the current mapping and `pipelined` divide the work on layers; None if they do not.

    Args:
        function: the name for errors.
        Block: the axis of all layers.
        rounds: how often a microbatch passes all stages.
        skipped: the number of places without a layer.

    Raises:
        ShardingError: if the mapping splits the layers, and nothing says into how many microbatches the work is cut.
        AxisSizeError: if the layers or the microbatches do not divide among the stages.
    """
    mapping, mesh = context.current_mapping(), context.context_mesh()
    if mapping is None or mesh is None:
        return None
    key = find_key(mapping, Block.name)
    entry = () if key is None else mapping.choose(key, Block.size + skipped, mesh)
    for axis in entry:
        if axis not in mesh.axis_names:
            raise partition.no_mesh_axis(function, Block.name, axis, mesh)
    # A surrounding shard_map or `vmap` uses these mesh axes already.
    taken = {*modes.find_manual_axes(mesh), *context.get_taken_axes()}
    entry = partition.without(entry, taken)
    cut, stages = MICROBATCHES.get(), partition.count_shards(mesh, entry)
    ledger = LEDGER.get()
    if cut is not None and ledger is not None:
        ledger.pipelines[Block.name] = bool(entry) or ledger.pipelines.get(Block.name, False)
    # One stage is a plain loop, unless the user asks for microbatches, which then save memory.
    if not entry or (cut is None and stages == 1):
        return None
    if cut is None:
        problem = f"the layers are computed on mesh axis {', '.join(entry)}, and nothing says how to cut the work"
        facts = f"layers: {shown(Block)}", f"mapping: {mapping}"
        hint = f'for a pipeline: with axn.pipelined("batch", {2 * stages}); '
        hint += "to store layers there, map them in `parameters` of axn.Mappings alone"
        raise ShardingError(message(function, problem, *facts, hint=hint))
    of_cut = find_key(mapping, cut.axis)
    if of_cut is not None and len(mapping.alternatives(of_cut)) > 1:
        problem = f"{cut.axis!r}, which a pipeline cuts, has alternatives in the mapping"
        hint = "give it the mesh axes that divide it, and the one of the stages last"
        raise ShardingError(message(function, problem, f"mapping: {mapping}", hint=hint))
    # Within a stage, nothing else can be sharded over the mesh axes of the stages.
    entries = {name: partition.without(axes, entry) for name, axes in mapping.items()}
    outside = partition.without(find_entry(mapping, cut.axis) or (), taken)
    across = partition.without(outside, entry)
    entries |= {Block.name: entry, f"{Block.name}.shards": across}
    of_layers = dataclasses.replace(mapping, entries=tuple(entries.items()))
    entries |= {Block.name: (), f"{Block.name}.stage": entry}
    return Pipeline(
        function=function,
        Block=Block,
        cut=cut,
        mesh_axes=entry,
        stages=stages,
        shards=partition.count_shards(mesh, across),
        outer_shards=partition.count_shards(mesh, outside),
        outer=mapping,
        inner=dataclasses.replace(mapping, entries=tuple(entries.items())),
        of_layers=of_layers,
        rounds=rounds,
        skipped=skipped,
    )


def run(
    pipeline: Pipeline,
    split: Callable[[Pipeline], object],
    apply: Apply,
    init: object,
    arguments: object,
    policy: ScanCheckpointPolicy,
) -> tuple[Tree, Tree]:
    """Apply all layers to a carry, microbatch by microbatch, and return the last carry and the stacked outputs.

    Args:
        pipeline: how the work is divided.
        split: returns the layers, with those of a stage along their axis, and an axis of stages.
        apply: applies the layers of one stage to one microbatch: a function of the layers, the carry and the arguments
            that returns the next carry and the outputs.
        init: the carry.
        arguments: further arguments.
        policy: what stages keep of their layers for the backward pass.
    """
    note_waiting(1 - pipeline.steps / pipeline.Tick.size)
    # Arrays inside have axes of stages and ticks. The mapping by which parameters are stored is not for them.
    with using({context.MAPPING: pipeline.inner, context.STORED: None}):
        stack = split(pipeline)
        leaves = Leaves(pipeline, init, arguments)
        stage = arange(pipeline.Stage)
        layered = list(map(pipeline.split_by_stage, leaves.select(leaves.layered)))
        timed = list(
            map(pipeline.schedule, map(pipeline.split_by_stage, leaves.select(leaves.timed)))
        )
        waiting = list(map(pipeline.make_queue, leaves.select(leaves.moving)))
        carried = len(leaves.carried)

        def at_stage(
            stack: Tree, work: Work, moving: Arrays, layered: Arrays, timed: Arrays
        ) -> Tree:
            stack, layered = pipeline.take_round((stack, layered), work.round)
            carry, given = leaves.rebuild(work.micro.array, moving, layered, timed)
            try:
                carry, outputs = apply(stack, carry, given)
            except AxisSizeError as error:
                raise leaves.explain_uncut(error) from None
            return [*leaves.read_carry(carry), *moving[carried:]], outputs

        def tick(flow: Tree, now: NamedArray, timed: Arrays) -> Tree:
            queue, arriving = flow
            heads = pipeline.take(queue, pipeline.find_slot(now).array)
            # Stage 0 reads the queue, and others read what arrived.
            enters = pipeline.is_from_queue(now, stage == 0)
            entering = list(map(functools.partial(where, enters), heads, arriving))
            work = pipeline.choose_work(now - stage)
            moved, outputs = vmap(visit, pipeline.Stage)(stack, work, entering, layered, timed)
            # The queue moves towards stage 0, and the results of the last stage fill the place that becomes free.
            is_last = stage == pipeline.stages - 1
            tails = list(map(functools.partial(where, is_last), moved, pipeline.send(heads, -1)))
            queue = pipeline.store_results(now, queue, tails, heads)
            return (queue, pipeline.send(moved, 1)), outputs

        visit: Callable[..., Tree] = at_stage
        if pipeline.rounds > 1:
            # A stage takes the weights of its round out of an array. The backward pass would keep this copy for each
            # microbatch.
            visit = running.remat(policy.around(), at_stage, set())
        # Before the first microbatch arrives, stages work on those that wait beside them.
        first = pipeline.take(waiting, 0)
        ticks = loop(pipeline.function, tick, pipeline.Tick, False, False, 1, is_named_array)
        (queue, _), outputs = ticks((waiting, first), arange(pipeline.Tick), timed)
        done = list(map(pipeline.dequeue, queue[:carried]))
        return leaves.replace_carry(done), _collect_outputs(pipeline, outputs)


def _collect_outputs(pipeline: Pipeline, outputs: Tree) -> Tree:
    """Join the outputs of all ticks and stages, so that they are those of a loop over the layers."""

    def collect(leaf: Any) -> Any:
        if is_hole(leaf):
            return drop_axis_of_hole(
                drop_axis_of_hole(leaf, pipeline.Tick.name), pipeline.Stage.name
            )
        if isinstance(leaf, NamedArray):
            return pipeline.collect(leaf)
        if not is_array(leaf):
            return leaf
        names = (pipeline.Tick.name, pipeline.Stage.name, pipeline.Block.name)
        return pipeline.collect(name_dimensions(leaf, names)).array

    return jax.tree.map(collect, outputs, is_leaf=is_named_array)


class Leaves:
    """The leaves of a carry and of further arguments, by what a pipeline does with them.

    Each attribute is a list of positions among the leaves.

    Attributes:
        carried: leaves of the carry, which go from stage to stage.
        passed: arguments that go with their microbatch.
        moving: both.
        layered: arguments that each stage has for its own layers.
        timed: arguments that each stage has for its own layers, and for each microbatch.
        shared: arguments that are the same for all.
    """

    def __init__(self, pipeline: Pipeline, init: object, arguments: object) -> None:
        """Sort the leaves.

        Raises:
            AxisSizeError: if no array of the carry has the axis that is cut.
            OperandError: if the carry has an array that can neither be cut nor averaged.
        """
        self._pipeline = pipeline
        self._leaves, self._tree = jax.tree.flatten((init, arguments), is_leaf=is_named_array)
        self._old_keys = _find_old_keys(arguments)
        self._end = len(jax.tree.leaves(init, is_leaf=is_named_array))
        self.carried: list[int] = []
        self.passed: list[int] = []
        self.layered: list[int] = []
        self.timed: list[int] = []
        self.shared: list[int] = []
        for at, leaf in enumerate(self._leaves):
            if _is_data(leaf):
                self._choose_list(at).append(at)
        self.moving = [*self.carried, *self.passed]
        self._check_carry()

    def _choose_list(self, at: int) -> list[int]:
        """Return the list that a leaf belongs to."""
        is_cut = self._has(at, self._pipeline.cut.axis)
        if at < self._end:
            return self.carried
        if self._has(at, self._pipeline.Block.name):
            return self.timed if is_cut else self.layered
        return self.passed if is_cut else self.shared

    def select(self, positions: Sequence[int]) -> list[NamedArray]:
        """Return some leaves; the first dimension of plain arrays counts the layers."""
        layers = (self._pipeline.Block.name,)
        return [name_dimensions(self._leaves[at], layers) for at in positions]

    def rebuild(self, micro: jax.Array, moving: Arrays, layered: Arrays, timed: Arrays) -> Tree:
        """Return the carry and the arguments of one microbatch on one stage, with random keys of their own."""
        positions = (*self.moving, *self.layered, *self.timed)
        leaves = self._replace(positions, (*moving, *layered, *timed))
        for at in (*self.layered, *self.shared):
            if self._is_key(at):
                # With the same key, dropout would drop the same rows of every microbatch.
                leaves[at] = _fold_key(leaves[at], micro)
        return jax.tree.unflatten(self._tree, leaves)

    def _replace(self, positions: Iterable[int], arrays: Iterable[NamedArray]) -> list[Any]:
        """Return all leaves with others at some positions; plain arrays stay plain."""
        leaves = list(self._leaves)
        for at, array in zip(positions, arrays, strict=True):
            leaves[at] = array if isinstance(self._leaves[at], NamedArray) else array.array
        return leaves

    def read_carry(self, carry: object) -> list[NamedArray]:
        """Return what goes to the next stage."""
        leaves = jax.tree.leaves(carry, is_leaf=is_named_array)
        return [name_dimensions(leaves[at], ()) for at in self.carried]

    def replace_carry(self, arrays: Arrays) -> Tree:
        """Return the carry with other arrays."""
        carry, _ = jax.tree.unflatten(self._tree, self._replace(self.carried, arrays))
        return carry

    def explain_uncut(self, error: AxisSizeError) -> AxisSizeError:
        """Return an error of a layer; if it is about the axis that is cut, say that arrays in closures are not cut.

        The hint of the error itself, to cut the longer array, would pair rows with those of other microbatches.
        """
        cut = self._pipeline.cut
        if repr(cut.axis) not in error.problem:
            return error
        fact = f"{cut.axis!r} is cut into {cut.count} microbatches, except in arrays that functions close over"
        hint = "pass these to the stack as arguments, or in place of such a function, eqx.Partial(function, array)"
        text = message(error.function or "", error.problem, *error.facts, fact, hint=hint)
        return AxisSizeError(text)

    def _has(self, at: int, axis: str) -> bool:
        leaf = self._leaves[at]
        if isinstance(leaf, NamedArray):
            return axis in leaf.names
        return axis == self._pipeline.Block.name and jnp.ndim(leaf) > 0

    def _is_key(self, at: int) -> bool:
        leaf = self._leaves[at]
        dtype = getattr(getattr(leaf, "array", leaf), "dtype", None)
        return any(leaf is key for key in self._old_keys) or (
            dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
        )

    def _check_carry(self) -> None:
        pipeline, cut = self._pipeline, self._pipeline.cut.axis
        shapes: list[str] = []
        names: list[str] = []
        is_cut = False
        for leaf in map(self._leaves.__getitem__, self.carried):
            if isinstance(leaf, NamedArray):
                shapes.append(f"it has: {leaf.shape}")
                names += leaf.names
            elif jnp.ndim(leaf):
                problem = f"the carry has a plain array of shape {jnp.shape(leaf)}, to be cut along {cut!r}"
                hint = "name its axes: axn.named(array, axes)"
                raise OperandError(message(pipeline.function, problem, hint=hint))
            # An entry without the axis, such as a sum of losses, is one value in each microbatch. They are averaged.
            if isinstance(leaf, NamedArray) and cut in leaf.names:
                is_cut = True
            else:
                pipeline.check_mean("an entry of the carry", leaf)
        if not is_cut:
            problem = f"the work is cut along {cut!r}, which no array of the carry has"
            hint = suggestion(cut, names) or "name another axis in axn.pipelined"
            raise AxisSizeError(message(pipeline.function, problem, *shapes, hint=hint))


def _is_data(leaf: Any) -> bool:
    return not is_hole(leaf) and (
        isinstance(leaf, NamedArray | int | float | complex) or is_array(leaf)
    )


def _find_old_keys(arguments: object) -> list[object]:
    """Return random keys of the old form. They are plain integers, so only the name of the argument tells."""
    if isinstance(arguments, tuple) and isinstance(arguments[-1], dict):
        return [arguments[-1].get("key")]
    return []


def _fold_key(key: Any, micro: jax.Array) -> Any:
    """Give each random key of an array a new one for a microbatch."""
    if isinstance(key, NamedArray):
        return wrap(key, _fold_key(key.array, micro), key.names)
    is_typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    fold = jax.random.fold_in
    for _ in range(key.ndim - (not is_typed)):
        fold = jax.vmap(fold, (0, None))
    return fold(key, micro)
