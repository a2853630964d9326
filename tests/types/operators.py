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


def refused(x: NamedArray, y: NamedArray) -> None:
    x @ y  # type: ignore[operator]  # pyright: ignore[reportOperatorIssue, reportUnusedExpression]
    print("a" in x)  # type: ignore[operator]  # pyright: ignore[reportOperatorIssue]
    "a" + x  # type: ignore[operator]  # pyright: ignore[reportOperatorIssue, reportUnusedExpression]
    list(x)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    x[0]  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportUnusedExpression]
    x.at[0]  # type: ignore[index]  # pyright: ignore[reportArgumentType, reportUnusedExpression]
