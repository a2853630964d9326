"""A mixture of experts: tokens sorted by expert, ragged products, and the way back."""

from dataclasses import dataclass

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax.numpy as jnp
import jax.random as jrandom
from haliax import Axis, NamedArray
from haliax.jax_utils import maybe_rng_split, named_call


@dataclass(frozen=True)
class MixtureConfig:
    hidden_dim: int = 8
    intermediate_dim: int = 12
    n_routed_experts: int = 4
    num_experts_per_tok: int = 2

    Embed = property(lambda self: Axis("embed", self.hidden_dim))
    Mlp = property(lambda self: Axis("mlp", self.intermediate_dim))
    Experts = property(lambda self: Axis("experts", self.n_routed_experts))
    TopExperts = property(lambda self: Axis("top_experts", self.num_experts_per_tok))


class Experts(eqx.Module):
    gate_proj: hnn.MoELinear
    up_proj: hnn.MoELinear
    down_proj: hnn.MoELinear

    @staticmethod
    def init(config: MixtureConfig, *, key) -> "Experts":
        k1, k2, k3 = jrandom.split(key, 3)
        E, D, M = config.Experts, config.Embed, config.Mlp
        return Experts(
            hnn.MoELinear.init(Experts=E, Out=M, In=D, key=k1, use_bias=False),
            hnn.MoELinear.init(Experts=E, Out=M, In=D, key=k2, use_bias=False, out_first=True),
            hnn.MoELinear.init(Experts=E, Out=D, In=M, key=k3, use_bias=False, use_gmm=False),
        )

    @named_call
    def __call__(self, x: NamedArray, group_sizes: NamedArray, *, key=None) -> NamedArray:
        k1, k2, k3 = maybe_rng_split(key, 3)
        hidden = hnn.silu(self.gate_proj(x, group_sizes, key=k1))
        hidden = hidden * self.up_proj(x, group_sizes, key=k2)
        return self.down_proj(hidden, group_sizes, key=k3)


class SparseMoeBlock(eqx.Module):
    config: MixtureConfig = eqx.field(static=True)
    gate: hnn.Linear
    experts: Experts

    @staticmethod
    def init(config: MixtureConfig, *, key) -> "SparseMoeBlock":
        k_gate, k_experts = jrandom.split(key, 2)
        gate = hnn.Linear.init(config.Embed, config.Experts, key=k_gate, use_bias=False)
        return SparseMoeBlock(config, gate, Experts.init(config, key=k_experts))

    def route(self, router_probs: NamedArray) -> tuple[NamedArray, NamedArray]:
        weights, chosen = hax.top_k(
            router_probs, self.config.Experts, self.config.num_experts_per_tok, self.config.TopExperts
        )
        weights /= weights.sum(self.config.TopExperts)
        return weights, chosen

    def permute(self, x_flat: NamedArray, chosen: NamedArray, Token: Axis):
        chosen_flat = hax.flatten_axes(chosen, old_axes=[Token, self.config.TopExperts], new_axis="token_repeat")
        sort_idx = hax.argsort(chosen_flat, axis="token_repeat")
        x_repeated = x_flat.take(Token, hax.floor_divide(sort_idx, self.config.num_experts_per_tok))
        group_sizes = hax.bincount(chosen_flat, self.config.Experts)
        return x_repeated, group_sizes, sort_idx

    def unpermute(self, out: NamedArray, sort_idx: NamedArray, weights: NamedArray, Token: Axis) -> NamedArray:
        inverse = hax.argsort(sort_idx, axis="token_repeat")
        out = hax.take(out, "token_repeat", inverse)
        out = hax.unflatten_axis(out, axis="token_repeat", new_axes=(Token, self.config.TopExperts))
        return out.dot(weights, axis=self.config.TopExperts)

    @named_call
    def __call__(self, x: NamedArray, *, key=None) -> tuple[NamedArray, dict[str, NamedArray]]:
        k_gate, k_experts = maybe_rng_split(key, 2)
        squash_axes = [ax for ax in x.axes if ax.name != self.config.Embed.name]
        x_flat = hax.flatten_axes(x, old_axes=squash_axes, new_axis="token")
        Token = x_flat.resolve_axis("token")

        router_logits = self.gate(x_flat, key=k_gate)
        router_probs = hnn.softmax(router_logits, axis=self.config.Experts)
        weights, chosen = self.route(router_probs)
        x_repeated, group_sizes, sort_idx = self.permute(x_flat, chosen, Token)
        out = self.experts(x_repeated, group_sizes, key=k_experts)
        out = self.unpermute(out, sort_idx, weights, Token)

        load = group_sizes / hax.sum(group_sizes).scalar()
        extras = {
            "load": load,
            "balance": hax.sum(load * hax.mean(router_probs, Token)) * self.config.n_routed_experts,
            "z": hax.mean(hax.square(hnn.logsumexp(router_logits, self.config.Experts)), Token),
        }
        return hax.unflatten_axis(out, "token", squash_axes), extras


def loss_fn(model: SparseMoeBlock, x: NamedArray, y: NamedArray):
    out, extras = model(x)
    error = hax.mean(hax.square(x + out - y)).scalar()
    return error + 0.01 * extras["balance"].scalar() + 1e-3 * extras["z"].scalar()


def combine_by_scatter(values: NamedArray, Token: Axis, owner: NamedArray) -> NamedArray:
    """Add rows of `values` to the token that each belongs to, as another way home."""
    Embed = values.resolve_axis("embed")
    return hax.zeros((Token, Embed), dtype=jnp.float32).at[Token, owner].add(values)
