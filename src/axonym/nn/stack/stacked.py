"""Layers that are stored along an axis and applied in sequence (`Stacked`), and the base of all stacks.

A stack passes arguments on to its layers, some of them layer by layer. Its methods differ in what they do with results:
`fold` passes them to the next layer, `map` stacks them, `scan` does both.
"""

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
from ...transform.loop import loop
from ...transform.vmap import vmap
from ..layer import Layer, enter_scope
from . import pipeline, rounds as by_rounds, running
from .stages import Pipeline

__all__ = ["BlockFoldable", "Stacked"]

M = TypeVar("M", bound=eqx.Module)
Carry = TypeVar("Carry")
P = ParamSpec("P")
R = TypeVar("R")
# The type of the layers that `init` makes; no type can say "of this class, with layers N".
N = TypeVar("N", bound=eqx.Module)
Steps = Callable[..., Any]
Unroll = int | bool | None


class BlockFoldable(Layer, Generic[M]):
    """Layers applied in sequence: the base of `Stacked`, `BlockSeq` and `Interleaved`.

    Its methods pass further arguments to the layers. Each layer gets its part of named arrays with the axis `Block` and
    of plain arrays, along dimension 0, and everything else as it is. A single `key` is split, so that each layer has
    its own. Inside a `shard_map` that splits the axis `Block`, a device has only its block of the layers.

    Attributes:
        Block: the axis of layers.
        gradient_checkpointing: the values that are kept for the backward pass.

    Examples:
        >>> Layers, Embed = axn.make_axes(layers=3, embed=4)
        >>> stack = axn.nn.Stacked.init(Layers, axn.nn.LayerNorm)(Embed)
        >>> sequence = axn.nn.BlockSeq.init(Layers, axn.nn.LayerNorm)(Embed)
        >>> all(isinstance(layers, axn.nn.BlockFoldable) for layers in (stack, sequence))
        True
    """

    # Each class has these as fields. Fields that were declared here would come first among theirs.
    if TYPE_CHECKING:

        @property
        def Block(self) -> Axis: ...  # noqa: D102, N802

        @property
        def gradient_checkpointing(self) -> ScanCheckpointPolicy: ...  # noqa: D102

    # Type checkers do not see this method, so they report a call, too.
    if not TYPE_CHECKING:

        def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: D102
            name = type(self).__name__
            hint = "write .fold(x) to apply the layers in sequence; .scan if each returns an output too"
            raise OperandError(message(name, "its layers are not called as one", hint=hint))

    def fold(self, init: Carry, *args: Any, unroll: Unroll = None, **kwargs: Any) -> Carry:
        """Apply the layers in sequence: each is called as `layer(carry, *args, **kwargs)` and returns a carry.

        Args:
            init: the initial carry, an array or a tree.
            args: further arguments of the layers.
            unroll: the number of layers in one iteration of a compiled loop, by default 1; True unrolls all.
            kwargs: as `args`.

        Returns:
            The carry of the last layer, with the axes of `init`.

        Examples:
            >>> Layers, Embed = axn.make_axes(layers=3, embed=4)
            >>> norms = axn.nn.Stacked.init(Layers, axn.nn.RmsNorm)(Embed)
            >>> norms.fold(axn.ones(Embed)).shape
            {'embed': 4}
        """
        last: Carry = self.fold_via(_call, unroll=unroll)(init, *args, **kwargs)
        return last

    def scan(self, init: Any, *args: Any, unroll: Unroll = None, **kwargs: Any) -> Any:
        """Apply the layers like `fold`, where each returns a carry and an output.

        Args:
            init: the initial carry.
            args: further arguments of the layers.
            unroll: see `fold`.
            kwargs: as `args`.

        Returns:
            The last carry, and the outputs, stacked along `Block`.

        Examples:
            >>> import equinox as eqx
            >>> class Double(eqx.Module):
            ...     def __call__(self, x):
            ...         return 2 * x, x
            >>> doubles = axn.nn.BlockSeq.init(axn.Axis("layers", 3), lambda: Double())()
            >>> last, outputs = doubles.scan(axn.named(1.0, ()))
            >>> last.item(), outputs.tolist()
            (8.0, [1.0, 2.0, 4.0])
        """
        return self.scan_via(_call, unroll=unroll)(init, *args, **kwargs)

    def map(self, *args: Any, unroll: Unroll = None, **kwargs: Any) -> Any:
        """Apply every layer to the same arguments, one after another.

        It computes the same as `vmap`, more slowly and with the memory of one layer.

        Args:
            args: the arguments of the layers.
            unroll: see `fold`.
            kwargs: as `args`.

        Returns:
            The results, stacked along `Block`.

        Examples:
            >>> Layers, Embed = axn.make_axes(layers=3, embed=4)
            >>> norms = axn.nn.Stacked.init(Layers, axn.nn.RmsNorm)(Embed)
            >>> norms.map(axn.ones(Embed)).shape
            {'layers': 3, 'embed': 4}
        """
        return self.map_via(_call, unroll=unroll)(*args, **kwargs)

    def vmap(self, *args: Any, **kwargs: Any) -> Any:
        """Apply every layer to the same arguments, all at once; arguments and result are those of `map`.

        Examples:
            >>> Layers, Embed = axn.make_axes(layers=3, embed=4)
            >>> norms = axn.nn.Stacked.init(Layers, axn.nn.RmsNorm)(Embed)
            >>> norms.vmap(axn.ones(Embed)).shape
            {'layers': 3, 'embed': 4}
        """
        return self.vmap_via(_call)(*args, **kwargs)

    def fold_via(
        self, fn: Callable[Concatenate[M, P], R], *, unroll: Unroll = None
    ) -> Callable[P, R]:
        """Return a loop like `fold` that calls a function instead of the layers.

        Args:
            fn: called as `fn(layer, carry, *args, **kwargs)`; returns a carry. It may be a method of the layers.
            unroll: see `fold`.

        Returns:
            A function `(init, *args, **kwargs)` that returns the last carry.

        Examples:
            >>> Layers, Embed = axn.make_axes(layers=3, embed=4)
            >>> norms = axn.nn.Stacked.init(Layers, axn.nn.RmsNorm)(Embed)
            >>> norms.fold_via(lambda norm, x: x + norm(x))(axn.ones(Embed)).shape
            {'embed': 4}
        """
        run = self._make_loop("fold", fn, unroll)
        return cast("Callable[P, R]", lambda init, *args, **kwargs: run(init, args, kwargs)[0])

    def scan_via(
        self, fn: Callable[Concatenate[M, P], tuple[Carry, R]], *, unroll: Unroll = None
    ) -> Callable[P, tuple[Carry, R]]:
        """Return a loop like `scan` that calls a function instead of the layers.

        Args:
            fn: called as `fn(layer, carry, *args, **kwargs)`; returns a carry and an output.
            unroll: see `fold`.

        Returns:
            A function `(init, *args, **kwargs)` that returns the last carry and the stacked outputs.

        Examples:
            >>> Layers, Embed = axn.make_axes(layers=3, embed=4)
            >>> norms = axn.nn.Stacked.init(Layers, axn.nn.RmsNorm)(Embed)
            >>> last, sums = norms.scan_via(lambda norm, x: (norm(x), x.sum()))(axn.ones(Embed))
            >>> sums.shape
            {'layers': 3}
        """
        run = self._make_loop("scan", fn, unroll)
        return cast(
            "Callable[P, tuple[Carry, R]]", lambda init, *args, **kwargs: run(init, args, kwargs)
        )

    def map_via(
        self, fn: Callable[Concatenate[M, P], R], *, unroll: Unroll = None
    ) -> Callable[P, R]:
        """Return a loop like `map` that calls a function instead of the layers.

        Args:
            fn: called as `fn(layer, *args, **kwargs)`.
            unroll: see `fold`.

        Returns:
            A function `(*args, **kwargs)` that returns the results, stacked along `Block`.

        Examples:
            >>> Layers, Embed = axn.make_axes(layers=3, embed=4)
            >>> norms = axn.nn.Stacked.init(Layers, axn.nn.RmsNorm)(Embed)
            >>> norms.map_via(lambda norm: norm.weight.sum())().tolist()
            [4.0, 4.0, 4.0]
        """
        run = self._make_loop("map", fn, unroll)
        return lambda *args, **kwargs: run(None, args, kwargs)[1]

    def _make_loop(self, method: str, fn: Steps, unroll: Unroll) -> Steps:
        """Return a function of a carry, arguments and keyword arguments that returns the last carry and the outputs."""
        function = f"{type(self).__name__}.{method}"
        step = running.make_step(function, method, fn)

        @enter_scope
        def run(
            stack: BlockFoldable[M],
            init: object,
            args: tuple[object, ...],
            kwargs: dict[str, object],
        ) -> tuple[Any, Any]:
            # The user counts the carry as an argument, so errors count it, too.
            counted = args if method == "map" else (None, *args)
            own, over = stack._find_local()
            kwargs = running.prepare_arguments(function, own.Block, counted, kwargs, over)
            times = 1 if unroll is None else unroll
            # A map has no carry that goes from layer to layer, so its layers need no pipeline.
            divided = None if method == "map" else own.divide(function)
            if divided is None:
                flat = own.in_order()
                carry, outputs = flat._run(function, step, times, init, args, kwargs)
                return carry, outputs

            def apply(stage: BlockFoldable[M], carry: object, given: Any) -> tuple[Any, Any]:
                last, outputs = stage._run(function, step, times, carry, *given)
                return last, outputs

            policy = own.gradient_checkpointing
            return pipeline.run(divided, own.by_stage, apply, init, (args, kwargs), policy)

        # The stack is an argument, so that operations get the name under which the caller holds it.
        return partial(run, self)

    def divide(self, function: str) -> Pipeline | None:
        """Return how the current mapping and `axn.pipelined` divide the layers; None if they do not.

        Args:
            function: the name for errors.
        """
        return None

    def by_stage(self, divided: Pipeline) -> Self:
        """Return the layers with an axis of stages.

        Args:
            divided: the result of `divide`.
        """
        raise NotImplementedError

    def in_order(self) -> Self:
        """Return the layers stored along one axis, in order of depth, if they are stored along axes."""
        return self

    def _find_local(self) -> tuple[Self, Entry]:
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
        """Return a function that calls `fn(layer, *args, **kwargs)` for all layers at once, and stacks the results.

        Args:
            fn: a function of a layer and further arguments.

        Examples:
            >>> Layers, Embed = axn.make_axes(layers=3, embed=4)
            >>> norms = axn.nn.Stacked.init(Layers, axn.nn.RmsNorm)(Embed)
            >>> norms.vmap_via(lambda norm, x: norm(x).sum())(axn.ones(Embed)).shape
            {'layers': 3}
        """

    @abc.abstractmethod
    def unstacked(self) -> tuple[M, ...]:
        """Return the layers one by one.

        Examples:
            >>> Layers, Embed = axn.make_axes(layers=3, embed=4)
            >>> norms = axn.nn.Stacked.init(Layers, axn.nn.RmsNorm)(Embed)
            >>> len(norms.unstacked()), norms.unstacked()[0].weight.shape
            (3, {'embed': 4})
        """

    @abc.abstractmethod
    def with_layers(self, layers: Iterable[M]) -> Self:
        """Return a copy with other layers; the inverse of `unstacked`.

        Args:
            layers: one for each of the axis `Block`, in order of depth.

        Raises:
            AxisSizeError: if their number differs.

        Examples:
            >>> Layers, Embed = axn.make_axes(layers=3, embed=4)
            >>> norms = axn.nn.Stacked.init(Layers, axn.nn.RmsNorm)(Embed)
            >>> backwards = norms.with_layers(reversed(norms.unstacked()))
        """

    def get_layer(self, layer: int) -> M:
        """Return one layer.

        Args:
            layer: its number, from 0; negative ones count from the end.

        Raises:
            AxisSizeError: if there is no such layer.

        Examples:
            >>> Layers, Embed = axn.make_axes(layers=3, embed=4)
            >>> norms = axn.nn.Stacked.init(Layers, axn.nn.RmsNorm)(Embed)
            >>> norms.get_layer(-1).weight.shape
            {'embed': 4}
        """
        own, _ = self._find_local()
        if not -own.Block.size <= layer < own.Block.size:
            function = f"{type(self).__name__}.get_layer"
            raise AxisSizeError(
                message(function, f"layer {layer} is out of range for {shown(own.Block)}")
            )
        return own._take_layer(layer % own.Block.size)

    @abc.abstractmethod
    def _take_layer(self, at: int) -> M: ...

    def _check_count(self, layers: Iterable[M]) -> tuple[M, ...]:
        given, (own, _) = tuple(layers), self._find_local()
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
        gradient_checkpointing: the values that the loop keeps for the backward pass.
        rounds: how often a pipeline passes all of its stages.
        stages: the number of stages of a pipeline, if it need not divide the layers.

    Examples:
        >>> Layers, Embed = axn.make_axes(layers=3, embed=4)
        >>> blocks = axn.nn.Stacked.init(Layers, axn.nn.Linear)(Embed, Embed, key=jax.random.key(0))
        >>> blocks.stacked.weight.shape
        {'layers': 3, 'embed': 4, 'embed.out': 4}
        >>> blocks.fold(axn.ones(Embed)).shape
        {'embed': 4}
    """

    stacked: M
    Block: Axis = eqx.field(static=True)  # pyright: ignore[reportIncompatibleMethodOverride]
    gradient_checkpointing: ScanCheckpointPolicy = eqx.field(static=True)  # pyright: ignore[reportIncompatibleMethodOverride]
    rounds: int = eqx.field(static=True, default=1)
    stages: int = eqx.field(static=True, default=1)

    @classmethod
    def init(
        cls: "type[Stacked[Any]]",
        Block: Axis,
        module: Callable[..., N],
        *,
        gradient_checkpointing: ScanCheckpointSpec = False,
        rounds: int = 1,
        stages: int = 1,
    ) -> "Callable[..., Stacked[N]]":
        """Return a function that makes the layers by `module.init`, each with its own key.

        Its arguments are those of `module.init`. Each layer gets its part of named arrays with the axis `Block` and of
        plain arrays, along dimension 0, and everything else as it is. A single `key` is split.

        Args:
            Block: the axis of layers.
            module: a class with a constructor `init`, or a function that returns a module.
            gradient_checkpointing: see `ScanCheckpointPolicy`.
            rounds: how often a pipeline passes all of its stages. Layers of several rounds are stored along two axes,
                `<Block>_round` and `Block`, so that each stage has some of every round.
            stages: the number of stages of a pipeline, for one that does not divide the layers. Layers are then stored
                with places for that many stages of equal size. Places without a layer, at the end, hold zeros; they
                are skipped, and are neither in `unstacked` nor in files.

        Raises:
            AxisSizeError: if an argument does not have a part for each layer, or the rounds do not divide the layers.

        Examples:
            >>> Layers, Embed = axn.make_axes(layers=3, embed=4)
            >>> norms = axn.nn.Stacked.init(Layers, axn.nn.LayerNorm)(Embed)
            >>> norms.stacked.weight.shape
            {'layers': 3, 'embed': 4}
        """
        policy = ScanCheckpointPolicy.make(gradient_checkpointing)
        make = running.find_constructor("Stacked.init", Block, module)
        by_rounds.check_rounds("Stacked.init", Block, rounds, stages)
        axes = by_rounds.list_storage_axes(Block, rounds, stages)

        def initialize(*args: object, **kwargs: object) -> Stacked[N]:
            # Keys are split by layer first and then by round, so that rounds change no parameter.
            kwargs = running.prepare_arguments("Stacked.init", Block, args, kwargs)
            args, kwargs = by_rounds.split_rounds((args, kwargs), Block, rounds, stages)
            made = by_rounds.map_over_axes(make, axes)(*args, **kwargs)
            made = by_rounds.empty_places(made, Block, rounds, stages)
            return cls(made, Block, policy, rounds, stages)

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
            pairs=self.with_places(step.pairs),
        )
        return looped(init, running.shard_vectors(self.stacked), *args, **kwargs)

    def vmap_via(self, fn: Callable[Concatenate[M, P], R]) -> Callable[P, R]:
        """Return a function that calls `fn(layer, *args, **kwargs)` for all layers at once, and stacks the results."""

        def run(*args: Any, **kwargs: Any) -> Any:
            own, over = self._find_local()
            kwargs = running.prepare_arguments("Stacked.vmap", own.Block, args, kwargs, over)
            return vmap(fn, own.Block)(own.in_order().stacked, *args, **kwargs)

        return run

    @property
    def storage(self) -> tuple[Axis, ...]:
        """The axes along which the layers are stored, outermost first: `Block` alone, or rounds and `Block`.

        With `stages`, `Block` has places without a layer at its end.
        """
        return by_rounds.list_storage_axes(self.Block, self.rounds, self.stages)

    @property
    def skipped(self) -> int:
        """The number of places without a layer."""
        return by_rounds.count_places(self.Block, self.rounds, self.stages) - self.Block.size

    def _find_local(self) -> tuple[Self, Entry]:
        """Return the layers that this device has, and the mesh axes over which a shard_map splits them.

        Raises:
            ShardingError: if it splits several rounds, whose layers are not in sequence on one device, or layers for
                unequal stages.
        """
        Block, over = by_rounds.find_block(
            "Stacked", self.stacked, self.storage, skipped=self.skipped
        )
        if not over:
            return self, ()
        return dataclasses.replace(self, Block=Block, stages=1), over

    def divide(self, function: str) -> Pipeline | None:
        """Return how the layers are pipelined, if they are."""
        return pipeline.find_pipeline(function, self.Block, self.rounds, self.skipped)

    def by_stage(self, divided: Pipeline) -> Self:
        """Return the layers with an axis of stages; those of several rounds have an axis for them, too."""
        policy = self.gradient_checkpointing
        # The pipeline checkpoints each round as a unit. The loop inside only names what that should keep.
        policy = policy.inside() if divided.rounds > 1 else policy
        split = self.by_stage_of(divided, divided.Layer.size)
        return dataclasses.replace(split, gradient_checkpointing=policy)

    def by_stage_of(self, divided: Pipeline, size: int) -> Self:
        """Return the layers with an axis of stages, so many in each stage and round.

        Args:
            divided: how the work is divided, on these layers or on those of a repetition each.
            size: the number of layers of a stage in a round.
        """
        stacked: Any = divided.split_layers(self.stacked)
        if self.skipped:
            has_layer = divided.split_stored(by_rounds.find_places(self.Block, self.storage))
            stacked = running.Places(divided.stop_gradients(stacked, has_layer), has_layer)
        return dataclasses.replace(
            self, stacked=stacked, Block=self.Block.resize(size), rounds=1, stages=1
        )

    @property
    def layers(self) -> Any:
        """The layers, also those of `Places`."""
        return self.stacked.layers if isinstance(self.stacked, running.Places) else self.stacked

    def with_places(self, pairs: Steps) -> Steps:
        """Return how a loop applies a layer, or skips a place without one."""
        return running.Skipping(pairs) if isinstance(self.stacked, running.Places) else pairs

    def in_order(self) -> Self:
        """Return the layers stored along one axis, in order of depth."""
        if self.storage == (self.Block,):
            return self
        stacked = by_rounds.join_rounds(self.stacked, self.Block, self.rounds, self.stages)
        return dataclasses.replace(self, stacked=stacked, rounds=1, stages=1)

    def unstacked(self) -> tuple[M, ...]:
        """Return the layers one by one."""
        own, _ = self._find_local()
        leaves, tree = jax.tree.flatten(self.in_order().stacked, is_leaf=is_named_array)
        # Leaf by leaf, since an eager `unbind` is one program for all layers.
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
        given = self._check_count(layers)
        # Static fields would silently be those of the first layer.
        for i, other in enumerate(given):
            differs = running.find_difference(given[0], other)
            if differs is not None:
                problem = "stacked layers may differ only in the values of their arrays"
                hint = "use BlockSeq for layers that differ, or Interleaved for kinds of layers that alternate"
                line = f"layer 0 and layer {i}: {differs}"
                raise OperandError(message("Stacked.with_layers", problem, line, hint=hint))
        own, _ = self._find_local()
        joined = self.stacked
        if given:
            joined = running.stack_outputs("Stacked.with_layers", given, own.Block, numbers=False)
            storage = own.Block, self.rounds, self.stages
            joined = by_rounds.split_rounds(joined, *storage, repeats=False)
        return dataclasses.replace(self, stacked=joined)

    def _take_layer(self, at: int) -> M:
        layer, (*outer, Stored) = self.stacked, self.storage
        # For two rounds of four layers, layer 5 is layer 1 of round 1.
        for Round in outer:
            layer = running.take_part(layer, Round, at // Stored.size)
            at %= Stored.size
        return running.take_part(layer, Stored, at)


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
