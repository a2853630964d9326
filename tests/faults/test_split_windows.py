"""What blocks of an axis exchange, against windows that are counted one by one."""

import itertools

import numpy as np

from axonym.faults.split_windows import Slide


def seen(x, slide):
    """List what each window sees of an axis, whose elements lie apart from each other, with zeros around."""
    apart = np.zeros((len(x) - 1) * slide.apart + 1, int)
    apart[:: slide.apart] = x
    low, high = slide.pads
    apart = np.pad(apart, (max(low, 0), max(high, 0)))
    apart = apart[max(-low, 0) : len(apart) - max(-high, 0)]
    starts = range(0, len(apart) - slide.window + 1, slide.step)
    return [apart[start : start + slide.window].tolist() for start in starts]


def test_blocks_with_edges_see_the_windows_of_the_whole():
    found = 0
    for window, step, low, high, apart, count in itertools.product(
        (1, 2, 3, 5), (1, 2, 3), (-1, 0, 1, 2), (-1, 0, 1, 3), (1, 2, 3), (2, 4)
    ):
        slide = Slide(12, window, step, (low, high), apart)
        plan = slide.of_blocks(count)
        x = np.arange(1, 13)
        assert slide.positions == len(seen(x, slide))
        if plan is None:
            continue
        found += 1
        (before, after), pads = plan
        around = np.pad(x, (before, after))
        blocks = [around[i : i + before + 12 // count + after] for i in range(0, 12, 12 // count)]
        windows = [own for block in blocks for own in seen(block, slide._replace(size=len(block), pads=pads))]
        assert windows[: slide.positions] == seen(x, slide)
    assert found > 400


def test_blocks_that_cannot_exchange_edges():
    assert Slide(8, 3, 1, (1, 1)).of_blocks(4) == ((1, 1), (0, 0))
    assert Slide(8, 3, 1, (0, 0)).of_blocks(4) == ((0, 2), (0, 0))
    assert Slide(8, 7, 1, (3, 3)).of_blocks(4) is None  # more than one neighbour
    assert Slide(8, 4, 4, (1, 1)).of_blocks(4) is None  # windows that start elsewhere in each block
    assert Slide(8, 3, 1, (2, 2)).of_blocks(4) is None  # more windows than elements
    assert Slide(0, 1, 1, (0, 0)).of_blocks(4) is None
