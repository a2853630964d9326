"""Sinusoidal and learned positions, and ALiBi, against numpy in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import ArgumentError, AxisClashError, AxisSizeError, OperandError
from tests.nn.layouts import apply, check_on, draw, fails, lies, same, value_and_gradients

pytestmark = pytest.mark.sampled

B, S, H, D, E = axn.make_axes(batch=8, seq=6, heads=2, head_dim=8, embed=4)
KEY = jax.random.key(0)
PACKED = np.array([[0, 1, 2, 0, 1, 2], [5, 6, 7, 8, 0, 1]] * 4)


# sinusoidal
def test_sinusoidal_positions_as_in_the_paper():
    position, i = np.arange(6)[:, None], np.arange(2)
    angles = position / 10000 ** (2 * i / 4)
    paper = np.stack([np.sin(angles), np.cos(angles)], -1).reshape(6, 4)
    same(nn.sinusoidal_positions(S, E), ("seq", "embed"), paper)
    halves = nn.sinusoidal_positions(S, E, interleaved=False)
    same(halves, ("seq", "embed"), np.concatenate([np.sin(angles), np.cos(angles)], 1))
    packed = nn.sinusoidal_positions(axn.named(PACKED, ("batch", "seq")), E, theta=100.0)
    angles = PACKED[..., None] / 100 ** (2 * i / 4)
    expected = np.stack([np.sin(angles), np.cos(angles)], -1).reshape(8, 6, 4)
    same(packed, ("batch", "seq", "embed"), expected)
    far = nn.sinusoidal_positions(axn.named([1001], "seq"), E, dtype=jnp.bfloat16)
    assert far.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(far.array, float)[0, 2:], [np.sin(10.01), np.cos(10.01)], atol=4e-3)


# learned
def test_learned_positions():
    Pos = axn.Axis("seq", 9)
    layer = nn.PositionEmbedding.init(Pos, (H, E), key=KEY)
    table = np.asarray(layer.weight.array)
    assert layer.weight.names == ("seq", "heads", "embed")
    assert float(abs(layer.weight).max()) <= 3 / np.sqrt(8) * (1 + 1e-6)
    same(layer(S), ("seq", "heads", "embed"), table[:6])
    same(layer(Pos, key=KEY), ("seq", "heads", "embed"), table)
    same(layer(axn.Axis("pos", 4)), ("pos", "heads", "embed"), table[:4])
    same(layer(axn.named(PACKED, ("batch", "seq"))), ("batch", "seq", "heads", "embed"), table[PACKED])
    assert np.isnan(layer(axn.named([9], "seq")).array).all()
    _, (gradients, _) = value_and_gradients(apply)(layer, axn.named(PACKED, ("batch", "seq")))
    expected = np.zeros_like(table)
    np.add.at(expected, PACKED, np.cos(table[PACKED]))
    same(gradients.weight, ("seq", "heads", "embed"), expected)


# ALiBi
@pytest.mark.parametrize("count", [1, 4, 6, 12])
def test_alibi_slopes_are_those_of_the_paper(count):
    """A power of two: 2 ** (-8 / n), and its powers; else those of the power below, then every other of the next."""
    below = 2 ** int(np.log2(count))
    slopes = [2 ** (-8 / below * (i + 1)) for i in range(below)]
    slopes += [2 ** (-4 / below * (i + 1)) for i in range(2 * below)][::2][: count - below]
    Heads = axn.Axis("heads", count)
    bias = nn.alibi_attention_bias(Heads, S)
    same(bias, ("heads", "seq"), np.outer(slopes, np.arange(6)))
    if count == 4:
        packed = nn.alibi_attention_bias(Heads, axn.named(PACKED, ("batch", "seq")), dtype=jnp.bfloat16)
        assert packed.dtype == jnp.bfloat16
        same(packed, ("heads", "batch", "seq"), np.einsum("h,bs->hbs", slopes, PACKED))
        ids = axn.named(PACKED, ("batch", "seq")).untag("batch")
        expected = np.einsum("h,bs->bhs", slopes, PACKED)
        same(nn.alibi_attention_bias(Heads, ids).tag("batch"), ("batch", "heads", "seq"), expected)
        gentle = nn.alibi_attention_bias(Heads, S, bias_max=4)
        same(gentle, ("heads", "seq"), np.outer(np.sqrt(slopes), np.arange(6)))


def test_alibi_in_float16_for_positions_that_it_cannot_hold():
    positions = np.array([2048, 2049, 70_001, 131_000])
    bias = nn.alibi_attention_bias(H, axn.named(positions, "seq"), dtype=jnp.float16)
    expected = np.outer([2**-4, 2**-8], positions).astype(np.float16)
    np.testing.assert_array_equal(bias.array, expected)


def test_alibi_is_a_penalty_on_the_distance():
    K = S.alias("key")
    scores = draw(H, S, K)
    mask = np.tril(np.ones((6, 6), bool))
    biased = axn.where(axn.named(mask, ("seq", "key")), scores + nn.alibi_attention_bias(H, K), -1e30)
    distance = np.arange(6)[:, None] - np.arange(6)
    penalised = np.where(mask, scores.array - np.array([2**-4, 2**-8])[:, None, None] * distance, -1e30)
    same(axn.softmax(biased, "key"), ("heads", "seq", "key"), jax.nn.softmax(penalised))


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_on_a_mesh(kind, auto_mesh, explicit_mesh):
    mesh = {"auto": auto_mesh, "explicit": explicit_mesh}[kind]
    ids, learned = axn.named(PACKED, ("batch", "seq")), nn.PositionEmbedding.init(S.resize(16), E, key=KEY)
    check_on(mesh, apply, learned, ids)

    def others(model, ids):
        return model(S), nn.alibi_attention_bias(H, S), nn.sinusoidal_positions(ids, E)

    mapping = {"batch": "data", "embed": "model", "heads": "model"}
    with axn.set_mesh(mesh):
        for result, expected in zip(axn.named_jit(others, mapping)(learned, ids), others(learned, ids), strict=True):
            assert lies(result, mesh, mapping)
            same(result, expected.names, expected.array)


def test_results_lie_as_the_mapping_says_without_named_jit(auto_mesh):
    ids, learned = axn.named(PACKED, ("batch", "seq")), nn.PositionEmbedding.init(S, E, key=KEY)
    mapping = {"batch": "data", "embed": "model", "heads": "model"}
    with axn.set_mesh(auto_mesh), axn.axis_mapping(mapping):
        results = jax.jit(lambda ids: [learned(ids), nn.sinusoidal_positions(ids, E), alibi(ids)])(ids)
    assert all(lies(result, auto_mesh, mapping) for result in results)


def alibi(ids):
    return nn.alibi_attention_bias(H, ids)


def test_errors():
    fails(
        ArgumentError,
        "sinusoidal_positions: embed=5 must have an even size: each sine has a cosine",
        lambda: nn.sinusoidal_positions(S, E.resize(5)),
    )
    fails(
        AxisClashError,
        "sinusoidal_positions: positions already have axis 'embed'\n  positions have: embed=4",
        lambda: nn.sinusoidal_positions(axn.arange(E), E),
    )
    fails(
        AxisClashError,
        "PositionEmbedding: positions already have axis 'embed'\n"
        "  positions have: batch=8, seq=6, embed=4\n"
        '  hint: give it positions, and add: x + layer(x.resolve_axis("seq"))',
        lambda: nn.PositionEmbedding.init(S, E, key=KEY)(draw(B, S, E)),
    )
    fails(
        AxisSizeError,
        "PositionEmbedding: seq=6 is longer than the table, which has seq=5",
        lambda: nn.PositionEmbedding.init(S.resize(5), E, key=KEY)(S),
    )
    for function, call in (
        ("sinusoidal_positions", lambda at: nn.sinusoidal_positions(at, E)),
        ("PositionEmbedding", lambda at: nn.PositionEmbedding.init(S, E, key=KEY)(at)),
        ("alibi_attention_bias", lambda at: nn.alibi_attention_bias(H, at)),
    ):
        fails(
            OperandError,
            f"{function}: positions must be an axis or a NamedArray, not a plain array\n"
            '  hint: name them: axn.named(positions, "pos")',
            lambda call=call: call(jnp.arange(3)),
        )
    fails(
        AxisClashError,
        "alibi_attention_bias: positions already have axis 'heads', the axis of heads\n  positions have: heads=2",
        lambda: nn.alibi_attention_bias(H, H),
    )
