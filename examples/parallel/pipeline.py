"""A pipeline: every device has some of the layers, and microbatches go from one to the next (GPipe).

With 4 stages of 2 layers and 8 microbatches a-h, the stages work on:

    step       0   1   2   3   4   5   6   7   8   9   10
    stage 0    a   b   c   d   e   f   g   h                  layers 0, 1
    stage 1        a   b   c   d   e   f   g   h              layers 2, 3
    stage 2            a   b   c   d   e   f   g   h          layers 4, 5
    stage 3                a   b   c   d   e   f   g   h      layers 6, 7

Microbatches wait in a queue that is split over the stages as well. In each step it moves on by one: its head enters
stage 0, and what leaves the last stage becomes its tail. In the end it holds the results.

    step 0     stage 0 [a b]   stage 1 [c d]   stage 2 [e f]   stage 3 [g h]
    step 1     stage 0 [b c]   stage 1 [d e]   stage 2 [f g]   stage 3 [h .]

The first and the last layer have other sizes. They stay outside, where the compiler splits them by microbatch.

Reference:
    Huang et al. (2019), GPipe: efficient training of giant neural networks using pipeline parallelism.
"""

from typing import NamedTuple

import jax
import network

import axonym as axn
from axonym import NamedArray

LAYOUT = {"layer": "stage", "micro": "stage"}


class Layers(NamedTuple):
    first: network.Layer
    inner: network.Layer  # with an axis `layer`
    last: network.Layer


@axn.shard_map(mapping=LAYOUT)
def pipeline(layers: network.Layer, queue: NamedArray) -> NamedArray:
    """Apply the layers to every microbatch of the queue, axes {micro, batch, features}."""
    stage, stages = axn.axis_index("stage"), axn.collectives.axis_size("stage")

    def step(_: int, carry: tuple[NamedArray, NamedArray]) -> tuple[NamedArray, NamedArray]:
        queue, x = carry
        head = queue["micro", 0]
        x = axn.where(stage == 0, head, x)
        y = axn.fold(lambda x, layer: axn.nn.relu(network.dense(layer, x)), "layer")(x, layers)
        tail = axn.where(stage == stages - 1, y, axn.ppermute(head, "stage", -1))
        return axn.roll(queue, -1, "micro").at["micro", -1].set(tail), axn.ppermute(y, "stage")

    steps = stages * queue.axis_size("micro") + stages - 1
    return jax.lax.fori_loop(0, steps, step, (queue, axn.zeros_like(queue["micro", 0])))[0]


def loss(layers: Layers, x: NamedArray, target: NamedArray) -> jax.Array:
    """Compute the loss of microbatches, axes {micro, batch, features}."""
    x = pipeline(layers.inner, axn.nn.relu(network.dense(layers.first, x)))
    return network.squared_error(network.dense(layers.last, x), target)


def example(key: jax.Array) -> tuple[Layers, NamedArray, NamedArray]:
    """Draw parameters, microbatches and their targets."""
    keys = jax.random.split(key, 5)
    first, last = (network.init(key, sizes)[0] for key, sizes in zip(keys[:2], ([16, 64], [64, 8]), strict=True))
    Layer, Features = axn.make_axes(layer=8, features=64)
    inner = axn.random.normal(keys[2], (Layer, Features, Features.derive("out"))) / 8, axn.zeros((Layer, Features))
    x = axn.random.normal(keys[3], axn.make_axes(micro=8, batch=4, features=16))
    return Layers(first, inner, last), x, axn.random.normal(keys[4], axn.make_axes(micro=8, batch=4, features=8))


def main() -> None:
    layers, x, target = jax.jit(example)(jax.random.key(0))
    inner = zip(*(parameter.unbind("layer") for parameter in layers.inner), strict=True)
    expected = jax.jit(network.loss)([layers.first, *inner, layers.last], x, target)
    with axn.set_mesh(jax.make_mesh((4,), ("stage",), axis_types=(jax.sharding.AxisType.Auto,))):
        piped = jax.jit(loss)(layers, x, target)
    print(f"loss of one device {expected:.5f}, of the pipeline {piped:.5f}")


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    main()
