"""Attention by names: any other axes of queries, keys and values, such as batch and heads, are matched.

There are several ways to compute it. Each is a function of one checked `AttentionCall`, listed in `_IMPLEMENTATIONS`
under the name by which `implementation=` asks for it; `choose` says which one is taken without that. A way that holds
only for some calls raises an `ArgumentError` that says so where it was asked for by name, and is not chosen otherwise.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.typing import DTypeLike

from ..array import NamedArray
from ..axis import AxisSelector
from ..core import Operand
from ..errors import ArgumentError, OperandError, message, suggestion
from ._attention import AttentionCall, plain, weights
from ._blockwise import blockwise
from ._kernels import choose, cudnn, splash, xla
from ._settings import fraction
from ._windows import each
from .mask import AttentionMask

__all__ = ["dot_product_attention", "dot_product_attention_weights"]

_IMPLEMENTATIONS: Mapping[str, Callable[[AttentionCall], NamedArray]] = {
    "plain": plain,
    "blockwise": blockwise,
    "xla": xla,
    "cudnn": cudnn,
    "splash": splash,
}


def dot_product_attention(
    QPos: AxisSelector | None,
    KPos: AxisSelector,
    Key: AxisSelector,
    query: NamedArray,
    key: NamedArray,
    value: NamedArray,
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
    prng: jax.Array | None = None,
    implementation: str | None = None,
    block_size: int | tuple[int, int] | None = None,
) -> NamedArray:
    """Average values by how well their keys fit each query.

    Axes that queries, keys and values share, such as batch and heads, are matched. One that only queries have, such as
    the heads of a group, meets the same keys: nothing is repeated. A query that sees no key gets the mean of all
    values.

    Args:
        QPos: the axis of positions of queries; None for one query without position.
        KPos: the axis of positions of keys and values, under another name.
        Key: the axis of a key's features.
        query: axes {QPos, Key, ...}.
        key: axes {KPos, Key, ...}.
        value: axes {KPos, ...}.
        mask: which keys each query sees: an `AttentionMask`, or booleans of axes of the scores.
        bias: axes among those of the scores; added to them.
        attention_dtype: the dtype of scores and softmax; by default float32, or that of the query if it is wider.
        precision: as in `jax.numpy.einsum`.
        scale: a factor for the scores; by default one over the root of the size of `Key`.
        soft_cap: c, which makes c * tanh(score / c) of each score, before bias and mask.
        sinks: axes among those of the scores without `KPos`, such as heads; logits that take part in the softmax but
            have no value: weights then sum to less than one.
        q_start: the position of the first query, for masks that compare positions: an int, or integers of axes of
            the scores.
        k_start: the position of the first key.
        dropout: the probability that a weight is set to zero; the others are scaled up.
        inference: whether to drop nothing.
        prng: the key for that. What is dropped depends on the implementation and its blocks too.
        implementation: "plain" holds all scores, "blockwise" a block of them at a time, in the backward pass as well:
            its memory is linear in the number of positions. "xla" and "cudnn" call `jax.nn.dot_product_attention`,
            "splash" the kernel of that name for TPUs. All but "plain" and "xla" have no forward-mode derivative and no
            second one, but for `jax.grad` of `jax.grad` of "blockwise" where no mask makes it skip blocks. By default
            it is "cudnn" or "splash" on a GPU or TPU, where they compute the call, and "plain" elsewhere.
        block_size: how many positions of queries, and of keys, a block has; for "blockwise" and "splash".

    Returns:
        The axes of `query`, where those of `value` that the weights lack stand in the place of `Key`.

    Raises:
        AxisClashError: if `query` has `KPos`, or the others have `QPos`.
        AxisNotFoundError: if an operand lacks an axis, or mask, bias or sinks have one that the scores lack.
        OperandError: if there is something to drop and no key, or a mask is of another kind.
        ArgumentError: if there is no such implementation, or it does not compute this call.

    Reference:
        Vaswani et al. (2017), Attention is all you need, eq. 1. Gemma Team (2024), Gemma 2, for soft_cap; Xiao et al.
        (2023), Efficient streaming language models with attention sinks.

    Example:
        >>> Pos, Heads, Dim = axn.make_axes(pos=4, heads=2, head_dim=8)
        >>> q = k = v = axn.ones((Pos, Heads, Dim))
        >>> k, v = k.rename({"pos": "pos.key"}), v.rename({"pos": "pos.key"})
        >>> axn.nn.dot_product_attention("pos", "pos.key", "head_dim", q, k, v, mask=axn.nn.causal()).axes == q.axes
        True
    """
    if implementation is not None and implementation not in _IMPLEMENTATIONS:
        known = ", ".join(map(repr, _IMPLEMENTATIONS))
        problem, hint = f"there is no implementation {implementation!r}", suggestion(implementation, _IMPLEMENTATIONS)
        raise ArgumentError(message("dot_product_attention", problem, f"known: {known}", hint=hint))
    call = AttentionCall.of(
        QPos,
        KPos,
        Key,
        query,
        key,
        value,
        mask,
        attention_dtype,
        scale,
        soft_cap,
        bias=bias,
        sinks=sinks,
        precision=precision,
        q_start=q_start,
        k_start=k_start,
        dropout=0.0 if inference else fraction("dot_product_attention", "dropout", dropout),
        prng=prng,
        block_size=block_size if block_size is None else _blocks(block_size),
    )
    return _IMPLEMENTATIONS[implementation or choose(call)](call)


def _blocks(block_size: int | tuple[int, int]) -> tuple[int, int]:
    queries, keys = each("dot_product_attention", "block_size", block_size, 2, least=None)
    return queries, keys


def dot_product_attention_weights(
    Key: AxisSelector,
    KPos: AxisSelector,
    query: NamedArray,
    key: NamedArray,
    mask: NamedArray | None = None,
    bias: NamedArray | None = None,
    attention_dtype: DTypeLike | None = None,
    precision: object = None,
    scaling_factor: float | None = None,
    *,
    soft_cap: float | None = None,
    sinks: NamedArray | None = None,
) -> NamedArray:
    """Return the weights of `dot_product_attention`: positive, and summing to one over `KPos`, or less with `sinks`.

    A query that sees no key weighs them all alike.

    Args:
        Key: the axis of a key's features.
        KPos: the axis of positions of keys.
        query: axes {Key, ...}.
        key: axes {KPos, Key, ...}.
        mask: booleans, axes among those of the scores; keys to attend to.
        bias: axes among those of the scores; added to them.
        attention_dtype: the dtype of scores and softmax; by default float32, or that of the query if it is wider.
        precision: as in `jax.numpy.einsum`.
        scaling_factor: a factor for the scores; by default one over the root of the size of `Key`.
        soft_cap: as in `dot_product_attention`.
        sinks: as in `dot_product_attention`.
    """
    if isinstance(mask, AttentionMask):
        problem = "a mask is a NamedArray of booleans here, where nothing tells positions of queries from other axes"
        hint = "use mask.materialize(QPos, KPos)"
        raise OperandError(message("dot_product_attention_weights", problem, hint=hint))
    options: dict[str, Any] = {"soft_cap": soft_cap, "bias": bias, "sinks": sinks, "precision": precision}
    return weights(AttentionCall.of(None, KPos, Key, query, key, key, mask, attention_dtype, scaling_factor, **options))
