"""Internal. The edges of blocks that devices exchange where a kernel slides along a sharded dimension.

In a trace for several devices, the layer writes these collectives itself. `Walk` counts them for a convolution in a
template, whose mesh axes have one device.
"""

import itertools
from collections.abc import Mapping, Sequence

from ...engine import Slide
from ..shared.ring import Pairs, reverse
from .equations import Equation, Value, count_shards, divide_shape
from .lookups import Part
from .moves import Move


def find_edge_moves(
    equation: Equation, inputs: Sequence[Value], mesh: Mapping[str, int]
) -> list[tuple[Part, Pairs]]:
    """List the permutes of a convolution: each device sends edges of its block of the image to its neighbours.

    Returns:
        Each permute, with the source and the target of each message.
    """
    image, kernel = inputs[:2]
    params = equation.params
    numbers = params["dimension_numbers"]
    block = list(divide_shape(image.shape, image.entries, mesh))
    found: list[tuple[Part, Pairs]] = []
    for i, (at, along) in enumerate(zip(numbers.lhs_spec[2:], numbers.rhs_spec[2:], strict=True)):
        count = count_shards(image.entries[at], mesh)
        if count == 1:
            continue
        pads = params["padding"][i]
        window = (kernel.shape[along] - 1) * params["rhs_dilation"][i] + 1
        slide = Slide(
            image.shape[at], window, params["window_strides"][i], pads, params["lhs_dilation"][i]
        )
        # In the gradient of a kernel, the blocks of the result's gradient slide along those of the image.
        blocks = (pads, pads) if kernel.entries[along] else slide.of_blocks(count)
        if blocks is None:
            continue
        widths, _ = blocks
        forward = frozenset(itertools.pairwise(range(count)))
        for width, pairs in zip(widths, (forward, reverse(forward)), strict=True):
            if width > 0:
                edge = (*block[:at], width, *block[at + 1 :])
                move = Move("collective-permute", image.entries[at], edge, (image.shape[at],))
                found.append((Part(move, image), pairs))
        # The next dimension has the edges of this one, too.
        block[at] += sum(widths)
    return found
