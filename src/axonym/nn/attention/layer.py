"""Attention as a layer: projections to queries, keys and values, and back."""

from collections.abc import Callable
from typing import Self

import equinox as eqx
import jax

from ...array import NamedArray
from ...axis import Axis, AxisSelector, AxisSpec, axis_name, shown, spec
from ...create import zeros
from ...engine import checks
from ...engine.core import Operand
from ...errors import AxisNotFoundError, OperandError, message
from ..initializer import Initializer
from ..layer import Layer, enter_scope
from ..linear import Linear
from ..roles import Overrides, Role
from ..settings import as_python, check_fraction
from ..switch import switchable
from ..weights import make_if, read_vector
from .attention import dot_product_attention
from .cache.cache import KVCache
from .masks.mask import AttentionMask

__all__ = ["Attention"]


@switchable
class Attention(Layer):
    """Attend from the positions of a sequence to its own, or to those of another one.

    Attributes:
        query: from the input to the axes of query heads and `head_dim`.
        key: from the input, or the context, to the axes of key heads and `head_dim`.
        value: the same for values.
        out: from the axes of query heads and `head_dim` back.
        pos: the name of the axis of positions; in scores, those of the keys are called `<pos>.key`.
        dropout: the probability that an attention weight is set to zero, in calls with a key.
        scale: a factor for the scores; None for one over the square root of the features of a head.
        sinks: a logit of each query head that has no value; None without.
        inference: whether nothing is dropped, even with a key; `eqx.nn.inference_mode` switches it.

    Examples:
        >>> Batch, Pos, Embed, Heads, HeadDim = axn.make_axes(batch=2, pos=5, embed=8, heads=2, head_dim=4)
        >>> attention = axn.nn.Attention.init(Embed, Heads, HeadDim, key=jax.random.key(0))
        >>> attention(axn.ones((Batch, Pos, Embed)), axn.nn.causal()).shape
        {'batch': 2, 'pos': 5, 'embed': 8}

    Reference:
        Vaswani et al. (2017), Attention is all you need, section 3.2; Xiao et al. (2023), Efficient streaming language
        models with attention sinks.
    """

    query: Linear
    key: Linear
    value: Linear
    out: Linear
    pos: str = eqx.field(static=True, default="pos")
    dropout: float = eqx.field(static=True, default=0.0)
    scale: float | None = eqx.field(static=True, default=None, converter=as_python)
    sinks: NamedArray | None = None
    inference: bool = False

    @classmethod
    def init(
        cls,
        Embed: AxisSpec,
        Heads: AxisSpec,
        HeadDim: Axis,
        *,
        key: jax.Array,
        KVHeads: AxisSpec | None = None,
        Context: AxisSpec | None = None,
        pos: AxisSelector = "pos",
        use_bias: bool = True,
        dropout: float = 0.0,
        scale: float | None = None,
        use_sinks: bool = False,
        initializer: Initializer | None = None,
    ) -> Self:
        """Make the four projections.

        Args:
            Embed: the axes of the input, and of the result.
            Heads: the axes of the heads of queries. Grouped heads are two: `(KVHeads, Group)`.
            HeadDim: the features of a head.
            key: for the weights.
            KVHeads: those of `Heads` that keys and values have; by default all of them. With none, `()`, all queries
                share one head of keys and values.
            Context: the axes of what keys and values are made of, where it is another sequence; by default `Embed`.
            pos: the axis of positions.
            use_bias: whether the projections have biases.
            dropout: the probability that an attention weight is set to zero.
            scale: a factor for the scores; by default one over the square root of the size of `HeadDim`.
            use_sinks: whether each head learns a sink, a logit that takes part in its softmax but has no value; it
                starts at zero.
            initializer: see `Linear.init`.

        Raises:
            AxisNotFoundError: if an axis of `KVHeads` is not among `Heads`.

        Examples:
            >>> Embed, KVHeads, Group, HeadDim = axn.make_axes(embed=8, kv_heads=2, group=3, head_dim=4)
            >>> heads = KVHeads, Group
            >>> grouped = axn.nn.Attention.init(Embed, heads, HeadDim, key=jax.random.key(0), KVHeads=KVHeads)
            >>> grouped.query.weight.shape, grouped.key.weight.shape
            ({'embed': 8, 'kv_heads': 2, 'group': 3, 'head_dim': 4}, {'embed': 8, 'kv_heads': 2, 'head_dim': 4})

        Reference:
            Ainslie et al. (2023), GQA: training generalized multi-query transformer models, for grouped heads.
        """
        heads = spec(Heads, "Attention.init")
        kv_heads = heads if KVHeads is None else spec(KVHeads, "Attention.init")
        missing = [axis for axis in kv_heads if axis not in heads]
        if missing:
            problem = f"keys and values have heads {shown(*missing)}, which queries lack"
            hint = "grouped heads are two axes of queries: Heads=(KVHeads, Group)"
            given = f"Heads: {shown(*heads)}"
            raise AxisNotFoundError(message("Attention.init", problem, given, hint=hint))

        def project(In: AxisSpec, Out: AxisSpec, key: jax.Array) -> Linear:
            return Linear.init(In, Out, key=key, use_bias=use_bias, initializer=initializer)

        context = Embed if Context is None else Context
        k_query, k_key, k_value, k_out = jax.random.split(key, 4)
        return cls(
            query=project(Embed, (*heads, HeadDim), k_query),
            key=project(context, (*kv_heads, HeadDim), k_key),
            value=project(context, (*kv_heads, HeadDim), k_value),
            out=project((*heads, HeadDim), Embed, k_out),
            pos=axis_name(pos),
            dropout=check_fraction("Attention.init", "dropout", dropout),
            scale=scale,
            sinks=make_if(use_sinks, zeros, heads),
        )

    @property
    def axis_roles(self) -> Overrides:
        """The roles of axes that the projections cannot know: which of them count heads."""
        heads: dict[str, Role] = {axis.name: "head" for axis in self.query.Out[:-1]}
        # Sinks belong to no projection.
        return {**heads, "sinks": dict.fromkeys(heads, "output")}

    def __call__(
        self,
        x: NamedArray,
        mask: AttentionMask | NamedArray | None = None,
        *,
        context: NamedArray | None = None,
        rotate: Callable[[NamedArray], NamedArray] | None = None,
        bias: NamedArray | None = None,
        implementation: str | None = None,
        key: jax.Array | None = None,
    ) -> NamedArray:
        """Attend, and return the axes of `x`.

        Args:
            x: axes {pos, Embed, ...}.
            mask: which keys each query sees: an `AttentionMask`, or booleans over {pos, <pos>.key, ...}.
            context: axes {pos, Context, ...}, with any number of positions: what keys and values are made of. By
                default, `x` itself.
            rotate: a function of queries and of keys, such as a `RotaryTable`.
            bias: added to the scores, axes among {pos, <pos>.key, heads, ...}.
            implementation: see `dot_product_attention`.
            key: for dropout; without it, nothing is dropped.

        Raises:
            AxisNotFoundError: if an operand lacks an axis.
            AxisSizeError: if an axis has another size.

        Examples:
            >>> Pos, Embed, Heads, HeadDim = axn.make_axes(pos=5, embed=8, heads=2, head_dim=4)
            >>> attention = axn.nn.Attention.init(Embed, Heads, HeadDim, key=jax.random.key(0))
            >>> x, context = axn.ones((Pos, Embed)), axn.ones((Pos.resize(7), Embed))
            >>> attention(x, context=context).shape
            {'pos': 5, 'embed': 8}
        """
        self._check_positions(
            "input", x, 'make the layer with pos="...", the name of its positions'
        )
        if context is not None:
            self._check_positions(
                "context", context, f'rename its positions: context.rename({{"...": "{self.pos}"}})'
            )
        query, keys, values = self._project(x, x if context is None else context, rotate)
        # Derived from the name of the queries, so that a mapping splits both alike.
        k_pos = f"{self.pos}.key"
        attended = dot_product_attention(
            self.pos,
            k_pos,
            self._features,
            query,
            keys.rename({self.pos: k_pos}),
            values.rename({self.pos: k_pos}),
            mask,
            bias,
            scale=self.scale,
            sinks=self._sinks,
            implementation=implementation,
            dropout=self.dropout,
            inference=self.inference or key is None,
            key=key,
        )
        return self.out(attended)

    @enter_scope
    def extend(
        self,
        x: NamedArray,
        cache: KVCache,
        *,
        rotate: Callable[[NamedArray], NamedArray] | None = None,
        mask: AttentionMask | NamedArray | None = None,
        count: int | Operand | None = None,
        layer: tuple[AxisSelector, int | Operand] | None = None,
    ) -> tuple[NamedArray, KVCache]:
        """Attend causally from the next tokens to those in a cache and to themselves.

        Args:
            x: axes {pos, Embed, ...}, or one token of each sequence, without `pos`.
            cache: keys and values of the tokens so far.
            rotate: a function of queries and of keys at these positions, such as a `RotaryTable`.
            mask: a further mask; see `KVCache.attend`.
            count: how many of the tokens are real; see `KVCache.extend`.
            layer: which of several caches, stored along an axis; see `KVCache.extend`.

        Returns:
            The result, axes {pos, Embed, ...}, and the next cache.

        Examples:
            >>> Embed, Heads, HeadDim = axn.make_axes(embed=8, heads=2, head_dim=4)
            >>> attention = axn.nn.Attention.init(Embed, Heads, HeadDim, key=jax.random.key(0))
            >>> cache = axn.nn.KVCache.init("pos.key", (axn.Axis("pos.key", 16), Heads, HeadDim))
            >>> out, cache = attention.extend(axn.ones((axn.Axis("pos", 3), Embed)), cache)
            >>> out.shape, cache.length.item()
            ({'pos': 3, 'embed': 8}, 3)
        """
        query, keys, values = self._project(x, x, rotate)
        # One token of each sequence needs no axis of positions.
        Pos = self.pos if query.has_axis(self.pos) else None
        attended, cache = cache.attend(
            Pos,
            self._features,
            query,
            keys,
            values,
            mask,
            scale=self.scale,
            sinks=self._sinks,
            count=count,
            layer=layer,
        )
        return self.out(attended), cache

    @property
    def _sinks(self) -> NamedArray | None:
        return None if self.sinks is None else read_vector(self.sinks)

    @property
    def _features(self) -> str:
        """The name of the features of queries and keys."""
        return self.query.Out[-1].name

    def _check_positions(self, what: str, x: NamedArray, hint: str) -> None:
        # The projections refuse arrays without names.
        if isinstance(x, NamedArray):
            checks.require("Attention", x, self.pos, what, role=", the positions", hint=hint)

    def _project(
        self, x: NamedArray, context: NamedArray, rotate: Callable[[NamedArray], NamedArray] | None
    ) -> tuple[NamedArray, NamedArray, NamedArray]:
        query, keys, values = self.query(x), self.key(context), self.value(context)
        if rotate is not None:
            if not callable(rotate):
                problem = f"rotate must be a function of queries and keys, not {rotate!r}"
                hint = "a RotaryTable is one: nn.RotaryEmbedding.init(HeadDim).at(Pos)"
                raise OperandError(message("Attention", problem, hint=hint))
            query, keys = rotate(query), rotate(keys)
        return query, keys, values
