"""What is sent, so that a layout becomes another one."""

import pytest

from axonym.costs.traced.compilers import CPU
from axonym.costs.traced.equations import Value
from axonym.costs.traced.moves import count_group, list_moves
from axonym.costs.traced.propagation import Sum
from tests.costs.equations_made import SIZES

D, M = ("data",), ("model",)


def listed(entries, wanted, partial=(), **options):
    value = Value((16, 8), "float32", 4, entries, partial)
    return [(one.kind, one.mesh_axes, one.shape) for one in list_moves(value, wanted, SIZES, **options)]


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
    assert listed((D, ()), (D, M), M, compiler=CPU) == [("all-reduce", M, (4, 8))]


def test_sums_over_several_dimensions():
    sums = Sum(D, 32), Sum(M, 64)
    assert listed(((), ()), ((), ()), (*D, *M), sums=sums) == [("all-reduce", (*D, *M), (16, 8))]
    each = [("all-reduce", D, (16, 8)), ("all-reduce", M, (16, 8))]
    assert listed(((), ()), (D, ()), (*D, *M), sums=sums, compiler=CPU) == each


def test_parts_of_a_sum_may_stay():
    assert listed((D, ()), (D, ()), M, keeping=M) == []


def test_devices_that_take_part():
    (one,) = list_moves(Value((16, 8), "float32", 4, ((*D, *M), ()), ()), ((), ()), SIZES)
    assert count_group(one, SIZES) == 8
    assert one.elements == 16


def test_one_sum_for_all_mesh_axes_that_divide_the_result():
    sums = Sum(D, 32), Sum(M, 64)
    assert listed(((), ()), ((*D, *M), ()), (*D, *M), sums=sums, compiler=CPU) == [("all-reduce", (*D, *M), (16, 8))]
    assert listed(((), ()), ((*D, *M), ()), (*D, *M), sums=sums) == [("reduce-scatter", (*D, *M), (16, 8))]
