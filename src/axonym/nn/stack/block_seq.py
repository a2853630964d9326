"""Layers that are stored one by one and applied in sequence by a Python loop."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import equinox as eqx

from ...axis import Axis
from ...transform.checkpoint import ScanCheckpointPolicy, ScanCheckpointSpec
from ...transform.loop import check_names
from . import running
from .stacked import BlockFoldable

__all__ = ["BlockSeq"]

M = TypeVar("M", bound=eqx.Module)
P = ParamSpec("P")
R = TypeVar("R")
# The type of the layers that `init` makes; no type can say "of this class, with layers N".
N = TypeVar("N", bound=eqx.Module)
Steps = Callable[..., Any]


class BlockSeq(BlockFoldable[M]):
    """Layers stored one by one and applied by a Python loop: the unrolled form of `Stacked`.

    The program grows with the number of layers, and the compiler sees all of them. Layers may differ in any way. The
    same keys give the same parameters as in `Stacked` and `Interleaved`. `unroll` is accepted and ignored. The outputs
    of `scan`, `map` and `vmap` are None if there are no layers.

    Attributes:
        blocks: the layers.
        Block: the axis of layers.
        gradient_checkpointing: the values that each layer keeps for the backward pass.

    Examples:
        >>> Layers, Embed = axn.make_axes(layers=2, embed=4)
        >>> norms = axn.nn.BlockSeq.init(Layers, (axn.nn.LayerNorm, axn.nn.RmsNorm))(Embed)
        >>> norms.fold(axn.ones(Embed)).shape
        {'embed': 4}
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
        """Return a function that makes the layers by `module.init`; its arguments are those of `Stacked.init`.

        Args:
            Block: the axis of layers.
            module: a class with a constructor `init`, or a function that returns a module; several of them alternate.
            gradient_checkpointing: see `ScanCheckpointPolicy`.
        """
        policy = ScanCheckpointPolicy.make(gradient_checkpointing)
        kinds: Sequence[object] = module if isinstance(module, Sequence) else (module,)
        makes = [running.find_constructor("BlockSeq.init", Block, kind) for kind in kinds]

        def initialize(*args: object, **kwargs: object) -> BlockSeq[N]:
            kwargs = running.prepare_arguments("BlockSeq.init", Block, args, kwargs)
            given = [running.take_part((args, kwargs), Block, i) for i in range(Block.size)]
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
        # It follows the policy as the compiled loop does, so that both keep the same values.
        policy, depth = self.gradient_checkpointing, self.Block.size
        groups = policy.groups(depth)
        given = [running.take_part((args, kwargs), self.Block, i) for i in range(depth)]
        named: set[str] = set()

        def group(layers: Sequence[M], carry: Any, rest: Any) -> Any:
            if groups > 1:
                carry, (layers, rest) = policy.mark(carry, (layers, rest))
            return running.apply_in_sequence(
                step, policy, layers, carry, rest, named, grouped=groups > 1
            )

        # Two levels: the carry between groups is kept, and a group keeps its own carries only in its backward pass.
        run_group: Steps = running.remat(policy, group, named) if groups > 1 else group
        carry, outputs, length = init, [], depth // groups
        for start in range(0, depth, length or 1):
            own = slice(start, start + length)
            carry, more = run_group(self.blocks[own], carry, given[own])
            outputs += more
        if depth:
            check_names(function, policy, named)
        return carry, running.stack_outputs(function, outputs, self.Block, numbers=True)

    def vmap_via(self, fn: Callable[Concatenate[M, P], R]) -> Callable[P, R]:
        """Return a function that calls `fn(layer, *args, **kwargs)` for each layer, and stacks the results."""

        def run(*args: Any, **kwargs: Any) -> Any:
            kwargs = running.prepare_arguments("BlockSeq.vmap", self.Block, args, kwargs)
            given = (
                running.take_part((args, kwargs), self.Block, i) for i in range(self.Block.size)
            )
            pairs = zip(self.blocks, given, strict=True)
            results = [fn(layer, *own, **named) for layer, (own, named) in pairs]
            return running.stack_outputs("BlockSeq.vmap", results, self.Block, numbers=False)

        return run

    def unstacked(self) -> tuple[M, ...]:
        """Return the layers one by one."""
        return self.blocks

    def with_layers(self, layers: Iterable[M]) -> Self:
        """Return a copy with other layers; the inverse of `unstacked`.

        Raises:
            AxisSizeError: if their number differs.
        """
        return type(self)(self._check_count(layers), self.Block, self.gradient_checkpointing)

    def _take_layer(self, at: int) -> M:
        return self.blocks[at]
