"""One checked call of attention, and its plain implementation."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..array import NamedArray, is_named_array
from ..axis import Axis, AxisSelector, axis_name, selection
from ..core import Core, Operand, axes_of, facts, wrap
from ..errors import (
    AxisClashError,
    AxisNotFoundError,
    AxisSizeError,
    OperandError,
    describe,
    message,
    suggestion,
)
from ..ops import _lift
from ..ops._widen import at_least_float32
from ..ops.along import softmax
from ..ops.contract import dot
from ..ops.elementwise import tanh
from ..ops.reduce import logsumexp
from ..ops.select import where
from ._settings import as_python
from ._visible import positions, visible
from .activation import sigmoid
from .dropout import Dropout
from .mask import AttentionMask

__all__ = ["KEYS", "QUERIES", "AttentionCall", "Scoring", "beside_sinks", "lowest", "plain", "rename_all", "weights"]

FUNCTION = "dot_product_attention"
# No mapping lays these out: kernels and loops over blocks need all positions on each device.
QUERIES, KEYS = "positions of queries", "positions of keys"


@dataclasses.dataclass(frozen=True)
class Scoring:
    """Multiply queries and keys, scale the products unless the queries are scaled, cap them, and add a bias."""

    feature: str
    names: tuple[str, ...]
    dtype: Any
    precision: Any
    scale: float | None
    soft_cap: float | None

    def __call__(self, query: NamedArray, key: NamedArray, bias: NamedArray | None) -> NamedArray:
        """Return scores, axes `names`."""
        product = dot(
            query,
            key,
            axis=self.feature,
            out_axes=self.names,
            precision=self.precision,
            preferred_element_type=self.dtype,
        )
        if self.scale is not None:
            product = product * self.scale
        if self.soft_cap is not None:
            product = tanh(product / self.soft_cap) * self.soft_cap
        return product if bias is None else product + bias.astype(product.dtype)


@dataclasses.dataclass(frozen=True, eq=False)
class AttentionCall:
    """The arguments of `dot_product_attention`, checked and resolved for an implementation.

    Attributes:
        q_pos: the axis of query positions, if there is one.
        k_pos: the axis of key and value positions.
        feature: the feature axis of queries and keys.
        query: axes {feature, ...}, and q_pos, not yet multiplied by `scale`.
        key: axes {k_pos, feature, ...}.
        value: axes {k_pos, ...}.
        mask: which keys each query sees.
        bias: axes among those of the scores.
        sinks: axes among those of the scores without k_pos.
        dtype: the dtype of scores and softmax.
        precision: of the two products.
        scale: a factor for the scores.
        soft_cap: the bound of the scores, before bias and mask.
        q_start: the position of the first query.
        k_start: the position of the first key.
        dropout: the probability that a weight is dropped; 0 at inference.
        prng: the key for dropout.
        block_size: the numbers of query and key positions in a block.
    """

    q_pos: str | None
    k_pos: str
    feature: str
    query: NamedArray
    key: NamedArray
    value: NamedArray
    mask: AttentionMask | None = None
    bias: NamedArray | None = None
    sinks: NamedArray | None = None
    dtype: Any = None
    precision: Any = None
    scale: float = 1.0
    soft_cap: float | None = None
    q_start: int | Operand = 0
    k_start: int | Operand = 0
    dropout: float = 0.0
    prng: jax.Array | None = None
    block_size: tuple[int, int] | None = None

    @staticmethod
    def of(
        QPos: AxisSelector | None,
        KPos: AxisSelector,
        Key: AxisSelector,
        query: NamedArray,
        key: NamedArray,
        value: NamedArray,
        mask: AttentionMask | NamedArray | None,
        attention_dtype: Any,
        scale: float | None,
        soft_cap: float | None = None,
        **others: Any,
    ) -> "AttentionCall":
        """Check and resolve arguments."""
        if any(isinstance(axis, Core) for axis in (QPos, KPos, Key)):
            problem = "the first three arguments must be axes, not arrays"
            hint = "dot_product_attention(QPos, KPos, Key, query, key, value): the positions of queries come first"
            raise OperandError(message(FUNCTION, problem, hint=hint))
        q_pos, k_pos, feature = None if QPos is None else axis_name(QPos), axis_name(KPos), axis_name(Key)
        _require("value", value, KPos)
        _require("query", query, Key, *(() if QPos is None else (QPos,)))
        _require("key", key, Key, KPos)
        _apart(query, key, value, q_pos, k_pos)
        least = at_least_float32(jnp.promote_types(query.dtype, key.dtype))
        call = AttentionCall(
            q_pos,
            k_pos,
            feature,
            query,
            key,
            value,
            None if mask is None else AttentionMask.of(mask, FUNCTION),
            dtype=jnp.dtype(least if attention_dtype is None else attention_dtype),
            scale=1 / math.sqrt(query.axis_size(feature)) if scale is None else as_python(scale),
            soft_cap=as_python(soft_cap),
            **others,
        )
        for what, given in (("bias", call.bias), ("sinks", call.sinks)):
            if given is not None and not isinstance(given, Core):
                names = '("heads", ...)' if np.ndim(given) else "()"
                problem = f"{what} must be a NamedArray, not {type(given).__name__}"
                raise OperandError(message(FUNCTION, problem, hint=f"name it first: axn.named({what}, {names})"))
        axes = call.score_axes
        for what, tree, lacking in (
            ("mask", (call.mask, call.q_start, call.k_start), ()),
            ("bias", call.bias, ()),
            ("sink", call.sinks, (k_pos,)),
        ):
            _check_axes(what, tree, tuple(axis for axis in axes if axis.name not in lacking))
        if call.dropout and call.prng is None:
            hint = "pass prng=..., or inference=True"
            raise OperandError(message(FUNCTION, f"dropout with probability {call.dropout} needs a key", hint=hint))
        return call

    @property
    def score_axes(self) -> tuple[Axis, ...]:
        """The axes of the scores: those that queries and keys share, those of the queries, of the keys, and k_pos."""
        query, key = axes_of(FUNCTION, self.query), axes_of(FUNCTION, self.key)
        shared = [axis for axis in query if axis.name in self.key.names]
        own = [axis for axis in query if axis.name not in self.key.names]
        others = [axis for axis in key if axis.name not in self.query.names and axis.name != self.k_pos]
        position = [axis for axis in key if axis.name == self.k_pos]
        return tuple(axis for axis in (*shared, *own, *others, *position) if axis.name != self.feature)

    @property
    def scoring(self) -> Scoring:
        """The function that computes scores."""
        names = tuple(axis.name for axis in self.score_axes)
        scale = float(self.scale) if self._scales_products else None
        return Scoring(self.feature, names, self.dtype, self.precision, scale, self.soft_cap)

    @property
    def scoring_query(self) -> NamedArray:
        """The query for `scoring`: multiplied by `scale`, unless the products are."""
        return self.query if self._scales_products else self.query * self.scale

    @property
    def _scales_products(self) -> bool:
        """Return whether scaling the query would round it; scaling by a power of two does not.

        Otherwise, the query is scaled, which has fewer elements.
        """
        narrow = self.query.dtype.itemsize < self.dtype.itemsize and jnp.issubdtype(self.query.dtype, jnp.floating)
        return narrow and isinstance(self.scale, (int, float)) and abs(math.frexp(self.scale)[0]) != 0.5

    @property
    def out_names(self) -> tuple[str, ...]:
        """The axes of the result: those of the query, with `feature` replaced by new axes of the value, and others."""
        weighed = [axis.name for axis in self.score_axes if axis.name != self.k_pos]
        new = [name for name in self.value.names if name not in weighed and name != self.k_pos]
        order = [each for name in self.query.names for each in (new if name == self.feature else [name])]
        return (*order, *(name for name in weighed if name not in order))


def _require(what: str, x: NamedArray, *axes: AxisSelector) -> None:
    """Check that an operand of attention has axes."""
    if not isinstance(x, Core):
        raise _lift.unnamed(FUNCTION, x)
    for name, size in selection(axes, FUNCTION):
        if name not in x.names:
            problem, hint = f"the {what} lacks axis {name!r}", suggestion(name, x.names)
            raise AxisNotFoundError(message(FUNCTION, problem, f"{what} has: {facts(x)}", hint=hint))
        if size not in (None, x.axis_size(name)):
            problem = f"axis {name!r} was given with size {size}, but the {what} has size {x.axis_size(name)}"
            raise AxisSizeError(message(FUNCTION, problem, f"{what} has: {facts(x)}"))


def _apart(query: NamedArray, key: NamedArray, value: NamedArray, q_pos: str | None, k_pos: str) -> None:
    """Check that query positions and key positions are different axes."""
    if k_pos in query.names:
        problem = f"the query has axis {k_pos!r}, the positions of keys"
        hint = f'rename it on keys and values: key.rename({{"{k_pos}": "{k_pos}.key"}})'
        raise AxisClashError(message(FUNCTION, problem, f"query has: {facts(query)}", hint=hint))
    for what, x in (("key", key), ("value", value)):
        if q_pos in x.names:
            problem = f"the {what} has axis {q_pos!r}, the positions of queries"
            raise AxisClashError(message(FUNCTION, problem, f"{what} has: {facts(x)}"))


def _check_axes(what: str, tree: Any, axes: tuple[Axis, ...]) -> None:
    """Check that the arrays of a tree have only axes of the scores."""
    names = [axis.name for axis in axes]
    for leaf in jax.tree.leaves(tree, is_leaf=is_named_array):
        for name in leaf.names if isinstance(leaf, NamedArray) else ():
            if name not in names:
                problem = f"the {what} must not have axis {name!r}"
                has = f"{what} has: {facts(leaf)}", f"scores have: {describe(names, [axis.size for axis in axes])}"
                raise AxisNotFoundError(message(FUNCTION, problem, *has, hint=suggestion(name, names)))


def lowest(dtype: Any) -> Any:
    """Return a finite number of a dtype, so low that its softmax is zero next to any score."""
    return jnp.finfo(dtype).min  # type: ignore[no-untyped-call]  # of jax


def weights(call: AttentionCall) -> NamedArray:
    """Return the weight of each key, before dropout."""
    scored = call.scoring(call.scoring_query, call.key, call.bias)
    if call.mask is not None:
        Queries = None if call.q_pos is None else call.query.resolve_axis(call.q_pos)
        if Queries is not None and Queries.size == 1:
            Queries = None  # the one position of a step of decoding broadcasts without an axis
        queries = positions(Queries, call.q_start)
        keys = positions(call.key.resolve_axis(call.k_pos), call.k_start)
        seen = visible(call.mask, queries, keys, call.q_pos, call.k_pos)
        scored = scored if seen is None else where(seen, scored, lowest(scored.dtype))
    weighed = softmax(scored, call.k_pos)
    if call.sinks is not None:
        weighed = weighed * beside_sinks(logsumexp(scored, call.k_pos), call.sinks)
    return weighed.astype(call.query.dtype)


def beside_sinks(log_sum: NamedArray, sinks: NamedArray) -> NamedArray:
    """Return the total weight of all keys, given their log-sum-exp; the sinks have the rest."""
    return sigmoid(log_sum - sinks.astype(log_sum.dtype))


def plain(call: AttentionCall) -> NamedArray:
    """Compute attention with all scores at once."""
    weighed = Dropout(call.dropout)(weights(call), key=call.prng)
    return dot(weighed, call.value, axis=call.k_pos, out_axes=call.out_names, precision=call.precision)


def rename_all(tree: Any, new: Mapping[Any, str]) -> Any:
    """Rename axes of all arrays of a tree that have them."""

    def one(x: Any) -> Any:
        return wrap(x, x.array, tuple(new.get(name, name) for name in x.names)) if isinstance(x, NamedArray) else x

    return jax.tree.map(one, tree, is_leaf=is_named_array)
