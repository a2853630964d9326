"""An encoder of sound and a decoder of text that looks at it, under the keys of a torch model of another structure."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax.numpy as jnp
import jax.random as jrandom
import numpy as np
from haliax import Axis, NamedArray
from haliax.jax_utils import maybe_rng_split, named_call, shaped_rng_split
from haliax.nn.scan import Stacked
from haliax.state_dict import ModuleWithStateDictSerialization


@dataclass(frozen=True)
class SpeechConfig:
    num_mels: int = 5
    frames: int = 8
    max_length: int = 6
    hidden_dim: int = 8
    num_heads: int = 2
    encoder_layers: int = 2
    decoder_layers: int = 2
    activation: Callable = hnn.gelu

    @cached_property
    def Frames(self) -> Axis:
        return Axis("position", self.frames)

    Mels = property(lambda self: Axis("n_mels", self.num_mels))
    Pos = property(lambda self: self.Frames.resize(self.max_length))
    Embed = property(lambda self: Axis("embed", self.hidden_dim))
    Mlp = property(lambda self: Axis("mlp", 2 * self.hidden_dim))
    Heads = property(lambda self: Axis("heads", self.num_heads))
    HeadSize = property(lambda self: Axis("head_size", self.hidden_dim // self.num_heads))
    EncoderLayer = property(lambda self: Axis("encoder_layer", self.encoder_layers))
    DecoderLayer = property(lambda self: Axis("decoder_layer", self.decoder_layers))


class Mlp(eqx.Module):
    fc1: hnn.Linear
    fc2: hnn.Linear
    act: Callable = eqx.field(static=True)

    @staticmethod
    def init(config: SpeechConfig, *, key) -> "Mlp":
        k_1, k_2 = jrandom.split(key, 2)
        fc1 = hnn.Linear.init(Out=config.Mlp, In=config.Embed, key=k_1)
        return Mlp(fc1, hnn.Linear.init(Out=config.Embed, In=config.Mlp, key=k_2), config.activation)

    @named_call
    def __call__(self, x: NamedArray) -> NamedArray:
        return self.fc2(self.act(self.fc1(x)))


class Attention(ModuleWithStateDictSerialization, eqx.Module):
    q: hnn.Linear
    k: hnn.Linear
    v: hnn.Linear
    out: hnn.Linear

    @staticmethod
    def init(config: SpeechConfig, *, key) -> "Attention":
        k_q, k_k, k_v, k_out = jrandom.split(key, 4)
        Embed, heads = config.Embed, (config.Heads, config.HeadSize)
        return Attention(
            hnn.Linear.init(In=Embed, Out=heads, key=k_q),
            hnn.Linear.init(In=Embed, Out=heads, key=k_k, use_bias=False),
            hnn.Linear.init(In=Embed, Out=heads, key=k_v),
            hnn.Linear.init(In=heads, Out=Embed, key=k_out),
        )

    def _state_dict_key_map(self) -> dict[str, str | None]:
        return {"q": "q_proj", "k": "k_proj", "v": "v_proj", "out": "out_proj"}

    @named_call
    def __call__(self, x: NamedArray, heard: NamedArray | None = None, mask: NamedArray | None = None) -> NamedArray:
        source = x if heard is None else heard
        q = self.q(x).rearrange((..., "heads", "position", "head_size"))
        k = self.k(source).rename({"position": "key_position"})
        v = self.v(source).rename({"position": "key_position"})
        if mask is not None:
            mask = mask.astype(jnp.bool_)
        y = hnn.attention.dot_product_attention("key_position", "head_size", q, k, v, mask=mask)
        return self.out(y).astype(x.dtype)


class EncoderLayer(ModuleWithStateDictSerialization, eqx.Module):
    attn: Attention
    attn_ln: hnn.LayerNorm
    mlp: Mlp
    mlp_ln: hnn.LayerNorm

    @staticmethod
    def init(config: SpeechConfig, *, key) -> "EncoderLayer":
        k_attn, k_mlp = jrandom.split(key, 2)
        norms = [hnn.LayerNorm.init(config.Embed) for _ in range(2)]
        return EncoderLayer(Attention.init(config, key=k_attn), norms[0], Mlp.init(config, key=k_mlp), norms[1])

    def _state_dict_key_map(self) -> dict[str, str | None]:
        return {"attn": "self_attn", "attn_ln": "self_attn_layer_norm", "mlp": None, "mlp_ln": "final_layer_norm"}

    def __call__(self, x: NamedArray) -> NamedArray:
        x = x + self.attn(self.attn_ln(x))
        return x + self.mlp(self.mlp_ln(x))


class DecoderLayer(ModuleWithStateDictSerialization, eqx.Module):
    attn: Attention
    cross: Attention
    mlp: Mlp
    norms: list[hnn.LayerNorm]

    @staticmethod
    def init(config: SpeechConfig, *, key) -> "DecoderLayer":
        k_attn, k_cross, k_mlp = jrandom.split(key, 3)
        return DecoderLayer(
            Attention.init(config, key=k_attn),
            Attention.init(config, key=k_cross),
            Mlp.init(config, key=k_mlp),
            [hnn.LayerNorm.init(config.Embed) for _ in range(3)],
        )

    def _state_dict_key_map(self) -> dict[str, str | None]:
        return {"attn": "self_attn", "cross": "encoder_attn", "mlp": None}

    def __call__(self, x: NamedArray, heard: NamedArray, mask: NamedArray | None) -> NamedArray:
        x = x + self.attn(self.norms[0](x), mask=mask)
        x = x + self.cross(self.norms[1](x), heard=heard)
        return x + self.mlp(self.norms[2](x))


def sinusoids(Pos: Axis, Embed: Axis) -> NamedArray:
    Half = Embed.resize(Embed.size // 2)
    inverse = hax.exp(-np.log(10000) / (Half.size - 1) * hax.arange(Half))
    angles = hax.arange(Pos).broadcast_axis(Half) * inverse.broadcast_axis(Pos)
    return hax.concatenate(Embed, [hax.sin(angles), hax.cos(angles)])


class Encoder(ModuleWithStateDictSerialization, eqx.Module):
    config: SpeechConfig = eqx.field(static=True)
    conv1: hnn.Conv
    conv2: hnn.Conv
    layers: Stacked[EncoderLayer]
    layer_norm: hnn.LayerNorm

    @classmethod
    def init(cls, config: SpeechConfig, *, key) -> "Encoder":
        k_1, k_2, k_layers = jrandom.split(key, 3)
        Embed = config.Embed
        conv1 = hnn.Conv.init(config.Frames, config.Mels, Embed, kernel_size=3, padding=1, key=k_1)
        conv2 = hnn.Conv.init(config.Frames, Embed, Embed.alias("out"), kernel_size=3, stride=2, padding=1, key=k_2)
        layers = Stacked.init(config.EncoderLayer, EncoderLayer, gradient_checkpointing=True)(
            config, key=shaped_rng_split(k_layers, config.encoder_layers)
        )
        return cls(config, conv1, conv2, layers, hnn.LayerNorm.init(Embed))

    @named_call
    def __call__(self, mel: NamedArray) -> NamedArray:
        x = hnn.gelu(self.conv1(mel))
        x = hnn.gelu(self.conv2(x)).rename({"out": "embed"})
        x = x.rearrange((..., "position", "embed"))
        x = x + sinusoids(x.resolve_axis("position"), self.config.Embed).astype(x.dtype)
        return self.layer_norm(self.layers.fold(x))


class Decoder(ModuleWithStateDictSerialization, eqx.Module):
    tokens: hnn.Embedding
    positions: hnn.Embedding
    layers: Stacked[DecoderLayer]
    layer_norm: hnn.LayerNorm

    @classmethod
    def init(cls, Vocab: Axis, config: SpeechConfig, *, key) -> "Decoder":
        k_tokens, k_positions, k_layers = jrandom.split(key, 3)
        layers = Stacked.init(config.DecoderLayer, DecoderLayer, gradient_checkpointing=True)(
            config, key=shaped_rng_split(k_layers, config.decoder_layers)
        )
        return cls(
            hnn.Embedding.init(Vocab, config.Embed, key=k_tokens, initializer_range=0.3),
            hnn.Embedding.init(config.Pos, config.Embed, key=k_positions, initializer_range=0.02),
            layers,
            hnn.LayerNorm.init(config.Embed),
        )

    def _state_dict_key_map(self) -> dict[str, str | None]:
        return {"tokens": "embed_tokens", "positions": "embed_positions"}

    @named_call
    def __call__(self, ids: NamedArray, heard: NamedArray, mask: NamedArray | None) -> NamedArray:
        x = self.tokens.embed(ids) + self.positions.embed(hax.arange(ids.resolve_axis("position")))
        x = self.layers.fold(x, heard, mask)
        return self.tokens.unembed(self.layer_norm(x))


class SpeechModel(ModuleWithStateDictSerialization, eqx.Module):
    encoder: Encoder
    decoder: Decoder

    @classmethod
    def init(cls, Vocab: Axis, config: SpeechConfig, *, key) -> "SpeechModel":
        k_encoder, k_decoder = maybe_rng_split(key, 2)
        return cls(Encoder.init(config, key=k_encoder), Decoder.init(Vocab, config, key=k_decoder))

    def __call__(self, mel: NamedArray, ids: NamedArray, mask: NamedArray | None = None) -> NamedArray:
        return self.decoder(ids, self.encoder(mel), mask)


def loss_fn(model: SpeechModel, mel: NamedArray, ids: NamedArray, where: NamedArray):
    Vocab, Pos = model.decoder.tokens.Vocab, ids.resolve_axis("position")
    logits = model(mel, ids, hnn.attention.causal_mask(Pos, Pos.alias("key_position"))).astype(jnp.float32)
    targets = hnn.one_hot(hax.roll(ids, -1, "position"), Vocab, dtype=logits.dtype)
    return hnn.cross_entropy_loss(logits, Vocab, targets, hax.mean, where=where).scalar(), logits
