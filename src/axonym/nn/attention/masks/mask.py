"""Masks of attention: conditions on positions, ids and arrays that combine with `&` and `|`.

An `AttentionMask` is not an array: it says which keys a query sees, for any number of positions. Each implementation of
attention reads from it what it needs: the plain one makes an array, a loop over blocks makes one for each block and
skips those that are hidden, and a kernel gets the options that mean the same.
"""

import dataclasses
import functools
import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from ....array import NamedArray
from ....axis import Axis
from ....base.calls import explain_calls
from ....engine.core import Core, Operand
from ....errors import ArgumentError, OperandError, message
from ...settings import check_int
from .conditions import combine, logical_and, materialize, minimum

__all__ = ["AttentionMask", "causal", "prefix", "segments", "window"]


class AttentionMask(eqx.Module):
    """The keys that each query sees.

    A query sees a key if all set conditions hold, or all those of one of the alternatives; with none set, it sees all.
    Masks are made by `causal`, `window`, `segments` and `prefix`, and combined by `&` and `|`, one of whose operands
    may be a boolean array. They are pytrees: ids, lengths and arrays in them may be traced.

    `jax.nn.dot_product_attention` and `torch.nn.functional.scaled_dot_product_attention` take an array, or the one
    condition `is_causal`; blocks that a combination of conditions hides are then computed.

    Attributes:
        causal: the key is not after the query.
        window: the key is less than this many positions away from the query.
        prefix: the key is among this many at the start; an int, or integers over axes of the scores.
        segment_ids: pairs of integers, for queries and for keys, which must be equal. None for keys means the ids of
            the queries, over the key positions.
        explicit: booleans over axes of the scores.
        alternatives: masks without alternatives.
        places: the positions of queries and of keys, where they do not count along their axes; see `at`.

    Examples:
        >>> mask = axn.nn.causal() & axn.nn.window(2) | axn.nn.prefix(1)
        >>> mask.materialize(*axn.make_axes(query=4, key=4)).astype(int)
        NamedArray(int32[query=4, key=4])
        [[1 0 0 0]
         [1 1 0 0]
         [1 1 1 0]
         [1 0 1 1]]
    """

    causal: bool = eqx.field(static=True, default=False)
    window: int | None = eqx.field(static=True, default=None)
    prefix: Any = None
    segment_ids: tuple[tuple[NamedArray, NamedArray | None], ...] = ()
    explicit: NamedArray | None = None
    alternatives: tuple["AttentionMask", ...] = ()
    places: tuple[NamedArray, NamedArray | None] | None = None

    @property
    def clauses(self) -> tuple["AttentionMask", ...]:
        """This mask without its alternatives, then the alternatives; none of them has `places`.

        Examples:
            >>> [clause.causal for clause in (axn.nn.causal() | axn.nn.prefix(2)).clauses]
            [True, False]
        """
        if not self.alternatives and self.places is None:
            return (self,)
        return dataclasses.replace(self, alternatives=(), places=None), *self.alternatives

    def at(self, positions: NamedArray, key_positions: NamedArray | None = None) -> "AttentionMask":
        """Return the mask for queries and keys at given positions, such as those of `zigzag`.

        Args:
            positions: integers, the position of each query: the axis of query positions, and other axes of the scores.
            key_positions: the position of each key, over the axis of key positions; by default those of the queries.

        Returns:
            The mask; `materialize` and attention then count no positions along the axes.

        Raises:
            OperandError: if they are no integers.

        Examples:
            >>> Pos = axn.Axis("pos", 3)
            >>> backwards = axn.nn.causal().at(axn.named([2, 1, 0], "pos"))
            >>> backwards.materialize(Pos, Pos.derive("key")).astype(int).tolist()
            [[1, 1, 1], [0, 1, 1], [0, 0, 1]]
        """
        for x in (positions,) if key_positions is None else (positions, key_positions):
            _check_integers("at", "positions", x)
        return dataclasses.replace(self, places=(positions, key_positions))

    @staticmethod
    def of(mask: "AttentionMask | NamedArray", function: str = "AttentionMask") -> "AttentionMask":
        """Make a mask of a boolean array; return a mask as it is.

        Args:
            mask: the mask; an array has axes of the scores, and is true for the keys to see.
            function: the function to name in an error.

        Raises:
            OperandError: if it is neither; the message names `function`.

        Examples:
            >>> padding = axn.named([True, True, False], "key_pos")
            >>> axn.nn.AttentionMask.of(padding).explicit is padding
            True
        """
        if isinstance(mask, AttentionMask):
            return mask
        # Numbers are refused: zeros and ones may be meant as a mask, or as a bias.
        if not isinstance(mask, Core) or mask.dtype != jnp.bool_:
            found = f"an array of {mask.dtype}" if isinstance(mask, Core) else type(mask).__name__
            problem = f"a mask must be an AttentionMask or a NamedArray of booleans, not {found}"
            hint = "add numbers to the scores as a bias" if isinstance(mask, Core) else None
            if isinstance(mask, str):
                hint = "write nn.causal(), nn.window(...), nn.prefix(...) or nn.segments(...)"
            if callable(mask):
                hint = "call it, as in nn.causal()"
            if hasattr(mask, "dtype") and jnp.issubdtype(mask.dtype, jax.dtypes.prng_key):
                hint = "the key goes by its name: key=..."
            raise OperandError(message(function, problem, hint=hint))
        return AttentionMask(explicit=mask)

    def __and__(self, other: "AttentionMask | NamedArray") -> "AttentionMask":
        other = AttentionMask.of(other, "&")
        # Checked first, since the pairs below have no positions of their own.
        places = _join_places("&", self, other)
        if self.alternatives or other.alternatives:
            # (a or b) and (c or d) is (a and c) or (a and d) or (b and c) or (b and d).
            pairs = itertools.product(self.clauses, other.clauses)
            either_of = functools.reduce(AttentionMask.__or__, [one & two for one, two in pairs])
            return dataclasses.replace(either_of, places=places)
        return AttentionMask(
            self.causal or other.causal,
            combine(min, self.window, other.window),
            combine(minimum, self.prefix, other.prefix),
            (*self.segment_ids, *other.segment_ids),
            combine(logical_and, self.explicit, other.explicit),
            places=places,
        )

    def __rand__(self, other: NamedArray) -> "AttentionMask":
        return AttentionMask.of(other, "&") & self

    def __or__(self, other: "AttentionMask | NamedArray") -> "AttentionMask":
        other = AttentionMask.of(other, "|")
        # Clauses are kept flat, as "or" of "and": whoever reads them needs one loop.
        one, rest = self.clauses[0], (*self.alternatives, *other.clauses)
        return dataclasses.replace(one, alternatives=rest, places=_join_places("|", self, other))

    def __ror__(self, other: NamedArray) -> "AttentionMask":
        return AttentionMask.of(other, "|") | self

    def materialize(
        self, QPos: Axis, KPos: Axis, q_start: int | Operand = 0, k_start: int | Operand = 0
    ) -> NamedArray:
        """Return which keys each query sees, as an array.

        Args:
            QPos: the axis of query positions.
            KPos: the axis of key positions, under another name.
            q_start: the position of the first query: an int, or integers over axes of the scores.
            k_start: the position of the first key.

        Returns:
            Booleans, axes {QPos, KPos} and those of the arrays in the mask.

        Raises:
            AxisClashError: if the two axes have the same name.

        Examples:
            >>> Pos = axn.Axis("pos", 2)
            >>> axn.nn.causal().materialize(Pos, Pos.derive("key")).tolist()
            [[True, False], [True, True]]
        """
        return materialize("materialize", self, QPos, KPos, q_start, k_start)


