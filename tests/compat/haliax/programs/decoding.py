"""Text from a small decoder, token by token, with a cache of keys and values per layer."""

import dataclasses

import equinox as eqx
import haliax as hax
import haliax.haxtyping as ht
import haliax.nn as hnn
import jax
import jax.numpy as jnp
import jax.random as jrandom
from haliax import Axis, NamedArray
from jax import lax

Embed, Vocab, Pos, Layers, Heads, HeadSize = hax.make_axes(
    embed=8, vocab=16, position=7, layers=2, kv_heads=2, head_size=4
)
KeyPos = Pos.alias("key_position")


class KvCache(eqx.Module):
    k: NamedArray
    v: NamedArray
    length: ht.i32[NamedArray, "batch"]

    @staticmethod
    def init(Batch: Axis, KeyPos: Axis) -> "KvCache":
        empty = hax.zeros((Batch, KeyPos, Heads, HeadSize))
        return KvCache(empty, empty, hax.zeros(Batch, dtype=jnp.int32))

    def prefill(self, k: NamedArray, v: NamedArray) -> "KvCache":
        start = {"key_position": 0}
        length = self.length + k.axis_size("key_position")
        return dataclasses.replace(
            self, k=self.k.updated_slice(start, k), v=self.v.updated_slice(start, v), length=length
        )

    def append(self, k: NamedArray, v: NamedArray) -> "KvCache":
        (Batch,) = self.length.axes
        here = {"batch": hax.arange(Batch), "key_position": self.length}
        return KvCache(self.k.at[here].set(k), self.v.at[here].set(v), self.length + 1)


