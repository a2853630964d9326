"""Pipelines in which the backward pass of a microbatch begins as soon as its loss is known (1F1B).

2 stages work forward on microbatches a-d and backward on A-D like this:

    tick       0     1     2     3     4     5
    stage 0    a     b    cA    dB     C     D
    stage 1         aA    bB    cC    dD

A stage keeps only the inputs of microbatches that are on their way, fewer than two for each stage. It computes its
layers again in the backward pass, as with gradient checkpointing.

`jax.grad` of a pipeline cannot do this: it runs the whole forward pass before the backward pass begins. So the loss has
to be given in parts, before and after the layers, and each tick takes the gradient of its own part.

Reference:
    Narayanan et al. (2019), PipeDream: generalized pipeline parallelism for DNN training.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp

from ...array import NamedArray, is_named_array, named
from ...axis import Axis, shown
from ...base.kinds import Tree
from ...create import arange
from ...current.features import using
from ...errors import OperandError, message
from ...layout import context
from ...layout.records import note_waiting
from ...ops.shape import broadcast_axis, rearrange
from ...ops.where import where
from ...partitioning.shard import auto_sharded
from ...transform.loop import loop
from ...transform.vmap import vmap
from ..layer import enter_scope
from . import running
from .pipeline import Leaves
from .stacked import BlockFoldable
from .stages import Pipeline

__all__ = ["pipeline_value_and_grad"]

M = TypeVar("M")
FUNCTION = "pipeline_value_and_grad"
Arrays = Sequence[NamedArray]


def pipeline_value_and_grad(
    layers: Callable[[M], BlockFoldable[Any]],
    before: Callable[..., Tree],
    after: Callable[..., Any],
    *,
    step: Callable[..., Tree] | None = None,
) -> Callable[..., tuple[jax.Array, M]]:
    """Make the function that computes a loss and its gradient, alternating forward and backward by microbatches.

    The loss is `after(model, layers(model).fold(before(model, *data)), *data)`, a mean over the axis that
    `axn.pipelined` cuts. If the mapping does not pipeline the layers, it is computed for all data at once.

    Args:
        layers: returns the `Stacked` or `Interleaved` of a model.
        before: makes their carry from the model and the data; all its arrays have the axis that is cut, or are floats,
            of which each microbatch has its own.
        after: computes the loss from the model, the last carry and the data: a scalar, or a NamedArray without axes.
        step: what applies a layer, as `step(layer, carry)`, or with `key=` if the call has one; by default the layer.

    Returns:
        A function `(model, *data, key=None)` that returns the loss and the gradient, a model with None for what is no
        floating array. Named arrays of `data` with the axis are cut, and everything else is passed whole. The key is
        for the layers: each has its own for each microbatch, as in `fold`.

    Examples:
        >>> Batch, Embed, Layers = axn.make_axes(batch=8, embed=4, layers=2)
        >>> norms = axn.nn.Stacked.init(Layers, axn.nn.LayerNorm)(Embed)
        >>> both = axn.pipeline_value_and_grad(
        ...     lambda norms: norms, lambda _, x: x, lambda _, x, __: (x**2).mean()
        ... )
        >>> value, gradient = both(norms, axn.random.normal(jax.random.key(0), (Batch, Embed)))
        >>> gradient.stacked.weight.shape
        {'layers': 2, 'embed': 4}
    """

    def apply(layer: Any, carry: Tree, **key: Any) -> Tree:
        return (step or _call)(layer, carry, **key)

    def run(model: M, *data: Tree, key: jax.Array | None = None) -> tuple[jax.Array, M]:
        parts = _Parts(layers, before, after, apply, {} if key is None else {"key": key})
        parameters, rest = eqx.partition(model, eqx.is_inexact_array)
        divided = layers(model).divide(FUNCTION)
        if divided is None:
            return jax.value_and_grad(parts.loss)(parameters, rest, data)
        if divided.rounds > 1:
            problem = f"{shown(divided.Block)} are stored in {divided.rounds} rounds"
            hint = "take the gradient by jax.grad, or make the layers without rounds"
            raise OperandError(message(FUNCTION, problem, "it passes all stages once", hint=hint))
        with using({context.MAPPING: divided.inner, context.STORED: None}):
            return _run_stream(divided, parts, parameters, rest, data)

    return run


def _call(layer: Any, carry: Tree, **key: Any) -> Tree:
    return layer(carry, **key)


class _Parts(NamedTuple):
    """The user's functions and key; see `pipeline_value_and_grad`."""

    layers: Callable[..., BlockFoldable[Any]]
    before: Callable[..., Tree]
    after: Callable[..., Any]
    apply: Callable[..., Tree]
    key: dict[str, Any]

    def loss(self, parameters: Tree, rest: Tree, data: Sequence[Tree]) -> jax.Array:
        """Compute the loss of all data at once."""
        model = eqx.combine(parameters, rest)
        carry = self.layers(model).fold_via(self.apply)(self.before(model, *data), **self.key)
        return _scalar(self.after(model, carry, *data))


