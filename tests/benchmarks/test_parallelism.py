"""The programs that are compared compute the same: those by hand, and those with names on one device."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
from parallelism import (
    ROUNDS,
    SIZES,
    attention,
    circular_by_hand,
    make_batch,
    make_stack,
    mean_square,
    pipeline_by_hand,
    ring_by_hand,
)

import axonym as axn


@pytest.mark.parametrize(("rounds", "pipeline"), [(1, pipeline_by_hand), (ROUNDS, circular_by_hand)])
def test_the_pipelines_by_hand(rounds: int, pipeline: Callable[..., jax.Array]) -> None:
    stack, x = make_stack(SIZES["cpu"], rounds), make_batch(SIZES["cpu"])
    weights = stack.stacked.up.weight.array, stack.stacked.down.weight.array
    with jax.set_mesh(jax.make_mesh((2, 4), ("data", "stage"), axis_types=(jax.sharding.AxisType.Auto,) * 2)):
        by_hand = jax.jit(pipeline)(weights, x.array)
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
