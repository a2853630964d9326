"""Spread the work of an optimiser over devices, layer by layer, in a layout other than that of stored parameters."""

import itertools
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
from jax.core import Tracer

from ..array import NamedArray, is_named_array
from ..base.kinds import Payload, Tree
from ..base.lazy import library
from ..engine.core import wrap
from ..errors import ShardingError, message
from ..faults.gathered_moves import list_moves
from ..layout import explicit, modes
from ..layout.assignment import (
    AxisMapping,
    MeshLike,
    ResourceMapping,
    find_entry,
    normalized,
    path_text,
    shorten_entry,
)
from ..layout.context import context_mesh, find_stored_mapping
from ..layout.layout import Layout
from ..layout.partition import count_shards, find_layout
from ..partitioning.keys import check_keys
from ..partitioning.trees import choose_mapping, collect_names, find_several, shard_tree
from .auto_axes import Transformation, check_transformation

__all__ = ["spread"]


def spread(tx: Transformation, mapping: ResourceMapping) -> Transformation:
    """Update each parameter that has an axis of a mapping in the layout of this mapping, and send the update back.

    With `{"layers": ("data", "model")}`, each device gets the complete matrices of some layers, and computes the
    updates of these layers. Under FSDP, a transformation of matrices would gather every matrix on every device; with
    this, gradients and updates are exchanged once each. Parameters are exchanged too if the transformation reads them,
    as for weight decay. The state is exchanged too unless it is stored by the same mapping, as in the example.
    Parameters without an axis of the mapping are updated in their own layout. Without a current mesh, this does
    nothing.

    Args:
        tx: a transformation, or a chain of some.
        mapping: the mesh axes of layers, experts or other axes; the other axes of such a parameter are not split. With
            `first_fitting`, each stack gets the first alternative that divides its size; if None is the last one, other
            stacks are updated in their own layout.

    Raises:
        ShardingError: in `init` and `update`: if a size does not divide; if no parameter has an axis of the mapping;
            inside of a `shard_map` over its mesh axes.

    Examples:
        >>> layers = {"layers": "data"}
        >>> tx = axn.optim.spread(axn.optim.muon(0.02), layers)
        >>> fsdp = axn.Mappings({"embed": "data"}, {"batch": "data"}, overrides={"optimizer": layers})
        >>> Layers, Embed, Mlp = axn.make_axes(layers=4, embed=8, mlp=16)
        >>> module = lambda key: axn.nn.Linear.init(Embed, Mlp, key=key)
        >>> with axn.set_mesh(jax.make_mesh((4,), ("data",))):
        ...     model = axn.nn.Stacked.init(Layers, module)(key=jax.random.key(0))
        ...     state = axn.shard({"model": model, "optimizer": tx.init(model)}, fsdp)
        ...     updates, _ = tx.update(state["model"], state["optimizer"], state["model"])
        >>> updates.stacked.weight.sharding.spec
        P(None, 'data', None)
    """
    optax = library("spread", "optax")
    check_transformation("spread", tx)
    own_update = optax.with_extra_args_support(tx).update
    rules = normalized(mapping)

    def init(params: Tree) -> Tree:
        mesh = _find_mesh(rules, params)
        state = tx.init(params)
        return state if mesh is None else _move(state, rules, mesh)

    def update(updates: Tree, state: Tree, params: Tree = None, **extra: Any) -> tuple[Tree, Tree]:
        mesh = _find_mesh(rules, updates)
        if mesh is None:
            unmoved: tuple[Tree, Tree] = own_update(updates, state, params, **extra)
            return unmoved
        structure: object = jax.tree.structure(updates)
        there = partial(_move, rules=rules, mesh=mesh, is_parameter=True)
        with jax.named_scope("optimizer"):
            more = {
                name: there(value) if jax.tree.structure(value) == structure else value
                for name, value in extra.items()
            }
            moved, after = own_update(
                there(updates), _move(state, rules, mesh), there(params), **more
            )
            return (
                _move_back(moved, updates, rules, mesh, is_parameter=True),
                _move_back(after, state, rules, mesh),
            )

    return optax.GradientTransformationExtraArgs(init, update)


