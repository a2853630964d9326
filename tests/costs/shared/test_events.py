"""Events of a program get their time from the links of a target."""

import pytest

from axonym.costs.shared.events import Sending
from axonym.costs.shared.places import Place
from axonym.partitioning import Link
from tests.costs.made import TARGET


def test_arrays_that_are_sent_together_wait_once():
    target = TARGET.linked(data=Link(1e9, latency=1e-3))
    one = Sending("all-gather", ("data",), ("embed",), Place("up", "forward"), 5, 4, 1000, (250,), "f32")
    row = one.estimate(target, {"data": 4})
    # Two steps of a tree for each of five runs, and three of four parts of 1000 bytes arrive.
    assert row.seconds == pytest.approx(5 * (2e-3 + 3000 / 1e9))
    assert (row.kind, row.axes, row.layer, row.phase, row.count) == ("all-gather", ("embed",), "up", "forward", 5)
    pair = [one._replace(together=2).estimate(target, {"data": 4}) for _ in range(2)]
    assert sum(each.seconds for each in pair) == pytest.approx(5 * (2e-3 + 2 * 3000 / 1e9))
