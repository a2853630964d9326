"""Fully sharded data parallelism: every device stores a part of each parameter, and has a part of the batch.

    device       0            1            ...   7
    parameters   features 0   features 1         features 7
    x, target    batch 0      batch 1            batch 7
    in a layer   all of its parameters, gathered just before their use

`jax.checkpoint` keeps the arguments of a layer for the backward pass, and not what is gathered inside of it: the weight
is gathered again there. The gradient of a gathered parameter is added up and cut in one reduce-scatter.
"""

from collections.abc import Sequence

import jax
import network

import axonym as axn
from axonym import NamedArray

LAYOUT = axn.Mappings(parameters={"features": "data"}, compute={"batch": "data"})


@jax.checkpoint
def dense(layer: network.Layer, x: NamedArray) -> NamedArray:
    return network.dense(axn.all_gather(layer, "data"), x)


@axn.shard_map(mapping=LAYOUT)
def loss(layers: Sequence[network.Layer], x: NamedArray, target: NamedArray) -> jax.Array:
    return axn.pmean(network.loss(layers, x, target, dense), "batch")


def main() -> None:
    network.compare(loss, jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,)))


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    main()
