"""The network that the programs beside this one split over devices, as a single device computes it.

Inputs, hidden layers and outputs all call their axis `features`; its size may differ from layer to layer. A weight
calls its output side `features.out`, which follows the mapping of `features` where that leaves a mesh axis free.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import jax
import numpy as np

import axonym as axn
from axonym import NamedArray

Layer = tuple[NamedArray, NamedArray]  # weight {features, features.out}, bias {features}
Apply = Callable[[Layer, NamedArray], NamedArray]


def init(key: jax.Array, sizes: Sequence[int]) -> list[Layer]:
    """Draw one layer between each size and the next."""

    def layer(key: jax.Array, inputs: int, outputs: int) -> Layer:
        In, Out = axn.Axis("features", inputs), axn.Axis("features", outputs)
        keys = jax.random.split(key)
        return axn.random.normal(keys[0], (In, Out.derive("out"))) / inputs**0.5, axn.random.normal(keys[1], Out)

    return [layer(k, *ends) for k, ends in zip(jax.random.split(key, len(sizes) - 1), pairwise(sizes), strict=True)]


def dense(layer: Layer, x: NamedArray) -> NamedArray:
    weight, bias = layer
    return axn.dot(x, weight, axis="features").rename({"features.out": "features"}) + bias


def predict(layers: Sequence[Layer], x: NamedArray, dense: Apply = dense) -> NamedArray:
    *hidden, last = layers
    for layer in hidden:
        x = axn.nn.relu(dense(layer, x))
    return dense(last, x)


def squared_error(prediction: NamedArray, target: NamedArray) -> jax.Array:
    return ((prediction - target) ** 2).sum("features").mean().scalar()


def loss(layers: Sequence[Layer], x: NamedArray, target: NamedArray, dense: Apply = dense) -> jax.Array:
    return squared_error(predict(layers, x, dense), target)


def example(key: jax.Array) -> tuple[list[Layer], NamedArray, NamedArray]:
    """Draw parameters, a batch and its targets."""
    keys = jax.random.split(key, 3)
    x = axn.random.normal(keys[1], axn.make_axes(batch=32, features=16))
    target = axn.random.normal(keys[2], axn.make_axes(batch=32, features=8))
    return init(keys[0], [16, 64, 64, 64, 8]), x, target


def compare(split: Callable[..., jax.Array], mesh: jax.sharding.Mesh) -> None:
    """Print the loss of one device and of a mesh, and how far their gradients are apart."""
    arguments = jax.jit(example)(jax.random.key(0))
    one, expected = jax.jit(jax.value_and_grad(loss))(*arguments)
    with axn.set_mesh(mesh):
        many, gradient = jax.jit(jax.value_and_grad(split))(*arguments)
    apart = jax.tree.map(lambda a, b: np.abs(np.asarray(a) - np.asarray(b)).max(), gradient, expected)
    print(f"loss of one device {one:.5f}, of all {many:.5f}; gradients differ by {max(jax.tree.leaves(apart)):.0e}")
