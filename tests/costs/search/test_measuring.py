"""What runs change in the order of mappings."""

import dataclasses
import functools

import jax
import pytest

import axonym as axn
from axonym.costs.search.measuring import measure_best
from axonym.costs.search.result import Candidate
from axonym.errors import ArgumentError, OperandError
from tests.costs.made import LOST, MEMORY, made
from tests.costs.programs import MESH, abstract, step

LARGE = dataclasses.replace(MEMORY, temporary=2**21)
SECONDS = {"a": 3e-3, "b": 1e-3, "d": 2e-3}


def candidate(name, memory=MEMORY):
    return Candidate((("data", 4),), axn.Mappings({}, {name: "data"}), made(communication=(LOST,), memory=memory))


def name_of(one):
    return one.mappings.compute.entries[0][0]


def test_the_fastest_one_that_ran_goes_first():
    ordered = [candidate("a"), candidate("b"), candidate("c", LARGE), candidate("d"), candidate("e")]
    found = measure_best(ordered, 2, lambda one: SECONDS[name_of(one)])
    assert [(name_of(one), one.cost.measured) for one in found] == [
        ("b", 1e-3),
        ("a", 3e-3),
        ("c", None),
        ("d", None),
        ("e", None),
    ]

    # One that does not fit is not run, and one that fails comes behind.
    def fail(one):
        if name_of(one) == "b":
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED")
        return SECONDS[name_of(one)]

    found = measure_best(ordered, 3, fail)
    assert [name_of(one) for one in found] == ["d", "a", "b", "c", "e"]


def test_a_plan_runs_the_best_ones_and_tells_how_long_they_take():
    plan = functools.partial(axn.plan, step, dict(MESH), *abstract(), limit=12, verify=0)
    found = plan(measure=2)
    measured = [one.cost.measured for one in (found.best, *found.others)]
    assert 0 < measured[0] <= measured[1]
    assert measured[2:] == [None] * (len(measured) - 2)
    assert "predicted  measured" in str(found)
    text = f"{measured[1] / measured[0] - 1:.0%} slower, measured"
    assert text in str(found)


def test_only_devices_of_the_target_are_measured():
    plan = functools.partial(axn.plan, step, dict(MESH), *abstract())
    with pytest.raises(OperandError) as raised:
        plan(measure=2, target="v5p")
    assert str(raised.value) == (
        "plan: measure=2 needs devices of v5p, and these are cpu\n  hint: plan for the machine that runs"
    )
    with pytest.raises(ArgumentError) as raised:
        plan(measure=-1)
    assert str(raised.value) == ("plan: measure must not be negative, not -1\n  hint: measure=0 runs nothing")
