"""Shared parts of stacks of layers: split arguments between layers, and join their results."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.core import Tracer

from ...array import NamedArray, is_named_array, named
from ...axis import Axis, shown
from ...base.kinds import is_array, type_text
from ...engine import auto, kernels
from ...errors import AxisSizeError, OperandError, describe, message
from ...layout.assignment import Entry
from ...ops.index import index
from ...ops.join import stack
from ...partitioning.addresses import count_devices, list_readings
from ...partitioning.shard import auto_sharded
from ...transform.checkpoint import ScanCheckpointPolicy
from ...transform.leaves import Arguments, drop_axis_of_hole, find_dimension, is_hole, make_namer
from ...transform.loop import collect_checkpoint_names, pair

Steps = Callable[..., Any]
Given = tuple[tuple[Any, ...], dict[str, Any]]
T = TypeVar("T")


def constructor(function: str, Block: object, module: Any) -> Steps:
    """Return the constructor of a module class, or a function as it is.

    Raises:
        OperandError: if the class has none, or `Block` is not an axis.
    """
    if not isinstance(Block, Axis):
        what, name, count = type_text(Block), "layers", 12
        if isinstance(Block, int | str):
            what = repr(Block)
        if isinstance(Block, str):
            name = Block
        if isinstance(Block, int):
            count = Block
        layer = next((own.__name__ for own in (module, Block) if isinstance(own, type)), "Block")
        hint = f'write {function}(Axis("{name}", {count}), {layer})'
        raise OperandError(
            message(function, f"the axis of layers comes first, not {what}", hint=hint)
        )
    make: Steps | None = getattr(module, "init", None)
    if make is None and callable(module) and not isinstance(module, type):
        make = module
    if make is None:
        name = getattr(module, "__name__", repr(module))
        hint = "add a static method init(...) that returns a module"
        if isinstance(module, list | tuple):
            hint = "use Interleaved for layers of several kinds that alternate"
        raise OperandError(message(function, f"{name} has no constructor `init`", hint=hint))
    return make


def block_here(layers: object, Block: Axis) -> tuple[Axis, Entry]:
    """Return the axis of the layers that this device has, and the mesh axes over which a shard_map splits them."""
    for leaf in jax.tree.leaves(layers, is_leaf=is_named_array):
        if (
            not isinstance(leaf, NamedArray)
            or Block.name not in leaf.names
            or not is_array(leaf.array)
        ):
            continue
        at = leaf.array.ndim - len(leaf.names) + leaf.names.index(Block.name)
        if at < 0:
            break
        size = leaf.array.shape[at]
        if size != Block.size:
            return _block_of(Block, size, list_readings(Block.name, leaf.names))
        break
    return Block, ()


def _block_of(Block: Axis, size: int, entries: Iterable[Entry]) -> tuple[Axis, Entry]:
    """Return an axis of a smaller size, and the mesh axes that make the difference."""
    for entry in entries:
        # The last of several mesh axes are gathered first.
        for count in range(len(entry), 0, -1):
            over = entry[:count]
            if size * count_devices(over) == Block.size:
                return Block.resize(size), over
    return Block, ()


def split_arguments(
    function: str, Block: Axis, args: tuple[Any, ...], kwargs: dict[str, Any], over: Entry = ()
) -> dict[str, Any]:
    """Check that arguments have a part for each layer, and return `kwargs` with one random key for each layer.

    If `Block` is the block of a device, over mesh axes, each layer gets the key that it has among all layers.

    Raises:
        AxisSizeError: if an argument has another number of parts.
    """
    key: Any = kwargs.get("key")
    if is_array(key):
        is_typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
        single = key.ndim + is_typed == 1  # a key of the old form has a dimension of its own
        if not single and key.shape[0] != Block.size:
            problem = f"there are {key.shape[0]} keys for {shown(Block)}"
            raise AxisSizeError(
                message(
                    function,
                    problem,
                    hint="pass one key for each layer, or a single key, which is split",
                )
            )
        if single:
            kwargs = {**kwargs, "key": _split(key, Block, over)}

    Arguments(
        function,
        (Block.name, Block.size),
        (args, kwargs),
        lambda _, leaf: find_dimension(leaf, Block.name),
    )
    return kwargs


def _split(key: jax.Array, Block: Axis, over: Entry) -> jax.Array:
    if not over:
        return jax.random.split(key, Block.size)
    keys = jax.random.split(key, Block.size * count_devices(over))
    return lax.dynamic_slice_in_dim(keys, lax.axis_index(over) * Block.size, Block.size)


def numbered(leaf: Any, names: Sequence[str]) -> NamedArray:
    """Name the dimensions of a plain array: the first ones, and the others by their numbers."""
    if isinstance(leaf, NamedArray):
        return leaf
    array = jnp.asarray(leaf)
    rest = [f"dimension.{at}" for at in range(len(names), array.ndim)]
    return named(array, (*names, *rest)[: array.ndim])


def part(tree: T, Block: Axis, at: int | slice) -> T:
    """Return the part of a tree for one layer, or for a slice of layers."""

    def pick(leaf: Any) -> Any:
        if is_array(leaf) and leaf.ndim:
            return _element(auto.whole(jnp.asarray(leaf), (0,)), at)
        if not isinstance(leaf, NamedArray) or Block.name not in leaf.names:
            return leaf
        if is_hole(leaf):
            if isinstance(at, slice):
                return leaf
            return drop_axis_of_hole(leaf, Block.name)
        return index(leaf, {Block.name: at})

    picked: T = jax.tree.map(pick, tree, is_leaf=is_named_array)
    return picked


def _element(array: jax.Array, at: int | slice) -> jax.Array:
    if isinstance(at, slice) or isinstance(array, Tracer):
        return array[at]
    element: jax.Array = kernels.run(_element_of_array, array, at)
    return element


@jax.jit
def _element_of_array(array: jax.Array, at: jax.Array) -> jax.Array:
    element: jax.Array = lax.dynamic_index_in_dim(array, at, keepdims=False)
    return element


def vectors_laid_out(layers: T) -> T:
    """Lay out the vectors of all layers at once, before a loop would do it layer by layer, forward and backward.

    They are small, so one exchange for all layers costs less than many; matrices stay where they are until used.
    """

    def lay_out(leaf: object) -> object:
        if isinstance(leaf, NamedArray) and len(leaf.names) <= 2:
            return auto_sharded(leaf)
        return leaf

    laid_out: T = jax.tree.map(lay_out, layers, is_leaf=is_named_array)
    return laid_out


@dataclasses.dataclass(frozen=True)
class Step:
    """What a stack applies to each layer: a step `(layer, carry, ...)` that returns a carry and an output.

    Attributes:
        function: its name in errors.
        pairs: how `transform.loop.loop` calls `fn`.
        fn: the user's function.
    """

    function: str
    pairs: Steps
    fn: Steps

    def __call__(self, layer: object, carry: object, *args: object, **kwargs: object) -> Any:
        """Apply a layer."""
        return self.pairs(self.function, self.fn, carry, layer, *args, **kwargs)


def to_pair(function: str, method: str, fn: Steps) -> Step:
    """Turn the function of `fold`, `scan` or `map` into a step that returns a carry and an output."""
    pairs: dict[str, Steps] = {"fold": _folded, "map": _mapped, "scan": _scanned}
    return Step(function, pairs[method], fn)


def _folded(
    _: str, fn: Steps, carry: object, layer: object, *args: object, **kwargs: object
) -> Any:
    return fn(layer, carry, *args, **kwargs), None


def _mapped(
    _: str, fn: Steps, carry: object, layer: object, *args: object, **kwargs: object
) -> Any:
    return carry, fn(layer, *args, **kwargs)


def _scanned(
    function: str, fn: Steps, carry: object, layer: object, *args: object, **kwargs: object
) -> Any:
    return pair(function, fn(layer, carry, *args, **kwargs))


def in_turn(
    step: Steps,
    policy: ScanCheckpointPolicy,
    layers: Sequence[object],
    carry: object,
    given: Sequence[Given],
    named: set[str],
    *,
    grouped: bool = False,
    unrolled: bool = True,
    scope: str | None = None,
) -> tuple[Any, list[Any]]:
    """Apply layers in sequence, each under the policy.

    Args:
        step: a function of layer, carry, arguments and keyword arguments, that returns a carry and an output.
        policy: what each step keeps for the backward pass.
        layers: the layers.
        carry: the initial carry.
        given: the arguments of each.
        named: collects the checkpoint names inside the steps.
        grouped: whether they are part of a group; carries are kept between groups.
        unrolled: whether there is no compiled loop around them.
        scope: what operations are named after, with the number of the layer; otherwise, layers name them by themselves.
    """

    def marked(number: int, layer: object, carry: object, given: Given) -> Any:
        if not grouped:
            carry, (layer, given) = policy.mark(carry, (layer, given))
        args, kwargs = given
        if scope is None:
            return step(layer, carry, *args, **kwargs)
        with jax.named_scope(f"{scope}.{number}"):
            return step(layer, carry, *args, **kwargs)

    outputs = []
    run = remat(policy, marked, named, unrolled=unrolled)
    for number, (layer, own) in enumerate(zip(layers, given, strict=True)):
        carry, out = run(number, layer, carry, own)
        outputs.append(out)
    return carry, outputs


def remat(
    policy: ScanCheckpointPolicy, fn: Steps, named: set[str], *, unrolled: bool = True
) -> Steps:
    """Apply a checkpoint policy to a function; arguments that are not arrays bypass it."""
    if policy.disable:
        return fn

    def run(*args: object) -> Any:
        arrays, rest = eqx.partition(args, eqx.is_array)
        static: list[Any] = []

        def step(arrays: Any) -> Any:
            dynamic, other = eqx.partition(fn(*eqx.combine(arrays, rest)), eqx.is_array)
            static[:] = [other]
            return dynamic

        kept = policy.wrap(step, unrolled=unrolled)
        if policy.names:
            named.update(
                collect_checkpoint_names(kept, arrays)
            )  # JAX remembers the step that it traces here
        return eqx.combine(kept(arrays), static[0])

    return run


def joined(function: str, outputs: Sequence[Any], Block: Axis, *, numbers: bool) -> Any:
    """Stack the outputs of layers: arrays and, with `numbers`, Python numbers, as a loop does but a map does not.

    Raises:
        OperandError: if layers returned different things.
    """
    if not outputs:
        return None
    for i, other in enumerate(outputs):
        differs = difference(outputs[0], other, numbers=numbers)
        if differs is not None:
            problem = f"layers must return equal structures and shapes, to be stacked along {Block.name!r}"
            hint = "return the same structure from each, such as zeros where there is nothing to return"
            raise OperandError(
                message(function, problem, f"layer 0 and layer {i}: {differs}", hint=hint)
            )

    def join(*leaves: Any) -> Any:
        first = leaves[0]
        if is_hole(first):
            return make_namer(function, Block)(first, first.array)
        if isinstance(first, NamedArray):
            return stack(Block, leaves)
        if is_array(first) or (numbers and _is_number(first)):
            return jnp.stack([jnp.asarray(leaf) for leaf in leaves])
        return first

    return jax.tree.map(join, *outputs, is_leaf=is_named_array)


def difference(one: object, other: object, *, numbers: bool = False, at: str = "") -> str | None:
    """Return where two trees differ in more than the values of their arrays, or of `numbers`; None if nowhere."""
    mine, theirs = _inside(one), _inside(other)
    is_leaf = is_named_array(one) or is_named_array(other) or is_array(one) or is_array(other)
    if not is_leaf and mine is not None and theirs is not None and type(one) is type(other):
        if mine.keys() == theirs.keys():
            for key, part in mine.items():
                found = difference(part, theirs[key], numbers=numbers, at=at + key)
                if found is not None:
                    return found
            return None
    elif _are_alike(one, other, numbers):
        return None
    return f"{at.lstrip('.') or 'they'}: {_spelled(one)}, and {_spelled(other)}"


def _are_alike(one: Any, other: Any, numbers: bool) -> bool:
    """Return whether two leaves differ at most in the values of their arrays, or of `numbers`."""
    if is_hole(one) and is_hole(other):
        return bool(one.names == other.names and difference(one.array, other.array) is None)
    if is_hole(one) or is_hole(other):
        return False
    if isinstance(one, NamedArray) and isinstance(other, NamedArray):
        return dict(one.shape) == dict(other.shape)
    if is_array(one) and is_array(other):
        return bool(one.shape == other.shape)
    if numbers and _is_number(one) and _is_number(other):
        return True
    return (
        type(one) is type(other) and _inside(one) is None and (one is other or bool(one == other))
    )


def _inside(tree: object) -> dict[str, Any] | None:
    """Return the parts of a module, a dict, a list or a tuple."""
    if dataclasses.is_dataclass(tree):
        return {
            f".{field.name}": getattr(tree, field.name, None) for field in dataclasses.fields(tree)
        }
    if isinstance(tree, dict):
        return {f"[{key!r}]": value for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return {f"[{i}]": value for i, value in enumerate(tree)}
    return None


def _is_number(leaf: object) -> bool:
    return isinstance(leaf, int | float | complex)


def _spelled(leaf: Any) -> str:
    if isinstance(leaf, NamedArray):
        if is_hole(leaf):
            return f"a NamedArray with {describe(leaf.names, None)}, but no array"
        return f"a NamedArray with {describe(leaf.names, leaf.array.shape)}"
    if is_array(leaf):
        return f"a plain array of shape {leaf.shape}"
    if _inside(leaf) is not None and not isinstance(leaf, Axis):
        return f"{type(leaf).__name__} with {len(_inside(leaf) or ())} parts"
    return getattr(leaf, "__name__", repr(leaf))
