"""Internal. What the compilers for CPU, GPU and TPU make of the same function.

`Walk` and `moves` ask a `Compiler` where programs for different devices differ. No other module names a platform.
"""

from typing import NamedTuple


class Compiler(NamedTuple):
    """What a compiler does.

    Attributes:
        scatters: it makes a reduce-scatter of an all-reduce of which devices use a part.
        folds: it makes one all-reduce of a sum over several dimensions that are split.
        merges: it merges what a checkpoint computes again with what was computed before, though the checkpoint asks for
            no such thing.
        adds: it adds what devices have summed before they sum it, and sums once.
        rounds: it rounds what only products read, or what is rounded anyway, before it is gathered.
        tiles: it makes no reduce-scatter whose parts are not whole tiles.
        windows: the fewest bytes of a product whose parts it sends around in both directions, as soon as each is
            computed, in place of a reduce-scatter; none, if it does not. The products are those that nothing else
            splits. On a v5e, products of 256 KiB are scattered, those of 2.25 MiB are not.
        intensity: the fewest operations for each byte of such a product. On 8 devices of v5e, products of float32 with
            1024 terms for each number are scattered, those with 2048 are not, nor those of bfloat16 with 1024: they
            take long enough to send something meanwhile.
        masks: it multiplies each row with the matrices of all groups of a ragged product, and keeps one of the results.
        masks_sums: it does so for the gradients of these matrices, which sum over the rows of each group.
    """

    scatters: bool
    folds: bool
    merges: bool
    masks: bool
    adds: bool = True
    rounds: bool = False
    tiles: bool = False
    windows: int | None = None
    intensity: int = 0
    masks_sums: bool = False


CPU = Compiler(scatters=False, folds=False, merges=True, masks=True, adds=False)
ACCELERATOR = Compiler(scatters=True, folds=True, merges=False, masks=False)
TPU = ACCELERATOR._replace(rounds=True, tiles=True, windows=2**20, intensity=1024, masks_sums=True)


def find_compiler(platform: str) -> Compiler:
    """Return what the compiler for a platform does, such as `cpu` or `tpu`."""
    if platform == "cpu":
        return CPU
    if platform == "tpu":
        return TPU
    return ACCELERATOR
