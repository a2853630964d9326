"""Internal. XLA gathers all rows that were looked up in a table that is stored in another layout, as under FSDP.

XLA finds the way from one layout to the other by itself only in simple cases. Otherwise, forward or backward, each
device gets all rows, which XLA calls an involuntary full rematerialization: on all versions if ids are split along two
axes, on jax 0.12 if they are split along one; `tests/upstream/test_gathered_rows.py` shows it. So each step between the
layouts is a separate constraint, for which XLA has one collective.
"""

import math
from collections.abc import Callable
from itertools import chain, takewhile
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from ..current.machine import MACHINE
from ..errors import ShardingError
from ..layout import partition, records, tracing
from ..layout.assignment import AxisMapping, Entry, MeshLike
from ..layout.constraints import constrain
from ..layout.context import MAPPING, STORED, context_mesh, current_mapping, find_stored_mapping
from ..layout.records import Table
from ..names.plans import Names

ByName = dict[str, Entry]


class Lookup(NamedTuple):
    """The layouts of a table and of ids that are split over the same mesh axes.

    Attributes:
        mesh: the mesh.
        mapping: the mapping of the computation.
        stored: the mapping by which the table is stored.
        layouts: those of the rows that are looked up, from where they are stored to where they are needed, one
            collective apart. None if the program gathers the table: it is smaller, or there is no such way.
        gradient: the mapping of the gradient of a gathered table, before it is split as the table is stored.
    """

    mesh: MeshLike
    mapping: AxisMapping
    stored: AxisMapping
    layouts: list[AxisMapping] | None
    gradient: AxisMapping


def find_lookup(table: Table) -> Lookup | None:
    """Return the layouts of a table and of ids; None if they share no mesh axes, or the table's storage is unknown."""
    # A check reports the layouts that were asked for, not those between.
    if STORED.get() is None or records.AUDIT.get() is not None or not tracing.tracing():
        return None
    names = table.names
    mapping, stored, mesh = current_mapping(), find_stored_mapping(names), context_mesh()
    if mapping is None or stored is None or mesh is None or set(table.axes) & set(names):
        return None
    if len(table.shape) != len(names) or len(table.ids_shape) != len(table.axes):
        return None
    machine = MACHINE.get()
    if machine is not None and (given := dict(machine.tables).get(table)) is not None:
        own, *layouts = given
        return Lookup(mesh, mapping, own, layouts, own)
    return _plan_lookup(table, mapping, stored, mesh)


def _plan_lookup(
    table: Table, mapping: AxisMapping, stored: AxisMapping, mesh: MeshLike
) -> Lookup | None:
    try:
        split, gathered, by_ids = _find_layouts(table, mapping, stored, mesh)
    except ShardingError:  # the constraint on the result raises it, if any
        return None
    taken = tuple(chain.from_iterable(by_ids.values()))
    gradient = {
        name: gathered[name] or tuple(takewhile(lambda x: x not in taken, entry))
        for name, entry in split.items()
    }
    is_large = _is_large(table, by_ids, mesh)
    is_large = is_large and split.pop(table.rows) == gathered.pop(table.rows)
    if not set(taken) & set(chain.from_iterable(split.values())):
        return None
    layouts = _plan_way(split, gathered, by_ids) if is_large else None
    return Lookup(mesh, mapping, stored, layouts, _to_mapping(gradient))


def _find_layouts(
    table: Table, mapping: AxisMapping, stored: AxisMapping, mesh: MeshLike
) -> tuple[ByName, ByName, ByName]:
    """Return the layouts of a table as it is stored, and as it is gathered, and that of the ids."""

    def layout(names: Names, shape: tuple[int, ...], mapping: AxisMapping) -> ByName:
        return partition.find_layout(names, shape, mapping, mesh).by_name(names)

    names, shape = table.names, table.shape
    split, gathered = layout(names, shape, stored), layout(names, shape, mapping)
    return split, gathered, layout(table.axes, table.ids_shape, mapping)


def _is_large(table: Table, by_ids: ByName, mesh: MeshLike) -> bool:
    """Compare rows that are sent, on all devices of the ids, with rows of the table that would be gathered."""
    taken = tuple(chain.from_iterable(by_ids.values()))
    shards = partition.count_shards(mesh, taken)
    return math.prod(table.ids_shape) < table.shape[table.names.index(table.rows)] * shards


