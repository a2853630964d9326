"""Masks as boolean arrays."""

import itertools

import jax
import numpy as np
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import OperandError
from tests.nn.layouts import draw, fails, same

Q, K = axn.make_axes(pos=5, key_pos=7)


def loop(q_start, k_start):
    return np.array([[i + q_start >= j + k_start for j in range(7)] for i in range(5)])


@pytest.mark.parametrize(("q_start", "k_start"), [(0, 0), (2, 0), (0, 3), (-1, -4), (10, 0), (0, 10)])
def test_causal_mask_with_starts(q_start, k_start):
    same(nn.causal_mask(Q, K, q_start, k_start), ("pos", "key_pos"), loop(q_start, k_start))
    traced = jax.jit(lambda q, k: nn.causal_mask(Q, K, q_start=q, k_start=k))(q_start, k_start)
    same(traced, ("pos", "key_pos"), loop(q_start, k_start))
    zero = lambda start: axn.named(start, ())  # noqa: E731
    same(nn.causal_mask(Q, K, zero(q_start), zero(k_start)), ("pos", "key_pos"), loop(q_start, k_start))
    assert traced.dtype == bool


def test_causal_mask_with_starts_that_have_axes():
    starts = axn.named([0, 3, -2, 5], "batch")
    expected = np.stack([loop(start, 0) for start in (0, 3, -2, 5)])
    same(nn.causal_mask(Q, K, starts), ("batch", "pos", "key_pos"), expected)
    expected = np.stack([loop(0, start) for start in (0, 3, -2, 5)])
    same(nn.causal_mask(Q, K, k_start=starts), ("batch", "pos", "key_pos"), expected)
    both = nn.causal_mask(Q, K, starts, axn.named([1, 2], "heads"))
    expected = np.array([[loop(q, k) for q in (0, 3, -2, 5)] for k in (1, 2)])
    same(both.rearrange(("heads", "batch", ...)), ("heads", "batch", "pos", "key_pos"), expected)
    same(nn.causal_mask(Q, K, starts, starts), ("batch", "pos", "key_pos"), np.stack([loop(0, 0)] * 4))


def test_combining_masks():
    causal, padding = nn.causal_mask(Q, K), axn.named(np.arange(14).reshape(2, 7) % 3 > 0, ("batch", "key_pos"))
    for combine, operator in ((nn.combine_masks_and, np.logical_and), (nn.combine_masks_or, np.logical_or)):
        assert combine(None, None) is None
        assert combine(causal, None) is causal
        assert combine(None, causal) is causal
        expected = operator(causal.array[None], padding.array[:, None])
        for pair in ((causal, padding), (padding, causal)):
            same(combine(*pair).rearrange(("batch", "pos", "key_pos")), ("batch", "pos", "key_pos"), expected)
        full = causal.broadcast_axis(axn.Axis("batch", 2))
        same(combine(full, padding).rearrange(full.names), full.names, expected)


def test_prefix_lm_mask():
    expected = [[k - 1 <= q + 2 or k - 1 < 4 for k in range(7)] for q in range(5)]
    same(nn.prefix_lm_mask(Q, K, 4, q_start=2, k_start=-1), ("pos", "key_pos"), expected)
    lengths = axn.named([1, 6], "batch")
    expected = [[[k <= q or k < n for k in range(7)] for q in range(5)] for n in (1, 6)]
    same(nn.prefix_lm_mask(Q, K, lengths).rearrange(("batch", ...)), ("batch", "pos", "key_pos"), expected)


def test_forgetful_causal_mask():
    Long = axn.Axis("key_pos", 4000)
    for key, sampled in itertools.product(jax.random.split(jax.random.key(0), 2), (False, True)):
        mask = nn.forgetful_causal_mask(Long, 0.4, sampled, key=key)
        assert mask.axes == (Long,)
        assert mask.dtype == bool
        assert mask.array[0]
        hidden = 1 - mask.array.mean()
        assert hidden < 0.43 if sampled else abs(hidden - 0.4) < 0.03
    assert nn.forgetful_causal_mask(Long, 1.0, False, key=key).array.sum() == 1
    assert nn.forgetful_causal_mask(Long, 0.0, key=key).array.all()


def test_dropout_mask():
    mask = nn.dropout_mask(axn.make_axes(a=40, b=50), 0.3, key=jax.random.key(0))
    assert mask.names == ("a", "b")
    assert abs(mask.array.mean() - 0.7) < 0.05


def test_mask_to_bias():
    mask = nn.causal_mask(Q, K)
    bias = nn.mask_to_bias(mask)
    same(bias, ("pos", "key_pos"), np.where(np.tri(5, 7, dtype=bool), 0.0, -1e9))
    q, k = draw(Q, axn.Axis("dim", 4)), draw(K, axn.Axis("dim", 4), seed=1)
    weights = nn.dot_product_attention_weights("dim", "key_pos", q, k, bias=bias)
    same(weights, ("pos", "key_pos"), nn.dot_product_attention_weights("dim", "key_pos", q, k, mask=mask).array)


def test_conditions_are_no_arrays():
    problem = "a mask must be a NamedArray of booleans, not"
    fails(OperandError, f"mask_to_bias: {problem} bool", lambda: nn.mask_to_bias(True))
    fails(
        OperandError,
        f"mask_to_bias: {problem} AttentionMask\n  hint: use mask.materialize(QPos, KPos)",
        lambda: nn.mask_to_bias(nn.causal()),
    )
    array = nn.causal_mask(Q, K)
    for combine, operator in ((nn.combine_masks_and, "&"), (nn.combine_masks_or, "|")):
        for pair in ((nn.causal(), array), (array, nn.causal()), (None, nn.causal())):
            fails(
                OperandError,
                f"{combine.__name__}: {problem} AttentionMask\n"
                f"  hint: write mask1 {operator} mask2, where the first is an AttentionMask",
                lambda combine=combine, pair=pair: combine(*pair),
            )
