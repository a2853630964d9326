"""Attention over blocks: what is known of queries after some keys goes on with others."""

import numpy as np

import axonym as axn
from axonym import nn
from axonym.nn.attention.blocks.loop import fold_all, start_rows
from axonym.nn.attention.blocks.plan import prepare
from axonym.nn.attention.call import KEYS, AttentionCall
from tests.nn.layouts import draw

P, K, D = axn.make_axes(pos=7, key_pos=10, head_dim=4)


def test_keys_may_come_in_parts_and_in_any_order():
    """Blocks of queries share positions, since three do not divide seven."""
    q, k, v = draw(P, D), draw(K, D, seed=1), draw(K, D, seed=2)
    rows = None
    for start in (5, 0):
        part = {"key_pos": slice(start, start + 5)}
        call = AttentionCall.of(
            P, "key_pos", D, q, k[part], v[part], nn.causal(), None, None, q_start=3, block_size=(3, 2)
        )
        plan, operands, rest = prepare(call)
        rest = rest._replace(offsets={KEYS: start})
        rows = fold_all(plan, operands, rest, rows or start_rows(plan, operands))
    scores = np.where(np.tri(7, 10, 3, dtype=bool), q.array @ k.array.T / 2, -np.inf)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    np.testing.assert_allclose(rows.largest.array, scores.max(1), rtol=1e-5)
    np.testing.assert_allclose(rows.total.array, weights.sum(1), rtol=1e-5)
    np.testing.assert_allclose(rows.weighted.array, weights @ v.array, rtol=1e-4, atol=1e-5)