def _find_mesh(rules: AxisMapping, tree: Tree) -> MeshLike | None:
    """Return the current mesh, and check that the mapping fits it and a tree of parameters."""
    mesh = context_mesh()
    if mesh is None:
        return None
    check_keys("spread", rules, collect_names(tree), mesh)
    by_hand = modes.find_manual_axes(mesh) & {*itertools.chain.from_iterable(rules.values())}
    if by_hand:
        problem = f"mesh axis {min(by_hand)!r} is one of a surrounding shard_map, where a device has parts of layers"
        raise ShardingError(message("spread", problem, hint="update outside of the shard_map"))
    return mesh


def _move(tree: Tree, rules: AxisMapping, mesh: MeshLike, *, is_parameter: bool = False) -> Tree:
    """Shard those arrays of a tree that have an axis of the mapping."""
    several = find_several(tree)

    def one(keys: Any, x: Payload) -> Payload:
        target = _find_target(keys, x, rules, mesh, several)
        if target is None:
            return x
        for layout in _find_way(keys, x, target, mesh, is_parameter):
            x = _constrain(x, layout, mesh)
        return x

    return jax.tree.map_with_path(one, tree, is_leaf=is_named_array)


def _move_back(
    tree: Tree, like: Tree, rules: AxisMapping, mesh: MeshLike, *, is_parameter: bool = False
) -> Tree:
    """Move computed arrays from the layout of the mapping back to that of the given arrays."""
    several = find_several(like)

    def one(keys: Any, x: Payload, before: Payload) -> Payload:
        target = _find_target(keys, before, rules, mesh, several)
        if target is None:
            return x
        for layout in reversed(_find_way(keys, before, target, mesh, is_parameter)):
            x = _constrain(x, layout, mesh)
        if not isinstance(before.array, Tracer):
            x = wrap(x, jax.device_put(x.array, before.sharding), x.names)
        return x

    return jax.tree.map_with_path(one, tree, like, is_leaf=is_named_array)


def _find_target(
    keys: Any, x: Payload, rules: AxisMapping, mesh: MeshLike, several: set[str]
) -> Layout | None:
    """Return the layout of an array for the update; None if it keeps its own."""
    if not isinstance(x, NamedArray) or len(getattr(x.array, "shape", ())) < len(x.names):
        return None
    names, shape = x.names, tuple(x.array.shape)
    own = choose_mapping(rules, names, shape, "", several)
    try:
        layout = find_layout(names, shape, own, mesh, "spread")
    except ShardingError as error:
        sizes = dict(zip(names, shape[len(shape) - len(names) :], strict=True))
        hint = _suggest_fitting(own, sizes, mesh) or error.hint
        facts = (*error.facts, f"at: {path_text(keys)}")
        raise ShardingError(message("spread", error.problem, *facts, hint=hint)) from None
    return layout if layout.mesh_axes else None


def _suggest_fitting(rules: AxisMapping, sizes: Mapping[str, int], mesh: MeshLike) -> str | None:
    """Return a hint for an axis that its mesh axes do not divide: alternatives that fit."""
    for name, size in sizes.items():
        entry = find_entry(rules, name)
        if not entry or size % count_shards(mesh, entry) == 0:
            continue
        parts = [
            shorten_entry(part)
            for count in range(len(entry) - 1, 0, -1)
            for part in itertools.combinations(entry, count)
            if size % count_shards(mesh, part) == 0
        ]
        given = ", ".join(map(repr, (shorten_entry(entry), *parts, None)))
        alternatives = f"{{{name!r}: axn.partitioning.first_fitting({given})}}"
        return f"give alternatives, {alternatives}, where None leaves it as it is"
    return None


def _find_way(
    keys: Any, x: NamedArray, target: Layout, mesh: MeshLike, is_parameter: bool
) -> list[Layout]:
    """Return the layouts of an array from its own, if that is known, to the layout of the update.

    From each layout to the next, there is one exchange.
    """
    source: Layout | None = None
    if isinstance(x.array, Tracer):
        stored = find_stored_mapping(x.names, path_text(keys)) if is_parameter else None
        if explicit.has_explicit_axes(x.array):
            source = explicit.get_layout(x.array)
        elif stored is not None:
            source = find_layout(x.names, tuple(x.array.shape), stored, mesh)
    if source is None:
        return [target]
    return list_moves(source, target)


def _constrain(x: NamedArray, layout: Layout, mesh: MeshLike) -> NamedArray:
    entries = AxisMapping(tuple(layout.by_name(x.names).items()))
    return shard_tree(x, entries, mesh, function="spread")
