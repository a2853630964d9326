"""Evaluate the conditions of a mask for given positions, as booleans with only the axes that they need."""

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from ....array import NamedArray, named
from ....axis import Axis
from ....core import Core, Operand
from ....create import arange
from ....engine.batched import batched
from ....errors import OperandError, message

if TYPE_CHECKING:
    from .mask import AttentionMask


Part = Callable[[Any], Any]


def _outer(fn: Callable[..., Any], x: Any, y: Any, **options: Any) -> NamedArray:
    """Apply a function to all pairs of elements of two arrays; axes that both have are matched."""
    paired: NamedArray = batched(fn, (x, y), ((), ()), (), outer=True, **options)
    return paired


def logical_and(x: NamedArray, y: NamedArray) -> NamedArray:
    """Return where both are true, over the axes of both."""
    return _outer(jnp.logical_and, x, y)


def logical_or(x: NamedArray, y: NamedArray) -> NamedArray:
    """Return where one is true, over the axes of both."""
    return _outer(jnp.logical_or, x, y)


def smaller(x: int | Operand, y: int | Operand) -> Any:
    """Return the smaller of two numbers, over the axes of both."""
    if isinstance(x, int) and isinstance(y, int):
        return min(x, y)
    if isinstance(x, Core) or isinstance(y, Core):
        return _outer(jnp.minimum, x, y)
    return jnp.minimum(x, y)


def positions(Pos: Axis | None, start: int | Operand) -> NamedArray:
    """Count the positions along an axis from a start, which may have axes; without an axis, there is one position."""
    if isinstance(start, NamedArray):
        if Pos is None:
            return start
        if Pos.size == 1:
            return start.broadcast_axis(Pos)
        return _outer(jnp.add, arange(Pos), start)

    if Pos is None:
        return named(start, ())
    if isinstance(start, int):
        return arange(Pos, start=start)
    # A narrow start cannot count to the end of a long axis.
    return arange(Pos, start=start, dtype=jnp.result_type(start, jnp.int32))


def visible(
    mask: "AttentionMask",
    queries: NamedArray,
    keys: NamedArray,
    QPos: str | None,
    KPos: str,
    part: Part = lambda x: x,
) -> NamedArray | None:
    """Return which keys are seen, or None for all.

    Args:
        mask: the mask.
        queries: the positions of the queries.
        keys: the positions of the keys.
        QPos: the name of the axis of query positions, if there is one.
        KPos: the name of the axis of key positions.
        part: slices arrays over all positions to these positions; leaves numbers as they are.
    """
    if mask.places is not None:
        queries, keys = of_both(mask.places, QPos, KPos, "positions")
        queries, keys = part(queries), part(keys)
    seen = None
    for clause in mask.clauses:
        conditions = list(_conditions(clause, queries, keys, QPos, KPos, part))
        if not conditions:
            return None
        own = functools.reduce(logical_and, conditions)
        if seen is not None:
            own = logical_or(seen, own)
        seen = own
    return seen


def _conditions(
    clause: "AttentionMask",
    queries: NamedArray,
    keys: NamedArray,
    QPos: str | None,
    KPos: str,
    part: Part,
) -> Iterator[NamedArray]:
    """Yield the conditions of one clause."""
    if clause.causal or clause.window is not None:
        yield _outer(_near, queries, keys, causal=clause.causal, window=clause.window)
    if clause.prefix is not None:
        yield _outer(jnp.less, keys, part(clause.prefix))
    for ids, key_ids in clause.segment_ids:
        ids, key_ids = of_both((ids, key_ids), QPos, KPos, "segment ids")
        yield _outer(jnp.equal, part(ids), part(key_ids))
    if clause.explicit is not None:
        yield part(clause.explicit)


def of_both(
    pair: tuple[NamedArray, NamedArray | None], QPos: str | None, KPos: str, what: str
) -> tuple[NamedArray, NamedArray]:
    """Return what queries and keys have; where nothing is given for the keys, they have what the queries have."""
    of_queries, of_keys = pair
    if of_keys is not None:
        return of_queries, of_keys
    if QPos is None:
        problem = f"{what} of a query without an axis of positions cannot be reused for its keys"
        function, keyword = ("segments", "key_ids")
        if what == "positions":
            function, keyword = ("at", "key_positions")
        raise OperandError(message(function, problem, hint=f"pass {keyword}=..."))
    return of_queries, of_queries.rename({QPos: KPos})


def _near(query: jax.Array, key: jax.Array, *, causal: bool, window: int | None) -> jax.Array:
    """Compare positions; with a causal mask, a window needs only one side."""
    if window is None:
        return query >= key
    if not causal:
        return jnp.abs(query - key) < window
    return (query >= key) & (query - key < window)
