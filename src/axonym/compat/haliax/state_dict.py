"""Models as flat dictionaries of arrays, with keys that modules can change."""

import itertools
import os
from collections.abc import Mapping
from typing import Any, TypeAlias, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from axonym import is_named_array
from axonym.engine import Payload, Tree, shape_of, wrap
from axonym.errors import ArgumentError, describe, message, suggestion
from axonym.state_dict import (
    load_state_dict,
    save_state_dict as save_arrays,
    to_state_dict as arrays_on_host,
)

from ._adapt import Function, adapted, adopt
from ._elementwise import raw
from .partitioning import auto_sharded
from .util import is_jax_or_hax_array_like as is_jax_array_like

__all__ = [
    "ModuleWithStateDictSerialization",
    "StateDict",
    "T",
    "flatten_modules_for_export",
    "from_state_dict",
    "from_torch_compatible_state_dict",
    "is_jax_array_like",
    "load_state_dict",
    "save_state_dict",
    "to_numpy_state_dict",
    "to_state_dict",
    "to_torch_compatible_state_dict",
    "unflatten_modules_from_export",
    "with_prefix",
]

T = TypeVar("T")
Mod = TypeVar("Mod", bound=eqx.Module)
StateDict: TypeAlias = dict[str, Any]


class MissingKeyError(ArgumentError, KeyError):
    """A state dict lacks a key, for which Haliax raises a bare KeyError."""

    __str__ = Exception.__str__  # that of KeyError adds quotes

    def __init__(self, key: str, state_dict: StateDict) -> None:
        hint = suggestion(key, state_dict)
        super().__init__(message("from_state_dict", f"the state dict has no {key!r}", hint=hint))
        self.key = key


class ModuleWithStateDictSerialization(eqx.Module):
    """A module that can override methods to change its form in a state dict.

    `to_state_dict`, `from_state_dict` and `_state_dict_key_map` of any other `eqx.Module` count as well.
    """

    def to_state_dict(self, prefix: str | None = None) -> StateDict:
        """Return the arrays of the module by key."""
        return _to_children(self, prefix)

    def from_state_dict(self: Mod, state_dict: StateDict, prefix: str | None = None) -> Mod:
        """Return the module with the arrays of a state dict."""
        return cast(Mod, _from_children(self, state_dict, prefix))

    def _state_dict_key_map(self) -> dict[str, str | None]:
        """Rename fields in keys; None merges the contents of a field into the module."""
        return {}

    def flatten_for_export(self: Mod) -> Mod:
        """Return the module, and each module inside it, in the form that other libraries store."""
        return cast(Mod, _rebuilt(self, flatten_modules_for_export))

    def unflatten_from_export(self: Mod, template: Mod) -> Mod:
        """Undo `flatten_for_export`, with the axes of `template`."""
        return cast(Mod, _rebuilt(self, unflatten_modules_from_export, template))


def with_prefix(prefix: str | None, leaf: str | None) -> str | None:
    """Join two keys with a dot; None on either side gives the other."""
    if prefix is None:
        return leaf
    if leaf is None:
        return prefix
    return f"{prefix}.{leaf}"


def to_state_dict(tree: Tree, prefix: str | None = None) -> StateDict:
    """Return the arrays and numbers of a tree by key; tuples, an error in Haliax, are treated like lists.

    Raises:
        ArgumentError: if a leaf would have no key.
    """
    own = _own_method(tree, "to_state_dict")
    if own is not None:
        return cast(StateDict, own(prefix))
    if not _is_leaf(tree):
        return _to_children(tree, prefix)
    value = raw(tree)
    if value is None or not (_is_data(value)):
        return {}
    return {_required("to_state_dict", prefix): value}


def _required(function: str, prefix: str | None) -> str:
    if prefix is None:
        raise ArgumentError(message(function, "an array alone has no key", hint="pass a prefix"))
    return prefix


