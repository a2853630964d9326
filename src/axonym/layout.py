"""The mapping of named axes to mesh axes: its context, and how names, sizes, mapping and mesh give a PartitionSpec.

The current mapping is in the `Context`, a `jax.make_user_context` value, so it is part of the key of every trace cache
of JAX: a function that is called under another mapping is traced again.

A *derived* name is a base and a role with a dot between them, such as `embed.out` or `position.key`. Without its own
entry, it is laid out like its base, on mesh axes that the other axes of the array leave free.
"""

import dataclasses
import fnmatch
import inspect
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, PartitionSpec

from ._entered import Blocks, Entered
from .errors import OperandError, ShardingError, describe, message, suggestion
from .plans import Names

__all__ = [
    "Audit",
    "AxisMapping",
    "Context",
    "Entry",
    "Ledger",
    "Mappings",
    "MeshAxes",
    "MeshLike",
    "ResourceMapping",
    "Scope",
    "axis_mapping",
    "context",
    "context_mesh",
    "current",
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
    "no_mesh_axis",
    "note",
    "partition_spec",
    "path_text",
    "resolve_mapping",
    "spec_from",
    "taken_axes",
    "taking",
    "unmapped",
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
    """

    entries: tuple[tuple[str, Entry], ...]

    def __getitem__(self, name: str) -> Entry:
        return dict(self.entries)[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __str__(self) -> str:
        return str({name: axes[0] if len(axes) == 1 else axes or None for name, axes in self.entries})

    def leaves_uneven_to_jax(self, function: str) -> bool:
        """Return whether a function passes on sizes that do not divide: never, except in the mapping of a subclass."""
        return False


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

    def all(self) -> tuple[AxisMapping, ...]:
        """Return all mappings that may be used."""
        return (self.parameters, self.compute, *(extra for _, extra in self.overrides))

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


class Ledger:
    """What is laid out while one function is traced, and the mappings that become current in it.

    A ledger is part of the keys of JAX's trace caches. Where a key of a mapping is no axis of the arguments, no other
    ledger equals this one, so that all functions inside are traced again and note what they lay out.

    Attributes:
        known: the names of the arguments.
        entered: the mappings that became current, in this function alone.
        seen: for each mapping, the names of the arrays that were laid out by it.
        outer: the ledger of a surrounding function, which sees them too.
        is_alone: whether no other ledger equals this one.
    """

    def __init__(
        self,
        outer: "Ledger | None" = None,
        known: Set[str] = frozenset(),
        mappings: Sequence[AxisMapping | Mappings] = (),
    ) -> None:
        self.known = with_bases(known)
        self.entered: list[AxisMapping] = []
        self.seen: dict[AxisMapping, set[str]] = {}
        self.outer = outer
        self.is_alone: bool = (outer is not None and outer.is_alone) or any(map(self._is_partly_unknown, mappings))

    def entering(self, mapping: AxisMapping) -> "Ledger":
        """Return the ledger for a block in which a mapping is current."""
        if mapping not in self.entered:  # loops enter the same ones repeatedly
            self.entered.append(mapping)
        if self.is_alone or not self._is_partly_unknown(mapping):
            return self
        inner = Ledger(self, self.known, (mapping,))
        inner.entered = self.entered
        return inner

    def _is_partly_unknown(self, mapping: AxisMapping | Mappings) -> bool:
        several = mapping.all() if isinstance(mapping, Mappings) else (mapping,)
        return any(key not in self.known for own in several for key in own)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Ledger) and not self.is_alone and not other.is_alone)

    def __hash__(self) -> int:
        return id(self) if self.is_alone else 0


@dataclasses.dataclass(frozen=True)
class Context:
    """What is current: the value that JAX keeps for a thread, and that is part of the keys of its trace caches.

    Attributes:
        mapping: the mapping of the innermost `axis_mapping`.
        taken: Explicit mesh axes that a surrounding `vmap` maps over, so that nothing inside can be laid out on them.
        scope: the surrounding shard_map.
        audit: collects layouts and errors while a check runs; it makes JAX trace again.
        ledger: notes what is laid out, while a function with mappings of its own is traced.
        reshard_limit: for arrays of more bytes than this, moves that nobody asked for are reported.
        reshard_action: how: `error` or `warn`.
    """

    mapping: AxisMapping | None = None
    taken: Entry = ()
    scope: Scope | None = None
    audit: Audit | None = None
    ledger: Ledger | None = None
    reshard_limit: int | None = None
    reshard_action: str = "error"


_NOTHING = Context()
_current = jax.make_user_context(default_value=_NOTHING)
_blocks = Blocks("axis_mapping", _NOTHING, lambda context: str(context.mapping))
_never_entered: dict[int, str] = {}


def current() -> Context:
    """Return what is current in this thread.

    Raises:
        ShardingError: if it is what another task or generator of the thread made current; if a mapping was made, and
            not made current.
    """
    value: Context = _current.value
    if _blocks.innermost.get().value is not value:
        _blocks.check()
    if _never_entered and threading.get_ident() in _never_entered:
        raise ShardingError(_never_entered.pop(threading.get_ident()))
    return value


class _Block(AbstractContextManager[None]):
    """A block in which a context is current; one object may be entered again inside itself and in other threads.

    A context of JAX stores the previous value on itself, so each entry makes a new one.
    """

    def __init__(self, change: Callable[[Context], Context]) -> None:
        self._change = change
        self._entered = threading.local()

    def __enter__(self) -> None:
        changed = self._change(current())
        entered = _blocks.enter(changed, _current(changed))
        self._entered.__dict__.setdefault("stack", []).append(entered)

    def __exit__(self, *raised: Any) -> None:
        entered: Entered[Context] = self._entered.stack.pop()
        _blocks.leave(entered, *raised)


class _MappingBlock(_Block):
    """The block of an `axis_mapping`, which notices if it is never entered."""

    def __init__(self, change: Callable[[Context], Context], mapping: AxisMapping, place: str) -> None:
        super().__init__(change)
        self._unused: tuple[AxisMapping, str] | None = mapping, place

    def __enter__(self) -> None:
        self._unused = None
        super().__enter__()

    def __del__(self) -> None:
        if self._unused is not None:
            mapping, place = self._unused
            problem, hint = "a mapping was made, and never made current", "use a block: with axn.axis_mapping(...):"
            facts = f"mapping: {mapping}", f"made in: {place}"
            _never_entered[threading.get_ident()] = message("axis_mapping", problem, *facts, hint=hint)


def context(**changes: Any) -> AbstractContextManager[Any]:
    """Change what is current, inside a `with` block: attributes of `Context` by keyword."""
    return _Block(lambda outer: dataclasses.replace(outer, **changes))


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
    return current().mapping


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
    normal = _normal({**dict(_checked(mapping)), **more})
    kind = mapping if isinstance(mapping, AxisMapping) else normal

    def changed(outer: Context) -> Context:
        kept = dict(outer.mapping or {}) if merge else {}
        inner = dataclasses.replace(kind, entries=tuple({**kept, **normal}.items()))
        ledger = None if outer.ledger is None else outer.ledger.entering(inner)
        return dataclasses.replace(outer, mapping=inner, ledger=ledger)

    frame = inspect.currentframe()
    caller = None if frame is None else frame.f_back
    place = "" if caller is None else f"{caller.f_code.co_filename}, line {caller.f_lineno}"
    return _MappingBlock(changed, normal, place)


def taking(mesh_axes: Entry) -> AbstractContextManager[Any]:
    """Prevent layouts inside from using Explicit mesh axes that a `vmap` maps over."""
    return context(taken=(*current().taken, *mesh_axes)) if mesh_axes else nullcontext()


def hiding(names: Iterable[str], *, loop: bool = False) -> AbstractContextManager[Any]:
    """Tell collectives inside a shard_map about axes that a `vmap` or `nmap` maps over, or a loop runs along."""
    scope = current().scope
    if scope is None:
        return nullcontext()
    kind = "looped" if loop else "hidden"
    return context(scope=dataclasses.replace(scope, **{kind: getattr(scope, kind) | set(names)}))


def unmapped(names: Iterable[str]) -> AbstractContextManager[Any]:
    """Lay arrays out inside as if the current mapping mapped these axes to nothing."""
    entries = dict(current_mapping() or {})
    if not any(looked_up(entries, name) for name in names):
        return nullcontext()
    return context(mapping=AxisMapping(tuple({**entries, **dict.fromkeys(names, ())}.items())))


def current_scope() -> Scope | None:
    """Return the scope of the surrounding shard_map."""
    return current().scope


def taken_axes() -> Entry:
    """Return the Explicit mesh axes that surrounding `vmap`s map over."""
    return current().taken


def context_mesh(mesh: MeshLike | None = None) -> MeshLike | None:
    """Return the given mesh, otherwise the one of `jax.set_mesh`, or None.

    Raises:
        OperandError: if the argument is not a mesh.
    """
    if mesh is not None:
        if not isinstance(mesh, Mesh | AbstractMesh):
            problem = f"a mesh must be a Mesh or an AbstractMesh, not {mesh!r}"
            raise OperandError(message("mesh", problem, hint='write jax.make_mesh((4, 2), ("data", "model"))'))
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


def note(mapping: AxisMapping, names: Sequence[str]) -> None:
    """Note that arrays with these names are laid out by a mapping, for the functions that are being traced."""
    ledger = current().ledger
    while ledger is not None:
        ledger.seen.setdefault(mapping, set()).update(names)
        ledger = ledger.outer


def no_mesh_axis(function: str, name: str, axis: str, mesh: MeshLike, *facts: str) -> ShardingError:
    """Build the error of a mesh axis that the mesh does not have."""
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
    return _partition_spec(names, shape, mapping, mesh, function, mapping.leaves_uneven_to_jax(function))


@lru_cache(8192)
def _partition_spec(
    names: Names, shape: tuple[int, ...], mapping: AxisMapping, mesh: MeshLike | None, function: str, uneven: bool
) -> PartitionSpec:
    types = {} if mesh is None else mesh_types(mesh)
    manual = tuple(axis for axis, kind in types.items() if kind is AxisType.Manual)
    table = entries_for(names, shape, mapping, mesh, function, manual)
    sizes = {} if mesh is None else dict(mesh.shape)
    entries: list[Entry] = [()] * (len(shape) - len(names))
    for name, size in zip(names, shape[len(entries) :], strict=True):
        entry = table.get(name, ())
        ways = math.prod(sizes.get(axis, 1) for axis in entry)
        if size % ways and not (uneven and all(types[axis] is AxisType.Auto for axis in entry)):
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
                raise no_mesh_axis(function, name, axis, mesh, *_facts(names, shape, mapping, None))
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
