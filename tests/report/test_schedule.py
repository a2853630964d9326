"""The schedule of a pipeline, and its picture."""

import re

import pytest

from axonym.errors import ArgumentError
from axonym.partitioning import schedule


def test_each_stage_works_on_each_microbatch_one_tick_after_the_stage_before():
    plan = schedule(stages=3, microbatches=5)
    assert (plan.ticks, plan.bubble) == (7, 2 / 7)
    for stage in range(3):
        assert [plan.microbatch(stage, tick) for tick in range(stage, stage + 5)] == [0, 1, 2, 3, 4]
    assert sum(plan.microbatch(stage, tick) is None for stage in range(3) for tick in range(7)) == 6


def test_it_prints():
    expected = "\n".join(
        [
            "tick       0 1 2 3 4",
            "stage 0    0 1 2 3 .",
            "stage 1    . 0 1 2 3",
            "waiting: 20%",
        ]
    )
    assert str(schedule(2, 4)) == expected


def test_the_picture_has_a_cell_for_each_stage_and_tick(tmp_path):
    svg = schedule(3, 5).svg()
    assert svg.count("<rect") == 21 + 15  # cells, and work in them
    labels = re.findall(r'text-anchor="middle">(\d)<', svg)
    assert sorted(labels) == sorted("01234" * 3)
    schedule(3, 5).save(tmp_path / "schedule.svg")
    assert (tmp_path / "schedule.svg").read_text().startswith("<svg")
    assert schedule(3, 5)._repr_html_() == svg


def test_a_microbatch_goes_back_from_stage_to_stage():
    plan = schedule(stages=3, microbatches=4, backward=True)
    assert plan.ticks == 8
    for micro in range(4):
        assert [plan.returning(stage, micro + 4 - stage) for stage in range(3)] == [micro] * 3
    # On the last stage, it turns back in the tick in which it arrives.
    assert all(plan.returning(2, tick) == plan.microbatch(2, tick) for tick in range(8))
    rows = str(plan).splitlines()
    assert rows[1].split() == ["stage", "0", "0", "1", "2", "3", "-0", "-1", "-2", "-3"]
    assert rows[3].split() == ["stage", "2", ".", ".", "0-0", "1-1", "2-2", "3-3", ".", "."]
    assert plan.svg().count("<rect") == 24 + 2 * 12


def test_a_microbatch_passes_all_stages_in_each_round():
    plan = schedule(stages=3, microbatches=6, rounds=2)
    assert (plan.ticks, plan.bubble) == (14, 2 / 14)
    for micro in range(6):
        found = []
        for tick in range(14):
            found += [(plan.round(at, tick), at) for at in range(3) if plan.microbatch(at, tick) == micro]
        assert found == [(turn, stage) for turn in range(2) for stage in range(3)]
    rows = str(plan).splitlines()
    assert rows[2] == "stage 1      . 0:0 1:0 2:0 0:1 1:1 2:1 3:0 4:0 5:0 3:1 4:1 5:1   ."
    assert rows[-1] == "waiting: 14%"
    svg = plan.svg()
    assert svg.count("<rect") == 42 + 36
    assert svg.count(">4:1<") == 3
    assert "3 stages, 6 microbatches, 2 rounds" in svg


def test_what_does_not_go_together_with_rounds():
    with pytest.raises(ArgumentError, match="there are 2 rounds, and stages work backward in the same ticks"):
        schedule(4, 8, backward=True, rounds=2)
    with pytest.raises(ArgumentError, match="6 microbatches cannot be divided evenly among 4 stages"):
        schedule(4, 6, rounds=2)


@pytest.mark.parametrize("counts", [(0, 4, 1), (4, 0, 1), (4, 4, 0)])
def test_counts_are_positive(counts):
    stages, microbatches, rounds = counts
    with pytest.raises(ArgumentError, match=r"schedule: the number of \w+ must be positive, not 0"):
        schedule(stages, microbatches, rounds=rounds)
