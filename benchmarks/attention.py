"""Compare attention with what a careful user of JAX writes by hand: value and gradients, interleaved in one process.

    python benchmarks/attention.py            the tables
    python benchmarks/attention.py --fast     fewer rounds, fewer positions
    python benchmarks/attention.py --target tpu   compile for a TPU v5e 2x4 instead; needs libtpu, no TPU

The first table is about speed, the second about how memory grows with the number of positions, the third about decoding
token by token. For a TPU, it is temporary memory of a device, calls of kernels and what devices send to each other.
"""

import argparse
import functools
import math
import os
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from measure import equations, interleaved, median_ratio, ratio_of_minima, table

import axonym as axn
import axonym.nn as nn

HEADS, DIM, BLOCK = 4, 64, 512
SENT = "all-gather|all-to-all|all-reduce|collective-permute|reduce-scatter"
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
    "xla": named("xla"),
}
COMPARED = [
    ("plain", "plain by hand"),
    ("blockwise", "blockwise by hand"),
    ("blockwise", "plain"),
    ("xla", "plain by hand"),
]


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


Decode = Callable[[Any, list[Array]], tuple[Array, Any]]


def decode_by_hand(cache: Any, token: list[Array]) -> tuple[Array, Any]:
    """Attend from one token to those in a cache and to itself; axes batch, heads, positions, features."""
    keys, values, at = cache
    q, k, v = token
    keys, values = (lax.dynamic_update_slice_in_dim(old, x, at, 2) for old, x in ((keys, k), (values, v)))
    scores = jnp.einsum("bhqd,bhkd->bhqk", q * q.shape[-1] ** -0.5, keys, preferred_element_type=jnp.float32)
    scores = jnp.where(jnp.arange(keys.shape[2]) <= at, scores, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(scores, axis=-1).astype(q.dtype)
    return jnp.einsum("bhqk,bhkd->bhqd", weights, values), (keys, values, at + 1)


def decode(cache: Any, token: list[Array]) -> tuple[Array, Any]:
    """Do the same by names."""
    out, cache = cache.attend("pos", "dim", *(axn.NamedArray(x, NAMES) for x in token))
    return out.array, cache


def decoding(size: int, rounds: int) -> dict[str, str]:
    """Compare the time of a step of decoding, whose cache is donated, at half of its size."""
    token = inputs(1)
    Axes = axn.make_axes(batch=2, heads=HEADS, key_pos=size, dim=DIM)
    cache = nn.KVCache.init("key_pos", Axes)
    empty = {
        "by hand": (decode_by_hand, (cache.key.array, cache.value.array, jnp.int32(size // 2))),
        "axonym": (decode, nn.KVCache(cache.key, cache.value, cache.length + size // 2, "key_pos")),
    }
    calls: dict[str, Callable[[], Any]] = {}
    for name, (way, filled) in empty.items():
        kept = [jax.tree.map(jnp.copy, filled)]
        compiled = jax.jit(way, donate_argnums=0).lower(kept[0], token).compile()

        def call(compiled: Any = compiled, kept: Any = kept) -> Any:
            out, kept[0] = compiled(kept[0], token)
            return out

        calls[name] = call
    # The position moves on: few enough calls stay within the cache.
    timed = interleaved(calls, rounds=rounds, calls=8)
    count = {
        name: len(list(equations(jax.make_jaxpr(way)(filled, token).jaxpr))) for name, (way, filled) in empty.items()
    }
    return {
        "positions": str(size),
        "time, minima": f"{ratio_of_minima(timed['axonym'], timed['by hand']):.2f}",
        "time, median": f"{median_ratio(timed['axonym'], timed['by hand']):.2f}",
        "equations": f"{count['axonym']} / {count['by hand']}",
    }


def for_tpu(lengths: tuple[int, ...]) -> None:
    """Compile value and gradients for a TPU that need not be there, and print what the programs need."""
    jax.config.update("jax_platforms", "cpu")
    # The names of a TPU keep libtpu from asking a server.
    os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "TPU_ACCELERATOR_TYPE": "v5litepod-8", "TPU_WORKER_ID": "0"}
    os.environ |= {"TPU_WORKER_HOSTNAMES": "localhost", "ALLOW_MULTIPLE_LIBTPU_LOAD": "true"}
    from jax.experimental import topologies

    devices = np.array(topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x4").devices).reshape(4, 2)
    print(f"jax {jax.__version__}, compiled for {devices[0, 0].device_kind} 2x4: value and gradients, bfloat16\n")
    mapping, rows = {"batch": "data", "heads": "model"}, []
    for kind in (AxisType.Auto, AxisType.Explicit):
        mesh = Mesh(devices, ("data", "model"), axis_types=(kind, kind))
        spec = NamedSharding(mesh, PartitionSpec("data", "model"))
        for length in lengths:
            arrays = [jax.ShapeDtypeStruct((8, 8, length, 128), jnp.bfloat16, sharding=spec)] * 3
            for name in ("plain", "blockwise", "splash"):
                with axn.set_mesh(mesh), axn.axis_mapping(mapping):
                    try:
                        compiled = jax.jit(step(named(name))).lower(*arrays).compile()
                    except jax.errors.JaxRuntimeError as error:
                        rows.append({"mesh": kind.name, "positions": length, "of": name, "temp MiB": str(error)[:18]})
                        continue
                memory, text = compiled.memory_analysis(), compiled.as_text()
                rows.append(
                    {
                        "mesh": kind.name,
                        "positions": length,
                        "of": name,
                        "temp MiB": f"{memory.temp_size_in_bytes / 2**20:.1f}",
                        "kernels": len(set(re.findall(r"(\S+) = .*tpu_custom_call", text))),
                        "sent": ", ".join(sorted(set(re.findall(rf"= \S+ ({SENT})[\w-]*\(", text)))),
                    }
                )
    print(table(rows))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", action="store_true", help="fewer rounds, fewer positions")
    parser.add_argument("--target", choices=["here", "tpu"], default="here")
    options = parser.parse_args()
    fast = options.fast
    if options.target == "tpu":
        for_tpu((1024, 4096) if fast else (1024, 4096, 16384))
        return
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
    print("\na step of decoding, to one by hand\n")
    print(table([decoding(size, rounds) for size in (1024, 4096)]))


if __name__ == "__main__":
    main()
