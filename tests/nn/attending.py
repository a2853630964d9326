"""Attention by hand, for tests: axes batch, heads, group, position, features; keys and values without group."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def by_hand(
    q: Any, k: Any, v: Any, seen: Any = None, bias: Any = 0.0, sinks: Any = None, cap: float | None = None, xp: Any = np
) -> Any:
    """Attend in numpy with float64, or in what `xp` says."""
    dtype = xp.float64 if xp is np else xp.float32
    q, k, v = (xp.asarray(x, dtype) for x in (q, k, v))
    scores = xp.einsum("bhgqd,bhkd->bhgqk", q, k) / q.shape[-1] ** 0.5
    scores = scores if cap is None else cap * xp.tanh(scores / cap)
    scores = scores + xp.asarray(bias, dtype)
    scores = scores if seen is None else xp.where(seen, scores, -1e30)
    if sinks is not None:
        column = xp.broadcast_to(xp.asarray(sinks, dtype)[..., None, None], (*scores.shape[:-1], 1))
        scores = xp.concatenate([scores, column], -1)
    weights = xp.exp(scores - scores.max(-1, keepdims=True))
    weights = weights / weights.sum(-1, keepdims=True)
    return xp.einsum("bhgqk,bhkd->bhgqd", weights[..., : k.shape[2]], v)


def with_gradients(call: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a call and its gradients by all inputs, through all elements of the result."""

    def run(*inputs: Any) -> Any:
        def loss(*inputs: Any) -> Any:
            out = call(*inputs)
            return jnp.sin(getattr(out, "array", out).astype(jnp.float32)).sum(), out

        (_, out), gradients = jax.value_and_grad(loss, tuple(range(len(inputs))), has_aux=True)(*inputs)
        return out, gradients

    return jax.jit(run)