def rotary(x: NamedArray, position: NamedArray) -> NamedArray:
    Half = HeadSize.resize(HeadSize.size // 2)
    frequency = 1.0 / 10000.0 ** (hax.arange(Half).astype(jnp.float32) / Half.size)
    angle = hax.dot(position.astype(jnp.float32), frequency, axis=())
    cos, sin = hax.cos(angle), hax.sin(angle)
    a, b = x["head_size", : Half.size], x["head_size", Half.size :]
    return hax.concatenate("head_size", [a * cos - b * sin, b * cos + a * sin])


class Attention(eqx.Module):
    q: hnn.Linear
    k: hnn.Linear
    v: hnn.Linear
    o: hnn.Linear

    @staticmethod
    def init(*, key) -> "Attention":
        *keys, k_o = jrandom.split(key, 4)
        qkv = (hnn.Linear.init(Embed, (Heads, HeadSize), key=k, use_bias=False) for k in keys)
        return Attention(*qkv, hnn.Linear.init((Heads, HeadSize), Embed, key=k_o, out_first=False))

    def project(self, x: NamedArray, position: NamedArray) -> tuple[NamedArray, NamedArray, NamedArray]:
        return rotary(self.q(x), position), rotary(self.k(x), position), self.v(x)

    def __call__(self, x: NamedArray) -> tuple[NamedArray, tuple[NamedArray, NamedArray]]:
        Here = x.resolve_axis("position")
        q, k, v = self.project(x, hax.arange(Here))
        k, v = (t.rename({"position": "key_position"}) for t in (k, v))
        mask = hnn.attention.causal_mask(Here, k.resolve_axis("key_position"))
        return self.o(hnn.attention.dot_product_attention("key_position", HeadSize, q, k, v, mask=mask)), (k, v)

    def decode(self, x: NamedArray, cache: KvCache) -> tuple[NamedArray, KvCache]:
        q, k, v = self.project(x, cache.length)
        seen = hax.arange(KeyPos).broadcast_axis(cache.length.axes) <= cache.length
        cache = cache.append(k, v)
        y = hnn.attention.dot_product_attention(KeyPos, HeadSize, q, cache.k, cache.v, mask=seen)
        return self.o(y), cache


class Layer(eqx.Module):
    norm: hnn.RmsNorm
    attention: Attention

    @staticmethod
    def init(*, key) -> "Layer":
        return Layer(hnn.RmsNorm.init(Embed, use_bias=False), Attention.init(key=key))

    def __call__(self, x: NamedArray) -> NamedArray:
        return x + self.attention(self.norm(x))[0]

    def prefill(self, x: NamedArray, cache: KvCache) -> tuple[NamedArray, KvCache]:
        y, kv = self.attention(self.norm(x))
        return x + y, cache.prefill(*kv)

    def decode(self, x: NamedArray, cache: KvCache) -> tuple[NamedArray, KvCache]:
        y, cache = self.attention.decode(self.norm(x), cache)
        return x + y, cache


class LanguageModel(eqx.Module):
    embedding: hnn.Embedding
    layers: hnn.Stacked[Layer]

    @staticmethod
    def init(*, key) -> "LanguageModel":
        k_embedding, k_layers = jrandom.split(key)
        layers = hnn.Stacked.init(Layers, Layer)(key=jrandom.split(k_layers, Layers.size))
        return LanguageModel(hnn.Embedding.init(Vocab, Embed, key=k_embedding, initializer_range=0.5), layers)

    def __call__(self, ids: NamedArray) -> NamedArray:
        return self.embedding.unembed(self.layers.fold(self.embedding(ids)))

    def prefill(self, ids: NamedArray, cache: KvCache) -> tuple[NamedArray, KvCache]:
        x, cache = self.layers.scan_via(Layer.prefill)(self.embedding(ids), cache)
        return self.embedding.unembed(x["position", -1]), cache

    def decode(self, token: NamedArray, cache: KvCache) -> tuple[NamedArray, KvCache]:
        x, cache = self.layers.scan_via(Layer.decode)(self.embedding(token), cache)
        return self.embedding.unembed(x), cache


class Sampler(eqx.Module):
    Vocab: Axis = eqx.field(static=True)

    def __call__(self, logits: NamedArray, temperature: NamedArray, *, key) -> tuple[NamedArray, NamedArray]:
        scaled = (logits / hax.where(temperature > 0, temperature, 1.0)).astype(jnp.float32)
        drawn = hax.random.categorical(key, scaled, self.Vocab)
        token = hax.where(temperature == 0, hax.argmax(logits, self.Vocab), drawn)
        return token, hax.take(hnn.log_softmax(scaled, self.Vocab), self.Vocab, token)


class State(eqx.Module):
    cache: KvCache
    ids: NamedArray
    log_probs: NamedArray
    finished: NamedArray
    step: jax.Array


def generate(model: LanguageModel, prompt: NamedArray, temperature: NamedArray, eos: int, *, key) -> State:
    Batch, length = prompt.resolve_axis("batch"), prompt.axis_size("position")
    sampler = Sampler(Vocab)
    cache = hax.auto_sharded(hax.vmap(KvCache.init, Layers)(Batch, KeyPos))
    logits, cache = model.prefill(prompt, cache)
    token, log_prob = sampler(logits, temperature, key=key)
    ids = hax.full((Batch, Pos), -1, dtype=jnp.int32).updated_slice({"position": 0}, prompt)
    state = State(
        cache,
        ids.at["position", length].set(token),
        hax.zeros((Batch, Pos)).at["position", length].set(log_prob),
        token == eos,
        jnp.array(length),
    )

    def go_on(state: State):
        return (state.step < Pos.size - 1) & ~hax.all(state.finished).scalar()

    def one(state: State) -> State:
        logits, cache = model.decode(state.ids["position", state.step], state.cache)
        token, log_prob = sampler(logits, temperature, key=jrandom.fold_in(key, state.step))
        token = hax.where(state.finished, eos, token)
        step = state.step + 1
        log_probs = state.log_probs.at[{"position": step}].set(log_prob)
        return State(cache, state.ids.at["position", step].set(token), log_probs, state.finished | (token == eos), step)

    return lax.while_loop(go_on, one, state)
