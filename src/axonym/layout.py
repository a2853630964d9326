"""The mapping of named axes to mesh axes: its context, and how names, sizes, mapping and mesh give a PartitionSpec.

The current mapping is a `jax.make_user_context` value, so it is part of the key of every trace cache of JAX: a function
that is called under another mapping is traced again.

A *derived* name is a base and a role with a dot between them, such as `embed.out` or `position.key`. Without its own
entry, it is laid out like its base, on mesh axes that the other axes of the array leave free.
"""

import dataclasses
import fnmatch
import math
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, PartitionSpec

from .errors import OperandError, ShardingError, describe, message, suggestion
from .plans import Names

__all__ = [
    "Audit",
    "AxisMapping",
    "Entry",
    "Mappings",
    "MeshAxes",
    "MeshLike",
    "ResourceMapping",
    "Scope",
    "axis_mapping",
    "axis_mapping_in",
    "check_keys",
    "context_mesh",
    "current_mapping",
    "current_scope",
    "describe_mesh",
    "entries_for",
    "entries_in",
    "hiding",
    "looked_up",
    "mapped",
    "matches",
    "mesh_types",
    "note",
    "partition_spec",
    "path_text",
    "resolve_mapping",
    "spec_from",
    "taken_axes",
    "taking",
    "ways_on",
    "with_bases",
]

T = TypeVar("T")
MeshAxes: TypeAlias = str | Sequence[str] | None
ResourceMapping: TypeAlias = Mapping[str, MeshAxes]
MeshLike: TypeAlias = Mesh | AbstractMesh
Entry = tuple[str, ...]


class Audit:
    """Collect layouts and their errors while a function is traced, instead of stopping at the first error.

    Attributes:
        arrays: names, shape and spec of each array that was laid out.
        problems: the errors.
    """

    def __init__(self) -> None:
        self.arrays: list[tuple[Names, tuple[int, ...], PartitionSpec]] = []
        self.problems: list[ShardingError] = []


