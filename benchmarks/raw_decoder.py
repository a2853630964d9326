"""A Llama in plain JAX, as one writes it by hand: what examples/lm's is measured against.

Dicts, einsum and scan. Generation has keys and values of all layers in two arrays, which each token is written into;
training, the loss of whole rows.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from raw_gpt2 import softmax

Params = dict[str, Any]


def rms_norm(x: Array, weight: Array) -> Array:
    x32 = x.astype(jnp.float32)
    return (x32 * lax.rsqrt(jnp.square(x32).mean(-1, keepdims=True) + 1e-5)).astype(x.dtype) * weight


def rotate(x: Array, at: Array) -> Array:
    """Rotate (batch, pos, ..., head_dim) by positions (pos,)."""
    half = x.shape[-1] // 2
    angles = at[:, None] * 10000.0 ** (-jnp.arange(half) / half)
    shape = (1, at.shape[0], *(1,) * (x.ndim - 3), half)
    cos, sin = jnp.cos(angles).reshape(shape), jnp.sin(angles).reshape(shape)
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1).astype(x.dtype)


def block(p: Params, x: Array, keys: Array, values: Array, start: Array) -> tuple[Array, Array, Array]:
    """Apply a block to (batch, pos, embed), whose positions begin at `start`, and extend its cache."""
    at = start + jnp.arange(x.shape[1])
    h = rms_norm(x, p["attention_norm"])
    q = rotate(jnp.einsum("bse,ekgd->bskgd", h, p["query"]), at)
    k = rotate(jnp.einsum("bse,ekd->bskd", h, p["key"]), at)
    v = jnp.einsum("bse,ekd->bskd", h, p["value"])
    keys = lax.dynamic_update_slice(keys, k, (0, start, 0, 0))
    values = lax.dynamic_update_slice(values, v, (0, start, 0, 0))
    scores = jnp.einsum("bskgd,btkd->bkgst", q * q.shape[-1] ** -0.5, keys).astype(jnp.float32)
    seen = jnp.arange(keys.shape[1]) <= at[:, None]
    weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf)).astype(x.dtype)
    h = jnp.einsum("bkgst,btkd->bskgd", weights, values)
    x = x + jnp.einsum("bskgd,kgde->bse", h, p["out"])
    h = rms_norm(x, p["mlp_norm"])
    h = jax.nn.silu(jnp.einsum("bse,em->bsm", h, p["gate"])) * jnp.einsum("bse,em->bsm", h, p["up"])
    return x + jnp.einsum("bsm,me->bse", h, p["down"]), keys, values


def extend(params: Params, tokens: Array, cache: tuple[Array, Array], start: Array) -> tuple[Array, Any]:
    """Add tokens (batch, pos) to the cache, and score what follows the last of them."""

    def layer(x: Array, each: Any) -> Any:
        p, keys, values = each
        x, keys, values = block(p, x, keys, values, start)
        return x, (keys, values)

    x, cache = lax.scan(layer, params["embedding"][tokens], (params["blocks"], *cache))
    last = rms_norm(x[:, -1], params["norm"])
    return jnp.einsum("be,ve->bv", last, params["unembedding"]).astype(jnp.float32), cache


def generate(params: Params, prompt: Array, new: int, places: int) -> Array:
    """Continue prompts (batch, pos) greedily; returns (new, batch)."""
    layers, _, kv_heads, head_dim = params["blocks"]["key"].shape
    shape = (layers, prompt.shape[0], places, kv_heads, head_dim)
    cache = jnp.zeros(shape, params["embedding"].dtype), jnp.zeros(shape, params["embedding"].dtype)
    scores, cache = extend(params, prompt, cache, jnp.int32(0))
    first = scores.argmax(-1).astype(jnp.int32)

    def step(carry: Any, i: Array) -> Any:
        token, cache = carry
        scores, cache = extend(params, token[:, None], cache, prompt.shape[1] + i)
        following = scores.argmax(-1).astype(jnp.int32)
        return (following, cache), token

    _, tokens = lax.scan(step, (first, cache), jnp.arange(new))
    return tokens


def train_block(p: Params, x: Array, recompute: bool) -> Array:
    """Apply a block to whole rows (batch, pos, embed)."""
    norm, act, weigh = rms_norm, jax.nn.silu, jax.nn.softmax
    if recompute:
        norm, act, weigh = jax.checkpoint(rms_norm), jax.checkpoint(jax.nn.silu), softmax
    at = jnp.arange(x.shape[1])
    h = norm(x, p["attention_norm"])
    q = rotate(jnp.einsum("bse,ekgd->bskgd", h, p["query"]), at)
    k = rotate(jnp.einsum("bse,ekd->bskd", h, p["key"]), at)
    v = jnp.einsum("bse,ekd->bskd", h, p["value"])
    scores = jnp.einsum("bskgd,btkd->bkgst", q * q.shape[-1] ** -0.5, k).astype(jnp.float32)
    weights = weigh(jnp.where(at <= at[:, None], scores, -jnp.inf)).astype(x.dtype)
    x = x + jnp.einsum("bskgd,kgde->bse", jnp.einsum("bkgst,btkd->bskgd", weights, v), p["out"])
    h = norm(x, p["mlp_norm"])
    h = act(jnp.einsum("bse,em->bsm", h, p["gate"])) * jnp.einsum("bse,em->bsm", h, p["up"])
    return x + jnp.einsum("bsm,me->bse", h, p["down"])


def loss(params: Params, tokens: Array, *, remat: bool = False, recompute: bool = False) -> Array:
    """Return the mean cross entropy, in nats, of tokens[:, 1:] given tokens[:, :-1].

    Args:
        params: of the model.
        tokens: axes (batch, pos + 1).
        remat: keep for the backward pass the inputs of blocks alone.
        recompute: keep for it the inputs of norms and silu and the results of softmax, and nothing else of them, and no
            scores of tokens.
    """

    def layer(x: Array, p: Params) -> tuple[Array, None]:
        return train_block(p, x, recompute), None

    def compare(x: Array, table: Array) -> Array:
        logits = jnp.einsum("bse,ve->bsv", x, table).astype(jnp.float32)
        picked = jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1)[..., 0]
        return (jax.nn.logsumexp(logits, axis=-1) - picked).mean()

    if remat:
        layer = jax.checkpoint(layer, policy=jax.checkpoint_policies.nothing_saveable, prevent_cse=False)
    if recompute:
        compare = jax.checkpoint(compare)
    x, _ = lax.scan(layer, params["embedding"][tokens[:, :-1]], params["blocks"])
    return compare(rms_norm(x, params["norm"]), params["unembedding"])
