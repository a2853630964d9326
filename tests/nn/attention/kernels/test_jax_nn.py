"""How `jax.nn` and cuDNN are called."""

from types import SimpleNamespace

import jax
import numpy as np

import axonym as axn
from axonym import nn
from tests.nn.layouts import draw, same

B, H, G, Q, K, D, F = axn.make_axes(batch=4, heads=2, group=2, pos=128, key_pos=256, head_dim=8, out=8)
NAMES = ("batch", "heads", "group", "pos", "out")
IDS = axn.named(np.random.default_rng(1).integers(0, 2, (4, 128)), ("batch", "pos"))
KEY_IDS = axn.named(np.random.default_rng(2).integers(0, 2, (4, 256)), ("batch", "key_pos"))


def attend(q, k, v, **options):
    return nn.dot_product_attention("pos", "key_pos", "head_dim", q, k, v, **options)


def test_what_cudnn_is_called_with(monkeypatch):
    """Few heads of keys serve many of queries, and a mask that cuDNN knows is no array."""
    calls, original = [], jax.nn.dot_product_attention

    def record(query, key, value, bias, mask, **options):
        calls.append(SimpleNamespace(q=query.shape, k=key.shape, mask=mask, **{"is_causal": False, **options}))
        return original(query, key, value, bias, mask, **{**options, "implementation": "xla"})

    monkeypatch.setattr(jax.nn, "dot_product_attention", record)
    given = draw(B, H, G, Q, D), draw(B, H, K, D, seed=1), draw(B, H, K, F, seed=2)
    masks = nn.causal() & nn.window(5), nn.prefix(7), nn.segments(IDS, KEY_IDS)
    run = lambda way: [attend(*given, mask=mask, implementation=way) for mask in masks]  # noqa: E731
    for out, expected in zip(*jax.jit(lambda: (run("cudnn"), run("plain")))(), strict=True):
        same(out, NAMES, expected.array)
    causal, lengths, other = calls
    assert causal.q == (4, 128, 4, 8)
    assert causal.k == (4, 256, 2, 8)
    assert (causal.implementation, causal.is_causal, causal.local_window_size) == ("cudnn", True, (4, 0))
    assert lengths.key_value_seq_lengths.shape == (4,)
    assert causal.mask is lengths.mask is None
    assert not lengths.is_causal
    assert other.mask.shape == (4, 1, 128, 256)
