"""A model whose attention is kept in three layers, and saved as one, as the torch model has it."""

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax
import jax.numpy as jnp
import jax.random as jrandom
import numpy as np
from haliax import NamedArray
from haliax.nn.scan import BlockSeq, Stacked
from haliax.state_dict import ModuleWithStateDictSerialization, StateDict, with_prefix

Embed, Vocab, Pos, Layers, Heads, HeadSize = hax.make_axes(
    embed=8, vocab=16, position=4, layers=2, heads=2, head_size=4
)


class Attention(ModuleWithStateDictSerialization):
    q: hnn.Linear
    k: hnn.Linear
    v: hnn.Linear
    dense: hnn.Linear

    @staticmethod
    def init(*, key) -> "Attention":
        *keys, k_dense = jrandom.split(key, 4)
        qkv = [hnn.Linear.init(Embed, (Heads, HeadSize), key=k) for k in keys]
        return Attention(*qkv, hnn.Linear.init((Heads, HeadSize), Embed, key=k_dense))

    def __call__(self, x: NamedArray) -> NamedArray:
        k, v = (layer(x).rename({"position": "key_position"}) for layer in (self.k, self.v))
        return self.dense(hnn.attention.dot_product_attention("key_position", HeadSize, self.q(x), k, v))

    def to_state_dict(self, prefix: str | None = None) -> StateDict:
        state_dict = super().to_state_dict(prefix)
        for name, axis in (("weight", -2), ("bias", -1)):
            parts = [state_dict.pop(with_prefix(prefix, f"{part}.{name}")) for part in "qkv"]
            state_dict[with_prefix(prefix, f"query_key_value.{name}")] = np.concatenate(parts, axis)
        return state_dict

    def from_state_dict(self, state_dict: StateDict, prefix: str | None = None) -> "Attention":
        state_dict = dict(state_dict)
        for name, axis in (("weight", -2), ("bias", -1)):
            fused = state_dict.pop(with_prefix(prefix, f"query_key_value.{name}"))
            for part, value in zip("qkv", np.split(fused, 3, axis), strict=True):
                state_dict[with_prefix(prefix, f"{part}.{name}")] = value
        return super().from_state_dict(state_dict, prefix)


class Block(ModuleWithStateDictSerialization):
    attention: Attention
    norm: hnn.LayerNorm
    frequencies: jax.Array
    gate: NamedArray
    unused: NamedArray | None = None

    @staticmethod
    def init(*, key) -> "Block":
        return Block(Attention.init(key=key), hnn.LayerNorm.init(Embed), jnp.arange(4.0), hax.ones(()))

    def _state_dict_key_map(self) -> dict[str, str | None]:
        return {"norm": "input_layernorm", "frequencies": "attention.rotary_emb.inv_freq"}

    def __call__(self, x: NamedArray) -> NamedArray:
        return x + self.gate * self.attention(self.norm(x))


class Head(eqx.Module):
    projection: hnn.Linear
    norm: hnn.RmsNorm
    scales: dict[str, jax.Array]


class Model(ModuleWithStateDictSerialization):
    embedding: hnn.Embedding
    layers: Stacked[Block] | BlockSeq[Block]
    head: Head

    @staticmethod
    def init(kind: type, *, key) -> "Model":
        k_embedding, k_layers, k_head = jrandom.split(key, 3)
        reparam = hnn.Linear.output_reparam(use_mup=True)
        projection = hnn.Linear.init(Embed, Vocab, key=k_head, use_bias=False, reparam_cls=reparam)
        return Model(
            hnn.Embedding.init(Vocab, Embed, key=k_embedding),
            kind.init(Layers, Block)(key=jrandom.split(k_layers, Layers.size)),
            Head(projection, hnn.RmsNorm.init(Embed, use_bias=False), {"logit": jnp.ones(())}),
        )

    def __call__(self, ids: NamedArray) -> NamedArray:
        x = self.layers.fold(self.embedding(ids))
        return self.head.projection(self.head.norm(x)) * self.head.scales["logit"]

    def _state_dict_key_map(self) -> dict[str, str | None]:
        return {"embedding": "embed_in", "head": None}

    def to_state_dict(self, prefix: str | None = None) -> StateDict:
        state_dict = super().to_state_dict(prefix)
        state_dict[with_prefix(prefix, "lm_head.weight")] = state_dict.pop(with_prefix(prefix, "projection.weight"))
        return state_dict

    def from_state_dict(self, state_dict: StateDict, prefix: str | None = None) -> "Model":
        state_dict = dict(state_dict)
        state_dict[with_prefix(prefix, "projection.weight")] = state_dict.pop(with_prefix(prefix, "lm_head.weight"))
        return super().from_state_dict(state_dict, prefix=prefix)