def causal() -> AttentionMask:
    """Let a query see the keys that are not after it: those up to its own position.

    Positions count along the two axes from `q_start` and `k_start` of the call. With fewer queries than keys, and both
    starts at 0, the first query sees one key, as in `jax.nn` and `torch`; for the last queries of a longer sequence,
    give `q_start`.

    Returns:
        A mask to combine with others by `&` and `|`.

    Examples:
        >>> Pos = axn.Axis("pos", 3)
        >>> axn.nn.causal().materialize(Pos, Pos.derive("key")).astype(int).tolist()
        [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    """
    return AttentionMask(causal=True)


def window(size: int) -> AttentionMask:
    """Let a query see keys less than `size` positions away: with `causal()`, the last `size`, its own included.

    In `jax.nn.dot_product_attention` it is `local_window_size=size - 1`, which does not count the position itself.

    Args:
        size: the number of positions, an int from 1 on.

    Returns:
        A mask to combine with others by `&` and `|`.

    Raises:
        ArgumentError: if `size` is not an int, or less than one.

    Examples:
        >>> Pos = axn.Axis("pos", 3)
        >>> mask = axn.nn.causal() & axn.nn.window(2)
        >>> mask.materialize(Pos, Pos.derive("key")).astype(int).tolist()
        [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """
    size = check_int("window", "size", size)
    if size < 1:
        problem = f"a window must have at least one position, not {size}"
        raise ArgumentError(message("window", problem))
    return AttentionMask(window=size)


