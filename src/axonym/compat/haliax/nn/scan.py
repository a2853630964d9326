"""Layers that are applied in sequence: stored along an axis (`Stacked`), or separately (`BlockSeq`)."""

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import Any, ParamSpec, Protocol, Self, TypeAlias, TypeVar, cast, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

import axonym
from axonym import Axis, is_named_array
from axonym.engine import Payload, Tree
from axonym.errors import ArgumentError, message

from .._adapt import Function, KindError, adapted, adopt
from .._checkpoint import ScanCheckpointPolicy, ScanCheckpointSpec, policy_of
from .._node import is_hole
from ..hof import LoopError, looped, vmap
from ..state_dict import (
    MissingKeyError,
    ModuleWithStateDictSerialization,
    StateDict,
    flatten_modules_for_export,
    from_state_dict,
    to_state_dict,
    unflatten_modules_from_export,
    with_prefix,
)

__all__ = [
    "BlockFoldable",
    "BlockSeq",
    "CarryT",
    "FoldFunction",
    "M",
    "M_co",
    "M_contra",
    "ModuleInit",
    "OutputT_co",
    "P",
    "S",
    "ScanCheckpointPolicy",
    "ScanCheckpointSpec",
    "ScanFunction",
    "Stacked",
    "T",
    "VmapFunction",
]

M = TypeVar("M", bound=eqx.Module)
M_co = TypeVar("M_co", bound=eqx.Module, covariant=True)
M_contra = TypeVar("M_contra", bound=eqx.Module, contravariant=True)
S = TypeVar("S", bound=eqx.Module)
T = TypeVar("T")
CarryT = TypeVar("CarryT")
OutputT_co = TypeVar("OutputT_co", covariant=True)
P = ParamSpec("P")
Unroll = int | bool | None
Steps: TypeAlias = Function


class ModuleInit(Protocol[M_co]):
    """A function that makes a module."""

    def __call__(self, *args: Any, **kwargs: Any) -> M_co: ...  # noqa: D102


class FoldFunction(Protocol[M_contra, CarryT]):
    """A function of a layer and a carry that returns a carry."""

    def __call__(self, module: M_contra, carry: CarryT, *args: Any, **kwargs: Any) -> CarryT: ...  # noqa: D102


class ScanFunction(Protocol[M_contra, CarryT, OutputT_co]):
    """A function of a layer and a carry that returns a carry and an output."""

    def __call__(
        self, module: M_contra, carry: CarryT, *args: Any, **kwargs: Any
    ) -> tuple[CarryT, OutputT_co]:
        """Apply the layer."""
        ...


class VmapFunction(Protocol[M_contra, OutputT_co]):
    """A function of a layer."""

    def __call__(self, module: M_contra, *args: Any, **kwargs: Any) -> OutputT_co: ...  # noqa: D102


@runtime_checkable
class BlockFoldable(Protocol[M_co]):
    """The interface of `Stacked` and `BlockSeq`."""

    Block: Axis

    @classmethod
    def init(
        cls,
        Block: Axis,
        module: object,
        *,
        gradient_checkpointing: ScanCheckpointSpec = False,
        prevent_cse: bool | None = None,
    ) -> Steps:
        """Return a function that makes the layers."""
        ...

    def fold(self, init: Tree, *args: object, unroll: Unroll = None, **kwargs: object) -> Tree:
        """Apply the layers in sequence."""
        ...

    def scan(self, init: Tree, *args: object, unroll: Unroll = None, **kwargs: object) -> Tree:
        """Apply the layers in sequence, and stack their outputs."""
        ...

    def fold_via(self, fn: Steps, *, unroll: Unroll = None) -> Steps:
        """Return a loop over the layers."""
        ...

    def scan_via(self, fn: Steps, *, unroll: Unroll = None) -> Steps:
        """Return a loop over the layers with outputs."""
        ...

    def vmap_via(self, fn: Steps) -> Steps:
        """Return a function that maps over all layers."""
        ...

    def unstacked(self) -> Sequence[M_co]:
        """Return the layers."""
        ...

    def get_layer(self, index: int) -> M_co:
        """Return one layer."""
        ...


