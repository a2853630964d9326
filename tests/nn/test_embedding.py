"""`Embedding`, against numpy and Equinox."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import AxisClashError, AxisNotFoundError, AxisSizeError, OperandError
from tests.nn.layouts import apply, check_on, draw, fails, lies, same, value_and_gradients

pytestmark = pytest.mark.sampled

V, E, H, B, S = axn.make_axes(vocab=11, embed=4, heads=2, batch=8, seq=3)
KEY = jax.random.key(0)
IDS = np.random.default_rng(0).integers(0, 11, (8, 3))


@pytest.mark.parametrize("Embed", [E, (H, E), ()], ids=["one", "two", "none"])
@pytest.mark.parametrize("names", [(), ("batch",), ("batch", "seq"), ("vocab",)], ids=str)
def test_ids_of_any_shape(names, Embed):
    layer = nn.Embedding.init(V, Embed, key=KEY)
    ids = IDS[(0,) * (2 - len(names))]
    expected = np.asarray(layer.weight.array)[ids]
    embed = layer.weight.names[1:]
    same(layer(axn.named(ids, names)), (*names, *embed), expected)
    same(layer(axn.named(ids.astype(np.uint8), names), key=KEY), (*names, *embed), expected)


def test_equals_equinox():
    theirs = eqx.nn.Embedding(11, 4, key=KEY)
    ours = nn.Embedding(axn.named(theirs.weight, ("vocab", "embed")), V, (E,))
    same(ours(axn.named(IDS, ("batch", "seq"))), ("batch", "seq", "embed"), jax.vmap(jax.vmap(theirs))(IDS))


def test_numbers_out_of_range_give_nan_and_negative_ones_count_from_the_end():
    layer = nn.Embedding.init(V, E, key=KEY)
    for call in (lambda layer, ids: layer(ids), jax.jit(lambda layer, ids: layer(ids))):
        out = call(layer, axn.named([0, 10, 11, 99, -1, -11, -12], "batch")).array
        assert np.isnan(out).all(1).tolist() == [False, False, True, True, False, False, True]
        np.testing.assert_array_equal(out[jnp.array([1, 4])], layer.weight.array[jnp.array([10, 10])])


def test_the_gradient_is_a_scatter_add():
    layer, ids = nn.Embedding.init(V, E, key=KEY), axn.named(IDS, ("batch", "seq"))
    _, (gradients, _) = value_and_gradients(apply)(layer, ids)
    expected = np.zeros((11, 4), np.float32)
    np.add.at(expected, IDS, np.cos(np.asarray(layer.weight.array)[IDS]))
    same(gradients.weight, ("vocab", "embed"), expected)


def test_unembed():
    layer = nn.Embedding.init(V, (H, E), key=KEY)
    x = draw(S, E, B, H)
    same(layer.unembed(x), ("seq", "batch", "vocab"), np.einsum("sebh,vhe->sbv", x.array, layer.weight.array))


def test_both_uses_add_up_in_the_gradient():
    layer = nn.Embedding.init(V, E, key=KEY)
    run = value_and_gradients(lambda layer, ids: layer.unembed(layer(ids)))
    _, (gradients, _) = run(layer, axn.named(IDS[0], "seq"))
    expected = jax.grad(lambda w: jnp.sin(w[IDS[0]] @ w.T).sum())(layer.weight.array)
    same(gradients.weight, ("vocab", "embed"), expected)


def test_initial_values():
    Many, Wide = axn.make_axes(vocab=500, embed=100)
    layer = nn.Embedding.init(Many, (Wide, H), key=KEY)
    assert layer.weight.names == ("vocab", "embed", "heads")
    assert float(layer.weight.std()) == pytest.approx(0.9866 / np.sqrt(200), rel=0.01)
    scaled = nn.Embedding.init(Many, (Wide, H), key=KEY, init_scale=3.0)
    np.testing.assert_allclose(scaled.weight.array, layer.weight.array * 3, rtol=1e-6)
    given = nn.Embedding.init(V, E, key=KEY, initializer=lambda key, axes: axn.full(axes, 7.0))
    same(given.weight, ("vocab", "embed"), np.full((11, 4), 7.0))


def test_a_table_of_another_size_keeps_its_first_rows():
    layer = nn.Embedding.init(V, (H, E), key=KEY)
    table = np.asarray(layer.weight.array)
    same(layer.embed(axn.named([3], "seq")), ("seq", "heads", "embed"), table[[3]])
    smaller = layer.resize_embeddings(5)
    assert smaller.Vocab == axn.Axis("vocab", 5)
    same(smaller.weight, ("vocab", "heads", "embed"), table[:5])
    larger = layer.resize_embeddings(13)
    same(larger.weight, ("vocab", "heads", "embed"), np.concatenate([table, np.stack([table.mean(0)] * 2)]))
    drawn = layer.resize_embeddings(4000, key=jax.random.key(2)).weight
    np.testing.assert_array_equal(drawn.array[:11], table)
    np.testing.assert_allclose(drawn.array[11:].mean(0), table.mean(0), atol=0.04)
    np.testing.assert_allclose(drawn.array[11:].std(0), 0.9866 * table.std(0), rtol=0.06)
    half = nn.Embedding(layer.weight.astype(jnp.bfloat16), layer.Vocab, layer.Embed).resize_embeddings(12)
    assert half.weight.dtype == jnp.bfloat16
    assert jax.tree.structure(layer.resize_embeddings(11)) == jax.tree.structure(layer)
    fails(
        AxisSizeError,
        "Axis: the size of 'vocab' must not be negative, got -1",
        lambda: layer.resize_embeddings(-1),
    )


@pytest.mark.parametrize("size", [5, 13])
def test_a_subclass_keeps_its_class_at_another_size(size):
    class Own(nn.Embedding): ...

    assert type(eqx.filter_eval_shape(lambda: Own.init(V, E, key=KEY).resize_embeddings(size))) is Own


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_on_a_mesh(kind, auto_mesh, explicit_mesh):
    mesh = {"auto": auto_mesh, "explicit": explicit_mesh}[kind]
    layer, ids = nn.Embedding.init(V, E, key=KEY), axn.named(IDS, ("batch", "seq"))
    check_on(mesh, apply, layer, ids)
    check_on(mesh, lambda layer, ids: layer.unembed(layer(ids)), layer, ids)


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_a_vocabulary_may_be_sharded(kind, auto_mesh, explicit_mesh):
    even = axn.Axis("vocab", 12)
    layer, ids = nn.Embedding.init(even, E, key=KEY), axn.named(IDS, ("batch", "seq"))
    mapping = {"vocab": "model", "batch": "data"}
    run = lambda layer, ids: layer.unembed(layer(ids))  # noqa: E731
    mesh = {"auto": auto_mesh, "explicit": explicit_mesh}[kind]
    with axn.set_mesh(mesh):
        out = axn.named_jit(run, mapping)(axn.shard(layer, {"vocab": "model"}), ids)
        assert lies(out, mesh, mapping)
    same(out, ("batch", "seq", "vocab"), run(layer, ids).array)


def test_errors():
    layer = nn.Embedding.init(V, E, key=KEY)
    fails(
        OperandError,
        "Embedding: expected a NamedArray, got a plain array\n"
        "  its shape: (2,)\n"
        '  hint: name its dimensions first: axn.named(array, "batch")',
        lambda: layer(jnp.array([1, 2])),
    )
    fails(
        OperandError,
        "Embedding: ids must have an integer dtype, not float32",
        lambda: layer(axn.ones(B)),
    )
    fails(
        AxisClashError,
        "Embedding: the input already has axis 'embed', which the layer adds\n"
        "  input has: batch=8, embed=4\n"
        "  hint: rename it first: x.rename({'embed': ...})",
        lambda: layer(axn.zeros((B, E), int)),
    )
    fails(
        AxisNotFoundError,
        "Embedding.unembed: the input lacks axis 'embed'\n  input has: batch=8\n  the layer works over: embed=4",
        lambda: layer.unembed(axn.ones(B)),
    )
    fails(
        AxisClashError,
        "Embedding.unembed: the input already has axis 'vocab', which the layer adds\n"
        "  input has: vocab=11, embed=4\n"
        "  hint: rename it first: x.rename({'vocab': ...})",
        lambda: layer.unembed(axn.ones((V, E))),
    )
    with pytest.raises(OperandError, match=r"^Embedding.unembed: expected a NamedArray, got a plain array"):
        layer.unembed(jnp.ones(4))
