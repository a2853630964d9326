"""Operators under a type checker: comparisons, too, are elementwise."""

from typing import assert_type

from axonym import NamedArray


def compare(x: NamedArray, y: NamedArray) -> None:
    assert_type(x == y, NamedArray)
    assert_type(x != 1, NamedArray)
    assert_type((x == 1).sum("a"), NamedArray)
    assert_type(x < 2.0, NamedArray)
    assert_type(1 - x, NamedArray)
    assert_type(~(x >= y), NamedArray)