class ConstructorError(KindError, AttributeError):
    """A class of layers has no `init`, for which Haliax raises AttributeError."""


def _constructor(function: str, Block: Axis, module: object) -> Steps:
    if not isinstance(Block, Axis):
        problem = f"Block must be an Axis, not {Block!r}"
        raise KindError(message(function, problem, hint='write Axis("layers", 12)'))
    make: Steps | None = getattr(module, "init", None)
    if make is not None:
        return make
    if callable(module) and not isinstance(module, type):
        return module
    problem = f"{getattr(module, '__name__', repr(module))} has no constructor `init`"
    hint = "add a static method init(...) that returns a module"
    raise ConstructorError(message(function, problem, hint=hint))


def _policy(spec: ScanCheckpointSpec, prevent_cse: bool | None) -> axonym.ScanCheckpointPolicy:
    policy = policy_of(spec)
    if prevent_cse is None:
        return policy
    return dataclasses.replace(policy, prevent_cse=prevent_cse)


class _Loops:
    """Loops for both kinds of layers: a single key is passed unsplit to all of them."""

    def fold(self, init: Tree, *args: object, unroll: Unroll = None, **kwargs: object) -> Tree:
        """Apply the layers in sequence; each gets its part of arguments that have a part for each layer."""
        return self._loop("fold", _call, unroll)(init, *args, **kwargs)

    def scan(self, init: Tree, *args: object, unroll: Unroll = None, **kwargs: object) -> Tree:
        """Apply the layers like `fold`; each returns a carry and an output, and outputs are stacked."""
        return self._loop("scan", _call, unroll)(init, *args, **kwargs)

    def fold_via(self, fn: Steps, *, unroll: Unroll = None) -> Steps:
        """Return a loop that calls `fn(layer, carry, *args, **kwargs)`, which returns a carry."""
        return self._loop("fold", fn, unroll)

    def scan_via(self, fn: Steps, *, unroll: Unroll = None) -> Steps:
        """Return a loop that calls `fn(layer, carry, *args, **kwargs)`, which returns a carry and an output."""
        return self._loop("scan", fn, unroll)

    def _loop(self, method: str, fn: Steps, unroll: Unroll) -> Steps:
        own: Any = self
        function = f"{type(self).__name__}.{method}"
        if unroll is not None and unroll < 1 and unroll is not False:
            raise ArgumentError(message(function, f"unroll must be 1 or more, not {unroll}"))
        # Of Axonym's methods, as this class has others.
        via: Any = getattr(super(), f"{method}_via")
        loop = via(_with_key(fn), unroll=unroll)

        def run(init: Tree, *args: object, **kwargs: object) -> Tree:
            _check_key(function, own.Block, kwargs)
            return loop(init, *args, **_hidden_key(kwargs))

        return looped(run)


# Axonym splits an argument of the name `key`.
_KEY = "key of each layer"


def _hidden_key(kwargs: dict[str, object]) -> dict[str, object]:
    """Pass a key under another name, so that it is an argument like all others."""
    return _moved(kwargs, "key", _KEY)


def _with_key(fn: Steps) -> Steps:
    """Give a function its key under its own name again."""

    def call(*args: object, **kwargs: object) -> Tree:
        return fn(*args, **_moved(kwargs, _KEY, "key"))

    return call


def _moved(kwargs: dict[str, object], old: str, new: str) -> dict[str, object]:
    moved = dict(kwargs)
    if old in moved:
        moved[new] = moved.pop(old)
    return moved


def _check_key(function: str, Block: Axis, kwargs: dict[str, object]) -> None:
    """Check that each layer has a key, as Haliax does not split them."""
    key = kwargs.get("key")
    if isinstance(key, jax.Array | np.ndarray) and key.ndim and key.shape[0] != Block.size:
        problem = f"axis {Block.name!r} has two sizes: {Block.size} and {key.shape[0]}"
        hint = f"each layer takes a key of its own: key=jax.random.split(key, {Block.size})"
        raise LoopError(message(function, problem, f"key has: shape {key.shape}", hint=hint))


