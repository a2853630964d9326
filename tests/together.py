"""Compile what many rows of a table ask for as one program: most of what a small program costs is not its own."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

__all__ = ["together"]

AT_ONCE = 12

Job = tuple[Callable[..., Any], Sequence[Any]]
_outcomes: dict[Any, list[Any]] = {}


def together(make: Callable[..., Job], rows: Sequence[Any], row: Any, *given: Any) -> Any:
    """Return what the job of one row gives: `make(row, *given)` makes it, a function and its arguments.

    It is compiled with the jobs of the rows beside it in `rows`. Where one of them fails, each runs alone, so that an
    error is that of its own row.
    """
    at = next(i for i, each in enumerate(rows) if each is row)
    start = at - at % AT_ONCE
    beside = rows[start : start + AT_ONCE]
    key = (make, *map(id, beside), *given)
    if key not in _outcomes:
        _outcomes[key] = _run([make(each, *given) for each in beside])
    outcome = _outcomes[key][at - start]
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


@functools.cache
def _at_once(functions: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    """Make one function of many, the same one each time, so that new values for known shapes compile nothing."""

    def all_of_them(arguments: Sequence[Any]) -> list[Any]:
        return [fn(*own) for fn, own in zip(functions, arguments, strict=True)]

    return jax.jit(all_of_them)


def _run(jobs: Sequence[Job]) -> list[Any]:
    try:
        return _at_once(tuple(fn for fn, _ in jobs))([arguments for _, arguments in jobs])
    except Exception as error:
        return [error] if len(jobs) == 1 else [outcome for job in jobs for outcome in _run([job])]
