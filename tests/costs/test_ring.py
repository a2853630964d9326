"""What devices in a ring send, against rings that are played step by step."""

import pytest

from axonym.costs.ring import latency_of, seconds_of, wire_bytes
from axonym.partitioning import Link, Target

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
    assert wire_bytes(kind, operand, devices) == sent_in_a_ring(kind, shard, devices)


def test_other_kinds():
    assert wire_bytes("collective-permute", 1000, 2) == 1000
    assert wire_bytes("all-to-all", 1000, 4) == 750


def test_seconds_are_those_of_the_slowest_link():
    assert seconds_of("all-gather", 1000, 4, ("model",), TARGET) == pytest.approx(3e-6 + 3000 / 1e9)
    both = seconds_of("all-reduce", 1000, 4, ("data:2", "model"), TARGET)
    assert both == pytest.approx(6e-3 + 1500 / 1e8)
    assert latency_of("collective-permute", 2, ("data",), TARGET) == 1e-3
