"""Train a classifier data-parallel and fully sharded: one training step, two mappings.

    python examples/parallel/fsdp_classifier.py

Each device computes on its rows, microbatch by microbatch, and talks to the others once per step. Fully sharded, it
keeps an eighth of the parameters and of the optimiser state.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jmp
import numpy as np
import optax

import axonym as axn
import axonym.nn as nn
from axonym import NamedArray

Microbatch, Batch, Pixel, Hidden, Digit = axn.make_axes(microbatch=4, batch=32, pixel=784, hidden=512, digit=10)

policy = jmp.get_policy("params=float32,compute=bfloat16,output=float32")
optimizer = optax.adamw(1e-3)


class Classifier(eqx.Module):
    first: nn.Linear
    dropout: nn.Dropout
    last: nn.Linear

    @staticmethod
    def init(key: jax.Array) -> "Classifier":
        k1, k2 = jax.random.split(key)
        return Classifier(nn.Linear.init(Pixel, Hidden, key=k1), nn.Dropout(0.1), nn.Linear.init(Hidden, Digit, key=k2))

    def __call__(self, pixels: NamedArray, key: jax.Array) -> NamedArray:
        return self.last(self.dropout(nn.silu(self.first(pixels)), key=key))


class State(NamedTuple):
    model: Classifier
    optimizer: optax.OptState


class Data(NamedTuple):
    pixels: NamedArray  # microbatch, batch, pixel
    digits: NamedArray  # microbatch, batch


class Metrics(NamedTuple):
    loss: jax.Array  # all three are sums over rows
    correct: jax.Array
    count: jax.Array


def init(key: jax.Array) -> State:
    model = Classifier.init(key)
    return State(model, optimizer.init(model))


def loss_fn(model: Classifier, data: Data, key: jax.Array) -> tuple[jax.Array, Metrics]:
    """Add up the losses of rows."""
    pixels, model = policy.cast_to_compute((data.pixels, model))
    scores = policy.cast_to_output(model(pixels, key))
    loss = nn.cross_entropy_loss(scores, "digit", data.digits, reduction=axn.sum).scalar()
    correct = (axn.argmax(scores, "digit") == data.digits).sum().scalar()
    return loss, Metrics(loss, correct.astype(float), jnp.asarray(float(data.digits.size)))


def step(state: State, total: Metrics, data: Data, key: jax.Array) -> tuple[State, Metrics]:
    """Take a step on one device, which has its blocks of the state and its rows of the data."""
    keys = jax.random.split(axn.fold_key(key, "batch"), data.pixels.axis_size("microbatch"))
    model = axn.pcast(axn.all_gather(state.model, "data"), "data")

    def accumulate(sums: tuple[Classifier, Metrics], data: Data, key: jax.Array) -> tuple[Classifier, Metrics]:
        return jax.tree.map(jnp.add, sums, jax.grad(loss_fn, has_aux=True)(model, data, key))

    zeros = jax.tree.map(jnp.zeros_like, (model, axn.pcast(total, "data")))
    gradients, metrics = axn.fold(accumulate, "microbatch")(zeros, data, keys)
    gradients, metrics = axn.psum_scatter(gradients, "data"), axn.psum(metrics, "data")
    gradients = jax.tree.map(lambda g: g / metrics.count, gradients)
    updates, moments = optimizer.update(gradients, state.optimizer, state.model)
    return State(optax.apply_updates(state.model, updates), moments), jax.tree.map(jnp.add, total, metrics)


def compiled_step(parameters: axn.ResourceMapping) -> axn.NamedJit[..., tuple[State, Metrics]]:
    """Lay out and compile the step; the memory of the old state becomes that of the new one."""
    mapped = axn.shard_map(step, axn.Mappings(parameters, {"batch": "data"}))
    return axn.named_jit(mapped, donate_args=(True, True))


def random_data(seed: int) -> Data:
    """Draw rows and digits on the host."""
    draw, shape = np.random.default_rng(seed), (Microbatch.size, Batch.size)
    pixels = draw.normal(size=(*shape, Pixel.size)).astype(np.float32)
    digits = draw.integers(Digit.size, size=shape, dtype=np.int32)
    return Data(NamedArray(pixels, ("microbatch", "batch", "pixel")), NamedArray(digits, ("microbatch", "batch")))


def train(parameters: axn.ResourceMapping, steps: int = 15, seed: int = 42) -> tuple[State, list[float], Metrics]:
    """Train on one batch, and return the state, the loss of each step, and the metrics of the last one."""
    k_init, k_step = jax.random.split(jax.random.key(seed))
    state = axn.named_jit(init, parameters)(k_init)  # each device draws its blocks only
    data = axn.from_local(random_data(seed), {"batch": "data"})
    run, losses = compiled_step(parameters), []
    for i in range(steps):
        state, metrics = run(state, Metrics(*jnp.zeros(3)), data, jax.random.fold_in(k_step, i))
        losses.append(float(metrics.loss / metrics.count))
    return state, losses, metrics


def main(steps: int = 15) -> dict[str, tuple[State, list[float], Metrics]]:
    """Train both ways, say what each device keeps, and return what `train` does."""
    runs = {}
    with axn.set_mesh(jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))):
        shapes = jax.eval_shape(init, jax.random.key(0))
        sharded = axn.partitioning.fsdp_mapping(shapes.model, "data", min_size=2**4)
        for name, parameters in (("data parallel", {}), ("fully sharded", sharded)):
            state, losses, metrics = runs[name] = train(parameters, steps)
            kept = sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(state))
            print(f"{name}, parameters by {parameters}: {kept / 1e6:.2f} MB of state on each device")
            print(f"  loss {losses[0]:.4f} -> {losses[-1]:.4f}, accuracy {metrics.correct / metrics.count:.3f}")
    return runs


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    main()