@dataclasses.dataclass(frozen=True)
class AxisMapping(Mapping[str, Entry]):
    """A mapping in normal form: hashable, each axis name with a tuple of mesh axes.

    Attributes:
        entries: pairs of an axis name and its mesh axes, in the order in which they were given.
        entered: the mappings that were made current inside the same named_jit, for its check of their keys.
        active: False for a placeholder that carries the other attributes where no mapping is current.
        taken: Explicit mesh axes that a surrounding `vmap` maps over, so that nothing inside can be laid out on them.
        audit: collects layouts and errors while a check runs; it makes JAX trace again.
        scope: the surrounding shard_map.
    """

    entries: tuple[tuple[str, Entry], ...]
    entered: list["AxisMapping"] = dataclasses.field(default_factory=list, compare=False, repr=False)
    active: bool = dataclasses.field(default=True, repr=False)
    taken: Entry = dataclasses.field(default=(), repr=False)
    audit: Audit | None = dataclasses.field(default=None, repr=False)
    scope: "Scope | None" = dataclasses.field(default=None, repr=False)

    def __getitem__(self, name: str) -> Entry:
        return dict(self.entries)[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __str__(self) -> str:
        spell = {name: axes[0] if len(axes) == 1 else axes or None for name, axes in self.entries}
        return str(spell)


@dataclasses.dataclass(frozen=True, init=False)
class Mappings:
    """The mapping by which parameters are stored, and the one by which a model computes.

    An argument or result with an axis that `compute` maps and `parameters` does not list, such as the batch, is data,
    and laid out by `compute`. All others are stored by `parameters`.

    Attributes:
        parameters: for parameters, gradients and optimiser state.
        compute: for activations and data; by default the same.
        overrides: entries that replace those of `parameters` for some arrays, by patterns of their paths. A pattern is
            a run of path components with dots between them and may have wildcards: `embeddings`, `mlp.*.weight`.

    Example:
        >>> fsdp = axn.Mappings({"embed": "data"}, {"batch": "data"})
        >>> fsdp.of(("batch", "embed")), fsdp.of(("embed", "mlp"))
        (AxisMapping(entries=(('batch', ('data',)),)), AxisMapping(entries=(('embed', ('data',)),)))
    """

    parameters: AxisMapping
    compute: AxisMapping
    overrides: tuple[tuple[str, AxisMapping], ...]

    def __init__(
        self,
        parameters: ResourceMapping,
        compute: ResourceMapping | None = None,
        overrides: Mapping[str, ResourceMapping] | None = None,
    ) -> None:
        stored = _normal(parameters)
        object.__setattr__(self, "parameters", stored)
        object.__setattr__(self, "compute", stored if compute is None else _normal(compute))
        rules = tuple((pattern, _normal(mapping)) for pattern, mapping in (overrides or {}).items())
        object.__setattr__(self, "overrides", rules)

    def of(self, names: Names, path: str = "") -> AxisMapping:
        """Return the mapping for an array with these names, at this path (`layers.0.weight`) of its tree."""
        listed, computed = dict(self.parameters.entries), dict(self.compute.entries)
        if any(looked_up(computed, name) and looked_up(listed, name) is None for name in names):
            return self.compute
        for pattern, extra in self.overrides:
            if matches(pattern, path):
                listed.update(extra.entries)
        return AxisMapping(tuple(listed.items()))

    def __str__(self) -> str:
        return f"parameters {self.parameters}, compute {self.compute}"


def path_text(keys: Any) -> str:
    """Write the keys of a leaf of a tree as a path, such as `layers.0.weight`."""
    return jax.tree_util.keystr(keys, simple=True, separator=".")


def matches(pattern: str, path: str) -> bool:
    """Return whether a pattern of `Mappings` matches a path."""
    parts, run = path.split("."), pattern.split(".")
    windows = (parts[i : i + len(run)] for i in range(len(parts) - len(run) + 1))
    return any(all(map(fnmatch.fnmatchcase, window, run)) for window in windows)


@dataclasses.dataclass(frozen=True)
class Scope:
    """What collectives inside a shard_map know about it.

    Attributes:
        mappings: its mappings.
        sizes: the axes of its arguments, with their global sizes.
        hidden: axes that a surrounding `vmap` or `nmap` maps over.
        looped: axes that a surrounding loop runs along.
    """

    mappings: Mappings
    sizes: frozenset[tuple[str, int]]
    hidden: frozenset[str] = frozenset()
    looped: frozenset[str] = frozenset()

    @property
    def names(self) -> frozenset[str]:
        """The names of the axes of the arguments."""
        return frozenset(name for name, _ in self.sizes)

    @property
    def is_in_data(self) -> bool:
        """Whether a surrounding map or loop runs along an axis of data, so that arrays inside may lack it."""
        return self.is_data((*self.hidden, *self.looped))

    def is_data(self, names: Iterable[str]) -> bool:
        """Return whether an array with these names is data, not a parameter."""
        return self.mappings.of(tuple(names)) == self.mappings.compute


def looked_up(table: Mapping[str, T], name: str) -> T | None:
    """Return the entry of a name, or of its bases, or None."""
    return next((table[base] for base in _bases(name) if base in table), None)


_current = jax.make_user_context(default_value=None)


class _Entering(AbstractContextManager[None]):
    """A block in which a mapping is current; one object may be entered again inside itself and in other threads.

    A context of JAX stores the previous value on itself, so each entry makes a new one.
    """

    def __init__(self, mapping: AxisMapping) -> None:
        self._mapping = mapping
        self._entered = threading.local()

    def __enter__(self) -> None:
        context = _current(self._mapping)
        context.__enter__()
        self._entered.__dict__.setdefault("contexts", []).append(context)

    def __exit__(self, *raised: Any) -> None:
        self._entered.contexts.pop().__exit__(*raised)


def _entry(name: str, axes: MeshAxes) -> Entry:
    several = isinstance(axes, Sequence) and all(isinstance(axis, str) for axis in axes)
    if axes is not None and not several:
        problem = f"axis {name!r} is mapped to {axes!r}"
        raise OperandError(message("axis mapping", problem, hint="map it to a mesh axis, a tuple of them, or None"))
    return (axes,) if isinstance(axes, str) else tuple(axes or ())


def _checked(mapping: ResourceMapping) -> ResourceMapping:
    if isinstance(mapping, Mappings):
        problem = "expected one mapping, not the two of Mappings"
        raise OperandError(message("axis mapping", problem, hint="pass its `parameters` or its `compute`"))
    if not isinstance(mapping, Mapping) or not all(isinstance(name, str) for name in mapping):
        problem = f"a mapping must be a dict from axis names to mesh axes, not {mapping!r}"
        raise OperandError(message("axis mapping", problem, hint='write {"batch": "data", "mlp": "model"}'))
    return mapping


def resolve_mapping(mapping: ResourceMapping | None) -> AxisMapping | None:
    """Bring a mapping into normal form; None stands for the current one.

    Raises:
        OperandError: if a key is not an axis name, or a value not a mesh axis, tuple of mesh axes or None.
    """
    if mapping is None:
        return current_mapping()
    return _normal(mapping)


def _normal(mapping: ResourceMapping) -> AxisMapping:
    if isinstance(mapping, AxisMapping):
        return mapping
    return AxisMapping(tuple((name, _entry(name, axes)) for name, axes in _checked(mapping).items()))


def current_mapping() -> AxisMapping | None:
    """Return the mapping of the innermost `axis_mapping`, or None."""
    mapping = _current.value
    return mapping if mapping is not None and mapping.active else None


def mapped(names: Iterable[str]) -> dict[str, Entry]:
    """Look up names in the current mapping; leave out those without an entry for them or a base."""
    entries = {name: looked_up(current_mapping() or {}, name) for name in names}
    return {name: entry for name, entry in entries.items() if entry is not None}


def axis_mapping(mapping: ResourceMapping, *, merge: bool = False, **more: MeshAxes) -> AbstractContextManager[Any]:
    """Make a mapping the current one, inside a `with` block.

    Args:
        mapping: axis names to mesh axes; a tuple of mesh axes shards over all of them, None over none.
        merge: keep the entries of the current mapping; where both have a name, the new one wins.
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
    outer = _surroundings()
    if mapping is not None and mapping not in entered:  # loops enter the same ones repeatedly
        entered.append(mapping)
    inner = AxisMapping((), active=False) if mapping is None else mapping
    audit, scope = inner.audit or outer.audit, inner.scope or outer.scope
    return _Entering(AxisMapping(inner.entries, entered, inner.active, outer.taken, audit, scope))


def taking(mesh_axes: Entry) -> AbstractContextManager[Any]:
    """Prevent layouts inside from using Explicit mesh axes that a `vmap` maps over."""
    if not mesh_axes:
        return nullcontext()
    outer = _surroundings()
    return _Entering(dataclasses.replace(outer, taken=(*outer.taken, *mesh_axes)))


def hiding(names: Iterable[str], *, loop: bool = False) -> AbstractContextManager[Any]:
    """Tell collectives inside a shard_map about axes that a `vmap` or `nmap` maps over, or a loop runs along."""
    outer = _surroundings()
    if outer.scope is None:
        return nullcontext()
    kind = "looped" if loop else "hidden"
    more = getattr(outer.scope, kind) | set(names)
    return _Entering(dataclasses.replace(outer, scope=dataclasses.replace(outer.scope, **{kind: more})))


def current_scope() -> Scope | None:
    """Return the scope of the surrounding shard_map."""
    return _surroundings().scope


def taken_axes() -> Entry:
    """Return the Explicit mesh axes that surrounding `vmap`s map over."""
    return _surroundings().taken


def _surroundings() -> AxisMapping:
    return AxisMapping((), active=False) if _current.value is None else _current.value


def context_mesh(mesh: MeshLike | None = None) -> MeshLike | None:
    """Return the given mesh, otherwise the one of `jax.set_mesh`, or None.

    Raises:
        OperandError: if the argument is not a mesh.
    """
    if mesh is not None:
        if not isinstance(mesh, Mesh | AbstractMesh):
            hint = 'write jax.make_mesh((4, 2), ("data", "model"))'
            raise OperandError(message("mesh", f"a mesh must be a Mesh or an AbstractMesh, not {mesh!r}", hint=hint))
        return mesh
    abstract = jax.sharding.get_abstract_mesh()
    return None if abstract.empty else abstract


def describe_mesh(mesh: MeshLike) -> str:
    """Write a mesh as its axes with their sizes."""
    return ", ".join(f"{name}={size}" for name, size in mesh.shape.items())


def ways_on(mesh: MeshLike, entry: Entry) -> int:
    """Return the number of parts into which mesh axes split a dimension."""
    return math.prod(mesh.shape[axis] for axis in entry)


def mesh_types(mesh: MeshLike) -> dict[str, AxisType]:
    """Return the type of each axis of a mesh."""
    return dict(zip(mesh.axis_names, mesh.axis_types, strict=True))


@lru_cache(8192)
def _remembered(entries: tuple[tuple[str, Entry], ...]) -> set[str]:
    """Return the names that were laid out under a mapping; JAX's caches do not run the code that notes them again."""
    del entries
    return set()


def note(mapping: AxisMapping, names: Sequence[str]) -> None:
    """Remember that arrays with these names were laid out under a mapping."""
    _remembered(mapping.entries).update(names)


def check_keys(
    function: str,
    mapping: AxisMapping | Mappings,
    names: Set[str],
    mesh: MeshLike | None,
    paths: Set[str] = frozenset(),
    *,
    complete: bool = False,
) -> None:
    """Raise ShardingError for a key of the mapping that no array has, or a mesh axis that the mesh does not have.

    Args:
        function: the name for errors.
        mapping: the mapping, or several.
        names: the names of the known arrays.
        mesh: the mesh, if there is one.
        paths: the paths of the arrays, for patterns that override a mapping.
        complete: whether these are all arrays that the mapping is for; otherwise, those that were laid out under it
            before count too. Keys of `Mappings.compute` are then not checked, since activations are not known.
    """
    if isinstance(mapping, Mappings):
        for own in (mapping.parameters, *(extra for _, extra in mapping.overrides)):
            check_keys(function, own, names, mesh, complete=complete)
        computed = names | mapping.compute.keys() if complete else names
        check_keys(function, mapping.compute, computed, mesh, complete=complete)
        for pattern, _ in mapping.overrides:
            if not any(matches(pattern, path) for path in paths):
                problem = f"no array has a path that matches {pattern!r}"
                shown = sorted(paths - {""})  # an array that is a whole tree has no path
                parts = {part for path in shown for part in path.split(".")}
                facts = f"paths: {', '.join(shown[:8]) or 'none'}{', ...' if len(shown) > 8 else ''}"
                raise ShardingError(message(function, problem, facts, hint=suggestion(pattern, parts)))
        return
    known = with_bases(names if complete else names | _remembered(mapping.entries))
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
    problem = f"axis {name!r} is mapped to {axis!r}, which is not an axis of the mesh"
    hint = suggestion(axis, mesh.axis_names)
    return ShardingError(message(function, problem, *facts, f"mesh: {describe_mesh(mesh)}", hint=hint))


def partition_spec(
    names: Names, shape: tuple[int, ...], mapping: AxisMapping, mesh: MeshLike | None, function: str = "shard"
) -> PartitionSpec:
    """Lay out one array: a PartitionSpec with one entry per dimension; anonymous dimensions are not sharded.

    Manual mesh axes (inside a shard_map) are left out.

    Raises:
        ShardingError: if the mapping has an axis that the mesh lacks, uses a mesh axis twice on this array, or does not
            divide a size.
    """
    return _partition_spec(names, shape, mapping, mesh, function)


@lru_cache(8192)
def _partition_spec(
    names: Names, shape: tuple[int, ...], mapping: AxisMapping, mesh: MeshLike | None, function: str
) -> PartitionSpec:
    manual = () if mesh is None else tuple(axis for axis, kind in mesh_types(mesh).items() if kind is AxisType.Manual)
    table = entries_for(names, shape, mapping, mesh, function, manual)
    sizes = {} if mesh is None else dict(mesh.shape)
    entries: list[Entry] = [()] * (len(shape) - len(names))
    for name, size in zip(names, shape[len(entries) :], strict=True):
        entry = table.get(name, ())
        ways = math.prod(sizes.get(axis, 1) for axis in entry)
        if size % ways:
            problem = f"{name}={size} cannot be split evenly in {ways} over mesh axis {', '.join(entry)}"
            hint = f"use a multiple of {ways}, as round_axis_for_partitioning does, or map {name!r} to None"
            raise ShardingError(message(function, problem, *_facts(names, shape, mapping, mesh), hint=hint))
        entries.append(entry)
    return spec_from(entries)


def entries_for(
    names: Names,
    shape: tuple[int, ...],
    mapping: AxisMapping,
    mesh: MeshLike | None,
    function: str = "shard",
    without: Entry = (),
) -> dict[str, Entry]:
    """Return the mesh axes of those axes of one array that have an entry in the mapping, or a base with one.

    Args:
        names: the names of the array.
        shape: its shape, for messages.
        mapping: the mapping.
        mesh: the mesh, if it is known.
        function: the name for errors.
        without: mesh axes to leave out.

    Raises:
        ShardingError: if the mapping has an axis that the mesh lacks, or uses a mesh axis twice on this array.
    """
    table = dict(mapping.entries)
    found: dict[str, Entry] = {}
    used: dict[str, str] = {}
    # Names with their own entries choose first, then derived names in an order that is independent of storage.
    for name in (*(n for n in names if n in table), *sorted(n for n in names if n not in table)):
        base = next((base for base in _bases(name) if base in table), None)
        if base is None:
            continue
        for axis in table[base]:
            if mesh is not None and axis not in mesh.axis_names:
                raise _no_mesh_axis(function, name, axis, mesh, *_facts(names, shape, mapping, None))
        entry = tuple(axis for axis in table[base] if axis not in without)
        found[name] = tuple(axis for axis in entry if axis not in used)
        for axis in entry:
            if axis in used and name == base:
                problem = f"mesh axis {axis!r} would shard both {used[axis]!r} and {name!r} of one array"
                hint = f"map one of the two elsewhere, or rename it on this array: x.rename({{{name!r}: ...}})"
                raise ShardingError(message(function, problem, *_facts(names, shape, mapping, mesh), hint=hint))
            used.setdefault(axis, name)
    return found


def with_bases(names: Iterable[str]) -> set[str]:
    """Add the bases of derived names."""
    return {base for name in names for base in _bases(name)}


def _bases(name: str) -> Iterator[str]:
    """List a name and those that it derives from: `a.b.c`, `a.b`, `a`."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def _facts(names: Names, shape: tuple[int, ...], mapping: AxisMapping, mesh: MeshLike | None) -> list[str]:
    lines = [f"array has: {describe(names, shape)}", f"mapping: {mapping}"]
    return lines if mesh is None else [*lines, f"mesh: {describe_mesh(mesh)}"]


def spec_from(entries: Iterable[Entry]) -> PartitionSpec:
    """Make a PartitionSpec from mesh axes per dimension."""
    return PartitionSpec(*(entry[0] if len(entry) == 1 else entry or None for entry in entries))


def entries_in(spec: PartitionSpec) -> list[Entry]:
    """List the mesh axes of each dimension of a PartitionSpec."""
    return [(part,) if isinstance(part, str) else part if isinstance(part, tuple) else () for part in spec.partitions]
