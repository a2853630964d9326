"""A trainer in a few lines: one compiled step over a mesh, with parameters and batches laid out by one mapping."""

from typing import Any

import equinox as eqx
import haliax as hax
import jax
import optax
from haliax.partitioning import ResourceAxis, ResourceMapping, named_jit


def train(model: Any, loss_fn, *batch: Any, mapping: ResourceMapping, mesh, steps: int = 3, rate: float = 2e-2):
    """Return the losses of a few steps, and the model after them."""
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate))

    @named_jit(axis_resources=mapping, donate_args=(True, True))
    def train_step(model, opt_state, *batch):
        loss, grads = eqx.filter_value_and_grad(loss_fn)(model, *batch)
        updates, opt_state = optimizer.update(grads, opt_state, model)
        return loss, eqx.apply_updates(model, updates), opt_state

    losses = []
    with hax.set_mesh(mesh), hax.axis_mapping(mapping):
        model = hax.shard(model)
        batch = hax.shard(batch, {"batch": ResourceAxis.DATA})
        opt_state = named_jit(optimizer.init, mapping)(eqx.filter(model, eqx.is_inexact_array))
        for _ in range(steps):
            loss, model, opt_state = train_step(model, opt_state, *batch)
            losses.append(float(loss))
    return losses, jax.block_until_ready(model)