def list_layouts(
    table: Table, mapping: AxisMapping, stored: AxisMapping, mesh: MeshLike
) -> list[ByName]:
    """List the layouts of a lookup of a parameter: that of the table, and those of the rows that are looked up.

    Raises:
        ShardingError: if a mapping does not fit.
    """
    split, gathered, by_ids = _find_layouts(table, mapping, stored, mesh)
    lookup = _plan_lookup(table, mapping, stored, mesh)
    if lookup is not None and lookup.layouts is not None:
        return [split, *(dict(own.entries) for own in lookup.layouts)]
    # `nn.weights` decides if no mesh axes are shared: a device that has some of the rows cannot look up the others.
    is_whole = split[table.rows] == gathered[table.rows]
    is_split = lookup is None and is_whole and _is_large(table, by_ids, mesh)
    own = split if is_split else gathered
    found = [own, {**by_ids, **own}, {**by_ids, **gathered}]
    for rows in found[1:]:
        del rows[table.rows]
    return found


def look_up(
    read: Callable[[jax.Array, ArrayLike], jax.Array],
    table: jax.Array,
    ids: ArrayLike,
    names: Names,
    rows: str,
    axes: Names,
    target: Names,
) -> jax.Array:
    """Read rows of a table.

    If the table is split over mesh axes of the ids, each device reads the parts of rows that it stores, and sends them.
    A table that is smaller than the rows to send is gathered instead.

    Args:
        read: reads the rows.
        table: the table.
        ids: the ids.
        names: those of the table.
        rows: the axis that ids count.
        axes: the names of the ids.
        target: the names of the result.
    """
    found = find_lookup(Table(names, table.shape, rows, axes, jnp.shape(ids)))
    if found is None:
        return read(table, ids)
    if found.layouts is None:
        # XLA would split the gradients of all rows that were read, which are more than the table: sum them first.
        for gradient in (found.stored, found.gradient):
            table = constrain(table, names, found.mapping, found.mesh, gradient=gradient)
        return read(table, ids)
    # On Explicit mesh axes, a mapping would decide about the result. Reports must not list the layouts between.
    with MAPPING.using(None), records.LEDGER.using(None):
        table = constrain(table, names, found.stored, found.mesh)
        ids = constrain(jnp.asarray(ids), axes, found.layouts[0], found.mesh)
        result = read(table, ids)
        for mapping in found.layouts:
            result = constrain(result, target, mapping, found.mesh)
    return result


def _plan_way(split: ByName, gathered: ByName, by_ids: ByName) -> list[AxisMapping] | None:
    """Return the layouts of a result: each step moves mesh axes from a column to the axis of ids that needs them.

    Args:
        split: the mesh axes of the columns as they are stored.
        gathered: those of the columns in the computation.
        by_ids: those of the ids.
    """
    sending = set(chain.from_iterable(split.values()))
    free = {name: tuple(x for x in entry if x not in sending) for name, entry in by_ids.items()}
    home = {mesh_axis: name for name, entry in by_ids.items() for mesh_axis in entry}
    now = {**free, **split}
    layouts = [_to_mapping(now)]
    for column, kept in gathered.items():
        if now[column][: len(kept)] != kept:
            return None
        # The last mesh axes first: what remains is then still one block.
        while leaving := now[column][len(kept) :]:
            to, count = home.get(leaving[-1]), 1
            needed = () if to is None else by_ids[to]
            # Mesh axes that the ids need in the same order go at once.
            while count < len(leaving) and _has_in_order(needed, leaving[-count - 1 :]):
                count += 1
            now[column] = now[column][:-count]
            if to is not None:
                now[to] = tuple(x for x in needed if x in now[to] or x in leaving[-count:])
            layouts.append(_to_mapping(now))
    return layouts


def _has_in_order(entry: Entry, some: Entry) -> bool:
    """Return whether an entry has some mesh axes in their order."""
    return tuple(x for x in entry if x in some) == some


def _to_mapping(layout: ByName) -> AxisMapping:
    return AxisMapping(tuple(layout.items()))
