"""Rotary embeddings, against numpy in float64 and Equinox."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from measure import equations

import axonym as axn
from axonym import nn
from axonym.errors import ArgumentError, AxisClashError, AxisNotFoundError, AxisSizeError, OperandError
from tests.nn.layouts import apply, draw, fails, lies, same, value_and_gradients

pytestmark = pytest.mark.sampled

B, S, H, D, E = axn.make_axes(batch=8, seq=6, heads=2, head_dim=8, embed=4)
KEY = jax.random.key(0)
PACKED = np.array([[0, 1, 2, 0, 1, 2], [5, 6, 7, 8, 0, 1]] * 4)


def rotated(x, positions, *, theta=1e4, interleaved=False, size=None, scale=lambda f: f):
    """Rotate pairs of the last dimension as complex numbers; positions are those of the dimensions before it."""
    x = np.asarray(x, np.float64)
    n = size or x.shape[-1]
    first, second = (x[..., 0:n:2], x[..., 1:n:2]) if interleaved else (x[..., : n // 2], x[..., n // 2 : n])
    frequencies = np.array([scale(theta ** (-2 * i / n)) for i in range(n // 2)])
    turned = (first + 1j * second) * np.exp(1j * np.asarray(positions, np.float64)[..., None] * frequencies)
    both = np.stack([turned.real, turned.imag], -1 if interleaved else -2).reshape(*x.shape[:-1], n)
    return np.concatenate([both, x[..., n:]], -1)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("size", [None, 4])
def test_rotary_by_axis_and_by_positions_in_any_order_of_axes(interleaved, size):
    options = {"interleaved": interleaved, "size": size}
    x = draw(B, H, S, D)
    counted = rotated(x.array, np.arange(6), **options)
    packed = rotated(x.array, PACKED[:, None], **options)
    ids = axn.named(PACKED, ("batch", "seq"))
    orders = [(B, H, S, D), (D, S, B, H), (S, D, H, B)]

    @jax.jit
    def in_many_ways(x, ids, eleven):
        ordered = []
        for order in orders:
            given = x.rearrange(order)
            results = [nn.rotary(given, positions, D, **options) for positions in (S, "seq", ids)]
            assert [out.names for out in results] == [given.names] * 3
            ordered.append([out.rearrange(x.names) for out in results])
        step = nn.rotary(x["seq", 3], eleven, "head_dim", **options)
        anonymous = [nn.rotary(x.untag("batch"), at, D, **options) for at in ("seq", ids.untag("batch"))]
        repeated = nn.RotaryEmbedding.init(D, **options).at(ids.untag("batch"))(x["batch", 0])
        return ordered, step, [out.tag("batch") for out in (*anonymous, repeated)]

    ordered, step, anonymous = in_many_ways(x, ids, axn.NamedArray(jnp.array(11), ()))
    for results in ordered:
        for out, expected in zip(results, (counted, counted, packed), strict=True):
            same(out, x.names, expected)
    values = np.asarray(x.array)
    same(step, ("batch", "heads", "head_dim"), rotated(values[:, :, 3], 11, **options))
    repeated = rotated(np.broadcast_to(values[0], values.shape), PACKED[:, None], **options)
    for out, expected in zip(anonymous, (counted, packed, repeated), strict=True):
        same(out, x.names, expected)


def test_equals_equinox_whose_pairs_are_halves():
    x = draw(S, D)
    same(nn.rotary(x, S, D), ("seq", "head_dim"), eqx.nn.RotaryPositionalEmbedding(8)(x.array))
    layer = nn.RotaryEmbedding.init(D, 500.0)
    same(layer(x, S, key=KEY), ("seq", "head_dim"), rotated(x.array, np.arange(6), theta=500.0))
    assert jax.tree.leaves(layer) == []
    assert layer == nn.RotaryEmbedding.init(D, 500.0)


def test_products_depend_on_the_distance_alone():
    q, k = draw(S, D), draw(S.alias("key"), D, seed=1)

    def scores(start):
        turned = nn.rotary(q, axn.arange(S, start=start), D), nn.rotary(k, axn.arange(S.alias("key"), start=start), D)
        return axn.dot(*turned, axis=D)

    same(scores(100), ("seq", "key"), scores(0).array, atol=1e-4)


def llama3(frequency, factor=8.0, low=1.0, high=4.0, length=64):
    turns = length * frequency / (2 * np.pi)
    if turns < low:
        return frequency / factor
    if turns > high:
        return frequency
    smooth = (turns - low) / (high - low)
    return (1 - smooth) * frequency / factor + smooth * frequency


def test_scaling_of_frequencies():
    Wide = axn.Axis("wide", 16)
    x = draw(S, Wide)
    positions = np.arange(6) + 50
    ids = axn.named(positions, "seq")
    run = jax.jit(lambda x, ids: [nn.rotary(x, ids, Wide, scaling=each) for each in SCALINGS])
    linear, ntk, by_parts = run(x, ids)
    same(linear, ("seq", "wide"), rotated(x.array, positions / 4), atol=1e-4)
    same(ntk, ("seq", "wide"), rotated(x.array, positions, theta=1e4 * 4 ** (16 / 14)), atol=1e-4)
    same(by_parts, ("seq", "wide"), rotated(x.array, positions, scale=llama3), atol=1e-4)
    kinds = {llama3(f) / f for f in 1e4 ** (-np.arange(8) / 8)}
    assert {1.0, 1 / 8} < kinds, "all three branches are taken"
    assert nn.Llama3Scaling() == nn.Llama3Scaling(8.0, 1.0, 4.0, 8192)


SCALINGS = (nn.LinearScaling(4.0), nn.NtkScaling(4.0), nn.Llama3Scaling(original_length=64))


def test_half_precision_is_that_of_the_input_alone():
    x = draw(S, D).astype(jnp.bfloat16)
    positions = np.arange(6) + 4000
    out = jax.jit(nn.rotary, static_argnums=2)(x, axn.named(positions, "seq"), D)
    assert out.dtype == jnp.bfloat16
    expected = rotated(np.asarray(x.array, np.float64), positions)
    np.testing.assert_allclose(np.asarray(out.array, np.float64), expected, rtol=2**-8, atol=3e-3)


def test_the_gradient_rotates_back():
    x = draw(S, D)
    out, (_, (dx,)) = value_and_gradients(apply)(lambda x: nn.rotary(x, "seq", D), x)
    same(out, ("seq", "head_dim"), rotated(x.array, np.arange(6)))
    same(dx, ("seq", "head_dim"), rotated(np.cos(rotated(x.array, np.arange(6))), -np.arange(6)))


def test_no_more_equations_and_elements_than_by_hand():
    x = draw(B, S, H, D)

    def by_hand(x):
        frequencies = (1e4 ** -(np.arange(0, 8, 2) / 8)).astype(np.float32)
        angles = jnp.arange(6)[:, None].astype(jnp.float32) * frequencies
        cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
        first, second = x[..., :4], x[..., 4:]
        return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)

    ours, theirs = jax.make_jaxpr(lambda x: nn.rotary(x, "seq", D))(x), jax.make_jaxpr(by_hand)(x.array)
    assert len(list(equations(ours.jaxpr))) <= len(list(equations(theirs.jaxpr)))
    sizes = [
        sum(out.aval.size for one in equations(program.jaxpr) for out in one.outvars) for program in (ours, theirs)
    ]
    assert sizes[0] <= sizes[1]


def test_a_table_serves_many_calls_and_layers():
    rope = nn.RotaryEmbedding.init(D, interleaved=True, size=6)
    q, ids = draw(B, S, H, D), axn.named(PACKED, ("batch", "seq"))
    table = rope.at(ids)
    assert table.cos.axes == (B, S, axn.Axis("pair", 3))
    options = {"interleaved": True, "size": 6}
    expected = rotated(q.array, PACKED[..., None], **options)
    same(table(q), q.names, expected)
    Layers = axn.Axis("layers", 2)
    norms = nn.Stacked.init(Layers, nn.LayerNorm)(D)
    looped = norms.fold_via(lambda norm, x, table: table(x) + 0 * norm(x))
    twice = rotated(expected, PACKED[..., None], **options)
    same(jax.jit(looped)(q, table), q.names, twice)
    assert rope.at(S).cos.axes == (S, axn.Axis("pair", 3))


@pytest.mark.parametrize("kind", ["auto", "explicit"])
@pytest.mark.parametrize("interleaved", [False, True])
def test_on_a_mesh(kind, interleaved, auto_mesh, explicit_mesh):
    mesh = {"auto": auto_mesh, "explicit": explicit_mesh}[kind]
    x, ids = draw(B, S, H, D), axn.named(PACKED, ("batch", "seq"))
    expected = rotated(x.array, PACKED[..., None], interleaved=interleaved)

    def run(x, ids):
        y = nn.rotary(x, ids, D, interleaved=interleaved)
        assert kind == "auto" or jax.typeof(y.array).sharding.spec == jax.typeof(x.array).sharding.spec
        return y

    for mapping in ({"batch": "data", "heads": "model"}, {"head_dim": "model", "heads": None}):
        with axn.set_mesh(mesh):
            spread = axn.shard(x, {"batch": "data", "head_dim": "model"})
            out = axn.named_jit(run, mapping, strict=False)(spread, ids)
            assert lies(out, mesh, mapping)
        same(out, x.names, expected)


def test_errors():
    x = draw(S, D)
    fails(
        ArgumentError,
        "rotary: features are rotated in pairs: cannot rotate 6 of embed=4\n"
        "  hint: pass size=..., an even number of features to rotate",
        lambda: nn.rotary(draw(S, E), S, E, size=6),
    )
    fails(
        ArgumentError,
        "RotaryEmbedding.init: features are rotated in pairs: cannot rotate 7 of head_dim=7\n"
        "  hint: pass size=..., an even number of features to rotate",
        lambda: nn.RotaryEmbedding.init(D.resize(7)),
    )
    fails(
        AxisNotFoundError,
        "rotary: no axis named 'head_dims'\n  array has: seq=6, head_dim=8\n  hint: did you mean 'head_dim'?",
        lambda: nn.rotary(x, S, "head_dims"),
    )
    fails(
        AxisClashError,
        "rotary: positions have the axis of features, 'head_dim'\n"
        "  operand 1 has: seq=6, head_dim=8\n"
        "  operand 2 has: head_dim=8",
        lambda: nn.rotary(x, axn.arange(D), D),
    )
    fails(
        AxisSizeError,
        "rotary: axis 'seq' has two sizes: 6 and 5\n"
        "  operand 1 has: seq=6, head_dim=8\n"
        "  operand 2 has: seq=5\n"
        '  hint: if one is shifted by a place, cut the longer one: x["seq", :-1] or x["seq", 1:]',
        lambda: nn.rotary(x, axn.arange(S.resize(5)), D),
    )
    fails(
        AxisNotFoundError,
        "rotary: no axis named 'sequ'\n  array has: seq=6, head_dim=8\n  hint: did you mean 'seq'?",
        lambda: nn.rotary(x, "sequ", D),
    )
    fails(
        AxisNotFoundError,
        "rotary: no axis named 'batch'\n  operand 1 has: seq=6, head_dim=8\n  operand 2 has: batch=8, seq=6",
        lambda: nn.rotary(x, axn.named(PACKED, ("batch", "seq")), D),
    )
    fails(
        AxisClashError,
        "RotaryEmbedding.at: positions have axis 'pair', which the table adds\n  positions have: pair=2",
        lambda: nn.RotaryEmbedding.init(D).at(axn.Axis("pair", 2)),
    )
    with pytest.raises(OperandError, match=r"^rotary: expected a NamedArray, got a plain array"):
        nn.RotaryEmbedding.init(D).at(S)(x.array)
    with pytest.raises(OperandError, match=r"^rotary: expected a NamedArray, got a plain array"):
        nn.rotary(x.array, S, D)


def test_positions_without_names():
    x = draw(S, D)
    numbers = jnp.arange(6)
    layer = nn.RotaryEmbedding.init(D)
    for function, call in (
        ("rotary", lambda at: nn.rotary(x, at, D)),
        ("rotary", lambda at: layer(x, at)),
        ("RotaryEmbedding.at", layer.at),
    ):
        for at, kind, names in (
            (numbers, "a plain array", '"pos"'),
            (np.arange(6), "a plain array", '"pos"'),
            (3, "int", "()"),
        ):
            fails(
                OperandError,
                f"{function}: positions must be an axis or a NamedArray, not {kind}\n"
                f"  hint: name them: axn.named(positions, {names})",
                lambda call=call, at=at: call(at),
            )
    fails(ArgumentError, "rotary: size must be an int, not 2.0", lambda: nn.rotary(x, S, D, size=2.0))
