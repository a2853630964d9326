"""Three ways to multiply matrices that are split over devices.

Weights are split by `mlp`. Activations are split by batch and by whichever of `embed` and `mlp` they have. One row of a
mesh of 2 x 4 devices, (data, model), holds:

    device             0          1          2          3
    x                  embed 0    embed 1    embed 2    embed 3
    its weight         mlp 0      mlp 1      mlp 2      mlp 3      all of embed
    gathered x         embed 0-3  embed 0-3  embed 0-3  embed 0-3
    gathered(x, w)     mlp 0      mlp 1      mlp 2      mlp 3

    h                  mlp 0      mlp 1      mlp 2      mlp 3
    its weight         mlp 0      mlp 1      mlp 2      mlp 3      all of embed
    product            a part of the sum, over all of embed
    summed(h, w)       embed 0-3  embed 0-3  embed 0-3  embed 0-3
    scattered(h, w)    embed 0    embed 1    embed 2    embed 3
"""

import jax
import numpy as np

import axonym as axn
from axonym import NamedArray

LAYOUT = axn.Mappings(
    parameters={"embed": None, "mlp": "model"},
    compute={"batch": "data", "embed": "model", "mlp": "model"},
)


@axn.shard_map(mapping=LAYOUT)
def gathered(x: NamedArray, weight: NamedArray) -> NamedArray:
    """Multiply {batch, embed} by {embed, mlp}: a column of the result needs every feature."""
    return axn.dot(axn.all_gather(x, "embed"), weight, axis="embed")


@axn.shard_map(mapping=LAYOUT, out_mapping={"batch": "data"})
def summed(h: NamedArray, weight: NamedArray) -> NamedArray:
    """Multiply {batch, mlp} by {mlp, embed}: each device has a part of the sum, and gets all of it."""
    return axn.psum(axn.dot(h, weight, axis="mlp"), "mlp")


@axn.shard_map(mapping=LAYOUT)
def scattered(h: NamedArray, weight: NamedArray) -> NamedArray:
    """Multiply {batch, mlp} by {mlp, embed}: each device has a part of the sum, and gets its block of it."""
    return axn.psum_scatter(axn.dot(h, weight, axis="mlp"), "embed")


def example(key: jax.Array) -> list[NamedArray]:
    """Draw x, h, and the weight of each."""
    Batch, Embed, Mlp = axn.make_axes(batch=8, embed=16, mlp=32)
    axes = (Batch, Embed), (Batch, Mlp), (Embed, Mlp), (Mlp, Embed)
    return [axn.random.normal(*pair) for pair in zip(jax.random.split(key, 4), axes, strict=True)]


def main() -> None:
    x, h, up, down = jax.jit(example)(jax.random.key(0))
    wide, narrow = axn.dot(x, up, axis="embed"), axn.dot(h, down, axis="mlp")

    with axn.set_mesh(jax.make_mesh((2, 4), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)):
        for product, y, expected in (
            ("gathered", gathered(x, up), wide),
            ("summed", summed(h, down), narrow),
            ("scattered", scattered(h, down), narrow),
        ):
            close = np.allclose(y.array, expected.array, atol=1e-4)
            print(f"{product:9} {y.sharding.spec!s:20} equal to the product on one device: {close}")


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    main()
