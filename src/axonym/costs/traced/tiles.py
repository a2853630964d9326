"""Internal. How a TPU stores an array: in tiles, which the last dimensions fill.

`Walk` asks whether the parts of a sum are whole tiles. Otherwise the compiler makes no reduce-scatter.
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
        as_written: whether the last two dimensions are rows and columns of tiles, however much of a tile that wastes.
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
    """Return the dimensions that are rows and columns of tiles: those that waste least of the tiles.

    If several waste as much, the last dimension is that of columns, and the one before it that of rows.
    """
    last_first = range(len(part) - 1, -1, -1)
    pairs = [(rows, columns) for columns, rows in itertools.permutations(last_first, 2)]
    return min(pairs, key=lambda pair: _count_padded(part, pair))


def _count_padded(part: Sequence[int], pair: tuple[int, int]) -> int:
    """Return how many numbers the tiles of a part hold, with their empty places."""
    held = list(part)
    for dimension, step in zip(pair, TILE, strict=True):
        held[dimension] = -(-held[dimension] // step) * step
    return math.prod(held)
