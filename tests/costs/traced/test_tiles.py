"""The layouts are those that libtpu gives gradients of a decoder, on a v5e 2x4; what it scatters, these tests say."""

import pytest

from axonym.costs.traced.tiles import choose_tile, is_tiled

# Parts of weights: their dimensions, rows and columns of their tiles, the dimension that is cut, and whether the
# program has a reduce-scatter.
PARTS = [
    # Of queries and keys, of the product after attention, and of perceptrons, by the number of inputs of a part.
    ((16, 4, 2, 16), (0, 3), 0, True),
    ((4, 2, 16, 16), (2, 3), 3, False),
    ((32, 2, 2, 16), (3, 0), 0, False),
    ((2, 2, 16, 32), (2, 3), 3, False),
    ((64, 4, 16), (2, 0), 0, False),
    ((128, 2, 16), (2, 0), 0, True),
    ((2, 2, 64, 32), (3, 2), 3, True),
    ((2, 2, 64, 64), (2, 3), 3, False),
    ((96, 12, 64), (2, 0), 0, False),
    ((96, 192), (0, 1), 0, True),
    ((192, 96), (0, 1), 1, False),
    ((384, 16), (1, 0), 1, True),
]


@pytest.mark.parametrize(("part", "layout", "cut", "is_scattered"), PARTS)
def test_parts_fill_as_much_of_their_tiles_as_they_can(part, layout, cut, is_scattered):
    assert choose_tile(part) == layout
    assert is_tiled(part, [cut]) == is_scattered


def test_dimensions_outside_of_tiles_may_be_cut_anywhere():
    assert is_tiled((3, 8, 128), [0])
    assert not is_tiled((3, 8, 128 + 64), [0, 2])


def test_vectors_are_no_tiles():
    assert is_tiled((3,), [0])
