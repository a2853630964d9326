"""Masks of attention as boolean arrays, for code that computes scores itself.

`dot_product_attention` needs none of them: it takes conditions such as `causal()`, and makes of them what it needs.
"""

import jax
import jax.numpy as jnp

from .... import random
from ....array import NamedArray
from ....axis import Axis, AxisSpec
from ....create import arange
from ....engine.core import Core, Operand
from ....errors import OperandError, message
from ....ops.logical import equal, logical_or as either
from ....ops.where import where
from ...settings import check_fraction
from .conditions import combine, logical_and, logical_or, materialize
from .mask import AttentionMask, causal, prefix

__all__ = [
    "causal_mask",
    "combine_masks_and",
    "combine_masks_or",
    "dropout_mask",
    "forgetful_causal_mask",
    "mask_to_bias",
    "prefix_lm_mask",
]


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

    Raises:
        AxisClashError: if the two axes have the same name.

    Examples:
        >>> Pos, KPos = axn.make_axes(pos=2, key_pos=3)
        >>> axn.nn.causal_mask(Pos, KPos, q_start=1).astype(int).tolist()
        [[1, 1, 0], [1, 1, 1]]
    """
    return materialize("causal_mask", causal(), QPos, KPos, q_start, k_start)


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

    Returns:
        Booleans, axes {QSeqLen, KSeqLen} and those of the length and the starts.

    Raises:
        AxisClashError: if the two axes have the same name.

    Examples:
        >>> Pos, KPos = axn.make_axes(pos=3, key_pos=3)
        >>> axn.nn.prefix_lm_mask(Pos, KPos, 2).astype(int).tolist()
        [[1, 1, 0], [1, 1, 0], [1, 1, 1]]
    """
    return materialize(
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

    Raises:
        ArgumentError: if `mask_prob` is not from 0 to 1.

    Examples:
        >>> KPos = axn.Axis("key_pos", 5)
        >>> axn.nn.forgetful_causal_mask(KPos, 1.0, False, key=jax.random.key(0)).tolist()
        [True, False, False, False, False]

    Reference:
        Liu et al. (2022), Towards better few-shot and finetuning performance with forgetful causal language models.
    """
    mask_prob = check_fraction("forgetful_causal_mask", "mask_prob", mask_prob)
    # The first key stays, so that each query of a causal mask sees one.
    one, other = jax.random.split(key)
    hidden = random.uniform(one, (), maxval=mask_prob) if sample_prob else mask_prob
    return either(random.bernoulli(other, KPos, 1 - hidden), equal(arange(KPos), 0))


def dropout_mask(axes: AxisSpec, dropout_rate: float, *, key: jax.Array) -> NamedArray:
    """Draw booleans that are false with probability `dropout_rate`.

    Args:
        axes: the axes of the result.
        dropout_rate: the probability, from 0 to 1.
        key: for the draws.

    Returns:
        Booleans, axes `axes`.

    Raises:
        ArgumentError: if `dropout_rate` is not from 0 to 1.

    Examples:
        >>> axn.nn.dropout_mask(axn.Axis("key_pos", 3), 0.0, key=jax.random.key(0)).tolist()
        [True, True, True]
    """
    return random.bernoulli(
        key, axes, 1 - check_fraction("dropout_mask", "dropout_rate", dropout_rate)
    )


def mask_to_bias(mask: NamedArray, mask_value: float = -1e9) -> NamedArray:
    """Return a bias for the scores: zero where the mask is true, and `mask_value` elsewhere.

    Args:
        mask: booleans.
        mask_value: what hides a key. Where it hides all keys of a query, differences of their scores are rounded away.

    Returns:
        float32, the axes of `mask`.

    Raises:
        OperandError: if the mask is no array of booleans.

    Examples:
        >>> axn.nn.mask_to_bias(axn.named([True, False], "key_pos"), -1e4).tolist()
        [0.0, -10000.0]
    """
    if not isinstance(mask, Core) or mask.dtype != jnp.bool_:
        found = f"an array of {mask.dtype}" if isinstance(mask, Core) else type(mask).__name__
        hint = "use mask.materialize(QPos, KPos)" if isinstance(mask, AttentionMask) else None
        problem = f"a mask must be a NamedArray of booleans, not {found}"
        raise OperandError(message("mask_to_bias", problem, hint=hint))
    return where(mask, 0.0, mask_value)


def combine_masks_and(mask1: NamedArray | None, mask2: NamedArray | None) -> NamedArray | None:
    """Attend where both masks allow it; None allows all. The result has the axes of both.

    Args:
        mask1: booleans, or None.
        mask2: booleans, or None.

    Returns:
        Booleans, or None if both are None.

    Raises:
        OperandError: if one is an `AttentionMask`, which `&` combines.

    Examples:
        >>> one, other = axn.named([True, True, False], "key_pos"), axn.named([True, False, False], "key_pos")
        >>> axn.nn.combine_masks_and(one, other).tolist()
        [True, False, False]
    """
    _check_arrays("combine_masks_and", "&", mask1, mask2)
    both: NamedArray | None = combine(logical_and, mask1, mask2)
    return both


def combine_masks_or(mask1: NamedArray | None, mask2: NamedArray | None) -> NamedArray | None:
    """Attend where one of the masks allows it; None is ignored. The result has the axes of both.

    Args:
        mask1: booleans, or None.
        mask2: booleans, or None.

    Returns:
        Booleans, or None if both are None.

    Raises:
        OperandError: if one is an `AttentionMask`, which `|` combines.

    Examples:
        >>> one, other = axn.named([True, True, False], "key_pos"), axn.named([True, False, False], "key_pos")
        >>> axn.nn.combine_masks_or(one, other).tolist()
        [True, True, False]
    """
    _check_arrays("combine_masks_or", "|", mask1, mask2)
    both: NamedArray | None = combine(logical_or, mask1, mask2)
    return both


def _check_arrays(function: str, operator: str, *masks: object) -> None:
    """Check that no mask is an `AttentionMask`, which is combined by an operator."""
    if any(isinstance(mask, AttentionMask) for mask in masks):
        hint = f"write mask1 {operator} mask2, where the first is an AttentionMask"
        problem = "a mask must be a NamedArray of booleans, not AttentionMask"
        raise OperandError(message(function, problem, hint=hint))
