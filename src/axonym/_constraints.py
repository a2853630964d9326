"""Lay arrays out: constraints for the compiler on Auto mesh axes, types on Explicit ones.

On a mesh with Explicit axes the sharding of an array is part of its type, and an operation whose result could be laid
out in several ways is an error in JAX. `settle` decides by name: by the mapping if one is active, otherwise by the
layouts of the operands.
"""

import inspect
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import Tracer
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from .errors import ShardingError, describe, message
from .layout import (
    AxisMapping,
    Entry,
    MeshLike,
    context_mesh,
    current,
    current_mapping,
    entries_in,
    looked_up,
    mapped,
    mesh_types,
    note,
    partition_spec,
    spec_from,
    taken_axes,
)
from .plans import Names

__all__ = [
    "INLINE",
    "agree",
    "check_one_mesh",
    "check_result",
    "claim",
    "constrain",
    "constrain_auto",
    "decided",
    "elsewhere",
    "entries_of",
    "explicit_sharding",
    "free_axes",
    "has_explicit_axes",
    "is_elsewhere",
    "laid_out_like",
    "lay_out",
    "off_taken_axes",
    "on_one_mesh",
    "relayout",
    "settle",
    "sharding_from",
    "tracing",
    "unsplit_if_empty",
    "untyped",
    "varying",
]

# The option that inlines a `jax.jit` into a surrounding program; from jax 0.12 on, True leaves it to the compiler.
INLINE: Any = getattr(getattr(jax, "Inline", None), "JAX_EARLY", True)


def _spec(
    names: Names, shape: tuple[int, ...], mapping: AxisMapping, mesh: MeshLike, function: str = "shard"
) -> PartitionSpec:
    """Return the spec of one array; during a check, errors are collected and the array is replicated."""
    note(mapping, names)
    audit = current().audit
    if audit is None:
        spec = partition_spec(names, shape, mapping, mesh, function)
        return PartitionSpec(*[None] * len(shape)) if _is_empty(shape) else spec
    try:
        spec = partition_spec(names, shape, mapping, mesh)
    except ShardingError as error:
        audit.problems.append(error)
        spec = PartitionSpec(*[None] * len(shape))
    audit.arrays.append((names, shape, spec))
    return spec


def _is_empty(shape: Sequence[int]) -> bool:
    return 0 in shape


def unsplit_if_empty(results: Any) -> Any:
    """On a mesh with Explicit axes, undo the split of results without elements.

    XLA leaves them whole whatever their layout, and JAX 0.10 then cannot fetch or print what a program returns
    (tests/upstream/test_empty_arrays.py).
    """

    def unsplit(result: Any) -> Any:
        empty = isinstance(result, jax.Array) and _is_empty(result.shape)
        return relayout(result, [()] * result.ndim) if empty else result

    return unsplit(results) if isinstance(results, jax.Array) else jax.tree.map(unsplit, results)


def _only(spec: PartitionSpec, types: Mapping[str, AxisType], kind: AxisType) -> PartitionSpec:
    """Keep the mesh axes of one type, except those that a surrounding `vmap` maps over."""
    kept = {axis for axis, own in types.items() if own is kind and axis not in taken_axes()}
    return spec_from([tuple(axis for axis in entry if axis in kept) for entry in entries_in(spec)])


def constrain(
    array: jax.Array, names: Names, mapping: AxisMapping, mesh: MeshLike, function: str = "shard"
) -> jax.Array:
    """Lay out an array within a computation, by the mode of each mesh axis."""
    spec = _spec(names, array.shape, mapping, mesh, function)
    types = mesh_types(mesh)
    explicit, auto = (NamedSharding(mesh, _only(spec, types, kind)) for kind in (AxisType.Explicit, AxisType.Auto))
    kinds = set(types.values())
    if is_elsewhere(array, mesh):
        raise elsewhere(function, "an array", array, names, mesh)
    if kinds >= {AxisType.Explicit, AxisType.Auto}:
        array = _constrain_both(array, explicit, auto)
    elif AxisType.Explicit in kinds:
        array = relayout(array, entries_in(explicit.spec), is_asked=True)
    elif AxisType.Auto in kinds:
        array = constrain_auto(array, auto)
    return array


def is_elsewhere(array: Any, mesh: MeshLike) -> bool:
    """Return whether an array lies on another mesh than this one, by its type.

    With Auto axes, JAX would compute all the same, and lay the result out by the wrong mesh or not at all. Inside a
    shard_map, the types of mesh axes change; there, JAX compares the meshes itself.
    """
    own = jax.typeof(array).sharding.mesh
    if own is mesh or own.empty or AxisType.Manual in (*own.axis_types, *mesh.axis_types):
        return False
    return (own.shape_tuple, own.axis_types) != (mesh.shape_tuple, mesh.axis_types)


