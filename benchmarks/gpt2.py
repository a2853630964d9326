"""GPT-2 with named axes, the model that is timed beside plain JAX; see examples/lm for one to train.

The model of Radford et al., "Language Models are Unsupervised Multitask Learners" (2019): pre-LayerNorm blocks, learned
positions, the tanh form of gelu, and one table that both embeds tokens and scores them. Nothing here speaks of devices:
the names of the axes are all that a layout needs.
"""

import dataclasses
import math

import equinox as eqx
import jax
import jax.numpy as jnp

import axonym as axn
import axonym.nn as nn
from axonym import Axis, NamedArray

# For each strategy: how parameters and optimiser state are laid out, and how the computation is.
STRATEGIES: dict[str, tuple[axn.ResourceMapping, axn.ResourceMapping]] = {
    "single": ({}, {}),
    "dp": ({}, {"batch": ("data", "model")}),
    "fsdp": ({"embed": ("data", "model")}, {"batch": ("data", "model")}),
    "tp": ({"heads": "model", "mlp": "model"}, {"batch": "data", "heads": "model", "mlp": "model"}),
    "fsdp+tp": (
        {"embed": "data", "heads": "model", "mlp": "model"},
        {"batch": "data", "heads": "model", "mlp": "model"},
    ),
}


@dataclasses.dataclass(frozen=True)
class Gpt2Config:
    """Sizes of a GPT-2.

    Attributes:
        layers: number of blocks.
        embed: width of the residual stream.
        heads: number of attention heads, which must divide `embed`.
        positions: the longest sequence.
        vocab: number of tokens.
        dropout: probability of dropping, after the embedding and in each branch.
        checkpointing: what a block keeps for its backward pass, see `axn.ScanCheckpointPolicy`.
        unrolled: write out the blocks instead of looping over them.
        pos: what the axis of positions is called inside of the model.
    """

    layers: int = 12
    embed: int = 768
    heads: int = 12
    positions: int = 1024
    vocab: int = 50257
    dropout: float = 0.1
    checkpointing: axn.ScanCheckpointSpec = True
    unrolled: bool = False
    pos: str = "pos"

    def __post_init__(self) -> None:
        if self.embed % self.heads:
            raise ValueError(f"heads must divide embed: embed={self.embed} is not a multiple of heads={self.heads}")

    Layers = property(lambda self: Axis("layers", self.layers))
    Embed = property(lambda self: Axis("embed", self.embed))
    Heads = property(lambda self: Axis("heads", self.heads))
    HeadDim = property(lambda self: Axis("head_dim", self.embed // self.heads))
    Mlp = property(lambda self: Axis("mlp", 4 * self.embed))
    Pos = property(lambda self: Axis(self.pos, self.positions))
    Vocab = property(lambda self: Axis("vocab", self.vocab))


def normal(std: float) -> nn.Initializer:
    """Draw weights from a normal distribution, as GPT-2 does."""
    return lambda key, axes: axn.random.normal(key, axes) * std


class Attention(eqx.Module):
    """Causal self-attention with several heads."""

    qkv: nn.Linear  # embed -> qkv, heads, head_dim
    proj: nn.Linear  # heads, head_dim -> embed
    pos: str = eqx.field(static=True)

    @staticmethod
    def init(cfg: Gpt2Config, *, key: jax.Array) -> "Attention":
        k_qkv, k_proj = jax.random.split(key)
        Qkv, residual = Axis("qkv", 3), normal(0.02 / math.sqrt(2 * cfg.layers))
        qkv = nn.Linear.init(cfg.Embed, (Qkv, cfg.Heads, cfg.HeadDim), key=k_qkv, initializer=normal(0.02))
        proj = nn.Linear.init((cfg.Heads, cfg.HeadDim), cfg.Embed, key=k_proj, initializer=residual)
        return Attention(qkv, proj, cfg.pos)

    def __call__(self, x: NamedArray, mask: nn.AttentionMask) -> NamedArray:
        q, k, v = self.qkv(x).unbind("qkv")
        key_pos = f"{self.pos}.key"
        k, v = k.rename({self.pos: key_pos}), v.rename({self.pos: key_pos})
        y = nn.dot_product_attention(self.pos, key_pos, "head_dim", q, k, v, mask=mask)
        return self.proj(y)


class Mlp(eqx.Module):
    """Two linear layers with a gelu between them."""

    fc: nn.Linear  # embed -> mlp
    out: nn.Linear  # mlp -> embed

    @staticmethod
    def init(cfg: Gpt2Config, *, key: jax.Array) -> "Mlp":
        k_fc, k_out = jax.random.split(key)
        fc = nn.Linear.init(cfg.Embed, cfg.Mlp, key=k_fc, initializer=normal(0.02))
        residual = normal(0.02 / math.sqrt(2 * cfg.layers))
        return Mlp(fc, nn.Linear.init(cfg.Mlp, cfg.Embed, key=k_out, initializer=residual))

    def __call__(self, x: NamedArray) -> NamedArray:
        return self.out(nn.gelu(self.fc(x)))


class Block(eqx.Module):
    """Attention and a perceptron, each behind a LayerNorm and beside a residual connection."""

    ln_1: nn.LayerNorm
    attention: Attention
    ln_2: nn.LayerNorm
    mlp: Mlp
    dropout: nn.Dropout

    @staticmethod
    def init(cfg: Gpt2Config, *, key: jax.Array) -> "Block":
        k_attention, k_mlp = jax.random.split(key)
        ln_1, ln_2 = nn.LayerNorm.init(cfg.Embed), nn.LayerNorm.init(cfg.Embed)
        attention, mlp = Attention.init(cfg, key=k_attention), Mlp.init(cfg, key=k_mlp)
        return Block(ln_1, attention, ln_2, mlp, nn.Dropout(cfg.dropout))

    def __call__(self, x: NamedArray, mask: nn.AttentionMask, *, key: jax.Array | None = None) -> NamedArray:
        k1, k2 = (None, None) if key is None else jax.random.split(key)
        x = x + self.dropout(self.attention(self.ln_1(x), mask), key=k1, inference=key is None)
        return x + self.dropout(self.mlp(self.ln_2(x)), key=k2, inference=key is None)


class Gpt2(eqx.Module):
    """A language model: from tokens to scores of the token that follows each of them."""

    embed: nn.Embedding
    positions: NamedArray
    dropout: nn.Dropout
    blocks: nn.Stacked[Block] | nn.BlockSeq[Block]
    ln_f: nn.LayerNorm
    pos: str = eqx.field(static=True)

    @staticmethod
    def init(cfg: Gpt2Config, *, key: jax.Array) -> "Gpt2":
        k_embed, k_pos, k_blocks = jax.random.split(key, 3)
        embed = nn.Embedding.init(cfg.Vocab, cfg.Embed, key=k_embed, initializer=normal(0.02))
        positions = normal(0.01)(k_pos, (cfg.Pos, cfg.Embed))
        stack = nn.BlockSeq if cfg.unrolled else nn.Stacked
        blocks = stack.init(cfg.Layers, Block, gradient_checkpointing=cfg.checkpointing)(cfg, key=k_blocks)
        return Gpt2(embed, positions, nn.Dropout(cfg.dropout), blocks, nn.LayerNorm.init(cfg.Embed), cfg.pos)

    def __call__(self, tokens: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        """Score the next token at each position; without a key, nothing is dropped.

        Args:
            tokens: axes {pos, ...}, integers.
            key: for dropout.

        Returns:
            Axes {..., pos, vocab}, with positions as the model calls them.
        """
        tokens = tokens.rename({"pos": self.pos})
        Pos = tokens.resolve_axis(self.pos)
        k_embed, k_blocks = (None, None) if key is None else jax.random.split(key)
        positions = axn.auto_sharded(self.positions)[self.pos, : Pos.size]
        x = self.dropout(self.embed(tokens) + positions, key=k_embed, inference=key is None)
        x = self.blocks.fold(x, nn.causal(), key=k_blocks)
        return self.embed.unembed(self.ln_f(x))

    def loss(self, tokens: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        """Return the mean cross entropy, in nats, of each token given those before it.

        Args:
            tokens: axes {pos, ...}, one position more than the model sees.
            key: for dropout.
        """
        logits = self(tokens["pos", :-1], key=key)
        targets = tokens["pos", 1:].rename({"pos": self.pos})
        return nn.cross_entropy_loss(logits.astype(jnp.float32), "vocab", targets)
