"""Internal. The mesh of a `shard_map`, and those of its axes that become Manual.

A call may be inside of another one or of a `vmap`, which have taken some axes already.
"""

from ..errors import ShardingError, message, suggestion
from ..layout import context, modes, partition
from ..layout.assignment import Entry, Mappings, MeshLike
from .trees import no_mesh


def choose_mesh(given: MeshLike | None, mappings: Mappings) -> tuple[MeshLike, bool]:
    """Choose the mesh, and return whether it is the mesh of a surrounding shard_map."""
    current = context.context_mesh()
    if given is not None:
        # While tracing, JAX wants the abstract mesh of a given one.
        given = context.context_mesh(given)
    if current is None:
        if given is None:
            raise no_mesh("shard_map", mappings.compute)
        return given, False
    if given is not None and not _is_same_mesh(given, current):
        facts = (f"given: {_describe_modes(given)}", f"current: {_describe_modes(current)}")
        hint = "leave the mesh out, or call outside of axn.set_mesh and of other shard_maps"
        problem = "the given mesh is not the current one"
        raise ShardingError(message("shard_map", problem, *facts, hint=hint))
    is_nested = modes.has_manual(current)
    # A nested call needs the current mesh, on which axes of the outer one are Manual already.
    return (current if given is None or is_nested else given), is_nested


def _is_same_mesh(given: MeshLike, current: MeshLike) -> bool:
    """Compare two meshes; axes that are Manual in the current one may be of any type in the other."""
    if dict(given.shape) != dict(current.shape):
        return False
    own, asked = modes.list_modes(current), modes.list_modes(given)
    return all(mode in (asked[axis], "Manual") for axis, mode in own.items())


def _describe_modes(mesh: MeshLike) -> str:
    kinds = ", ".join(kind.name for kind in mesh.axis_types)
    return f"{partition.describe_mesh(mesh)} ({kinds})"


def find_manual_axes(mesh: MeshLike, asked: Entry | None) -> Entry:
    """Return the mesh axes that become Manual; leave out those of a surrounding shard_map."""
    for axis in asked or ():
        if axis not in mesh.axis_names:
            problem = f"manual axis {axis!r} is not an axis of the mesh"
            facts = f"mesh: {partition.describe_mesh(mesh)}"
            raise ShardingError(
                message("shard_map", problem, facts, hint=suggestion(axis, mesh.axis_names))
            )
    # A surrounding vmap over mesh axes maps the whole call: each device has its rows already.
    unavailable = modes.find_manual_axes(mesh) | set(context.get_taken_axes())
    return partition.without(mesh.axis_names if asked is None else asked, unavailable)


def find_vmapped_axes(mesh: MeshLike) -> Entry:
    """Return the Auto mesh axes over which a surrounding vmap maps."""
    return partition.only(context.get_taken_axes(), modes.find_auto_axes(mesh))
