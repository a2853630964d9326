"""Batch data parallelism: every device has all parameters and a part of the batch.

    device       0         1         ...   7
    parameters   all       all             all
    x, target    batch 0   batch 1         batch 7

The loss of the network is used as it is. Its average over devices is the loss of the whole batch, and its gradient
adds up those of all devices.
"""

from collections.abc import Sequence

import jax
import network

import axonym as axn
from axonym import NamedArray

LAYOUT = {"batch": "data"}


@axn.shard_map(mapping=LAYOUT)
def loss(layers: Sequence[network.Layer], x: NamedArray, target: NamedArray) -> jax.Array:
    return axn.pmean(network.loss(layers, x, target), "batch")


def main() -> None:
    network.compare(loss, jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,)))


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    main()
