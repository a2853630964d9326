"""Choosing tokens from logits, against numpy, token by token."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import ArgumentError, AxisNotFoundError, OperandError
from tests.nn.layouts import draw, fails, lies, same

B, V = axn.make_axes(batch=8, vocab=12)
ROWS = draw(B, V) * 2
ORDERS = pytest.mark.parametrize("x", [ROWS, ROWS.rearrange((V, B))], ids=["vocab last", "vocab first"])


def by_hand(keeps):
    """Rule out tokens of each row by a function from sorted probabilities to how many to keep."""
    rows = np.asarray(ROWS.array, np.float64)
    result = np.full_like(rows, -np.inf)
    for row, kept in zip(rows, result, strict=True):
        order = np.argsort(-row)
        shares = np.exp(row[order]) / np.exp(row).sum()
        chosen = order[: keeps(shares)]
        kept[chosen] = row[chosen]
    return axn.named(result, (B, V))


def fewest(p):
    return lambda shares: next(n for n in range(1, 13) if n == 12 or shares[:n].sum() >= p)


@ORDERS
@pytest.mark.parametrize("k", [1, 5, 12, 50])
def test_top_k_keeps_the_most_probable(x, k):
    same(nn.keep_top_k(x, V, k), x.names, by_hand(lambda shares: k).rearrange(x.axes).array)


@ORDERS
@pytest.mark.parametrize("p", [1e-6, 0.3, 0.9, 1.0])
def test_top_p_keeps_as_few_as_sum_to_p(x, p):
    same(nn.keep_top_p(x, "vocab", p), x.names, by_hand(fewest(p)).rearrange(x.axes).array)


@ORDERS
@pytest.mark.parametrize("p", [0, 0.05, 0.5, 1.0])
def test_min_p_keeps_what_is_not_far_below_the_best(x, p):
    expected = by_hand(lambda shares: int((shares >= p * shares[0]).sum()))
    same(nn.keep_min_p(x, V, p), x.names, expected.rearrange(x.axes).array)


def test_shares_may_differ_between_sequences_and_be_traced():
    p = axn.named(np.linspace(0.1, 1.0, 8, dtype=np.float32), "batch")
    found = jax.jit(lambda p: (nn.keep_top_p(ROWS, V, p), nn.keep_min_p(ROWS, V, p)))(p)
    for i, share in enumerate(p.tolist()):
        for mine, alone in zip(found, (nn.keep_top_p, nn.keep_min_p), strict=True):
            np.testing.assert_array_equal(mine["batch", i].array, alone(ROWS["batch", i], V, share).array)


def test_tokens_as_probable_as_the_last_one_stay():
    x = axn.named([1.0, 2.0, 1.0, 0.0], "vocab")
    assert nn.keep_top_k(x, "vocab", 2).tolist() == [1.0, 2.0, 1.0, -np.inf]
    assert nn.keep_top_p(x, "vocab", 0.6).tolist() == [1.0, 2.0, 1.0, -np.inf]


def test_filters_follow_one_another_and_keep_the_dtype():
    x = ROWS.astype(jnp.bfloat16)
    few = nn.keep_min_p(nn.keep_top_p(nn.keep_top_k(x, V, 4), V, 0.9), V, 0.1)
    assert few.dtype == jnp.bfloat16
    kept = jnp.isfinite(few.array).sum(1)
    assert (kept >= 1).all()
    assert (kept <= 4).all()


def test_nan_is_not_hidden():
    x = axn.named([np.nan, 1.0, 2.0], "vocab")
    for filtered in (nn.keep_top_k(x, "vocab", 1), nn.keep_top_p(x, "vocab", 0.5), nn.keep_min_p(x, "vocab", 0.5)):
        assert np.isnan(filtered.array[0])


@pytest.mark.parametrize("kind", [bool, np.int32])
def test_repeated_tokens_are_penalized(kind):
    seen = axn.named((np.random.default_rng(1).integers(3, size=(8, 12))).astype(kind), (B, V))
    rows = np.asarray(ROWS.array)
    for penalty in (1.3, axn.named(np.linspace(0.5, 2, 8, dtype=np.float32), "batch")):
        by = np.asarray(penalty.array)[:, None] if isinstance(penalty, axn.NamedArray) else penalty
        expected = np.where(np.asarray(seen.array) > 0, np.where(rows > 0, rows / by, rows * by), rows)
        same(nn.penalize_repetition(ROWS, seen, penalty), ("batch", "vocab"), expected)


def test_samples_are_those_of_jax():
    key = jax.random.key(3)
    for temperature in (0.5, 1.0, 2.0):
        expected = jax.random.categorical(key, ROWS.array / temperature)
        same(nn.sample(ROWS, V, temperature, key=key), ("batch",), expected)
    same(nn.sample(ROWS, V, 0), ("batch",), np.asarray(ROWS.array).argmax(1))
    assert nn.sample(ROWS.astype(jnp.bfloat16), V, 0.0).dtype == nn.sample(ROWS, V, key=key).dtype == jnp.int32


def test_temperatures_may_differ_between_sequences():
    key = jax.random.key(3)
    temperature = axn.where(axn.arange(B) % 2 == 0, 0.0, 1.0)
    found = jax.jit(lambda t: nn.sample(ROWS, V, t, key=key))(temperature)
    expected = axn.where(temperature > 0, nn.sample(ROWS, V, key=key), nn.sample(ROWS, V, 0))
    same(found, ("batch",), expected.array)


def test_one_temperature_may_be_traced_or_of_numpy():
    key = jax.random.key(3)
    traced = jax.jit(lambda t: nn.sample(ROWS, V, t, key=key))
    for temperature in (0.0, 0.5):
        expected = nn.sample(ROWS, V, temperature, key=key)
        for found in (traced(temperature), nn.sample(ROWS, V, np.float32(temperature), key=key)):
            same(found, ("batch",), expected.array)


@pytest.mark.parametrize("temperature", [1e-37, 1e-39, 1e-60])
def test_the_coldest_draws_are_of_the_most_probable_token(temperature):
    for logits in (ROWS, ROWS - ROWS.max(V), ROWS - 100):
        expected = nn.sample(logits, V, 0).array
        for given in (temperature, jnp.float32(temperature)):
            same(nn.sample(logits, V, given, key=jax.random.key(3)), ("batch",), expected)


@pytest.mark.parametrize("mesh", ["auto_mesh", "explicit_mesh"])
def test_the_vocabulary_may_be_sharded(mesh, request):
    mesh, mapping = request.getfixturevalue(mesh), {"batch": "data", "vocab": "model"}

    def run(x):
        x = nn.penalize_repetition(x, axn.bincount(axn.named([1, 2], "pos"), V), 1.5)
        x = nn.keep_min_p(nn.keep_top_p(nn.keep_top_k(x, V, 8), V, 0.9), V, 0.02)
        return x, nn.sample(x, V, 0.7, key=jax.random.key(0))

    with axn.set_mesh(mesh):
        logits, tokens = axn.named_jit(run, mapping)(axn.shard(ROWS, mapping))
    alone = run(ROWS)
    same(logits, ("batch", "vocab"), alone[0].array)
    same(tokens, ("batch",), alone[1].array)
    assert lies(logits, mesh, mapping)


def test_flaws():
    fails(
        AxisNotFoundError,
        "keep_top_k: no axis named 'vocabulary'\n  array has: batch=8, vocab=12\n  hint: did you mean 'vocab'?",
        lambda: nn.keep_top_k(ROWS, "vocabulary", 2),
    )
    fails(
        ArgumentError,
        "keep_top_k: k must be an int of at least 1, not 0",
        lambda: nn.keep_top_k(ROWS, V, 0),
    )
    fails(
        ArgumentError,
        "keep_top_p: p must be above 0 and at most 1, not 0",
        lambda: nn.keep_top_p(ROWS, V, 0),
    )
    fails(
        ArgumentError,
        "keep_top_p: p must be above 0 and at most 1, not 0.0",
        lambda: nn.keep_top_p(ROWS, V, np.float32(0)),
    )
    fails(
        ArgumentError,
        "keep_min_p: min_p must be at least 0 and at most 1, not 1.5",
        lambda: nn.keep_min_p(ROWS, V, 1.5),
    )
    fails(
        ArgumentError,
        "penalize_repetition: penalty must be above 0, not -1.0",
        lambda: nn.penalize_repetition(ROWS, ROWS > 0, -1.0),
    )
    fails(
        OperandError,
        "penalize_repetition: seen must be booleans or counts, not float32\n  seen has: batch=8, vocab=12\n"
        '  hint: axn.bincount(tokens, Vocab, "pos") counts tokens',
        lambda: nn.penalize_repetition(ROWS, ROWS, 1.2),
    )
    fails(
        ArgumentError,
        "sample: temperature must be at least 0, not -0.5",
        lambda: nn.sample(ROWS, V, -0.5),
    )
    fails(
        OperandError,
        "sample: a draw needs a key\n  hint: pass key=..., or temperature=0 for the most probable token",
        lambda: nn.sample(ROWS, V),
    )
