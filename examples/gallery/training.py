"""What the programs of the gallery share: digits, the mesh of a command line, and a training loop."""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import numpy as np
import optax
from sklearn.datasets import load_digits

import axonym as axn
from axonym import NamedArray

Model = TypeVar("Model", bound=eqx.Module)


class Digits(eqx.Module):
    """Handwritten digits: images {image, height, width} from -1 to 1, and what they show, labels {image}."""

    images: NamedArray
    labels: NamedArray

    def take(self, chosen: NamedArray | slice) -> "Digits":
        return Digits(self.images["image", chosen], self.labels["image", chosen])


def digits(held_out: int = 360) -> tuple[Digits, Digits]:
    """Return the digits to train on, and those held out."""
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images = axn.named((data.images[order] / 8 - 1).astype(np.float32), ("image", "height", "width"))
    every = Digits(images, axn.named(data.target[order].astype(np.int32), "image"))
    return every.take(slice(held_out, None)), every.take(slice(held_out))


def make_mesh(text: str) -> jax.sharding.Mesh:
    """Make a mesh from a text such as data=4,model=2."""
    sizes = {name: int(size) for name, size in (part.split("=") for part in text.split(","))}
    count, have = math.prod(sizes.values()), len(jax.devices())
    if count > have:
        raise SystemExit(f"a mesh of {text} needs {count} devices, this machine has {have}")
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), devices=jax.devices()[:count])


def train(
    init: Callable[[jax.Array], Model],
    loss_fn: Callable[[Model, Any, jax.Array], jax.Array],
    data: Any,
    *,
    stored: axn.ResourceMapping,
    computed: axn.ResourceMapping,
    steps: int,
    learning_rate: float,
    key: jax.Array,
) -> tuple[Model, list[float]]:
    """Train with AdamW on the current mesh, and return the model and the loss of each step.

    Args:
        init: makes the model from a key.
        loss_fn: returns the loss of a model on a batch, which it draws from the data with a key.
        data: all data.
        stored: the layout of parameters and optimiser state.
        computed: the layout of the computation.
        steps: number of steps.
        learning_rate: its highest value, after warming up.
        key: for parameters and batches.
    """
    optimizer = optax.adamw(optax.cosine_onecycle_schedule(steps, learning_rate), weight_decay=0.01)

    def start(key: jax.Array) -> tuple[Model, optax.OptState]:
        model = init(key)
        return model, optimizer.init(model)

    def step(state: tuple[Model, optax.OptState], data: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        model, moments = state
        loss, gradients = jax.value_and_grad(loss_fn)(model, data, key)
        updates, moments = optimizer.update(gradients, moments, model)
        return (optax.apply_updates(model, updates), moments), loss

    k_start, k_steps = jax.random.split(key)
    state = axn.named_jit(start, stored)(k_start)  # each device makes only its part
    run = axn.fsdp(step, stored, computed, donate_args=(True,))
    losses = []
    for own in jax.random.split(k_steps, steps):
        state, loss = run(state, data, own)
        losses.append(float(loss))
    return state[0], losses
