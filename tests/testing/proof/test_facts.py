"""Masks made of positions: what is proven causal is so, and what is not causal is not proven."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import axonym as axn
from axonym.nn import causal, dot_product_attention, prefix, segments, window
from axonym.testing.proof.claims import Claim, check
from tests.testing.proof.dependence import compile_programs, refute, trace_call

N = 6
P, D = axn.make_axes(pos=N, dim=3)
Mask = Callable[[jax.Array, jax.Array], jax.Array]


def attend(scores: Callable[[jax.Array], jax.Array]) -> Any:
    """Return attention by scores that a function hides."""

    def call(x: axn.NamedArray) -> axn.NamedArray:
        hidden = scores(x.array @ x.array.T)
        return axn.NamedArray(jax.nn.softmax(hidden, -1) @ x.array, x.names)

    return call


def where(mask: Mask, lowest: float = -1e9) -> Any:
    """Return attention with a mask of positions of queries, in a column, and of keys, in a row."""

    def hide(scores: jax.Array) -> jax.Array:
        seen = mask(jnp.arange(N)[:, None], jnp.arange(N)[None])
        return jnp.where(seen, scores, lowest)

    return attend(hide)


def weigh(x: axn.NamedArray) -> axn.NamedArray:
    """Divide weights that are set to zero by their sum."""
    weights = jnp.tril(jnp.exp(x.array @ x.array.T))
    return axn.NamedArray(weights / weights.sum(-1, keepdims=True) @ x.array, x.names)


def named(mask: Any, **options: Any) -> Any:
    def call(x: axn.NamedArray) -> axn.NamedArray:
        key = x.rename({"pos": "key"})
        return dot_product_attention("pos", "key", "dim", x, key, key, mask, **options)

    return call


def round_off(positions: jax.Array) -> jax.Array:
    return jax.lax.reduce_precision(positions.astype(jnp.float32), 8, 1)


IDS = axn.named(np.array([0, 0, 1, 1, 1, 2]), P)
TRIL = np.tril(np.ones((N, N), bool))
# The attention, and whether it is proven causal.
MASKS: dict[str, tuple[Any, bool]] = {
    "causal": (where(lambda q, k: q >= k), True),
    "the other way round": (where(lambda q, k: k <= q), True),
    "not later": (where(lambda q, k: ~(k > q)), True),
    "minus infinity": (where(lambda q, k: q >= k, -np.inf), True),
    "off by one": (where(lambda q, k: q + 1 >= k), False),
    "anticausal": (where(lambda q, k: q <= k), False),
    "a window": (where(lambda q, k: (q >= k) & (q - k < 2)), True),
    "a window to both sides": (where(lambda q, k: jnp.abs(q - k) < 2), False),
    "not its own position": (where(lambda q, k: q > k), False),
    "a prefix": (where(lambda q, k: (q >= k) | (k < 2)), False),
    "not low enough": (where(lambda q, k: q >= k, -1.0), False),
    "an array": (attend(lambda s: jnp.where(jnp.asarray(TRIL), s, -1e9)), True),
    "the transposed array": (attend(lambda s: jnp.where(jnp.asarray(TRIL.T), s, -1e9)), False),
    "a bias": (attend(lambda s: s + jnp.where(jnp.asarray(TRIL), 0, -1e9)), True),
    "logarithms": (attend(lambda s: s + jnp.log(jnp.asarray(TRIL, jnp.float32))), False),
    "weights": (weigh, True),
    "few keys": (where(lambda q, k: (q >= k) & (k % 2 == 1)), False),
    # Of these numbers, the fourth and the fifth are the same in two bits.
    "rounded positions": (where(lambda q, k: round_off(q) >= round_off(k)), False),
    "names": (named(causal()), True),
    "names, capped": (named(causal(), soft_cap=5.0), True),
    "names, a window": (named(causal() & window(2)), True),
    "names, both sides": (named(window(2)), False),
    "names, a prefix": (named(causal() | prefix(2)), False),
    "names, later": (named(causal(), q_start=1), False),
    "names, earlier": (named(causal(), k_start=1), False),
    "names, no mask": (named(None), False),
    "names, segments": (named(causal() & segments(IDS)), True),
    "names, other segments of keys": (named(causal() & segments(IDS, IDS.rename({"pos": "key"}) + 1)), False),
    "names, segments, no order": (named(segments(IDS)), False),
    "names, padding": (named(causal() & (IDS > 0).rename({"pos": "key"})), False),
    "names, by blocks": (named(causal(), implementation="blockwise", block_size=2), False),
}


def test_masks_of_positions_prove_that_attention_is_causal() -> None:
    x = axn.named(np.random.default_rng(1).normal(size=(N, 3)).astype(np.float32), (P, D))
    traced = {name: trace_call(call, [x]) for name, (call, _) in MASKS.items()}
    # One program takes less time to compile than one for each mask.
    run = compile_programs(traced.values())
    for k, (name, one) in enumerate(traced.items()):
        assert refute(one, "pos", lambda arrays, k=k: run(arrays)[k], [x.array]) == [], name
        assert bool(check(one, Claim("causal", "pos"))) == MASKS[name][1], name
        # The gradient hides the same pairs.
        pulled = trace_call(MASKS[name][0], [x], is_gradient=True)
        assert bool(check(pulled, Claim("causal", "pos"))) == MASKS[name][1], name
