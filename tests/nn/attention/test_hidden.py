"""What a mask hides of a block of scores: what may be seen is never said to be hidden."""

import numpy as np
import pytest

import axonym as axn
from axonym import nn
from axonym.nn.attention.hidden import Range, may_see

MASKS = [
    nn.causal(),
    nn.causal() & nn.window(3),
    nn.window(4),
    nn.prefix(5),
    nn.causal() | nn.prefix(3),
    nn.causal() & nn.window(2) | nn.window(3) & nn.prefix(6),
]


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_a_block_is_hidden_exactly_where_all_its_positions_are(mask):
    seen = mask.materialize(*axn.make_axes(query=12, key=12)).array
    for first in range(0, 12, 3):
        for other in range(0, 12, 3):
            found = may_see(mask, Range(first, first + 2), Range(other, other + 2))
            assert bool(found) == bool(np.asarray(seen[first : first + 3, other : other + 3]).any())


def test_conditions_on_more_than_positions_hide_no_block():
    mask = nn.causal() | nn.AttentionMask.of(axn.named([True], "key"))
    assert may_see(mask, Range(0, 2), Range(5, 6)) is True
