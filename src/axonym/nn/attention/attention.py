"""Attention by names: any other axes of queries, keys and values, such as batch and heads, are matched."""

from typing import Any

import jax
from jax.typing import DTypeLike

from ...array import NamedArray
from ...axis import AxisSelector
from ...current.machine import MACHINE, write_choice
from ...engine.core import Operand
from ...errors import OperandError, message
from ..settings import check_fraction
from ..windows import expand_setting
from .call import AttentionCall
from .choose import choose, find
from .masks.mask import AttentionMask
from .plain import compute_weights

__all__ = ["dot_product_attention", "dot_product_attention_weights"]


def dot_product_attention(
    QPos: AxisSelector | None,
    KPos: AxisSelector,
    HeadDim: AxisSelector,
    query: NamedArray,
    keys: NamedArray,
    values: NamedArray,
    mask: AttentionMask | NamedArray | None = None,
    bias: NamedArray | None = None,
    *,
    attention_dtype: DTypeLike | None = None,
    precision: object = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    sinks: NamedArray | None = None,
    q_start: int | Operand = 0,
    k_start: int | Operand = 0,
    dropout: float = 0.0,
    inference: bool = False,
    key: jax.Array | None = None,
    implementation: str | None = None,
    block_size: int | tuple[int, int] | None = None,
) -> NamedArray:
    """Compute scaled dot-product attention.

    Axes that queries, keys and values share, such as batch and heads, are matched. Along axes that only queries have,
    as in grouped-query attention, keys and values are shared without repeating them. A query that sees no key gets the
    mean of all values.

    `jax.nn.dot_product_attention` wants the axis order batch, positions, heads, features;
    `torch.nn.functional.scaled_dot_product_attention` wants batch, heads, positions, features. Here any order will do.
    Here, heads that share their keys are an axis that only queries have; there, they are consecutive heads. In both,
    the kernel decides the result of a query that sees no key.

    Args:
        QPos: the axis of query positions; None for one query without it.
        KPos: the axis of key and value positions, under another name.
        HeadDim: the axis of features of queries and keys.
        query: axes {QPos, HeadDim, ...}.
        keys: axes {KPos, HeadDim, ...}.
        values: axes {KPos, ...}.
        mask: which keys each query sees: an `AttentionMask`, or booleans over axes of the scores.
        bias: added to the scores; axes among theirs.
        attention_dtype: the dtype of scores and softmax; by default float32, or that of the query if it is wider.
        precision: as in `jax.numpy.einsum`.
        scale: a factor for the scores; by default one over the square root of the size of `HeadDim`.
        soft_cap: c, for scores c * tanh(score / c), before bias and mask.
        sinks: extra logits of the softmax that have no value, so weights sum to less than one; axes among those of the
            scores without `KPos`, such as heads.
        q_start: the position of the first query, for masks that compare positions: an int, or integers over axes of
            the scores.
        k_start: the position of the first key.
        dropout: the probability that a weight is set to zero; the others are scaled up.
        inference: whether to skip dropout.
        key: for dropout. The dropped weights depend on it and on the order of the scores' axes alone.
        implementation: "plain" holds all scores; "blockwise" holds one block at a time, also in the backward pass, so
            its memory is linear in the number of positions. "xla" and "cudnn" call `jax.nn.dot_product_attention`,
            "splash" the TPU kernel of that name, "tokamax" the library Tokamax, which must be installed. Only "plain"
            and "xla" have forward-mode and second derivatives, except that `jax.grad` of `jax.grad` works for
            "blockwise" if no mask makes it skip blocks. "ring", "all-gather" and "all-to-all" are for positions that
            are split over devices, and otherwise "blockwise". The default is the one of "ring" and "all-to-all" that
            sends less where the mapping or the types split positions of queries and keys alike; else "cudnn" on NVIDIA
            GPUs and "splash" on TPUs where they support the call, and otherwise "plain".
        block_size: the number of query positions, and of key positions, in a block; for those that compute blocks.

    Returns:
        The axes of `query`, with `HeadDim` replaced by the axes of `values` that the weights lack.

    Raises:
        AxisClashError: if `query` has `KPos`, or the others have `QPos`.
        AxisNotFoundError: if an operand lacks an axis, or mask, bias or sinks have one that the scores lack.
        OperandError: if dropout lacks its key, or the mask has the wrong type.
        ArgumentError: if the implementation is unknown, or does not support this call.
        ImportError: if the implementation is "tokamax", and Tokamax is not installed.

    Reference:
        Vaswani et al. (2017), Attention is all you need, eq. 1. Gemma Team (2024), Gemma 2, for soft_cap; Xiao et al.
        (2023), Efficient streaming language models with attention sinks.

    Examples:
        >>> Pos, Heads, Dim = axn.make_axes(pos=4, heads=2, head_dim=8)
        >>> q = k = v = axn.ones((Pos, Heads, Dim))
        >>> k, v = k.rename({"pos": "pos.key"}), v.rename({"pos": "pos.key"})
        >>> axn.nn.dot_product_attention("pos", "pos.key", "head_dim", q, k, v, mask=axn.nn.causal()).axes == q.axes
        True
    """
    # A wrong name is an error before any other argument is looked at.
    asked = None if implementation is None else find(implementation)
    call = AttentionCall.of(
        QPos,
        KPos,
        HeadDim,
        query,
        keys,
        values,
        mask,
        attention_dtype,
        scale,
        soft_cap,
        bias=bias,
        sinks=sinks,
        precision=precision,
        q_start=q_start,
        k_start=k_start,
        dropout=0.0 if inference else check_fraction("dot_product_attention", "dropout", dropout),
        key=key,
        block_size=None if block_size is None else _check_block_size(block_size),
    )
    chosen = asked or choose(call)
    if MACHINE.get() is None:
        return chosen.compute(call)
    # A report of costs names the implementation.
    with jax.named_scope(write_choice(chosen.name, chosen.reason)):
        return chosen.compute(call)


