"""Sizes of blocks."""

import pytest

from axonym.errors import ArgumentError
from axonym.nn.attention.blocks.plan import choose_block_sizes


@pytest.mark.parametrize(
    ("given", "sizes", "blocks"),
    [
        (None, (100, 1024), (100, 512)),
        (None, (513, 600), (257, 300)),
        ((4, 3), (8, 10), (4, 3)),
        ((4, 4), (9, 9), (3, 3)),
    ],
)
def test_the_last_block_hides_least(given, sizes, blocks):
    assert choose_block_sizes(given, sizes) == blocks


def test_a_block_has_a_position():
    with pytest.raises(ArgumentError, match="at least one position, not 0"):
        choose_block_sizes((0, 3), (8, 8))
