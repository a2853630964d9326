"""Internal. In which mode each axis of a mesh is: Auto, Explicit or Manual.

On Auto axes the compiler chooses shardings, on Explicit axes the types of arrays do, and on Manual axes, inside a
`shard_map`, each device computes with its own block. All other modules ask here, so that they need not name the modes.
"""

from typing import Literal, TypeAlias

import jax
from jax.sharding import AbstractMesh, AxisType

from .assignment import MeshLike

Mode: TypeAlias = Literal["Auto", "Explicit", "Manual"]
Modes: TypeAlias = tuple[AxisType, ...]
"""The modes of all axes of a mesh, as JAX writes them."""


def list_modes(mesh: MeshLike) -> dict[str, Mode]:
    """Return the mode of each axis of a mesh, in the order of the mesh."""
    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return {axis: _MODES[kind] for axis, kind in kinds}


_MODES: dict[AxisType, Mode] = {
    AxisType.Auto: "Auto",
    AxisType.Explicit: "Explicit",
    AxisType.Manual: "Manual",
}


def find_auto_axes(mesh: MeshLike) -> set[str]:
    """Return the Auto axes of a mesh."""
    return _find(mesh, AxisType.Auto)


def find_explicit_axes(mesh: MeshLike) -> set[str]:
    """Return the Explicit axes of a mesh."""
    return _find(mesh, AxisType.Explicit)


def find_manual_axes(mesh: MeshLike) -> set[str]:
    """Return the Manual axes of a mesh: those of a surrounding shard_map."""
    return _find(mesh, AxisType.Manual)


def _find(mesh: MeshLike, kind: AxisType) -> set[str]:
    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return {axis for axis, own in kinds if own is kind}


def has_auto(mesh: MeshLike) -> bool:
    """Return whether a mesh has an Auto axis."""
    return AxisType.Auto in mesh.axis_types


def has_explicit(mesh: MeshLike) -> bool:
    """Return whether a mesh has an Explicit axis."""
    return AxisType.Explicit in mesh.axis_types


def has_manual(mesh: MeshLike) -> bool:
    """Return whether a mesh has a Manual axis."""
    return AxisType.Manual in mesh.axis_types


def is_one_mode(mesh: MeshLike) -> bool:
    """Return whether all axes of a mesh are Auto, or all are Explicit, with no surrounding shard_map."""
    return len(set(mesh.axis_types)) == 1 and not has_manual(mesh)


def is_explicit(mesh: MeshLike) -> bool:
    """Return whether all axes of a mesh are Explicit."""
    return set(mesh.axis_types) == {AxisType.Explicit}


def is_manual(mesh: MeshLike) -> bool:
    """Return whether all axes of a mesh are Manual."""
    return set(mesh.axis_types) == {AxisType.Manual}


def is_in_shard_map() -> bool:
    """Return whether a shard_map surrounds the caller."""
    return has_manual(jax.sharding.get_abstract_mesh())


def make_mesh(sizes: dict[str, int], mode: Mode) -> AbstractMesh:
    """Make a mesh without devices, all of whose axes have one mode."""
    # A mesh without devices is enough for types and layouts, also of more devices than there are.
    kinds = repeat_mode(mode, len(sizes))
    return AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=kinds)


def repeat_mode(mode: Mode, count: int) -> Modes:
    """Return one mode for a number of mesh axes."""
    return (AxisType[mode],) * count
