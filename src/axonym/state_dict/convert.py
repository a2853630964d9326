"""Convert trees to state dicts and back.

`places` lists the arrays of a tree, and `fit` checks that a state dict fits them. This module reads and places arrays
one by one, so that at most one is on the host.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

import jax
import numpy as np
from jax.sharding import AbstractMesh, NamedSharding
from numpy.typing import NDArray

from ..array import is_named_array
from ..axis import Axis
from ..base.kinds import Payload, Tree, type_text
from ..errors import ArgumentError, OperandError, message
from ..layout import context, layout, partition
from ..layout.assignment import AxisMapping, Mappings, MeshLike, ResourceMapping
from ..nn.linear import Linear
from ..nn.moe.linear import MoELinear
from ..partitioning.buffers import release
from ..partitioning.keys import check_keys
from ..partitioning.placement import from_callback
from ..partitioning.trees import collect_names, collect_paths, no_mesh
from ..transform.leaves import refilled
from .axes import StoredArray, StoredAxes
from .fit import Reading, Rival, fit
from .layouts import TORCH, Layout, in_first
from .places import Form, Index, Place, on_host, places, require_state, require_values

__all__ = [
    "Rename",
    "StateDict",
    "from_state_dict",
    "from_torch_compatible_state_dict",
    "to_state_dict",
    "to_torch_compatible_state_dict",
]

T = TypeVar("T")
Rename: TypeAlias = Mapping[str, str] | Callable[[str], str]
"""A function from keys of a model to keys of a state dict; or a table that replaces components, or runs of them with
dots between, wherever they occur, such as `{"attention.qkv": "attn.c_attn"}`."""
Entries: TypeAlias = dict[str, tuple[Place, Index]]
IN_FIRST: Mapping[type, Layout] = {Linear: in_first, MoELinear: in_first}
IN_FIRST_CALL = "layouts={axn.nn.Linear: axn.state_dict.in_first}"


class StateDict(Mapping[str, NDArray[np.generic]]):
    """The arrays of a model by key, each brought to the host when it is looked up; `dict(state)` fetches all.

    All processes have to look up the same arrays in the same order.

    Examples:
        >>> state = axn.state_dict.to_state_dict({"x": axn.arange(axn.Axis("pos", 2))})
        >>> list(state), state["x"].tolist(), state.spec("x").shape
        (['x'], [0, 1], (2,))
    """

    def __init__(self, entries: Entries) -> None:
        self._entries = entries

    def __getitem__(self, key: str) -> StoredArray:
        place, index = self._entries[key]
        require_values("state dict", key, place.array)
        return StoredArray.of(place.form.store(place.read(index)), self.axes(key))

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"StateDict({len(self)} arrays)"

    def spec(self, key: str) -> jax.ShapeDtypeStruct:
        """Return the shape and the dtype of an array without fetching it."""
        place, _ = self._entries[key]
        return jax.ShapeDtypeStruct(place.form.shape, place.array.dtype)

    def axes(self, key: str) -> StoredAxes | None:
        """Return the axes of each dimension of an array; None if the array has no names."""
        place, _ = self._entries[key]
        return place.axes if any(place.axes) else None


def to_state_dict(
    tree: Tree,
    prefix: str | None = None,
    *,
    layouts: Mapping[type, Layout] | None = None,
    rename: Rename | None = None,
) -> StateDict:
    """List the arrays of a tree by key: field names, indices in sequences and keys of dicts, joined by dots.

    Layers in a `Stacked`, `BlockSeq` or `Interleaved` have separate keys, such as `blocks.0.mlp.weight`, so keys do not
    depend on how layers are stored. Leaves that are not arrays are left out.

    Args:
        tree: a model. It may be abstract, for its keys and `StateDict.spec`.
        prefix: the first component of all keys.
        layouts: how the arrays of some modules are stored, by type; all others are stored as they are.
        rename: see `Rename`; `prefix` is added after it.

    Raises:
        ArgumentError: if two arrays have the same key, or a layout has a field that its module lacks.
        AxisError: if a layout does not fit the axes of an array.
        OperandError: if a layout returns anything but `Stored`, or `rename` anything but a string.

    Examples:
        >>> Embed, Mlp = axn.make_axes(embed=8, mlp=16)
        >>> mlp = axn.nn.MLP.init(Embed, Embed, Mlp, 1, key=jax.random.key(0))
        >>> list(axn.state_dict.to_state_dict(mlp, "model"))
        ['model.layers.0.weight', 'model.layers.0.bias', 'model.layers.1.weight', 'model.layers.1.bias']
    """
    return StateDict(
        _make_entries("to_state_dict", list(places(tree, layouts or {})), prefix, rename)
    )


def to_torch_compatible_state_dict(
    tree: Tree,
    prefix: str | None = None,
    *,
    layouts: Mapping[type, Layout] | None = None,
    rename: Rename | None = None,
) -> StateDict:
    """List the arrays of a tree by key, in the layouts of torch; see `TORCH` and `to_state_dict`.

    Args:
        tree: a model.
        prefix: the first component of all keys.
        layouts: further layouts by type, which replace those of torch.
        rename: see `Rename`.

    Returns:
        Arrays in the order of torch's dimensions; axes that torch flattens are one dimension.

    Examples:
        >>> Embed, Heads, HeadDim = axn.make_axes(embed=8, heads=2, head_dim=3)
        >>> layer = axn.nn.Linear.init(Embed, (Heads, HeadDim), key=jax.random.key(0))
        >>> axn.state_dict.to_torch_compatible_state_dict(layer)["weight"].shape
        (6, 8)
    """
    return to_state_dict(tree, prefix, layouts={**TORCH, **(layouts or {})}, rename=rename)


def from_state_dict(
    tree: T,
    state_dict: Mapping[str, Payload],
    prefix: str | None = None,
    strict: bool = True,
    *,
    cast: bool = False,
    layouts: Mapping[type, Layout] | None = None,
    rename: Rename | None = None,
    rename_axes: Mapping[str, str] | None = None,
    mapping: ResourceMapping | Mappings | None = None,
    mesh: MeshLike | None = None,
) -> T:
    """Return a tree with the arrays of a state dict; the inverse of `to_state_dict`.

    Each device gets its part of each array; of files opened by `load_state_dict`, only that part is read.

    Args:
        tree: a model with the keys, axes and dtypes, possibly abstract, from `eqx.filter_eval_shape`.
        state_dict: arrays by key, without names, in the layout of the file. Tensors of torch may be among them.
        prefix: the first component of the keys; keys without it are ignored.
        strict: raise for unexpected keys, missing keys, and keys of a given mapping, or of the `parameters` of
            `Mappings`, that the model lacks. If False, unexpected keys are ignored, and missing arrays stay as they are
            in `tree`. If all arrays are missing, this is an error; if there are both missing and unexpected keys, a
            warning has their numbers.
        cast: convert arrays of another dtype, floating to floating and integer to integer. Integers have to fit.
        layouts: how the arrays of some modules are stored, by type.
        rename: see `Rename`.
        rename_axes: the names of axes of the model that have another name in the file, such as `{"embed": "hidden"}`.
            Derived names follow their base. If the arrays have names, as in results of `load_state_dict` and
            `to_state_dict`, names are compared, and axes in another order are transposed.
        mapping: shards the arrays; by default the current mapping. Without a mapping, they are sharded like the arrays
            of `tree`. In place of NumPy arrays of `tree`, they stay on the host; with a mapping, only those without
            names do.
        mesh: by default the mesh of `set_mesh`.

    Raises:
        ArgumentError: if the state dict does not fit; the error lists all arrays that are missing or unexpected, or
            have other axes, another shape or another dtype. Also if keys are not strings, or values are abstract,
            traced or keys of `jax.random`.
        OperandError: if it is not a mapping, or a value has names or cannot be read by numpy; if `rename` does not
            return a string.
        ShardingError: if the mapping does not fit; if `tree` is abstract on a mesh, and there is no current mesh.

    Examples:
        >>> Embed, Mlp = axn.make_axes(embed=8, mlp=16)
        >>> make = lambda seed: axn.nn.Linear.init(Embed, Mlp, key=jax.random.key(seed))
        >>> loaded = axn.state_dict.from_state_dict(make(0), axn.state_dict.to_state_dict(make(1)))
        >>> bool(axn.array_equal(loaded.weight, make(1).weight))
        True
    """
    function = "from_state_dict"

    def entries(layouts: Mapping[type, Layout]) -> Entries:
        return _make_entries(function, list(places(tree, layouts)), prefix, rename)

    # Other readings cost nothing unless the state dict does not fit, when the error names the call that would.
    torch = {**TORCH, **(layouts or {})}
    rivals = (
        Rival("call from_torch_compatible_state_dict", lambda: entries(torch)),
        Rival(
            f"call from_torch_compatible_state_dict with {IN_FIRST_CALL}",
            lambda: entries({**torch, **IN_FIRST}),
        ),
    )
    options = (strict, cast, layouts or {}, rename, rename_axes, mapping, mesh)
    torch_reading = rivals[0] if layouts is None else None
    filled: T = _load_tree(function, tree, state_dict, prefix, *options, rivals, torch_reading)
    return filled


def from_torch_compatible_state_dict(
    tree: T,
    state_dict: Mapping[str, Payload],
    prefix: str | None = None,
    strict: bool = True,
    *,
    cast: bool = False,
    layouts: Mapping[type, Layout] | None = None,
    rename: Rename | None = None,
    rename_axes: Mapping[str, str] | None = None,
    mapping: ResourceMapping | Mappings | None = None,
    mesh: MeshLike | None = None,
) -> T:
    """Return a tree with the arrays of a state dict in the layouts of torch; see `TORCH`.

    Args:
        tree: a model, possibly abstract.
        state_dict: arrays by key, such as those of `module.state_dict()` or `load_state_dict`.
        prefix: as in `from_state_dict`, with all arguments below.
        strict: raise for unexpected and missing keys.
        cast: convert arrays of another dtype.
        layouts: further layouts by type, which replace those of torch.
        rename: see `Rename`.
        rename_axes: names of axes that have another name in the file.
        mapping: shards the arrays; by default the current mapping.
        mesh: by default the mesh of `set_mesh`.

    Raises:
        ArgumentError, OperandError, ShardingError: as `from_state_dict`.

    Examples:
        >>> Embed, Mlp = axn.make_axes(embed=8, mlp=16)
        >>> layer = axn.nn.Linear.init(Embed, Mlp, key=jax.random.key(0))
        >>> torch = {"weight": np.ones((16, 8), np.float32), "bias": np.zeros(16, np.float32)}
        >>> axn.state_dict.from_torch_compatible_state_dict(layer, torch).weight.axes
        (Axis(name='embed', size=8), Axis(name='mlp', size=16))
    """
    function = "from_torch_compatible_state_dict"

    def entries(layouts: Mapping[type, Layout]) -> Entries:
        return _make_entries(function, list(places(tree, layouts)), prefix, rename)

    own = {**TORCH, **(layouts or {})}
    rivals = (
        Rival(f"pass {IN_FIRST_CALL}", lambda: entries({**own, **IN_FIRST})),
        Rival("call from_state_dict", lambda: entries(layouts or {})),
    )
    options = (strict, cast, own, rename, rename_axes, mapping, mesh)
    filled: T = _load_tree(function, tree, state_dict, prefix, *options, rivals, None)
    return filled


def _load_tree(
    function: str,
    tree: Tree,
    state_dict: Mapping[str, Payload],
    prefix: str | None,
    strict: bool,
    cast: bool,
    layouts: Mapping[type, Layout],
    rename: Rename | None,
    rename_axes: Mapping[str, str] | None,
    mapping: ResourceMapping | Mappings | None,
    mesh: MeshLike | None,
    rivals: tuple[Rival, ...],
    torch: Rival | None,
) -> Tree:
    require_state(function, state_dict, f"write {function}(model, state_dict)")
    # A mapping that was given needs a mesh; a current one without a mesh has no effect, as everywhere.
    own = mapping if isinstance(mapping, Mappings) else context.resolve_mapping(mapping)
    around = context.context_mesh(mesh)
    if mapping is not None and own is not None:
        if around is None:
            raise no_mesh(function, own)
        if strict:
            check_keys(function, own, collect_names(tree), around, collect_paths(tree))
    found = list(places(tree, layouts))
    entries = _make_entries(function, found, prefix, rename)
    table = {} if rename_axes is None else rename_axes
    forms = fit(Reading(function, entries, state_dict, prefix, strict, cast, table, rivals, torch))
    keys: dict[str, dict[Index, str]] = {}
    for key in forms:
        place, index = entries[key]
        keys.setdefault(place.path, {})[index] = key
    # Arrays that the state dict lacks stay as they are, which `fit` has allowed.
    leaves, structure = jax.tree.flatten(tree, is_leaf=is_named_array)
    for at, spot in enumerate(found):
        if spot is not None and spot.path in keys:
            layers = _bring_layers(spot, keys[spot.path], forms, state_dict)
            leaves[at] = _load_array(function, spot, layers, None if around is None else own, mesh)
            # Free the copies of this array before those of the next one are made.
            del layers
    return jax.tree.unflatten(structure, leaves)


def _bring_layers(
    spot: Place,
    keys: Mapping[Index, str],
    forms: Mapping[str, Form],
    state_dict: Mapping[str, Payload],
) -> dict[Index, NDArray[np.generic]]:
    """Bring the layers of an array to the host; a layer without a key is taken from the tree.

    This is not done block by block, because all processes have to bring the same arrays to the host.
    """
    layers: dict[Index, NDArray[np.generic]] = {}
    for _, index in spot.entries():
        key = keys.get(index)
        layers[index] = (
            spot.read(index) if key is None else forms[key].restore(on_host(state_dict[key]))
        )
    return layers


def _load_array(
    function: str,
    place: Place,
    layers: Mapping[Index, NDArray[np.generic]],
    mapping: AxisMapping | Mappings | None,
    mesh: MeshLike | None,
) -> Payload:
    """Load an array; each device gets its part."""
    whole = (slice(None),) * len(place.shape)

    def block(at: Any) -> NDArray[np.generic]:
        return place.block(at, layers)

    sharding = getattr(place.array, "sharding", None)
    on_the_host = isinstance(place.array, np.ndarray | np.generic)
    # Abstract arrays from a mesh with Explicit axes have a layout, but no devices.
    named = sharding if isinstance(sharding, NamedSharding) else None
    if mapping is None and named is not None and isinstance(named.mesh, AbstractMesh):
        found = layout.Layout.from_spec(named.spec, len(place.shape))
        mapping = AxisMapping(tuple(found.by_name(place.names).items()))
        if context.context_mesh(mesh) is None:
            raise no_mesh(function, mapping)
    array: Payload
    if on_the_host and (mapping is None or not is_named_array(place.leaf)):
        # It stays on the host, as with `shard`: JAX would make 32 bits of 64.
        kept = block(whole)
        array = kept if isinstance(place.array, np.ndarray) else kept[()]
    elif mapping is not None:
        own = mapping.of(place.names, place.path) if isinstance(mapping, Mappings) else mapping
        # Errors name the function that the user called.
        partition.find_layout(place.names, place.shape, own, context.context_mesh(mesh), function)
        axes = tuple(map(Axis, place.names, place.shape))
        # Blocks are in new memory, which a CPU keeps.
        made = from_callback(
            axes, lambda at: block(tuple(at.values())), own, mesh, copy=False, strict=False
        )
        array = made.array
    elif sharding is not None and getattr(place.array, "committed", True):  # stays where it was put
        array = jax.make_array_from_callback(place.shape, sharding, block)
    else:
        array = jax.device_put(block(whole))
    # Wait, since devices may still read: else the memory for this array would not be freed before that for the next.
    jax.block_until_ready(array)
    for layer in layers.values():
        release(layer)
    return refilled(place.leaf, array)


def _make_entries(
    function: str, found: list[Place | None], prefix: str | None, rename: Rename | None
) -> Entries:
    """Make the keys of all arrays."""
    change = _make_rename(function, rename)
    entries: Entries = {}
    for place in filter(None, found):
        for name, index in place.entries():
            key = ".".join(part for part in (prefix, change(name)) if part)
            if not key:
                raise ArgumentError(
                    message(function, "a bare array has no key", hint="pass a prefix")
                )
            # `rename` may map two keys to one, and one of the arrays would be lost.
            if key in entries:
                first, second = entries[key][0].path, place.path
                raise ArgumentError(
                    message(function, f"{first} and {second} have the same key, {key!r}")
                )
            entries[key] = (place, index)
    return entries


def _make_rename(function: str, rename: Rename | None) -> Callable[[str], str]:
    if callable(rename):
        return lambda name: _check_keys(function, name, rename(name))
    if rename is not None and not isinstance(rename, Mapping):
        problem = (
            f"rename must be a function of a key or a dict of strings, not {type_text(rename)}"
        )
        raise OperandError(
            message(function, problem, hint='write rename={"attention.qkv": "attn.c_attn"}')
        )
    if not rename:
        return lambda name: name
    table = {
        _check_keys(function, run, run): _check_keys(function, run, other)
        for run, other in rename.items()
    }
    # One pattern for all, so that no replacement is replaced again; the longest run first, since "mlp" is in "mlp.up".
    runs = "|".join(re.escape(run) for run in sorted(table, key=len, reverse=True))
    pattern = re.compile(rf"(?<![^.])(?:{runs})(?![^.])")
    return lambda name: pattern.sub(lambda run: table[run[0]], name)


def _check_keys(function: str, old: object, new: object) -> str:
    if not isinstance(old, str) or not isinstance(new, str):
        raise OperandError(
            message(function, f"rename turns {old!r} into {new!r}, but keys must be strings")
        )
    return new
