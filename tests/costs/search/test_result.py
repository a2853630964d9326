"""What plans print: the best mappings, and why others lose."""

import dataclasses

import axonym as axn
from axonym.costs.search.result import Candidate, Plan
from axonym.costs.shared.roofline import make_work
from axonym.report import byte_text
from tests.costs.made import GATHER, LOST, MEMORY, SUM, TARGET, made

MESH = (("data", 4),)
BEST = Candidate(MESH, axn.Mappings({"embed": "data"}, {"batch": "data"}), made(communication=(GATHER, LOST)))
MORE = Candidate(MESH, axn.Mappings({"embed": None}, {"batch": "data"}), made(communication=(GATHER, SUM, LOST)))
LARGE = dataclasses.replace(MORE, cost=made(memory=dataclasses.replace(MEMORY, temporary=2**21)))


def test_a_plan_tells_the_best_mappings_and_why_others_lose():
    plan = Plan(BEST, (MORE, LARGE), counted=5, illegal=2, is_complete=True)
    first, table = str(plan).split("\n\n")
    assert first == (
        "for t1, mesh data=4: 5 mappings counted, 2 others not legal; the search ended by itself\n"
        "times are bounds, at the peaks of the device"
    )
    header, best, more, large = table.splitlines()
    assert header.split() == ["parameters", "computation", "time", "sent", "peak"]
    assert best.split()[:2] == ["embed→data", "batch→data"]
    assert best.endswith("best")
    assert more.split()[:2] == ["nothing", "batch→data"]
    assert more.endswith("slower, +36.0 KiB for batch")
    assert "does not fit by" in large
    assert plan.mappings is BEST.mappings
    assert plan.mesh == {"data": 4}


def test_meshes_are_told_where_they_differ():
    other = dataclasses.replace(MORE, mesh=(("data", 2), ("model", 2)))
    assert "data=2, model=2" in str(Plan(BEST, (other,), 2, 0, is_complete=False))


def test_the_best_mapping_takes_no_time():
    """As in a program that only passes arrays on."""
    instant = dataclasses.replace(BEST, cost=made(communication=(), work=make_work({}, (), TARGET)))
    lines = str(Plan(instant, (instant, MORE), 2, 0, is_complete=True)).splitlines()
    assert lines[-2].endswith("0% slower")
    assert lines[-1].endswith("  slower, +36.0 KiB for batch")


def test_nothing_fits():
    larger = dataclasses.replace(LARGE, cost=made(memory=dataclasses.replace(MEMORY, temporary=2**22)))
    plan = Plan(LARGE, (larger,), 2, 0, is_complete=False)
    assert "nothing fits, traced\n" in str(plan)
    assert "lacks 2.0 MiB more" in str(plan)
    # Traced, it fits, but the compiler needs more.
    compiled = dataclasses.replace(BEST, compiled=LARGE.cost)
    text = f"nothing fits, as compiled; the table has traced peaks, {byte_text(BEST.cost.memory.peak)} for the best\n"
    assert text in str(Plan(compiled, (), 1, 0, is_complete=False))
    assert plan.problems == LARGE.cost.problems
    assert LARGE.cost.memory.peak > TARGET.memory


def test_long_mappings_are_told_in_full():
    # They differ at the end alone.
    def candidate(last):
        entries = dict.fromkeys(("batch", "heads", "position", "vocabulary", last), ("data", "model"))
        return dataclasses.replace(MORE, mappings=axn.Mappings(entries, entries))

    text = str(Plan(candidate("mlp"), (candidate("experts"), candidate("expert")), 3, 0, is_complete=True))
    assert max(map(len, text.splitlines())) <= 120
    for last in ("mlp", "experts", "expert"):
        assert text.count(f"{last}→data+model") == 2, text