class Stacked(_Loops, ModuleWithStateDictSerialization, axonym.nn.Stacked[M]):
    """Identical layers whose parameters are stored along an axis, applied in sequence by a compiled loop."""

    def __init__(
        self,
        stacked: Any,
        Block: Any,
        *args: Any,
        gradient_checkpointing: ScanCheckpointSpec = False,
        **kwargs: object,
    ) -> None:
        """Construct from the three fields or, in the older form, from the axis, the class of layers and arguments."""
        if isinstance(stacked, Axis):
            module = getattr(Block, "init", Block)
            _check_key("Stacked", stacked, kwargs)
            stacked, Block = vmap(module, stacked)(*args, **kwargs), stacked
        elif args:
            (gradient_checkpointing,) = args
        self.stacked = stacked
        self.Block = Block
        self.gradient_checkpointing = policy_of(gradient_checkpointing)

    @classmethod
    def init(  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # no rounds there
        cls,
        Block: Axis,
        module: object,
        *,
        gradient_checkpointing: ScanCheckpointSpec = False,
        prevent_cse: bool | None = None,
    ) -> Steps:
        """Return a function that makes the layers by `module.init`, mapped over the axis: each needs its own key."""
        policy = _policy(gradient_checkpointing, prevent_cse)
        make = _constructor("Stacked.init", Block, module)

        def initialize(*args: object, **kwargs: object) -> Tree:
            _check_key("Stacked.init", Block, kwargs)
            return cls(vmap(make, Block)(*args, **kwargs), Block, policy)

        return initialize

    @property
    def Layers(self) -> Axis:  # noqa: N802
        """The axis of layers."""
        return self.Block

    @adapted
    def get_layer(self, index: Any) -> M:  # pyright: ignore[reportIncompatibleMethodOverride]  # called layer there
        """Return one layer; an index out of range, which Haliax clamps, is an error unless it is traced."""
        if isinstance(index, Tracer):
            at: Any = index
            return self._take_layer(at)
        return super().get_layer(int(index))

    def vmap_via(self, fn: Steps) -> Steps:
        """Return a function that calls `fn(layer, *args, **kwargs)` for all layers at once, and stacks the results."""
        return lambda *args, **kwargs: vmap(fn, self.Block)(self.stacked, *args, **kwargs)

    def _state_dict_key_map(self) -> dict[str, str | None]:
        return {"stacked": None}

    def to_state_dict(self, prefix: str | None = None) -> StateDict:
        """Return the arrays of each layer by key: `prefix.0.weight`, `prefix.1.weight`, ..."""
        listed: StateDict = {}
        if not _is_plain(self.stacked, self.Block):
            for i, layer in enumerate(self.unstacked()):
                listed.update(to_state_dict(layer, with_prefix(prefix, str(i))))
            return listed
        whole = to_state_dict(_block_first(self.stacked, self.Block), prefix)
        for i in range(self.Block.size):
            for key, value in whole.items():
                if np.ndim(value):
                    value = value[i, ...]  # in numpy, value[i] may be a scalar
                listed[_of_layer(prefix, i, key)] = value
        return listed

    def from_state_dict(self, state_dict: StateDict, prefix: str | None = None) -> Self:
        """Return the layers with the arrays of a state dict."""
        Block = self.Block
        if not _is_plain(self.stacked, Block):
            layer = _abstract_layer(self.stacked, Block)
            keys = (with_prefix(prefix, str(i)) for i in range(Block.size))
            layers = [from_state_dict(layer, state_dict, key) for key in keys]
            return self._with(adopt(self.with_layers(layers).stacked))
        together = _together(state_dict, prefix, Block)
        try:
            return self._with(from_state_dict(_block_first(self.stacked, Block), together, prefix))
        except MissingKeyError as error:
            for i in range(Block.size):
                key = _of_layer(prefix, i, error.key)
                if key not in state_dict:
                    raise MissingKeyError(key, state_dict) from None
            problem = (
                f"arrays that belong to {error.key!r} of each layer of {Block} differ in shape"
            )
            raise ArgumentError(message("from_state_dict", problem)) from None

    def flatten_for_export(self) -> Self:
        """Return the layers in the form that other libraries store."""
        return self._with(vmap(flatten_modules_for_export, self.Block)(self.stacked))

    def unflatten_from_export(self, template: Any) -> Self:
        """Undo `flatten_for_export`; layers of an abstract template are abstract."""
        if not any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(template)):
            return self._with(
                vmap(unflatten_modules_from_export, self.Block)(self.stacked, template.stacked)
            )
        layer = _abstract_layer(template.stacked, self.Block)
        return self._with(
            vmap(lambda own: unflatten_modules_from_export(own, layer), self.Block)(self.stacked)
        )

    def _with(self, stacked: M) -> Self:
        return type(self)(stacked, self.Block, self.gradient_checkpointing)


