"""Internal. Compute a layout from names, sizes, a mapping and a mesh, or say why there is none.

`find_layout` decides for all of Axonym; nothing here asks what is current. Results are memoised, since each operation
of a trace asks, for few different arguments.
"""

import dataclasses
import itertools
import math
from collections.abc import Container, Iterable, Set
from functools import lru_cache

from ..errors import ShardingError, describe, message, suggestion
from ..names.plans import Names
from . import modes, tracing
from .assignment import AxisMapping, Entry, MeshLike, find_key
from .layout import Layout


def describe_mesh(mesh: MeshLike) -> str:
    """Write a mesh as its axes with their sizes."""
    return ", ".join(f"{name}={size}" for name, size in mesh.shape.items())


def count_shards(mesh: MeshLike, entry: Entry) -> int:
    """Return the number of shards into which mesh axes split a dimension."""
    return math.prod(mesh.shape[axis] for axis in entry)


def only(entry: Iterable[str], mesh_axes: Container[str]) -> Entry:
    """Keep some mesh axes of an entry."""
    return tuple(axis for axis in entry if axis in mesh_axes)


def without(entry: Iterable[str], mesh_axes: Container[str]) -> Entry:
    """Leave some mesh axes of an entry out."""
    return tuple(axis for axis in entry if axis not in mesh_axes)


def no_mesh_axis(function: str, name: str, axis: str, mesh: MeshLike, *facts: str) -> ShardingError:
    """Build the error of a mesh axis that the mesh does not have."""
    problem = f"axis {name!r} is mapped to {axis!r}, which is not an axis of the mesh"
    hint = suggestion(axis, mesh.axis_names)
    # A mapping the wrong way round, from mesh axes to names.
    if name in mesh.axis_names:
        hint = f"the axis of the array comes first: {{{axis!r}: {name!r}}}"
    parts = axis.replace(",", " ").split()
    if len(parts) > 1 and set(parts) <= set(mesh.axis_names):
        hint = f"several mesh axes go in a tuple: {tuple(parts)}"
    return ShardingError(
        message(function, problem, *facts, f"mesh: {describe_mesh(mesh)}", hint=hint)
    )


def find_layout(
    names: Names,
    shape: tuple[int, ...],
    mapping: AxisMapping,
    mesh: MeshLike | None,
    function: str = "shard",
    *,
    lays_out: bool = True,
) -> Layout:
    """Return how a mapping shards one array; anonymous dimensions are replicated.

    Manual mesh axes (inside a shard_map) are left out.

    Args:
        names: the names of the array.
        shape: its shape.
        mapping: the mapping.
        mesh: the mesh, if it is known.
        function: the name for errors.
        lays_out: whether the array is sharded by the result as it is; then JAX takes sizes that do not divide in a
            transformation only.

    Raises:
        ShardingError: if the mapping has an axis that the mesh lacks, uses a mesh axis twice on this array, or does not
            divide a size, unless the mapping leaves these to JAX.
    """
    uneven = mapping.uneven and (not lays_out or tracing.transforming())
    return _find_layout(names, shape, mapping, mesh, function, uneven)


@lru_cache(8192)
def _find_layout(
    names: Names,
    shape: tuple[int, ...],
    mapping: AxisMapping,
    mesh: MeshLike | None,
    function: str,
    uneven: bool,
) -> Layout:
    manual = set[str]() if mesh is None else modes.find_manual_axes(mesh)
    auto = set[str]() if mesh is None else modes.find_auto_axes(mesh)
    sizes = {} if mesh is None else dict(mesh.shape)  # without one, each size fits

    table = assign_mesh_axes(names, shape, mapping, mesh, function, manual)
    entries: list[Entry] = [()] * (len(shape) - len(names))
    for name, size in zip(names, shape[len(entries) :], strict=True):
        entry = table.get(name, ())
        shards = math.prod(sizes.get(axis, 1) for axis in entry)
        if size % shards and not (uneven and auto.issuperset(entry)):
            over = ", ".join(entry)
            problem = f"{name}={size} cannot be split evenly in {shards} over mesh axis {over}"
            hint = f"use a multiple of {shards}, as pad_axes and pad_batch do, "
            hint += f"or map {name!r} to None"
            # A loss of the next token cuts one position off.
            if size > 4 * shards and (size + 1) % shards == 0:
                hint += f'; in place of a slice such as x["{name}", 1:], which has one less, '
                hint += f'axn.roll(x, -1, "{name}") keeps the size: give the last one no weight'
            facts = _list_facts(names, shape, mapping, mesh)
            raise ShardingError(message(function, problem, *facts, hint=hint))
        entries.append(entry)
    return Layout(entries)


