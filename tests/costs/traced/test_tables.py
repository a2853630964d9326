"""The layouts of lookups in a template."""

import pytest

import axonym as axn
from axonym.costs.traced.tables import LAYOUTS, find_axes, list_axes, name_layouts
from axonym.engine import Table
from axonym.report import abstract_mesh

MESH = abstract_mesh({"data": 4, "model": 2}, "cost")
# More rows than ids on all devices, so rows are sent.
LARGE = Table(("vocab", "embed"), (4096, 32), "vocab", ("batch",), (64,))
SMALL = Table(("vocab", "embed"), (8, 32), "vocab", ("batch",), (64,))


def find_layouts(table, stored, computed):
    """Return the layout of the table, and those of the rows, without repetitions."""
    mappings = axn.Mappings({"vocab": None, "embed": None, **stored}, computed)
    found = find_axes(0, table, mappings, MESH)
    named = name_layouts(0, table)
    assert list(found) == list_axes(named)
    assert len(named) == LAYOUTS
    own, *rows = [{name: found[axis] for name, (axis,) in mapping.items()} for mapping in named]
    return own, [one for i, one in enumerate(rows) if i == 0 or one != rows[i - 1]]


@pytest.mark.parametrize(
    ("table", "stored", "computed", "own", "rows"),
    [
        (LARGE, {}, {}, {}, [{}]),
        # Parts of rows are sent to the devices of their ids.
        (LARGE, {"embed": "data"}, {"batch": "data"}, {"embed": "data"}, [{"embed": "data"}, {"batch": "data"}]),
        (
            LARGE,
            {"embed": "model"},
            {"batch": "data"},
            {"embed": "model"},
            [{"batch": "data", "embed": "model"}, {"batch": "data"}],
        ),
        # A small table is gathered.
        (SMALL, {"embed": "data"}, {"batch": "data"}, {}, [{"batch": "data"}]),
        (SMALL, {"embed": "model"}, {"batch": "data"}, {}, [{"batch": "data"}]),
        # A device that has some of the rows cannot look up the others.
        (LARGE, {"vocab": "model"}, {"batch": "data"}, {}, [{"batch": "data"}]),
    ],
)
def test_rows_are_looked_up_where_they_are_stored(table, stored, computed, own, rows):
    def complete(names, layout):
        return {name: (layout[name],) if name in layout else () for name in names}

    wanted = complete(table.names, own), [complete(("batch", "embed"), one) for one in rows]
    assert find_layouts(table, stored, computed) == wanted
