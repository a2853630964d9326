"""Internal. How rows are looked up in tables of parameters, in a template.

A layer asks for sizes of the mesh to decide whether devices send the table, or its rows in several steps. In a
template, each step has mesh axes of its own, which stand for the layout of this step.
"""

from collections.abc import Sequence

from jax.sharding import AbstractMesh

from ... import Mappings
from ...engine import AxisMapping, Entry, Table, list_layouts

# The layouts of a lookup: that of the table, and those of rows from where they are stored to where they are needed.
# Steps that a mapping does not need change nothing.
LAYOUTS = 6


def name_layouts(number: int, table: Table) -> tuple[AxisMapping, ...]:
    """Return mappings of the layouts of a lookup, to mesh axes that stand for them."""
    columns = [name for name in table.names if name != table.rows]
    several = (table.names, *[(*table.axes, *columns)] * (LAYOUTS - 1))
    return tuple(
        AxisMapping(tuple((name, (f"table {number} {step} {name}",)) for name in names))
        for step, names in enumerate(several)
    )


def list_axes(named: Sequence[AxisMapping]) -> list[str]:
    """List the mesh axes of `name_layouts`."""
    return [axis for mapping in named for entry in mapping.values() for axis in entry]


def find_axes(
    number: int, table: Table, mappings: Mappings, mesh: AbstractMesh
) -> dict[str, Entry]:
    """Return, for each mesh axis of `name_layouts`, the mesh axes for which it stands.

    Raises:
        ShardingError: if a mapping does not fit the table.
        NotImplementedError: if rows are sent in more steps.
    """
    found = list_layouts(table, mappings.compute, mappings.of(table.names), mesh)
    if len(found) > LAYOUTS:
        raise NotImplementedError("rows of a table are sent in more steps")
    found += found[-1:] * (LAYOUTS - len(found))
    return {
        axis: layout.get(name, ())
        for mapping, layout in zip(name_layouts(number, table), found, strict=True)
        for name, (axis,) in mapping.items()
    }
