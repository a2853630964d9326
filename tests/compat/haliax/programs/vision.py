"""A vision transformer: patches by rearrange, a class token, learned positions, separate blocks."""

from dataclasses import dataclass

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax.random as jrandom
from haliax import Axis, AxisSelection, NamedArray
from haliax.jax_utils import maybe_rng_split, named_call
from haliax.nn.scan import BlockSeq


@dataclass(frozen=True)
class VitConfig:
    image_size: int = 8
    patch_size: int = 4
    channels: int = 3
    hidden_dim: int = 16
    num_heads: int = 2
    num_layers: int = 2
    num_classes: int = 4

    Height = property(lambda self: Axis("height", self.image_size))
    Width = property(lambda self: self.Height.alias("width"))
    Channels = property(lambda self: Axis("channel", self.channels))
    Pixels = property(lambda self: Axis("pixel", self.channels * self.patch_size**2))
    Patches = property(lambda self: Axis("patch", (self.image_size // self.patch_size) ** 2))
    Pos = property(lambda self: Axis("position", self.Patches.size + 1))
    Embed = property(lambda self: Axis("embed", self.hidden_dim))
    Heads = property(lambda self: Axis("heads", self.num_heads))
    HeadSize = property(lambda self: Axis("head_size", self.hidden_dim // self.num_heads))
    Mlp = property(lambda self: Axis("mlp", self.hidden_dim * 2))
    Layers = property(lambda self: Axis("layers", self.num_layers))
    Classes = property(lambda self: Axis("classes", self.num_classes))


class Attention(eqx.Module):
    config: VitConfig = eqx.field(static=True)
    qkv: hnn.Linear
    out: hnn.Linear

    @staticmethod
    def init(config: VitConfig, *, key) -> "Attention":
        k_qkv, k_out = jrandom.split(key)
        Qkv = Axis("qkv", 3)
        qkv = hnn.Linear.init(In=config.Embed, Out=(Qkv, config.Heads, config.HeadSize), key=k_qkv)
        out = hnn.Linear.init(In=(config.Heads, config.HeadSize), Out=config.Embed, key=k_out)
        return Attention(config, qkv, out)

    @named_call
    def __call__(self, x: NamedArray, *, key=None) -> NamedArray:
        k_qkv, k_out = maybe_rng_split(key, 2)
        q, k, v = self.qkv(x, key=k_qkv).unbind("qkv")
        KeyPos = self.config.Pos.alias("key_position")
        k = k.rename({"position": KeyPos})
        v = v.rename({"position": KeyPos})
        y = hnn.attention.dot_product_attention(KeyPos, self.config.HeadSize, q, k, v)
        return self.out(y, key=k_out)


class Block(eqx.Module):
    norm_1: hnn.LayerNorm
    attention: Attention
    norm_2: hnn.LayerNorm
    mlp: hnn.MLP

    @staticmethod
    def init(config: VitConfig, *, key) -> "Block":
        k_attention, k_mlp = jrandom.split(key, 2)
        return Block(
            hnn.LayerNorm.init(config.Embed),
            Attention.init(config, key=k_attention),
            hnn.LayerNorm.init(config.Embed, eps=1e-6),
            hnn.MLP.init(config.Embed, config.Embed, config.Mlp, 1, activation=hnn.gelu, key=k_mlp),
        )

    def __call__(self, x: NamedArray, *, key=None) -> NamedArray:
        x = x + self.attention(self.norm_1(x), key=key)
        return x + self.mlp(self.norm_2(x), key=key)


class VisionTransformer(eqx.Module):
    config: VitConfig = eqx.field(static=True)
    patch_projection: hnn.Linear
    class_token: NamedArray
    positions: NamedArray
    blocks: BlockSeq[Block]
    norm: hnn.LayerNorm
    head: hnn.Linear

    @classmethod
    def init(cls, config: VitConfig, *, key) -> "VisionTransformer":
        k_patch, k_token, k_pos, k_blocks, k_head = jrandom.split(key, 5)
        return cls(
            config,
            hnn.Linear.init(config.Pixels, config.Embed, key=k_patch),
            hax.random.truncated_normal(k_token, config.Embed, -2, 2) * 0.02,
            0.02 * hax.random.normal(k_pos, (config.Pos, config.Embed)),
            BlockSeq.init(config.Layers, Block)(config, key=jrandom.split(k_blocks, config.num_layers)),
            hnn.LayerNorm.init(config.Embed),
            hnn.Linear.init(config.Embed, config.Classes, key=k_head, init_scale=0.5),
        )

    def patches(self, images: NamedArray) -> NamedArray:
        return hax.rearrange(
            images,
            "{(height: row y) (width: col x) channel} -> ... (patch: row col) (pixel: channel y x)",
            y=self.config.patch_size,
            x=self.config.patch_size,
        )

    def __call__(self, images: NamedArray, *, key=None) -> NamedArray:
        k_patch, k_blocks, k_head = maybe_rng_split(key, 3)
        x = self.patch_projection(self.patches(images), key=k_patch).rename({"patch": "position"})
        batch: AxisSelection = hax.eliminate_axes(x.axes, ("position", "embed"))
        token = self.class_token.broadcast_to((*batch, Axis("position", 1), self.config.Embed))
        x = hax.concatenate(self.config.Pos, [token, x]) + self.positions
        x = self.blocks.fold(x, key=k_blocks)
        return self.head(self.norm(x["position", 0]), key=k_head)


def loss_fn(model: VisionTransformer, images: NamedArray, labels: NamedArray):
    logits = model(images)
    targets = hnn.one_hot(labels, model.config.Classes)
    return hnn.cross_entropy_loss(logits, model.config.Classes, targets).scalar()
