"""Compare attention with what a careful user of JAX writes by hand: value and gradients, interleaved in one process.

    python benchmarks/attention.py            the tables
    python benchmarks/attention.py --fast     fewer rounds, fewer positions

The first table is about speed, the second about how memory grows with the number of positions.
"""

import argparse
import functools
import math
from collections.abc import Callable
from trace import equations
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from measure import interleaved, median_ratio, ratio_of_minima, table

import axonym as axn
import axonym.nn as nn

HEADS, DIM, BLOCK = 4, 64, 512
NAMES = ("batch", "heads", "pos", "dim")
Attend = Callable[[Array, Array, Array], Array]


def plain_by_hand(q: Array, k: Array, v: Array) -> Array:
    """Attend with all scores at once; axes batch, heads, positions, features."""
    mask = jnp.tri(q.shape[2], k.shape[2], dtype=bool)
    scores = jnp.einsum("bhqd,bhkd->bhqk", q * q.shape[-1] ** -0.5, k, preferred_element_type=jnp.float32)
    weights = jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(jnp.float32).min), axis=-1).astype(q.dtype)
    return jnp.einsum("bhqk,bhkd->bhqd", weights, v)


def blockwise_by_hand(q: Array, k: Array, v: Array) -> Array:
    """Attend with a scan over blocks of keys inside of one over blocks of queries, whose steps are recomputed."""

    def blocks(x: Array) -> Array:
        batch, heads, length, dim = x.shape
        size = min(BLOCK, length)
        return jnp.moveaxis(x.reshape(batch, heads, length // size, size, dim), 2, 0)

    def of_queries(_: None, block: Any) -> Any:
        i, q_block = block

        @functools.partial(jax.checkpoint, prevent_cse=False)
        def with_keys(carry: Any, block: Any) -> Any:
            (largest, total, summed), (j, k_block, v_block) = carry, block
            size = q_block.shape[2]
            scores = jnp.einsum("bhqd,bhkd->bhqk", q_block, k_block, preferred_element_type=jnp.float32)
            mask = i * size + jnp.arange(size)[:, None] >= j * size + jnp.arange(size)
            scores = jnp.where(mask, scores, jnp.finfo(jnp.float32).min)
            new = lax.stop_gradient(jnp.maximum(largest, scores.max(-1, keepdims=True)))
            shrink, weights = jnp.exp(largest - new), jnp.exp(scores - new)
            more = jnp.einsum("bhqk,bhkd->bhqd", weights.astype(v.dtype), v_block, preferred_element_type=jnp.float32)
            total = total * shrink + weights.sum(-1, keepdims=True)
            return (new, total, summed * shrink + more), None

        rows = (*q_block.shape[:3], 1)
        start = jnp.full(rows, jnp.finfo(jnp.float32).min), jnp.zeros(rows), jnp.zeros(q_block.shape, jnp.float32)
        (_, total, summed), _ = lax.scan(with_keys, start, (jnp.arange(len(k_blocks)), k_blocks, v_blocks))
        return None, (summed / total).astype(q.dtype)

    q_blocks, k_blocks, v_blocks = blocks(q * q.shape[-1] ** -0.5), blocks(k), blocks(v)
    step = jax.checkpoint(of_queries, prevent_cse=False)
    _, out = lax.scan(step, None, (jnp.arange(len(q_blocks)), q_blocks))
    return jnp.moveaxis(out, 0, 2).reshape(q.shape)


def named(implementation: str) -> Attend:
    """Return attention of `axonym`, behind an interface of plain arrays."""

    def attend(q: Array, k: Array, v: Array) -> Array:
        query = axn.NamedArray(q, NAMES)
        key, value = (axn.NamedArray(x, ("batch", "heads", "pos.key", "dim")) for x in (k, v))
        options: Any = {"implementation": implementation, "block_size": BLOCK}
        return nn.dot_product_attention("pos", "pos.key", "dim", query, key, value, mask=nn.causal(), **options).array

    return attend


WAYS: dict[str, Attend] = {
    "plain by hand": plain_by_hand,
    "plain": named("plain"),
    "blockwise by hand": blockwise_by_hand,
    "blockwise": named("blockwise"),
}
COMPARED = [("plain", "plain by hand"), ("blockwise", "blockwise by hand"), ("blockwise", "plain")]


def step(attend: Attend) -> Callable[..., Any]:
    """Return a function of queries, keys and values that gives value and gradients."""
    return jax.value_and_grad(lambda *x: jnp.sum(jnp.square(attend(*x).astype(jnp.float32))), (0, 1, 2))


def inputs(positions: int, dtype: Any = jnp.float32, batch: int = 2) -> list[Array]:
    keys = jax.random.split(jax.random.key(0), 3)
    return [jax.random.normal(key, (batch, HEADS, positions, DIM), dtype) for key in keys]


def temp_bytes(attend: Attend, positions: int) -> int:
    """Return the bytes that the compiled program needs beside arguments and results."""
    analysis = jax.jit(step(attend)).lower(*inputs(positions)).compile().memory_analysis()
    assert analysis is not None
    return int(analysis.temp_size_in_bytes)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", action="store_true", help="fewer rounds, fewer positions")
    fast = parser.parse_args().fast
    rounds, lengths = (5, (512, 1024)) if fast else (20, (512, 1024, 2048))
    print(f"jax {jax.__version__} on {jax.default_backend()}, {HEADS} heads of {DIM}, causal, value and gradients\n")
    lines = []
    for dtype in (jnp.float32, jnp.bfloat16):
        for length in lengths:
            arrays = inputs(length, dtype)
            compiled = {name: jax.jit(step(attend)).lower(*arrays).compile() for name, attend in WAYS.items()}
            calls = {name: functools.partial(call, *arrays) for name, call in compiled.items()}
            timed = interleaved(calls, rounds=rounds, calls=max(1, 1024 // length))
            count = {name: len(list(equations(jax.make_jaxpr(step(f))(*arrays).jaxpr))) for name, f in WAYS.items()}
            temp = {name: call.memory_analysis().temp_size_in_bytes for name, call in compiled.items()}
            for ours, theirs in COMPARED:
                lines.append(
                    {
                        "dtype": jnp.dtype(dtype).name,
                        "positions": str(length),
                        "of": ours,
                        "to": theirs,
                        "time, minima": f"{ratio_of_minima(timed[ours], timed[theirs]):.2f}",
                        "time, median": f"{median_ratio(timed[ours], timed[theirs]):.2f}",
                        "temp bytes": f"{temp[ours] / temp[theirs]:.2f}",
                        "equations": f"{count[ours]} / {count[theirs]}",
                    }
                )
    print(table(lines))
    print("\ntemp MiB of one sequence\n")
    lengths = tuple(2**i for i in range(10, 13 if fast else 15))
    rows = []
    for name, attend in WAYS.items():
        used = {n: temp_bytes(attend, n) if n <= 4096 or "block" in name else math.nan for n in lengths}
        rows.append({"": name, **{str(n): f"{size / 2**20:.1f}" for n, size in used.items()}})
    print(table(rows))


if __name__ == "__main__":
    main()
