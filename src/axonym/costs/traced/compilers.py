"""Internal. Differences between the compilers for CPU, GPU and TPU.

`Walk` and `moves` use a `Compiler` wherever programs for different devices differ. No other module names a platform.
"""

from typing import NamedTuple


class Compiler(NamedTuple):
    """The choices of a compiler.

    Attributes:
        scatters: whether it turns an all-reduce into a reduce-scatter if each device uses a part of the sum.
        folds: whether it sums over several divided dimensions in one all-reduce.
        merges: whether it merges a recomputed value with the original one, although a checkpoint forbids this.
        adds: whether it adds partial sums first, and then sums only once among devices.
        rounds: whether it rounds an array before it is gathered, if only products read it.
        tiles: whether the parts of a reduce-scatter must be complete tiles.
        windows: the least size in bytes from which it replaces the reduce-scatter of a product: it sends each part
            around in both directions as soon as it is computed. None if it never does. No other mesh axis may divide
            the product. On a v5e, products of 256 KiB are scattered, and those of 2.25 MiB are not.
        ring: the most devices along which such parts go around. Slices of 16 and 32 chips of v5e, v5p and v6e do it,
            and those of 64 to 256 chips sum the complete product.
        intensity: the least number of operations per byte of such a product, which then takes long enough to overlap
            with sending. On 8 devices of v5e, float32 products with 1024 terms for each number are scattered; those
            with 2048 terms are not, nor are bfloat16 products with 1024.
        masks: whether it multiplies each row of a ragged product with the matrices of all groups, and keeps only one
            result.
        masks_sums: whether it does the same for the gradients of these matrices, which sum over the rows of a group.
        platform: the platform that it compiles for.
    """

    scatters: bool
    folds: bool
    merges: bool
    masks: bool
    adds: bool = True
    rounds: bool = False
    tiles: bool = False
    windows: int | None = None
    ring: int = 0
    intensity: int = 0
    masks_sums: bool = False
    platform: str = ""


# Found by comparing programs of XLA's compilers with the counts: see benchmarks/cost.py.
CPU = Compiler(scatters=False, folds=False, merges=True, masks=True, adds=False)
# The compilers for GPU and TPU have these in common.
ACCELERATOR = Compiler(scatters=True, folds=True, merges=False, masks=False)
TPU = ACCELERATOR._replace(
    rounds=True, tiles=True, windows=2**20, ring=32, intensity=1024, masks_sums=True
)


def find_compiler(platform: str, *, is_ideal: bool = False) -> Compiler:
    """Return the compiler for a platform, such as `cpu` or `tpu`.

    Args:
        platform: its name.
        is_ideal: for a bound: without the products that it throws away, since a mapping of the groups avoids them.
    """
    compiler = {"cpu": CPU, "tpu": TPU}.get(platform, ACCELERATOR)._replace(platform=platform)
    return compiler._replace(masks=False, masks_sums=False) if is_ideal else compiler
