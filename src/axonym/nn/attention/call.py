"""Internal. One call of attention: its arguments, checked and resolved once for all implementations.

The public functions make it, and each implementation reads from it. It must know neither the implementation nor the
mesh: its names, sizes and dtypes are the same everywhere.
"""

import dataclasses
import math
import warnings
from collections.abc import Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ...array import NamedArray, is_named_array
from ...axis import Axis, AxisSelector, axis_name, without_axes
from ...base.callers import users_line
from ...base.dtypes import at_least_float32
from ...base.kinds import type_text
from ...engine import checks
from ...engine.core import Core, Operand, axes_of, facts, wrap
from ...errors import (
    AxisClashError,
    AxisNotFoundError,
    OperandError,
    describe,
    message,
    suggestion,
)
from ...names import plans
from ...names.plans import Names
from ...ops.contract import dot
from ...ops.elementwise import tanh
from ..activation import sigmoid
from ..settings import as_python
from .masks.mask import AttentionMask

T = TypeVar("T")

FUNCTION = "dot_product_attention"
# Kernels and loops over blocks give positions these names, which no mapping splits.
QUERIES, KEYS = "positions of queries", "positions of keys"


@dataclasses.dataclass(frozen=True)
class Scoring:
    """Multiply queries and keys, scale the products unless the queries are scaled, cap them, and add a bias.

    It is a value, not a closure, so that it can be a static argument of `jax.jit`.
    """

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
        # Before the cap, whose bound is one of scaled scores.
        if self.scale is not None:
            product = product * self.scale
        if self.soft_cap is not None:
            product = tanh(product / self.soft_cap) * self.soft_cap
        if bias is not None:
            product = product + bias.astype(product.dtype)
        return product