def from_state_dict(tree: T, state_dict: StateDict, prefix: str | None = None) -> T:
    """Return a tree with the arrays of a state dict, each laid out by the current mapping; other keys are ignored.

    Raises:
        KeyError: if the key of an array is missing; numbers and other leaves without a key are unchanged.
        ArgumentError: if an array has another shape than in the tree.
    """
    own = _own_method(tree, "from_state_dict")
    if own is not None:
        return cast(T, own(state_dict, prefix))
    if not _is_leaf(tree):
        return cast(T, _from_children(tree, state_dict, prefix))
    return cast(T, _from_leaf(tree, state_dict, prefix))


def to_numpy_state_dict(model: Tree, prefix: str | None = None) -> StateDict:
    """Return the arrays of a tree by key, on the host; numbers are kept."""
    # Before: stacked layers are split on the host. After: modules may return computed arrays.
    local = jax.tree.map(_to_host, model)
    return {key: _to_host(value) for key, value in to_state_dict(local, prefix).items()}


@adapted
def to_torch_compatible_state_dict(
    t: Tree, *, flatten: bool = True, prefix: str | None = None, filter: Tree = is_jax_array_like
) -> StateDict:
    """Return the arrays of a tree by key, on the host, as torch stores them.

    Args:
        t: a model.
        flatten: whether to call `flatten_for_export` of its modules.
        prefix: the first component of all keys.
        filter: which arrays to include: a function of an array, or a tree of bools.
    """
    form = t
    if flatten:
        form = flatten_modules_for_export(t)
    if callable(filter):
        kept = eqx.filter(form, filter)
    else:
        # An array that is filtered out cannot be reshaped: reshape all, and filter afterwards.
        leaves, structure = _with_none(form)
        chosen, _ = _with_none(eqx.filter(t, filter))
        for at, (_, one) in enumerate(zip(leaves, chosen, strict=True)):
            if one is None:
                leaves[at] = None
        kept = jax.tree.unflatten(structure, leaves)
    listed = to_numpy_state_dict(kept, prefix)
    # The filter is not applied to `inference` of a Dropout, which is not an array.
    for key, value in list(listed.items()):
        if isinstance(value, bool) and not (callable(filter) and filter(value)):
            del listed[key]
    return listed


@adapted
def from_torch_compatible_state_dict(
    t: T, state_dict: StateDict, *, unflatten: bool = True, prefix: str | None = None
) -> T:
    """Return a tree, which may be abstract, with the arrays of a state dict as torch stores them."""
    if not unflatten:
        return from_state_dict(t, state_dict, prefix)
    flat = eqx.filter_eval_shape(flatten_modules_for_export, t)
    loaded: T = from_state_dict(flat, state_dict, prefix)
    return auto_sharded(
        unflatten_modules_from_export(loaded, t)
    )  # the mapping has no axes of the flat form


def flatten_modules_for_export(t: T) -> T:
    """Convert each module of a tree to the form that other libraries store, by its `flatten_for_export`."""
    if isinstance(t, ModuleWithStateDictSerialization):
        return cast(T, t.flatten_for_export())
    if _is_leaf(t):
        return t
    return cast(T, _rebuilt(t, flatten_modules_for_export))


def unflatten_modules_from_export(t: T, template: T) -> T:
    """Undo `flatten_modules_for_export`, with the axes of `template`."""
    if isinstance(t, ModuleWithStateDictSerialization):
        return cast(T, t.unflatten_from_export(cast(Any, template)))
    if _is_leaf(t):
        return t
    return cast(T, _rebuilt(t, unflatten_modules_from_export, template))


def save_state_dict(state_dict: StateDict, path: str | os.PathLike[str]) -> None:
    """Write arrays to a safetensors file; the first process writes, and all others wait for it."""
    arrays = dict(state_dict)
    for key, value in arrays.items():
        if not hasattr(value, "dtype"):
            arrays[key] = np.asarray(value)
    save_arrays(arrays, path)


def _with_none(tree: Tree) -> tuple[list[Payload], Any]:
    return jax.tree.flatten(tree, is_leaf=lambda leaf: leaf is None)


def _to_host(leaf: Payload) -> Payload:
    if isinstance(leaf, jax.Array):
        return arrays_on_host({"leaf": leaf})["leaf"]
    return leaf


def _is_data(value: object) -> bool:
    return is_jax_array_like(value) or isinstance(value, bool | int | float | complex)


