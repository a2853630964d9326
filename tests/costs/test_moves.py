"""What is sent, so that a layout becomes another one."""

import pytest

from axonym.costs.equations import Value
from axonym.costs.moves import group, moves
from tests.costs.equations_made import SIZES

D, M = ("data",), ("model",)


def listed(entries, wanted, partial=(), **options):
    value = Value((16, 8), "float32", 4, entries, partial)
    return [(one.kind, one.mesh_axes, one.shape) for one in moves(value, wanted, SIZES, **options)]


@pytest.mark.parametrize(
    ("entries", "wanted", "partial", "expected"),
    [
        ((D, ()), (D, ()), (), []),
        (((), ()), (D, M), (), []),
        ((D, M), (D, ()), (), [("all-gather", M, (4, 4))]),
        ((D, ()), ((), D), (), [("all-to-all", D, (4, 8))]),
        ((D, ()), ((), M), (), [("all-gather", D, (4, 4))]),
        (((*D, *M), ()), ((), ()), (), [("all-gather", (*D, *M), (2, 8))]),
        ((D, ()), (D, ()), M, [("all-reduce", M, (4, 8))]),
        ((D, ()), (D, M), M, [("reduce-scatter", M, (4, 8))]),
    ],
)
def test_moves(entries, wanted, partial, expected):
    assert listed(entries, wanted, partial) == expected


def test_a_compiler_that_scatters_no_sum():
    assert listed((D, ()), (D, M), M, scatters=False) == [("all-reduce", M, (4, 8))]


def test_parts_of_a_sum_may_stay():
    assert listed((D, ()), (D, ()), M, keeping=M) == []


def test_devices_that_take_part():
    (one,) = moves(Value((16, 8), "float32", 4, ((*D, *M), ()), ()), ((), ()), SIZES)
    assert group(one, SIZES) == 8
    assert one.elements == 16
