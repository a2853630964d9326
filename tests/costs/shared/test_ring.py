"""What devices in a ring send, against rings that are played step by step."""

import pytest

from axonym.costs.shared.network import find_levels
from axonym.costs.shared.ring import (
    count_wire_bytes,
    estimate_latency,
    estimate_sending,
    find_distance,
    is_sent_one_way,
)
from axonym.partitioning import TARGETS, Link, Target

TARGET = Target("t", {"float32": 1e12}, 2**30, 1e11, Link(1e9, 1e-6))


def sent_in_a_ring(kind, shard, devices):
    """Add up what one device of a ring hands to the next."""
    steps = {"all-gather": 1, "reduce-scatter": 1, "all-reduce": 2}[kind]
    return steps * sum(shard for _ in range(devices - 1))


@pytest.mark.parametrize("kind", ["all-gather", "reduce-scatter", "all-reduce"])
@pytest.mark.parametrize("devices", [2, 4, 8])
def test_bytes(kind, devices):
    shard = 1000
    operand = shard if kind == "all-gather" else shard * devices
    assert count_wire_bytes(kind, operand, devices) == sent_in_a_ring(kind, shard, devices)


def test_other_kinds():
    assert count_wire_bytes("collective-permute", 1000, 2) == 1000
    assert count_wire_bytes("all-to-all", 1000, 4) == 750


def test_latency_is_that_of_the_way():
    # Behind a switch, the number of devices that have the array doubles with each step.
    levels = find_levels(("model",), 4, {"data": 2, "model": 4}, TARGET)
    assert estimate_latency("all-gather", levels) == 2e-6
    assert estimate_latency("all-reduce", levels) == 4e-6
    assert estimate_latency("collective-permute", levels) == 1e-6


def test_a_link_with_two_neighbours_is_a_ring():
    ring = Target("r", {"float32": 1e12}, 2**30, 1e11, Link(1e9, 1e-6, one_way=5e8))
    levels = find_levels(("data",), 8, {"data": 8}, ring)
    assert estimate_sending("all-gather", 1000, levels) == [pytest.approx(7000 / 1e9)]
    assert estimate_latency("all-gather", levels) == 4e-6


def test_one_neighbour_of_two_gets_one_port_of_two():
    def sent_to_one(target, devices):
        levels = find_levels(("data",), devices, {"data": devices}, TARGETS[target])
        return estimate_sending("collective-permute", 1e9, levels, is_one_way=True)

    assert sent_to_one("v5e", 16) == [pytest.approx(1 / 50)]
    # Two chips have one link.
    pair = find_levels(("data",), 2, {"data": 2}, TARGETS["v5e"])
    assert estimate_sending("collective-permute", 1e9, pair) == [pytest.approx(1 / 50)]
    assert sent_to_one("h100", 8) == [pytest.approx(1 / 450)]


def test_how_far_messages_go():
    assert find_distance([(0, 1), (1, 2), (2, 0)], 3) == 1
    assert find_distance([(0, 5), (3, 0)], 8) == 3
    assert find_distance([], 4) == 1


def test_who_sends_one_way():
    forward, backward = ((0, 1), (1, 2), (2, 0)), ((0, 2), (1, 0), (2, 1))
    assert is_sent_one_way(forward, 3, {frozenset(forward)})
    assert not is_sent_one_way(forward, 3, {frozenset(forward), frozenset(backward)})
    assert not is_sent_one_way([(0, 1)], 2, set())
    swap = frozenset({(0, 1), (1, 0), (2, 3), (3, 2)})
    assert is_sent_one_way(swap, 4, {swap})
    assert not is_sent_one_way([], 4, {frozenset()})
