"""A decoder-only language model with named axes: GPT-2, Llama, Qwen, Gemma, DeepSeek and others, by configuration.

Nothing here mentions devices: a layout needs only the names of the axes. They are `vocab`, `layers`, `embed`,
`mlp`, `experts`, `head_dim`, `pos` and, since heads of queries may share keys and values, `kv_heads` and `group`: there
are `kv_heads * group` heads of queries. Latent attention and memories also have `value_dim`; latent attention also has
`latent`, `query_latent` and `rotary`.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import axonym as axn

from .. import nn
from ..array import NamedArray
from ..axis import Axis, AxisSpec
from ..nn.mixing import Cache, Cached, Within, find_begins, start_memories
from ..nn.weights import read_vector
from .config import DecoderConfig, DeltaConfig, ExpertsConfig, Kind, LatentConfig

Rotations = dict[str, nn.RotaryTable]
Mix = Within | Cached


ACTIVATIONS: dict[str, Callable[[NamedArray], NamedArray]] = {
    "silu": nn.silu,
    "gelu": lambda x: nn.gelu(x, approximate=False),
    "gelu_tanh": nn.gelu,
}


@functools.cache  # equal functions make equal structures of models
def make_clamped(limit: float, slope: float) -> tuple[Callable[[NamedArray], NamedArray], ...]:
    """Return two functions with a bound: one for the gate, and one for the array that the gate multiplies."""

    def gate(x: NamedArray) -> NamedArray:
        x = axn.minimum(x, limit)
        return x * nn.sigmoid(slope * x)

    return gate, lambda x: axn.clip(x, -limit, limit) + 1


def normal(std: float) -> nn.Initializer:
    """Draw weights from a normal distribution."""
    return lambda key, axes: axn.random.normal(key, axes) * std


def outward(cfg: DecoderConfig) -> nn.Initializer:
    """Draw weights of layers that add to the residual stream, scaled so that its variance does not grow with depth."""
    return normal(0.02 / math.sqrt(2 * cfg.layers))


def linear(
    cfg: DecoderConfig,
    In: AxisSpec,
    Out: AxisSpec,
    key: jax.Array,
    initializer: nn.Initializer | None = None,
    *,
    use_bias: bool,
) -> nn.Linear:
    """Make a linear layer that stores its weight in the order of the configuration."""
    options: Any = {"out_first": cfg.out_first, "initializer": initializer or normal(0.02)}
    return nn.Linear.init(In, Out, key=key, use_bias=use_bias, **options)


class ShiftedRmsNorm(nn.RmsNorm):
    """The norm of Gemma: it stores its weight minus one, so weight decay pulls the weight to one."""

    def __call__(self, x: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        """Normalize, and multiply by the weight."""
        assert self.weight is not None
        # Less one, a bfloat16 has digits that it would lose in the sum.
        weight = self.weight.astype(jnp.float32) + 1
        return nn.RmsNorm(self.axis, weight, None, self.eps)(x)


Norm = nn.LayerNorm | nn.RmsNorm


def make_norm(cfg: DecoderConfig, axis: Axis | tuple[Axis, ...]) -> Norm:
    """Make a norm of the kind that the configuration asks for."""
    if cfg.norm == "layer":
        return nn.LayerNorm.init(axis, cfg.norm_eps)
    if cfg.norm == "rms":
        return nn.RmsNorm.init(axis, cfg.norm_eps, use_bias=False)
    axes = (axis,) if isinstance(axis, Axis) else axis
    return ShiftedRmsNorm(axes, axn.zeros(axes), None, cfg.norm_eps)


def normalize(norm: Norm | None, x: NamedArray) -> NamedArray:
    """Apply a norm, if there is one."""
    return x if norm is None else norm(x)


def multiply(x: NamedArray, factor: float) -> NamedArray:
    """Multiply by a factor, rounded to the dtype of the array as in other implementations; 1 costs nothing."""
    return x if factor == 1.0 else x * jnp.asarray(factor, x.dtype)


class Attention(eqx.Module):
    """Causal self-attention with grouped heads."""

    query: nn.Linear  # embed -> kv_heads, group, head_dim
    key: nn.Linear  # embed -> kv_heads, head_dim
    value: nn.Linear  # embed -> kv_heads, head_dim
    out: nn.Linear  # kv_heads, group, head_dim -> embed
    query_norm: Norm | None
    key_norm: Norm | None
    gate: nn.Linear | None  # embed -> kv_heads, group, head_dim
    sinks: NamedArray | None  # kv_heads, group
    scale: float = eqx.field(static=True)
    soft_cap: float | None = eqx.field(static=True)
    mask: nn.AttentionMask
    # What the layers inside cannot know: which of their axes count heads.
    axis_roles: ClassVar[dict[str, Any]] = {
        **dict.fromkeys(("kv_heads", "group"), "head"),
        "sinks": dict.fromkeys(("kv_heads", "group"), "output"),
    }

    @staticmethod
    def init(cfg: DecoderConfig, kind: Kind, *, key: jax.Array) -> "Attention":
        """Make a layer with random weights, by a configuration."""
        keys = jax.random.split(key, 4)
        Queries, Keys = (cfg.KVHeads, cfg.Group, cfg.HeadDim), (cfg.KVHeads, cfg.HeadDim)
        read = functools.partial(linear, cfg, cfg.Embed, use_bias="qkv" in cfg.biases)
        query, own, value = read(Queries, keys[0]), read(Keys, keys[1]), read(Keys, keys[2])
        out = linear(cfg, Queries, cfg.Embed, keys[3], outward(cfg), use_bias="out" in cfg.biases)
        query_norm = key_norm = None
        if cfg.head_norms is not None:
            each = cfg.head_norms == "each"
            query_norm = make_norm(cfg, cfg.HeadDim if each else Queries)
            key_norm = make_norm(cfg, cfg.HeadDim if each else Keys)
        gate = read(Queries, jax.random.fold_in(key, 4)) if cfg.gated_attention else None
        sinks = axn.zeros(Queries[:-1]) if cfg.sinks else None
        scale = cfg.score_scale or 1 / math.sqrt(cfg.head_dim)
        is_local = kind.startswith("local") and cfg.window is not None
        mask = nn.window(cfg.window) if is_local and cfg.window else nn.AttentionMask()
        norms, cap = (query_norm, key_norm), cfg.score_cap
        return Attention(query, own, value, out, *norms, gate, sinks, scale, cap, mask)

    def __call__(
        self, x: NamedArray, rotate: nn.RotaryTable | None, attend: Callable[..., NamedArray]
    ) -> NamedArray:
        """Mix tokens by `attend`, after `rotate` has applied their positions."""
        q, k, v = self.query(x), self.key(x), self.value(x)
        q, k = normalize(self.query_norm, q), normalize(self.key_norm, k)
        if rotate is not None:
            q, k = rotate(q), rotate(k)
        sinks = None if self.sinks is None else read_vector(self.sinks)
        options = {"scale": self.scale, "soft_cap": self.soft_cap, "sinks": sinks}
        y = attend(q, k, v, mask=self.mask, **options)
        return self.out(y if self.gate is None else y * nn.sigmoid(self.gate(x)))


def make_latent_attention(
    cfg: DecoderConfig, latent: LatentConfig, key: jax.Array
) -> nn.LatentAttention:
    """Make latent attention with random weights, by a configuration."""
    scale = cfg.score_scale or 1 / math.sqrt(cfg.head_dim + latent.rotary)
    queries = None if latent.queries is None else Axis("query_latent", latent.queries)
    return nn.LatentAttention.init(
        cfg.Embed,
        (cfg.KVHeads, cfg.Group),
        cfg.HeadDim,
        Axis("latent", latent.keys),
        cfg.Rotated,
        key=key,
        QueryLatent=queries,
        ValueDim=Axis("value_dim", latent.values),
        use_bias="out" in cfg.biases,
        scale=scale * (cfg.rope.score_factor if cfg.rope is not None else 1.0),
        initializer=normal(0.02),
    )


def make_delta(cfg: DecoderConfig, delta: DeltaConfig, key: jax.Array) -> nn.GatedDeltaNet:
    """Make a memory with random weights, by a configuration."""
    KeyHeads = Axis("kv_heads", delta.key_heads)
    return nn.GatedDeltaNet.init(
        "pos",
        cfg.Embed,
        (KeyHeads, Axis("group", delta.heads // delta.key_heads)),
        Axis("head_dim", delta.key_dim),
        Axis("value_dim", delta.value_dim),
        key=key,
        KeyHeads=KeyHeads,
        window=delta.window,
        eps=cfg.norm_eps,
        initializer=normal(0.02),
    )


class Mlp(eqx.Module):
    """Two linear layers with an activation between them, which may be a gate."""

    gate: nn.Linear | None  # embed -> mlp
    up: nn.Linear  # embed -> mlp
    down: nn.Linear  # mlp -> embed
    activation: Callable[[NamedArray], NamedArray] = eqx.field(static=True)

    @staticmethod
    def init(cfg: DecoderConfig, Hidden: Axis, *, key: jax.Array) -> "Mlp":
        """Make a layer with random weights, by a configuration."""
        keys = jax.random.split(key, 3)
        layer = functools.partial(linear, cfg, use_bias="mlp" in cfg.biases)
        gate = layer(cfg.Embed, Hidden, keys[0]) if cfg.gated else None
        up = layer(cfg.Embed, Hidden, keys[1])
        down = layer(Hidden, cfg.Embed, keys[2], outward(cfg))
        return Mlp(gate, up, down, ACTIVATIONS[cfg.activation])

    def __call__(self, x: NamedArray) -> NamedArray:
        """Map each token."""
        if self.gate is None:
            return self.down(self.activation(self.up(x)))
        return self.down(self.activation(self.gate(x)) * self.up(x))


class Experts(eqx.Module):
    """A mixture of experts; some models have one more expert for all tokens."""

    routed: nn.MixtureOfExperts
    shared: Mlp | None
    shared_gate: nn.Linear | None  # embed -> nothing

    @staticmethod
    def init(cfg: DecoderConfig, experts: ExpertsConfig, *, key: jax.Array) -> "Experts":
        """Make a layer with random weights, by a configuration."""
        k_routed, k_shared, k_gate = jax.random.split(key, 3)
        activation, of_up = ACTIVATIONS[cfg.activation], None
        if experts.clamp is not None:
            activation, of_up = make_clamped(experts.clamp, experts.slope)
        routed = nn.MixtureOfExperts.init(
            cfg.Embed,
            Axis("experts", experts.count),
            Axis("mlp", experts.mlp),
            experts.chosen,
            activation,
            key=k_routed,
            normalize=experts.normalize,
            weighing="sigmoid" if experts.sigmoid else "softmax",
            use_choice_bias=experts.sigmoid,
            scale=experts.scale,
            groups=(experts.groups, experts.chosen_groups) if experts.groups > 1 else None,
            use_bias="experts" in cfg.biases,
            use_router_bias="experts" in cfg.biases,
            up_activation=of_up,
            initializer=normal(0.02),
        )
        if experts.shared is None:
            return Experts(routed, None, None)
        shared = Mlp.init(cfg, Axis("mlp", experts.shared * experts.shared_count), key=k_shared)
        gate = linear(cfg, cfg.Embed, (), k_gate, use_bias=False)
        return Experts(routed, shared, gate if experts.shared_gate else None)

    def __call__(
        self, x: NamedArray, real: NamedArray | None = None
    ) -> tuple[NamedArray, nn.Routing]:
        """Map each token by the experts that it goes to, and report the routing."""
        y, routing = self.routed(x, where=real)
        if self.shared is not None:
            always = self.shared(x)
            if self.shared_gate is not None:
                always = nn.sigmoid(self.shared_gate(x)) * always
            y = y + always
        return y, routing


class Block(eqx.Module):
    """Attention and a perceptron, each with norms and a residual connection."""

    attention_norm: Norm | None
    attention: Attention | nn.LatentAttention | None
    delta: nn.GatedDeltaNet | None  # in place of attention
    attention_post_norm: Norm | None
    mlp_norm: Norm | None
    mlp: Mlp | Experts
    mlp_post_norm: Norm | None
    dropout: nn.Dropout
    kind: Kind = eqx.field(static=True)
    parallel: bool = eqx.field(static=True)
    scale: float = eqx.field(static=True)
    Router: Axis | None = eqx.field(static=True)  # of the experts of other blocks

    @staticmethod
    def init(cfg: DecoderConfig, kind: Kind, *, key: jax.Array) -> "Block":
        """Make a layer with random weights, by a configuration."""
        k_attention, k_mlp = jax.random.split(key)

        def norm(place: str) -> Norm | None:
            return make_norm(cfg, cfg.Embed) if cfg.norm_places in (place, "both") else None

        attention: Attention | nn.LatentAttention | None = None
        delta = None
        if cfg.delta is not None and kind.startswith("delta"):
            delta = make_delta(cfg, cfg.delta, k_attention)
        elif cfg.latent is not None:
            attention = make_latent_attention(cfg, cfg.latent, k_attention)
        else:
            attention = Attention.init(cfg, kind, key=k_attention)
        if cfg.experts is None or kind.endswith("dense"):
            mlp: Mlp | Experts = Mlp.init(cfg, cfg.Mlp, key=k_mlp)
        else:
            mlp = Experts.init(cfg, cfg.experts, key=k_mlp)
        return Block(
            attention_norm=norm("before"),
            attention=attention,
            delta=delta,
            attention_post_norm=norm("behind"),
            mlp_norm=norm("before"),
            mlp=mlp,
            mlp_post_norm=norm("behind"),
            dropout=nn.Dropout(cfg.dropout),
            kind=kind,
            parallel=cfg.parallel,
            scale=cfg.residual_scale,
            Router=None if cfg.experts is None else Axis("experts", cfg.experts.count),
        )

    def __call__(
        self,
        x: NamedArray,
        rotations: Rotations,
        mix: Mix,
        real: NamedArray | None = None,  # which tokens experts take
        *,
        key: jax.Array | None = None,
    ) -> tuple[NamedArray, nn.Routing | None]:
        """Add attention and the perceptron to the residual stream."""
        k1, k2 = (None, None) if key is None else jax.random.split(key)
        y = normalize(self.attention_norm, x)
        y = mix(self.attention or self.delta, y, rotations.get(self.kind.removesuffix("_dense")))
        y = normalize(self.attention_post_norm, y)
        inference = key is None or self.dropout.inference
        after = x + multiply(self.dropout(y, key=k1, inference=inference), self.scale)
        seen = x if self.parallel else after
        y, routing = normalize(self.mlp_norm, seen), None
        if isinstance(self.mlp, Experts):
            y, routing = self.mlp(y, real)
        else:
            y = self.mlp(y)
            if self.Router is not None:
                # A loop over layers stacks what all of them report.
                none = axn.zeros((), jnp.promote_types(x.dtype, jnp.float32))
                routing = nn.Routing(none, none, none.broadcast_axis(self.Router), none)
        y = normalize(self.mlp_post_norm, y)
        return after + multiply(self.dropout(y, key=k2, inference=inference), self.scale), routing


class Decoder(eqx.Module):
    """A language model: it scores the next token after each token."""

    embedding: nn.Embedding
    positions: nn.PositionEmbedding | None
    dropout: nn.Dropout
    blocks: nn.Interleaved[Block]
    norm: Norm
    unembedding: nn.Embedding | None
    config: DecoderConfig = eqx.field(static=True)

    @staticmethod
    def init(cfg: DecoderConfig, *, key: jax.Array) -> "Decoder":
        """Make a decoder with random weights.

        Examples:
            >>> from axonym.models import Decoder, DecoderConfig
            >>> sizes = {"embed": 16, "mlp": 32, "heads": 2, "kv_heads": 1, "head_dim": 8}
            >>> model = Decoder.init(DecoderConfig(64, 2, **sizes), key=jax.random.key(0))
            >>> model(axn.zeros({"pos": 5}, "int32")).shape
            {'pos': 5, 'vocab': 64}
        """
        k_embed, k_pos, k_blocks, k_out = jax.random.split(key, 4)
        table = functools.partial(nn.Embedding.init, cfg.Vocab, cfg.Embed, initializer=normal(0.02))
        positions = None
        if cfg.rope is None:
            positions = nn.PositionEmbedding.init(
                cfg.Pos, cfg.Embed, key=k_pos, initializer=normal(0.01)
            )
        kinds = [functools.partial(Block.init, cfg, kind) for kind in cfg.pattern]
        stack = nn.Interleaved.init(
            cfg.Layers, kinds, gradient_checkpointing=cfg.checkpointing, rounds=cfg.rounds
        )
        return Decoder(
            embedding=table(key=k_embed),
            positions=positions,
            dropout=nn.Dropout(cfg.dropout),
            blocks=stack(key=k_blocks),
            norm=make_norm(cfg, cfg.Embed),
            unembedding=None if cfg.tied else table(key=k_out),
            config=cfg,
        )

    def __call__(
        self,
        tokens: NamedArray,
        mask: nn.AttentionMask | None = None,
        *,
        key: jax.Array | None = None,
    ) -> NamedArray:
        """Score the next token at each position; without a key, nothing is dropped.

        Args:
            tokens: axes {pos, ...}, integers.
            mask: a mask further to the causal one, such as `axn.nn.segments` of packed documents.
            key: for dropout.

        Returns:
            Axes {..., pos, vocab}.
        """
        return self.scores(self.hidden(tokens, mask, key=key)[0])

    def loss(
        self,
        tokens: NamedArray,
        mask: nn.AttentionMask | None = None,
        *,
        where: NamedArray | None = None,
        z_loss: float = 0.0,
        balance: float = 0.0,
        key: jax.Array | None = None,
    ) -> NamedArray:
        """Return the mean cross entropy, in nats, of each token given those before it.

        Args:
            tokens: axes {pos, ...}, one position more than the model sees.
            mask: as in a call.
            where: booleans, axes among those of the targets: which ones count.
            z_loss: see `axn.nn.cross_entropy_loss`.
            balance: the factor of an added loss for experts of unequal load, see `axn.nn.Routing`.
            key: for dropout.
        """
        inputs, targets = tokens["pos", :-1], tokens["pos", 1:]
        real = None
        if where is not None and where.has_axis("pos"):
            # Behind the last target that counts, there is only padding.
            real = axn.cumsum(where.astype("int32"), "pos", reverse=True) > 0
        x, routing = self.hidden(inputs, mask, real, key=key)
        loss = self.cross_entropy(x, targets, where=where, z_loss=z_loss)
        if routing is None:
            return loss
        # Layers without experts report zeros.
        routers = axn.maximum(axn.any(routing.load > 0, "experts").sum(), 1)
        return loss + balance * routing.load_balance.sum() / routers

    def cross_entropy(self, x: NamedArray, targets: NamedArray, **options: Any) -> NamedArray:
        """Return the loss of a residual stream, given the next tokens, without holding all scores."""
        if self.config.logit_cap is not None:
            return nn.cross_entropy_loss(self.scores(x), "vocab", targets, **options)
        table = self.unembedding or self.embedding
        return nn.chunked_cross_entropy_loss(
            self.output(x), table.weight, "embed", "vocab", targets, **options
        )

    def hidden(
        self,
        tokens: NamedArray,
        mask: nn.AttentionMask | None = None,
        real: NamedArray | None = None,
        *,
        key: jax.Array | None = None,
    ) -> tuple[NamedArray, nn.Routing | None]:
        """Return the residual stream after the last block, and the report of each layer's router."""
        Pos = tokens.resolve_axis("pos")
        k_embed, k_blocks = (None, None) if key is None else jax.random.split(key)
        inference = key is None or self.dropout.inference
        x = self.dropout(self.embed(tokens, Pos), key=k_embed, inference=inference)
        out: tuple[NamedArray, nn.Routing | None]
        seen = nn.causal() if mask is None else nn.causal() & mask
        mix = Within(seen, None if self.config.delta is None else find_begins(mask))
        out = self.blocks.scan(x, self.rotations(Pos), mix, real, key=k_blocks)
        return out

    def embed(self, tokens: NamedArray, at: Axis | NamedArray) -> NamedArray:
        """Look up the embeddings of tokens at given positions."""
        x = self.embedding(tokens)
        x = multiply(x, self.config.embed_scale)
        return x if self.positions is None else x + self.positions(at)

    def rotations(self, at: Axis | NamedArray, length: NamedArray | None = None) -> Rotations:
        """Compute the angles of positions, once for all layers; some depend on the length of the text."""
        cfg = self.config
        ropes = {"global": cfg.rope, "local": cfg.local_rope or cfg.rope}
        kinds = {kind.removesuffix("_dense") for kind in cfg.pattern}
        return {
            kind: rope.on(cfg.Rotated).at(at, length=length)
            for kind, rope in ropes.items()
            if kind in kinds and rope is not None
        }

    def output(self, x: NamedArray) -> NamedArray:
        """Normalize the residual stream after the last block, for the product with the table of tokens."""
        return multiply(self.norm(x), 1 / self.config.logit_divisor)

    def scores(self, x: NamedArray) -> NamedArray:
        """Score all tokens, from the residual stream after the last block; in float32 or wider."""
        table = self.unembedding or self.embedding
        scores = table.unembed(self.output(x)).astype(jnp.float32)
        cap = self.config.logit_cap
        return scores if cap is None else axn.tanh(scores / cap) * cap

    def cache(self, size: int, *axes: Axis, dtype: jnp.dtype | None = None) -> Cache:
        """Make a cache for `size` tokens; sequences along `axes`, such as a batch, may have different lengths."""
        cfg, Key = self.config, Axis("pos.key", size)
        kept = dtype or self.embedding.weight.dtype
        shape = *axes, cfg.KVHeads, Key, cfg.HeadDim
        if cfg.latent is not None:
            shape = *axes, Key, Axis("latent", cfg.latent.keys + cfg.latent.rotary)
        number = sum(kind.startswith("delta") for kind in cfg.kinds)
        # One at least: it counts the tokens.
        Layers = cfg.Layers.resize(max(cfg.layers - number, 1))
        options: Any = {"shared": cfg.latent is not None, "dtype": kept}
        cache = Cache.stacked(Layers, Key, shape, lengths=axes, **options)
        if number == 0:
            return cache

        def find_layer() -> nn.GatedDeltaNet:
            return next(block.delta for block in self.blocks.unstacked() if block.delta is not None)

        x = axn.zeros((*axes, Axis("pos", 1), cfg.Embed), self.embedding.weight.dtype)
        memories = start_memories(find_layer, x, cfg.Layers.resize(number))
        return dataclasses.replace(cache, memories=memories)

    def extend(
        self, cache: Cache, tokens: NamedArray, count: NamedArray | None = None
    ) -> tuple[Cache, NamedArray]:
        """Add tokens to a cache, and score the token that follows the last one; for `axn.nn.generate`.

        Args:
            cache: made by `cache`.
            tokens: a chunk, axes {pos, ...}; or one token for each sequence, {...}.
            count: how many of a chunk are real, for each sequence: the others are padding behind them.
        """
        cache, x = self.extend_hidden(cache, tokens, count)
        if tokens.has_axis("pos"):
            last = -1 if count is None else axn.maximum(count, 1) - 1
            x = x["pos", last]
        return cache, self.scores(x)

    def extend_hidden(
        self, cache: Cache, tokens: NamedArray, count: NamedArray | None = None
    ) -> tuple[Cache, NamedArray]:
        """Add tokens to a cache, and return their residual stream after the last block."""
        Pos = tokens.resolve_axis("pos") if tokens.has_axis("pos") else None
        at = cache.positions(Pos)["layers", 0]
        real = None
        if Pos is not None and count is not None:
            real = axn.arange(Pos).broadcast_axis(count.axes) < count

        def layer(
            block: Block, carry: tuple[NamedArray, Cache], i: NamedArray
        ) -> tuple[NamedArray, Cache]:
            mix = Cached(carry[1], Pos, count, real, ("layers", i))
            return block(carry[0], rotations, mix, real)[0], mix.cache

        added = 1 if Pos is None else Pos.size if count is None else count
        length = (at if Pos is None else at["pos", 0]) + added
        rotations = self.rotations(at, length)
        start = (self.embed(tokens, at), cache)
        is_delta = np.array([kind.startswith("delta") for kind in self.config.kinds])
        # The number of each layer among those of its kind.
        numbers = np.where(is_delta, np.cumsum(is_delta), np.cumsum(~is_delta)) - 1
        x, cache = self.blocks.fold_via(layer)(start, axn.named(numbers, "layers"))
        return cache, x
