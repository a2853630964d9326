"""Fit a mapping and a mesh to sizes that they do not divide, and report the changes and their cost."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from jax.sharding import Mesh, PartitionSpec

from ..base.kinds import Tree
from ..errors import ShardingError, message
from ..layout import context
from ..layout.assignment import (
    AxisMapping,
    Entry,
    Mappings,
    MeshLike,
    ResourceMapping,
    add_bases,
    bases_of,
)
from ..layout.fitting import Fit, find_partners, fit_sizes
from ..layout.layout import Layout
from ..layout.partition import assign_mesh_axes, count_shards, describe_mesh, only
from ..partitioning.trees import no_mapping
from .check import WIDTH, Report, check
from .show import ArrayLayout
from .table import Printed, Table, byte_text, group_rows, list_items
from .target import abstract_mesh

__all__ = ["Change", "Fitted", "FittedArray", "fit_mapping"]

# Axes are replicated if that adds at most this share of the bytes per device.
CHEAP = 0.01


class Change(NamedTuple):
    """Another entry of a mapping.

    Attributes:
        name: the axis.
        size: its size, or the greatest common divisor of its sizes.
        asked: the mesh axes of the given mapping.
        fitted: those of the new one.
        asked_ways: the number of parts into which the given mapping would split the axis.
        fitted_ways: the number of parts into which the new mapping splits it.
        added_bytes: the additional bytes that each device holds of the arrays with this axis.

    Examples:
        >>> keys = axn.ones({"kv_heads": 2, "embed": 8})
        >>> fitted = axn.partitioning.fit_mapping(keys, {"kv_heads": "model"}, {"model": 4})
        >>> [(change.name, change.asked_ways, change.fitted_ways) for change in fitted.changes]
        [('kv_heads', 4, 2)]
    """

    name: str
    size: int
    asked: Entry
    fitted: Entry
    asked_ways: int
    fitted_ways: int
    added_bytes: int

    @property
    def is_replicated(self) -> bool:
        """Whether the axis is not split at all, although the given mapping would split it."""
        return self.fitted_ways == 1 < self.asked_ways

    @property
    def larger(self) -> int | None:
        """The next size that the mesh axes of the given mapping divide; None if the axis is split further now."""
        if self.fitted_ways > self.asked_ways:
            return None
        return math.ceil(self.size / self.asked_ways) * self.asked_ways


class FittedArray(NamedTuple):
    """An array of the model or of the arguments whose layout the fit changed.

    Attributes:
        layout: the new layout.
        asked_bytes: the bytes that each device would hold by the given mapping, if it could round sizes up.
        copies: the number of devices that hold the same part.

    Examples:
        >>> keys = axn.ones({"kv_heads": 2, "embed": 8})
        >>> fitted = axn.partitioning.fit_mapping(keys, {"kv_heads": "model"}, {"model": 4})
        >>> [array.copies for array in fitted.arrays]
        [2]
    """

    layout: ArrayLayout
    asked_bytes: int
    copies: int

    @property
    def added_bytes(self) -> int:
        """The bytes that each device holds beyond those of the given mapping."""
        return max(0, (self.layout.nbytes_per_device or 0) - self.asked_bytes)


@dataclasses.dataclass(frozen=True, repr=False)
class Fitted(Printed):
    """The result of `fit_mapping`, which prints as tables, also in notebooks.

    Attributes:
        title: what was fitted.
        mapping: the mapping that fits, of the kind that was given: an `AxisMapping` or `Mappings`.
        mesh: the mesh that fits: the given one, or one of the same devices with more mesh axes.
        split: for each mesh axis that was split, its parts with their sizes.
        changes: the entries that changed.
        arrays: the arrays of the model and of the arguments whose layout changed.
        asked_bytes: the bytes of the model and of the arguments on each device by the given mapping, if it could round
            sizes up.
        held_bytes: the same by the new mapping.
        report: the report of `check` for the new mapping.

    Examples:
        >>> keys = axn.ones({"kv_heads": 2, "embed": 8})
        >>> fitted = axn.partitioning.fit_mapping(keys, {"kv_heads": "model"}, {"model": 4})
        >>> dict(fitted.mesh.shape), fitted.split
        ({'model': 2, 'model_2': 2}, {'model': {'model': 2, 'model_2': 2}})
    """

    title: str
    mapping: Any
    mesh: MeshLike
    split: Mapping[str, Mapping[str, int]]
    changes: tuple[Change, ...]
    arrays: tuple[FittedArray, ...]
    asked_bytes: int
    held_bytes: int
    report: Report = dataclasses.field(repr=False)

    def parts(self) -> Iterator[str | Table]:
        """Yield the paragraphs and tables."""
        yield self.title
        if not self.changes:
            yield "nothing to change: all sizes divide"
        if self.split:
            rows = [
                (_axes({axis: math.prod(parts.values())}), _axes(parts))
                for axis, parts in self.split.items()
            ]
            yield Table(("mesh axis", "split into"), tuple(rows))
        if self.changes:
            titles = ("axis", "size", "asked", "fitted", "adds", "would divide")
            cells = tuple(map(_cells, self.changes))
            yield Table(titles, cells, right=("size", "adds", "would divide"))
        if self.arrays:
            header = ("array", "axes", "layout", "asked", "per device", "copies")
            arrays = group_rows(_array_cells(array) for array in self.arrays)
            yield Table(header, arrays, right=("asked", "per device", "copies"))
        yield (
            f"bytes per device: {byte_text(self.held_bytes)}, "
            f"where the mapping asks for {byte_text(self.asked_bytes)}"
        )


def _axes(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{axis}={size}" for axis, size in sizes.items())


def _cells(change: Change) -> tuple[str, ...]:
    asked = _write_ways(change.asked, change.asked_ways)
    fitted = _write_ways(change.fitted, change.fitted_ways)
    added = byte_text(change.added_bytes) if change.larger else ""
    return change.name, str(change.size), asked, fitted, added, str(change.larger or "")


def _write_ways(entry: Entry, ways: int) -> str:
    return f"{', '.join(entry)} ({ways} ways)" if entry else "replicated"


def _array_cells(array: FittedArray) -> tuple[Any, ...]:
    path, axes, _, layout, _, held = array.layout.cells
    return path, axes, layout, byte_text(array.asked_bytes), held, str(array.copies)


def fit_mapping(
    fn_or_model: Tree,
    mapping: ResourceMapping | Mappings | None,
    mesh: MeshLike | Mapping[str, int],
    *args: Tree,
    limit_bytes: int | None = None,
    **kwargs: Tree,
) -> Fitted:
    """Return the mapping and the mesh nearest to the given ones that fit the sizes of a tree or a function.

    If mesh axes do not divide the size of an axis, the axis is split over as many of them as do, or over a part of a
    mesh axis: for that, the mesh axis is split in two. All other axes stay as they are, split over both parts. Devices
    along the unused part hold copies, unless another axis can split the same arrays further, such as the groups of
    queries that share a key head. An axis that no part of a mesh axis divides is replicated where that is cheap.
    Nothing is computed, and nothing is adapted unless you use the result.

    Args:
        fn_or_model: a tree, or a function, as in `axn.check`. Arrays inside of a function are seen, too.
        mapping: the mapping, or `Mappings`; None for the current one.
        mesh: a mesh, an `AbstractMesh`, or sizes such as `{"data": 64, "model": 8}`.
        args: arguments, as in `axn.check`. Arrays may be abstract.
        limit_bytes: raise if a device would hold more bytes of the model and the arguments than this. By default, raise
            if replicated axes add more than 1 % to the bytes that the given mapping asks for.
        kwargs: keyword arguments.

    Returns:
        The mapping and the mesh, with what they change and cost. They print as tables.

    Raises:
        ShardingError: if there is no mapping; if no part of it fits, because of a name that no array has, a mesh axis
            that does not exist or that would split one array twice, or a restriction of a layer; if devices would hold
            more than `limit_bytes`, or without it, if it is not cheap to replicate an axis.

    Examples:
        >>> axes = axn.make_axes(embed=64, kv_heads=2, group=4, head_dim=8)
        >>> model = {"queries": axn.ones(axes), "keys": axn.ones((axes[0], axes[1], axes[3]))}
        >>> fitted = axn.partitioning.fit_mapping(model, {"kv_heads": "model"}, {"model": 8})
        >>> print(fitted.mapping, dict(fitted.mesh.shape))
        {'kv_heads': 'model', 'group': 'model_2'} {'model': 2, 'model_2': 4}
    """
    asked = mapping if isinstance(mapping, Mappings) else context.resolve_mapping(mapping)
    if asked is None:
        raise no_mapping("fit_mapping")
    pair = asked if isinstance(asked, Mappings) else Mappings(asked)
    given: MeshLike = mesh if isinstance(mesh, Mesh) else abstract_mesh(mesh, "fit_mapping")

    def run(mappings: Mappings, on: MeshLike) -> Report:
        return check(fn_or_model, mappings, on, *args, quiet=True, **kwargs)

    # With all axes on no mesh axis, everything fits, so that all arrays are seen.
    unfitted = run(_replicate_all(pair), given)
    sizes = _find_sizes(unfitted)
    partners = find_partners((row.names for row in _list_stored(unfitted)), pair)
    fitted = fit_sizes(pair, given, sizes, partners)
    report = run(fitted.mappings, fitted.mesh)
    if report.errors and partners:
        # A layer may refuse what sizes allow, so the simpler fit is next.
        fitted = fit_sizes(pair, given, sizes, {})
        report = run(fitted.mappings, fitted.mesh)
    facts = f"mapping: {asked}", f"mesh: {describe_mesh(given)}"
    if report.errors:
        problem = "no mapping near the given one fits"
        raise ShardingError(message("fit_mapping", problem, *map(str, report.errors), *facts))
    result = _describe(report, fitted, asked, given, sizes)
    _check_bytes(result, limit_bytes, *facts)
    return result


def _check_bytes(result: Fitted, limit_bytes: int | None, *facts: str) -> None:
    """Check that devices do not hold too much.

    Raises:
        ShardingError: if they hold more than the limit, or without one, if it is not cheap to replicate an axis.
    """
    changes, hints = result.changes, list[str]()
    if limit_bytes is not None:
        problem = f"each device would hold {byte_text(result.held_bytes)}, more than {limit_bytes=}"
        is_cheap = result.held_bytes <= limit_bytes
    else:
        changes = tuple(change for change in changes if change.is_replicated)
        names = {change.name for change in changes}
        added = sum(
            array.added_bytes
            for array in result.arrays
            if not names.isdisjoint(add_bases(array.layout.names))
        )
        asked = byte_text(result.asked_bytes)
        problem = "axes that no part of a mesh axis divides would be replicated, which adds "
        problem += f"{byte_text(added)} per device to the {asked} that the mapping asks for"
        is_cheap = added <= CHEAP * result.asked_bytes
        hints.append(f"to replicate them anyway, pass limit_bytes={result.held_bytes}")
    if is_cheap:
        return
    lines = [
        f"{one.name}={one.size}, asked for {_write_ways(one.asked, one.asked_ways)}: "
        f"{_write_ways(one.fitted, one.fitted_ways)}, which adds {byte_text(one.added_bytes)}"
        for one in changes
        if one.larger
    ]
    larger = [f"{one.name}={one.larger}" for one in changes if one.larger]
    if larger:
        hints.insert(0, f"sizes that would divide: {list_items(larger, WIDTH)}")
    raise ShardingError(
        message("fit_mapping", problem, *lines, *facts, hint="; ".join(hints) or None)
    )


def _replicate_all(mappings: Mappings) -> Mappings:
    """Map all axes to no mesh axis."""

    def empty(mapping: AxisMapping) -> AxisMapping:
        return AxisMapping(tuple((name, ()) for name in mapping))

    overrides = {pattern: empty(extra) for pattern, extra in mappings.overrides}
    return Mappings(empty(mappings.parameters), empty(mappings.compute), overrides)


def _list_stored(report: Report) -> tuple[ArrayLayout, ...]:
    return (*report.model, *report.arguments)


def _find_sizes(report: Report) -> dict[str, int]:
    """Return, for each axis, the greatest common divisor of its sizes, which the mesh axes must divide.

    The sizes of a derived name count for its bases too, since it shares their entries. In trees, an axis of size 1 may
    be a placeholder if it has more elements elsewhere, and is then not split.
    """
    inside = [(name, size) for row in report.inside for name, size in _list_named(row)]
    stored = [
        (name, size)
        for row in (*_list_stored(report), *report.results)
        for name, size in _list_named(row)
    ]
    several = {name for name, size in (*inside, *stored) if size != 1}
    found: dict[str, int] = {}
    for name, size in (*inside, *(one for one in stored if one[1] != 1 or one[0] not in several)):
        for base in bases_of(name):
            found[base] = math.gcd(found.get(base, 0), size)
    return found


def _list_named(row: ArrayLayout) -> list[tuple[str, int]]:
    return list(zip(row.names, row.shape[len(row.shape) - len(row.names) :], strict=True))


def _describe(
    report: Report,
    fitted: Fit,
    asked: AxisMapping | Mappings,
    mesh: MeshLike,
    sizes: Mapping[str, int],
) -> Fitted:
    """Compare the fitted layout with the requested one."""
    pair = asked if isinstance(asked, Mappings) else Mappings(asked)
    moved: dict[tuple[str, Entry, Entry, int, int], None] = {}
    for own, new in zip(pair.all(), fitted.mappings.all(), strict=True):
        for name, entry in new.entries:
            before = own.get(name, ())
            ways = count_shards(mesh, only(before, mesh.axis_names))
            now = count_shards(fitted.mesh, entry)
            if now != ways:
                moved[name, before, entry, ways, now] = None

    rows = _list_stored(report)
    wanted = [_count_asked_bytes(row, pair, mesh) for row in rows]
    added = dict.fromkeys((name for name, *_ in moved), 0)
    arrays: list[FittedArray] = []
    for row, count in zip(rows, wanted, strict=True):
        if own_changes := added.keys() & add_bases(row.names):
            entries = Layout.from_spec(row.spec or PartitionSpec())
            parts = math.prod(count_shards(fitted.mesh, entry) for entry in entries)
            arrays.append(FittedArray(row, count, fitted.mesh.size // parts))
            for name in own_changes:
                added[name] += arrays[-1].added_bytes
    changes = [Change(one[0], sizes.get(one[0], 0), *one[1:], added[one[0]]) for one in moved]
    held = sum(row.nbytes_per_device or 0 for row in rows)
    what = report.title.partition(" on the mesh ")[0]
    return Fitted(
        f"{what}, fitted to the mesh {describe_mesh(mesh)}; asked for: {asked}",
        fitted.mappings if isinstance(asked, Mappings) else fitted.mappings.compute,
        fitted.mesh,
        fitted.split,
        tuple(changes),
        tuple(arrays),
        sum(wanted),
        held,
        report,
    )


def _count_asked_bytes(row: ArrayLayout, asked: Mappings, mesh: MeshLike) -> int:
    """Return the bytes of an array on each device under the requested mapping, with sizes rounded up."""
    mapping = asked.of(row.names, row.path)
    entries = assign_mesh_axes(row.names, row.shape, mapping, mesh, "fit_mapping")
    size = math.prod(row.shape)
    held = (row.nbytes or 0) // max(size, 1)
    for name, count in _list_named(row):
        held *= math.ceil(count / count_shards(mesh, entries.get(name, ())))
    return held * math.prod(row.shape[: len(row.shape) - len(row.names)])
