"""Helpers without a public name."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from axonym.errors import ArgumentError, message

__all__ = ["index_where"]

T = TypeVar("T")


def index_where(pred: Callable[[T], bool], xs: Sequence[T], start: int = 0) -> int:
    """Return the first index, from `start` on, whose entry satisfies a predicate.

    Raises:
        ArgumentError: if there is none.
    """
    for i in range(start, len(xs)):
        if pred(xs[i]):
            return i
    raise ArgumentError(
        message("index_where", f"no entry from index {start} on satisfies the predicate")
    )
