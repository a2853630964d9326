"""The reference: for each function of axonym that programs use, one of the same name on `Table`s."""

from types import SimpleNamespace
from typing import Any

from tests.fuzz import along, elementwise, indexing, loops, shapes
from tests.fuzz.table import Table

__all__ = ["REFERENCE"]


def _unchanged(x: Table, *_: Any) -> Table:
    return x


# Outside of a shard_map, nothing is split over devices, and collectives have nothing to do.
_COLLECTIVES = dict.fromkeys(("psum", "pmean", "pmax", "pmin"), _unchanged)

_FUNCTIONS: dict[str, Any] = {
    **elementwise.FUNCTIONS,
    **along.FUNCTIONS,
    **shapes.FUNCTIONS,
    **indexing.FUNCTIONS,
    **loops.FUNCTIONS,
    **_COLLECTIVES,
    "Axis": shapes.Axis,
}
REFERENCE = SimpleNamespace(**_FUNCTIONS)
