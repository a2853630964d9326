"""A Llama, or a Mixtral, that names what published recipes keep or offload, for costs of their training steps."""

import dataclasses
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import axonym as axn
import axonym.nn as nn
from axonym import Axis, NamedArray

OPTIMIZER = optax.adamw(1e-4)
# The tokens that a model reads, and those that it predicts.
Rows: TypeAlias = tuple[NamedArray, NamedArray]


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of a model.

    Attributes:
        experts: the number of experts; 0 for one perceptron. Each token takes two of them.
        capacity: the capacity of an expert, in even shares.
    """

    layers: int
    embed: int
    mlp: int
    heads: int
    kv_heads: int
    vocab: int
    head_dim: int = 128
    experts: int = 0
    capacity: float = 1.0

    @property
    def products(self) -> int:
        """The weights that multiply each token, without the embedding, which is looked up."""
        attention = 2 * self.embed * self.head_dim * (self.heads + self.kv_heads)
        active = min(self.experts, 2) or 1
        return self.layers * (attention + 3 * active * self.embed * self.mlp) + self.embed * self.vocab


def name(x: NamedArray, what: str) -> NamedArray:
    """Give a value the name that a recipe keeps or offloads it by."""
    return axn.tree_checkpoint_name(x, what)


class Block(eqx.Module):
    """Attention and a perceptron, each behind a norm and beside a residual connection."""

    attention_norm: nn.RmsNorm
    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    out: nn.Linear
    mlp_norm: nn.RmsNorm
    mlp: nn.MixtureOfExperts | tuple[nn.Linear, nn.Linear, nn.Linear]

    @staticmethod
    def init(sizes: Sizes, *, key: jax.Array) -> "Block":
        Embed, Mlp, Heads, Group, HeadDim = axn.make_axes(
            embed=sizes.embed,
            mlp=sizes.mlp,
            kv_heads=sizes.kv_heads,
            group=sizes.heads // sizes.kv_heads,
            head_dim=sizes.head_dim,
        )

        def linear(In: Any, Out: Any) -> nn.Linear:
            return nn.Linear.init(In, Out, key=key, use_bias=False)

        mlp: Any = linear(Embed, Mlp), linear(Embed, Mlp), linear(Mlp, Embed)
        if sizes.experts:
            Experts, capacity = Axis("experts", sizes.experts), sizes.capacity
            mlp = nn.MixtureOfExperts.init(Embed, Experts, Mlp, 2, key=key, capacity_factor=capacity, tokens="pos")
        queries = (Heads, Group, HeadDim)
        read = linear(Embed, queries), linear(Embed, (Heads, HeadDim)), linear(Embed, (Heads, HeadDim))
        norms = [nn.RmsNorm.init(Embed, use_bias=False) for _ in range(2)]
        return Block(norms[0], *read, linear(queries, Embed), norms[1], mlp)

    def __call__(self, x: NamedArray, rotate: nn.RotaryTable) -> NamedArray:
        y = self.attention_norm(x)
        q, k = name(self.query(y), "query"), name(self.key(y), "key")
        v, k = name(self.value(y), "value").rename({"pos": "key"}), rotate(k).rename({"pos": "key"})
        y = nn.dot_product_attention("pos", "key", "head_dim", rotate(q), k, v, nn.causal())
        x = x + name(self.out(name(y, "context")), "out")
        y = self.mlp_norm(x)
        if isinstance(self.mlp, nn.MixtureOfExperts):
            return x + self.mlp(y)[0]
        gate, up, down = self.mlp
        # A function that recomputes what it needs itself has a result that JAX keeps beside what a policy names.
        with nn.keep_intermediates():
            hidden = nn.silu(name(gate(y), "gate")) * name(up(y), "up")
        return x + name(down(hidden), "down")


class Llama(eqx.Module):
    """A decoder."""

    embedding: nn.Embedding
    blocks: nn.Stacked[Block]
    norm: nn.RmsNorm
    unembedding: nn.Embedding

    @staticmethod
    def init(sizes: Sizes, kept: axn.ScanCheckpointPolicy, *, key: jax.Array) -> "Llama":
        Vocab, Embed, Layers = axn.make_axes(vocab=sizes.vocab, embed=sizes.embed, layers=sizes.layers)
        blocks = nn.Stacked.init(Layers, Block, gradient_checkpointing=kept)(sizes, key=key)
        tables = [nn.Embedding.init(Vocab, Embed, key=key) for _ in range(2)]
        return Llama(tables[0], blocks, nn.RmsNorm.init(Embed, use_bias=False), tables[1])

    def loss(self, rows: Rows, *, is_whole: bool) -> NamedArray:
        """Return the mean cross entropy, of all scores at once or of blocks of the vocabulary."""
        inputs, targets = rows
        Pos = inputs.resolve_axis("pos")
        HeadDim = self.blocks.stacked.query.weight.resolve_axis("head_dim")
        x = self.blocks.fold(self.embedding(inputs), nn.RotaryEmbedding.init(HeadDim).at(Pos))
        x = self.norm(x)
        if is_whole:
            # As torch computes it, one operation after another: scores, the logarithms of all probabilities and their
            # gradients are in memory, in float32.
            scores = jax.lax.optimization_barrier(self.unembedding.unembed(x).astype(jnp.float32))
            with nn.keep_intermediates():
                scores = jax.lax.optimization_barrier(axn.log_softmax(scores, "vocab"))
            Vocab = scores.resolve_axis("vocab")
            is_next = targets.broadcast_axis(Vocab) == axn.arange(Vocab)
            return -axn.where(is_next, scores, 0).sum("vocab").mean()
        return nn.chunked_cross_entropy_loss(x, self.unembedding.weight, "embed", "vocab", targets)


def make_step(*, is_whole: bool, parts: int = 1) -> Any:
    """Return a step of AdamW that donates what it replaces, computes in bfloat16 and keeps the dtype of weights.

    Args:
        is_whole: see `Llama.loss`.
        parts: the number of parts of the batch, whose gradients are added up.
    """

    def loss(model: Llama, rows: Rows) -> jax.Array:
        half = jax.tree.map(lambda weight: weight.astype(jnp.bfloat16), model)
        return half.loss(rows, is_whole=is_whole).scalar()

    def add_part(total: Any, rows: Rows) -> Any:
        found = jax.value_and_grad(loss)(total[0], rows)
        return total[0], jax.tree.map(lambda one, other: one + other / parts, total[1], found)

    def step(model: Any, state: Any, rows: Rows) -> Any:
        if parts == 1:
            value, gradients = jax.value_and_grad(loss)(model, rows)
        else:
            Batch, Part = rows[0].resolve_axis("batch"), Axis("part", parts)
            # Parts are innermost, so that each device keeps its rows.
            pieces = tuple(one.unflatten_axis("batch", (Batch.resize(Batch.size // parts), Part)) for one in rows)
            start = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, model))
            _, (value, gradients) = axn.fold(add_part, Part)((model, start), pieces)
        updates, state = OPTIMIZER.update(gradients, state, model)
        return optax.apply_updates(model, updates), state, value

    return axn.named_jit(step, {}, donate_args=(True, True))


def make_arguments(
    sizes: Sizes,
    kept: axn.ScanCheckpointPolicy,
    rows: int,
    positions: int,
    dtype: str = "float32",
) -> tuple[Any, Any, Any]:
    """Return a model, the state of its optimiser and rows of tokens, none of which exists."""

    def init(key: jax.Array) -> Llama:
        return jax.tree.map(lambda weight: weight.astype(dtype), Llama.init(sizes, kept, key=key))

    model = jax.eval_shape(init, jax.random.key(0))
    state = jax.eval_shape(OPTIMIZER.init, model)
    tokens = axn.NamedArray(jax.ShapeDtypeStruct((rows, positions), np.int32), ("batch", "pos"))
    return model, state, (tokens, tokens)
