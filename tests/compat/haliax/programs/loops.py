"""Training loops for the GPT-2 beside, from one device to a mesh of two axes, each as a user of Haliax writes it."""

import contextlib
from collections.abc import Callable
from typing import Any

import equinox as eqx
import haliax as hax
import jax
import jax.random as jrandom
import jmp
import numpy as onp
import optax
from haliax import Axis
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .gpt2 import Gpt2Config, Gpt2LMHeadModel, batches, next_token_loss

Batch = Axis("batch", 8)
SeqLen = Axis("seq_len", 6)
STEPS = 2

optimizer = optax.adamw(learning_rate=1e-2)
new_model = eqx.filter_jit(Gpt2LMHeadModel)

Result = tuple[list[float], Any, Any]


def run(train_step: Callable, model: Any, opt_state: Any, config: Gpt2Config) -> Result:
    training_key = jrandom.PRNGKey(1)
    losses = []
    for batch_input_ids in batches(SeqLen, Batch, config.Vocab, STEPS):
        my_key, training_key = jrandom.split(training_key, 2)
        batch_key = jrandom.split(my_key, Batch.size)
        jax_step_loss, model, opt_state = train_step(model, opt_state, batch_input_ids, batch_key)
        losses.append(jax_step_loss.item())
    return losses, model, opt_state


def make_train_step(config: Gpt2Config, compute_mapping: dict | None = None, policy: jmp.Policy | None = None):
    context = contextlib.nullcontext if compute_mapping is None else lambda: hax.axis_mapping(compute_mapping)

    def compute_loss(model, input_ids, key, inference):
        with context():
            if policy is not None:
                model = policy.cast_to_compute(model)
            pred_y = model(input_ids, key=key, inference=inference)
            if policy is not None:
                pred_y = policy.cast_to_output(pred_y)
            return next_token_loss(SeqLen, config.Vocab, pred_y, input_ids)

    def train_batch_loss(model, input_ids, key):
        per_ex_loss = hax.vmap(compute_loss, "batch")(model, input_ids, key, inference=False)
        return hax.mean(per_ex_loss, "batch").scalar()

    grad_loss = eqx.filter_value_and_grad(train_batch_loss)

    def train_step(model, opt_state, input_ids, keys):
        loss, grads = grad_loss(model, input_ids, keys)
        updates, opt_state = optimizer.update(grads, opt_state, params=model)
        model = eqx.apply_updates(model, updates)
        return loss, model, opt_state

    return train_step


def simplest(config: Gpt2Config, *, key, jit: Callable = lambda fn: fn) -> Result:
    model = new_model(SeqLen, config, key=key)
    opt_state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
    return run(jit(make_train_step(config)), model, opt_state, config)


def data_parallel(config: Gpt2Config, *, key) -> Result:
    mesh = Mesh(jax.devices(), ("data",))
    with mesh:
        model = new_model(SeqLen, config, key=key)
        opt_state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
        everywhere, by_batch = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data", None))
        train_step = jax.jit(
            make_train_step(config),
            in_shardings=(everywhere, everywhere, by_batch, by_batch),
            out_shardings=everywhere,
        )
        return run(train_step, model, opt_state, config)


def fully_sharded(config: Gpt2Config, *, key) -> Result:
    compute_mapping = {"batch": "data"}
    param_mapping = {"embed": "data"}
    with Mesh(jax.devices(), ("data",)):
        model = hax.named_jit(Gpt2LMHeadModel, axis_resources=param_mapping)(SeqLen, config, key=key)
        params = eqx.filter(model, eqx.is_inexact_array)
        opt_state = hax.named_jit(optimizer.init, axis_resources=param_mapping)(params)
        train_step = hax.named_jit(
            make_train_step(config, compute_mapping),
            axis_resources=param_mapping,
            donate=(True, True, False, False),
        )
        return run(train_step, model, opt_state, config)


def tensor_parallel(config: Gpt2Config, *, key, policy: jmp.Policy, use_mesh: Callable = lambda mesh: mesh) -> Result:
    compute_mapping = {"batch": "data", "mlp": "model", "head": "model"}
    param_mapping = {"embed": "data", "mlp": "model", "head": "model"}
    mesh = Mesh(onp.array(jax.devices()).reshape((-1, 2)), ("data", "model"))
    with use_mesh(mesh):

        @hax.named_jit(axis_resources=param_mapping)
        def init_model():
            return policy.cast_to_param(Gpt2LMHeadModel(SeqLen, config, key=key))

        model = init_model()
        params = eqx.filter(model, eqx.is_inexact_array)
        opt_state = hax.named_jit(optimizer.init, axis_resources=param_mapping)(params)
        train_step = hax.named_jit(
            make_train_step(config, compute_mapping, policy),
            axis_resources=param_mapping,
            donate_args=(True, True, False, False),
        )
        return run(train_step, model, opt_state, config)
