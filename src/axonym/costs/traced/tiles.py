"""Internal. The tiles in which a TPU stores an array; the last dimensions fill them.

`Walk` uses it to find out whether the parts of a sum consist of complete tiles. If not, the compiler makes no
reduce-scatter.
"""

import itertools
import math
from collections.abc import Iterable, Sequence

# Rows and columns of a tile, of numbers of 32 bits.
TILE = (8, 128)


def is_tiled(part: Sequence[int], dimensions: Iterable[int], *, as_written: bool = False) -> bool:
    """Return whether the parts of an array begin at borders of tiles.

    Args:
        part: the dimensions of one part.
        dimensions: the dimensions along which the array is divided.
        as_written: whether the last two dimensions are rows and columns of tiles, even if this wastes space.
    """
    # A vector has no rows of tiles that a part could cut.
    if len(part) < 2:
        return True
    rows, columns = len(part) - 2, len(part) - 1
    if not as_written:
        rows, columns = choose_tile(part)
    steps = {rows: TILE[0], columns: TILE[1]}
    return all(part[one] % steps.get(one, 1) == 0 for one in dimensions)


def choose_tile(part: Sequence[int]) -> tuple[int, int]:
    """Return the dimensions that are rows and columns of tiles: the two that waste least space in the tiles.

    If there is a tie, columns are the last dimension, and rows are the one before it.
    """
    last_first = range(len(part) - 1, -1, -1)
    pairs = [(rows, columns) for columns, rows in itertools.permutations(last_first, 2)]
    return min(pairs, key=lambda pair: _count_padded(part, pair))


def _count_padded(part: Sequence[int], pair: tuple[int, int]) -> int:
    """Return the number of elements in the tiles of a part, including empty places."""
    held = list(part)
    for dimension, step in zip(pair, TILE, strict=True):
        held[dimension] = -(-held[dimension] // step) * step
    return math.prod(held)
