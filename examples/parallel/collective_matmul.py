"""Products that multiply what is here while the next piece travels around a ring of devices.

`gathered` and `scattered` are those of matmul.py with their collective taken apart: instead of one `all_gather` before
the product, or one `psum_scatter` after it, small pieces move while others are multiplied. On a row of four devices:

    gathered      device 0          device 1          device 2          device 3
    step 0        x0 w[0]           x1 w[1]           x2 w[2]           x3 w[3]
    step 1      + x3 w[3]         + x0 w[0]         + x1 w[1]         + x2 w[2]          blocks of x moved on by one
    step 2      + x2 w[2]         + x3 w[3]         + x0 w[0]         + x1 w[1]
    step 3      + x1 w[1]         + x2 w[2]         + x3 w[3]         + x0 w[0]

    scattered     device 0          device 1          device 2          device 3
    step 0        h0 w[3]           h1 w[0]           h2 w[1]           h3 w[2]
    step 1      y2 + h0 w[2]      y3 + h1 w[3]      y0 + h2 w[0]      y1 + h3 w[1]       sums moved on by one
    step 2      y1 + h0 w[1]      y2 + h1 w[2]      y3 + h2 w[3]      y0 + h3 w[0]
    step 3      y0 + h0 w[0]      y1 + h1 w[1]      y2 + h2 w[2]      y3 + h3 w[3]

where w[i] is what of the weight belongs to block i of `embed`. `ways=(1, -1)` sends one half of each block around in
each direction, so that both directions of the links are in use. `unroll=False` keeps the steps a compiled loop.

Reference:
    Wang et al. (2023), Overlap communication with dependent computation via decomposition in large models.
"""

from collections.abc import Sequence

import jax
import matmul
import numpy as np

import axonym as axn
from axonym import NamedArray


@axn.shard_map(mapping=matmul.LAYOUT)
def gathered(x: NamedArray, weight: NamedArray, ways: Sequence[int] = (1,), unroll: bool = True) -> NamedArray:
    """Multiply {batch, embed} by {embed, mlp}, while blocks of `x` go around."""
    count, here = axn.collectives.axis_size("embed"), axn.axis_index("embed")
    size = x.axis_size("embed") // len(ways)
    weight = axn.pcast(weight, "batch")  # its gradient is then summed over the batch once, and not in each step

    def product(step: int, parts: list[NamedArray]) -> NamedArray:
        blocks = [(here - step * way) % count * len(ways) + i for i, way in enumerate(ways)]
        rows = [weight["embed", axn.dblock(block, size)] for block in blocks]
        return sum(axn.dot(*pair, axis="embed") for pair in zip(parts, rows, strict=True))

    def move(step: int, carry: tuple[list[NamedArray], NamedArray]) -> tuple[list[NamedArray], NamedArray]:
        parts, y = carry
        parts = [axn.ppermute(part, "embed", way) for part, way in zip(parts, ways, strict=True)]
        return parts, y + product(step, parts)

    parts = [x["embed", axn.dblock(i, size)] for i in range(len(ways))]
    return jax.lax.fori_loop(1, count, move, (parts, product(0, parts)), unroll=unroll)[1]


@axn.shard_map(mapping=matmul.LAYOUT)
def scattered(h: NamedArray, weight: NamedArray, ways: Sequence[int] = (1,), unroll: bool = True) -> NamedArray:
    """Multiply {batch, mlp} by {mlp, embed}, while sums go around."""
    count, here = axn.collectives.axis_size("embed"), axn.axis_index("embed")
    size = weight.axis_size("embed") // (count * len(ways))
    weight = axn.pcast(weight, "batch")

    def products(step: int) -> list[NamedArray]:
        blocks = [(here - (step + 1) * way) % count * len(ways) + i for i, way in enumerate(ways)]
        return [axn.dot(h, weight["embed", axn.dblock(block, size)], axis="mlp") for block in blocks]

    def move(step: int, sums: list[NamedArray]) -> list[NamedArray]:
        moved = [axn.ppermute(part, "embed", way) for part, way in zip(sums, ways, strict=True)]
        return [part + more for part, more in zip(moved, products(step), strict=True)]

    return axn.concatenate("embed", jax.lax.fori_loop(1, count, move, products(0), unroll=unroll))


def main() -> None:
    x, h, up, down = jax.jit(matmul.example)(jax.random.key(0))

    with axn.set_mesh(jax.make_mesh((2, 4), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)):
        for ways in ((1,), (1, -1)):
            for overlapped, at_once, args in (
                (gathered, matmul.gathered, (x, up)),
                (scattered, matmul.scattered, (h, down)),
            ):
                apart = np.abs(np.asarray(overlapped(*args, ways).array) - at_once(*args).array).max()
                print(f"{overlapped.__name__:9} {len(ways)} ways: differs by {apart:.0e} from one collective")


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    main()
