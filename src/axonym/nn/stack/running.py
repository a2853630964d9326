"""Internal. Shared parts of stacks of layers: they split arguments between layers, apply them, and join the results.

`Stacked`, `Interleaved`, `BlockSeq` and pipelines call it, so that all of them take the same arguments, keep the same
values for the backward pass, and return the same outputs.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from functools import partial
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
from ...ops.shape import rearrange
from ...ops.where import where
from ...partitioning.addresses import count_devices, list_readings
from ...partitioning.shard import auto_sharded
from ...transform.checkpoint import ScanCheckpointPolicy
from ...transform.leaves import Arguments, drop_axis_of_hole, find_dimension, is_hole, make_namer
from ...transform.loop import collect_checkpoint_names, pair

Steps = Callable[..., Any]
Given = tuple[tuple[Any, ...], dict[str, Any]]
T = TypeVar("T")


def find_constructor(function: str, Block: object, module: Any) -> Steps:
    """Return the constructor of a module class, or a function as it is.

    Raises:
        OperandError: if the class has none, or `Block` is not an axis.
    """
    if not isinstance(Block, Axis):
        what = repr(Block) if isinstance(Block, int | str) else type_text(Block)
        name = Block if isinstance(Block, str) else "layers"
        count = Block if isinstance(Block, int) else 12
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


def find_block(layers: object, Block: Axis) -> tuple[Axis, Entry]:
    """Return the axis of the layers that this device has, and the mesh axes over which a shard_map splits them."""
    # The size that a stack stores is that of all layers. Only its arrays show that they are a block of them.
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
            return _find_block_of_size(Block, size, list_readings(Block.name, leaf.names))
        break
    return Block, ()


def _find_block_of_size(Block: Axis, size: int, entries: Iterable[Entry]) -> tuple[Axis, Entry]:
    """Return an axis of a smaller size, and the mesh axes that make the difference."""
    # An array may be sharded over several mesh axes, and the user may have gathered it over some of them.
    for entry in entries:
        # The last of several mesh axes are gathered first.
        for count in range(len(entry), 0, -1):
            over = entry[:count]
            if size * count_devices(over) == Block.size:
                return Block.resize(size), over
    return Block, ()


def prepare_arguments(
    function: str, Block: Axis, args: tuple[Any, ...], kwargs: dict[str, Any], over: Entry = ()
) -> dict[str, Any]:
    """Check that arguments have a part for each layer, and return `kwargs` with one random key for each layer.

    If `Block` is the block of a device, over mesh axes, each layer gets the key that it has among all layers.

    Raises:
        AxisSizeError: if an argument has another number of parts.
    """
    key: Any = kwargs.get("key")
    if is_array(key):
        # A key of the old form has a dimension of its own.
        is_typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
        is_single = key.ndim + is_typed == 1
        if not is_single and key.shape[0] != Block.size:
            problem = f"there are {key.shape[0]} keys for {shown(Block)}"
            hint = "pass one key for each layer, or a single key, which is split"
            raise AxisSizeError(message(function, problem, hint=hint))
        if is_single:
            kwargs = {**kwargs, "key": _split_key(key, Block, over)}

    # It raises if an argument has another number of parts than there are layers.
    Arguments(
        function,
        (Block.name, Block.size),
        (args, kwargs),
        lambda _, leaf: find_dimension(leaf, Block.name),
    )
    return kwargs


def _split_key(key: jax.Array, Block: Axis, over: Entry) -> jax.Array:
    if not over:
        return jax.random.split(key, Block.size)
    # All keys are made and some are dropped, so that a layer has the key that it has on one device.
    keys = jax.random.split(key, Block.size * count_devices(over))
    return lax.dynamic_slice_in_dim(keys, lax.axis_index(over) * Block.size, Block.size)


def name_dimensions(leaf: Any, names: Sequence[str]) -> NamedArray:
    """Name the dimensions of a plain array: the first ones by `names`, the others by their numbers."""
    if isinstance(leaf, NamedArray):
        return leaf
    array = jnp.asarray(leaf)
    rest = [f"dimension.{at}" for at in range(len(names), array.ndim)]
    return named(array, (*names, *rest)[: array.ndim])


def map_layers(
    fn: Callable[[NamedArray], NamedArray],
    tree: T,
    axis: str,
    names: Sequence[str],
    on_hole: Callable[[Any], Any],
) -> T:
    """Apply a function to all arrays of a tree that have an axis of layers.

    Args:
        fn: the function.
        tree: layers or their arguments; named arrays without the axis stay as they are.
        axis: the name of the axis.
        names: the names of the first dimensions of plain arrays, which stay plain.
        on_hole: the function for named arrays without an array, such as a filter leaves.
    """

    def one(leaf: Any) -> Any:
        if isinstance(leaf, NamedArray):
            if axis not in leaf.names:
                return leaf
            return on_hole(leaf) if is_hole(leaf) else fn(leaf)
        if is_array(leaf) and leaf.ndim:
            return fn(name_dimensions(leaf, names)).array
        return leaf

    mapped: T = jax.tree.map(one, tree, is_leaf=is_named_array)
    return mapped


def take_part(tree: T, Block: Axis, at: int | slice) -> T:
    """Return the part of a tree for one layer, or for a slice of layers."""

    def pick(leaf: Any) -> Any:
        if is_array(leaf) and leaf.ndim:
            # An index into a sharded dimension has no type on Explicit axes.
            return _take_element(auto.whole(jnp.asarray(leaf), (0,)), at)
        if not isinstance(leaf, NamedArray) or Block.name not in leaf.names:
            return leaf
        if is_hole(leaf):
            return leaf if isinstance(at, slice) else drop_axis_of_hole(leaf, Block.name)
        return index(leaf, {Block.name: at})

    picked: T = jax.tree.map(pick, tree, is_leaf=is_named_array)
    return picked


def _take_element(array: jax.Array, at: int | slice) -> jax.Array:
    if isinstance(at, slice) or isinstance(array, Tracer):
        return array[at]
    # An eager index would compile one program for each number. Here the number is an argument.
    element: jax.Array = kernels.run(_index_array, array, at)
    return element


@jax.jit
def _index_array(array: jax.Array, at: jax.Array) -> jax.Array:
    element: jax.Array = lax.dynamic_index_in_dim(array, at, keepdims=False)
    return element


def shard_vectors(layers: T) -> T:
    """Shard the vectors of all layers by the mapping, before a loop would do it layer by layer, forward and backward.

    They are small, so one exchange for all layers costs less than many. Matrices stay where they are until a layer uses
    them, since a device may not have the memory for those of all layers.
    """

    def shard(leaf: object) -> object:
        is_vector = isinstance(leaf, NamedArray) and len(leaf.names) <= 2
        return auto_sharded(leaf) if is_vector else leaf

    sharded: T = jax.tree.map(shard, layers, is_leaf=is_named_array)
    return sharded


@dataclasses.dataclass(frozen=True)
class Step:
    """The step that a stack applies to each layer: `(layer, carry, ...)`, returning a carry and an output.

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