def elsewhere(function: str, what: str, array: Any, names: Names, mesh: MeshLike) -> ShardingError:
    """Build the error of an array on another mesh."""
    own = jax.typeof(array).sharding.mesh
    problem = f"{what} is on another mesh than the current one"
    facts = (f"array has: {describe(names, array.shape)}", f"its mesh: {_typed(own)}", f"mesh: {_typed(mesh)}")
    return ShardingError(message(function, problem, *facts, hint=_MOVE))


_MOVE = "move it first, outside of jit: axn.shard(x, mapping)"


def check_one_mesh(arrays: Iterable[Any]) -> None:
    """Check that the operands of an operation lie on the current mesh; without a current mesh, on one.

    Raises:
        ShardingError: if one does not.
    """
    mesh: MeshLike | None = context_mesh()
    for array in arrays:
        own = jax.typeof(array).sharding.mesh
        if mesh is None and not own.empty:
            mesh = own
        if mesh is not None and is_elsewhere(array, mesh):
            problem = "an operand is on another mesh than the "
            problem += "current one" if context_mesh() is not None else "one before it"
            shape = f"its shape: {jnp.shape(array)}"
            facts = (shape, f"its mesh: {_typed(own)}", f"mesh: {_typed(mesh)}")
            raise ShardingError(message("mesh", problem, *facts, hint=_MOVE))


def _typed(mesh: MeshLike) -> str:
    return ", ".join(f"{axis}={mesh.shape[axis]} ({kind.name})" for axis, kind in mesh_types(mesh).items())


@partial(jax.jit, static_argnums=1, inline=INLINE)
def constrain_auto(array: jax.Array, auto: NamedSharding) -> jax.Array:
    """Apply the constraint under jit; eagerly, it is an error for an array that is not on the mesh yet."""
    constrained: jax.Array = jax.lax.with_sharding_constraint(array, auto)
    return constrained


@partial(jax.jit, static_argnums=(1, 2))
def _constrain_both(array: jax.Array, explicit: NamedSharding, auto: NamedSharding) -> jax.Array:
    """Apply both on a mixed mesh; outside jit, the second step would undo the first."""
    moved: jax.Array = jax.lax.with_sharding_constraint(relayout(array, entries_in(explicit.spec), is_asked=True), auto)
    return moved


def check_result(names: Names, sizes: Mapping[str, int]) -> None:
    """Raise ShardingError, before computing it, for a result that the current mapping cannot lay out."""
    mapping, mesh = current_mapping(), context_mesh()
    if mapping is not None and mesh is not None:
        _spec(names, tuple(sizes[name] for name in names), mapping, mesh)


def decided(names: Names, sizes: Mapping[Any, int]) -> dict[str, Entry] | None:
    """Return the mesh axes that the current mapping gives to axes of a result; None without mapping or mesh."""
    mapping, mesh = current_mapping(), context_mesh()
    if mapping is None or mesh is None:
        return None
    entries = entries_in(_spec(names, tuple(sizes[name] for name in names), mapping, mesh))
    known = mapped(names)
    return {name: entry for name, entry in zip(names, entries, strict=True) if name in known}


def lay_out(array: jax.Array, names: Names) -> jax.Array:
    """Lay out a result by the current mapping and mesh; without either, leave it as it is."""
    mapping, mesh = current_mapping(), context_mesh()
    if mapping is None or mesh is None:
        return array
    return constrain(array, names, mapping, mesh)


def has_explicit_axes(array: Any) -> bool:
    """Return whether the type of an array includes its sharding."""
    return AxisType.Explicit in jax.typeof(array).sharding.mesh.axis_types


def on_one_mesh(arrays: Sequence[Any]) -> Sequence[Any]:
    """Without a current mesh, move arrays that have no mesh to that of the others."""
    if not jax.sharding.get_abstract_mesh().empty:
        return arrays
    meshes = [jax.typeof(array).sharding.mesh for array in arrays]
    there, mesh = next((array, mesh) for array, mesh in zip(arrays, meshes, strict=True) if not mesh.empty)

    def move(array: Any) -> Any:
        if isinstance(array, Tracer) or isinstance(there, Tracer):
            return jax.reshard(array, NamedSharding(mesh, PartitionSpec()))
        return jax.device_put(array, NamedSharding(there.sharding.mesh, PartitionSpec()))  # the devices are unknown

    return [
        move(array) if own.empty and jax.numpy.ndim(array) else array for array, own in zip(arrays, meshes, strict=True)
    ]


def entries_of(array: jax.Array) -> tuple[Entry, ...]:
    """Return the mesh axes of each dimension, from the type of the array."""
    return tuple(entries_in(jax.typeof(array).sharding.spec))