def _scalar(loss: Any) -> jax.Array:
    return jnp.asarray(loss.scalar() if isinstance(loss, NamedArray) else loss)


def _run_stream(
    pipeline: Pipeline, parts: _Parts, parameters: Tree, rest: Tree, data: Tree
) -> tuple[jax.Array, Tree]:
    """Compute a loss and its gradient by stages."""

    def split_stages(parameters: Tree) -> Tree:
        return parts.layers(eqx.combine(parameters, rest)).by_stage(pipeline)

    def select_weights(parameters: Tree) -> Tree:
        return eqx.filter(split_stages(parameters), eqx.is_inexact_array)

    # The split into stages is differentiated once, after all ticks. Ticks add up gradients by stage, which need no
    # communication.
    weights, pull = jax.vjp(select_weights, parameters)
    others = eqx.filter(split_stages(parameters), eqx.is_inexact_array, inverse=True)
    data = jax.tree.map(pipeline.cut_microbatches, data, is_leaf=is_named_array)
    rows = pipeline.count_rows(data)
    model = _Model(parameters, rest, weights, others, data, rows)
    # This carry only shows which leaves there are. The compiler drops its values.
    with pipeline.use_mapping_of_ends(rows):
        carry = parts.before(
            eqx.combine(parameters, rest), *pipeline.take_microbatch(data, jnp.asarray(0))
        )
    key = running.prepare_arguments(FUNCTION, pipeline.Block, (None,), parts.key)
    stream = _Stream(pipeline, parts, model, Leaves(pipeline, carry, ((), key)))

    note_waiting(1 - pipeline.steps / stream.ticks.size)
    ticks = loop(FUNCTION, stream.tick, stream.ticks, False, False, 1, is_named_array)
    flow, losses = ticks(stream.start(), arange(stream.ticks))
    (of_layers,) = pull(flow.weights)
    summed = _add(of_layers, flow.parameters)
    # Each microbatch has a loss of its own, a mean, and all are of one size: their mean is that of all data.
    return losses.sum() / pipeline.cut.count, jax.tree.map(lambda x: x / pipeline.cut.count, summed)


class _Model(NamedTuple):
    """A model and its data.

    Attributes:
        parameters: the floating arrays of the model.
        rest: the rest of the model.
        weights: the floating arrays of the layers, by stage.
        others: the rest of the layers.
        data: the data, cut into microbatches.
        rows: the size of the axis that is cut, in each.
    """

    parameters: Tree
    rest: Tree
    weights: Tree
    others: Tree
    data: Tree
    rows: int


class _Flow(NamedTuple):
    """The carry of the loop over ticks.

    Attributes:
        waiting: inputs of each stage, until their backward pass.
        arriving: inputs that each stage gets from the one before.
        returning: gradients that each stage gets from the one after.
        weights: gradients of the layers.
        parameters: gradients of the functions before and after the layers.
    """

    waiting: list[NamedArray]
    arriving: list[NamedArray]
    returning: list[NamedArray]
    weights: Tree
    parameters: Tree


