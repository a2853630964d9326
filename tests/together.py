"""Compile what many rows of a table ask for as one program: most of what a small program costs is not its own."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import pytest

__all__ = ["list_beside", "together"]

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


def list_beside(request: pytest.FixtureRequest, name: str, **others: Any) -> list[Any]:
    """List what a parameter of a test is in this run, which may be a sample: no program is for other rows.

    Args:
        request: the one of the test.
        name: the parameter.
        others: what other parameters are.
    """
    test = request.node.nodeid.partition("[")[0]
    items = [item for item in request.session.items if item.nodeid.partition("[")[0] == test]
    params = [item.callspec.params for item in items]
    return [each[name] for each in params if others.items() <= {key: each[key] for key in others}.items()]


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
