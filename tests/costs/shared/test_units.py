"""Texts of numbers."""

import pytest

from axonym.costs.shared.units import write_count, write_mesh, write_time


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0"), (2.5e-9, "2.5 ns"), (1.5e-6, "1.5 µs"), (2e-3, "2 ms"), (12.34, "12.3 s")],
)
def test_times(seconds, text):
    assert write_time(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (12, "12"), (65536, "65.5 k"), (2e9, "2 G"), (3.21e12, "3.21 T")]
)
def test_large_numbers(number, text):
    assert write_count(number) == text


def test_meshes():
    assert write_mesh([("data", 4), ("model", 2)]) == "data=4, model=2"
