"""Internal. XLA for CPUs may give a gathered operand of a Fourier transform a layout that its transform refuses.

It chooses another order of the dimensions in memory if the compiler, not the program, gathers the axis. All
versions on CPUs. There is no reproducer: the choice depends on the whole program around the transform.
"""

from collections.abc import Sequence


def must_gather_before(sizes: Sequence[int | None]) -> bool:
    """Return whether the program gathers the axis before the transform.

    If an axis is cropped, or several are transformed, the compiler sends less and the fault does not occur.

    Args:
        sizes: the lengths to which the axes are cropped or padded; None for the axis as it is.
    """
    return tuple(sizes) == (None,)
