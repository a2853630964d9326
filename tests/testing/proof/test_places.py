"""Coordinates as digits of a position."""

from fractions import Fraction

from axonym.testing.proof.claims import start
from axonym.testing.proof.facts import Known
from axonym.testing.proof.places import count_behind, make_exact, reshape, strip


def test_elements_behind_one_along_each_dimension() -> None:
    assert count_behind((2, 3, 4)) == [12, 4, 1]
    assert count_behind(()) == []


def test_whole_fractions_are_exact_numbers() -> None:
    assert isinstance(make_exact(Fraction(4, 2)), int)
    assert make_exact(Fraction(1, 2)) == Fraction(1, 2)


def test_an_axis_that_is_split_and_merged_again_is_one_axis() -> None:
    known = start("time", ("time", "embed"), (6, 4))
    split = reshape(known.reach, (6, 4), (2, 3, 4), None)
    assert reshape(split, (2, 3, 4), (6, 4), None) == known.reach
    assert isinstance(known, Known)
    assert all(strip(digits) for digits in split)
