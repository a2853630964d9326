"""A sequence of equal layers: stored along an axis and looped over (`Stacked`), or one by one (`BlockSeq`)."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp

from ..array import NamedArray, is_named_array
from ..axis import Axis, AxisSelector, axis_name
from ..errors import AxisSizeError, OperandError, message
from ..ops import _lift
from ..ops.index import index
from ..ops.join import stack, unbind
from ..partitioning.shard import auto_sharded
from ..transform import scan as loops
from ..transform._leaves import Arguments, is_array
from ..transform.checkpoint import ScanCheckpointPolicy, ScanCheckpointSpec
from ..transform.vmap import vmap

__all__ = ["BlockSeq", "Stacked"]

M = TypeVar("M", bound=eqx.Module)
Steps = Callable[..., Any]


class Stacked(eqx.Module, Generic[M]):
    """Equal layers whose parameters are stored along an axis, and which a compiled loop applies one after the other.

    The program is as long as one layer's, however many there are.

    Attributes:
        stacked: one module whose arrays have the axis `Block` in front.
        Block: the axis of layers.
        gradient_checkpointing: what the loop keeps for the backward pass.
    """

    stacked: M
    Block: Axis = eqx.field(static=True)
    gradient_checkpointing: ScanCheckpointPolicy = eqx.field(static=True)

    @staticmethod
    def init(
        Block: Axis, module: type[M], *, gradient_checkpointing: ScanCheckpointSpec = False
    ) -> "Callable[..., Stacked[M]]":
        """Return a function that makes the layers by `module.init`, each with its own key.

        Named arrays among its arguments that have the axis `Block`, and plain arrays over dimension 0, are passed layer
        by layer, everything else whole. A single `key` is split.

        Args:
            Block: the axis of layers.
            module: a class with a constructor `init`.
            gradient_checkpointing: see `ScanCheckpointPolicy`.

        Example:
            >>> Layers, Embed = axn.make_axes(layers=3, embed=4)
            >>> norms = axn.nn.Stacked.init(Layers, axn.nn.LayerNorm)(Embed)
            >>> norms.stacked.weight.shape
            {'layers': 3, 'embed': 4}
        """
        policy = ScanCheckpointPolicy.make(gradient_checkpointing)
        make = _constructor("Stacked.init", Block, module)

        def initialize(*args: Any, **kwargs: Any) -> Stacked[M]:
            return Stacked(vmap(make, Block)(*args, **_split_key(Block, kwargs)), Block, policy)

        return initialize

    def fold(self, init: Any, *args: Any, unroll: int | bool = 1, **kwargs: Any) -> Any:
        """Apply the layers one after the other: each is called as `layer(carry, *args, **kwargs)` and returns a carry.

        Among further arguments, named arrays that have the axis `Block`, and plain arrays over dimension 0, are passed
        layer by layer; everything else is passed whole. A single `key` is split, so that each layer has its own.
        """
        return self.fold_via(_call, unroll=unroll)(init, *args, **kwargs)

    def scan(self, init: Any, *args: Any, unroll: int | bool = 1, **kwargs: Any) -> Any:
        """Apply the layers like `fold`, where each returns a carry and an output; outputs are stacked along `Block`."""
        return self.scan_via(_call, unroll=unroll)(init, *args, **kwargs)

    def fold_via(self, fn: Steps, *, unroll: int | bool = 1) -> Steps:
        """Return a loop that calls `fn(layer, carry, *args, **kwargs)`, which returns a carry."""
        return self._loop(loops.fold, fn, unroll)

    def scan_via(self, fn: Steps, *, unroll: int | bool = 1) -> Steps:
        """Return a loop that calls `fn(layer, carry, *args, **kwargs)`, which returns a carry and an output."""
        return self._loop(loops.scan, fn, unroll)

    def _loop(self, loop: Any, fn: Steps, unroll: int | bool) -> Steps:
        def step(carry: Any, layer: M, *args: Any, **kwargs: Any) -> Any:
            return fn(layer, carry, *args, **kwargs)

        looped = loop(step, self.Block, remat=self.gradient_checkpointing, unroll=unroll)

        def run(init: Any, *args: Any, **kwargs: Any) -> Any:
            return looped(init, _vectors_laid_out(self.stacked), *args, **_split_key(self.Block, kwargs))

        return run

    def vmap(self, *args: Any, **kwargs: Any) -> Any:
        """Apply every layer to the same arguments; the results are stacked along `Block`."""
        return self.vmap_via(_call)(*args, **kwargs)

    def vmap_via(self, fn: Steps) -> Steps:
        """Return a function that calls `fn(layer, *args, **kwargs)` for all layers at once."""

        def run(*args: Any, **kwargs: Any) -> Any:
            return vmap(fn, self.Block)(self.stacked, *args, **_split_key(self.Block, kwargs))

        return run

    def unstacked(self) -> tuple[M, ...]:
        """Return the layers one by one."""
        parts = [_unbind(leaf, self.Block) for leaf in jax.tree.leaves(self.stacked, is_leaf=is_named_array)]
        tree = jax.tree.structure(self.stacked, is_leaf=is_named_array)
        return tuple(jax.tree.unflatten(tree, [part[i] for part in parts]) for i in range(self.Block.size))

    def get_layer(self, layer: int) -> M:
        """Return one layer.

        Raises:
            AxisSizeError: if there are not so many.
        """
        at = _checked("Stacked.get_layer", layer, self.Block)
        picked: M = jax.tree.map(lambda leaf: _pick(leaf, self.Block, at), self.stacked, is_leaf=is_named_array)
        return picked


class BlockSeq(eqx.Module, Generic[M]):
    """The unrolled twin of `Stacked`: layers stored one by one, and applied by a Python loop.

    The program grows with the number of layers, and the compiler sees all of them. Made of the same keys, its layers
    have the same parameters as those of `Stacked`.

    Attributes:
        blocks: the layers.
        Block: the axis of layers.
        gradient_checkpointing: what each layer keeps for the backward pass.
    """

    blocks: tuple[M, ...]
    Block: Axis = eqx.field(static=True)
    gradient_checkpointing: ScanCheckpointPolicy = eqx.field(static=True)

    @staticmethod
    def init(
        Block: Axis, module: type[M], *, gradient_checkpointing: ScanCheckpointSpec = False
    ) -> "Callable[..., BlockSeq[M]]":
        """Return a function that makes the layers by `module.init`; see `Stacked.init`."""
        policy = ScanCheckpointPolicy.make(gradient_checkpointing)
        make = _constructor("BlockSeq.init", Block, module)

        def initialize(*args: Any, **kwargs: Any) -> BlockSeq[M]:
            parts = _layer_by_layer("vmap", (args, _split_key(Block, kwargs)), Block)
            return BlockSeq(tuple(make(*own, **named) for own, named in parts), Block, policy)

        return initialize

    def fold(self, init: Any, *args: Any, unroll: int | bool = True, **kwargs: Any) -> Any:
        """Apply the layers one after the other, as `Stacked.fold` does; `unroll` is accepted and always True."""
        return self.fold_via(_call)(init, *args, **kwargs)

    def scan(self, init: Any, *args: Any, unroll: int | bool = True, **kwargs: Any) -> Any:
        """Apply the layers like `fold`, where each returns a carry and an output; outputs are stacked along `Block`."""
        return self.scan_via(_call)(init, *args, **kwargs)

    def fold_via(self, fn: Steps, *, unroll: int | bool = True) -> Steps:
        """Return a loop that calls `fn(layer, carry, *args, **kwargs)`, which returns a carry."""

        def step(layer: M, carry: Any, *args: Any, **kwargs: Any) -> Any:
            return fn(layer, carry, *args, **kwargs), None

        def run(init: Any, *args: Any, **kwargs: Any) -> Any:
            return self.scan_via(step)(init, *args, **kwargs)[0]

        return run

    def scan_via(self, fn: Steps, *, unroll: int | bool = True) -> Steps:
        """Return a loop that calls `fn(layer, carry, *args, **kwargs)`, which returns a carry and an output."""
        policy = self.gradient_checkpointing

        def step(layer: M, carry: Any, *args: Any, **kwargs: Any) -> Any:
            return fn(layer, policy.mark_carry(carry), *args, **kwargs)

        def run(init: Any, *args: Any, **kwargs: Any) -> Any:
            groups = policy.groups(self.Block.size)
            length = self.Block.size // groups

            def steps(carry: Any, layers: Sequence[M], rest: Sequence[Any]) -> Any:
                outputs = []
                for layer, (args, kwargs) in zip(layers, rest, strict=True):
                    carry, out = _pair(_remat(policy, step)(layer, carry, *args, **kwargs))
                    outputs.append(out)
                return carry, outputs

            rest = _layer_by_layer("scan", (args, _split_key(self.Block, kwargs)), self.Block)
            carry, outputs = init, []
            for start in range(0, self.Block.size, length or 1):
                part = slice(start, start + length)
                run_group = _remat(policy, steps) if groups > 1 else steps
                carry, more = run_group(carry, self.blocks[part], rest[part])
                outputs += more
            return carry, _stack(outputs, self.Block, numbers=True)

        return run

    def vmap(self, *args: Any, **kwargs: Any) -> Any:
        """Apply every layer to the same arguments; the results are stacked along `Block`."""
        return self.vmap_via(_call)(*args, **kwargs)

    def vmap_via(self, fn: Steps) -> Steps:
        """Return a function that calls `fn(layer, *args, **kwargs)` for each layer and stacks the results."""

        def run(*args: Any, **kwargs: Any) -> Any:
            parts = zip(
                self.blocks, _layer_by_layer("vmap", (args, _split_key(self.Block, kwargs)), self.Block), strict=True
            )
            return _stack([fn(block, *own, **named) for block, (own, named) in parts], self.Block, numbers=False)

        return run

    def unstacked(self) -> tuple[M, ...]:
        """Return the layers one by one."""
        return self.blocks

    def get_layer(self, layer: int) -> M:
        """Return one layer.

        Raises:
            AxisSizeError: if there are not so many.
        """
        return self.blocks[_checked("BlockSeq.get_layer", layer, self.Block)]


def _call(layer: Any, *args: Any, **kwargs: Any) -> Any:
    return layer(*args, **kwargs)


def _constructor(function: str, Block: Any, module: Any) -> Callable[..., Any]:
    """Return the constructor of a module class."""
    if not isinstance(Block, Axis):
        hint = f'write Axis("{Block}", number of layers)' if isinstance(Block, str) else 'write Axis("layers", 12)'
        raise OperandError(message(function, f"Block must be an Axis, not {Block!r}", hint=hint))
    make: Callable[..., Any] | None = getattr(module, "init", None)
    if make is None:
        name = getattr(module, "__name__", repr(module))
        hint = "add a static method init(...) that returns a module"
        raise OperandError(message(function, f"{name} has no constructor `init`", hint=hint))
    return make


def _vectors_laid_out(layers: M) -> M:
    """Lay out the vectors of all layers at once, before a loop would do it layer by layer, forward and backward.

    They are small, so that one exchange for all layers costs less than many; matrices stay where they are until used.
    """
    laid_out: M = jax.tree.map(
        lambda leaf: auto_sharded(leaf) if isinstance(leaf, NamedArray) and len(leaf.names) <= 2 else leaf,
        layers,
        is_leaf=is_named_array,
    )
    return laid_out


def _split_key(Block: Axis, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Split a single random key into one per layer."""
    key: Any = kwargs.get("key")
    if not is_array(key):
        return kwargs
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    single = key.ndim == 0 if typed else key.ndim == 1
    return {**kwargs, "key": jax.random.split(key, Block.size)} if single else kwargs


