"""The sizes and options of a decoder. The defaults are those of a small Llama."""

import dataclasses
import math
from typing import Any, Literal, NamedTuple, Self

from .. import nn
from ..axis import Axis
from ..transform.checkpoint import ScanCheckpointSpec

# Local layers see a window; unrotated ones have no rotary positions; dense ones have a perceptron where others have
# experts; those of a delta rule have a memory in place of attention.
Dense = Literal["global_dense", "local_dense", "delta_dense"]
Kind = Literal[Dense, "global", "local", "delta", "global_unrotated", "local_unrotated"]


class Rope(NamedTuple):
    """Rotary positions.

    Attributes:
        theta: the base of the frequencies.
        scaling: changes the frequencies, for long texts.
        share: of the features of a head, the first ones, that are rotated.
        magnitude: a factor of what is rotated, of queries and of keys.
        interleaved: whether neighbours are pairs of features, see `axn.nn.rotary`.
        growth: how fast scores grow with the factor of the scaling.
    """

    theta: float = 10000.0
    scaling: nn.FrequencyScaling | nn.LengthScaling | None = None
    share: float = 1.0
    magnitude: float = 1.0
    interleaved: bool = False
    growth: float = 0.0

    @property
    def score_factor(self) -> float:
        """A factor of the attention scores, in addition to `magnitude`."""
        factor = getattr(self.scaling, "factor") if self.growth else 1.0  # noqa: B009
        return (1 + 0.1 * self.growth * math.log(factor)) ** 2 if factor > 1 else 1.0

    def on(self, axis: Axis) -> nn.RotaryEmbedding:
        """Return the layer that rotates features along an axis."""
        size = int(self.share * axis.size)
        options: Any = {"size": size, "interleaved": self.interleaved, "magnitude": self.magnitude}
        return nn.RotaryEmbedding.init(axis, self.theta, scaling=self.scaling, **options)


ROPE = Rope()


@dataclasses.dataclass(frozen=True)
class ExpertsConfig:
    """A mixture of experts in place of the perceptron.

    Attributes:
        count: number of experts.
        chosen: number of experts that a token goes to.
        mlp: width of one expert.
        normalize: whether the weights of the chosen experts sum to one.
        shared: width of a further expert for all tokens.
        shared_count: a factor of this width.
        shared_gate: whether the further expert is behind a gate.
        sigmoid: whether weights are sigmoids of scores, and each expert has a bias for the choice, see
            `axn.nn.update_choice_bias`; instead of a softmax.
        scale: a factor of the weights.
        groups: number of groups of experts.
        chosen_groups: from how many of them a token chooses.
        clamp: the largest gate, and the largest magnitude of what it multiplies, which is then raised by one; None for
            no such bound. The further expert has none.
        slope: a factor in the sigmoid of a gate with a bound, in place of the activation.
    """

    count: int
    chosen: int
    mlp: int
    normalize: bool = True
    shared: int | None = None
    shared_count: int = 1
    shared_gate: bool = True
    sigmoid: bool = False
    scale: float = 1.0
    groups: int = 1
    chosen_groups: int = 1
    clamp: float | None = None
    slope: float = 1.0


@dataclasses.dataclass(frozen=True)
class LatentConfig:
    """Latent attention, see `axn.nn.LatentAttention`; `head_dim` then counts the features that are not rotated.

    Attributes:
        keys: width of the latent of keys and values.
        rotary: width of what is rotated.
        values: width of the values of a head.
        queries: width of the latent of queries, if they have one.
    """

    keys: int
    rotary: int
    values: int
    queries: int | None = None