def _check_block_size(block_size: int | tuple[int, int]) -> tuple[int, int]:
    queries, keys = expand_setting("dot_product_attention", "block_size", block_size, 2, least=None)
    return queries, keys


def dot_product_attention_weights(
    HeadDim: AxisSelector,
    KPos: AxisSelector,
    query: NamedArray,
    keys: NamedArray,
    mask: NamedArray | None = None,
    bias: NamedArray | None = None,
    attention_dtype: DTypeLike | None = None,
    precision: object = None,
    scaling_factor: float | None = None,
    *,
    soft_cap: float | None = None,
    sinks: NamedArray | None = None,
) -> NamedArray:
    """Return the weights of `dot_product_attention`, which sum to one over `KPos`, or less with `sinks`.

    A query that sees no key gives all keys equal weight.

    Args:
        HeadDim: the axis of features of queries and keys.
        KPos: the axis of key positions.
        query: axes {HeadDim, ...}.
        keys: axes {KPos, HeadDim, ...}.
        mask: booleans, axes among those of the scores; true for keys to attend to.
        bias: added to the scores; axes among theirs.
        attention_dtype: the dtype of scores and softmax; by default float32, or that of the query if it is wider.
        precision: as in `jax.numpy.einsum`.
        scaling_factor: a factor for the scores; by default one over the square root of the size of `HeadDim`.
        soft_cap: as in `dot_product_attention`.
        sinks: as in `dot_product_attention`.

    Returns:
        The axes of the scores, in the dtype of `query`: those that `query` and `keys` share, then the others.

    Raises:
        AxisNotFoundError: if an operand lacks an axis, or mask, bias or sinks have one that the scores lack.
        OperandError: if the mask is not a NamedArray of booleans.

    Examples:
        >>> Pos, KPos, Dim = axn.make_axes(pos=2, key_pos=2, head_dim=4)
        >>> q, k = axn.ones((Pos, Dim)), axn.ones((KPos, Dim))
        >>> mask = axn.nn.causal_mask(Pos, KPos)
        >>> axn.nn.dot_product_attention_weights(Dim, KPos, q, k, mask).tolist()
        [[1.0, 0.0], [0.5, 0.5]]
    """
    if isinstance(mask, AttentionMask):
        problem = "the mask must be a NamedArray of booleans, as the axis of query positions is not given here"
        hint = "use mask.materialize(QPos, KPos)"
        raise OperandError(message("dot_product_attention_weights", problem, hint=hint))
    given = None, KPos, HeadDim, query, keys, keys, mask, attention_dtype, scaling_factor, soft_cap
    options: dict[str, Any] = {"bias": bias, "sinks": sinks, "precision": precision}
    return compute_weights(AttentionCall.of(*given, **options))
