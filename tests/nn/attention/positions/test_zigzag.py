"""Zig-zag order of positions, and equal work under it."""

import jax
import numpy as np
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import ArgumentError, AxisNotFoundError
from tests.nn.attending import with_gradients
from tests.nn.layouts import draw, fails

Pos, Batch, Dim = axn.make_axes(pos=16, batch=2, head_dim=4)
MAPPING = {"pos": "data"}


def test_each_device_has_a_run_from_the_front_and_one_from_the_back():
    tokens, positions, rest = nn.zigzag((draw(Batch, Pos), axn.arange(Pos), 3), "pos", 4)
    order = [0, 1, 14, 15, 2, 3, 12, 13, 4, 5, 10, 11, 6, 7, 8, 9]
    assert positions.tolist() == order
    np.testing.assert_array_equal(tokens.array, draw(Batch, Pos).array[:, order])
    assert rest == 3
    back = nn.zigzag(tokens, "pos", 4, undo=True)
    np.testing.assert_array_equal(back.array, draw(Batch, Pos).array)
    pairs = order >= np.array(order)[:, None]
    assert len(set(pairs.reshape(16, 4, 4).sum((0, 2)))) == 1  # scores of each device


def test_the_mapping_says_how_many_ways(auto_mesh):
    assert nn.zigzag(axn.arange(Pos), "pos").tolist() == list(range(16))
    with axn.set_mesh(auto_mesh), axn.axis_mapping(MAPPING):
        assert nn.zigzag(axn.arange(Pos), "pos").tolist() == nn.zigzag(axn.arange(Pos), "pos", 4).tolist()


def test_attention_and_gradients_are_those_in_order(auto_mesh):
    """Segments, windows and positions of queries and keys go along."""
    q, k, v = (draw(Batch, Pos, Dim, seed=i) for i in range(3))
    ids = axn.named(np.repeat([0, 1], [5, 11]), "pos")
    keys = {"pos": "pos.key"}

    def attend(q, k, v, mask, **options):
        k, v = k.rename(keys), v.rename(keys)
        return nn.dot_product_attention("pos", "pos.key", "head_dim", q, k, v, mask, **options)

    def in_order(q, k, v):
        return attend(q, k, v, nn.causal() & nn.window(9) & nn.segments(ids), implementation="plain")

    def zigzagged(q, k, v):
        q, k, v, own, positions = nn.zigzag((q, k, v, ids, axn.arange(Pos)), "pos")
        mask = (nn.causal() & nn.window(9) & nn.segments(own)).at(positions)
        out = attend(q, k, v, mask, implementation="ring", block_size=2)
        return nn.zigzag(out, "pos", undo=True)

    wanted = with_gradients(in_order)(q, k, v)
    with axn.set_mesh(auto_mesh), axn.axis_mapping(MAPPING):
        found = with_gradients(zigzagged)(*axn.shard((q, k, v), MAPPING))
    for one, other in zip(*map(jax.tree.leaves, (found, wanted)), strict=True):
        np.testing.assert_allclose(one, other, atol=5e-6)


def test_errors():
    fails(
        ArgumentError,
        "zigzag: pos=16 cannot be split evenly in twice 3 runs\n  array has: pos=16\n  hint: use a multiple of 6",
        lambda: nn.zigzag(axn.arange(Pos), "pos", 3),
    )
    fails(AxisNotFoundError, "zigzag: no axis named 'position'", lambda: nn.zigzag(draw(Pos), "position", 2))
    with pytest.raises(ArgumentError, match="ways must be an int"):
        nn.zigzag(axn.arange(Pos), "pos", 1.5)
