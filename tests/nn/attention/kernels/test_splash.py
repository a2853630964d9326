"""What the splash kernel is asked to do, and what it refuses."""

import pytest

import axonym as axn
from axonym import nn
from axonym.errors import ArgumentError
from tests.nn.layouts import draw

Q, D = axn.make_axes(pos=256, head_dim=8)
K = Q.alias("key_pos")


def test_positions_in_any_order_are_refused():
    """The kernel counts positions along the axes, and would give other numbers without a word."""
    q, k = draw(Q, D), draw(K, D, seed=1)
    mask = nn.causal().at(nn.zigzag(axn.arange(Q), Q, 2))
    with pytest.raises(ArgumentError) as caught:
        nn.dot_product_attention(Q, K, D, q, k, k, mask, implementation="splash")
    assert str(caught.value) == (
        "dot_product_attention: implementation 'splash' does not support this: it supports only causal masks, "
        'windows and segments, combined by &\n  hint: "plain" and "blockwise" do'
    )
