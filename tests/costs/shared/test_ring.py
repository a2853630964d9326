"""What devices in a ring send, against rings that are played step by step."""

import pytest

from axonym.costs.shared.ring import count_wire_bytes, estimate_latency, estimate_seconds, is_sent_one_way
from axonym.partitioning import TARGETS, Link, Target

TARGET = Target("t", {"float32": 1e12}, 2**30, 1e11, Link(1e9, 1e-6)).linked(data=Link(1e8, 1e-3))


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


def test_seconds_are_those_of_the_slowest_link():
    assert estimate_seconds("all-gather", 1000, 4, ("model",), TARGET) == pytest.approx(3e-6 + 3000 / 1e9)
    both = estimate_seconds("all-reduce", 1000, 4, ("data:2", "model"), TARGET)
    assert both == pytest.approx(6e-3 + 1500 / 1e8)
    assert estimate_latency("collective-permute", 2, ("data",), TARGET) == 1e-3


def test_one_neighbour_of_two_gets_one_port_of_two():
    def sent_to_one(target):
        return estimate_seconds("collective-permute", 1e9, 2, ("data",), TARGETS[target], is_one_way=True)

    assert sent_to_one("v5e") == pytest.approx(1e-6 + 1 / 50)
    assert sent_to_one("h100") == estimate_seconds("collective-permute", 1e9, 2, ("data",), TARGETS["h100"])


def test_who_sends_one_way():
    forward, backward = ((0, 1), (1, 2), (2, 0)), ((0, 2), (1, 0), (2, 1))
    assert is_sent_one_way(forward, 3, {frozenset(forward)})
    assert not is_sent_one_way(forward, 3, {frozenset(forward), frozenset(backward)})
    assert not is_sent_one_way([(0, 1)], 2, set())
    swap = frozenset({(0, 1), (1, 0), (2, 3), (3, 2)})
    assert is_sent_one_way(swap, 4, {swap})
    assert not is_sent_one_way([], 4, {frozenset()})
