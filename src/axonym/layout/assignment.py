"""Mappings from named axes to mesh axes.

A *derived* name is a base and a role with a dot between them, such as `embed.out` or `position.key`. Without its own
entry, it is sharded like its base, over mesh axes that the other axes of the array leave free.
"""

import dataclasses
import fnmatch
import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import jax
from jax.sharding import AbstractMesh, Mesh

from ..axis import Axis, axis_name
from ..errors import AxisClashError, OperandError, ShardingError, message
from ..names.plans import Names

__all__ = [
    "AxisMapping",
    "FirstFitting",
    "IfFree",
    "Mappings",
    "ResourceMapping",
    "first_fitting",
    "if_free",
]


T = TypeVar("T")

Entry = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class FirstFitting:
    """An entry of a mapping with alternatives, made by `first_fitting`.

    Attributes:
        alternatives: the mesh axes to try, in order.

    Examples:
        >>> axn.partitioning.first_fitting(("data", "model"), "model", None).alternatives
        (('data', 'model'), ('model',), ())
    """

    alternatives: tuple[Entry, ...]

    def __repr__(self) -> str:
        return f"first_fitting({', '.join(repr(shorten_entry(one) or None) for one in self.alternatives)})"


@dataclasses.dataclass(frozen=True)
class IfFree:
    """An entry of a mapping that yields to the other axes of an array, made by `if_free`.

    Attributes:
        mesh_axes: the mesh axes to take where they are free.

    Examples:
        >>> axn.partitioning.if_free("model").mesh_axes
        ('model',)
    """

    mesh_axes: Entry

    def __repr__(self) -> str:
        return f"if_free({shorten_entry(self.mesh_axes)!r})"


MeshAxes: TypeAlias = str | Sequence[str] | FirstFitting | IfFree | None

# Mapping is invariant in its keys.
ResourceMapping: TypeAlias = (
    Mapping[str, MeshAxes] | Mapping[Axis, MeshAxes] | Mapping[str | Axis, MeshAxes]
)
"""Axis names, or axes, whose sizes do not matter, to mesh axes."""

MeshLike: TypeAlias = Mesh | AbstractMesh


