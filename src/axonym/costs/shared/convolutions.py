"""Internal. How a convolution slides along one dimension, and how many of its products meet an element of the image.

Both readers count convolutions by it. Padding and the gaps between spread elements are multiplied by nobody, and so do
not count.
"""

from typing import NamedTuple

import numpy as np


class Sliding(NamedTuple):
    """How the kernel of a convolution goes along one dimension.

    Attributes:
        stride: how far it goes from one element of the result to the next.
        dilation: how far its own elements are from each other.
        spread: how far elements of the image are from each other; between them, there is nothing.
        before: how much padding is in front of the image.
    """

    stride: int = 1
    dilation: int = 1
    spread: int = 1
    before: int = 0


def count_meetings(image: int, kernel: int, result: int, sliding: Sliding) -> int:
    """Count the pairs of an element of the result and one of the kernel that meet an element of the image.

    Args:
        image: the size of the image.
        kernel: that of the kernel.
        result: that of the result.
        sliding: how the kernel goes along the image.
    """
    # Of every so many elements of the result, the same one meets the image or what is between its elements.
    period = np.arange(sliding.spread)
    begun = np.arange(kernel)[:, None] * sliding.dilation - sliding.before + period * sliding.stride
    step = sliding.stride * sliding.spread
    first = np.maximum(0, _divide_up(-begun, step))
    end = np.minimum(
        _divide_up(result - period, sliding.spread),
        _divide_up(image * sliding.spread - begun, step),
    )
    return int(np.sum(np.maximum(0, end - first), where=begun % sliding.spread == 0))


def _divide_up(number: np.ndarray, by: int) -> np.ndarray:
    """Divide, and round up."""
    return -(-number // by)
