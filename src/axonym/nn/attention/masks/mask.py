"""Masks of attention: conditions on positions that combine with `&` and `|`, and masks as boolean arrays.

An `AttentionMask` is not an array: it says which keys a query sees, for any number of positions. `materialize` makes an
array where one is needed; blockwise attention reads its fields instead, and holds one block of it at a time.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from .... import random
from ....array import NamedArray, named
from ....axis import Axis, AxisSpec, axis_name, sized
from ....core import Core, Operand
from ....create import arange
from ....errors import ArgumentError, AxisClashError, OperandError, message
from ....ops.logical import equal, logical_or as either
from ....ops.where import where
from ...settings import fraction, integer
from .conditions import logical_and, logical_or, positions, smaller, visible

__all__ = [
    "AttentionMask",
    "causal",
    "causal_mask",
    "combine_masks_and",
    "combine_masks_or",
    "dropout_mask",
    "forgetful_causal_mask",
    "mask_to_bias",
    "prefix",
    "prefix_lm_mask",
    "segments",
    "window",
]


class AttentionMask(eqx.Module):
    """The keys that each query sees.

    A query sees a key if all set conditions hold, or all those of one of the alternatives; with none set, it sees all.
    Masks are made by `causal`, `window`, `segments` and `prefix`, and combined by `&` and `|`, whose right operand may
    be a boolean array. They are pytrees: ids, lengths and arrays in them may be traced.

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
        """This mask without its alternatives, then the alternatives; none of them has `places`."""
        return AttentionMask(
            self.causal, self.window, self.prefix, self.segment_ids, self.explicit
        ), *self.alternatives

    def at(self, positions: NamedArray, key_positions: NamedArray | None = None) -> "AttentionMask":
        """Return the mask for queries and keys at given positions, such as those of `zigzag`.

        Args:
            positions: integers, the position of each query: the axis of query positions, and other axes of the scores.
            key_positions: the position of each key, over the axis of key positions; by default those of the queries.

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

        Raises:
            OperandError: if it is neither; the message names `function`.
        """
        if isinstance(mask, AttentionMask):
            return mask
        if not isinstance(mask, Core) or mask.dtype != jnp.bool_:
            found = f"an array of {mask.dtype}" if isinstance(mask, Core) else type(mask).__name__
            problem = f"a mask must be an AttentionMask or a NamedArray of booleans, not {found}"
            hint = "add numbers to the scores as a bias" if isinstance(mask, Core) else None
            if callable(mask):
                hint = "call it, as in nn.causal()"
            raise OperandError(message(function, problem, hint=hint))
        return AttentionMask(explicit=mask)

    def __and__(self, other: "AttentionMask | NamedArray") -> "AttentionMask":
        other = AttentionMask.of(other, "&")
        places = _one_place("&", self, other)
        if self.alternatives or other.alternatives:
            pairs = itertools.product(self.clauses, other.clauses)
            either_of = functools.reduce(AttentionMask.__or__, [one & two for one, two in pairs])
            return dataclasses.replace(either_of, places=places)
        return AttentionMask(
            self.causal or other.causal,
            _both(min, self.window, other.window),
            _both(smaller, self.prefix, other.prefix),
            (*self.segment_ids, *other.segment_ids),
            _both(logical_and, self.explicit, other.explicit),
            places=places,
        )

    def __rand__(self, other: NamedArray) -> "AttentionMask":
        return AttentionMask.of(other, "&") & self

    def __or__(self, other: "AttentionMask | NamedArray") -> "AttentionMask":
        other = AttentionMask.of(other, "|")
        one, rest = self.clauses[0], (*self.alternatives, *other.clauses)
        return dataclasses.replace(one, alternatives=rest, places=_one_place("|", self, other))

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
        """
        return _materialize("materialize", self, QPos, KPos, q_start, k_start)


def _materialize(
    function: str, mask: AttentionMask, QPos: Axis, KPos: Axis, q_start: Any, k_start: Any
) -> NamedArray:
    query, key = axis_name(QPos), axis_name(KPos)
    if query == key:
        problem = f"the position axes of queries and keys are both named {query!r}"
        hint = 'give those of keys another name: KPos.derive("key")'
        raise AxisClashError(message(function, problem, hint=hint))
    queries, keys = positions(QPos, q_start), positions(KPos, k_start)
    seen = visible(mask, queries, keys, query, key)
    if seen is None:
        seen = named(True, ())
    return seen.broadcast_axis((sized(QPos, function), sized(KPos, function))).rearrange(
        (..., query, key)
    )


def causal() -> AttentionMask:
    """Let a query see the keys that are not after it."""
    return AttentionMask(causal=True)


def window(size: int) -> AttentionMask:
    """Let a query see keys less than `size` positions away: with `causal()`, the last `size`, its own included.

    Raises:
        ArgumentError: if `size` is not an int, or less than one.
    """
    size = integer("window", "size", size)
    if size < 1:
        raise ArgumentError(
            message("window", f"a window must have at least one position, not {size}")
        )
    return AttentionMask(window=size)


def segments(ids: NamedArray, key_ids: NamedArray | None = None) -> AttentionMask:
    """Let a query see the keys of its own segment, such as one of several packed documents.

    Args:
        ids: integers, the segment of each query: the axis of query positions, and other axes of the scores.
        key_ids: the segment of each key, over the axis of key positions; by default those of the queries.
    """
    for x in (ids,) if key_ids is None else (ids, key_ids):
        _check_integers("segments", "segment ids", x)
    return AttentionMask(segment_ids=((ids, key_ids),))


def _check_integers(function: str, what: str, x: NamedArray) -> None:
    if not isinstance(x, Core) or not jnp.issubdtype(x.dtype, jnp.integer):
        kind = x.dtype if isinstance(x, Core) else type(x).__name__
        problem = f"{what} must be a NamedArray of integers, not {kind}"
        raise OperandError(message(function, problem))


def _one_place(operator: str, x: AttentionMask, y: AttentionMask) -> Any:
    """Return the positions that two masks count, of which one may leave them to the other.

    Raises:
        OperandError: if both have positions, and not the same arrays.
    """
    if x.places is None or y.places is None:
        return x.places or y.places
    if any(one is not two for one, two in zip(x.places, y.places, strict=True)):
        problem = "the two masks have positions of their own"
        hint = f"give them once, to both together: (mask1 {operator} mask2).at(positions)"
        raise OperandError(message(operator, problem, hint=hint))
    return x.places


def prefix(length: int | Operand) -> AttentionMask:
    """Let every query see the first `length` keys: an int, or integers over axes of the scores."""
    return AttentionMask(prefix=length)


def _both(combine: Callable[[Any, Any], Any], x: object, y: object) -> Any:
    """Combine two conditions, each of which may be None."""
    if x is None:
        return y
    if y is None:
        return x
    return combine(x, y)


def causal_mask(
    QPos: Axis, KPos: Axis, q_start: int | Operand = 0, k_start: int | Operand = 0
) -> NamedArray:
    """Return `causal()` as an array.

    Args:
        QPos: the axis of query positions.
        KPos: the axis of key positions, under another name.
        q_start: the position of the first query.
        k_start: the position of the first key.

    Returns:
        Booleans, axes {QPos, KPos} and those of the starts.
    """
    return _materialize("causal_mask", causal(), QPos, KPos, q_start, k_start)


def prefix_lm_mask(
    QSeqLen: Axis,
    KSeqLen: Axis,
    prefix_len: int | Operand,
    q_start: int | Operand = 0,
    k_start: int | Operand = 0,
) -> NamedArray:
    """Return `causal() | prefix(prefix_len)` as an array.

    Args:
        QSeqLen: the axis of query positions.
        KSeqLen: the axis of key positions, under another name.
        prefix_len: the number of keys in the prefix, counted from position 0.
        q_start: the position of the first query.
        k_start: the position of the first key.
    """
    return _materialize(
        "prefix_lm_mask", causal() | prefix(prefix_len), QSeqLen, KSeqLen, q_start, k_start
    )


def forgetful_causal_mask(
    KPos: Axis, mask_prob: float, sample_prob: bool = True, *, key: jax.Array
) -> NamedArray:
    """Draw keys to hide from all queries, never the first one. Combine it with `causal()`.

    Args:
        KPos: the axis of key positions.
        mask_prob: the probability that a key is hidden, or with `sample_prob` its upper bound.
        sample_prob: draw that probability too, uniformly.
        key: for the draws.

    Returns:
        Booleans, axes {KPos}.

    Reference:
        Liu et al. (2022), Towards better few-shot and finetuning performance with forgetful causal language models.
    """
    mask_prob = fraction("forgetful_causal_mask", "mask_prob", mask_prob)
    one, other = jax.random.split(key)
    hidden = random.uniform(one, (), maxval=mask_prob) if sample_prob else mask_prob
    return either(random.bernoulli(other, KPos, 1 - hidden), equal(arange(KPos), 0))


def dropout_mask(axes: AxisSpec, dropout_rate: float, *, key: jax.Array) -> NamedArray:
    """Draw booleans that are false with probability `dropout_rate`."""
    return random.bernoulli(key, axes, 1 - fraction("dropout_mask", "dropout_rate", dropout_rate))


def mask_to_bias(mask: NamedArray, mask_value: float = -1e9) -> NamedArray:
    """Return a bias for the scores: zero where the mask is true, and `mask_value` elsewhere."""
    if not isinstance(mask, Core) or mask.dtype != jnp.bool_:
        found = f"an array of {mask.dtype}" if isinstance(mask, Core) else type(mask).__name__
        hint = "use mask.materialize(QPos, KPos)" if isinstance(mask, AttentionMask) else None
        raise OperandError(
            message(
                "mask_to_bias", f"a mask must be a NamedArray of booleans, not {found}", hint=hint
            )
        )
    return where(mask, 0.0, mask_value)


def combine_masks_and(mask1: NamedArray | None, mask2: NamedArray | None) -> NamedArray | None:
    """Attend where both masks allow it; None allows all. The result has the axes of both."""
    _check_arrays("combine_masks_and", "&", mask1, mask2)
    both: NamedArray | None = _both(logical_and, mask1, mask2)
    return both


def combine_masks_or(mask1: NamedArray | None, mask2: NamedArray | None) -> NamedArray | None:
    """Attend where one of the masks allows it; None is ignored. The result has the axes of both."""
    _check_arrays("combine_masks_or", "|", mask1, mask2)
    both: NamedArray | None = _both(logical_or, mask1, mask2)
    return both


def _check_arrays(function: str, operator: str, *masks: object) -> None:
    """Check that no mask is an `AttentionMask`, which is combined by an operator."""
    if any(isinstance(mask, AttentionMask) for mask in masks):
        hint = f"write mask1 {operator} mask2, where the first is an AttentionMask"
        raise OperandError(
            message(
                function, "a mask must be a NamedArray of booleans, not AttentionMask", hint=hint
            )
        )
