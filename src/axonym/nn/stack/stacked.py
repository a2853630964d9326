"""Sequences of layers: stored along an axis and looped over (`Stacked`), or stored one by one (`BlockSeq`)."""

import abc
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast

import equinox as eqx
import jax

from ...array import NamedArray, is_named_array
from ...axis import Axis, shown
from ...base.kinds import is_array
from ...engine import auto
from ...errors import AxisSizeError, OperandError, message
from ...layout.assignment import Entry
from ...ops.join import unbind
from ...transform.checkpoint import ScanCheckpointPolicy, ScanCheckpointSpec
from ...transform.leaves import drop_axis_of_hole, is_hole
from ...transform.loop import check_names, loop
from ...transform.vmap import vmap
from ..layer import Layer, enter_scope
from . import pipeline, rounds as by_rounds, running
from .stages import Pipeline

__all__ = ["BlockFoldable", "BlockSeq", "Stacked"]

M = TypeVar("M", bound=eqx.Module)
Carry = TypeVar("Carry")
P = ParamSpec("P")
R = TypeVar("R")
N = TypeVar(
    "N", bound=eqx.Module
)  # what `init` makes; no type can say "of this class, with layers N"
Steps = Callable[..., Any]
Unroll = int | bool | None


class BlockFoldable(Layer, Generic[M]):
    """Layers applied in sequence: the base of `Stacked`, `BlockSeq` and `Interleaved`.

    Further arguments of its methods are passed to the layers: named arrays with the axis `Block`, and plain arrays over
    dimension 0, layer by layer; everything else whole. A single `key` is split, so that each layer has its own. Inside
    a `shard_map` that splits the axis `Block`, a device has only its block of the layers.

    Attributes:
        Block: the axis of layers.
        gradient_checkpointing: what is kept for the backward pass.
    """

    if TYPE_CHECKING:  # fields of each class; declared here, they would come first

        @property
        def Block(self) -> Axis: ...  # noqa: D102, N802

        @property
        def gradient_checkpointing(self) -> ScanCheckpointPolicy: ...  # noqa: D102

    if not TYPE_CHECKING:  # type checkers report the call of what cannot be called

        def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: D102
            name = type(self).__name__
            hint = "write .fold(x) to apply the layers in sequence; .scan if each returns an output too"
            raise OperandError(message(name, "its layers are not called as one", hint=hint))

    def fold(self, init: Carry, *args: Any, unroll: Unroll = None, **kwargs: Any) -> Carry:
        """Apply the layers in sequence: each is called as `layer(carry, *args, **kwargs)` and returns a carry.

        Args:
            init: the initial carry.
            args: further arguments of the layers.
            unroll: the number of layers in one iteration of a compiled loop, by default 1; True unrolls all.
            kwargs: as `args`.
        """
        last: Carry = self.fold_via(_call, unroll=unroll)(init, *args, **kwargs)
        return last

    def scan(self, init: Any, *args: Any, unroll: Unroll = None, **kwargs: Any) -> Any:
        """Apply the layers like `fold`, where each returns a carry and an output; outputs are stacked along `Block`."""
        return self.scan_via(_call, unroll=unroll)(init, *args, **kwargs)

    def map(self, *args: Any, unroll: Unroll = None, **kwargs: Any) -> Any:
        """Apply every layer to the same arguments in sequence; the results are stacked along `Block`.

        It equals `vmap`, with the memory of one layer.
        """
        return self.map_via(_call, unroll=unroll)(*args, **kwargs)

    def vmap(self, *args: Any, **kwargs: Any) -> Any:
        """Apply every layer to the same arguments; the results are stacked along `Block`."""
        return self.vmap_via(_call)(*args, **kwargs)

    def fold_via(
        self, fn: Callable[Concatenate[M, P], R], *, unroll: Unroll = None
    ) -> Callable[P, R]:
        """Return a loop that calls `fn(layer, carry, *args, **kwargs)`, which returns a carry."""
        run = self._steps("fold", fn, unroll)
        return cast("Callable[P, R]", lambda init, *args, **kwargs: run(init, args, kwargs)[0])

    def scan_via(
        self, fn: Callable[Concatenate[M, P], tuple[Carry, R]], *, unroll: Unroll = None
    ) -> Callable[P, tuple[Carry, R]]:
        """Return a loop that calls `fn(layer, carry, *args, **kwargs)`, which returns a carry and an output."""
        run = self._steps("scan", fn, unroll)
        return cast(
            "Callable[P, tuple[Carry, R]]", lambda init, *args, **kwargs: run(init, args, kwargs)
        )

    def map_via(
        self, fn: Callable[Concatenate[M, P], R], *, unroll: Unroll = None
    ) -> Callable[P, R]:
        """Return a loop that calls `fn(layer, *args, **kwargs)`, and stacks the results."""
        run = self._steps("map", fn, unroll)
        return lambda *args, **kwargs: run(None, args, kwargs)[1]

    def _steps(self, method: str, fn: Steps, unroll: Unroll) -> Steps:
        """Return a function of a carry, arguments and keyword arguments that returns the last carry and the outputs."""
        function = f"{type(self).__name__}.{method}"
        step = running.to_pair(function, method, fn)

        @enter_scope
        def run(
            stack: BlockFoldable[M],
            init: object,
            args: tuple[object, ...],
            kwargs: dict[str, object],
        ) -> tuple[Any, Any]:
            counted = args
            if method != "map":  # the caller counts the carry as an argument
                counted = (None, *args)
            own, over = stack._here()
            kwargs = running.split_arguments(function, own.Block, counted, kwargs, over)
            times = 1 if unroll is None else unroll
            divided = None
            if method != "map":  # without a carry, nothing goes from layer to layer
                divided = own.divide(function)
            if divided is None:
                flat = own.in_order()
                carry, outputs = flat._run(function, step, times, init, args, kwargs)
                return carry, outputs

            def apply(stage: BlockFoldable[M], carry: object, given: Any) -> tuple[Any, Any]:
                last, outputs = stage._run(function, step, times, carry, *given)
                return last, outputs

            policy = own.gradient_checkpointing
            return pipeline.run(divided, own.by_stage, apply, init, (args, kwargs), policy)

        return partial(run, self)

    def divide(self, function: str) -> Pipeline | None:
        """Return how the layers are pipelined, if they are."""
        return None

    def by_stage(self, divided: Pipeline) -> Self:
        """Return the layers with an axis of stages."""
        raise NotImplementedError

    def in_order(self) -> Self:
        """Return the layers stored along one axis, in order of depth, if they are stored along axes."""
        return self

    def _here(self) -> tuple[Self, Entry]:
        """Return the layers that this device has, and the mesh axes over which a shard_map splits them."""
        return self, ()

    @abc.abstractmethod
    def _run(
        self,
        function: str,
        step: running.Step,
        unroll: int | bool,
        init: object,
        args: object,
        kwargs: object,
    ) -> Any:
        """Apply `step(layer, carry, *args, **kwargs)`, and return the last carry and the stacked outputs."""

    @abc.abstractmethod
    def vmap_via(self, fn: Callable[Concatenate[M, P], R]) -> Callable[P, R]:
        """Return a function that calls `fn(layer, *args, **kwargs)` for all layers at once, and stacks the results."""

    @abc.abstractmethod
    def unstacked(self) -> tuple[M, ...]:
        """Return the layers one by one."""

    @abc.abstractmethod
    def with_layers(self, layers: Iterable[M]) -> Self:
        """Return a copy with other layers; the inverse of `unstacked`.

        Raises:
            AxisSizeError: if their number differs.
        """

    def get_layer(self, layer: int) -> M:
        """Return one layer.

        Raises:
            AxisSizeError: if there is no such layer.
        """
        own, _ = self._here()
        if not -own.Block.size <= layer < own.Block.size:
            function = f"{type(self).__name__}.get_layer"
            raise AxisSizeError(
                message(function, f"layer {layer} is out of range for {shown(own.Block)}")
            )
        return own._layer(layer % own.Block.size)

    @abc.abstractmethod
    def _layer(self, at: int) -> M: ...

    def _as_many(self, layers: Iterable[M]) -> tuple[M, ...]:
        given, (own, _) = tuple(layers), self._here()
        if len(given) != own.Block.size:
            function = f"{type(self).__name__}.with_layers"
            raise AxisSizeError(
                message(function, f"there are {len(given)} layers for {shown(own.Block)}")
            )
        return given


