"""XLA for CPUs copies all scores of the backward pass of attention that have an axis of one element.

The test holds while XLA has the fault. Where it begins to fail, `faults/copied_scores.py` can go.
"""

import jax
import jax.numpy as jnp


def temp_bytes(scores: str, result: str, shape: tuple[int, ...]) -> int:
    def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        weights = jax.nn.softmax(jnp.einsum(scores, q, k))
        return (jnp.einsum(result, weights, v) ** 2).sum()

    q, k = jnp.ones(shape), jnp.ones((4, 64, 8))
    compiled = jax.jit(jax.grad(loss, (0, 1, 2))).lower(q, k, k).compile()
    return compiled.memory_analysis().temp_size_in_bytes


def test_one_group_of_heads_takes_a_copy_of_the_scores() -> None:
    without = temp_bytes("bqd,bkd->bqk", "bqk,bkd->bqd", (4, 64, 8))
    copied = temp_bytes("bqgd,bkd->bqgk", "bqgk,bkd->bqgd", (4, 64, 1, 8))
    assert copied - without >= 4 * 64 * 64 * 4
