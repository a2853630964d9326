"""The mapping of named axes to mesh axes: its context, and how names, sizes, mapping and mesh give a PartitionSpec.

The current mapping is a `jax.make_user_context` value, hence part of the key of every trace cache of JAX: a function
that is called under another mapping is traced again.

On a mesh with Explicit axes the sharding of an array is part of its type, and JAX refuses an operation whose result
could be laid out in several ways. `settle` decides by name: by the mapping where one is active, otherwise by what the
operands have, where an axis of the result goes before an axis that is summed away.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any, TypeAlias

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from .errors import OperandError, ShardingError, describe, message, suggestion

__all__ = [
    "AxisMapping",
    "MeshAxes",
    "MeshLike",
    "ResourceMapping",
    "agree",
    "axis_mapping",
    "axis_mapping_in",
    "check_keys",
    "check_result",
    "constrain",
    "context_mesh",
    "current_mapping",
    "entries_of",
    "explicit_sharding",
    "has_explicit_axes",
    "laid_out_like",
    "lay_out",
    "note",
    "partition_spec",
    "relayout",
    "resolve_mapping",
    "settle",
    "sharding_from",
    "taking",
]

MeshAxes: TypeAlias = str | Sequence[str] | None
ResourceMapping: TypeAlias = Mapping[str, MeshAxes]
MeshLike: TypeAlias = Mesh | AbstractMesh
Entry = tuple[str, ...]
Names = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class AxisMapping(Mapping[str, Entry]):
    """A mapping in normal form: hashable, each axis name with a tuple of mesh axes.

    Attributes:
        entries: pairs of an axis name and its mesh axes, in the order in which they were given.
        entered: the mappings that were made current inside of the same named_jit, for its check of their keys.
        active: False for a placeholder that carries the other attributes where no mapping is current.
        taken: Explicit mesh axes that a surrounding `vmap` maps over, so that nothing inside can be laid out on them.
    """

    entries: tuple[tuple[str, Entry], ...]
    entered: list["AxisMapping"] = dataclasses.field(default_factory=list, compare=False, repr=False)
    active: bool = True
    taken: Entry = ()

    def __getitem__(self, name: str) -> Entry:
        return dict(self.entries)[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __str__(self) -> str:
        spell = {name: axes[0] if len(axes) == 1 else axes or None for name, axes in self.entries}
        return str(spell)


_current = jax.make_user_context(default_value=None)


def _entering(mapping: AxisMapping) -> AbstractContextManager[Any]:
    context: AbstractContextManager[Any] = _current(mapping)
    return context


def _entry(name: str, axes: MeshAxes) -> Entry:
    several = isinstance(axes, Sequence) and all(isinstance(axis, str) for axis in axes)
    if axes is not None and not several:
        problem = f"axis {name!r} is mapped to {axes!r}"
        raise OperandError(message("axis mapping", problem, hint="map it to a mesh axis, a tuple of them, or None"))
    return (axes,) if isinstance(axes, str) else tuple(axes or ())


def _checked(mapping: ResourceMapping) -> ResourceMapping:
    if not isinstance(mapping, Mapping) or not all(isinstance(name, str) for name in mapping):
        problem = f"a mapping is a dict from axis names to mesh axes, not {mapping!r}"
        raise OperandError(message("axis mapping", problem, hint='write {"batch": "data", "mlp": "model"}'))
    return mapping


def resolve_mapping(mapping: ResourceMapping | None) -> AxisMapping | None:
    """Bring a mapping into normal form; None stands for the current one.

    Raises:
        OperandError: if a key is no axis name, or a value no mesh axis, tuple of mesh axes or None.
    """
    if mapping is None:
        return current_mapping()
    if isinstance(mapping, AxisMapping):
        return mapping
    return AxisMapping(tuple((name, _entry(name, axes)) for name, axes in _checked(mapping).items()))


def current_mapping() -> AxisMapping | None:
    """Return the mapping of the innermost `axis_mapping`, or None."""
    mapping = _current.value
    return mapping if mapping is not None and mapping.active else None


def axis_mapping(mapping: ResourceMapping, *, merge: bool = False, **more: MeshAxes) -> AbstractContextManager[Any]:
    """Make a mapping the current one, inside a `with` block.

    Args:
        mapping: axis names to mesh axes; a tuple of mesh axes shards over all of them, None over none.
        merge: keep the entries of the mapping that is current now; where both have a name, the new one wins.
        more: further entries, by keyword.

    Example:
        >>> with axn.axis_mapping({"batch": "data"}, mlp="model"):
        ...     print(axn.current_mapping())
        {'batch': 'data', 'mlp': 'model'}
    """
    outer = _current.value
    kept = outer.items() if merge and outer else ()
    normal = resolve_mapping({**dict(kept), **dict(_checked(mapping)), **more})
    return axis_mapping_in(normal, [] if outer is None else outer.entered)


def axis_mapping_in(mapping: AxisMapping | None, entered: list[AxisMapping]) -> AbstractContextManager[Any]:
    """Make a mapping, or none, the current one, and list it among those that were entered."""
    taken = () if _current.value is None else _current.value.taken
    if mapping is None:
        return _entering(AxisMapping((), entered, active=False, taken=taken))
    if mapping not in entered:  # a loop over steps enters the same ones again and again
        entered.append(mapping)
    return _entering(AxisMapping(mapping.entries, entered, taken=taken))


def taking(mesh_axes: Entry) -> AbstractContextManager[Any]:
    """Keep what is laid out inside from using Explicit mesh axes that a `vmap` maps over."""
    outer = AxisMapping((), active=False) if _current.value is None else _current.value
    return _entering(dataclasses.replace(outer, taken=(*outer.taken, *mesh_axes)))


def context_mesh(mesh: MeshLike | None = None) -> MeshLike | None:
    """Return the given mesh, or else the one of `jax.set_mesh`, or None."""
    if mesh is not None:
        return mesh
    abstract = jax.sharding.get_abstract_mesh()
    return None if abstract.empty else abstract


def _describe_mesh(mesh: MeshLike) -> str:
    """Spell a mesh as its axes with their sizes."""
    return ", ".join(f"{name}={size}" for name, size in mesh.shape.items())


def _types(mesh: MeshLike) -> dict[str, AxisType]:
    return dict(zip(mesh.axis_names, mesh.axis_types, strict=True))


@lru_cache(8192)
def _remembered(entries: tuple[tuple[str, Entry], ...]) -> set[str]:
    """Names of arrays that were laid out under a mapping; caches of JAX do not run the code again that notes them."""
    del entries
    return set()


def note(mapping: AxisMapping, names: Sequence[str]) -> None:
    """Remember that arrays with these names were laid out under a mapping."""
    _remembered(mapping.entries).update(names)


def check_keys(function: str, mapping: AxisMapping, names: set[str], mesh: MeshLike | None) -> None:
    """Raise ShardingError for a key of the mapping that no array has, or a mesh axis that the mesh does not have.

    Args:
        function: who asks.
        mapping: the mapping.
        names: the names of the arrays at hand; those that were laid out under the mapping count too.
        mesh: the mesh, if there is one.
    """
    known = names | _remembered(mapping.entries)
    for key, entry in mapping.entries:
        for axis in entry:
            if mesh is not None and axis not in mesh.axis_names:
                raise _no_mesh_axis(function, key, axis, mesh, f"mapping: {mapping}")
        if key not in known:
            raise ShardingError(
                message(
                    function,
                    f"the mapping has axis {key!r}, which no array here has",
                    f"mapping: {mapping}",
                    f"axes of the arrays: {', '.join(sorted(known)) or 'none'}",
                    hint=suggestion(key, known) or "pass strict=False where one mapping serves several models",
                )
            )


def _no_mesh_axis(function: str, name: str, axis: str, mesh: MeshLike, *facts: str) -> ShardingError:
    problem = f"axis {name!r} is mapped to {axis!r}, which is no axis of the mesh"
    hint = suggestion(axis, mesh.axis_names)
    return ShardingError(message(function, problem, *facts, f"mesh: {_describe_mesh(mesh)}", hint=hint))


def partition_spec(
    names: Names, shape: tuple[int, ...], mapping: AxisMapping, mesh: MeshLike | None, function: str = "shard"
) -> PartitionSpec:
    """Lay out one array: a PartitionSpec with one entry per dimension; anonymous dimensions are not sharded.

    Axes of the mesh that are Manual (inside of a shard_map) are left out.

    Raises:
        ShardingError: if the mapping names an axis that the mesh does not have, uses one mesh axis twice on this
            array, or does not divide a size.
    """
    return _partition_spec(names, shape, mapping, mesh, function)


@lru_cache(8192)
def _partition_spec(
    names: Names, shape: tuple[int, ...], mapping: AxisMapping, mesh: MeshLike | None, function: str
) -> PartitionSpec:
    table = dict(mapping.entries)
    facts = [f"array has: {describe(names, shape)}", f"mapping: {mapping}"]
    types = {} if mesh is None else _types(mesh)
    sizes = {} if mesh is None else dict(mesh.shape)
    mesh_facts = [] if mesh is None else [f"mesh: {_describe_mesh(mesh)}"]
    used: dict[str, str] = {}
    spec: list[str | Entry | None] = [None] * (len(shape) - len(names))
    for name, size in zip(names, shape[len(spec) :], strict=True):
        entry = table.get(name, ())
        for axis in entry:
            if mesh is not None and axis not in types:
                raise _no_mesh_axis(function, name, axis, mesh, *facts)
        entry = tuple(axis for axis in entry if types.get(axis) is not AxisType.Manual)
        for axis in entry:
            if axis in used:
                problem = f"mesh axis {axis!r} would shard both {used[axis]!r} and {name!r} of one array"
                hint = f"map one of the two elsewhere, or rename it on this array: x.rename({{{name!r}: ...}})"
                raise ShardingError(message(function, problem, *facts, *mesh_facts, hint=hint))
            used[axis] = name
        ways = math.prod(sizes.get(axis, 1) for axis in entry)
        if size % ways:
            problem = f"{name}={size} cannot be split evenly in {ways} over mesh axis {', '.join(entry)}"
            hint = f"use a multiple of {ways}, as round_axis_for_partitioning does, or map {name!r} to None"
            raise ShardingError(message(function, problem, *facts, *mesh_facts, hint=hint))
        spec.append(entry[0] if len(entry) == 1 else entry or None)
    return PartitionSpec(*spec)


def _as_entry(part: Any) -> Entry:
    return (part,) if isinstance(part, str) else tuple(part or ())


def _only(spec: Iterable[Any], types: Mapping[str, AxisType], kind: AxisType) -> PartitionSpec:
    parts = [tuple(axis for axis in _as_entry(part) if types[axis] is kind) for part in spec]
    return PartitionSpec(*(part[0] if len(part) == 1 else part or None for part in parts))


def constrain(array: jax.Array, names: Names, mapping: AxisMapping, mesh: MeshLike) -> jax.Array:
    """Lay out an array in the middle of a computation, in whichever mode each mesh axis is."""
    note(mapping, names)
    spec = partition_spec(names, array.shape, mapping, mesh)
    types = _types(mesh)
    kinds = set(types.values())
    if AxisType.Explicit in kinds:
        explicit = _only(spec, types, AxisType.Explicit)
        if entries_of(array) != tuple(map(_as_entry, explicit)):
            array = jax.reshard(array, NamedSharding(mesh, explicit))
    if AxisType.Auto in kinds:
        array = jax.lax.with_sharding_constraint(array, NamedSharding(mesh, _only(spec, types, AxisType.Auto)))
    return array


def check_result(names: Names, sizes: Mapping[str, int]) -> None:
    """Raise ShardingError, before it is computed, for a result that the current mapping cannot lay out."""
    mapping, mesh = current_mapping(), context_mesh()
    if mapping is not None and mesh is not None:
        partition_spec(names, tuple(sizes[name] for name in names), mapping, mesh)


def lay_out(array: jax.Array, names: Names) -> jax.Array:
    """Lay out a result by the current mapping and mesh; without either, leave it as it is."""
    mapping, mesh = current_mapping(), context_mesh()
    if mapping is None or mesh is None:
        return array
    return constrain(array, names, mapping, mesh)


def has_explicit_axes(array: Any) -> bool:
    """Tell whether the type of an array knows its sharding."""
    return AxisType.Explicit in jax.typeof(array).sharding.mesh.axis_types


def entries_of(array: jax.Array) -> tuple[Entry, ...]:
    """Return the mesh axes of each dimension, as the type of the array has them."""
    return tuple(map(_as_entry, jax.typeof(array).sharding.spec))


def sharding_from(array: jax.Array, entries: Sequence[Entry]) -> NamedSharding:
    """Make a sharding on the mesh of an array, or on the current one if the array was made without a mesh."""
    parts = (entry[0] if len(entry) == 1 else entry or None for entry in entries)
    mesh = jax.typeof(array).sharding.mesh
    return NamedSharding(jax.sharding.get_abstract_mesh() if mesh.empty else mesh, PartitionSpec(*parts))


def explicit_sharding(names: Names, sizes: tuple[int, ...]) -> PartitionSpec | None:
    """Lay out an array that is about to be made, where the mesh has Explicit axes; None leaves it to JAX."""
    mapping, mesh = current_mapping(), context_mesh()
    if mapping is None or mesh is None or AxisType.Explicit not in mesh.axis_types:
        return None
    note(mapping, names)
    return _only(partition_spec(names, sizes, mapping, mesh), _types(mesh), AxisType.Explicit)


def relayout(array: jax.Array, entries: Sequence[Entry]) -> jax.Array:
    """Move an array with an explicit sharding to another one, where it differs."""
    if entries_of(array) == tuple(entries):
        return array
    moved: jax.Array = jax.reshard(array, sharding_from(array, entries))
    return moved


def settle(
    labels: Sequence[Any],
    operands: Sequence[tuple[Sequence[Any], Sequence[Entry]]],
    mapping: Mapping[str, Entry] | None = None,
) -> dict[Any, Entry]:
    """Choose the mesh axes of each label so that no mesh axis is used twice.

    Args:
        labels: the labels to place; earlier ones choose first.
        operands: for each operand its labels and what they have now; earlier operands count more.
        mapping: where given, it decides the labels that it has.
    """
    table: dict[Any, Entry] = {}
    used = set() if _current.value is None else set(_current.value.taken)
    mesh = context_mesh()
    types = {} if mesh is None else _types(mesh)
    for label in labels:
        offers = [entries[list(own).index(label)] for own, entries in operands if label in own]
        wanted = next((entry for entry in offers if entry), ())
        if mapping is not None and isinstance(label, str) and label in mapping:
            wanted = tuple(axis for axis in mapping[label] if types.get(axis) is AxisType.Explicit)
        table[label] = tuple(axis for axis in wanted if axis not in used)
        used.update(table[label])
    return table


def agree(
    labels: Sequence[Any], operands: Sequence[Sequence[Any]], arrays: Sequence[Any], mapping: AxisMapping | None = None
) -> tuple[list[Any], Entry]:
    """On a mesh with Explicit axes, lay out dimensions of one label alike, for a `vmap` over them.

    Args:
        labels: the labels that are mapped over.
        operands: for each array the labels of its dimensions; other dimensions have any other label.
        arrays: the arrays.
        mapping: where given, it decides the labels that it has.

    Returns:
        The arrays, whose other dimensions have left the mesh axes of the labels, and these mesh axes.
    """
    if not any(map(has_explicit_axes, arrays)):
        return list(arrays), ()
    entries = [entries_of(array) for array in arrays]
    table = settle(labels, list(zip(operands, entries, strict=True)), mapping)
    used = tuple(axis for entry in table.values() for axis in entry)
    moved = []
    for array, own, has in zip(arrays, operands, entries, strict=True):
        free = [tuple(axis for axis in entry if axis not in used) for entry in has]
        wanted = [table.get(label, entry) for label, entry in zip(own, free, strict=True)]
        moved.append(relayout(jax.numpy.asarray(array), wanted) if wanted != list(has) else array)
    return moved, used


def laid_out_like(array: jax.Array, other: jax.Array) -> jax.Array:
    """On a mesh with Explicit axes, move an array to the layout of another one of its shape."""
    return relayout(array, entries_of(other)) if has_explicit_axes(other) else array
