"""The rows of a report add up."""

from tests.costs.made import MEMORY, made


def test_memory_at_the_peak():
    assert MEMORY.arguments == 49152 + 98304 + 1024
    assert MEMORY.peak == MEMORY.arguments + 20000 + 50000 - 49152
    assert made().problems == ()
