"""What masks say for given positions, in no more axes than it takes, and of whole blocks of them."""

import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import OperandError
from axonym.nn.attention.masks.conditions import (
    Pairing,
    Range,
    count_positions,
    find_visible,
    logical_and,
    logical_or,
    may_see,
    minimum,
)
from tests.nn.layouts import same

Q, K = axn.make_axes(pos=3, key_pos=4)


def test_positions():
    same(count_positions(Q, 2), ("pos",), [2, 3, 4])
    same(count_positions(Q, jnp.asarray(-1)), ("pos",), [-1, 0, 1])
    same(count_positions(axn.Axis("pos", 300), jnp.uint8(2)), ("pos",), np.arange(300) + 2)
    same(count_positions(Q, axn.named([0, 5], "batch")), ("pos", "batch"), [[0, 5], [1, 6], [2, 7]])
    same(count_positions(None, 7), (), 7)
    start = axn.named([4, 5], "batch")
    assert count_positions(None, start) is start


def test_axes_along_which_nothing_changes_are_missing():
    def seen(mask):
        return find_visible(mask, Pairing(count_positions(Q, 0), count_positions(K, 0), "pos", "key_pos"))

    assert seen(nn.AttentionMask()) is None
    assert seen(nn.prefix(2) | nn.AttentionMask()) is None
    same(seen(nn.prefix(2)), ("key_pos",), [True, True, False, False])
    padding = axn.named([[True, True, False, True]], ("batch", "key_pos"))
    assert seen(nn.AttentionMask.of(padding)) is padding
    same(seen(nn.prefix(2) & padding).rearrange(padding.names), padding.names, [[True, True, False, False]])


def test_one_query_without_positions():
    mask = nn.causal() & nn.window(2)
    same(
        find_visible(mask, Pairing(count_positions(None, 2), count_positions(K, 0), None, "key_pos")),
        ("key_pos",),
        [False, True, True, False],
    )
    ids = nn.segments(axn.named([0, 1], "batch"), axn.named([[0, 0, 1, 1], [0, 0, 1, 1]], ("batch", "key_pos")))
    expected = [[True, True, False, False], [False, False, True, True]]
    same(
        find_visible(ids, Pairing(count_positions(None, 2), count_positions(K, 0), None, "key_pos")),
        ("batch", "key_pos"),
        expected,
    )
    with pytest.raises(OperandError) as caught:
        find_visible(
            nn.segments(axn.arange(Q)), Pairing(count_positions(None, 2), count_positions(K, 0), None, "key_pos")
        )
    assert str(caught.value) == (
        "segments: segment ids of a query without an axis of positions cannot be reused for its keys\n"
        "  hint: pass key_ids=..."
    )


def test_pairs():
    x, y = axn.named([True, False], "a"), axn.named([True, False], "b")
    same(logical_and(x, y), ("a", "b"), np.array([[True, False], [False, False]]))
    same(logical_or(x, y), ("a", "b"), np.array([[True, True], [True, False]]))
    assert minimum(3, 2) == 2
    assert minimum(jnp.asarray(3), 2) == 2
    same(minimum(axn.named([1, 5], "a"), 3), ("a",), [1, 3])


# blocks of keys
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