def _pick(leaf: Any, Block: AxisSelector, at: int) -> Any:
    """Return what belongs to one layer."""
    if is_array(leaf) and leaf.ndim:
        return _lift.whole(leaf, (0,))[at]
    return index(leaf, {Block: at}) if isinstance(leaf, NamedArray) and axis_name(Block) in leaf.names else leaf


def _layer_by_layer(function: str, arguments: Any, Block: Axis) -> list[Any]:
    """Take arguments apart into those of each layer, under the rules of the loop or map that `Stacked` uses."""

    def dimension(_: int, leaf: Any) -> int | None:
        if isinstance(leaf, NamedArray):
            return leaf.names.index(Block.name) - len(leaf.names) if Block.name in leaf.names else None
        return 0 if is_array(leaf) and leaf.ndim else None

    parts = Arguments(function, (Block.name, Block.size), arguments, dimension)
    moved = [_lift.whole(jnp.asarray(array), (dim,)) for array, dim in zip(parts.arrays, parts.dims, strict=True)]
    layers = range(Block.size)
    cut = [[array[(slice(None),) * dim + (i,)] for i in layers] for array, dim in zip(moved, parts.dims, strict=True)]
    return [parts.rebuild([pieces[i] for pieces in cut]) for i in layers]


def _pair(result: Any) -> tuple[Any, Any]:
    """Check that a layer returned a carry and an output."""
    if isinstance(result, tuple) and len(result) == 2:
        return result
    problem = f"the step must return a pair of carry and output, not {type(result).__name__}"
    raise OperandError(message("scan", problem, hint="use fold for a step that returns the carry alone"))