@dataclasses.dataclass(frozen=True)
class _Stream:
    """The parts of a stream that are the same in all ticks.

    Attributes:
        pipeline: how the work is divided.
        parts: the functions of the user.
        model: the model and the data.
        leaves: the leaves of a carry, and random keys.
    """

    pipeline: Pipeline
    parts: _Parts
    model: _Model
    leaves: Leaves

    @property
    def ticks(self) -> Axis:
        """The axis of time, until the first stage has ended its last backward pass."""
        return self.pipeline.Tick.resize(self.pipeline.cut.count + 2 * self.pipeline.stages - 2)

    @property
    def places(self) -> Axis:
        """The axis of the inputs that a stage keeps until their backward pass."""
        # Stage 0 waits longest: an input comes back after all stages forward and backward.
        return self.pipeline.Slot.resize(2 * self.pipeline.stages - 1)

    def start(self) -> _Flow:
        """Return the carry of the first tick.

        Stages that wait work on real values, since layers may have no gradient at zero.
        """
        entering = self._enter(self.model.parameters, (), jnp.asarray(0))
        arriving = list(map(self.pipeline.copy_to_stages, entering))
        return _Flow(
            waiting=list(map(self._make_places, arriving)),
            arriving=arriving,
            returning=_make_zeros(_select_floats(arriving)),
            weights=_make_zeros(self.model.weights),
            parameters=_make_zeros(self.model.parameters),
        )

    def tick(self, flow: _Flow, now: NamedArray) -> tuple[_Flow, jax.Array]:
        """Work forward on one microbatch and backward on another, on each stage; return a loss that ends here."""
        pipeline, parameters = self.pipeline, self.model.parameters
        stage, last = arange(pipeline.Stage), pipeline.stages - 1
        choose_first = functools.partial(pipeline.choose, stage == 0)
        choose_last = functools.partial(pipeline.choose, stage == last)

        # Forward: stage 0 gets a new microbatch, and others get what arrived.
        new = self._enter(parameters, (), now.array)
        entering = list(map(choose_first, new, flow.arriving))
        slot = now.array % self.places.size
        waiting = list(map(functools.partial(pipeline.store, slot), flow.waiting, entering))
        moved = self._forward(self.model.weights, entering, now - stage)

        # The loss of the microbatch that leaves the last stage. In the first and last ticks, no microbatch leaves, and
        # the gradient is set to zero.
        finished = now.array - last
        leaving = [pipeline.take_stage(array, last) for array in moved]
        (loss,), pull_loss = _vjp(self._leave, parameters, leaving, finished)
        is_finished = (finished >= 0) & (finished < pipeline.cut.count)
        one = jnp.where(is_finished, jnp.ones_like(loss.array), 0)
        after, arrived = pull_loss([named(one, ())])

        # Backward: stage `s` got this microbatch `2 * (last - s)` ticks ago. The last stage begins in the same tick.
        begun = now - 2 * last + stage
        taken = self._take_waiting(waiting, (begun + stage) % self.places.size)
        arriving = map(choose_last, arrived, flow.returning)
        is_begun = (begun >= 0) & (begun < pipeline.cut.count)
        back = [rearrange(where(is_begun, array, 0), array.names) for array in arriving]
        _, pull_stages = _vjp(self._forward, self.model.weights, taken, begun)
        weights, returned = pull_stages(back)

        # The gradient that leaves stage 0 goes on to the function before the layers, which is computed again.
        first = [pipeline.take_stage(array, 0) for array in returned]
        _, pull_before = _vjp(self._enter, parameters, (), now.array - 2 * last)
        before, _ = pull_before(first)
        following = _Flow(
            waiting=waiting,
            arriving=pipeline.send(moved, 1),
            returning=pipeline.send(returned, -1),
            weights=_add(flow.weights, weights),
            parameters=_add(_add(flow.parameters, before), after),
        )
        return following, jnp.where(is_finished, loss.array, 0)

    def _make_places(self, array: NamedArray) -> NamedArray:
        repeated = broadcast_axis(array, self.places)
        return rearrange(repeated, (self.pipeline.Stage, self.places, ...))

    def _take_waiting(self, waiting: Arrays, slot: NamedArray) -> list[NamedArray]:
        """Take an input out of its place, which differs from stage to stage."""

        def take(waiting: Arrays, slot: NamedArray) -> list[NamedArray]:
            return self.pipeline.take(waiting, slot.array)

        taken: list[NamedArray] = vmap(take, self.pipeline.Stage)(waiting, slot)
        return taken

    def _enter(self, parameters: Tree, _: Arrays, micro: jax.Array) -> list[NamedArray]:
        """Compute the microbatch that enters the first stage; nothing arrives there from another one."""
        with self.pipeline.use_mapping_of_ends(self.model.rows):
            model = eqx.combine(parameters, self.model.rest)
            data = self.pipeline.take_microbatch(self.model.data, micro)
            return self.leaves.read_carry(self.parts.before(model, *data))

    def _leave(self, parameters: Tree, arrays: Arrays, micro: jax.Array) -> list[NamedArray]:
        """Compute the loss of the microbatch that leaves the last stage."""
        with self.pipeline.use_mapping_of_ends(self.model.rows):
            carry = auto_sharded(self.leaves.replace_carry(arrays))
            model = eqx.combine(parameters, self.model.rest)
            data = self.pipeline.take_microbatch(self.model.data, micro)
            return [named(_scalar(self.parts.after(model, carry, *data)), ())]

    def _forward(self, weights: Tree, arrays: Arrays, micro: NamedArray) -> list[NamedArray]:
        """Apply the layers of each stage to a microbatch of its own."""
        # Keys of the layers are the same in all ticks. `rebuild` folds the number of the microbatch in.
        keys = list(map(self.pipeline.split_by_stage, self.leaves.select(self.leaves.layered)))
        known = micro.clip(0, self.pipeline.cut.count - 1)
        stack = eqx.combine(weights, self.model.others)
        run = vmap(self._at_stage, self.pipeline.Stage)
        moved: list[NamedArray] = run(stack, arrays, known, keys)
        return list(map(_order_like, moved, arrays))

    def _at_stage(self, stack: Any, arrays: Arrays, micro: NamedArray, keys: Arrays) -> Tree:
        carry, given = self.leaves.rebuild(micro.array, arrays, keys, ())
        # `fold` would ask for a pipeline again. The scope gives operations the names that they have in `fold`.
        step = running.make_step(FUNCTION, "fold", self.parts.apply)
        carry, _ = enter_scope(type(stack)._run)(stack, FUNCTION, step, 1, carry, *given)
        return self.leaves.read_carry(carry)


def _vjp(
    fn: Callable[..., list[NamedArray]], parameters: Tree, arrays: Arrays, micro: Any
) -> tuple[list[NamedArray], Callable[..., Any]]:
    """Differentiate with respect to parameters and the floats among arrays; integers pass, without gradients."""

    def apply(parameters: Tree, floats: Arrays) -> list[NamedArray]:
        rest = iter(floats)
        merged = [next(rest) if _is_float(array) else array for array in arrays]
        return _select_floats(fn(parameters, merged, micro))

    value, pull = jax.vjp(apply, parameters, _select_floats(arrays))
    return value, pull


def _is_float(array: NamedArray) -> bool:
    return bool(jnp.issubdtype(array.dtype, jnp.inexact))


def _select_floats(arrays: Arrays) -> list[NamedArray]:
    return list(filter(_is_float, arrays))


def _make_zeros(tree: Tree) -> Tree:
    return jax.tree.map(jnp.zeros_like, tree)


def _add(one: Tree, other: Tree) -> Tree:
    return jax.tree.map(jnp.add, one, other)


def _order_like(array: NamedArray, like: NamedArray) -> NamedArray:
    return rearrange(array, like.names)
