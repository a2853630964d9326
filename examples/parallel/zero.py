"""ZeRO in three stages: what each device keeps is three mappings; the training step is one.

    python examples/parallel/zero.py

All stages compute data-parallel. Stage 1 splits the optimiser state over the devices, stage 2 gradients too, stage 3
parameters too (which is FSDP). Stages and their names are those of Rajbhandari et al. (2020), "ZeRO: memory
optimizations toward training trillion parameter models".
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

import axonym as axn
import axonym.nn as nn
from axonym import NamedArray

Microbatch, Batch, Embed, Mlp = axn.make_axes(microbatch=4, batch=64, embed=64, mlp=256)

WHOLE, SPLIT = {}, {"mlp": "data"}


class Stage(NamedTuple):
    """How each kind of state is stored."""

    parameters: axn.ResourceMapping
    gradients: axn.ResourceMapping
    optimizer: axn.ResourceMapping


STAGES = {
    "data parallel": Stage(WHOLE, WHOLE, WHOLE),
    "ZeRO-1": Stage(WHOLE, WHOLE, SPLIT),
    "ZeRO-2": Stage(WHOLE, SPLIT, SPLIT),
    "ZeRO-3": Stage(SPLIT, SPLIT, SPLIT),
}

optimizer = optax.adam(1e-2)


class State(NamedTuple):
    model: nn.MLP
    optimizer: optax.OptState

    def stored(self, stage: Stage) -> "State":
        return State(axn.shard(self.model, stage.parameters), axn.shard(self.optimizer, stage.optimizer))


def init(key: jax.Array, stage: Stage) -> State:
    model = nn.MLP.init(Embed, Embed, Mlp, depth=1, activation=nn.gelu, key=key)
    return State(model, optimizer.init(model)).stored(stage)


def loss_fn(model: nn.MLP, x: NamedArray) -> jax.Array:
    """Compute data-parallel, with whole parameters."""
    with axn.axis_mapping({"batch": "data"}):
        return ((model(axn.auto_sharded(x)) - axn.roll(x, 1, "embed")) ** 2).mean().scalar()


def gradients(model: nn.MLP, x: NamedArray, stage: Stage) -> tuple[jax.Array, nn.MLP]:
    """Average the loss and its gradients over microbatches; what is added up is stored as the stage says."""

    def accumulate(total: tuple[jax.Array, nn.MLP], x: NamedArray) -> tuple[jax.Array, nn.MLP]:
        loss, grads = jax.value_and_grad(loss_fn)(model, x)
        return total[0] + loss, jax.tree.map(jnp.add, total[1], axn.shard(grads, stage.gradients))

    zeros = jnp.zeros(()), axn.shard(jax.tree.map(jnp.zeros_like, model), stage.gradients)
    return jax.tree.map(lambda total: total / Microbatch.size, axn.fold(accumulate, "microbatch")(zeros, x))


def step(state: State, x: NamedArray, stage: Stage) -> tuple[State, jax.Array]:
    loss, grads = gradients(state.model, x, stage)
    updates, moments = optimizer.update(grads, state.optimizer, state.model)
    return State(optax.apply_updates(state.model, updates), moments).stored(stage), loss


compiled_init = axn.named_jit(init)
compiled_gradients = axn.named_jit(gradients)
compiled_step = axn.named_jit(step, donate_args=(True,))


def train(stage: Stage, steps: int) -> tuple[State, list[float]]:
    """Train, and return the state and the loss of each step."""
    state, losses = compiled_init(jax.random.key(0), stage), []
    x = axn.shard(axn.random.normal(jax.random.key(1), (Microbatch, Batch, Embed)), {"batch": "data"})
    for _ in range(steps):
        state, loss = compiled_step(state, x, stage)
        losses.append(float(loss))
    return state, losses


def bytes_per_device(tree: object) -> int:
    return sum(array.addressable_shards[0].data.nbytes for array in jax.tree.leaves(tree))


def main(steps: int = 20, kind: jax.sharding.AxisType = jax.sharding.AxisType.Auto) -> dict[str, list[float]]:
    """Train in all stages, print what each device keeps, and return the losses."""
    runs = {}
    print("                  KB on each device\nstage          parameters  gradients  optimizer  loss")
    with axn.set_mesh(jax.make_mesh((8,), ("data",), axis_types=(kind,))):
        x = axn.zeros((Microbatch, Batch, Embed))
        for name, stage in STAGES.items():
            state, runs[name] = train(stage, steps)
            _, grads = compiled_gradients(state.model, x, stage)
            kept = [f"{bytes_per_device(tree) / 1e3:9.1f}" for tree in (state.model, grads, state.optimizer)]
            print(f"{name:16}{'  '.join(kept)}  {runs[name][-1]:.6f}")
    return runs


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    main()
