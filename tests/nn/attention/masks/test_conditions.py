"""What masks say for given positions, in no more axes than it takes."""

import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import OperandError
from axonym.nn.attention.masks.conditions import logical_and, logical_or, positions, smaller, visible
from tests.nn.layouts import same

Q, K = axn.make_axes(pos=3, key_pos=4)


def test_positions():
    same(positions(Q, 2), ("pos",), [2, 3, 4])
    same(positions(Q, jnp.asarray(-1)), ("pos",), [-1, 0, 1])
    same(positions(axn.Axis("pos", 300), jnp.uint8(2)), ("pos",), np.arange(300) + 2)
    same(positions(Q, axn.named([0, 5], "batch")), ("pos", "batch"), [[0, 5], [1, 6], [2, 7]])
    same(positions(None, 7), (), 7)
    start = axn.named([4, 5], "batch")
    assert positions(None, start) is start


def test_axes_along_which_nothing_changes_are_missing():
    def seen(mask):
        return visible(mask, positions(Q, 0), positions(K, 0), "pos", "key_pos")

    assert seen(nn.AttentionMask()) is None
    assert seen(nn.prefix(2) | nn.AttentionMask()) is None
    same(seen(nn.prefix(2)), ("key_pos",), [True, True, False, False])
    padding = axn.named([[True, True, False, True]], ("batch", "key_pos"))
    assert seen(nn.AttentionMask.of(padding)) is padding
    same(seen(nn.prefix(2) & padding).rearrange(padding.names), padding.names, [[True, True, False, False]])


def test_one_query_without_positions():
    mask = nn.causal() & nn.window(2)
    same(visible(mask, positions(None, 2), positions(K, 0), None, "key_pos"), ("key_pos",), [False, True, True, False])
    ids = nn.segments(axn.named([0, 1], "batch"), axn.named([[0, 0, 1, 1], [0, 0, 1, 1]], ("batch", "key_pos")))
    expected = [[True, True, False, False], [False, False, True, True]]
    same(visible(ids, positions(None, 2), positions(K, 0), None, "key_pos"), ("batch", "key_pos"), expected)
    with pytest.raises(OperandError) as caught:
        visible(nn.segments(axn.arange(Q)), positions(None, 2), positions(K, 0), None, "key_pos")
    assert str(caught.value) == (
        "segments: segment ids of a query without an axis of positions cannot be reused for its keys\n"
        "  hint: pass key_ids=..."
    )


def test_pairs():
    x, y = axn.named([True, False], "a"), axn.named([True, False], "b")
    same(logical_and(x, y), ("a", "b"), np.array([[True, False], [False, False]]))
    same(logical_or(x, y), ("a", "b"), np.array([[True, True], [True, False]]))
    assert smaller(3, 2) == 2
    assert smaller(jnp.asarray(3), 2) == 2
    same(smaller(axn.named([1, 5], "a"), 3), ("a",), [1, 3])
