"""FSDP over one axis of the mesh, tensor parallelism over the other.

On a mesh of 4 x 2 devices, (data, model), with the features cut in 8:

    parameters      model 0      model 1          x, target   model 0               model 1
    data 0          features 0   features 4       data 0      batch 0, first half   batch 0, second half
    data 1          features 1   features 5       data 1      batch 1, first half   batch 1, second half
    data 2          features 2   features 6       data 2      ...
    data 3          features 3   features 7       data 3

Gathered over `data`, a parameter has half of its features, as activations do. The rest is tensor parallelism.
"""

from collections.abc import Sequence

import jax
import network

import axonym as axn
from axonym import NamedArray

LAYOUT = axn.Mappings(
    parameters={"features": ("model", "data")},
    compute={"batch": "data", "features": "model"},
)


@jax.checkpoint
def dense(layer: network.Layer, x: NamedArray) -> NamedArray:
    weight, bias = axn.all_gather(layer, "data")
    y = axn.psum_scatter(axn.dot(x, weight, axis="features"), "features.out")
    return y.rename({"features.out": "features"}) + bias


@axn.shard_map(mapping=LAYOUT)
def loss(layers: Sequence[network.Layer], x: NamedArray, target: NamedArray) -> jax.Array:
    error = network.predict(layers, x, dense) - target
    return axn.pmean(axn.psum((error**2).sum("features"), "features").mean(), "batch").scalar()


def main() -> None:
    network.compare(loss, jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2))


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    main()
