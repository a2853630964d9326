"""Internal. How a convolution slides along one dimension, and how many of its products use an element of the image.

Both readers count convolutions by it. No operation multiplies padding or the gaps between spread elements, so they do
not count.
"""

from typing import NamedTuple

import numpy as np


class Sliding(NamedTuple):
    """How the kernel of a convolution slides along one dimension.

    Attributes:
        stride: the distance from one element of the result to the next.
        dilation: the distance between elements of the kernel.
        spread: the distance between elements of the image, with zeros between them.
        before: the padding in front of the image.
    """

    stride: int = 1
    dilation: int = 1
    spread: int = 1
    before: int = 0


def count_meetings(image: int, kernel: int, result: int, sliding: Sliding) -> int:
    """Count the pairs of result and kernel elements that use an element of the image.

    Args:
        image: the size of the image.
        kernel: the size of the kernel.
        result: the size of the result.
        sliding: how the kernel slides along the image.
    """
    # Elements of the result repeat with the spread: each of them meets the image, or the gaps between its elements.
    period = np.arange(sliding.spread)
    begun = np.arange(kernel)[:, None] * sliding.dilation - sliding.before + period * sliding.stride
    # For each kernel element and place in the period: the first and the last result inside of the image.
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