def segments(ids: NamedArray, key_ids: NamedArray | None = None) -> AttentionMask:
    """Let a query see the keys of its own segment, such as one of several packed documents.

    Args:
        ids: integers, the segment of each query: the axis of query positions, and other axes of the scores.
        key_ids: the segment of each key, over the axis of key positions; by default those of the queries.

    Returns:
        A mask to combine with others by `&` and `|`.

    Raises:
        OperandError: if ids are not a NamedArray of integers.

    Examples:
        >>> Pos = axn.Axis("pos", 3)
        >>> packed = axn.nn.segments(axn.named([0, 0, 1], "pos"))
        >>> packed.materialize(Pos, Pos.derive("key")).astype(int).tolist()
        [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    """
    for x in (ids,) if key_ids is None else (ids, key_ids):
        _check_integers("segments", "segment ids", x)
    return AttentionMask(segment_ids=((ids, key_ids),))


def _check_integers(function: str, what: str, x: NamedArray) -> None:
    if not isinstance(x, Core) or not jnp.issubdtype(x.dtype, jnp.integer):
        kind = x.dtype if isinstance(x, Core) else type(x).__name__
        problem = f"{what} must be a NamedArray of integers, not {kind}"
        raise OperandError(message(function, problem))


def _join_places(operator: str, x: AttentionMask, y: AttentionMask) -> Any:
    """Return the positions of two combined masks; one of the masks may have none.

    Raises:
        OperandError: if both have positions, and not the same arrays.
    """
    if x.places is None or y.places is None:
        return x.places or y.places
    # By identity: whether traced arrays are equal is not known.
    if any(one is not two for one, two in zip(x.places, y.places, strict=True)):
        problem = "the two masks have positions of their own"
        hint = f"give them once, to both together: (mask1 {operator} mask2).at(positions)"
        raise OperandError(message(operator, problem, hint=hint))
    return x.places


def prefix(length: int | Operand) -> AttentionMask:
    """Let every query see the first `length` keys, such as a prompt that is read in both directions.

    Args:
        length: the number of keys: an int, or integers over axes of the scores, such as one for each sequence.

    Returns:
        A mask to combine with others: `causal() | prefix(length)` for a prompt, `causal() & prefix(length)` for padding
        behind the last token.

    Examples:
        >>> Pos = axn.Axis("pos", 3)
        >>> mask = axn.nn.causal() | axn.nn.prefix(2)
        >>> mask.materialize(Pos, Pos.derive("key")).astype(int).tolist()
        [[1, 1, 0], [1, 1, 0], [1, 1, 1]]
    """
    return AttentionMask(prefix=length)


explain_calls(globals(), ["causal", "prefix", "segments", "window"])