class Stacked(BlockFoldable[M]):
    """Equal layers whose parameters are stored along an axis, applied in sequence by a compiled loop.

    The length of the program does not depend on the number of layers.

    Attributes:
        stacked: one module whose arrays have the axes of `storage` first.
        Block: the axis of layers.
        gradient_checkpointing: what the loop keeps for the backward pass.
        rounds: how often a pipeline passes all of its stages.
    """

    stacked: M
    Block: Axis = eqx.field(static=True)  # pyright: ignore[reportIncompatibleMethodOverride]
    gradient_checkpointing: ScanCheckpointPolicy = eqx.field(static=True)  # pyright: ignore[reportIncompatibleMethodOverride]
    rounds: int = eqx.field(static=True, default=1)

    @classmethod
    def init(
        cls: "type[Stacked[Any]]",
        Block: Axis,
        module: Callable[..., N],
        *,
        gradient_checkpointing: ScanCheckpointSpec = False,
        rounds: int = 1,
    ) -> "Callable[..., Stacked[N]]":
        """Return a function that makes the layers by `module.init`, each with its own key.

        Named arrays with the axis `Block`, and plain arrays over dimension 0, are passed to it layer by layer,
        everything else whole. A single `key` is split.

        Args:
            Block: the axis of layers.
            module: a class with a constructor `init`, or a function that returns a module.
            gradient_checkpointing: see `ScanCheckpointPolicy`.
            rounds: how often a pipeline passes all of its stages. Layers of several rounds are stored along two axes,
                `<Block>_round` and `Block`, so that each stage has some of every round.

        Raises:
            AxisSizeError: if an argument does not have a part for each layer, or the rounds do not divide the layers.

        Examples:
            >>> Layers, Embed = axn.make_axes(layers=3, embed=4)
            >>> norms = axn.nn.Stacked.init(Layers, axn.nn.LayerNorm)(Embed)
            >>> norms.stacked.weight.shape
            {'layers': 3, 'embed': 4}
        """
        policy = ScanCheckpointPolicy.make(gradient_checkpointing)
        make = running.constructor("Stacked.init", Block, module)
        by_rounds.check("Stacked.init", Block, rounds)
        axes = by_rounds.storage(Block, rounds)

        def initialize(*args: object, **kwargs: object) -> Stacked[N]:
            kwargs = running.split_arguments("Stacked.init", Block, args, kwargs)
            args, kwargs = by_rounds.split((args, kwargs), Block, rounds)
            return cls(by_rounds.mapped(make, axes)(*args, **kwargs), Block, policy, rounds)

        return initialize

    def _run(
        self,
        function: str,
        step: running.Step,
        unroll: int | bool,
        init: Any,
        args: Any,
        kwargs: Any,
    ) -> Any:
        looped = loop(
            function,
            step.fn,
            self.Block,
            self.gradient_checkpointing,
            False,
            unroll,
            pairs=step.pairs,
        )
        return looped(init, running.vectors_laid_out(self.stacked), *args, **kwargs)

    def vmap_via(self, fn: Callable[Concatenate[M, P], R]) -> Callable[P, R]:
        """Return a function that calls `fn(layer, *args, **kwargs)` for all layers at once, and stacks the results."""

        def run(*args: Any, **kwargs: Any) -> Any:
            own, over = self._here()
            kwargs = running.split_arguments("Stacked.vmap", own.Block, args, kwargs, over)
            return vmap(fn, own.Block)(own.in_order().stacked, *args, **kwargs)

        return run

    @property
    def storage(self) -> tuple[Axis, ...]:
        """The axes along which the layers are stored, outermost first; without rounds, it is `Block` alone."""
        return by_rounds.storage(self.Block, self.rounds)

    def _here(self) -> tuple[Self, Entry]:
        """Return the layers that this device has, and the mesh axes over which a shard_map splits them.

        Raises:
            ShardingError: if it splits several rounds, whose layers are not in sequence on one device.
        """
        Block, over = by_rounds.block_here("Stacked", self.stacked, self.storage)
        if not over:
            return self, ()
        return dataclasses.replace(self, Block=Block), over

    def divide(self, function: str) -> Pipeline | None:
        """Return how the layers are pipelined, if they are."""
        return pipeline.planned(function, self.Block, self.rounds)

    def by_stage(self, divided: Pipeline) -> Self:
        """Return the layers with an axis of stages; those of several rounds have an axis for them, too."""
        stacked, policy = divided.layers_by_stage(self.stacked), self.gradient_checkpointing
        if divided.rounds > 1:
            policy = policy.inside()
        return dataclasses.replace(
            self, stacked=stacked, Block=divided.Layer, rounds=1, gradient_checkpointing=policy
        )

    def in_order(self) -> Self:
        """Return the layers stored along one axis, in order of depth."""
        if self.rounds == 1:
            return self
        stacked = by_rounds.joined(self.stacked, self.Block, self.rounds)
        return dataclasses.replace(self, stacked=stacked, rounds=1)

    def unstacked(self) -> tuple[M, ...]:
        """Return the layers one by one."""
        (own, _), (leaves, tree) = (
            self._here(),
            jax.tree.flatten(self.in_order().stacked, is_leaf=is_named_array),
        )
        parts = [_unbind(leaf, own.Block) for leaf in leaves]
        return tuple(
            jax.tree.unflatten(tree, [part[i] for part in parts]) for i in range(own.Block.size)
        )

    def with_layers(self, layers: Iterable[M]) -> Self:
        """Return a copy with other layers; the inverse of `unstacked`.

        Raises:
            AxisSizeError: if their number differs.
            OperandError: if layers differ in more than the values of their arrays.
        """
        given = self._as_many(layers)
        for i, other in enumerate(given):
            differs = running.difference(given[0], other)
            if differs is not None:
                problem = "stacked layers may differ only in the values of their arrays"
                hint = "use BlockSeq for layers that differ, or Interleaved for kinds of layers that alternate"
                line = f"layer 0 and layer {i}: {differs}"
                raise OperandError(message("Stacked.with_layers", problem, line, hint=hint))
        own, _ = self._here()
        joined = self.stacked
        if given:
            joined = running.joined("Stacked.with_layers", given, own.Block, numbers=False)
            joined = by_rounds.split(joined, own.Block, self.rounds)
        return dataclasses.replace(self, stacked=joined)

    def _layer(self, at: int) -> M:
        layer, (*outer, Stored) = self.stacked, self.storage
        for Round in outer:
            layer = running.part(layer, Round, at // Stored.size)
            at %= Stored.size
        return running.part(layer, Stored, at)


class BlockSeq(BlockFoldable[M]):
    """Layers stored one by one and applied by a Python loop: the unrolled form of `Stacked`.

    The program grows with the number of layers, and the compiler sees all of them. Layers may differ in any way. Made
    from the same keys, they have the parameters of `Stacked` and `Interleaved`. `unroll` is accepted and ignored.
    Without layers, the outputs of `scan`, `map` and `vmap` are None.

    Attributes:
        blocks: the layers.
        Block: the axis of layers.
        gradient_checkpointing: what each layer keeps for the backward pass.
    """

    blocks: tuple[M, ...]
    Block: Axis = eqx.field(static=True)  # pyright: ignore[reportIncompatibleMethodOverride]
    gradient_checkpointing: ScanCheckpointPolicy = eqx.field(static=True)  # pyright: ignore[reportIncompatibleMethodOverride]

    @classmethod
    def init(
        cls: "type[BlockSeq[Any]]",
        Block: Axis,
        module: Callable[..., N] | Sequence[Callable[..., N]],
        *,
        gradient_checkpointing: ScanCheckpointSpec = False,
    ) -> "Callable[..., BlockSeq[N]]":
        """Return a function that makes the layers by `module.init`; see `Stacked.init`.

        Several modules alternate; see `Interleaved.init`.
        """
        policy = ScanCheckpointPolicy.make(gradient_checkpointing)
        kinds: Sequence[object] = (module,)
        if isinstance(module, Sequence):
            kinds = module
        makes = [running.constructor("BlockSeq.init", Block, kind) for kind in kinds]

        def initialize(*args: object, **kwargs: object) -> BlockSeq[N]:
            kwargs = running.split_arguments("BlockSeq.init", Block, args, kwargs)
            given = [running.part((args, kwargs), Block, i) for i in range(Block.size)]
            blocks = tuple(
                makes[i % len(makes)](*own, **named) for i, (own, named) in enumerate(given)
            )
            return cls(blocks, Block, policy)

        return initialize

    def _run(
        self,
        function: str,
        step: Steps,
        unroll: int | bool,
        init: object,
        args: object,
        kwargs: object,
    ) -> Any:
        policy, depth = self.gradient_checkpointing, self.Block.size
        groups = policy.groups(depth)
        given = [running.part((args, kwargs), self.Block, i) for i in range(depth)]
        named: set[str] = set()

        def group(layers: Sequence[M], carry: Any, rest: Any) -> Any:
            if groups > 1:
                carry, (layers, rest) = policy.mark(carry, (layers, rest))
            return running.in_turn(step, policy, layers, carry, rest, named, grouped=groups > 1)

        run_group: Steps = group
        if groups > 1:
            run_group = running.remat(policy, group, named)
        carry, outputs, length = init, [], depth // groups
        for start in range(0, depth, length or 1):
            own = slice(start, start + length)
            carry, more = run_group(self.blocks[own], carry, given[own])
            outputs += more
        if depth:
            check_names(function, policy, named)
        return carry, running.joined(function, outputs, self.Block, numbers=True)

    def vmap_via(self, fn: Callable[Concatenate[M, P], R]) -> Callable[P, R]:
        """Return a function that calls `fn(layer, *args, **kwargs)` for each layer, and stacks the results."""

        def run(*args: Any, **kwargs: Any) -> Any:
            kwargs = running.split_arguments("BlockSeq.vmap", self.Block, args, kwargs)
            given = (running.part((args, kwargs), self.Block, i) for i in range(self.Block.size))
            results: list[R] = []
            for layer, (own, named) in zip(self.blocks, given, strict=True):
                results.append(fn(layer, *own, **named))
            return running.joined("BlockSeq.vmap", results, self.Block, numbers=False)

        return run

    def unstacked(self) -> tuple[M, ...]:
        """Return the layers one by one."""
        return self.blocks

    def with_layers(self, layers: Iterable[M]) -> Self:
        """Return a copy with other layers; the inverse of `unstacked`.

        Raises:
            AxisSizeError: if their number differs.
        """
        return type(self)(self._as_many(layers), self.Block, self.gradient_checkpointing)

    def _layer(self, at: int) -> M:
        return self.blocks[at]


def _call(layer: Any, *args: Any, **kwargs: Any) -> Any:
    return layer(*args, **kwargs)


def _unbind(leaf: Any, Block: Axis) -> Sequence[Any]:
    """Split a leaf into the parts of the layers."""
    if is_array(leaf) and leaf.ndim:
        return list(auto.whole(leaf, (0,)))
    if not isinstance(leaf, NamedArray) or Block.name not in leaf.names:
        return [leaf] * Block.size
    if is_hole(leaf):
        return [drop_axis_of_hole(leaf, Block.name)] * Block.size
    return unbind(leaf, Block)
