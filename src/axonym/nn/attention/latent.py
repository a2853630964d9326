"""Latent attention: keys and values of all heads are made of one short vector, which is all that a cache holds."""

import math
from collections.abc import Callable, Mapping
from typing import Self

import equinox as eqx
import jax

from ...array import NamedArray
from ...axis import Axis, AxisSelector, AxisSpec, axis_name, sized, spec
from ...create import zeros
from ...engine.core import Operand
from ...errors import OperandError, message
from ...ops.index import index
from ...ops.join import concatenate
from ...partitioning.shard import auto_sharded
from ..initializer import Initializer
from ..layer import enter_scope
from ..linear import Linear
from ..lora import merge_lora
from ..norm import RmsNorm
from ..settings import check_fraction
from ..weights import make_if, multiply
from .cache.cache import KVCache
from .layer import Attention
from .masks.mask import AttentionMask

__all__ = ["LatentAttention"]


class LatentAttention(Attention):
    """Attend with keys and values that are made of a latent vector of each position, short and the same for all heads.

    Positions are rotated in features of their own: each head has some of the query, and all heads share those of the
    key. A `KVCache` holds the latent and the rotated features only. For new tokens, `extend` multiplies queries by the
    weight of the keys, and what they attend to by that of the values, so no key or value of a token before is made.

    Attributes:
        query: from the input, or its latent, to the axes of heads and `head_dim`.
        key: from the latent to the axes of heads and `head_dim`.
        value: from the latent to the axes of heads and of a head's values.
        out: from these back.
        latent: from the input, or the context, to the latent of keys and values.
        latent_norm: the norm of this latent.
        rotary_query: from the input, or its latent, to the axes of heads and the features that are rotated.
        rotary_key: from the input, or the context, to the features that are rotated.
        query_latent: from the input to the latent of queries; None if queries have none.
        query_norm: the norm of this latent.
        pos: see `Attention`.
        dropout: see `Attention`.
        scale: a factor for the scores; None for one over the square root of all features of a head's query.
        sinks: see `Attention`.
        inference: see `Attention`.

    Examples:
        >>> Pos, Embed, Heads, HeadDim, Latent, Rotary = axn.make_axes(
        ...     pos=5, embed=8, heads=2, head_dim=4, latent=6, rotary=2
        ... )
        >>> attention = axn.nn.LatentAttention.init(Embed, Heads, HeadDim, Latent, Rotary, key=jax.random.key(0))
        >>> rotate = axn.nn.RotaryEmbedding.init(Rotary).at(Pos)
        >>> attention(axn.ones((Pos, Embed)), axn.nn.causal(), rotate=rotate).shape
        {'pos': 5, 'embed': 8}

    Reference:
        DeepSeek-AI (2024), DeepSeek-V2, section 2.1.
    """

    latent: Linear = eqx.field(kw_only=True)
    latent_norm: RmsNorm = eqx.field(kw_only=True)
    rotary_query: Linear = eqx.field(kw_only=True)
    rotary_key: Linear = eqx.field(kw_only=True)
    query_latent: Linear | None = eqx.field(kw_only=True)
    query_norm: RmsNorm | None = eqx.field(kw_only=True)

    @classmethod
    def init(  # type: ignore[override]  # it takes other axes
        cls,
        Embed: AxisSpec,
        Heads: AxisSpec,
        HeadDim: Axis,
        Latent: Axis,
        Rotary: Axis,
        *,
        key: jax.Array,
        QueryLatent: Axis | None = None,
        ValueDim: Axis | None = None,
        Context: AxisSpec | None = None,
        pos: AxisSelector = "pos",
        use_bias: bool = False,
        eps: float = 1e-6,
        dropout: float = 0.0,
        scale: float | None = None,
        use_sinks: bool = False,
        initializer: Initializer | None = None,
    ) -> Self:
        """Make the projections and the norms.

        Args:
            Embed: the axes of the input, and of the result.
            Heads: the axes of heads.
            HeadDim: the features of a head that are not rotated.
            Latent: the latent of keys and values.
            Rotary: the features that are rotated.
            key: for the weights.
            QueryLatent: the latent of queries; by default, queries are made of the input.
            ValueDim: the features of a head's values; by default `HeadDim`.
            Context: see `Attention.init`.
            pos: the axis of positions.
            use_bias: whether the projections from and to `Embed` have biases, except those of queries without a latent.
            eps: see `RmsNorm.init`.
            dropout: the probability that an attention weight is set to zero.
            scale: a factor for the scores; by default one over the square root of the sizes of `HeadDim` and `Rotary`.
            use_sinks: see `Attention.init`.
            initializer: see `Linear.init`.

        Examples:
            >>> Embed, Heads, HeadDim, Latent, Rotary = axn.make_axes(embed=8, heads=2, head_dim=4, latent=6, rotary=2)
            >>> axes = Embed, Heads, HeadDim, Latent, Rotary
            >>> attention = axn.nn.LatentAttention.init(*axes, QueryLatent=axn.Axis("q", 3), key=jax.random.key(0))
            >>> attention.query.weight.shape, attention.key.weight.shape
            ({'q': 3, 'heads': 2, 'head_dim': 4}, {'latent': 6, 'heads': 2, 'head_dim': 4})
        """
        function = "LatentAttention.init"
        heads, HeadDim = spec(Heads, function), sized(HeadDim, function)
        Latent, Rotary = sized(Latent, function), sized(Rotary, function)
        values = (*heads, ValueDim or HeadDim)
        context = Embed if Context is None else Context
        keys = iter(jax.random.split(key, 8))

        def project(In: AxisSpec, Out: AxisSpec, use_bias: bool = False) -> Linear:
            return Linear.init(In, Out, key=next(keys), use_bias=use_bias, initializer=initializer)

        def norm(axis: Axis) -> RmsNorm:
            return RmsNorm.init(axis, eps, use_bias=False)

        queries = Embed if QueryLatent is None else QueryLatent
        return cls(
            query=project(queries, (*heads, HeadDim)),
            key=project(Latent, (*heads, HeadDim)),
            value=project(Latent, values),
            out=project(values, Embed, use_bias),
            pos=axis_name(pos),
            dropout=check_fraction(function, "dropout", dropout),
            scale=scale,
            sinks=make_if(use_sinks, zeros, heads),
            latent=project(context, Latent, use_bias),
            latent_norm=norm(Latent),
            rotary_query=project(queries, (*heads, Rotary)),
            rotary_key=project(context, Rotary, use_bias),
            query_latent=None if QueryLatent is None else project(Embed, QueryLatent, use_bias),
            query_norm=None if QueryLatent is None else norm(QueryLatent),
        )

    @property
    def Cached(self) -> Axis:  # noqa: N802
        """The axis of what a cache holds of each position: the latent, and then the rotated features."""
        (Latent,), (Rotary,) = self.latent.Out, self.rotary_key.Out
        return Latent.resize(Latent.size + Rotary.size)

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
        """Attend causally from the next tokens to those in a cache and to themselves; see `Attention.extend`.

        Args:
            x: axes {pos, Embed, ...}, or one token of each sequence, without `pos`.
            cache: latents of the tokens so far, with the axis `Cached`: `shared=True`.
            rotate: a function of queries and of keys at these positions, such as a `RotaryTable` of `Rotary`.
            mask: a further mask; see `KVCache.attend`.
            count: how many of the tokens are real; see `KVCache.extend`.
            layer: which of several caches, stored along an axis; see `KVCache.extend`.

        Returns:
            The result, axes {pos, Embed, ...}, and the next cache.

        Raises:
            OperandError: if the cache has values of its own.

        Examples:
            >>> Embed, Heads, HeadDim, Latent, Rotary = axn.make_axes(embed=8, heads=2, head_dim=4, latent=6, rotary=2)
            >>> attention = axn.nn.LatentAttention.init(Embed, Heads, HeadDim, Latent, Rotary, key=jax.random.key(0))
            >>> cache = axn.nn.KVCache.init("pos.key", (axn.Axis("pos.key", 16), attention.Cached), shared=True)
            >>> out, cache = attention.extend(axn.ones((axn.Axis("pos", 3), Embed)), cache)
            >>> out.shape, cache.key.shape, cache.length.item()
            ({'pos': 3, 'embed': 8}, {'pos.key': 16, 'latent': 8}, 3)
        """
        if cache.value is not None:
            problem = "the cache has values of its own, but latents are keys and values"
            hint = "KVCache.init(KPos, (KPos, layer.Cached, ...), shared=True)"
            raise OperandError(message("LatentAttention", problem, hint=hint))
        latent, rotated_key = self._compress(x, rotate)
        query, rotated_query = self._read_query(x, rotate)
        (Latent,), (Rotary,), HeadDim = self.latent.Out, self.rotary_key.Out, self.query.Out[-1]
        # A product from the other side needs the whole weight.
        key, value = merge_lora((self.key, self.value))
        # q (W c) = (q W) c: queries meet latents as they are, so that no key is made of them.
        query = multiply(query, key.weight, (HeadDim,), key.dot_general)
        scale = 1 / math.sqrt(HeadDim.size + Rotary.size) if self.scale is None else self.scale
        attended, cache = cache.attend(
            self.pos if x.has_axis(self.pos) else None,
            Latent.name,
            _join({Latent.name: query, Rotary.name: rotated_query}, Latent.name),
            _join({Latent.name: latent, Rotary.name: rotated_key}, Latent.name),
            mask=mask,
            scale=scale,
            sinks=self._sinks,
            count=count,
            layer=layer,
        )
        # They average latents, and what was rotated, which is of no use here.
        attended = index(attended, {Latent.name: slice(Latent.size)})
        # As for keys: values of averages are averages of values.
        values = multiply(attended, value.weight, (Latent,), value.dot_general)
        return self.out(values), cache

    @property
    def _features(self) -> str:
        # Values may have features of the same name, of which there are fewer.
        return self.query.Out[-1].derive("rotary").name

    def _compress(
        self, x: NamedArray, rotate: Callable[[NamedArray], NamedArray] | None
    ) -> tuple[NamedArray, NamedArray]:
        """Return latents and rotated features of keys."""
        rotary = self.rotary_key(x)
        return self.latent_norm(self.latent(x)), rotary if rotate is None else rotate(rotary)

    def _read_query(
        self, x: NamedArray, rotate: Callable[[NamedArray], NamedArray] | None
    ) -> tuple[NamedArray, NamedArray]:
        """Return the features of queries that are not rotated, and those that are."""
        if self.query_latent is not None and self.query_norm is not None:
            x = self.query_norm(self.query_latent(x))
        rotary = self.rotary_query(x)
        return self.query(x), rotary if rotate is None else rotate(rotary)

    def _project(
        self, x: NamedArray, context: NamedArray, rotate: Callable[[NamedArray], NamedArray] | None
    ) -> tuple[NamedArray, NamedArray, NamedArray]:
        latent, rotated_key = self._compress(context, rotate)
        query, rotated_query = self._read_query(x, rotate)
        HeadDim, Rotary = self.query.Out[-1], self.rotary_key.Out[0]

        def join(x: NamedArray, rotated: NamedArray) -> NamedArray:
            return _join({HeadDim.name: x, Rotary.name: rotated}, self._features)

        return join(query, rotated_query), join(self.key(latent), rotated_key), self.value(latent)


def _join(parts: Mapping[str, NamedArray], name: str) -> NamedArray:
    """Join arrays along axes that have these names; an array is repeated along others that it lacks, such as heads."""
    renamed = [x.rename({own: name}) for own, x in parts.items()]
    return auto_sharded(concatenate(name, renamed))
