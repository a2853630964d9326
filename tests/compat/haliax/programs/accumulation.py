"""Gradients of a large batch in parts, whose sizes need not divide the mesh."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
from haliax import Axis, NamedArray
from haliax.partitioning import ResourceMapping, named_jit, shard_with_axis_mapping


def in_parts(
    grad_fn: Callable[..., Any],
    Batch: Axis,
    size: int,
    parameters: ResourceMapping,
    compute: ResourceMapping,
) -> Callable[..., Any]:
    """Return a function with the results of `grad_fn`, which averages over the batch, summed over parts of it."""
    Part = Batch.resize(size)
    Parts = Axis("part", Batch.size // size)

    @functools.wraps(grad_fn)
    def accumulated(model: Any, *batch: NamedArray, key: jax.Array) -> Any:
        def part(x: NamedArray) -> NamedArray:
            return hax.shard(x.unflatten_axis(Batch, (Parts, Part)), compute)

        def zero(x: Any) -> Any:
            return jnp.zeros(x.shape, x.dtype)

        total = jax.tree.map(zero, eqx.filter_eval_shape(grad_fn, model, *batch, key=key))
        total = shard_with_axis_mapping(total, parameters)

        def step(total: Any, key: jax.Array, *batch: NamedArray) -> Any:
            with jax.named_scope("part"), hax.axis_mapping(compute):
                found = grad_fn(model, *batch, key=key)
            return shard_with_axis_mapping(jax.tree.map(jnp.add, total, found), parameters)

        keys = jax.random.split(key, Parts.size)
        total = hax.fold(step, Parts)(total, keys, *(part(x) for x in batch))
        return jax.tree.map(lambda x: x / Parts.size, total)

    return accumulated


def make_step(loss_fn: Callable[..., Any], Batch: Axis, size: int, parameters: Any, compute: Any) -> Any:
    @named_jit(axis_resources=compute, in_axis_resources=parameters, out_axis_resources=parameters)
    def step(model: Any, *batch: NamedArray, key: jax.Array) -> Any:
        grad_fn = in_parts(eqx.filter_value_and_grad(loss_fn), Batch, size, parameters, compute)
        loss, grads = grad_fn(model, *batch, key=key)
        model = eqx.apply_updates(model, jax.tree.map(lambda g: -0.1 * g, grads))
        return loss, model, grads

    return step
