"""The reference's loops: Python loops over the positions of an axis."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.fuzz.shapes import rearrange, stack
from tests.fuzz.table import RejectedError, Table

__all__ = ["FUNCTIONS"]


def _position(x: Any, axis: str, i: int) -> Any:
    if not isinstance(x, Table) or axis not in x.names:
        return x
    at = x.names.index(axis)
    rest = tuple(name for name in x.names if name != axis)
    if not x.shape[axis]:
        return Table(np.ones([x.shape[name] for name in rest], x.values.dtype), rest, x.dtype)
    return Table(x.values.take(i, at), rest, x.dtype)


def _size(axis: str, args: Sequence[Any]) -> int:
    sizes = {x.shape[axis] for x in args if isinstance(x, Table) and axis in x.names}
    if len(sizes) != 1:
        raise RejectedError("no size, or two")
    return sizes.pop()


def _stacked(axis: str, results: Sequence[Table], size: int) -> Table:
    whole = stack(axis, [rearrange(x, results[0].names) for x in results])
    return Table(whole.values[:size], whole.names, whole.dtype)


def map_(fn: Callable[..., Table], axis: str, **_: Any) -> Callable[..., Table]:
    def mapped(*args: Table) -> Table:
        size = _size(axis, args)
        # What a step returns is known only by a call, even where there are none.
        return _stacked(axis, [fn(*(_position(x, axis, i) for x in args)) for i in range(max(size, 1))], size)

    return mapped


def scan(fn: Callable[..., Any], axis: str, *, reverse: bool = False, **_: Any) -> Callable[..., Any]:
    def scanned(init: Table, *args: Table) -> tuple[Table, Table]:
        size = _size(axis, args)
        carry, outputs = init, []
        order = range(max(size, 1))
        for i in reversed(order) if reverse else order:
            following, out = fn(carry, *(_position(x, axis, i) for x in args))
            if set(following.names) != set(carry.names) or following.dtype != carry.dtype:
                raise RejectedError("the carry changes")
            if following.shape != carry.shape and dict(following.shape) != dict(carry.shape):
                raise RejectedError("the carry changes")
            outputs.append(out)
            carry = rearrange(following, carry.names) if size else carry
        return carry, _stacked(axis, outputs[::-1] if reverse else outputs, size)

    return scanned


def fold(fn: Callable[..., Table], axis: str, **options: Any) -> Callable[..., Table]:
    looped = scan(lambda carry, *args: (fn(carry, *args),) * 2, axis, **options)
    return lambda init, *args: looped(init, *args)[0]


def associative_scan(fn: Callable[..., Table], axis: str, *, reverse: bool = False) -> Callable[[Table], Table]:
    def scanned(x: Table) -> Table:
        size, at = x.shape[axis], x.names.index(axis)
        order = range(size)
        parts: list[Table] = []
        for i in reversed(order) if reverse else order:
            here = Table(x.values.take([i], at), x.names, x.dtype)
            parts.append(fn(parts[-1], here) if parts else here)
        parts = parts[::-1] if reverse else parts
        values = np.concatenate([part.values for part in parts], at) if parts else x.values
        return Table(values, x.names, x.dtype)

    return scanned


FUNCTIONS: dict[str, Any] = {
    "map": map_,
    "vmap": map_,
    "scan": scan,
    "fold": fold,
    "associative_scan": associative_scan,
}
