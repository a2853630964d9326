"""Internal. How an array is cut into one block per device, for code that runs on each block in a shard_map."""

from collections.abc import Sequence
from itertools import chain

import jax
import numpy as np

from ..names.plans import Names
from . import context, explicit, modes, partition, records
from .assignment import Entry, MeshLike


def find_mesh(array: jax.Array) -> MeshLike:
    """Return the current mesh, otherwise the mesh of an array, which may be empty."""
    return context.context_mesh() or jax.typeof(array).sharding.mesh


def choose_manual_axes(mesh: MeshLike, entries: Sequence[Entry], typed: bool) -> set[str]:
    """Choose the mesh axes that are Manual while blocks are computed.

    With Auto axes, all are Manual: the compiler could otherwise use those that are not in `entries`. With Explicit
    ones, a surrounding `vmap` may use other axes.
    """
    taken = set(context.get_taken_axes())
    if typed and not taken:
        return set(chain.from_iterable(entries))
    free = set(mesh.axis_names) - modes.find_manual_axes(mesh)
    return free - taken if typed else free


def find_entries(array: jax.Array, names: Names, *, is_even: bool = True) -> list[Entry]:
    """Return the mesh axes of each dimension: Explicit ones by the type, Auto ones by the mapping.

    A dimension that they do not divide, such as a padded one between two layers, is replicated. If `is_even` is false,
    it keeps its mesh axes: the compiler may split it unevenly.
    """
    mapping, mesh = context.current_mapping(), context.context_mesh()
    # The type of an array has an empty spec if there is no mesh.
    entries = list(explicit.get_layout(array)) or [()] * array.ndim
    if mapping is None or mesh is None or records.AUDIT.get() is not None:
        return entries
    auto = modes.find_auto_axes(mesh)
    if not auto:
        return entries
    manual = modes.find_manual_axes(mesh)
    table = partition.assign_mesh_axes(names, array.shape, mapping, mesh, left_out=manual)
    for at, name in enumerate(names, start=array.ndim - len(names)):
        both = (*entries[at], *partition.only(table.get(name, ()), auto))
        if not is_even or not array.shape[at] % partition.count_shards(mesh, both):
            entries[at] = both
    return entries


def list_devices(mesh_axes: Entry) -> tuple[list[int], Entry]:
    """List devices in the order of their blocks, and mesh axes in the order of the mesh, as `ppermute` counts."""
    mesh = jax.sharding.get_abstract_mesh()
    ordered = partition.only(mesh.axis_names, mesh_axes)
    places = np.arange(partition.count_shards(mesh, ordered)).reshape(
        [mesh.shape[axis] for axis in ordered]
    )
    # A layout ("y", "x") has its blocks in another order than the mesh ("x", "y") has its devices.
    in_order_of_blocks = places.transpose([ordered.index(axis) for axis in mesh_axes])
    devices: list[int] = in_order_of_blocks.ravel().tolist()
    return devices, ordered
