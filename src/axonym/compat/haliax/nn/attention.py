"""Attention and its masks, with Haliax's order of arguments and of axes.

Masks are arrays of booleans; scores and softmax are computed in at least float32, unlike in Haliax, which uses the
query's dtype.
"""

import math
from typing import Any

import jax.numpy as jnp
from jax.lax import PrecisionLike
from jax.typing import DTypeLike

import axonym as axn
from axonym import Axis, AxisSelection, AxisSelector, axis_name
from axonym.engine import facts, selection
from axonym.errors import AxisClashError, OperandError, message

from .._adapt import adapted
from .._elementwise import boolean

__all__ = [
    "alibi_attention_bias",
    "causal_mask",
    "combine_masks_and",
    "combine_masks_or",
    "dot_product_attention",
    "dot_product_attention_weights",
    "dropout_mask",
    "forgetful_causal_mask",
    "mask_to_bias",
    "prefix_lm_mask",
]

alibi_attention_bias = adapted(axn.nn.alibi_attention_bias)
causal_mask = adapted(axn.nn.causal_mask)
dropout_mask = adapted(axn.nn.dropout_mask)
forgetful_causal_mask = adapted(axn.nn.forgetful_causal_mask)


@adapted
def prefix_lm_mask(
    QSeqLen: Axis, KSeqLen: Axis, prefix_len: int, q_start: int = 0, k_start: int = 0
) -> axn.NamedArray:
    """Return the mask of a prefix language model: each query sees the prefix and the keys that are not after it.

    Unlike in Axonym, the prefix is the first `prefix_len` keys, regardless of `k_start`.
    """
    return axn.nn.prefix_lm_mask(QSeqLen, KSeqLen, k_start + prefix_len, q_start, k_start)


@adapted
def dot_product_attention(
    KPos: AxisSelection,
    Key: AxisSelector,
    query: axn.NamedArray,
    key: axn.NamedArray,
    value: axn.NamedArray,
    mask: axn.NamedArray | None = None,
    bias: axn.NamedArray | None = None,
    attention_dtype: DTypeLike | None = None,
    precision: PrecisionLike = None,
) -> axn.NamedArray:
    """Average values by how well their keys fit each query; `KPos` may be several axes.

    The result has the axes of the query without `Key`, then further axes of the key without `KPos`, then those of the
    value.
    """
    _check(KPos, query, key, value)
    scores = {*query.names, *key.names}
    known = all(
        not isinstance(x, axn.NamedArray) or scores.issuperset(x.names) for x in (mask, bias)
    )
    if isinstance(KPos, str | Axis) and known:
        options: dict[str, Any] = {
            "mask": boolean(mask),
            "bias": bias,
            "attention_dtype": attention_dtype,
            "precision": precision,
        }
        QPos = _query_position(Key, query, key, value)
        result = axn.nn.dot_product_attention(QPos, KPos, Key, query, key, value, **options)
        ahead: dict[str, None] = {}
        for name in (*query.names, *key.names):
            if name != axis_name(Key) and name in result.names:
                ahead[name] = None
        return result.rearrange(tuple(ahead | dict.fromkeys(result.names)))
    weights = dot_product_attention_weights(
        Key, KPos, query, key, mask, bias, attention_dtype, precision
    )
    return axn.dot(weights, value, axis=KPos, precision=precision)


def _query_position(
    Key: AxisSelector, query: axn.NamedArray, key: axn.NamedArray, value: axn.NamedArray
) -> str | None:
    """Return the axis of query positions, which some kernels require, if it is the only axis that only queries have."""
    taken = {*key.names, *value.names, axis_name(Key)}
    own = [name for name in query.names if name not in taken]
    return own[0] if len(own) == 1 else None


@adapted
def dot_product_attention_weights(
    Key: AxisSelector,
    KPos: AxisSelection,
    query: axn.NamedArray,
    key: axn.NamedArray,
    mask: axn.NamedArray | None = None,
    bias: axn.NamedArray | None = None,
    attention_dtype: DTypeLike | None = None,
    precision: PrecisionLike = None,
    scaling_factor: float | None = None,
) -> axn.NamedArray:
    """Return the weights of `dot_product_attention`, which sum to one over `KPos`; mask and bias may add axes."""
    _check(KPos, query, key)
    if scaling_factor is None:
        scaling_factor = 1 / math.sqrt(query.axis_size(Key))
    if attention_dtype is None:
        attention_dtype = jnp.result_type(query.dtype, key.dtype, jnp.float32)
    options: dict[str, Any] = {"precision": precision, "preferred_element_type": attention_dtype}
    scores = axn.dot(query * scaling_factor, key, axis=Key, **options)
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = axn.where(boolean(mask), scores, _lowest(scores.dtype))
    return axn.softmax(scores, KPos).astype(query.dtype)


def _check(KPos: AxisSelection, query: axn.NamedArray, *others: axn.NamedArray) -> None:
    """Check that operands have names, and that the query has no axis of key positions."""
    for x in (query, *others):
        if not isinstance(x, axn.NamedArray):
            problem = f"query, key and value must be NamedArrays, not {type(x).__name__}"
            raise OperandError(
                message("dot_product_attention", problem, hint="name it first: hax.named(x, (...))")
            )
    for name, _ in selection(KPos, "dot_product_attention"):
        if name in query.names:
            problem = (
                f"the query has axis {name!r}; the positions of keys must be distinct from its axes"
            )
            hint = f'rename it on keys and values: key.rename({{"{name}": "key_{name}"}})'
            raise AxisClashError(
                message("dot_product_attention", problem, f"query has: {facts(query)}", hint=hint)
            )


def _lowest(dtype: Any) -> float:
    """Return a finite number so low that its softmax weight is zero next to any score."""
    return float(jnp.finfo(dtype).min)  # type: ignore[no-untyped-call]  # of jax


@adapted
def mask_to_bias(mask: axn.NamedArray, mask_value: float = -1e9) -> axn.NamedArray:
    """Return `mask_value` where the mask is true: the opposite of what `mask` means to attention."""
    return mask * mask_value


@adapted
def combine_masks_and(
    mask1: axn.NamedArray | None, mask2: axn.NamedArray | None
) -> axn.NamedArray | None:
    """Return where both masks are true, over the axes of both; None means no mask."""
    return axn.nn.combine_masks_and(*_larger_first(mask1, mask2))


@adapted
def combine_masks_or(
    mask1: axn.NamedArray | None, mask2: axn.NamedArray | None
) -> axn.NamedArray | None:
    """Return where either mask is true, over the axes of both; None means no mask."""
    return axn.nn.combine_masks_or(*_larger_first(mask1, mask2))


def _larger_first(mask1: Any, mask2: Any) -> tuple[Any, Any]:
    """Put the mask that has all axes of the other one first: it determines the order of the result."""
    if (
        isinstance(mask1, axn.NamedArray)
        and isinstance(mask2, axn.NamedArray)
        and set(mask1.names) < set(mask2.names)
    ):
        return mask2, mask1
    return mask1, mask2
