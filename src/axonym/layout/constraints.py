"""Internal. Shard results by the current mapping: with constraints on Auto mesh axes, by types on Explicit ones.

The engine calls `lay_out` for each result that it traces, `axn.shard` and `auto_sharded` call `constrain`. Manual mesh
axes, inside a `shard_map`, are left out: there an array is the block of one device.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from ..errors import ShardingError, describe, message
from ..names.plans import Names, values_at
from . import modes
from .assignment import AxisMapping, Entry, MeshLike
from .context import context_mesh, current_mapping, get_taken_axes, map_names
from .explicit import get_layout, has_explicit_axes, reshard
from .layout import Layout
from .partition import find_layout, only, replicate_uneven
from .records import AUDIT, Refused, note
from .tracing import INLINE


def _find_spec(
    names: Names,
    shape: tuple[int, ...],
    mapping: AxisMapping,
    mesh: MeshLike,
    function: str = "shard",
) -> PartitionSpec:
    """Return the spec of one array; during a check, errors are collected and the array is replicated."""
    note(mapping, names, shape)
    audit = AUDIT.get()
    if audit is None:
        # An empty array is replicated, see `faults/empty_arrays`, but the mapping is checked all the same.
        spec = find_layout(names, shape, mapping, mesh, function).spec
        return _replicate(shape) if _is_empty(shape) else spec
    try:
        spec = find_layout(names, shape, mapping, mesh).spec
    except ShardingError as error:
        audit.refused.append(Refused(names, shape, mapping, mesh, error))
        spec = _replicate(shape)
    audit.arrays.append((names, shape, spec))
    return spec


def _replicate(shape: Sequence[int]) -> PartitionSpec:
    return PartitionSpec(*[None] * len(shape))


def _is_empty(shape: Sequence[int]) -> bool:
    return 0 in shape


def _keep_mesh_axes(spec: PartitionSpec, mesh_axes: Set[str]) -> PartitionSpec:
    """Keep some mesh axes of a spec, except those that a surrounding `vmap` maps over."""
    return Layout.from_spec(spec).only(mesh_axes - set(get_taken_axes())).spec


def constrain(
    array: jax.Array,
    names: Names,
    mapping: AxisMapping,
    mesh: MeshLike,
    function: str = "shard",
    gradient: AxisMapping | None = None,
) -> jax.Array:
    """Shard an array within a computation, by the mode of each mesh axis.

    Args:
        array: the array.
        names: its names.
        mapping: the mapping.
        mesh: the mesh.
        function: what the user called, for errors.
        gradient: shards the gradient, on a mesh of Auto axes; by default like the array. The type of an array on
            Explicit axes is that of its gradient.
    """
    spec = _find_spec(names, array.shape, mapping, mesh, function)
    # Explicit axes are part of the type, Auto ones are a wish to the compiler: one mesh may have both.
    explicit = NamedSharding(mesh, _keep_mesh_axes(spec, modes.find_explicit_axes(mesh)))
    auto = NamedSharding(mesh, _keep_mesh_axes(spec, modes.find_auto_axes(mesh)))
    if is_elsewhere(array, mesh):
        raise elsewhere(function, "an array", array, names, mesh)
    if modes.has_explicit(mesh) and modes.has_auto(mesh):
        array = _constrain_both(array, explicit, auto)
    elif modes.has_explicit(mesh):
        array = reshard(array, Layout.from_spec(explicit.spec), is_asked=True)
    elif modes.has_auto(mesh):
        array = _constrain_array_and_gradient(
            array, auto, _gradient_sharding(array, names, gradient, auto)
        )
    return array


def _gradient_sharding(
    array: jax.Array, names: Names, gradient: AxisMapping | None, own: NamedSharding
) -> NamedSharding:
    """Return the sharding of the gradient, or of the array if the mapping of gradients does not fit it."""
    if gradient is None or not jnp.issubdtype(array.dtype, jnp.inexact) or _is_empty(array.shape):
        return own
    try:
        spec = find_layout(names, array.shape, gradient, own.mesh).spec
    except ShardingError:  # no parameter, which would not have come in
        return own
    return NamedSharding(own.mesh, _keep_mesh_axes(spec, modes.find_auto_axes(own.mesh)))


def _constrain_array_and_gradient(
    array: jax.Array, own: NamedSharding, gradient: NamedSharding
) -> jax.Array:
    # The rule below makes two constraints of one, which the compiler would have to merge again.
    is_same = own == gradient
    constrained: jax.Array = (
        constrain_auto(array, own) if is_same else _constrain_with_tangents(array, own, gradient)
    )
    return constrained


@partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _constrain_with_tangents(
    array: jax.Array, own: NamedSharding, gradient: NamedSharding
) -> jax.Array:
    """Shard an array in one way, and its tangents, hence its gradient, in another."""
    constrained: jax.Array = constrain_auto(array, own)
    return constrained


@_constrain_with_tangents.defjvp
def _constrain_jvp(
    own: NamedSharding,
    gradient: NamedSharding,
    primals: tuple[jax.Array],
    tangents: tuple[jax.Array],
) -> tuple[jax.Array, jax.Array]:
    constrained: jax.Array = _constrain_with_tangents(*primals, own, gradient)
    return constrained, constrain_auto(*tangents, gradient)


def is_elsewhere(array: object, mesh: MeshLike) -> bool:
    """Return whether an array is on another mesh than this one, by its type.

    With Auto axes, JAX would not raise, but shard the result over the wrong mesh or not at all. Inside a
    shard_map, the types of mesh axes change; there, JAX compares the meshes itself.
    """
    own = jax.typeof(array).sharding.mesh
    # Most often it is the same object. Devices are not compared: an abstract mesh has none.
    if own is mesh or own.empty or modes.has_manual(own) or modes.has_manual(mesh):
        return False
    return (own.shape_tuple, own.axis_types) != (mesh.shape_tuple, mesh.axis_types)


def elsewhere(function: str, what: str, array: Any, names: Names, mesh: MeshLike) -> ShardingError:
    """Build the error of an array on another mesh."""
    own = jax.typeof(array).sharding.mesh
    problem = f"{what} is on another mesh than the current one"
    facts = (
        f"array has: {describe(names, array.shape)}",
        f"its mesh: {_describe_modes(own)}",
        f"mesh: {_describe_modes(mesh)}",
    )
    return ShardingError(message(function, problem, *facts, hint=MOVE_HINT))


MOVE_HINT = "move it first, outside of jit: axn.shard(x, mapping)"


def check_one_mesh(arrays: Iterable[Any]) -> None:
    """Check that the operands of an operation are on the current mesh or, without one, all on the same mesh.

    Raises:
        ShardingError: if one does not.
    """
    mesh: MeshLike | None = context_mesh()
    for array in arrays:
        own = jax.typeof(array).sharding.mesh
        if mesh is None and not own.empty:
            mesh = own
        # The first array with a mesh decides, if no mesh is current.
        if mesh is not None and is_elsewhere(array, mesh):
            other = "one before it" if context_mesh() is None else "current one"
            problem = f"an operand is on another mesh than the {other}"
            shape = f"its shape: {jnp.shape(array)}"
            facts = (shape, f"its mesh: {_describe_modes(own)}", f"mesh: {_describe_modes(mesh)}")
            raise ShardingError(message("mesh", problem, *facts, hint=MOVE_HINT))


def _describe_modes(mesh: MeshLike) -> str:
    kinds = modes.list_modes(mesh).items()
    return ", ".join(f"{axis}={mesh.shape[axis]} ({mode})" for axis, mode in kinds)


@partial(jax.jit, static_argnums=1, inline=INLINE)
def constrain_auto(array: jax.Array, auto: NamedSharding) -> jax.Array:
    """Apply the constraint under jit; eagerly, it is an error for an array that is not on the mesh yet."""
    constrained: jax.Array = jax.lax.with_sharding_constraint(array, auto)
    return constrained


@partial(jax.jit, static_argnums=(1, 2))
def _constrain_both(array: jax.Array, explicit: NamedSharding, auto: NamedSharding) -> jax.Array:
    """Apply a reshard and a constraint on a mixed mesh; outside jit, the second step would undo the first."""
    moved: jax.Array = jax.lax.with_sharding_constraint(
        reshard(array, Layout.from_spec(explicit.spec), is_asked=True), auto
    )
    return moved


def check_result(names: Names, sizes: Mapping[str, int]) -> None:
    """Raise ShardingError for a result that the current mapping cannot shard, before the result is computed."""
    mapping, mesh = current_mapping(), context_mesh()
    if mapping is not None and mesh is not None:
        _find_spec(names, values_at(sizes, names), mapping, mesh)


def decide_layout(names: Names, sizes: Mapping[Any, int]) -> dict[str, Entry] | None:
    """Return the mesh axes that the current mapping gives to axes of a result; None without mapping or mesh.

    Axes without an entry are missing, so that they may follow the operands; an axis mapped to None is replicated.
    """
    mapping, mesh = current_mapping(), context_mesh()
    if mapping is None or mesh is None:
        return None
    entries = Layout.from_spec(_find_spec(names, values_at(sizes, names), mapping, mesh))
    known = map_names(dict(zip(names, values_at(sizes, names), strict=True)))
    return {name: entry for name, entry in zip(names, entries, strict=True) if name in known}


def shard_result(array: jax.Array, names: Names) -> jax.Array:
    """Shard a result by the current mapping and mesh; without either, leave it as it is."""
    mapping, mesh = current_mapping(), context_mesh()
    if mapping is None or mesh is None:
        return array
    return constrain(array, names, mapping, mesh)


def gather_dimension(array: jax.Array, at: int) -> jax.Array:
    """Gather a dimension, whatever the modes of the mesh axes that it may be split over."""
    # A mesh may have both kinds of axes, and the dimension may be split over some of each.
    if has_explicit_axes(array):
        array = reshard(array, get_layout(array).replace(at, ()), is_asked=True)
    mesh = context_mesh()
    if mesh is None or not modes.find_auto_axes(mesh):
        return array
    return constrain_dimensions(array, {at: ()})


def shard_first(array: jax.Array, entry: Entry) -> jax.Array:
    """Split the first dimension over mesh axes; the others keep their layout, which on Auto axes the compiler knows."""
    mesh = context_mesh()
    if mesh is None:
        return array
    typed = only(entry, modes.find_explicit_axes(mesh))
    if typed:
        entries = [typed, *get_layout(array)[1:]]
        array = reshard(array, entries, is_asked=True)
    auto = only(entry, modes.find_auto_axes(mesh))
    return constrain_dimensions(array, {0: auto}) if auto else array


def find_free_auto_axes() -> set[str]:
    """Return the Auto axes of the current mesh if it has no Explicit axes and more than one axis is free."""
    mesh = context_mesh()
    if mesh is None or modes.has_explicit(mesh):
        return set()
    free = modes.find_auto_axes(mesh) - set(get_taken_axes())
    return free if len(free) > 1 else set()


def constrain_dimensions(array: jax.Array, wanted: Mapping[int, Entry]) -> jax.Array:
    """Shard some dimensions over Auto mesh axes, and leave the others to the compiler."""
    mesh = context_mesh()
    if mesh is None or not wanted:
        return array
    # `None` would gather a dimension that nobody asked about.
    entries: list[Any] = [PartitionSpec.UNCONSTRAINED] * array.ndim
    for at, entry in wanted.items():
        entries[at] = entry or None
    constrained: jax.Array = constrain_auto(array, NamedSharding(mesh, PartitionSpec(*entries)))
    return constrained


def shard_new(array: jax.Array, names: Names) -> jax.Array:
    """Shard a new array by the mapping if the mesh has Explicit axes."""
    sharding = explicit_sharding(names, array.shape, is_strict=False)
    return array if sharding is None else jax.reshard(array, sharding)


def explicit_sharding(
    names: Names, sizes: tuple[int, ...], *, is_strict: bool = True
) -> PartitionSpec | None:
    """Return the sharding for a new array if the mesh has Explicit axes; None leaves it to JAX.

    Unless it is strict, an axis that the mesh does not divide is replicated, as it may be on Auto axes.
    """
    mapping, mesh = current_mapping(), context_mesh()
    if mapping is None or mesh is None or not modes.has_explicit(mesh):
        return None
    typed = modes.find_explicit_axes(mesh)
    if not is_strict:
        mapping = replicate_uneven(names, sizes, mapping, mesh, "shard", typed)
    return _keep_mesh_axes(_find_spec(names, sizes, mapping, mesh), typed)