def _abstract_layer(stacked: T, Block: Axis) -> T:
    policy = axonym.ScanCheckpointPolicy()
    return cast(
        T,
        eqx.filter_eval_shape(
            lambda whole: axonym.nn.Stacked(whole, Block, policy).get_layer(0), stacked
        ),
    )


def _is_plain(stacked: Tree, Block: Axis) -> bool:
    """Return whether each array of stacked layers has one dimension for them, and none is stacked again."""
    nodes = jax.tree.leaves(
        stacked, is_leaf=lambda node: isinstance(node, axonym.NamedArray | axonym.nn.Stacked)
    )
    for node in nodes:
        if isinstance(node, axonym.nn.Stacked):
            return False
        if is_named_array(node) and Block.name not in node.names:
            return False
    return True


def _block_first(stacked: T, Block: Axis) -> T:
    def first(leaf: Payload) -> Payload:
        if not is_named_array(leaf) or is_hole(leaf) or leaf.names[0] == Block.name:
            return leaf
        return leaf.rearrange((Block.name, ...))

    return cast(T, jax.tree.map(first, stacked, is_leaf=is_named_array))


def _of_layer(prefix: str | None, layer: int, key: str) -> str:
    """Return the key that an array of one layer has, given the stacked key."""
    number = with_prefix(prefix, str(layer))
    if key == prefix:
        return str(number)
    return f"{number}.{key.removeprefix(f'{prefix}.')}"


def _together(state_dict: StateDict, prefix: str | None, Block: Axis) -> StateDict:
    """Stack the arrays of all layers under their key without a number; others are unchanged."""
    found, together = _by_layer(state_dict, prefix, Block.size)
    for key, values in found.items():
        if len(values) == Block.size and len(set(map(np.shape, values.values()))) == 1:
            together[key] = _stacked([values[i] for i in range(Block.size)])
    return together


def _by_layer(
    state_dict: StateDict, prefix: str | None, layers: float = math.inf
) -> tuple[dict[str, dict[int, Payload]], StateDict]:
    """Group arrays of layers by their keys without numbers; return these groups, and all other arrays."""
    lead = ""
    if prefix is not None:
        lead = re.escape(f"{prefix}.")
    found: dict[str, dict[int, Payload]] = {}
    others: StateDict = {}
    for key, value in state_dict.items():
        match = re.fullmatch(rf"{lead}(\d+)(?:\.(.+))?", key)
        own = match and with_prefix(prefix, match[2])
        if match and own and int(match[1]) < layers:
            found.setdefault(own, {})[int(match[1])] = value
        else:
            others[key] = value
    return found, others


# The next two have the names of Haliax's own, which programs import.


def _stack_state_dict(state_dict: StateDict, prefix: str | None = None) -> StateDict:  # pyright: ignore[reportUnusedFunction]
    """Stack `prefix.0.weight`, `prefix.1.weight`, ... to `prefix.weight`; other arrays are unchanged.

    Raises:
        ArgumentError: if the array of a layer is missing.
    """
    found, together = _by_layer(state_dict, prefix)
    for key, values in found.items():
        missing = set(range(max(values))) - set(values)
        if missing:
            problem = f"{key!r} of layer {min(missing)} is missing"
            raise ArgumentError(message("_stack_state_dict", problem))
        together[key] = jnp.stack([values[i] for i in range(len(values))])
    return together