@dataclasses.dataclass(frozen=True, eq=False)
class AttentionCall:
    """The arguments of `dot_product_attention`, checked and resolved for an implementation.

    Attributes:
        q_pos: the axis of query positions, if there is one.
        k_pos: the axis of key and value positions.
        feature: the feature axis of queries and keys.
        query: axes {feature, ...}, and q_pos, not yet multiplied by `scale`.
        keys: axes {k_pos, feature, ...}.
        values: axes {k_pos, ...}.
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
        key: for dropout.
        block_size: the numbers of query and key positions in a block.
    """

    q_pos: str | None
    k_pos: str
    feature: str
    query: NamedArray
    keys: NamedArray
    values: NamedArray
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
    key: jax.Array | None = None
    block_size: tuple[int, int] | None = None

    @staticmethod
    def of(
        QPos: AxisSelector | None,
        KPos: AxisSelector,
        HeadDim: AxisSelector,
        query: NamedArray,
        keys: NamedArray,
        values: NamedArray,
        mask: AttentionMask | NamedArray | None,
        attention_dtype: Any,
        scale: float | None,
        soft_cap: float | None = None,
        **others: Any,
    ) -> "AttentionCall":
        """Check and resolve arguments."""
        if any(isinstance(axis, Core) for axis in (QPos, KPos, HeadDim)):
            problem = "the first three arguments must be axes, not arrays"
            call = "dot_product_attention(QPos, KPos, HeadDim, query, keys, values)"
            hint = f"{call}: the positions of queries come first"
            raise OperandError(message(FUNCTION, problem, hint=hint))
        # Axes may be given with sizes, which are checked; from here on they are names.
        q_pos = None if QPos is None else axis_name(QPos)
        k_pos, feature = axis_name(KPos), axis_name(HeadDim)
        checks.require(FUNCTION, query, HeadDim, "query")
        if QPos is not None:
            checks.require(FUNCTION, query, QPos, "query")
        # Before it is asked whether keys have their axes: this message says how to rename them.
        _check_position_axes(query, keys, values, q_pos, k_pos)
        checks.require(FUNCTION, keys, (HeadDim, KPos), "keys")
        checks.require(FUNCTION, values, KPos, "values")
        if attention_dtype is None:
            # Softmax of narrow scores would lose what tells near scores apart.
            attention_dtype = at_least_float32(jnp.promote_types(query.dtype, keys.dtype))
        if scale is None:
            scale = 1 / math.sqrt(query.axis_size(feature))
        checked = AttentionCall(
            q_pos,
            k_pos,
            feature,
            query,
            keys,
            values,
            None if mask is None else AttentionMask.of(mask, FUNCTION),
            dtype=jnp.dtype(attention_dtype),
            scale=as_python(scale),
            soft_cap=as_python(soft_cap),
            **others,
        )
        checked._check()
        return checked

    def _check(self) -> None:
        """Check the operands that have axes of the scores, and the key for dropout."""
        _check_named("bias", self.bias)
        _check_named("sinks", self.sinks)

        # Else an operand would add an axis to the result.
        axes = self.score_axes
        _check_axes("mask", (self.mask, self.q_start, self.k_start), axes)
        _check_axes("bias", self.bias, axes)
        _check_axes("sink", self.sinks, without_axes(axes, self.k_pos))
        self._warn_of_whole_queries()

        if self.dropout and self.key is None:
            problem = f"dropout with probability {self.dropout} needs a key"
            raise OperandError(message(FUNCTION, problem, hint="pass key=..., or inference=True"))

    def _warn_of_whole_queries(self) -> None:
        """Warn if an array hides whole queries: it is probably a padding mask that should be over the keys."""
        # With alternatives, a query may be meant to see all keys.
        array = None if self.mask is None or self.mask.alternatives else self.mask.explicit
        if array is None or self.q_pos not in array.names or self.k_pos in array.names:
            return
        problem = f"the mask has axis {self.q_pos!r} of queries and not {self.k_pos!r}, so it hides whole queries"
        hint = f'to hide keys, rename it: mask.rename({{"{self.q_pos}": "{self.k_pos}"}})'
        text = message(FUNCTION, problem, f"mask has: {facts(array)}", hint=hint)
        warnings.warn(text, stacklevel=users_line()[1])

    @property
    def score_axes(self) -> tuple[Axis, ...]:
        """The axes of the scores: those that queries and keys share, those of the queries, of the keys, and k_pos.

        The order is that of the product, so that it needs no transposition.
        """
        query, keys = axes_of(FUNCTION, self.query), axes_of(FUNCTION, self.keys)
        shared = [axis for axis in query if axis.name in self.keys.names]
        own = without_axes(query, self.keys.names)
        others = without_axes(keys, (*self.query.names, self.k_pos))
        position = self.keys.resolve_axis(self.k_pos)
        return without_axes((*shared, *own, *others, position), self.feature)

    @property
    def scoring(self) -> Scoring:
        """The function that computes scores."""
        return Scoring(
            self.feature,
            axis_name(self.score_axes),
            self.dtype,
            self.precision,
            float(self.scale) if self._scales_products else None,
            self.soft_cap,
        )

    @property
    def scoring_query(self) -> NamedArray:
        """The query for `scoring`: multiplied by `scale`, unless the products are scaled instead."""
        return self.query if self._scales_products else self.query * self.scale

    @property
    def _scales_products(self) -> bool:
        """Whether scaling the query would round it. If not, the smaller query is scaled, not the products."""
        # In a dtype as wide as that of the scores, rounding twice is no worse than once.
        dtype = self.query.dtype
        if not jnp.issubdtype(dtype, jnp.floating) or dtype.itemsize >= self.dtype.itemsize:
            return False
        # A power of two changes the exponent only.
        return isinstance(self.scale, (int, float)) and abs(math.frexp(self.scale)[0]) != 0.5

    @property
    def out_names(self) -> tuple[str, ...]:
        """The axes of the result: those of the query, new axes of the values in place of `feature`, then others."""
        scores = axis_name(self.score_axes)
        new = plans.without(self.values.names, (*scores, self.k_pos))

        # New axes of the values stand where the features of the query stood.
        order: list[str] = []
        for name in self.query.names:
            order += new if name == self.feature else [name]
        return (*order, *plans.without(scores, (*order, self.k_pos)))

    @property
    def out_shape(self) -> dict[str, int]:
        """The sizes of the axes of the result."""
        sizes = {**self.values.shape, **self.keys.shape, **self.query.shape}
        return {name: sizes[name] for name in self.out_names}


