"""Attention and masks against plain jnp: order of arguments, of axes, and what masks mean."""

import axonym.compat.haliax  # noqa: F401  # makes `haliax` resolve

# isort: split

import haliax as hax
import haliax.nn as hnn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax.nn.attention import (
    alibi_attention_bias,
    causal_mask,
    combine_masks_and,
    combine_masks_or,
    dot_product_attention,
    dot_product_attention_weights,
    dropout_mask,
    forgetful_causal_mask,
    mask_to_bias,
    prefix_lm_mask,
)

Batch, Pos, KPos, Heads, Group, Key = hax.make_axes(batch=2, pos=3, key_pos=4, heads=2, group=3, head_dim=8)
RANDOM = np.random.default_rng(0)
Q = RANDOM.normal(size=(2, 3, 2, 8)).astype(np.float32)
K, V = RANDOM.normal(size=(2, 2, 4, 2, 8)).astype(np.float32)
query = hax.named(Q, (Batch, Pos, Heads, Key))
key, value = (hax.named(x, (Batch, KPos, Heads, Key)) for x in (K, V))
KEY = jax.random.PRNGKey(0)


def softmax(x):
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def scores(q=Q, k=K, letters="bqhd,bkhd->bqhk"):
    return np.einsum(letters, q, k) / np.sqrt(8)


def attended(weights, v=V):
    return np.einsum("bqhk,bkhd->bqhd", weights, v)


def same(out, axes, expected, rtol=1e-5):
    assert type(out) is hax.NamedArray
    assert out.axes == tuple(axes)
    np.testing.assert_allclose(out.array, expected, rtol=rtol, atol=rtol)


@pytest.mark.parametrize(("k_pos", "dim"), [(KPos, Key), ("key_pos", "head_dim"), (("key_pos",), Key)])
def test_attention(k_pos, dim):
    weights = softmax(scores())
    same(dot_product_attention(k_pos, dim, query, key, value), (Batch, Pos, Heads, Key), attended(weights))
    same(dot_product_attention_weights(dim, k_pos, query, key), (Batch, Pos, Heads, KPos), weights)


@pytest.mark.parametrize(("q_start", "k_start"), [(0, 0), (0, 2), (3, 0), (2, 1)])
def test_a_prefix_counts_from_the_first_key(q_start, k_start):
    mask = prefix_lm_mask(Pos, KPos, 2, q_start, k_start)
    places = np.arange(4)
    same(mask, (Pos, KPos), (places < 2) | (k_start + places <= q_start + np.arange(3)[:, None]))
    same(
        prefix_lm_mask(QSeqLen=Pos, KSeqLen=KPos, prefix_len=2, q_start=q_start, k_start=k_start),
        (Pos, KPos),
        mask.array,
    )


def test_mask_and_bias():
    allowed = RANDOM.random((3, 4)) < 0.5
    allowed[0] = False
    added = RANDOM.normal(size=(2, 4)).astype(np.float32)
    mask, bias = hax.named(allowed, (Pos, KPos)), hax.named(added, (Heads, KPos))
    expected = softmax(np.where(allowed[:, None], scores() + added, -1e9))
    np.testing.assert_allclose(expected[:, 0], 0.25)
    out = dot_product_attention_weights(Key, KPos, query, key, mask=mask, bias=bias)
    same(out, (Batch, Pos, Heads, KPos), expected)
    for given in (mask, mask.astype(jnp.float32)):
        out = dot_product_attention(KPos, Key, query, key, value, given, bias)
        same(out, (Batch, Pos, Heads, Key), attended(expected))
    one, keys, values = query["batch", 0, "heads", 0], key["batch", 0, "heads", 0], value["batch", 0, "heads", 0]
    more = hax.named(RANDOM.random((2, 3, 4)) < 0.7, (Batch, Pos, KPos))  # a mask with an axis of its own
    weights = softmax(np.where(more.array, scores()[0, :, 0], -1e9))
    out = dot_product_attention(KPos, Key, one, keys, values, mask=more)
    same(out, (Batch, Pos, Key), np.einsum("bqk,kd->bqd", weights, V[0, :, 0]))


