"""The programs that are compared compute the same: those by hand, and those with names on one device."""

import functools

import jax
import jax.numpy as jnp
from parallelism import Batch, Block, Embed, Layers, Pos, attention, mean_square, pipeline_by_hand, ring_by_hand

import axonym as axn
import axonym.nn as nn


def test_the_pipeline_by_hand() -> None:
    stack = nn.Stacked.init(Layers, Block)(key=jax.random.key(0))
    x = axn.random.normal(jax.random.key(1), (Batch, Pos, Embed))
    weights = stack.stacked.up.weight.array, stack.stacked.down.weight.array
    with jax.set_mesh(jax.make_mesh((2, 4), ("data", "stage"), axis_types=(jax.sharding.AxisType.Auto,) * 2)):
        by_hand = jax.jit(pipeline_by_hand)(weights, x.array)
    assert jnp.allclose(by_hand, jax.jit(mean_square)(stack, x), rtol=1e-5)


def test_the_ring_by_hand() -> None:
    Seq, Heads, HeadSize = axn.make_axes(pos=64, heads=2, head_size=4)
    keys = jax.random.split(jax.random.key(0), 3)
    q = axn.random.normal(keys[0], (Seq, Heads, HeadSize))
    k, v = (axn.random.normal(key, (Seq.alias("pos.key"), Heads, HeadSize)) for key in keys[1:])
    with jax.set_mesh(jax.make_mesh((8,), ("context",), axis_types=(jax.sharding.AxisType.Auto,))):
        by_hand = jax.jit(ring_by_hand)(q.array, k.array, v.array)
    plain = jax.jit(functools.partial(attention, method="plain"))(q, k, v)
    assert jnp.allclose(by_hand, plain, rtol=1e-5)
