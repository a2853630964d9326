"""Train a small network on one process or on many; parameters and optimiser state are split over all devices (FSDP).

    python train.py                                                               alone
    python train.py --coordinator host0:1234 --processes 2 --process-id 0         on the first of two hosts
    python train.py --coordinator host0:1234 --processes 2 --process-id 1         on the second one

Every process runs this same program. Without accelerators they simulate eight CPU devices in all.
"""

import argparse
import os
import sys
import traceback

import equinox as eqx
import jax
import numpy as np
import optax

import axonym as axn
from axonym import NamedArray

Batch, Embed, Mlp = axn.make_axes(batch=32, embed=16, mlp=64)
PARAMETERS = {"mlp": "data"}  # how parameters and optimiser state are stored
COMPUTE = {"batch": "data"}  # how the model computes

optimizer = optax.adam(1e-2)


class State(eqx.Module):
    model: axn.nn.MLP
    optimizer: optax.OptState


@axn.named_jit(axis_resources=PARAMETERS)
def init(key: jax.Array) -> State:
    model = axn.nn.MLP.init(Embed, Embed, Mlp, depth=2, activation=axn.nn.gelu, key=key)
    return State(model, optimizer.init(model))


def loss_fn(model: axn.nn.MLP, inputs: NamedArray) -> jax.Array:
    return ((model(inputs) - axn.roll(inputs, 1, "embed")) ** 2).mean().scalar()


@axn.fsdp(PARAMETERS, COMPUTE, donate_args=(True,))
def train_step(state: State, inputs: NamedArray) -> tuple[State, jax.Array]:
    loss, gradients = jax.value_and_grad(loss_fn)(state.model, inputs)
    updates, optimizer_state = optimizer.update(gradients, state.optimizer, state.model)
    return State(optax.apply_updates(state.model, updates), optimizer_state), loss


def load(step: int, rows: slice) -> NamedArray:
    """Load some rows of a batch. The order of the data depends on the step alone, not on who asks."""
    dataset = np.random.default_rng(0).normal(size=(256, Embed.size)).astype(np.float32)  # stands for files
    chosen = np.random.default_rng((1, step)).integers(256, size=Batch.size)
    return NamedArray(dataset[chosen[rows]], ("batch", "embed"))


def train(steps: int) -> None:
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    with axn.set_mesh(mesh):
        state = init(jax.random.key(0))
        rows = axn.local_slices(Batch, COMPUTE)["batch"]
        for step in range(steps):
            inputs = axn.from_local(load(step, rows), COMPUTE)
            state, loss = train_step(state, inputs)
            value = float(loss)  # every process waits for the step, and sees its error
            if jax.process_index() == 0:
                print(f"step {step} loss {value!r}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coordinator", help="address and free port of the first process")
    parser.add_argument("--processes", type=int, default=1, help="how many there are")
    parser.add_argument("--process-id", type=int, default=0, help="which one this is")
    parser.add_argument("--heartbeat", type=int, default=30, help="seconds after which a silent process counts as dead")
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 8 // options.processes)
    if options.processes > 1:
        jax.distributed.initialize(
            options.coordinator,
            options.processes,
            options.process_id,
            heartbeat_timeout_seconds=options.heartbeat,
        )
    try:
        train(options.steps)
    except Exception as error:
        if options.processes == 1:
            raise
        # A normal exit would wait for the others, which wait for this one.
        traceback.print_exc()
        reason = str(error).partition("\n")[0]
        print(f"process {options.process_id} leaves: {reason}", file=sys.stderr, flush=True)
        os._exit(3)


if __name__ == "__main__":
    main()