def resolve_uneven(
    names: Names, shape: tuple[int, ...], mapping: AxisMapping, mesh: MeshLike, function: str
) -> AxisMapping:
    """Return a mapping that replicates the axes of one array that a mapping would split unevenly.

    The compiler splits a result of an uneven size over part of a mesh axis, which no JAX sharding can express.
    """
    if not mapping.uneven:
        return mapping
    return replicate_uneven(names, shape, mapping, mesh, function, modes.find_auto_axes(mesh))


def replicate_uneven(
    names: Names,
    shape: tuple[int, ...],
    mapping: AxisMapping,
    mesh: MeshLike,
    function: str,
    mesh_axes: Set[str],
) -> AxisMapping:
    """Return a mapping that replicates the axes that these mesh axes would split unevenly."""
    table = assign_mesh_axes(names, shape, mapping, mesh, function, modes.find_manual_axes(mesh))
    sizes = dict(zip(names, shape[len(shape) - len(names) :], strict=True))
    whole = [
        name
        for name, entry in table.items()
        if sizes[name] % count_shards(mesh, entry) and mesh_axes >= set(entry)
    ]
    if not whole:
        return mapping
    entries = {**mapping, **dict.fromkeys(whole, ())}
    return dataclasses.replace(mapping, entries=tuple(entries.items()))


def assign_mesh_axes(
    names: Names,
    shape: tuple[int, ...],
    mapping: AxisMapping,
    mesh: MeshLike | None,
    function: str = "shard",
    left_out: Container[str] = (),
) -> dict[str, Entry]:
    """Return the mesh axes of the axes of one array that have an entry in the mapping, or a base with an entry.

    Args:
        names: the names of the array.
        shape: its shape, for messages.
        mapping: the mapping.
        mesh: the mesh, if it is known.
        function: the name for errors.
        left_out: mesh axes to leave out.

    Raises:
        ShardingError: if the mapping has an axis that the mesh lacks, or uses a mesh axis twice on this array.
    """
    table = dict(mapping.entries)
    sizes = dict(zip(names, shape[len(shape) - len(names) :], strict=True))
    found: dict[str, Entry] = {}
    used: dict[str, str] = {}
    bases = {name: base for name in names if (base := find_key(table, name)) is not None}

    def rank(name: str) -> tuple[bool, bool, str]:
        # Entries of an override choose first. Names with their own entries come before derived ones and those with an
        # `if_free`, whose order is independent of storage.
        is_derived = not mapping.has_own(name)
        return bases[name] not in mapping.first, is_derived, name if is_derived else ""

    for name in sorted(bases, key=rank):
        base = bases[name]
        for axis in itertools.chain.from_iterable(mapping.alternatives(base)):
            if mesh is not None and axis not in mesh.axis_names:
                raise no_mesh_axis(
                    function, name, axis, mesh, *_list_facts(names, shape, mapping, None)
                )
        # Manual axes split the array already: it is the block of one device.
        entry = without(mapping.choose(base, sizes[name], mesh, left_out), left_out)
        found[name] = without(entry, used)
        for axis in entry:
            # A derived name yields, as `embed.out` does beside `embed`, and so does a name with an `if_free`, or beside
            # one of an override; others that users mapped do not.
            yields = base not in mapping.first and bases.get(used.get(axis, "")) in mapping.first
            if axis in used and mapping.has_own(name) and not yields:
                problem = (
                    f"mesh axis {axis!r} would shard both {used[axis]!r} and {name!r} of one array"
                )
                hint = "map one of the two elsewhere, or rename it on this array: "
                hint += f"x.rename({{{name!r}: ...}})"
                facts = _list_facts(names, shape, mapping, mesh)
                raise ShardingError(message(function, problem, *facts, hint=hint))
            used.setdefault(axis, name)
    return found


def _list_facts(
    names: Names, shape: tuple[int, ...], mapping: AxisMapping, mesh: MeshLike | None
) -> list[str]:
    lines = [f"array has: {describe(names, shape)}", f"mapping: {mapping}"]
    return lines if mesh is None else [*lines, f"mesh: {describe_mesh(mesh)}"]
