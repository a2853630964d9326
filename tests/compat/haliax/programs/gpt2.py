"""GPT-2 as early users of Haliax wrote it: layers by their constructors, static fields, and one fold over blocks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import equinox as eqx
import haliax
import haliax as hax
import haliax.jax_utils
import haliax.nn as hnn
import jax
import jax.numpy as jnp
import jax.random as jrandom
from haliax import Axis, NamedArray
from haliax.jax_utils import named_call, shaped_rng_split
from haliax.nn.scan import Stacked

ACT2FN: dict[str, Callable] = {"relu": hnn.relu, "silu": hnn.silu, "gelu_new": jax.nn.gelu, "quick": hnn.quick_gelu}


@dataclass(frozen=True)
class Gpt2Config:
    vocab_size: int = 24
    hidden_dim: int = 16
    num_layers: int = 2
    num_heads: int = 2
    mlp_scale: int = 2
    embed_pdrop: float = 0.0
    resid_pdrop: float = 0.0
    attn_pdrop: float = 0.1
    layer_norm_epsilon: float = 1e-5
    activation_function: str = "gelu_new"
    scale_attn_by_inverse_layer_idx: bool = True
    upcast_attn: bool = True
    gradient_checkpointing: bool | str = False

    Embed = property(lambda self: Axis(name="embed", size=self.hidden_dim))
    Heads = property(lambda self: Axis(name="head", size=self.num_heads))
    HeadDim = property(lambda self: Axis(name="head_dim", size=self.hidden_dim // self.num_heads))
    Mlp = property(lambda self: Axis(name="mlp", size=self.hidden_dim * self.mlp_scale))
    Layers = property(lambda self: Axis(name="layers", size=self.num_layers))
    Vocab = property(lambda self: Axis(name="vocab", size=self.vocab_size))


class Gpt2Attention(eqx.Module):
    c_attn: hnn.Linear
    c_proj: hnn.Linear
    dropout: hnn.Dropout

    causal: bool = eqx.static_field()
    Pos: Axis = eqx.static_field()
    KeyPos: Axis = eqx.static_field()
    Heads: Axis = eqx.static_field()
    HeadDim: Axis = eqx.static_field()
    Qkv: Axis = eqx.static_field()
    scale_by_inverse_layer_idx: bool = eqx.static_field()
    upcast: bool = eqx.static_field()

    def __init__(
        self,
        SeqLen: Axis,
        InDim: Axis,
        Heads: Axis,
        HeadDim: Axis,
        dropout_prob: float,
        scale_by_inverse_layer_idx: bool,
        upcast: bool,
        *,
        key,
        causal: bool = True,
    ):
        self.Pos, self.KeyPos = SeqLen, SeqLen.alias(f"key_{SeqLen.name}")
        self.Heads, self.HeadDim = Heads, HeadDim
        self.Qkv = Axis("qkv", 3)
        key_in, key_out = jrandom.split(key, 2)
        self.c_attn = hnn.Linear(In=InDim, Out=(self.Qkv, self.Heads, self.HeadDim), key=key_in)
        self.c_proj = hnn.Linear(In=(self.Heads, self.HeadDim), Out=InDim, key=key_out)
        self.dropout = hnn.Dropout(dropout_prob)
        self.causal = causal
        self.scale_by_inverse_layer_idx = scale_by_inverse_layer_idx
        self.upcast = upcast

    def __call__(self, hidden_states: NamedArray, layer_idx, inference: bool = True, *, key) -> NamedArray:
        q, k, v = self.c_attn(hidden_states).unbind(self.Qkv)
        k, v = k.rename({self.Pos: self.KeyPos}), v.rename({self.Pos: self.KeyPos})

        scale = jax.lax.rsqrt(float(self.HeadDim.size))
        if self.scale_by_inverse_layer_idx:
            scale /= layer_idx + 1.0
        q = q * scale
        if self.upcast:
            q, k = q.astype(jnp.float32), k.astype(jnp.float32)

        scores = hax.dot(self.HeadDim, q, k)
        if self.causal:
            visible = hax.tril(hax.ones((self.Pos, self.KeyPos), dtype=bool), self.Pos, self.KeyPos)
            scores = hax.where(visible, scores, -1e9)
        weights = hnn.softmax(scores, axis=self.KeyPos).astype(hidden_states.dtype)
        weights = self.dropout(weights, key=key, inference=inference)
        return self.c_proj(hax.dot(self.KeyPos, weights, v))


class Gpt2Mlp(eqx.Module):
    act: Callable = eqx.static_field()
    c_fc: hnn.Linear
    c_proj: hnn.Linear

    def __init__(self, Embed: Axis, Intermediate: Axis, activation_fn: str, *, key):
        key_in, key_out = jrandom.split(key, 2)
        self.c_fc = hnn.Linear(Out=Intermediate, In=Embed, key=key_in)
        self.c_proj = hnn.Linear(Out=Embed, In=Intermediate, key=key_out)
        self.act = ACT2FN[activation_fn]

    def __call__(self, hidden_states: NamedArray) -> NamedArray:
        hidden_states = self.c_fc(hidden_states)
        hidden_states = jax.tree_util.tree_map(self.act, hidden_states)
        return self.c_proj(hidden_states)


class Gpt2Block(eqx.Module):
    ln_1: hnn.LayerNorm
    attn: Gpt2Attention
    ln_2: hnn.LayerNorm
    mlp: Gpt2Mlp
    resid_dropout: hnn.Dropout

    def __init__(self, SeqLen: Axis, config: Gpt2Config, *, key):
        key_attn, key_mlp = jrandom.split(key, 2)
        self.ln_1 = hnn.LayerNorm(config.Embed, eps=config.layer_norm_epsilon)
        self.attn = Gpt2Attention(
            SeqLen,
            config.Embed,
            config.Heads,
            config.HeadDim,
            config.attn_pdrop,
            config.scale_attn_by_inverse_layer_idx,
            config.upcast_attn,
            key=key_attn,
        )
        self.ln_2 = hnn.LayerNorm(config.Embed, eps=config.layer_norm_epsilon)
        self.mlp = Gpt2Mlp(config.Embed, config.Mlp, config.activation_function, key=key_mlp)
        self.resid_dropout = hnn.Dropout(pdrop=config.resid_pdrop)

    def __call__(self, hidden_states: NamedArray, inference, layer_idx, *, key) -> NamedArray:
        k1, k2, k3 = haliax.jax_utils.maybe_rng_split(key, 3)
        attended = self.attn(self.ln_1(hidden_states), inference=inference, layer_idx=layer_idx, key=k1)
        hidden_states = hidden_states + self.resid_dropout(attended, key=k2, inference=inference)
        ff_output = self.mlp(self.ln_2(hidden_states))
        return hidden_states + self.resid_dropout(ff_output, key=k3, inference=inference)


class Gpt2Transformer(eqx.Module):
    config: Gpt2Config = eqx.static_field()
    blocks: Stacked[Gpt2Block]
    ln_f: hnn.LayerNorm

    Layers = property(lambda self: self.config.Layers)

    def __init__(self, SeqLen: Axis, config: Gpt2Config, *, key):
        super().__init__()
        self.config = config
        self.blocks = Stacked(
            self.Layers,
            Gpt2Block,
            SeqLen,
            config,
            key=shaped_rng_split(key, config.num_layers),
            gradient_checkpointing=config.gradient_checkpointing,
        )
        self.ln_f = hnn.LayerNorm(config.Embed, eps=config.layer_norm_epsilon)

    @named_call
    def __call__(self, hidden_states: NamedArray, *, inference, key) -> NamedArray:
        keys = hax.jax_utils.maybe_rng_split(key, self.config.num_layers) if key is not None else None
        hidden_states = self.blocks.fold(hidden_states, inference, hax.arange(self.Layers), key=keys)
        return self.ln_f(hidden_states)


class Gpt2Embeddings(eqx.Module):
    token_embeddings: hnn.Embedding
    position_embeddings: NamedArray
    dropout: hnn.Dropout
    Pos: Axis = eqx.static_field()

    def __init__(self, SeqLen: Axis, config: Gpt2Config, *, key):
        key_token, key_position = jrandom.split(key, 2)
        self.Pos = SeqLen
        self.token_embeddings = hnn.Embedding(config.Vocab, config.Embed, key=key_token)
        self.position_embeddings = hax.random.normal(key_position, (SeqLen, config.Embed)) * 0.02
        self.dropout = hnn.Dropout(config.embed_pdrop)

    def embed(self, input_ids: NamedArray, inference, *, key) -> NamedArray:
        hidden_states = self.token_embeddings.embed(input_ids) + self.position_embeddings
        return self.dropout(hidden_states, inference=inference, key=key)

    def unembed(self, hidden_states: NamedArray) -> NamedArray:
        return self.token_embeddings.unembed(hidden_states)


class Gpt2LMHeadModel(eqx.Module):
    transformer: Gpt2Transformer
    embeddings: Gpt2Embeddings

    def __init__(self, SeqLen: Axis, config: Gpt2Config, *, key):
        key_transformer, key_embeddings = jrandom.split(key, 2)
        self.transformer = Gpt2Transformer(SeqLen, config, key=key_transformer)
        self.embeddings = Gpt2Embeddings(SeqLen, config, key=key_embeddings)

    def __call__(self, input_ids: NamedArray, *, inference, key) -> NamedArray:
        key_embed, key_blocks = haliax.jax_utils.maybe_rng_split(key, 2)
        hidden_states = self.embeddings.embed(input_ids, inference=inference, key=key_embed)
        hidden_states = self.transformer(hidden_states, inference=inference, key=key_blocks)
        return self.embeddings.unembed(hidden_states)


def next_token_loss(SeqLen: Axis, Vocab: Axis, logits: NamedArray, input_ids: NamedArray) -> NamedArray:
    targets = hax.roll(input_ids, -1, SeqLen)
    target_y = hax.nn.one_hot(targets, Vocab, dtype=logits.dtype)
    loss_mask = 1 - hax.nn.one_hot(-1, SeqLen, dtype=jnp.float32)
    return hnn.cross_entropy_loss(logits, Vocab, target_y, hax.mean, where=loss_mask, reduction_axis=SeqLen)


def batches(SeqLen: Axis, Batch: Axis, Vocab: Axis, steps: int) -> Sequence[NamedArray]:
    ids = hax.random.randint(jrandom.PRNGKey(7), (Batch, SeqLen), 0, Vocab.size)
    return [ids] * steps