@dataclasses.dataclass(frozen=True)
class AxisMapping(Mapping[str, Entry]):
    """A mapping in normal form: hashable, each axis name with a tuple of mesh axes.

    Attributes:
        entries: pairs of an axis name and its mesh axes, in the order in which they were given.
        uneven: whether sizes that do not divide the mesh are left to JAX, which takes them inside of a transformation,
            on Auto mesh axes; by default they are errors everywhere.
        fallbacks: for axes with a `first_fitting`, all alternatives; `entries` has the first of them.
        first: axes that choose before the others, which leave them the mesh axes: those of an override.
        yielding: axes with an `if_free`, which choose after the others.

    Examples:
        >>> with axn.axis_mapping({"batch": "data", "embed": None}):
        ...     mapping = axn.current_mapping()
        >>> mapping["batch"], mapping["embed"], str(mapping)
        (('data',), (), "{'batch': 'data', 'embed': None}")
    """

    entries: tuple[tuple[str, Entry], ...]
    uneven: bool = dataclasses.field(default=False, repr=False)
    fallbacks: tuple[tuple[str, tuple[Entry, ...]], ...] = dataclasses.field(default=(), repr=False)
    first: tuple[str, ...] = dataclasses.field(default=(), repr=False)
    yielding: tuple[str, ...] = dataclasses.field(default=(), repr=False)

    def __getitem__(self, name: str) -> Entry:
        return dict(self.entries)[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __str__(self) -> str:
        return str({name: self.spell(name) for name in self})

    def spell(self, name: str) -> MeshAxes:
        """Return the entry of an axis as users write it."""
        if name in self.yielding and self[name]:
            return IfFree(self[name])
        several = self.alternatives(name)
        return FirstFitting(several) if len(several) > 1 else shorten_entry(self[name]) or None

    def alternatives(self, name: str) -> tuple[Entry, ...]:
        """Return the mesh axes that the entry of an axis allows, in order."""
        entry = self[name]
        found = dict(self.fallbacks).get(name, ())
        # A block that replaced the entry replaced the alternatives, too.
        return found if entry in found[:1] else (entry,)

    def has_own(self, name: str) -> bool:
        """Return whether an axis has an entry of its own that does not yield; entries inherited from a base yield."""
        return name not in self.yielding and name in dict(self.entries)

    def choose(
        self, name: str, size: int, mesh: MeshLike | None, left_out: Container[str] = ()
    ) -> Entry:
        """Return the first alternative for an axis that divides a size; the first one if none does.

        Args:
            name: a key of the mapping.
            size: the size of the axis, or of one that derives from it.
            mesh: the mesh, if it is known.
            left_out: mesh axes that do not count, such as Manual ones.
        """
        several = self.alternatives(name) if self.fallbacks else (self[name],)
        if len(several) == 1 or mesh is None:
            return several[0]
        sizes = {axis: ways for axis, ways in mesh.shape.items() if axis not in left_out}
        for entry in several:
            if size % math.prod(sizes.get(axis, 1) for axis in entry) == 0:
                return entry
        return several[0]

    def settle(
        self, sizes: Iterable[tuple[str, int]], mesh: MeshLike, function: str
    ) -> "AxisMapping":
        """Return this mapping with one alternative for each of some axes.

        Args:
            sizes: the axes with their sizes; an axis may have several.
            mesh: the mesh.
            function: the name for errors.

        Raises:
            ShardingError: if sizes of one axis need different alternatives.
        """
        chosen: dict[str, tuple[Entry, str]] = {}
        for name, size in sizes if self.fallbacks else ():
            key = find_key(self, name)
            if key is None or len(self.alternatives(key)) == 1:
                continue
            entry, text = self.choose(key, size, mesh), f"{name}={size}"
            other, before = chosen.setdefault(key, (entry, text))
            if entry != other:
                problem = f"{before} and {text} need different mesh axes of {self.spell(key)}"
                hint = "devices know only parts of axes inside: give one entry"
                raise ShardingError(message(function, problem, f"mapping: {self}", hint=hint))
        own = AxisMapping(tuple((key, entry) for key, (entry, _) in chosen.items()))
        return self.updated(own)

    def updated(self, other: "AxisMapping") -> "AxisMapping":
        """Return this mapping updated with the entries of another one."""
        kept = tuple((name, several) for name, several in self.fallbacks if name not in other)
        entries = dict(self.entries) | dict(other.entries)
        fallbacks = (*kept, *other.fallbacks)
        yielding = (*(name for name in self.yielding if name not in other), *other.yielding)
        return dataclasses.replace(
            self, entries=tuple(entries.items()), fallbacks=fallbacks, yielding=yielding
        )


@dataclasses.dataclass(frozen=True, init=False)
class Mappings:
    """The mapping by which parameters are stored, and the one by which a model computes.

    An argument or result is data if it has an axis, such as the batch, that `compute` maps and `parameters` does not
    list; data is sharded by `compute`. All others are stored by `parameters`.

    Attributes:
        parameters: for parameters, gradients and optimiser state.
        compute: for activations and data; by default the same.
        overrides: entries that replace those of `parameters` for some arrays, by patterns of their paths (a dict, or
            pairs). A pattern is a run of path components with dots between them and may have wildcards: `embeddings`,
            `mlp.*.weight`. Other axes of such an array are not sharded over the mesh axes of these entries.

    Raises:
        OperandError: if a mapping is no dict, or the overrides are no pairs of a pattern and a mapping.

    Examples:
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
        overrides: Mapping[str, ResourceMapping]
        | Sequence[tuple[str, ResourceMapping]]
        | None = None,
    ) -> None:
        stored = normalized(parameters)
        computed = stored if compute is None else normalized(compute)
        rules = _check_overrides(overrides or ())
        object.__setattr__(self, "parameters", stored)
        object.__setattr__(self, "compute", computed)
        object.__setattr__(self, "overrides", rules)

    def of(self, names: Names, path: str = "") -> AxisMapping:
        """Return the mapping for an array.

        Args:
            names: the names of its axes.
            path: its place in the tree, such as `layers.0.weight`, for `overrides`.

        Returns:
            `compute` for data, otherwise `parameters` with those entries of `overrides` whose patterns match; the last
            one wins.
        """
        own, computed = self.parameters, self.compute
        for name in names:
            if find_entry(computed, name) and find_entry(own, name) is None:
                return computed
        for pattern, extra in self.overrides:
            if matches(pattern, path):
                own = dataclasses.replace(own.updated(extra), first=(*own.first, *extra))
        return own

    def settle(self, sizes: Sequence[tuple[str, int]], mesh: MeshLike, function: str) -> "Mappings":
        """Return these mappings with one alternative for each of some axes; see `AxisMapping.settled`."""
        if not any(own.fallbacks for own in self.all()):
            return self
        stored, computed = (
            own.settle(sizes, mesh, function) for own in (self.parameters, self.compute)
        )
        rules = {path: own.settle(sizes, mesh, function) for path, own in self.overrides}
        return Mappings(stored, computed, rules)

    def all(self) -> tuple[AxisMapping, ...]:
        """Return all mappings that may shard an array; the mappings of `overrides` come without the other entries."""
        return (self.parameters, self.compute, *(extra for _, extra in self.overrides))

    def __str__(self) -> str:
        return f"parameters {self.parameters}, compute {self.compute}"


def _check_overrides(given: Any) -> tuple[tuple[str, AxisMapping], ...]:
    pairs = list(given.items()) if isinstance(given, Mapping) else given
    is_paired = isinstance(pairs, list | tuple) and all(
        isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs
    )
    if not is_paired:
        problem = f"overrides must be a dict from patterns of paths to mappings, not {given!r}"
        hint = 'write {"mlp.*.weight": {"embed": None}}'
        raise OperandError(message("Mappings", problem, hint=hint))
    return tuple((path, normalized(mapping)) for path, mapping in pairs)


def first_fitting(*alternatives: str | Sequence[str] | None) -> FirstFitting:
    """Return an entry of a mapping with alternatives: the first one that divides the size of an axis is used.

    Each size of the axis gets its own choice. If no alternative divides, the error is about the first one. An
    alternative stays in the choice even if another axis of an array uses its mesh axes.

    Args:
        alternatives: mesh axes, tuples of them, or None for no mesh axis, which ends the list.

    Raises:
        OperandError: if there are fewer than two alternatives, if one is no entry, or if None is not the last one.

    Examples:
        >>> mesh = jax.sharding.AbstractMesh((4,), ("model",))
        >>> mapping = {"kv_heads": axn.partitioning.first_fitting("model", None)}
        >>> axn.pspec_for(axn.ones(axn.Axis("kv_heads", 8)), mapping, mesh)
        P('model',)
        >>> axn.pspec_for(axn.ones(axn.Axis("kv_heads", 2)), mapping, mesh)
        P(None,)
    """
    entries = [_check_entry("first_fitting", one) for one in alternatives]
    if len(entries) < 2 or () in entries[:-1]:
        spelled = ", ".join(map(repr, alternatives))
        problem = f"it takes alternatives in order, and None only as the last one, not ({spelled})"
        raise OperandError(
            message("first_fitting", problem, hint='write first_fitting("model", None)')
        )
    return FirstFitting(tuple(entries))


def if_free(mesh_axes: str | Sequence[str]) -> IfFree:
    """Return an entry of a mapping that takes mesh axes only where the other axes of an array leave them free.

    With tensor parallelism, it shards positions between the products, where the mesh axis of the heads is free. If
    several entries yield, the axes choose in alphabetical order of their names, including derived names.

    Args:
        mesh_axes: a mesh axis, or a tuple of them.

    Raises:
        OperandError: if it is no mesh axis and no tuple of them, or names none.

    Examples:
        >>> mesh = jax.sharding.AbstractMesh((4,), ("model",))
        >>> mapping = {"mlp": "model", "pos": axn.partitioning.if_free("model")}
        >>> axn.pspec_for(axn.ones({"pos": 8, "embed": 4}), mapping, mesh, strict=False)
        P('model', None)
        >>> axn.pspec_for(axn.ones({"pos": 8, "mlp": 16}), mapping, mesh)
        P(None, 'model')
    """
    entry = _check_entry("if_free", mesh_axes)
    if not entry:
        problem = f"it takes a mesh axis or a tuple of them, not {mesh_axes!r}"
        raise OperandError(message("if_free", problem, hint='write if_free("model")'))
    return IfFree(entry)


def path_text(keys: Any) -> str:
    """Write the keys of a leaf of a tree as a path, such as `layers.0.weight`."""
    # The key of the array that is stored for a padded one is empty.
    shown = tuple(key for key in keys if str(key))
    return jax.tree_util.keystr(shown, simple=True, separator=".")


def matches(pattern: str, path: str) -> bool:
    """Return whether a pattern of `Mappings` matches a path."""
    # Component by component: in a pattern of the whole path, `*` would match dots, too.
    parts, run = path.split("."), pattern.split(".")
    windows = (parts[start : start + len(run)] for start in range(len(parts) - len(run) + 1))
    return any(all(map(fnmatch.fnmatchcase, window, run)) for window in windows)


def find_entry(table: Mapping[str, T], name: str) -> T | None:
    """Return the entry of a name, or of its bases, or None."""
    base = find_key(table, name)
    return None if base is None else table[base]


def find_key(table: Container[str], name: str) -> str | None:
    """Return the key of the entry that applies to a name: the name or a base of it; None if neither has an entry."""
    return next((base for base in bases_of(name) if base in table), None)


def _check_entry(name: str, axes: MeshAxes) -> Entry:
    several = isinstance(axes, Sequence) and all(isinstance(axis, str) for axis in axes)
    if isinstance(axes, FirstFitting | IfFree) or (axes is not None and not several):
        problem = f"axis {name!r} is mapped to {axes!r}"
        raise OperandError(
            message("axis mapping", problem, hint="map it to a mesh axis, a tuple of them, or None")
        )
    entry = write_entry(axes)
    twice = [axis for axis in entry if entry.count(axis) > 1]
    if twice:
        problem = f"axis {name!r} is mapped to mesh axis {twice[0]!r} twice"
        raise OperandError(message("axis mapping", problem, f"entry: {entry}"))
    return entry


def each_mapping(mapping: AxisMapping | Mappings) -> tuple[AxisMapping, ...]:
    """List all mappings of a value that holds one mapping or several."""
    return mapping.all() if isinstance(mapping, Mappings) else (mapping,)


def write_entry(axes: str | Sequence[str] | None) -> Entry:
    """Write mesh axes in one form: as a tuple, which is empty for None."""
    return (axes,) if isinstance(axes, str) else tuple(axes or ())


def shorten_entry(axes: Entry) -> str | Entry:
    """Write one mesh axis as its name, as users and JAX do, and several or none as a tuple."""
    return axes[0] if len(axes) == 1 else axes


def check_mapping(mapping: ResourceMapping) -> dict[str, MeshAxes]:
    """Return a mapping with the names of its axes as keys.

    Raises:
        OperandError: if it is another thing, or the pair of two mappings.
        AxisClashError: if an axis and its name are both keys.
    """
    if isinstance(mapping, Mappings):
        problem = "expected one mapping, not the two of Mappings"
        raise OperandError(
            message("axis mapping", problem, hint="pass its `parameters` or its `compute`")
        )
    if not isinstance(mapping, Mapping) or not all(isinstance(key, str | Axis) for key in mapping):
        problem = f"a mapping must be a dict from axis names to mesh axes, not {mapping!r}"
        raise OperandError(
            message("axis mapping", problem, hint='write {"batch": "data", "mlp": "model"}')
        )
    if isinstance(mapping, AxisMapping):
        return {name: mapping.spell(name) for name in mapping}
    # `Axis("batch", 8)` and "batch" are different keys of a dict, but one axis.
    by_name: dict[str, MeshAxes] = {}
    for key, mesh_axes in mapping.items():
        name = axis_name(key)
        if name in by_name:
            problem = f"axis {name!r} is a key twice, as an Axis and by its name"
            raise AxisClashError(message("axis mapping", problem, hint="keep one of the two"))
        by_name[name] = mesh_axes
    return by_name


def normalized(mapping: ResourceMapping) -> AxisMapping:
    """Return an immutable, hashable form of a mapping."""
    if isinstance(mapping, AxisMapping):
        return mapping
    entries: list[tuple[str, Entry]] = []
    fallbacks: list[tuple[str, tuple[Entry, ...]]] = []
    yielding: list[str] = []
    for name, axes in check_mapping(mapping).items():
        if isinstance(axes, IfFree):
            yielding.append(name)
            axes = axes.mesh_axes
        if isinstance(axes, FirstFitting):
            axes, *others = axes.alternatives
            if others:
                fallbacks.append((name, (axes, *others)))
        entries.append((name, _check_entry(name, axes)))
    return AxisMapping(tuple(entries), fallbacks=tuple(fallbacks), yielding=tuple(yielding))


def add_bases(names: Iterable[str]) -> set[str]:
    """Add the bases of derived names."""
    return {base for name in names for base in bases_of(name)}


def bases_of(name: str) -> Iterator[str]:
    """List a name and those that it derives from: `a.b.c`, `a.b`, `a`."""
    while name:
        yield name
        name = name.rpartition(".")[0]
