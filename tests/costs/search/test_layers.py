"""Values that layers have in turn: which lists there are."""

import itertools

import pytest

import axonym as axn
from axonym.errors import ArgumentError
from axonym.partitioning import EachLayer


def test_all_shares_that_the_length_allows():
    found = EachLayer([True, "offload", False], layers=80)
    # Ten layers in an iteration: all sums of three numbers up to ten.
    sums = {own for own in itertools.product(range(11), repeat=3) if sum(own) == 10}
    assert {tuple(round(10 * share) for share in own) for own in found.shares} == sums
    assert len(found) == len(sums) == len(found.shares)
    assert found[:3] == [True, "offload", False]
    for values, shares in zip(found[3:], found.shares[3:], strict=True):
        assert 80 % len(values) == 0
        # A list has the shares, and does not repeat itself.
        assert tuple(values.count(value) / len(values) for value in found.values) == pytest.approx(shares)
        assert all(values[:own] * (len(values) // own) != values for own in range(1, len(values)))
        assert len(axn.ScanCheckpointPolicy.make(values).turns) == len(values)


@pytest.mark.parametrize(
    ("layers", "longest", "length"), [(61, 10, 1), (1, 10, 1), (2, 10, 1), (4, 10, 2), (126, 10, 9)]
)
def test_a_loop_has_two_iterations_or_more(layers, longest, length):
    assert len(EachLayer([True, False], layers, longest=longest)) == length + 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (([], 4), "EachLayer: the number of values must be positive, not 0"),
        (([True], 0), "EachLayer: the number of layers must be positive, not 0"),
        (([True], 4, 0), "EachLayer: longest must be positive, not 0"),
    ],
)
def test_mistakes(arguments, text):
    values, layers, *longest = arguments
    with pytest.raises(ArgumentError) as raised:
        EachLayer(values, layers, **dict(zip(["longest"], longest, strict=False)))
    assert str(raised.value) == text
    assert "lists" in repr(EachLayer([True, False], 4))