def sharding_from(array: jax.Array, entries: Sequence[Entry]) -> NamedSharding:
    """Make a sharding on the mesh of an array, or on the current one if the array has none.

    Mesh axes that a surrounding `vmap` maps over are left out: arrays that it does not map may be sharded over them.
    """
    mesh = jax.typeof(array).sharding.mesh
    return NamedSharding(jax.sharding.get_abstract_mesh() if mesh.empty else mesh, spec_from(_without_taken(entries)))


def _without_taken(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    taken = taken_axes()
    return tuple(tuple(axis for axis in entry if axis not in taken) for entry in entries) if taken else tuple(entries)


def explicit_sharding(names: Names, sizes: tuple[int, ...]) -> PartitionSpec | None:
    """Return the sharding for a new array if the mesh has Explicit axes; None leaves it to JAX."""
    mapping, mesh = current_mapping(), context_mesh()
    if mapping is None or mesh is None or AxisType.Explicit not in mesh.axis_types:
        return None
    return _only(_spec(names, sizes, mapping, mesh), mesh_types(mesh), AxisType.Explicit)


def relayout(
    array: jax.Array, entries: Sequence[Entry], names: Sequence[Any] = (), *, is_asked: bool = False
) -> jax.Array:
    """Reshard an array with an explicit sharding, if it differs.

    Args:
        array: the array.
        entries: the mesh axes of each dimension.
        names: its names, where they are known, for `limit_reshards`.
        is_asked: whether the user asked for this layout, so that `limit_reshards` says nothing.
    """
    if entries_of(array) == _without_taken(entries):
        return array
    if current().reshard_limit is not None and not is_asked:
        _report_move(array, _without_taken(entries), tuple(name for name in names if isinstance(name, str)))
    moved: jax.Array = jax.reshard(array, sharding_from(array, entries))
    return moved


def _report_move(array: jax.Array, wanted: Sequence[Entry], names: Names) -> None:
    """Report, as `limit_reshards` says, that an operation sends a large array from device to device.

    Nothing is sent where each device keeps a part of what it has. The layout of the current mapping was asked for.
    """
    own, limit = entries_of(array), current().reshard_limit
    nbytes = math.prod(array.shape) * array.dtype.itemsize
    if not own or limit is None or nbytes <= limit:
        return
    if all(new[: len(old)] == old for old, new in zip(own, wanted, strict=True)):
        return
    if current_mapping() is not None and len(names) == array.ndim:
        asked = mapped(names)
        if [asked.get(name, ()) for name in names] == list(wanted):
            return
    before, after = spec_from(own), spec_from(wanted)
    problem = f"an operation moves an array of {nbytes:,} bytes between devices, though nobody asked for it"
    facts = (
        f"array has: {describe(names, array.shape)}",
        f"its layout: {before}, then {after}",
        f"limit: {limit:,} bytes",
        f"in: {users_line()[0]}",
    )
    hint = "lay it out before, by axn.shard or the mapping; or write that it may move: axn.shard(x, {...})"
    text = message("limit_reshards", problem, *facts, hint=hint)
    if current().reshard_action == "error":
        raise ShardingError(text)
    warnings.warn(text, stacklevel=users_line()[1])


def users_line() -> tuple[str, int]:
    """Return the innermost line of the user's code that is running, and how many frames are above it."""
    ours = {"axonym", "jax", "jaxlib", "equinox", "contextlib", "functools"}
    frame, depth = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ours:
        frame, depth = frame.f_back, depth + 1
    if frame is None:
        return "JAX", 1
    return f"{frame.f_code.co_name}, {frame.f_code.co_filename}, line {frame.f_lineno}", depth


def settle(
    labels: Sequence[Any],
    operands: Sequence[tuple[Sequence[Any], Sequence[Entry]]],
    decided: Mapping[str, Entry] | None = None,
) -> dict[Any, Entry]:
    """Choose the mesh axes of each label so that no mesh axis is used twice.

    If operands disagree, or two labels need one mesh axis, the current mapping decides. After that, earlier operands
    and earlier labels take precedence.

    Args:
        labels: the labels to lay out.
        operands: for each operand its labels and their present mesh axes.
        decided: mesh axes of labels that do not follow the operands.
    """
    mapping, mesh = current_mapping(), context_mesh()
    entries = {} if mapping is None else dict(mapping.entries)
    types = {} if mesh is None else mesh_types(mesh)
    mapped, wanted = {}, {}
    for label in labels:
        given = (looked_up(entries, label) or ()) if isinstance(label, str) else ()
        mapped[label] = tuple(axis for axis in given if types.get(axis) is AxisType.Explicit)
        offers = [own for own in (has[list(of).index(label)] for of, has in operands if label in of) if own]
        wanted[label] = mapped[label] if mapped[label] in offers else (*offers, ())[0]
        if decided is not None and label in decided:
            wanted[label] = tuple(axis for axis in decided[label] if types.get(axis) is AxisType.Explicit)

    def rank(label: Any) -> tuple[bool, bool]:
        return not set(wanted[label]) & set(mapped[label]), label not in entries

    table: dict[Any, Entry] = {}
    used = set(taken_axes())
    for label in sorted(labels, key=rank):
        table[label] = tuple(axis for axis in wanted[label] if axis not in used)
        used.update(table[label])
    return {label: table[label] for label in labels}


def free_axes(mesh: MeshLike, used: Iterable[str] = ()) -> dict[str, int]:
    """Return the sizes of the Explicit mesh axes that are neither used nor mapped over by a surrounding `vmap`."""
    away = {*used, *taken_axes()}
    explicit = (axis for axis, kind in mesh_types(mesh).items() if kind is AxisType.Explicit)
    return {axis: mesh.shape[axis] for axis in explicit if axis not in away}


def claim(entry: Entry, size: int, free: dict[str, int]) -> Entry:
    """Take mesh axes of an entry from the free ones: from the first on, as many as divide a size."""
    fits = tuple(axis for axis in entry if axis in free)
    while size % math.prod(free[axis] for axis in fits):
        fits = fits[:-1]
    for axis in fits:
        del free[axis]
    return fits


def off_taken_axes(array: jax.Array) -> jax.Array:
    """Remove from a sharding the mesh axes that a surrounding `vmap` maps over, so that mapped arrays can use them."""
    return relayout(array, entries_of(array))


def agree(
    labels: Sequence[Any],
    operands: Sequence[Sequence[Any]],
    arrays: Sequence[Any],
    decided: Mapping[str, Entry] | None = None,
) -> tuple[list[Any], Entry]:
    """On a mesh with Explicit axes, lay out dimensions with the same label alike, for a `vmap` over them.

    Args:
        labels: the labels that are mapped over.
        operands: for each array the labels of its dimensions; other dimensions have any other label.
        arrays: the arrays.
        decided: mesh axes of labels that do not follow the arrays.

    Returns:
        The arrays, whose other dimensions no longer use the mesh axes of the labels, and these mesh axes.
    """
    if not any(map(has_explicit_axes, arrays)):
        return list(arrays), ()
    arrays = on_one_mesh(arrays)
    entries = [entries_of(array) for array in arrays]
    table = settle(labels, list(zip(operands, entries, strict=True)), decided)
    used = tuple(axis for entry in table.values() for axis in entry)
    moved = []
    for array, own, has in zip(arrays, operands, entries, strict=True):
        free = [tuple(axis for axis in entry if axis not in used) for entry in _without_taken(has)]
        wanted = [table.get(label, entry) for label, entry in zip(own, free, strict=True)]
        moved.append(relayout(jax.numpy.asarray(array), wanted, own) if wanted != list(has) else array)
    return moved, used


def laid_out_like(array: jax.Array, other: jax.Array) -> jax.Array:
    """On a mesh with Explicit axes, give an array the layout of another array of the same shape."""
    entries = entries_of(other)
    if not has_explicit_axes(other) or entries_of(array) == entries:
        return array
    if current().reshard_limit is not None and has_explicit_axes(array):
        _report_move(array, entries, ())
    moved: jax.Array = jax.reshard(array, NamedSharding(jax.typeof(other).sharding.mesh, spec_from(entries)))
    return moved


def untyped(fn: Callable[..., Any], mesh: MeshLike, out_sharding: Any) -> Callable[..., Any]:
    """Make a function in which the Explicit axes of a mesh are Auto, so that the compiler decides on layouts."""
    explicit = tuple(axis for axis, kind in mesh_types(mesh).items() if kind is AxisType.Explicit)
    call: Callable[..., Any] = jax.sharding.auto_axes(fn, axes=explicit, out_sharding=out_sharding)
    # An eager gradient of a shard_map cannot change the types of mesh axes outside jit.
    return jax.jit(call) if AxisType.Manual in mesh.axis_types else call


def tracing() -> bool:
    """Return whether operations are being traced; in an eager gradient or `vmap` they run at once."""
    try:
        return isinstance(jnp.asarray(0.0), Tracer)
    except jax.errors.JaxRuntimeError:  # of `jax.transfer_guard`, which only eager transfers meet
        return False


def varying(array: jax.Array, mesh_axes: Iterable[str]) -> jax.Array:
    """Inside a shard_map, mark the type of an array as varying over mesh axes."""
    missing = tuple(axis for axis in sorted(mesh_axes) if axis not in jax.typeof(array).mat.varying)
    return lax.pcast(array, missing, to="varying") if missing else array
