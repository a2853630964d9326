"""What overlaps with a collective: by an assumption, or in a window of a schedule."""

import dataclasses

import pytest

import axonym as axn
from axonym.costs.shared.overlap import Window, apply_window, assume_overlap
from axonym.costs.shared.roofline import Sums, make_work
from tests.costs.made import GATHER, SUM, TARGET
from tests.costs.programs import MAPPINGS, MESH, abstract, step


def test_no_more_is_hidden_than_is_sent():
    window = Window(3.0, ("first", "second"))
    rows = [dataclasses.replace(GATHER, count=2, seconds=seconds) for seconds in (1.0, 3.0)]
    # Together, one run takes 2 s: less than the window. Ten times as much is not hidden by it.
    assert [one.hidden for one in apply_window(rows, window)] == [1.0, 3.0]
    longer = [dataclasses.replace(one, seconds=10 * one.seconds) for one in rows]
    shares = [one.hidden / one.seconds for one in apply_window(longer, window)]
    assert shares == pytest.approx([3 / 20, 3 / 20])
    assert apply_window(rows, None) == rows


def test_a_layer_hides_what_it_sends_where_that_is_assumed():
    # The layer computes for a second forward, and reads for five backward.
    counted = {("blocks.up", "forward"): Sums(1e12, 1e-5, 1e3), ("blocks.up", "backward"): Sums(1.0, 1e-6, 1e5)}
    rows = assume_overlap((GATHER, SUM), make_work(counted, (GATHER, SUM), TARGET))
    assert [(one.hidden, one.hidden_by) for one in rows] == [
        (pytest.approx(1e-5), ("computing",)),
        (pytest.approx(4e-5), ("memory",)),
    ]
    assert rows[0].exposed == pytest.approx(GATHER.seconds - 1e-5)
    assert rows[1].exposed == pytest.approx(0)


def test_the_traced_time_is_what_is_computed_and_what_nothing_hides():
    traced = axn.cost(axn.named_jit(step, MAPPINGS), MAPPINGS, MESH, *abstract(), target="v5e", depth="traced")
    time = traced.time
    exposed = sum(one.exposed for one in traced.communication)
    computed = sum(max(one.computing, one.moving) for one in traced.work)
    assert time.scheduled == pytest.approx(time.seconds)
    assert time.scheduled == pytest.approx(computed + exposed)
    assert not traced.is_scheduled
    assert time.seconds < time.serial