def show(what: str, x: NamedArray) -> str:
    """Write the axes of an operand of attention, for errors."""
    return checks.write_axes(facts(x), what)


def _check_position_axes(
    query: NamedArray, keys: NamedArray, values: NamedArray, q_pos: str | None, k_pos: str
) -> None:
    """Check that query positions and key positions are different axes."""
    if k_pos in query.names:
        problem = f"the query has axis {k_pos!r}, the positions of keys"
        hint = f'rename it on keys and values: keys.rename({{"{k_pos}": "{k_pos}.key"}})'
        raise AxisClashError(message(FUNCTION, problem, show("query", query), hint=hint))
    for what, x in (("keys", keys), ("values", values)):
        if not isinstance(x, Core):
            raise checks.no_names(FUNCTION, x)
        if q_pos in x.names:
            problem = f"the {what} have axis {q_pos!r}, the positions of queries"
            # Where the name is taken, the axis must be another one.
            is_free = k_pos not in x.names
            advice = f'rename it: {what}.rename({{"{q_pos}": "{k_pos}"}})' if is_free else None
            raise AxisClashError(message(FUNCTION, problem, show(what, x), hint=advice))


def _check_named(what: str, given: Any) -> None:
    if given is not None and not isinstance(given, Core):
        names = '("heads", ...)' if np.ndim(given) else "()"
        problem = f"{what} must be a NamedArray, not {type_text(given)}"
        hint = f"name it first: axn.named({what}, {names})"
        raise OperandError(message(FUNCTION, problem, hint=hint))


def _check_axes(what: str, tree: object, axes: tuple[Axis, ...]) -> None:
    """Check that the arrays of a tree have only axes of the scores."""
    # Masks and starts are trees: their arrays are checked wherever they are.
    names = [axis.name for axis in axes]
    for leaf in jax.tree.leaves(tree, is_leaf=is_named_array):
        for name in leaf.names if isinstance(leaf, NamedArray) else ():
            if name not in names:
                problem = f"the {what} must not have axis {name!r}"
                sizes = [axis.size for axis in axes]
                lines = (f"{what} has: {facts(leaf)}", f"scores have: {describe(names, sizes)}")
                hint = suggestion(name, [own for own in names if own not in leaf.names])
                raise AxisNotFoundError(message(FUNCTION, problem, *lines, hint=hint))


def rename_all(tree: T, new: Mapping[str, str]) -> T:
    """Rename axes of all arrays of a tree that have them."""

    def rename_one(x: object) -> object:
        return wrap(x, x.array, rename(x.names, new)) if isinstance(x, NamedArray) else x

    result: T = jax.tree.map(rename_one, tree, is_leaf=is_named_array)
    return result


def rename(names: Names, new: Mapping[str, str]) -> Names:
    """Replace the names that have a new name."""
    return tuple(new.get(name, name) for name in names)


def find_lowest(dtype: object) -> Any:
    """Return the lowest finite number of a dtype: its softmax is zero next to any other score."""
    return jnp.finfo(dtype).min  # type: ignore[no-untyped-call]  # of jax


def weigh_against_sinks(log_sum: NamedArray, sinks: NamedArray) -> NamedArray:
    """Return the total weight of all keys, given their log-sum-exp; the sinks get the rest."""
    return sigmoid(log_sum - sinks.astype(log_sum.dtype))
