"""Internal. One value for how an array is sharded: the mesh axes of each of its dimensions.

All code that reasons about shardings passes a `Layout`; it becomes a `PartitionSpec` only where JAX is called.
"""

from collections.abc import Container

from jax.sharding import PartitionSpec

from ..names.plans import Names
from .assignment import Entry


class Layout(tuple[Entry, ...]):
    """The mesh axes of each dimension of an array; an empty entry for a dimension that is replicated."""

    __slots__ = ()

    @classmethod
    def from_spec(cls, spec: PartitionSpec, ndim: int = 0) -> "Layout":
        """Read a PartitionSpec; one that is shorter than `ndim` replicates the last dimensions."""
        entries = [_to_entry(part) for part in spec.partitions]
        entries += [()] * (ndim - len(entries))
        return cls(entries)

    @property
    def spec(self) -> PartitionSpec:
        """The PartitionSpec that JAX takes."""
        return PartitionSpec(*(entry[0] if len(entry) == 1 else entry or None for entry in self))

    @property
    def mesh_axes(self) -> set[str]:
        """All mesh axes over which some dimension is sharded."""
        return {axis for entry in self for axis in entry}

    def by_name(self, names: Names) -> dict[str, Entry]:
        """Return the mesh axes of each named dimension; the named dimensions are the last ones."""
        return dict(zip(names, self[len(self) - len(names) :], strict=True))

    def replace(self, at: int, entry: Entry) -> "Layout":
        """Return a layout with other mesh axes at one dimension."""
        entries = list(self)
        entries[at] = entry
        return Layout(entries)

    def only(self, mesh_axes: Container[str]) -> "Layout":
        """Keep some mesh axes, and replicate over the others."""
        return Layout(tuple(axis for axis in entry if axis in mesh_axes) for entry in self)

    def without(self, mesh_axes: Container[str]) -> "Layout":
        """Replicate over some mesh axes."""
        return Layout(tuple(axis for axis in entry if axis not in mesh_axes) for entry in self)


def replicate(ndim: int) -> Layout:
    """Return the layout of a replicated array."""
    return Layout([()] * ndim)


def _to_entry(part: object) -> Entry:
    if isinstance(part, str):
        return (part,)
    # Neither None nor UNCONSTRAINED names a mesh axis.
    return part if isinstance(part, tuple) else ()
