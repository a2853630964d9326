"""Tensor parallelism: every device has a part of the features, of activations and parameters alike.

    device        0                1                ...   7
    weight        features 0       features 1             features 7        all of features.out
    x             features 0       features 1             features 7
    product       a part of the sum, over all of features.out
    result        features.out 0   features.out 1         features.out 7

Only the product of a layer runs once per device. All else is the network as it is: the compiler splits it, and adds up
the squared errors.
"""

from collections.abc import Sequence

import jax
import network

import axonym as axn
from axonym import NamedArray

LAYOUT = {"features": "model"}


@axn.shard_map(mapping=LAYOUT)
def dense(layer: network.Layer, x: NamedArray) -> NamedArray:
    weight, bias = layer
    y = axn.psum_scatter(axn.dot(x, weight, axis="features"), "features.out")
    return y.rename({"features.out": "features"}) + bias


def loss(layers: Sequence[network.Layer], x: NamedArray, target: NamedArray) -> jax.Array:
    return network.loss(layers, x, target, dense)


def main() -> None:
    network.compare(loss, jax.make_mesh((8,), ("model",), axis_types=(jax.sharding.AxisType.Auto,)))


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    main()
