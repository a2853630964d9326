"""A decoder with grouped-query attention, rotary positions and SwiGLU, saved under the keys of its torch twin."""

from collections.abc import Callable
from dataclasses import dataclass

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax
import jax.numpy as jnp
import jax.random as jrandom
from haliax import Axis, AxisSpec, NamedArray
from haliax.jax_utils import maybe_rng_split, named_call, shaped_rng_split
from haliax.nn.scan import ScanCheckpointPolicy, Stacked
from haliax.state_dict import ModuleWithStateDictSerialization


@dataclass(frozen=True)
class LlamaConfig:
    seq_len: int = 6
    hidden_dim: int = 16
    intermediate_dim: int = 24
    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int = 2
    activation_function: Callable = hnn.silu
    layer_norm_epsilon: float = 1e-5
    rope_theta: float = 10000.0
    upcast_attn: bool = True
    gradient_checkpointing: bool | ScanCheckpointPolicy | str = True

    Pos = property(lambda self: Axis(name="position", size=self.seq_len))
    KeyPos = property(lambda self: self.Pos.alias("key_position"))
    Embed = property(lambda self: Axis(name="embed", size=self.hidden_dim))
    Heads = property(lambda self: Axis(name="heads", size=self.num_heads))
    KVHeads = property(lambda self: Axis(name="kv_head", size=self.num_kv_heads))
    QHeadsPerGroup = property(lambda self: Axis("q_heads_per_group", self.num_heads // self.num_kv_heads))
    HeadSize = property(lambda self: Axis(name="head_size", size=self.hidden_dim // self.num_heads))
    Mlp = property(lambda self: Axis(name="mlp", size=self.intermediate_dim))
    Layers = property(lambda self: Axis(name="layers", size=self.num_layers))

    def mk_layer_norm(self, axis: AxisSpec) -> hnn.RmsNorm:
        return hnn.RmsNorm.init(axis, eps=self.layer_norm_epsilon, use_bias=False)


class LlamaMlp(eqx.Module):
    gate_proj: hnn.Linear
    up_proj: hnn.Linear
    down_proj: hnn.Linear
    act: Callable = eqx.field(static=True)

    @staticmethod
    def init(Embed: Axis, Mlp: Axis, activation_fn: Callable, *, key, use_bias: bool = False) -> "LlamaMlp":
        k_gate, k_up, k_down = jrandom.split(key, 3)
        gate_proj = hnn.Linear.init(Out=Mlp, In=Embed, key=k_gate, use_bias=use_bias, out_first=True)
        up_proj = hnn.Linear.init(Out=Mlp, In=Embed, key=k_up, use_bias=use_bias, out_first=True)
        down_proj = hnn.Linear.init(Out=Embed, In=Mlp, key=k_down, use_bias=use_bias, out_first=True)
        return LlamaMlp(gate_proj, up_proj, down_proj, activation_fn)

    @named_call
    def __call__(self, x: NamedArray, *, key=None) -> NamedArray:
        k_gate, k_up, k_down = maybe_rng_split(key, 3)
        hidden = self.act(self.gate_proj(x, key=k_gate))
        hidden = hidden * self.up_proj(x, key=k_up)
        return self.down_proj(hidden, key=k_down)


def rotary_embeddings(HeadSize: Axis, Pos: Axis, base: float) -> tuple[NamedArray, NamedArray]:
    with jax.ensure_compile_time_eval():
        Half = HeadSize.resize(HeadSize.size // 2)
        inv_freq: NamedArray = 1.0 / (base ** (hax.arange(Half, step=2) / HeadSize.size))
        freqs = hax.arange(Pos) * inv_freq.broadcast_axis(Pos)
        emb = hax.concatenate(HeadSize, (freqs, freqs))
        return hax.cos(emb), hax.sin(emb)


def rotate_half(x: NamedArray) -> NamedArray:
    HeadSize = x.resolve_axis("head_size")
    Half = HeadSize.resize(HeadSize.size // 2)
    first, second = x.split(HeadSize, [Half, Half])
    return hax.concatenate("head_size", (-second, first))


class LlamaAttention(ModuleWithStateDictSerialization):
    config: LlamaConfig = eqx.field(static=True)
    q_proj: hnn.Linear
    k_proj: hnn.Linear
    v_proj: hnn.Linear
    o_proj: hnn.Linear

    @staticmethod
    def init(config: LlamaConfig, *, key) -> "LlamaAttention":
        k_q, k_k, k_v, k_o = jrandom.split(key, 4)
        Embed, KVHeads, HeadSize = config.Embed, config.KVHeads, config.HeadSize
        q_proj = hnn.Linear.init(Embed, (KVHeads, config.QHeadsPerGroup, HeadSize), key=k_q, use_bias=False)
        k_proj = hnn.Linear.init(In=Embed, Out=(KVHeads, HeadSize), key=k_k, use_bias=False, out_first=True)
        v_proj = hnn.Linear.init(In=Embed, Out=(KVHeads, HeadSize), key=k_v, use_bias=False, out_first=True)
        o_proj = hnn.Linear.init(In=(config.Heads, HeadSize), Out=Embed, key=k_o, use_bias=False, out_first=True)
        return LlamaAttention(config, q_proj, k_proj, v_proj, o_proj)

    @named_call
    def __call__(self, x: NamedArray, mask: NamedArray | None, *, key=None) -> NamedArray:
        k_q, k_k, k_v, k_o = maybe_rng_split(key, 4)
        q = self.q_proj(x, key=k_q).rearrange((..., "kv_head", "q_heads_per_group", "position", "head_size"))
        k = self.k_proj(x, key=k_k).rearrange((..., "kv_head", "position", "head_size"))
        v = self.v_proj(x, key=k_v).rearrange((..., "kv_head", "position", "head_size"))

        cos, sin = rotary_embeddings(self.config.HeadSize, x.resolve_axis("position"), self.config.rope_theta)
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin
        k = k.rename({"position": "key_position"})
        v = v.rename({"position": "key_position"})

        attn_output = hnn.attention.dot_product_attention(
            "key_position",
            "head_size",
            q,
            k,
            v,
            mask,
            attention_dtype=jnp.float32 if self.config.upcast_attn else x.dtype,
        )
        attn_output = attn_output.flatten_axes(("kv_head", "q_heads_per_group"), "heads")
        return self.o_proj(attn_output, key=k_o).astype(x.dtype)


class LlamaDecoderLayer(eqx.Module):
    config: LlamaConfig = eqx.field(static=True)
    self_attn: LlamaAttention
    mlp: LlamaMlp
    input_layernorm: hnn.RmsNorm
    post_attention_layernorm: hnn.RmsNorm

    @staticmethod
    def init(config: LlamaConfig, *, key) -> "LlamaDecoderLayer":
        k_attn, k_mlp = jrandom.split(key, 2)
        attn = LlamaAttention.init(config, key=k_attn)
        mlp = LlamaMlp.init(config.Embed, config.Mlp, config.activation_function, key=k_mlp)
        ln_1 = config.mk_layer_norm(config.Embed)
        ln_2 = config.mk_layer_norm(config.Embed)
        return LlamaDecoderLayer(config, attn, mlp, ln_1, ln_2)

    @named_call
    def __call__(self, x: NamedArray, mask: NamedArray | None, *, key=None) -> NamedArray:
        k_attn, k_mlp = maybe_rng_split(key, 2)
        x = x + self.self_attn(x=self.input_layernorm(x), mask=mask, key=k_attn)
        return x + self.mlp(self.post_attention_layernorm(x), key=k_mlp)


class LlamaTransformer(eqx.Module):
    config: LlamaConfig = eqx.field(static=True)
    layers: Stacked[LlamaDecoderLayer]
    norm: hnn.RmsNorm

    @staticmethod
    def init(config: LlamaConfig, *, key) -> "LlamaTransformer":
        layers = Stacked.init(config.Layers, LlamaDecoderLayer, gradient_checkpointing=config.gradient_checkpointing)(
            config, key=shaped_rng_split(key, config.num_layers)
        )
        return LlamaTransformer(config, layers, config.mk_layer_norm(config.Embed))

    @named_call
    def __call__(self, x: NamedArray, attn_mask: NamedArray | None, *, key=None) -> NamedArray:
        keys = maybe_rng_split(key, self.config.num_layers) if key is not None else None
        x = self.layers.fold(x, mask=attn_mask, key=keys)
        return self.norm(x)


class LlamaEmbedding(ModuleWithStateDictSerialization):
    token_embeddings: hnn.Embedding

    @staticmethod
    def init(Vocab: Axis, config: LlamaConfig, *, key) -> "LlamaEmbedding":
        return LlamaEmbedding(hnn.Embedding.init(Vocab, config.Embed, key=key))

    def embed(self, input_ids: NamedArray) -> NamedArray:
        return self.token_embeddings(input_ids)

    def _state_dict_key_map(self) -> dict[str, str | None]:
        return {"token_embeddings": "model.embed_tokens"}


class LlamaLMHeadModel(ModuleWithStateDictSerialization):
    transformer: LlamaTransformer
    embeddings: LlamaEmbedding
    lm_head: hnn.Linear | None

    @property
    def config(self) -> LlamaConfig:
        return self.transformer.config

    Vocab = property(lambda self: self.embeddings.token_embeddings.Vocab)

    @classmethod
    def init(cls, Vocab: Axis, config: LlamaConfig, *, key) -> "LlamaLMHeadModel":
        k_t, k_emb, k_head = jrandom.split(key, 3)
        transformer = LlamaTransformer.init(config, key=k_t)
        embeddings = LlamaEmbedding.init(Vocab, config, key=k_emb)
        lm_head = hnn.Linear.init(In=config.Embed, Out=Vocab, key=k_head, use_bias=False, out_first=True)
        return cls(transformer, embeddings, lm_head)

    def __call__(self, input_ids: NamedArray, attn_mask: NamedArray | None = None, *, key=None) -> NamedArray:
        k_t, k_head = maybe_rng_split(key, 2)
        x = self.embeddings.embed(input_ids)
        x = self.transformer(x, attn_mask=attn_mask, key=k_t)
        if self.lm_head is None:
            return self.embeddings.token_embeddings.unembed(x)
        return self.lm_head(x, key=k_head)

    def resize_vocab(self, new_size: int, key=None) -> "LlamaLMHeadModel":
        new_embeddings = self.embeddings.token_embeddings.resize_embeddings(new_size, key=key)
        weight = hax.tree_util.resize_axis(self.lm_head.weight, self.Vocab, new_size, key=key)
        lm_head = hnn.Linear(weight, None, self.lm_head.In, self.Vocab.resize(new_size))
        return LlamaLMHeadModel(self.transformer, LlamaEmbedding(new_embeddings), lm_head)

    def _state_dict_key_map(self) -> dict[str, str | None]:
        return {"transformer": "model", "embeddings": None}


def loss_fn(model: LlamaLMHeadModel, tokens: NamedArray, loss_mask: NamedArray, key=None):
    Pos = model.config.Pos
    mask = hnn.attention.causal_mask(Pos, model.config.KeyPos)
    logits = model(tokens, mask, key=key).astype(jnp.float32)
    targets = hax.roll(tokens, -1, Pos)
    target_y = hnn.one_hot(targets, model.Vocab, dtype=logits.dtype)
    losses, _ = hnn.loss.cross_entropy_loss_and_log_normalizers(logits, model.Vocab, target_y)
    return hnn.reduce_loss(losses, hax.mean, where=loss_mask).scalar()
