"""Plans of a small step, against mappings written by hand and against all legal ones."""

import dataclasses
import functools

import pytest

import axonym as axn
from axonym.errors import ArgumentError, OperandError, ShardingError
from axonym.partitioning import TARGETS
from tests.costs.programs import MESH, abstract, step

# So slow links that what is sent decides; and a memory of any size.
TARGET = dataclasses.replace(TARGETS["v5e"], link=axn.partitioning.Link(1e9))
donating = axn.named_jit(step, {}, donate_args=(True, True))
HAND = {
    "dp": ({}, {"batch": "data"}),
    "fsdp": ({"embed": "data"}, {"batch": "data"}),
    "tp": ({"mlp": "model"}, {"mlp": "model"}),
    "fsdp+tp": ({"embed": "data", "mlp": "model"}, {"batch": "data", "mlp": "model"}),
}


def rank(cost, target):
    over = max(0, cost.memory.peak - target.memory)
    return over, cost.time.seconds


@functools.cache
def planned(memory):
    target = dataclasses.replace(TARGET, memory=memory)
    return axn.plan(donating, MESH, *abstract(), target=target, limit=40)


@pytest.mark.parametrize("memory", [2**30, 16000], ids=["roomy", "tight"])
def test_a_plan_is_not_worse_than_what_is_written_by_hand(memory):
    target = dataclasses.replace(TARGET, memory=memory)
    found = planned(memory)
    for mappings in HAND.values():
        theirs = axn.cost(donating, axn.Mappings(*mappings), MESH, *abstract(), target=target, depth="traced")
        assert rank(found.best.cost, target) <= rank(theirs, target)


def test_the_plan_is_what_it_says():
    found = planned(2**30)
    again = axn.cost(donating, found.mappings, found.mesh, *abstract(), target=TARGET, depth="traced")
    assert again.totals == found.best.cost.totals
    assert found.mesh == MESH
    ranks = [rank(one.cost, found.best.cost.target) for one in (found.best, *found.others)]
    assert ranks == sorted(ranks)
    assert "slower" in str(found)


def test_what_does_not_fit_is_said():
    found = planned(1000)
    assert found.problems
    assert "nothing fits" in str(found)
    peaks = [one.cost.memory.peak for one in found.others]
    assert found.best.cost.memory.peak == min([*peaks, found.best.cost.memory.peak])


def test_fixed_entries_stay():
    found = axn.plan(donating, {"data": 4}, *abstract(), target=TARGET, fixed={"batch": "data"}, limit=10)
    for one in (found.best, *found.others):
        assert dict(one.mappings.compute.entries)["batch"] == ("data",)


def test_numbers_of_devices_compare_meshes():
    found = axn.plan(donating, 4, *abstract(), target=TARGET, limit=9)
    meshes = {tuple(dict(one.mesh).values()) for one in (found.best, *found.others)}
    assert meshes == {(4, 1), (2, 2)}


def test_mesh_axes_that_differ_compare_all_meshes():
    slow = TARGET.linked(data=axn.partitioning.Link(1e8))
    found = axn.plan(donating, 4, *abstract(), target=slow, limit=12)
    meshes = {tuple(dict(one.mesh).values()) for one in (found.best, *found.others)}
    assert meshes == {(4, 1), (2, 2), (1, 4)}


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"mesh": 0}, ArgumentError, "plan: the number of devices must be positive, not 0"),
        (
            {"mesh": 4, "limit": 1},
            ArgumentError,
            "plan: limit=1 mappings cannot be counted on 2 meshes\n  hint: use a larger limit",
        ),
        (
            {"mesh": MESH, "target": "v5"},
            OperandError,
            "cost: there is no target 'v5'\n  names: v5e, v5p, v6e, h100, cpu\n  hint: did you mean 'v5p'?",
        ),
    ],
)
def test_mistakes(options, error, text):
    mesh = options.pop("mesh")
    with pytest.raises(error) as raised:
        axn.plan(donating, mesh, *abstract(), **options)
    assert str(raised.value) == text


def test_a_tree_has_no_plan():
    with pytest.raises(OperandError, match="plan: it takes a function or a module, not dict"):
        axn.plan({}, MESH)


def test_what_is_fixed_wrongly_is_an_error():
    with pytest.raises(ShardingError, match="'bacth'"):
        axn.plan(donating, MESH, *abstract(), fixed={"bacth": "data"})