def _unbind(leaf: Any, Block: Axis) -> Sequence[Any]:
    """Take a leaf apart into what belongs to each layer."""
    if is_array(leaf) and leaf.ndim:
        return list(_lift.whole(leaf, (0,)))
    return unbind(leaf, Block) if isinstance(leaf, NamedArray) and Block.name in leaf.names else [leaf] * Block.size


def _stack(outputs: Sequence[Any], Block: Axis, *, numbers: bool) -> Any:
    """Stack what layers returned: arrays and, as a loop does but a map does not, Python numbers."""
    if not outputs:
        return None

    def join(*leaves: Any) -> Any:
        first = leaves[0]
        if isinstance(first, NamedArray):
            return stack(Block, leaves)
        if is_array(first) or (numbers and isinstance(first, int | float | complex)):
            return jnp.stack([jnp.asarray(leaf) for leaf in leaves])
        return first

    return jax.tree.map(join, *outputs, is_leaf=is_named_array)


def _checked(function: str, layer: int, Block: Axis) -> int:
    if not -Block.size <= layer < Block.size:
        raise AxisSizeError(message(function, f"layer {layer} is out of range for {Block}"))
    return layer % Block.size


def _remat(policy: ScanCheckpointPolicy, fn: Steps) -> Steps:
    """Make a step keep for its backward pass what the policy says; what is no array passes by the side."""
    if policy.disable:
        return fn

    def run(*args: Any, **kwargs: Any) -> Any:
        arrays, rest = eqx.partition((args, kwargs), eqx.is_array)
        static: list[Any] = []

        def step(arrays: Any) -> Any:
            args, kwargs = eqx.combine(arrays, rest)
            dynamic, static[:] = _parted(fn(*args, **kwargs))
            return dynamic

        return eqx.combine(policy.wrap(step, unrolled=True)(arrays), static[0])

    return run


def _parted(tree: Any) -> tuple[Any, list[Any]]:
    arrays, rest = eqx.partition(tree, eqx.is_array)
    return arrays, [rest]
