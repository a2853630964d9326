"""The current mapping and mesh, and what else decides on the layout of an array.

All code that shards an array asks here. This module does not know the blocks that users write, which are in
`partitioning`.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh

from ..current.features import Feature
from ..errors import OperandError, message
from ..names.plans import Names
from . import modes
from .assignment import (
    AxisMapping,
    Entry,
    Mappings,
    MeshLike,
    ResourceMapping,
    find_entry,
    find_key,
    normalized,
)

__all__ = ["current_mapping"]

MAPPING: Feature[AxisMapping | None] = Feature(None, depends_on_names=True, is_shown=True)
"""The mapping of the innermost `axis_mapping`."""

STORED: Feature[AxisMapping | Mappings | None] = Feature(None)
"""The mapping that shards the results of the surrounding compiled function, gradients of its parameters among them."""

TAKEN: Feature[Entry] = Feature(())
"""Explicit mesh axes that a surrounding `vmap` maps over, so that nothing inside can be sharded over them."""


def resolve_mapping(mapping: ResourceMapping | None) -> AxisMapping | None:
    """Bring a mapping into normal form; None stands for the current one.

    Raises:
        OperandError: if a key is not an axis name, or a value not a mesh axis, tuple of mesh axes or None.
    """
    return current_mapping() if mapping is None else normalized(mapping)


def current_mapping() -> AxisMapping | None:
    """Return the mapping of the innermost `axis_mapping`, or None.

    Examples:
        >>> with axn.axis_mapping({"batch": "data"}):
        ...     print(axn.current_mapping())
        {'batch': 'data'}
        >>> print(axn.current_mapping())
        None
    """
    return MAPPING.get()


def find_stored_mapping(names: Names, path: str | None = None) -> AxisMapping | None:
    """Return the mapping by which a parameter leaves the surrounding compiled function.

    None if it is not known: outside of compiled functions, and where mappings depend on paths. Data that leaves a loss
    function is sharded by the current mapping.

    Args:
        names: the names of its axes.
        path: its path, or the end of it, for `overrides`. A gradient does not know it.
    """
    mapping, stored = current_mapping(), STORED.get()
    if mapping is None or stored is None:
        return None
    if isinstance(stored, AxisMapping):
        stored = Mappings(stored, mapping)
    rules = [dict(extra) for _, extra in stored.overrides]
    if path is None and any(find_key(rule, name) for rule in rules for name in names):
        return None
    own = stored.of(names, path or "")
    # A block inside of the function may have changed the mapping of the computation.
    return mapping if own == stored.compute else own


def map_names(sizes: Mapping[str, int]) -> dict[str, Entry]:
    """Look up axes with their sizes in the current mapping; omit axes if neither they nor a base have an entry."""
    mapping, found = current_mapping(), dict[str, Entry]()
    if mapping is None:
        return found
    mesh = context_mesh()
    manual = modes.find_manual_axes(mesh) if mapping.fallbacks and mesh is not None else set()
    for name, size in sizes.items():
        key = find_key(mapping, name)
        # An empty entry counts: it says that the axis is replicated.
        if key is not None:
            found[name] = mapping.choose(key, size, mesh, manual)
    return found


def take_axes(mesh_axes: Entry) -> AbstractContextManager[Any]:
    """Prevent layouts inside from using Explicit mesh axes that a `vmap` maps over."""
    if not mesh_axes:
        return nullcontext()
    return TAKEN.using((*get_taken_axes(), *mesh_axes))


def unmap_names(names: Iterable[str]) -> AbstractContextManager[Any]:
    """Inside, shard arrays as if the current mapping mapped these axes to None."""
    # An entry of None, and not a missing one: derived names would otherwise follow their base.
    mapping = current_mapping()
    if mapping is None or not any(find_entry(dict(mapping), name) for name in names):
        return nullcontext()
    entries = {**mapping, **dict.fromkeys(names, ())}
    return MAPPING.using(dataclasses.replace(mapping, entries=tuple(entries.items())))


def get_taken_axes() -> Entry:
    """Return the Explicit mesh axes that surrounding `vmap`s map over."""
    return TAKEN.get()


def context_mesh(mesh: MeshLike | None = None) -> MeshLike | None:
    """Return the given mesh, otherwise the one of `jax.set_mesh`, or None.

    Raises:
        OperandError: if the argument is not a mesh.
    """
    if mesh is not None:
        if not isinstance(mesh, Mesh | AbstractMesh):
            problem = f"a mesh must be a Mesh or an AbstractMesh, not {mesh!r}"
            raise OperandError(
                message("mesh", problem, hint='write jax.make_mesh((4, 2), ("data", "model"))')
            )
        return mesh
    abstract = jax.sharding.get_abstract_mesh()
    return None if abstract.empty else abstract


def mesh_for_blocks(mesh: MeshLike) -> MeshLike | None:
    """Return the mesh for `jax.shard_map`: None if a mesh is current, since the given one may be a part of it."""
    return None if context_mesh() else mesh