def _children(tree: Tree) -> tuple[list[str], list[Tree], Any]:
    """Return the names of the children of a tree, the children and the structure; a leaf is a child without a name."""
    children, structure = jax.tree_util.tree_flatten_with_path(
        tree, is_leaf=lambda each: each is not tree
    )
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in children]
    return names, [child for _, child in children], structure


def _is_leaf(tree: Tree) -> bool:
    if is_named_array(tree):
        return True
    return tree is not None and bool(jax.tree_util.all_leaves([tree]))


def _rebuilt(tree: Tree, change: Function, *others: Tree) -> Tree:
    """Change each child of a tree; the function also gets the children of other trees of the same structure."""
    _, children, structure = _children(tree)
    beside = [_children(other)[1] for other in others]
    rows = zip(children, *beside, strict=True)
    return jax.tree.unflatten(structure, itertools.starmap(change, rows))


def _own_method(tree: Tree, name: str) -> Function | None:
    """Return a method of a module by which it changes its form: Haliax asks for the method, not for a base class."""
    if not isinstance(tree, eqx.Module):
        return None
    return getattr(tree, name, None)


def _keyed(tree: Tree, prefix: str | None) -> tuple[list[str | None], list[Tree], Any]:
    """Return the keys of the children of a tree, the children and the structure."""
    own: Mapping[str, str | None] = {}
    renamed = _own_method(tree, "_state_dict_key_map")
    if renamed is not None:
        own = renamed()
    names, children, structure = _children(tree)
    return [with_prefix(prefix, own.get(name, name)) for name in names], children, structure


def _to_children(tree: Tree, prefix: str | None) -> StateDict:
    listed: StateDict = {}
    keys, children, _ = _keyed(tree, prefix)
    for key, child in zip(keys, children, strict=True):
        listed.update(to_state_dict(child, key))
    return listed


def _from_children(tree: Tree, state_dict: StateDict, prefix: str | None) -> Tree:
    keys, children, structure = _keyed(tree, prefix)
    loaded = [
        from_state_dict(child, state_dict, key) for key, child in zip(keys, children, strict=True)
    ]
    return jax.tree.unflatten(structure, loaded)


def _from_leaf(leaf: Payload, state_dict: StateDict, prefix: str | None) -> Payload:
    template = raw(leaf)
    if template is None or not _is_data(template):
        return leaf
    prefix = _required("from_state_dict", prefix)
    if not is_jax_array_like(template):
        value = state_dict.get(prefix, template)
        if not hasattr(value, "dtype"):
            return value
        # It is an array in a file, and one for each layer in a stack, which share it.
        return type(template)(np.ravel(value)[0].item())
    if prefix not in state_dict:
        raise MissingKeyError(prefix, state_dict)
    value = state_dict[prefix]
    names = getattr(leaf, "names", ())
    shape = shape_of(prefix, template, names)
    if tuple(np.shape(value)) != shape:
        problem = f"{prefix!r} has shape {tuple(np.shape(value))}, but the model has {describe(names, shape)}"
        raise ArgumentError(message("from_state_dict", problem))
    _require_range(prefix, value)
    if not is_named_array(leaf):
        return jnp.asarray(value)
    if not isinstance(value, jax.Array):  # not by way of the first device, which may be too small
        value = np.asarray(value)
    loaded = auto_sharded(wrap(leaf, value, names))
    return adopt(wrap(loaded, jnp.asarray(loaded.array), names))


def _require_range(key: str, value: Payload) -> None:
    """Raise for 64-bit integers that would wrap because JAX converts them to 32 bits."""
    if isinstance(value, jax.Array) or not jnp.issubdtype(np.asarray(value).dtype, jnp.integer):
        return
    given = np.asarray(value)
    kept = jax.dtypes.canonicalize_dtype(given.dtype)
    if kept != given.dtype and given.size and not np.array_equal(given.astype(kept), given):
        problem = f"{key!r} has integers that do not fit {kept}: {given.min()} to {given.max()}"
        hint = 'keep 64 bits: jax.config.update("jax_enable_x64", True)'
        raise ArgumentError(message("from_state_dict", problem, hint=hint))
