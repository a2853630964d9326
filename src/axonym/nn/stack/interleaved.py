"""Alternating layers of several kinds, such as local and global attention, in one compiled loop.

The loop runs over repetitions of the pattern. Each repetition is a tuple of one layer of each kind, so all repetitions
have the same structure and their parameters can be stacked.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, overload

import equinox as eqx
import jax

from ...array import NamedArray, is_named_array
from ...axis import Axis, shown
from ...base.kinds import is_array
from ...errors import AxisSizeError, OperandError, ShardingError, message
from ...layout.assignment import Entry
from ...ops.join import concatenate
from ...ops.shape import flatten_axes, rearrange
from ...transform.checkpoint import ScanCheckpointPolicy, ScanCheckpointSpec
from ...transform.leaves import drop_axis_of_hole, is_hole
from ...transform.loop import check_names, loop
from ...transform.vmap import vmap
from . import pipeline, rounds as by_rounds, running
from .stacked import BlockFoldable, Stacked
from .stages import Pipeline

__all__ = ["Interleaved"]

M = TypeVar("M", bound=eqx.Module)
P = ParamSpec("P")
R = TypeVar("R")
# The types of the layers that `init` makes; no type can say "of this class, with layers N".
N = TypeVar("N", bound=eqx.Module)
N2 = TypeVar("N2", bound=eqx.Module)
Steps = Callable[..., Any]


# A dataclass, not a closure: the cache of eager loops compares it by its fields.
@dataclasses.dataclass(frozen=True)
class _Repetition:
    """How a loop applies one layer of each kind.

    Attributes:
        pairs: how it applies one layer, see `running.Step`.
        Pattern: the axis of the layers within one repetition.
        policy: what each layer keeps for the backward pass.
        grouped: whether repetitions are part of a group, see `running.apply_in_sequence`.
        unrolled: whether there is no compiled loop around them.
        named: collects the checkpoint names inside the layers, if the policy has any. A set is not hashable, so each
            call traces such a loop again and finds them.
    """

    pairs: Steps
    Pattern: Axis
    policy: ScanCheckpointPolicy
    grouped: bool
    unrolled: bool
    named: Any

    def __call__(
        self, function: str, fn: Steps, carry: Any, layers: Sequence[Any], given: Any
    ) -> tuple[Any, Any]:
        """Apply the layers, and return the carry and the stacked outputs."""
        step = running.Step(function, self.pairs, fn)
        carry, outputs = running.apply_in_sequence(
            step,
            self.policy,
            layers,
            carry,
            given,
            self.named,
            grouped=self.grouped,
            unrolled=self.unrolled,
            scope="repeated",
        )
        return carry, running.stack_outputs(function, outputs, self.Pattern, numbers=True)


class Interleaved(BlockFoldable[M]):
    """Alternating layers of several kinds: a loop over repetitions of a pattern, then the remaining layers.

    Its methods, arguments and outputs are those of a `Stacked` of all layers, in order of depth. The program is as long
    as one repetition and the remaining layers.

    Attributes:
        repeated: the repetitions, each a tuple of one layer of each kind. The size of its `Block` is their number.
        rest: the last layers, if the number of layers is not a multiple of the length of the pattern.
        Block: the axis of all layers.
        gradient_checkpointing: the values that each layer keeps for the backward pass. A `nested` policy makes groups
            of repetitions.

    Examples:
        >>> Layers, Embed = axn.make_axes(layers=4, embed=4)
        >>> norms = axn.nn.Interleaved.init(Layers, (axn.nn.LayerNorm, axn.nn.RmsNorm))(Embed)
        >>> norms.fold(axn.ones(Embed)).shape
        {'embed': 4}
    """

    repeated: Stacked[Any]
    rest: tuple[M, ...]
    Block: Axis = eqx.field(static=True)  # pyright: ignore[reportIncompatibleMethodOverride]
    gradient_checkpointing: ScanCheckpointPolicy = eqx.field(static=True)  # pyright: ignore[reportIncompatibleMethodOverride]

    # mypy infers only the common type of several kinds in a sequence
    @overload
    @classmethod
    def init(
        cls: "type[Interleaved[Any]]",
        Block: Axis,
        pattern: tuple[Callable[..., N], Callable[..., N2]],
        *,
        gradient_checkpointing: ScanCheckpointSpec = False,
        rounds: int = 1,
        stages: int = 1,
    ) -> "Callable[..., Interleaved[N | N2]]": ...
    @overload
    @classmethod
    def init(
        cls: "type[Interleaved[Any]]",
        Block: Axis,
        pattern: Sequence[Callable[..., N]],
        *,
        gradient_checkpointing: ScanCheckpointSpec = False,
        rounds: int = 1,
        stages: int = 1,
    ) -> "Callable[..., Interleaved[N]]": ...
    @classmethod
    def init(
        cls: "type[Interleaved[Any]]",
        Block: Axis,
        pattern: Sequence[Callable[..., N]],
        *,
        gradient_checkpointing: ScanCheckpointSpec = False,
        rounds: int = 1,
        stages: int = 1,
    ) -> "Callable[..., Interleaved[N]]":
        """Return a function that makes the layers, each with the constructor of its kind and its own key.

        All constructors get the same arguments, under the rules of `Stacked.init`.

        Args:
            Block: the axis of all layers.
            pattern: for each layer of a repetition, a class with a constructor `init`, or a function that returns a
                module.
            gradient_checkpointing: see `ScanCheckpointPolicy`.
            rounds: how often a pipeline passes all of its stages, see `Stacked.init`; they divide the repetitions.
            stages: the number of stages of a pipeline, for one that does not divide the repetitions; see
                `Stacked.init`.

        Raises:
            AxisSizeError: as `Stacked.init`; or if there are remaining layers beside `stages`.

        Examples:
            >>> Layers, Embed = axn.make_axes(layers=5, embed=4)
            >>> norms = axn.nn.Interleaved.init(Layers, (axn.nn.LayerNorm, axn.nn.RmsNorm))(Embed)
            >>> [type(layer).__name__ for layer in norms.unstacked()]
            ['LayerNorm', 'RmsNorm', 'LayerNorm', 'RmsNorm', 'LayerNorm']
        """
        policy = ScanCheckpointPolicy.make(gradient_checkpointing)
        if not isinstance(pattern, list | tuple) or not pattern:
            problem = f"pattern must be a list of classes, one for each layer of a repetition, not {pattern!r}"
            raise OperandError(
                message("Interleaved.init", problem, hint="write (Local, Local, Global)")
            )
        makes = [running.find_constructor("Interleaved.init", Block, kind) for kind in pattern]
        period = len(makes)
        Repeated = Block.resize(Block.size // period)
        end = Repeated.size * period
        by_rounds.check_rounds("Interleaved.init", Repeated, rounds, stages)
        if stages > 1 and end < Block.size:
            problem = (
                f"{shown(Block)}, {period} in each repetition, leave {Block.size - end} layers"
            )
            hint = f"stages={stages} need whole repetitions: use a multiple of {period} layers"
            raise AxisSizeError(message("Interleaved.init", problem, hint=hint))
        storage = Repeated, rounds, stages
        axes = by_rounds.list_storage_axes(*storage)

        def initialize(*args: object, **kwargs: object) -> Interleaved[N]:
            given = (args, running.prepare_arguments("Interleaved.init", Block, args, kwargs))
            # Layer i of the pattern has layers i, i + period, ... of all, with the keys of these.
            kinds = []
            for i, make in enumerate(makes):
                repeated = running.take_part(given, Block, slice(i, end, period))
                own, named = by_rounds.split_rounds(repeated, *storage)
                made = by_rounds.map_over_axes(make, axes)(*own, **named)
                kinds.append(by_rounds.empty_places(made, *storage))
            rest = []
            for i in range(end, Block.size):
                own, named = running.take_part(given, Block, i)
                rest.append(makes[i - end](*own, **named))
            layers: Any = tuple(kinds)
            # Each layer is checkpointed by itself, so the loop over repetitions must not do it again.
            plain = ScanCheckpointPolicy(disable=True)
            repetitions = Stacked(layers, Repeated, plain, rounds, stages)
            return cls(repetitions, tuple(rest), Block, policy)

        return initialize

    def _run(
        self,
        function: str,
        step: running.Step,
        unroll: int | bool,
        init: object,
        args: object,
        kwargs: object,
    ) -> Any:
        # Names of checkpoints are collected in the loop and in the remaining layers, and compared with the policy once.
        policy, named = self.gradient_checkpointing, set[str]()
        # Layers have policies that alternate in turn, from the first one of each repetition.
        of = self._Pattern if policy.alternating else self.repeated.Block
        groups = policy.groups(of.size)
        unrolled = unroll is True or unroll >= self.repeated.Block.size // groups
        repetition = _Repetition(
            step.pairs, self._Pattern, policy, groups > 1, unrolled, named if policy.names else None
        )
        looped = loop(
            function,
            step.fn,
            self.repeated.Block,
            policy,
            False,
            unroll,
            checkpointed=True,
            pairs=self.repeated.with_places(repetition),
        )
        layers = running.shard_vectors(self.repeated.stacked)
        carry, outputs = looped(init, layers, self._select_repeated((args, kwargs)))
        carry, others = running.apply_in_sequence(
            step, policy, self.rest, carry, self._select_rest((args, kwargs)), named
        )
        check_names(function, policy, named)
        return carry, self._join_outputs(function, outputs, others, numbers=True)

    def vmap_via(self, fn: Callable[Concatenate[M, P], R]) -> Callable[P, R]:
        """Return a function that calls `fn(layer, *args, **kwargs)` for all layers of a kind at once.

        Args:
            fn: a function of a layer and further arguments.
        """
        call: Steps = fn

        def repetition(layers: tuple[M, ...], given: Any) -> Any:
            pairs = zip(layers, given, strict=True)
            results = [call(layer, *own, **named) for layer, (own, named) in pairs]
            return running.stack_outputs("Interleaved.vmap", results, self._Pattern, numbers=False)

        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            # One `vmap` over all repetitions, and a Python loop over the kinds of layers inside of it.
            here, over = self._find_local()
            here = here.in_order()
            arguments = (
                args,
                running.prepare_arguments("Interleaved.vmap", here.Block, args, kwargs, over),
            )
            outputs = vmap(repetition, here.repeated.Block)(
                here.repeated.stacked, here._select_repeated(arguments)
            )
            given = zip(here.rest, here._select_rest(arguments), strict=True)
            others = [call(layer, *own, **named) for layer, (own, named) in given]
            result: R = here._join_outputs("Interleaved.vmap", outputs, others, numbers=False)
            return result

        return run

    def _find_local(self) -> tuple[Self, Entry]:
        """Return the layers that this device has, and the mesh axes over which a shard_map splits them.

        Raises:
            ShardingError: if there are remaining layers, which would be on every device but come last.
        """
        stored, skipped = self.repeated.storage, self.repeated.skipped
        Repeated, over = by_rounds.find_block(
            "Interleaved", self.repeated.stacked, stored, skipped=skipped
        )
        if not over:
            return self, ()
        # Each device would apply the remaining layers after its own block, so also before those of the next device.
        if self.rest:
            problem = f"repetitions are split over {', '.join(over)}, but the remaining layers are on every device"
            fact = f"{shown(self.Block)}: {self.repeated.Block.size} repetitions of {self._Pattern.size} layers"
            hint = "apply `repeated` here, and `rest` after the last of the devices; or choose another depth"
            raise ShardingError(
                message(
                    "Interleaved", problem, f"{fact}, and {len(self.rest)} left over", hint=hint
                )
            )
        Block = self.Block.resize(Repeated.size * self._Pattern.size)
        repeated = dataclasses.replace(self.repeated, Block=Repeated, stages=1)
        return dataclasses.replace(self, repeated=repeated, Block=Block), over

    def divide(self, function: str) -> Pipeline | None:
        """Return how the current mapping and `axn.pipelined` divide the layers; None if they do not.

        Args:
            function: the name for errors.

        Raises:
            AxisSizeError: if stages would have different parts of the pattern.
        """
        skipped = self.repeated.skipped * self._Pattern.size
        divided = pipeline.find_pipeline(function, self.Block, self.repeated.rounds, skipped)
        if divided is None:
            return None
        # All stages run the same program, so each needs the same kinds of layers in the same order.
        repetitions = self.repeated.Block.size
        if self.rest or (repetitions + self.repeated.skipped) % divided.cycle:
            problem = f"each of {divided.stages} stages needs as many repetitions of the pattern"
            problem += f" of {self._Pattern.size}"
            if divided.rounds > 1:
                problem += f" in each of {divided.rounds} rounds"
            facts = f"{shown(self.Block)}: {repetitions} repetitions, and {len(self.rest)} layers left over"
            hint = f"use a multiple of {divided.cycle * self._Pattern.size} layers"
            if not self.rest:
                hint += f", or make the stack with stages={divided.stages}"
            raise AxisSizeError(message(function, problem, facts, hint=hint))
        return divided

    def by_stage(self, divided: Pipeline) -> Self:
        """Return the layers with an axis of stages; those of several rounds have an axis for them, too.

        Args:
            divided: the result of `divide`.
        """
        policy = self.gradient_checkpointing
        # The pipeline checkpoints each round as a unit. The loop inside only names what that should keep.
        policy = policy.inside() if divided.rounds > 1 else policy
        size = divided.Layer.size // self._Pattern.size
        repeated = self.repeated.by_stage_of(divided, size)
        return dataclasses.replace(
            self, repeated=repeated, Block=divided.Layer, gradient_checkpointing=policy
        )

    def in_order(self) -> Self:
        """Return the repetitions stored along one axis, in order of depth."""
        return dataclasses.replace(self, repeated=self.repeated.in_order())

    def unstacked(self) -> tuple[M, ...]:
        """Return the layers one by one, in order of depth."""
        here, _ = self._find_local()
        return (*itertools.chain(*here.repeated.unstacked()), *here.rest)

    def with_layers(self, layers: Iterable[M]) -> Self:
        """Return a copy with other layers; the inverse of `unstacked`.

        Args:
            layers: one for each of the axis `Block`, in order of depth.

        Raises:
            AxisSizeError: if their number differs.
            OperandError: if layers of one kind differ in more than the values of their arrays.
        """
        given, period, (here, _) = self._check_count(layers), self._Pattern.size, self._find_local()
        repetitions: Any = [given[i : i + period] for i in range(0, here._end, period)]
        repeated = self.repeated.with_layers(repetitions)
        return type(self)(repeated, given[here._end :], self.Block, self.gradient_checkpointing)

    def _take_layer(self, at: int) -> M:
        if at >= self._end:
            return self.rest[at - self._end]
        layers: tuple[M, ...] = self.repeated.get_layer(at // self._Pattern.size)
        return layers[at % self._Pattern.size]

    @property
    def _Pattern(self) -> Axis:  # noqa: N802
        """The axis of the layers within one repetition."""
        return Axis(f"{self.Block.name}.pattern", len(self.repeated.layers))

    @property
    def _end(self) -> int:
        """The index of the first remaining layer."""
        return self.repeated.Block.size * self._Pattern.size

    def _select_repeated(self, arguments: object) -> Any:
        """Return the arguments of each layer of a repetition, for all repetitions."""
        period = self._Pattern.size
        return tuple(
            running.take_part(arguments, self.Block, slice(i, self._end, period))
            for i in range(period)
        )

    def _select_rest(self, arguments: object) -> Any:
        """Return the arguments of each remaining layer."""
        return [
            running.take_part(arguments, self.Block, i) for i in range(self._end, self.Block.size)
        ]

    def _join_outputs(self, function: str, outputs: Any, others: Any, *, numbers: bool) -> Any:
        """Join the outputs of the repetitions, by repetition and layer, with those of the remaining layers."""
        Repeated, Pattern, Block = self.repeated.Block, self._Pattern, self.Block

        # Outputs come with an axis for repetitions and one for the layers of each; both together are in order of depth.
        def merge(leaf: Any) -> Any:
            if is_hole(leaf):
                return drop_axis_of_hole(leaf, Pattern.name)
            if isinstance(leaf, NamedArray):
                return flatten_axes(
                    rearrange(leaf, (Repeated.name, Pattern.name, ...)),
                    (Repeated, Pattern),
                    Block.name,
                )
            if is_array(leaf):
                return leaf.reshape(self._end, *leaf.shape[2:])
            return leaf

        def append(leaf: Any, other: Any) -> Any:
            if is_hole(leaf):
                return leaf
            if isinstance(leaf, NamedArray):
                return concatenate(Block, (leaf, other))
            if is_array(leaf):
                return jax.numpy.concatenate((leaf, other))
            return leaf

        merged = jax.tree.map(merge, outputs, is_leaf=is_named_array)
        if not others:
            return merged
        rest = running.stack_outputs(function, others, Block.resize(len(others)), numbers=numbers)
        return jax.tree.map(append, merged, rest, is_leaf=is_named_array)