@pytest.mark.parametrize("dtype", [None, jnp.float32])
def test_half_precision(dtype):
    q, k, v = (x.astype(jnp.float16) for x in (query, key, value))
    mask = hax.zeros((Pos, KPos), dtype=bool)
    out = dot_product_attention(KPos, Key, q, k, v, mask, attention_dtype=dtype)
    assert out.dtype == jnp.float16
    np.testing.assert_allclose(out.array, np.broadcast_to(V.mean(1)[:, None], out.array.shape), rtol=0.01, atol=0.01)
    assert dot_product_attention_weights(Key, KPos, q, k, mask, attention_dtype=dtype).dtype == jnp.float16


def test_other_options():
    out = dot_product_attention_weights(Key, KPos, query, key, None, None, jnp.float32, "highest", 0.5)
    same(out, (Batch, Pos, Heads, KPos), softmax(scores() * np.sqrt(8) / 2))
    out = dot_product_attention(KPos, Key, query, key, value, None, None, jnp.float32, jax.lax.Precision.HIGHEST)
    same(out, (Batch, Pos, Heads, Key), attended(softmax(scores())))


def test_grouped_queries():
    grouped = RANDOM.normal(size=(2, 2, 3, 3, 8)).astype(np.float32)
    q = hax.named(grouped, (Batch, Heads, Group, Pos, Key))
    weights = softmax(scores(grouped, letters="bhgqd,bkhd->bhgqk", k=K))
    expected = np.einsum("bhgqk,bkhd->bhgqd", weights, V)
    mask = causal_mask(Pos, KPos)
    same(dot_product_attention(KPos, Key, q, key, value), (Batch, Heads, Group, Pos, Key), expected)
    assert dot_product_attention(KPos, Key, q, key, value, mask).axes == (Batch, Heads, Group, Pos, Key)
    one = key["heads", 0], value["heads", 0]  # one key for all heads
    weights = softmax(scores(k=K[:, :, 0], letters="bqhd,bkd->bqhk"))
    expected = np.einsum("bqhk,bkd->bqhd", weights, V[:, :, 0])
    same(dot_product_attention(KPos, Key, query, *one), (Batch, Pos, Heads, Key), expected)


def test_order_of_axes():
    q = query.rearrange(("head_dim", "heads", "batch", "pos"))
    expected = attended(softmax(scores()))
    out = dot_product_attention(KPos, Key, q, key, value)
    same(out, (Heads, Batch, Pos, Key), expected.transpose(2, 0, 1, 3))
    assert dot_product_attention_weights(Key, KPos, q, key).axes == (Heads, Batch, Pos, KPos)
    renamed = value.rename({"head_dim": "value_dim"})
    same(dot_product_attention(KPos, Key, q, key, renamed).rearrange(("batch", "pos", "heads", "value_dim")),
         (Batch, Pos, Heads, hax.Axis("value_dim", 8)), expected)  # fmt: skip
    single = dot_product_attention(KPos, Key, query["pos", 0], key, value)
    same(single, (Batch, Heads, Key), expected[:, 0])


def test_several_axes_of_positions():
    Rows, Columns = hax.make_axes(rows=2, columns=2)
    keys, values = (x.unflatten_axis("key_pos", (Rows, Columns)) for x in (key, value))
    expected = softmax(scores())
    out = dot_product_attention((Rows, "columns"), Key, query, keys, values)
    same(out, (Batch, Pos, Heads, Key), attended(expected))
    weights = dot_product_attention_weights(Key, (Rows, Columns), query, keys)
    same(weights, (Batch, Pos, Heads, Rows, Columns), expected.reshape(2, 3, 2, 2, 2))


def test_gradient():
    def loss(q):
        return dot_product_attention(KPos, Key, q, key, value, causal_mask(Pos, KPos)).sum().scalar()

    seen = np.arange(4) <= np.arange(3)[:, None]

    def reference(q):
        scored = jnp.where(seen[:, None], jnp.einsum("bqhd,bkhd->bqhk", q, K) / np.sqrt(8), -1e9)
        return jnp.einsum("bqhk,bkhd->bqhd", jax.nn.softmax(scored, axis=-1), V).sum()

    same(jax.jit(jax.grad(loss))(query), query.axes, jax.jit(jax.grad(reference))(Q), 1e-4)


