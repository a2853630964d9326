"""Attention by names: any other axes of queries, keys and values, such as batch and heads, are matched."""

import math

import jax.numpy as jnp
from jax.typing import DTypeLike

from ..array import NamedArray
from ..axis import Axis, AxisSelector, axis_name, selection
from ..core import Core, facts
from ..create import arange
from ..errors import AxisClashError, AxisNotFoundError, AxisSizeError, message, suggestion
from ..ops import _lift
from ..ops.along import softmax
from ..ops.contract import dot
from ..ops.logical import greater_equal, logical_and, logical_or
from ..ops.select import where

__all__ = [
    "causal_mask",
    "combine_masks_and",
    "combine_masks_or",
    "dot_product_attention",
    "dot_product_attention_weights",
]


def dot_product_attention(
    KPos: AxisSelector,
    Key: AxisSelector,
    query: NamedArray,
    key: NamedArray,
    value: NamedArray,
    mask: NamedArray | None = None,
    bias: NamedArray | None = None,
    attention_dtype: DTypeLike | None = None,
    precision: object = None,
) -> NamedArray:
    """Average values by how well their keys fit each query.

    Args:
        KPos: the axis of positions of keys and values; queries must not have it.
        Key: the axis of a key's features.
        query: axes {Key, ...}.
        key: axes {KPos, Key, ...}.
        value: axes {KPos, ...}.
        mask: axes among those of the scores; keys to attend to.
        bias: axes among those of the scores; added to them.
        attention_dtype: the dtype of scores and softmax; by default that of the query.
        precision: as in `jax.numpy.einsum`.

    Returns:
        The axes of `query`, where those of `value` that the weights lack stand in the place of `Key`.

    Raises:
        AxisClashError: if `query` has `KPos`.
        AxisNotFoundError: if an operand lacks an axis.

    Reference:
        Vaswani et al. (2017), Attention is all you need, eq. 1.
    """
    _require("value", value, KPos)
    weights = dot_product_attention_weights(
        Key, KPos, query, key, mask=mask, bias=bias, attention_dtype=attention_dtype, precision=precision
    )
    new = [name for name in value.names if name not in weights.names]
    order = [each for name in query.names for each in (new if name == axis_name(Key) else [name])]
    return dot(weights, value, axis=axis_name(KPos), out_axes=(*order, ...), precision=precision)


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
) -> NamedArray:
    """Return the weights of `dot_product_attention`: positive, and summing to one over `KPos`.

    A query none of whose keys may be attended to weighs them all alike.

    Args:
        Key: the axis of a key's features.
        KPos: the axis of positions of keys.
        query: axes {Key, ...}.
        key: axes {KPos, Key, ...}.
        mask: axes among those of the scores; keys to attend to.
        bias: axes among those of the scores; added to them.
        attention_dtype: the dtype of scores and softmax; by default that of the query.
        precision: as in `jax.numpy.einsum`.
        scaling_factor: a factor for the scores; by default one over the root of the size of `Key`.
    """
    position, feature = axis_name(KPos), axis_name(Key)
    _require("query", query, Key)
    _require("key", key, Key, KPos)
    if position in query.names:
        problem = f"the query has axis {position!r}, which keys are to be attended to over"
        hint = f'rename it on keys and values: key.rename({{"{position}": "{position}.key"}})'
        raise AxisClashError(message("dot_product_attention", problem, f"query has: {facts(query)}", hint=hint))
    scale = 1 / math.sqrt(query.axis_size(Key)) if scaling_factor is None else scaling_factor
    shared = [name for name in query.names if name in key.names and name != feature]
    own = [name for name in query.names if name not in key.names]
    scores = dot(
        query * scale,
        key,
        axis=feature,
        out_axes=(*shared, *own, ..., position),
        precision=precision,
        preferred_element_type=attention_dtype,
    )
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = where(mask, scores, _lowest(scores))
    return softmax(scores, position).astype(query.dtype)


def _require(what: str, x: NamedArray, *axes: AxisSelector) -> None:
    """Check that an operand of attention has axes."""
    function = "dot_product_attention"
    if not isinstance(x, Core):
        raise _lift.unnamed(function, x)
    for name, size in selection(axes, function):
        if name not in x.names:
            problem, hint = f"the {what} lacks axis {name!r}", suggestion(name, x.names)
            raise AxisNotFoundError(message(function, problem, f"{what} has: {facts(x)}", hint=hint))
        if size not in (None, x.axis_size(name)):
            problem = f"axis {name!r} was given with size {size}, but the {what} has size {x.axis_size(name)}"
            raise AxisSizeError(message(function, problem, f"{what} has: {facts(x)}"))


def _lowest(x: NamedArray) -> float:
    """Return a finite number so low that its softmax is zero next to any score."""
    return float(jnp.finfo(x.dtype).min)  # type: ignore[no-untyped-call]  # of jax


def causal_mask(QPos: Axis, KPos: Axis, q_start: int | NamedArray = 0, k_start: int | NamedArray = 0) -> NamedArray:
    """Return which keys are not after each query.

    Args:
        QPos: the axis of positions of queries.
        KPos: the axis of positions of keys, under another name.
        q_start: the position of the first query.
        k_start: the position of the first key.

    Returns:
        Booleans, axes {QPos, KPos} and those of the starts.
    """
    query, key = axis_name(QPos), axis_name(KPos)
    if query == key:
        problem = f"positions of queries and keys are both called {query!r}"
        hint = 'give those of keys another name: KPos.derive("key")'
        raise AxisClashError(message("causal_mask", problem, hint=hint))
    queries, keys = _counted(QPos, q_start), _counted(KPos, k_start)
    return greater_equal(queries.broadcast_axis(keys.axes).rearrange((..., query, key)), keys)


def _counted(Pos: Axis, start: int | NamedArray) -> NamedArray:
    """Count positions from a start, which may have axes."""
    counted = arange(Pos)
    return (counted.broadcast_axis(start.axes) if isinstance(start, NamedArray) else counted) + start


def combine_masks_and(mask1: NamedArray | None, mask2: NamedArray | None) -> NamedArray | None:
    """Attend where both masks allow it; None allows all. The result has the axes of both."""
    if mask1 is None or mask2 is None:
        return mask2 if mask1 is None else mask1
    return logical_and(mask1.broadcast_axis(mask2.axes), mask2)


def combine_masks_or(mask1: NamedArray | None, mask2: NamedArray | None) -> NamedArray | None:
    """Attend where one of the masks allows it; None is no mask, the other counts. The result has the axes of both."""
    if mask1 is None or mask2 is None:
        return mask2 if mask1 is None else mask1
    return logical_or(mask1.broadcast_axis(mask2.axes), mask2)