def make_step(function: str, method: str, fn: Steps) -> Step:
    """Turn the function of `fold`, `scan` or `map` into a step that returns a carry and an output."""
    pairs: dict[str, Steps] = {"fold": _call_in_fold, "map": _call_in_map, "scan": _call_in_scan}
    return Step(function, pairs[method], fn)


def _call_in_fold(
    _: str, fn: Steps, carry: object, layer: object, *args: object, **kwargs: object
) -> Any:
    return fn(layer, carry, *args, **kwargs), None


def _call_in_map(
    _: str, fn: Steps, carry: object, layer: object, *args: object, **kwargs: object
) -> Any:
    return carry, fn(layer, *args, **kwargs)


def _call_in_scan(
    function: str, fn: Steps, carry: object, layer: object, *args: object, **kwargs: object
) -> Any:
    return pair(function, fn(layer, carry, *args, **kwargs))


class Places(eqx.Module):
    """Layers of a stage, some of which are skipped.

    Attributes:
        layers: the layers, or one of them.
        is_layer: whether each is one; the others have parameters of zero.
    """

    layers: Any
    is_layer: NamedArray


# A dataclass, as `Step` is: the cache of eager loops compares it by its fields.
@dataclasses.dataclass(frozen=True)
class Skipping:
    """A function like `Step.pairs` that applies a layer of `Places`, or skips it.

    Attributes:
        pairs: how it applies a layer.
    """

    pairs: Steps

    def __call__(
        self, function: str, fn: Steps, carry: Any, place: Any, *args: object, **kwargs: object
    ) -> Any:
        """Apply a layer; for a place without one, return the carry unchanged.

        All stages run one program, so each computes a layer anyway while the others compute theirs.
        """
        # Whatever the gradient of a skipped layer is, nothing of it goes back into the carry.
        given = self._choose(place.is_layer, carry, _stop_gradients(carry))
        after, outputs = self.pairs(function, fn, given, place.layers, *args, **kwargs)
        return self._choose(place.is_layer, after, carry), outputs

    def _choose(self, is_layer: NamedArray, one: Any, other: Any) -> Any:
        structures: tuple[Any, Any] = jax.tree.structure(one), jax.tree.structure(other)
        if structures[0] != structures[1]:
            return one  # the loop raises an error with both

        def choose(one: Any, other: Any) -> Any:
            if isinstance(one, NamedArray):
                return rearrange(where(is_layer, one, other), one.names)
            return jnp.where(is_layer.array, one, other)

        return jax.tree.map(choose, one, other, is_leaf=is_named_array)


def _stop_gradients(tree: T) -> T:
    arrays, rest = eqx.partition(tree, eqx.is_inexact_array)
    stopped: T = eqx.combine(lax.stop_gradient(arrays), rest)
    return stopped