@pytest.mark.parametrize("function", ["attention", "weights"])
def test_errors(function):
    def call(k_pos, dim, query, key, value):
        if function == "attention":
            return dot_product_attention(k_pos, dim, query, key, value)
        return dot_product_attention_weights(dim, k_pos, query, key)

    with pytest.raises(
        ValueError, match="the query has axis 'pos'; the positions of keys must be distinct from its axes"
    ):
        call("pos", Key, query, query, query)
    with pytest.raises(ValueError, match="'depth'"):
        call(KPos, "depth", query, key, value)
    with pytest.raises(ValueError, match="'other'"):
        call("other", Key, query, key, value)
    with pytest.raises(TypeError, match="must be NamedArrays, not ndarray"):
        call(KPos, Key, Q, key, value)


@pytest.mark.parametrize(("q_start", "k_start"), [(0, 0), (2, 0), (0, 1)])
def test_causal_mask(q_start, k_start):
    expected = np.arange(4) + k_start <= np.arange(3)[:, None] + q_start
    out = causal_mask(Pos, KPos, q_start, k_start)
    same(out, (Pos, KPos), expected)
    assert out.dtype == jnp.bool_
    same(causal_mask(Pos, KPos, q_start=jnp.array(q_start), k_start=k_start), (Pos, KPos), expected)


def test_causal_mask_with_a_start_for_each_sequence():
    starts = np.array([0, 2])
    out = causal_mask(Pos, KPos, q_start=hax.named(jnp.asarray(starts), Batch))
    expected = np.arange(4) <= (np.arange(3) + starts[:, None])[:, :, None]
    same(out, (Batch, Pos, KPos), expected)


def test_prefix_mask():
    expected = (np.arange(4) <= np.arange(3)[:, None]) | (np.arange(4) < 2)
    same(prefix_lm_mask(Pos, KPos, 2), (Pos, KPos), expected)
    assert prefix_lm_mask(Pos, KPos, 1, q_start=1, k_start=0).dtype == jnp.bool_


def test_random_masks():
    Long = hax.Axis("key_pos", 2000)
    for sampled in (True, False):
        mask = forgetful_causal_mask(Long, 0.5, sampled, key=KEY)
        assert type(mask) is hax.NamedArray
        assert (mask.axes, mask.dtype) == ((Long,), jnp.bool_)
        assert bool(mask.array[0])
        assert (0.45 if sampled is False else 0.5) < mask.array.mean() < (0.55 if sampled is False else 1)
    kept = dropout_mask((Pos, Long), 0.25, key=KEY)
    same(kept, (Pos, Long), jax.random.bernoulli(KEY, 0.75, (3, 2000)))


def test_combined_masks():
    causal = causal_mask(Pos, KPos)
    padding = hax.named(np.array([[1, 1, 0, 1], [1, 0, 0, 1]], bool), (Batch, KPos))
    a, b = np.asarray(causal.array)[:, None], np.asarray(padding.array)
    both, one = combine_masks_and(causal, padding), combine_masks_or(causal, padding)
    same(both.rearrange(("pos", "batch", "key_pos")), (Pos, Batch, KPos), a & b)
    same(one.rearrange(("pos", "batch", "key_pos")), (Pos, Batch, KPos), a | b)
    row = padding["batch", 0]
    for out in (combine_masks_and(causal, row), combine_masks_and(row, causal)):
        same(out, (Pos, KPos), a[:, 0] & b[0])
    for combine in (combine_masks_and, combine_masks_or):
        assert combine(None, causal) is causal
        assert combine(causal, None) is causal
        assert combine(None, None) is None


def test_mask_to_bias_marks_what_is_true():
    mask = causal_mask(Pos, KPos)
    same(mask_to_bias(mask), (Pos, KPos), np.asarray(mask.array) * np.float32(-1e9))
    same(mask_to_bias(mask, -2.0), (Pos, KPos), np.asarray(mask.array) * -2.0)
    assert mask_to_bias(mask).dtype == jnp.float32


def test_alibi():
    out = alibi_attention_bias(hax.Axis("heads", 4), KPos)
    slopes = 2.0 ** -np.array([2, 4, 6, 8])
    same(out, (hax.Axis("heads", 4), KPos), slopes[:, None] * np.arange(4))
    assert alibi_attention_bias(Heads, KPos, bias_max=4, dtype=jnp.bfloat16).dtype == jnp.bfloat16
    assert alibi_attention_bias(hax.Axis("heads", 6), KPos).axes == (hax.Axis("heads", 6), KPos)


def test_as_an_attribute_of_nn():
    assert hnn.attention.dot_product_attention is dot_product_attention
