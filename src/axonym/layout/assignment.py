"""Mappings from named axes to mesh axes.

A *derived* name is a base and a role with a dot between them, such as `embed.out` or `position.key`. Without its own
entry, it is sharded like its base, over mesh axes that the other axes of the array leave free.
"""

import dataclasses
import fnmatch
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import jax
from jax.sharding import AbstractMesh, Mesh

from ..axis import Axis, axis_name
from ..errors import AxisClashError, OperandError, message
from ..names.plans import Names

__all__ = ["AxisMapping", "Mappings", "ResourceMapping"]


T = TypeVar("T")

MeshAxes: TypeAlias = str | Sequence[str] | None

# Mapping is invariant in its keys.
ResourceMapping: TypeAlias = (
    Mapping[str, MeshAxes] | Mapping[Axis, MeshAxes] | Mapping[str | Axis, MeshAxes]
)
"""Axis names, or axes, whose sizes do not matter, to mesh axes."""

MeshLike: TypeAlias = Mesh | AbstractMesh

Entry = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class AxisMapping(Mapping[str, Entry]):
    """A mapping in normal form: hashable, each axis name with a tuple of mesh axes.

    Attributes:
        entries: pairs of an axis name and its mesh axes, in the order in which they were given.
        uneven: whether sizes that do not divide the mesh are left to JAX, which takes them inside of a transformation,
            on Auto mesh axes; by default they are errors everywhere.

    Examples:
        >>> with axn.axis_mapping({"batch": "data", "embed": None}):
        ...     mapping = axn.current_mapping()
        >>> mapping["batch"], mapping["embed"], str(mapping)
        (('data',), (), "{'batch': 'data', 'embed': None}")
    """

    entries: tuple[tuple[str, Entry], ...]
    uneven: bool = dataclasses.field(default=False, repr=False)

    def __getitem__(self, name: str) -> Entry:
        return dict(self.entries)[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __str__(self) -> str:
        return str({name: one_or_all(axes) or None for name, axes in self.entries})


@dataclasses.dataclass(frozen=True, init=False)
class Mappings:
    """The mapping by which parameters are stored, and the one by which a model computes.

    An argument or result with an axis that `compute` maps and `parameters` does not list, such as the batch, is data,
    and sharded by `compute`. All others are stored by `parameters`.

    Attributes:
        parameters: for parameters, gradients and optimiser state.
        compute: for activations and data; by default the same.
        overrides: entries that replace those of `parameters` for some arrays, by patterns of their paths. A pattern is
            a run of path components with dots between them and may have wildcards: `embeddings`, `mlp.*.weight`.

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
        overrides: Mapping[str, ResourceMapping] | None = None,
    ) -> None:
        stored = normalized(parameters)
        computed = stored if compute is None else normalized(compute)
        rules = tuple((path, normalized(mapping)) for path, mapping in (overrides or {}).items())
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
        listed, computed = dict(self.parameters.entries), dict(self.compute.entries)
        for name in names:
            if looked_up(computed, name) and looked_up(listed, name) is None:
                return self.compute
        for pattern, extra in self.overrides:
            if matches(pattern, path):
                listed.update(extra.entries)
        return dataclasses.replace(self.parameters, entries=tuple(listed.items()))

    def all(self) -> tuple[AxisMapping, ...]:
        """Return all mappings that an array may be sharded by, those of `overrides` without the other entries."""
        return (self.parameters, self.compute, *(extra for _, extra in self.overrides))

    def __str__(self) -> str:
        return f"parameters {self.parameters}, compute {self.compute}"


def path_text(keys: Any) -> str:
    """Write the keys of a leaf of a tree as a path, such as `layers.0.weight`."""
    return jax.tree_util.keystr(keys, simple=True, separator=".")


def matches(pattern: str, path: str) -> bool:
    """Return whether a pattern of `Mappings` matches a path."""
    # Component by component: in a pattern of the whole path, `*` would match dots, too.
    parts, run = path.split("."), pattern.split(".")
    windows = (parts[start : start + len(run)] for start in range(len(parts) - len(run) + 1))
    return any(all(map(fnmatch.fnmatchcase, window, run)) for window in windows)


def looked_up(table: Mapping[str, T], name: str) -> T | None:
    """Return the entry of a name, or of its bases, or None."""
    return next((table[base] for base in bases_of(name) if base in table), None)


def _check_entry(name: str, axes: MeshAxes) -> Entry:
    several = isinstance(axes, Sequence) and all(isinstance(axis, str) for axis in axes)
    if axes is not None and not several:
        problem = f"axis {name!r} is mapped to {axes!r}"
        raise OperandError(
            message("axis mapping", problem, hint="map it to a mesh axis, a tuple of them, or None")
        )
    return entry_of(axes)


def each_mapping(mapping: AxisMapping | Mappings) -> tuple[AxisMapping, ...]:
    """List the mappings of several, or the only one."""
    return mapping.all() if isinstance(mapping, Mappings) else (mapping,)


def entry_of(axes: MeshAxes) -> Entry:
    """Write mesh axes in one form: as a tuple, which is empty for None."""
    return (axes,) if isinstance(axes, str) else tuple(axes or ())


def one_or_all(axes: Entry) -> str | Entry:
    """Write one mesh axis by its name, as users and JAX do, and any other number as a tuple."""
    return axes[0] if len(axes) == 1 else axes


def checked_mapping(mapping: ResourceMapping) -> dict[str, MeshAxes]:
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
    return AxisMapping(
        tuple((name, _check_entry(name, axes)) for name, axes in checked_mapping(mapping).items())
    )


def with_bases(names: Iterable[str]) -> set[str]:
    """Add the bases of derived names."""
    return {base for name in names for base in bases_of(name)}


def bases_of(name: str) -> Iterator[str]:
    """List a name and those that it derives from: `a.b.c`, `a.b`, `a`."""
    while name:
        yield name
        name = name.rpartition(".")[0]