def apply_in_sequence(
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
    """Apply layers in sequence, each under the policy of gradient checkpointing.

    Args:
        step: a function of layer, carry, arguments and keyword arguments, that returns a carry and an output.
        policy: what each step keeps for the backward pass; layers have policies that alternate in turn.
        layers: the layers.
        carry: the initial carry.
        given: the arguments of each.
        named: collects the checkpoint names inside the steps.
        grouped: whether they are part of a group; carries are kept between groups.
        unrolled: whether there is no compiled loop around them.
        scope: what operations are named after, with the number of the layer; otherwise, layers name them by themselves.
    """

    def apply(
        own: ScanCheckpointPolicy, number: int, layer: object, carry: object, given: Given
    ) -> Any:
        if not grouped:
            carry, (layer, given) = own.mark(carry, (layer, given))
        args, kwargs = given
        # A loop holds the layers of a repetition in a tuple of its own, where `Layer` finds no name for them.
        if scope is None:
            return step(layer, carry, *args, **kwargs)
        with jax.named_scope(f"{scope}.{number}"):
            return step(layer, carry, *args, **kwargs)

    outputs = []
    runs = [remat(own, partial(apply, own), named, unrolled=unrolled) for own in policy.turns]
    for number, (layer, own) in enumerate(zip(layers, given, strict=True)):
        carry, out = runs[number % len(runs)](number, layer, carry, own)
        outputs.append(out)
    return carry, outputs


def remat(
    policy: ScanCheckpointPolicy, fn: Steps, named: set[str], *, unrolled: bool = True
) -> Steps:
    """Apply a checkpoint policy to a function; arguments and results that are no arrays bypass it."""
    if policy.disable:
        return fn

    def run(*args: object) -> Any:
        # `jax.checkpoint` would trace Python numbers, and reject functions among the arguments.
        arrays, rest = eqx.partition(args, eqx.is_array)
        static: list[Any] = []

        def step(arrays: Any) -> Any:
            dynamic, other = eqx.partition(fn(*eqx.combine(arrays, rest)), eqx.is_array)
            static[:] = [other]
            return dynamic

        checkpointed = policy.wrap(step, unrolled=unrolled)
        if policy.names:
            # JAX remembers the step that it traces here, so the call below does not trace it again.
            named.update(collect_checkpoint_names(checkpointed, arrays))
        return eqx.combine(checkpointed(arrays), static[0])

    return run


def stack_outputs(function: str, outputs: Sequence[Any], Block: Axis, *, numbers: bool) -> Any:
    """Stack the outputs of layers: arrays and, with `numbers`, Python numbers, as a loop does but a map does not.

    Raises:
        OperandError: if layers returned different things.
    """
    if not outputs:
        return None
    # They are compared first: an error of JAX would name neither the layers nor the part that differs.
    for i, other in enumerate(outputs):
        differs = find_difference(outputs[0], other, numbers=numbers)
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


def find_difference(
    one: object, other: object, *, numbers: bool = False, at: str = ""
) -> str | None:
    """Return where two trees differ in more than the values of their arrays, or of `numbers`; None if they do not.

    Comparing JAX's tree structures would not show which field differs.
    """
    mine, theirs = _list_parts(one), _list_parts(other)
    is_leaf = is_named_array(one) or is_named_array(other) or is_array(one) or is_array(other)
    if not is_leaf and mine is not None and theirs is not None and type(one) is type(other):
        if mine.keys() == theirs.keys():
            for key, part in mine.items():
                found = find_difference(part, theirs[key], numbers=numbers, at=at + key)
                if found is not None:
                    return found
            return None
    elif _are_alike(one, other, numbers):
        return None
    return f"{at.lstrip('.') or 'they'}: {_describe_leaf(one)}, and {_describe_leaf(other)}"


def _are_alike(one: Any, other: Any, numbers: bool) -> bool:
    """Return whether two leaves differ at most in the values of their arrays, or of `numbers`."""
    if is_hole(one) and is_hole(other):
        return bool(one.names == other.names and find_difference(one.array, other.array) is None)
    if is_hole(one) or is_hole(other):
        return False
    if isinstance(one, NamedArray) and isinstance(other, NamedArray):
        return dict(one.shape) == dict(other.shape)
    if is_array(one) and is_array(other):
        return bool(one.shape == other.shape)
    if numbers and _is_number(one) and _is_number(other):
        return True
    return (
        type(one) is type(other)
        and _list_parts(one) is None
        and (one is other or bool(one == other))
    )


def _list_parts(tree: object) -> dict[str, Any] | None:
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


def _describe_leaf(leaf: Any) -> str:
    if isinstance(leaf, NamedArray):
        if is_hole(leaf):
            return f"a NamedArray with {describe(leaf.names, None)}, but no array"
        return f"a NamedArray with {describe(leaf.names, leaf.array.shape)}"
    if is_array(leaf):
        return f"a plain array of shape {leaf.shape}"
    if _list_parts(leaf) is not None and not isinstance(leaf, Axis):
        return f"{type(leaf).__name__} with {len(_list_parts(leaf) or ())} parts"
    return getattr(leaf, "__name__", repr(leaf))
