"""The layouts between two layouts: each moves mesh axes from one dimension."""

import pytest

from axonym.faults.gathered_moves import list_moves
from axonym.layout.layout import Layout


@pytest.mark.parametrize(
    ("source", "target", "between"),
    [
        ([(), ("data",), ("model",)], [("data", "model"), (), ()], [[("data",), (), ("model",)]]),
        ([(), ("data", "model"), ()], [("data", "model"), (), ()], []),
        ([(), (), ()], [("data", "model"), (), ()], []),
        ([("data",), (), ()], [("data",), ("model",), ()], []),
        # What a dimension keeps must come first; otherwise it is one step.
        ([("model",), ("data",), ()], [("data", "model"), (), ()], []),
    ],
)
def test_a_move_is_cut_in_exchanges(source, target, between) -> None:
    found = list_moves(Layout(source), Layout(target))
    assert found == [Layout(source), *map(Layout, between), Layout(target)]
