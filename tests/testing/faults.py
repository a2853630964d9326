"""Faults that were published in other frameworks, or are of the same kinds, as programs with a repaired twin each.

They use what any user has: `axonym`, `axonym.nn`, Equinox and Optax. Each is a small model or a function of named
arguments with the claim that it breaks, the axis, and the layer where the fault is. They know nothing of how claims are
tested: `options` are words of a claim, such as which positions are padding.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import axonym as axn
from axonym import NamedArray, nn

Batch, Pos, Embed, Mlp, Vocab = axn.make_axes(batch=8, pos=6, embed=8, mlp=12, vocab=11)
KVHeads, Group, HeadDim, Experts, Layers = axn.make_axes(kv_heads=2, group=2, head_dim=4, experts=4, layers=3)
Key = Pos.derive("key")
MAPPING = {"batch": "data"}


class Case(NamedTuple):
    """A program, its arguments, and what a claim about it needs to know."""

    f: Callable[..., Any]
    args: tuple[Any, ...]
    options: Mapping[str, Any] = MappingProxyType({})


@dataclasses.dataclass(frozen=True)
class Fault:
    """A published fault.

    Attributes:
        claim: what the program should fulfil, as in `assert_<claim>`.
        axis: the axis whose meaning it breaks.
        layer: the path of the layer where it is, within the model; empty outside of layers.
        make: makes the program, or its repaired twin.
        source: where the like was published, or what brings it about.
    """

    claim: str
    axis: str
    layer: str
    make: Callable[[bool], Case]
    source: str


def draw(*axes: axn.Axis, seed: int = 0) -> NamedArray:
    array = np.random.default_rng(seed).normal(size=[axis.size for axis in axes]).astype(np.float32)
    return axn.named(jnp.asarray(array), axes)


def draw_tokens(*axes: axn.Axis, seed: int = 0) -> NamedArray:
    array = np.random.default_rng(seed).integers(0, Vocab.size, size=[axis.size for axis in axes])
    return axn.named(jnp.asarray(array), axes)


def draw_like(model: Any) -> Any:
    """Give all parameters of a model values of their own, biases too."""
    leaves, structure = jax.tree.flatten(model, is_leaf=axn.is_named_array)
    return jax.tree.unflatten(structure, [draw(*x.axes, seed=7 + i) * 0.5 for i, x in enumerate(leaves)])


def keys(count: int) -> list[jax.Array]:
    return list(jax.random.split(jax.random.key(3), count))


LENGTHS = axn.named(np.array([6, 3, 5, 2, 6, 4, 1, 5]), Batch)
REAL = axn.arange(Pos).broadcast_axis(Batch) < LENGTHS


class Block(eqx.Module):
    """A residual block of two parts."""

    norm: eqx.Module
    mixer: eqx.Module
    mlp: nn.MLP

    def __call__(self, x: NamedArray) -> NamedArray:
        x = x + self.mixer(self.norm(x))
        return x + self.mlp(x)


class Decoder(eqx.Module):
    """Two blocks; faults are in the second one."""

    embedding: nn.Embedding
    blocks: list[Block]

    def __call__(self, tokens: NamedArray) -> NamedArray:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.embedding.unembed(x)


def decoder(mixer: eqx.Module, norm: eqx.Module | None = None) -> Case:
    k = keys(4)
    right = MeanOfPast()
    blocks = [
        Block(nn.LayerNorm.init(Embed), right, nn.MLP.init(Embed, Embed, Mlp, 1, key=k[0])),
        Block(norm or nn.LayerNorm.init(Embed), mixer, nn.MLP.init(Embed, Embed, Mlp, 1, key=k[1])),
    ]
    model = Decoder(nn.Embedding.init(Vocab, Embed, key=k[2]), blocks)
    return Case(model, (draw_tokens(Batch, Pos),))


class MeanOfPast(eqx.Module):
    """The mean of a position and all before it."""

    def __call__(self, x: NamedArray) -> NamedArray:
        return axn.cumsum(x, "pos") / (axn.arange(x.resolve_axis("pos")) + 1)


class MeanOfAll(eqx.Module):
    """The mean of all positions."""

    def __call__(self, x: NamedArray) -> NamedArray:
        return x - x.mean("pos")


def future_by_a_mean(is_repaired: bool) -> Case:
    return decoder(MeanOfPast() if is_repaired else MeanOfAll())


class Windowed(eqx.Module):
    """Attention to the last positions, with a mask made by hand."""

    ahead: int = eqx.field(static=True)

    def __call__(self, x: NamedArray) -> NamedArray:
        own, other = axn.arange(Pos), axn.arange(Key)
        distance = own.broadcast_axis(Key) - other
        seen = (distance >= -self.ahead) & (distance < 3)
        scores = axn.dot(x, x.rename({"pos": "pos.key"}), axis="embed") / math.sqrt(Embed.size)
        weights = axn.softmax(axn.where(seen, scores, -1e9), "pos.key")
        return axn.dot(weights, x.rename({"pos": "pos.key"}), axis="pos.key")


def future_by_a_window(is_repaired: bool) -> Case:
    return decoder(Windowed(0 if is_repaired else 1))


class Masked(eqx.Module):
    """A layer of attention with a mask of booleans."""

    attention: nn.Attention
    names: tuple[str, str] = eqx.field(static=True)

    def __call__(self, x: NamedArray) -> NamedArray:
        later, earlier = (axn.arange(Pos.alias(name)) for name in self.names)
        return self.attention(x, later.broadcast_axis(earlier.axes) >= earlier)


def future_by_a_mask_of_the_wrong_name(is_repaired: bool) -> Case:
    attention = nn.Attention.init(Embed, KVHeads, HeadDim, key=keys(5)[4])
    return decoder(Masked(attention, ("pos", "pos.key") if is_repaired else ("pos.key", "pos")))


def future_by_a_norm_over_positions(is_repaired: bool) -> Case:
    return decoder(MeanOfPast(), nn.LayerNorm.init(Embed if is_repaired else (Pos, Embed)))


class InTraining(eqx.Module):
    """A batch norm whose running statistics are left aside."""

    of_batch: nn.BatchNorm

    def __call__(self, x: NamedArray) -> NamedArray:
        return self.of_batch(x, self.of_batch.initial_state())[0]


def examples_mixed_by_batch_norm(is_repaired: bool) -> Case:
    norm = nn.LayerNorm.init(Embed) if is_repaired else InTraining(nn.BatchNorm.init(Embed, ("batch", "pos")))
    return decoder(MeanOfPast(), norm)


class Gate(eqx.Module):
    """A softmax gate."""

    over: str = eqx.field(static=True)

    def __call__(self, x: NamedArray) -> NamedArray:
        return axn.softmax(x, self.over) * x


def examples_mixed_by_a_softmax(is_repaired: bool) -> Case:
    return decoder(Gate("embed" if is_repaired else "batch"))


class Routed(eqx.Module):
    """Experts, without the report of their router."""

    experts: nn.MixtureOfExperts

    def __call__(self, x: NamedArray, where: NamedArray | None = None) -> NamedArray:
        return self.experts(x, where=where)[0]


def examples_mixed_by_capacity(is_repaired: bool) -> Case:
    tokens = "pos" if is_repaired else None
    experts = nn.MixtureOfExperts.init(Embed, Experts, Mlp, 2, key=keys(6)[5], capacity_factor=0.5, tokens=tokens)
    return decoder(Routed(experts))


class Padded(eqx.Module):
    """Experts of sequences with padding."""

    proj: nn.Linear
    routed: Routed
    is_told: bool = eqx.field(static=True)

    def __call__(self, x: NamedArray, real: NamedArray) -> NamedArray:
        return self.routed(self.proj(x), real if self.is_told else None)


def padding_takes_capacity(is_repaired: bool) -> Case:
    k = keys(2)
    experts = nn.MixtureOfExperts.init(Embed, Experts, Mlp, 2, key=k[0], capacity_factor=0.5)
    model = Padded(nn.Linear.init(Embed, Embed, key=k[1]), Routed(experts), is_repaired)
    return Case(model, (draw(Batch, Pos, Embed), REAL), {"where": REAL})


class Balance(eqx.Module):
    """The loss that balances the load of experts."""

    experts: nn.MixtureOfExperts
    is_told: bool = eqx.field(static=True)

    def __call__(self, x: NamedArray, real: NamedArray) -> NamedArray:
        return self.experts(x, where=real if self.is_told else None)[1].load_balance


def padding_counts_in_the_balance(is_repaired: bool) -> Case:
    experts = nn.MixtureOfExperts.init(Embed, Experts, Mlp, 2, key=keys(1)[0])
    return Case(Balance(experts, is_repaired), (draw(Batch, Pos, Embed), REAL), {"where": REAL})


class Loss(eqx.Module):
    """The squared error of a linear model."""

    model: nn.Linear
    counts_all: bool = eqx.field(static=True)

    def __call__(self, x: NamedArray, y: NamedArray, where: NamedArray) -> NamedArray:
        errors = axn.where(where, axn.square(self.model(x) - y).sum("embed.out"), 0)
        return errors.mean() if self.counts_all else errors.sum() / where.sum()


class Training(eqx.Module):
    """A model with its loss."""

    loss: Loss

    def __call__(self, *args: NamedArray) -> NamedArray:
        return self.loss(*args)


def loss_averaged_over_padding(is_repaired: bool) -> Case:
    model = draw_like(nn.Linear.init(Embed, Embed.alias("embed.out"), key=keys(1)[0]))
    present = axn.named(np.arange(8) % 3 > 0, Batch)
    x, y = draw(Batch, Embed), draw(Batch, Embed.alias("embed.out"), seed=1)
    return Case(Training(Loss(model, not is_repaired)), (x, y, present), {"where": present})


class Pool(eqx.Module):
    """One vector for a sequence."""

    is_told: bool = eqx.field(static=True)

    def __call__(self, x: NamedArray, real: NamedArray) -> NamedArray:
        return x.mean("pos", where=real) if self.is_told else x.mean("pos")


class Classifier(eqx.Module):
    """Embed, pool, classify."""

    embedding: nn.Embedding
    pool: Pool
    head: nn.Linear

    def __call__(self, tokens: NamedArray, real: NamedArray) -> NamedArray:
        return self.head(self.pool(self.embedding(tokens), real))


def padding_in_a_pool(is_repaired: bool) -> Case:
    k = keys(2)
    model = Classifier(
        nn.Embedding.init(Vocab, Embed, key=k[0]), Pool(is_repaired), nn.Linear.init(Embed, Experts, key=k[1])
    )
    return Case(model, (draw_tokens(Batch, Pos), REAL), {"where": REAL})


def squared(model: nn.Linear, x: NamedArray) -> NamedArray:
    return axn.square(model(x)).sum()


def regression() -> tuple[nn.Linear, NamedArray]:
    return draw_like(nn.Linear.init(Embed, Mlp, key=keys(1)[0])), draw(Batch, Embed)


class Step(eqx.Module):
    """The gradient of a sum over a batch that devices share, reduced by hand."""

    model: nn.Linear
    sums: int = eqx.field(static=True)

    def __call__(self, x: NamedArray) -> dict[str, nn.Linear]:
        def local(model: nn.Linear, x: NamedArray) -> nn.Linear:
            gradient = jax.grad(lambda model: squared(model, x).scalar())(model)
            for _ in range(self.sums):
                gradient = axn.psum(gradient, "data")
            return gradient

        # Without the check, gradients of what is replicated are not summed by themselves.
        return {"model": axn.shard_map(local, MAPPING, check=False)(self.model, x)}


def gradient_summed_twice(is_repaired: bool) -> Case:
    model, x = regression()
    return Case(Step(model, 1 if is_repaired else 2), (x,), {"mappings": [MAPPING]})


def gradient_not_summed(is_repaired: bool) -> Case:
    model, x = regression()
    return Case(Step(model, 1 if is_repaired else 0), (x,), {"mappings": [MAPPING]})


class LocalLoss(eqx.Module):
    """A masked mean, of which each device has a part."""

    is_local: bool = eqx.field(static=True)

    def __call__(self, errors: NamedArray, real: NamedArray) -> NamedArray:
        def local(errors: NamedArray, real: NamedArray) -> NamedArray:
            total, count = axn.where(real, errors, 0).sum(), real.sum().astype(jnp.float32)
            if self.is_local:
                return axn.pmean(total / axn.maximum(count, 1), "data")
            return axn.psum(total, "data") / axn.psum(count, "data")

        return axn.shard_map(local, MAPPING)(errors, real)


class Sharded(eqx.Module):
    """A model with a loss that devices share."""

    model: nn.Linear
    loss: LocalLoss

    def __call__(self, x: NamedArray, real: NamedArray) -> NamedArray:
        return self.loss(axn.square(self.model(x)).sum("mlp"), real)


def mean_of_local_means(is_repaired: bool) -> Case:
    model, x = regression()
    real = axn.named(np.array([1, 0, 0, 0, 1, 1, 1, 0], bool), Batch)
    return Case(Sharded(model, LocalLoss(not is_repaired)), (x, real), {"mappings": [MAPPING]})


class Dropped(eqx.Module):
    """Dropout, on each device by itself or on the whole batch."""

    is_local: bool = eqx.field(static=True)

    def __call__(self, x: NamedArray, *, key: jax.Array) -> NamedArray:
        drop = functools.partial(nn.Dropout(0.5), key=key)
        return axn.shard_map(drop, MAPPING)(x) if self.is_local else drop(x)


class Noisy(eqx.Module):
    """A linear layer behind dropout."""

    dropout: eqx.Module
    proj: nn.Linear

    def __call__(self, x: NamedArray, key: jax.Array) -> NamedArray:
        return self.proj(self.dropout(x, key=key))


def dropout_that_repeats_on_devices(is_repaired: bool) -> Case:
    model, x = regression()
    return Case(Noisy(Dropped(not is_repaired), model), (x, keys(2)[1]), {"mappings": [MAPPING]})


class ByExample(eqx.Module):
    """Dropout that is mapped over the examples."""

    drop: nn.Dropout
    is_split: bool = eqx.field(static=True)

    def __call__(self, x: NamedArray, *, key: jax.Array) -> NamedArray:
        if not self.is_split:
            return axn.vmap(lambda x: self.drop(x, key=key), Batch)(x)
        own = axn.named(jax.random.split(key, Batch.size), Batch)
        return axn.vmap(lambda x, key: self.drop(x, key=key), Batch)(x, own)


def key_shared_by_examples(is_repaired: bool) -> Case:
    model, x = regression()
    return Case(Noisy(ByExample(nn.Dropout(0.5), is_repaired), model), (x, keys(2)[1]))


class ByHalves(eqx.Module):
    """Dropout with one mask for both halves of a batch."""

    is_shared: bool = eqx.field(static=True)

    def __call__(self, x: NamedArray, *, key: jax.Array) -> NamedArray:
        own = jax.random.split(key)
        halves = [x["batch", :4], x["batch", 4:]]
        dropped = [nn.Dropout(0.5)(half, key=own[0 if self.is_shared else i]) for i, half in enumerate(halves)]
        return axn.concatenate("batch", dropped)


def key_shared_by_halves(is_repaired: bool) -> Case:
    model, x = regression()
    return Case(Noisy(ByHalves(not is_repaired), model), (x, keys(2)[1]))


def gradient_clipped_on_each_device(is_repaired: bool) -> Case:
    def step(model: nn.Linear, x: NamedArray) -> dict[str, nn.Linear]:
        def local(model: nn.Linear, x: NamedArray) -> nn.Linear:
            own = jax.grad(lambda model: squared(model, x).scalar())(model)
            norm = optax.tree.norm(axn.psum(own, "data") if is_repaired else own)
            return axn.psum(jax.tree.map(lambda g: g / norm, own), "data")

        return {"step": axn.shard_map(local, MAPPING, check=False)(model, x)}

    return Case(step, regression(), {"mappings": [MAPPING]})


class Squares(eqx.Module):
    """A model with the mean of squares as its loss."""

    proj: nn.Linear

    def __call__(self, x: NamedArray) -> NamedArray:
        return axn.square(self.proj(x)).mean()


def heads_merged_in_a_matrix(is_repaired: bool) -> Case:
    layer = draw_like(nn.Linear.init(Embed, (KVHeads, HeadDim), use_bias=False, key=keys(1)[0]))
    optimizer = optax.adam(0.1) if is_repaired else optax.contrib.muon(0.1)
    merged = {"features": ("kv_heads", "head_dim")}
    return Case(Squares(layer), (draw(Batch, Embed),), {"optimizer": optimizer, "merged": merged})


class Deep(eqx.Module):
    """Stacked layers."""

    blocks: nn.Stacked[nn.MLP]

    def __call__(self, x: NamedArray) -> NamedArray:
        return axn.square(self.blocks.fold(x)).mean()


def biases_of_a_stack_as_a_matrix(is_repaired: bool) -> Case:
    blocks = nn.Stacked.init(Layers, lambda *, key: nn.MLP.init(Embed, Embed, Mlp, 1, key=key))(key=keys(1)[0])
    make = axn.optim.muon if is_repaired else optax.contrib.muon
    return Case(Deep(draw_like(blocks)), (draw(Batch, Embed),), {"optimizer": make(0.1)})


class Positioned(eqx.Module):
    """Tokens with absolute positions, which a cache counts."""

    embedding: nn.Embedding
    positions: nn.PositionEmbedding
    first: int = eqx.field(static=True)

    def __call__(self, tokens: NamedArray) -> NamedArray:
        y = self.embedding(tokens) + self.positions(axn.arange(tokens.resolve_axis("pos")))
        return axn.cumsum(y, "pos")

    def extend(self, cache: tuple[NamedArray, NamedArray], token: NamedArray) -> tuple[Any, NamedArray]:
        total, count = cache
        total = total + self.embedding(token) + self.positions(count + self.first)
        return (total, count + 1), total


def cache_off_by_one(is_repaired: bool) -> Case:
    k = keys(2)
    model = Positioned(
        nn.Embedding.init(Vocab, Embed, key=k[0]),
        nn.PositionEmbedding.init(Pos.resize(10), Embed, key=k[1]),
        0 if is_repaired else 1,
    )
    empty = axn.zeros((Batch, Embed)), axn.named(0, ())
    return Case(model, (draw_tokens(Batch, Pos),), {"step": model.extend, "cache": empty})


class LeftPadded(eqx.Module):
    """Tokens behind padding, at absolute positions."""

    embedding: nn.Embedding
    positions: nn.PositionEmbedding
    is_told: bool = eqx.field(static=True)

    def __call__(self, tokens: NamedArray, real: NamedArray) -> NamedArray:
        at = axn.arange(tokens.resolve_axis("pos")).broadcast_axis(Batch)
        if self.is_told:
            at = axn.maximum(axn.cumsum(real.astype(jnp.int32), "pos") - 1, 0)
        y = axn.where(real, self.embedding(tokens) + self.positions(at), 0)
        return axn.cumsum(y, "pos")


def left_padding_with_absolute_positions(is_repaired: bool) -> Case:
    k = keys(2)
    model = LeftPadded(
        nn.Embedding.init(Vocab, Embed, key=k[0]), nn.PositionEmbedding.init(Pos, Embed, key=k[1]), is_repaired
    )
    real = axn.arange(Pos).broadcast_axis(Batch) >= 2
    return Case(model, (draw_tokens(Batch, Pos), real), {"where": real, "is_absent": True})


class Grouped(eqx.Module):
    """Attention with groups of query heads that share keys and values, in which heads are flat."""

    query: nn.Linear
    keys: nn.Linear
    is_tiled: bool = eqx.field(static=True)

    def __call__(self, x: NamedArray) -> NamedArray:
        query = self.query(x).flatten_axes(("kv_heads", "group"), "heads")
        shared = self.keys(x).rename({"kv_heads": "heads", "pos": "pos.key"})
        count = Group.size
        shared = axn.tile(shared, {"heads": count}) if self.is_tiled else axn.repeat(shared, count, "heads")
        weights = axn.softmax(axn.dot(query, shared, axis="head_dim"), "pos.key")
        return axn.dot(weights, shared, axis="pos.key").sum("heads")


class Attending(eqx.Module):
    """A layer of attention."""

    attention: Grouped

    def __call__(self, x: NamedArray) -> NamedArray:
        return self.attention(x)


def heads_repeated_in_the_wrong_order(is_repaired: bool) -> Case:
    k = keys(2)
    query = nn.Linear.init(Embed, (KVHeads, Group, HeadDim), key=k[0])
    shared = nn.Linear.init(Embed, (KVHeads, HeadDim), key=k[1])
    return Case(Attending(draw_like(Grouped(query, shared, not is_repaired))), (draw(Batch, Pos, Embed),))


FAULTS = {
    "future by a mean": Fault("causal", "pos", "blocks.1.mixer", future_by_a_mean, "karpathy/nanochat 844"),
    "future by a window": Fault("causal", "pos", "blocks.1.mixer", future_by_a_window, "transformers 48745"),
    "future by a mask of the wrong name": Fault(
        "causal", "pos", "blocks.1.mixer.attention", future_by_a_mask_of_the_wrong_name, "transformers 48770"
    ),
    "future by a norm over positions": Fault(
        "causal", "pos", "blocks.1.norm", future_by_a_norm_over_positions, "HomebrewML/Olmax 78"
    ),
    "examples mixed by batch norm": Fault(
        "independent", "batch", "blocks.1.norm.of_batch", examples_mixed_by_batch_norm, "jax 34080"
    ),
    "examples mixed by a softmax": Fault(
        "independent", "batch", "blocks.1.mixer", examples_mixed_by_a_softmax, "vllm 45683"
    ),
    "examples mixed by capacity": Fault(
        "independent", "batch", "blocks.1.mixer.experts", examples_mixed_by_capacity, "vllm 32480"
    ),
    "padding takes capacity": Fault("ignores", "pos", "routed.experts", padding_takes_capacity, "Megatron-LM 5542"),
    "padding counts in the balance": Fault(
        "ignores", "pos", "experts", padding_counts_in_the_balance, "torchtitan 4594, Megatron-LM 4776"
    ),
    "loss averaged over padding": Fault(
        "mean_over", "batch", "loss", loss_averaged_over_padding, "transformers, gradient accumulation of 2024"
    ),
    "padding in a pool": Fault("ignores", "pos", "pool", padding_in_a_pool, "Megatron-LM 2121"),
    "gradient summed twice": Fault("same_layouts", "batch", "model", gradient_summed_twice, "Megatron-LM 7452"),
    "gradient not summed": Fault("same_layouts", "batch", "model", gradient_not_summed, "torchtitan 4054, marin"),
    "mean of local means": Fault("same_layouts", "batch", "loss", mean_of_local_means, "torchtitan 4054"),
    "dropout that repeats on devices": Fault(
        "same_layouts", "batch", "dropout", dropout_that_repeats_on_devices, "Megatron-LM 6080"
    ),
    "key shared by examples": Fault("independent", "batch", "dropout.drop", key_shared_by_examples, "jax, vmap"),
    "key shared by halves": Fault("independent", "batch", "dropout", key_shared_by_halves, "pytorch, worker seeds"),
    "gradient clipped on each device": Fault(
        "same_layouts", "batch", "0", gradient_clipped_on_each_device, "clipping before the reduction"
    ),
    "heads merged in a matrix": Fault(
        "same_storage", "features", "proj", heads_merged_in_a_matrix, "Muon of fused projections"
    ),
    "biases of a stack as a matrix": Fault(
        "same_storage", "layers", "blocks", biases_of_a_stack_as_a_matrix, "goodfire-ai/spd 982, flax 5112"
    ),
    "cache off by one": Fault("causal", "pos", "positions", cache_off_by_one, "vllm 48040"),
    "left padding with absolute positions": Fault(
        "ignores", "pos", "positions", left_padding_with_absolute_positions, "transformers, generation of batches"
    ),
    "heads repeated in the wrong order": Fault(
        "invariant", "kv_heads", "attention", heads_repeated_in_the_wrong_order, "transformers, grouped heads"
    ),
}