def _unstack_state_dict(state_dict: StateDict, prefix: str | None = None) -> StateDict:  # pyright: ignore[reportUnusedFunction]
    """Undo `_stack_state_dict`: split each array whose key begins with the prefix."""
    apart: StateDict = {}
    for key, value in state_dict.items():
        if prefix is None or key.startswith(f"{prefix}."):
            apart.update((_of_layer(prefix, i, key), part) for i, part in enumerate(value))
        else:
            apart[key] = value
    return apart


def _stacked(arrays: Sequence[Payload]) -> jax.Array | np.ndarray:
    if isinstance(arrays[0], jax.Array):
        return jnp.stack(arrays)
    return np.stack(arrays)


class BlockSeq(_Loops, ModuleWithStateDictSerialization, axonym.nn.BlockSeq[M]):
    """Layers stored separately, and applied by a Python loop."""

    def __init__(
        self, blocks: Sequence[M], Block: Axis, gradient_checkpointing: ScanCheckpointSpec = False
    ) -> None:
        self.blocks = cast(Any, blocks)
        self.Block = Block
        self.gradient_checkpointing = policy_of(gradient_checkpointing)

    @classmethod
    def init(
        cls,
        Block: Axis,
        module: object,
        *,
        gradient_checkpointing: ScanCheckpointSpec = False,
        prevent_cse: bool | None = None,
    ) -> Steps:
        """Return a function that makes a list of layers by `module.init`: each needs its own key."""
        policy = _policy(gradient_checkpointing, prevent_cse)
        make = _constructor("BlockSeq.init", Block, module)

        def initialize(*args: object, **kwargs: object) -> Tree:
            _check_key("BlockSeq.init", Block, kwargs)
            layers = axonym.nn.BlockSeq.init(Block, _with_key(make))(*args, **_hidden_key(kwargs))
            return cls(list(layers.blocks), Block, policy)

        return looped(initialize)

    @adapted
    def get_layer(self, index: Any) -> M:  # pyright: ignore[reportIncompatibleMethodOverride]  # called layer there
        """Return one layer; an index out of range is an error."""
        return super().get_layer(int(index))

    def fold_via(self, fn: Steps, *, unroll: Unroll = None) -> Steps:
        """Return a loop that calls `fn(layer, carry, *args, **kwargs)` with all arguments whole."""
        return lambda init, *args, **kwargs: self._whole("fold", fn, unroll, init, args, kwargs)

    def scan_via(self, fn: Steps, *, unroll: Unroll = None) -> Steps:
        """Return a loop that calls `fn(layer, carry, *args, **kwargs)` with all arguments whole, and stacks outputs."""
        return lambda init, *args, **kwargs: self._whole("scan", fn, unroll, init, args, kwargs)

    def vmap_via(self, fn: Steps) -> Steps:
        """Return a function that calls `fn(layer, *args, **kwargs)` for each layer, and stacks the results."""
        plain = dataclasses.replace(
            self, gradient_checkpointing=axonym.ScanCheckpointPolicy(disable=True)
        )
        return lambda *args, **kwargs: adopt(
            plain.map_via(lambda layer: fn(layer, *args, **kwargs))()
        )

    def _whole(
        self,
        method: str,
        fn: Steps,
        unroll: Unroll,
        init: Tree,
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> Tree:
        def step(layer: M, carry: Tree) -> Tree:
            return fn(layer, carry, *args, **kwargs)

        return self._loop(method, step, unroll)(init)

    def _state_dict_key_map(self) -> dict[str, str | None]:
        return {"blocks": None}


def _call(layer: Steps, *args: object, **kwargs: object) -> Tree:
    return layer(*args, **kwargs)
