"""What the compilers for different devices make of the same function."""

from typing import NamedTuple


class Compiler(NamedTuple):
    """What a compiler does.

    Attributes:
        scatters: it makes a reduce-scatter of an all-reduce of which devices use a part.
        folds: it makes one all-reduce of a sum over several dimensions that are split.
        merges: it merges what a checkpoint computes again with what was computed before, though the checkpoint asks for
            no such thing.
        masks: it multiplies each row with the matrices of all groups of a ragged product, and keeps one of the results.
    """

    scatters: bool
    folds: bool
    merges: bool
    masks: bool


CPU = Compiler(scatters=False, folds=False, merges=True, masks=True)
ACCELERATOR = Compiler(scatters=True, folds=True, merges=False, masks=False)


def compiler_of(platform: str) -> Compiler:
    """Return what the compiler for a platform does, such as `cpu` or `tpu`."""
    if platform == "cpu":
        return CPU
    return ACCELERATOR