@dataclasses.dataclass(frozen=True)
class DeltaConfig:
    """A memory written by the gated delta rule, see `axn.nn.GatedDeltaNet`, in layers of the kind "delta".

    Attributes:
        heads: number of heads of values.
        key_heads: number of heads of queries and keys, which divides `heads`.
        key_dim: width of a query or a key.
        value_dim: width of a value.
        window: how many positions the convolutions see.
    """

    heads: int
    key_heads: int
    key_dim: int
    value_dim: int
    window: int = 4

    def __post_init__(self) -> None:
        if self.heads % self.key_heads:
            wanted = f"heads={self.heads} is not a multiple of key_heads={self.key_heads}"
            raise ValueError(f"key_heads must divide heads: {wanted}")


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
    """Sizes and forms of a decoder.

    Attributes:
        vocab: number of tokens.
        layers: number of blocks.
        embed: width of the residual stream.
        mlp: width of the perceptron.
        heads: number of heads of queries.
        kv_heads: number of heads of keys and values, which divides `heads`.
        head_dim: width of a head.
        positions: the longest sequence.
        norm: the kind of norms; "shifted" is "rms" whose weights are stored less one.
        norm_eps: added to the mean square.
        parallel: whether the perceptron reads what attention reads, instead of what attention adds to.
        norm_places: where norms are: "before" attention and perceptron, "behind" them, or "both".
        head_norms: norms of queries and keys: over "each" head, or over "all" heads together.
        sinks: whether each head has one, see `axn.nn.Attention`.
        biases: which linear layers have one; those of experts include the router.
        activation: of the perceptron.
        gated: whether the perceptron multiplies by a gate.
        experts: a mixture of experts in place of the perceptron.
        rope: rotary positions; None for a learned vector for each position.
        local_rope: those of local layers, where they differ.
        window: how many tokens a local layer sees.
        pattern: the kinds of layers, repeated to the depth.
        latent: latent attention in place of the usual one.
        delta: the memories of layers of the kind "delta".
        gated_attention: whether the result of attention is multiplied by a gate.
        score_scale: a factor of scores; None for one over the square root of `head_dim`.
        score_cap: the largest score, see `soft_cap` of `axn.nn.dot_product_attention`.
        logit_cap: the largest logit, by the same function.
        embed_scale: a factor of embeddings.
        residual_scale: a factor of what attention and perceptron add to the residual stream.
        logit_divisor: logits are divided by it, before `logit_cap`.
        tied: whether one table both embeds tokens and scores them.
        dropout: probability of dropping, after the embedding and in each branch.
        checkpointing: what a block keeps for its backward pass, see `axn.ScanCheckpointPolicy`.
        out_first: whether linear layers store the axes of their outputs first, as most files do.
        rounds: how often a pipeline passes all of its stages, which then have several groups of blocks.
    """

    vocab: int = 32000
    layers: int = 22
    embed: int = 2048
    mlp: int = 5632
    heads: int = 32
    kv_heads: int = 4
    head_dim: int = 64
    positions: int = 2048
    norm: Literal["layer", "rms", "shifted"] = "rms"
    norm_eps: float = 1e-5
    parallel: bool = False
    norm_places: Literal["before", "behind", "both"] = "before"
    head_norms: Literal["each", "all"] | None = None
    sinks: bool = False
    biases: frozenset[Literal["qkv", "out", "mlp", "experts"]] = frozenset()
    activation: Literal["silu", "gelu", "gelu_tanh"] = "silu"
    gated: bool = True
    experts: ExpertsConfig | None = None
    rope: Rope | None = ROPE
    local_rope: Rope | None = None
    window: int | None = None
    pattern: tuple[Kind, ...] = ("global",)
    latent: LatentConfig | None = None
    delta: DeltaConfig | None = None
    gated_attention: bool = False
    score_scale: float | None = None
    score_cap: float | None = None
    logit_cap: float | None = None
    embed_scale: float = 1.0
    residual_scale: float = 1.0
    logit_divisor: float = 1.0
    tied: bool = False
    dropout: float = 0.0
    checkpointing: ScanCheckpointSpec = True
    out_first: bool = False
    rounds: int = 1

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            wanted = f"heads={self.heads} is not a multiple of kv_heads={self.kv_heads}"
            raise ValueError(f"kv_heads must divide heads: {wanted}")
        if any(kind.startswith("local") for kind in self.pattern) and self.window is None:
            raise ValueError(
                f"local layers need a window, but pattern={self.pattern} and window=None"
            )
        if any(kind.startswith("delta") for kind in self.pattern) and self.delta is None:
            raise ValueError(f"delta layers need a DeltaConfig, but pattern={self.pattern}")
        if self.latent is not None and self.kv_heads != self.heads:
            wanted = f"kv_heads={self.kv_heads} and heads={self.heads}"
            raise ValueError(f"each head of latent attention has keys of its own, but {wanted}")

    def as_gpt2(self) -> Self:
        """Return the form of GPT-2, with the same sizes."""
        return dataclasses.replace(
            self,
            norm="layer",
            biases=frozenset({"qkv", "out", "mlp"}),
            activation="gelu_tanh",
            gated=False,
            rope=None,
            tied=True,
        )

    kinds = property(lambda self: [self.pattern[i % len(self.pattern)] for i in range(self.layers)])
    Vocab = property(lambda self: Axis("vocab", self.vocab))
    Layers = property(lambda self: Axis("layers", self.layers))
    Embed = property(lambda self: Axis("embed", self.embed))
    Mlp = property(lambda self: Axis("mlp", self.mlp))
    KVHeads = property(lambda self: Axis("kv_heads", self.kv_heads))
    Group = property(lambda self: Axis("group", self.heads // self.kv_heads))
    HeadDim = property(lambda self: Axis("head_dim", self.head_dim))
    Rotated = property(
        lambda self: self.HeadDim if self.latent is None else Axis("rotary", self.latent.rotary)
    )
    Pos = property(lambda self: Axis("pos", self.positions))
