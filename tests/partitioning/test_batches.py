"""`pad_batch`: losses, gradients and updates of a padded batch are those of the batch as it was."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import axonym as axn
import axonym.nn as nn
from axonym.errors import AxisNotFoundError, AxisSizeError
from tests.nn.layouts import draw, fails, halved, made, same_trees

Batch, Pos, Embed, Mlp, Vocab = axn.make_axes(batch=6, pos=8, embed=8, mlp=16, vocab=11)
Heads, HeadDim = axn.make_axes(heads=2, head_dim=4)
MAPPING = {"batch": "data", "heads": "model", "mlp": "model"}


class Model(eqx.Module):
    embedding: nn.Embedding
    block: nn.TransformerBlock

    @staticmethod
    def init(*, key):
        keys = jax.random.split(key)
        block = nn.TransformerBlock.init(Embed, Heads, HeadDim, Mlp, key=keys[1])
        return Model(nn.Embedding.init(Vocab, Embed, key=keys[0]), block)

    def __call__(self, tokens):
        return self.block(self.embedding(tokens), nn.causal())


def step(model, batch, where):
    def loss(model):
        x, weight = model(batch["tokens"]), model.embedding.weight
        whole = nn.cross_entropy_loss(model.embedding.unembed(x), Vocab, batch["next"], where=where)
        chunked = nn.chunked_cross_entropy_loss(
            x, weight, Embed, Vocab, batch["next"], where=where, block_size=4, z_loss=1e-2
        )
        return (whole + chunked).scalar()

    # A small `eps` would make steps of the rounding of the gradient of the biases of keys, which is zero.
    optimizer = optax.adam(1e-2, eps=1e-3)
    value, gradient = jax.value_and_grad(loss)(model)
    updates, _ = optimizer.update(gradient, optimizer.init(model), model)
    return value, gradient, optax.apply_updates(model, updates)


def make_batch():
    random = np.random.default_rng(1)
    tokens, targets = (axn.named(random.integers(0, 11, (6, 8)), (Batch, Pos)) for _ in range(2))
    return {"tokens": tokens, "next": targets, "step": 3}


def test_a_padded_batch_gives_value_gradient_and_update_of_the_batch(auto_mesh, explicit_mesh):
    model, batch = halved(made(Model.init)), make_batch()
    expected = jax.jit(step)(model, batch, None)
    for mesh in (auto_mesh, explicit_mesh):
        with axn.set_mesh(mesh):
            padded, counted = axn.pad_batch(batch, "batch", MAPPING)
            assert padded["tokens"].axis_size("batch") == 8
            assert padded["step"] == 3
            placed = axn.shard((model, padded, counted), MAPPING)
            found = axn.named_jit(step, MAPPING)(*placed)
        same_trees(jax.device_get(found), jax.device_get(expected), rtol=1e-5, atol=1e-6)


def test_padded_positions_give_value_and_gradient_of_the_sequence(auto_mesh, explicit_mesh):
    # A class token and sixteen patches, which four devices do not divide.
    init = lambda *, key: nn.TransformerBlock.init(Embed, Heads, HeadDim, Mlp, key=key)  # noqa: E731
    model, x = halved(made(init)), draw(Batch, Pos.resize(17), Embed)
    mapping = {"pos": "data", "heads": "model"}

    def run(model, x, counted):
        def loss(model, x):
            y = model(x, nn.segments(counted.astype("int32")))
            normal = axn.standardize(y, "pos", where=counted)
            chosen = (axn.softmax(y, "pos", where=counted) * normal).sum("pos", where=counted)
            targets = axn.zeros((Batch, *counted.axes), dtype=int)
            own = nn.cross_entropy_loss(normal, Embed, targets, where=counted)
            return (own + (y.mean("pos", where=counted) * chosen).sum()).scalar()

        value, (of_model, of_x) = jax.value_and_grad(loss, argnums=(0, 1))(model, x)
        return value, of_model, of_x

    value, of_model, of_x = jax.jit(run)(model, x, axn.ones(Pos.resize(17), dtype=bool))
    for mesh in (auto_mesh, explicit_mesh):
        with axn.set_mesh(mesh):
            padded, counted = axn.pad_batch(x, "pos", mapping)
            assert padded.axis_size("pos") == 20
            placed = axn.shard((model, padded, counted), mapping)
            found = jax.device_get(axn.named_jit(run, mapping)(*placed))
        same_trees(found[:2], jax.device_get((value, of_model)), rtol=1e-5, atol=1e-5)
        # Nothing comes back from the positions that were added.
        np.testing.assert_allclose(found[2]["pos", :17].array, of_x.array, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(found[2]["pos", 17:].array, 0)


def test_rows_are_added_on_the_host_or_on_the_device():
    mesh = jax.sharding.AbstractMesh((4,), ("data",))
    random = np.random.default_rng(0).normal(size=(2, 3, 5)).astype(np.float32)
    rows = axn.NamedArray(random, ("batch", "pos"))
    for x in (rows, axn.named(jnp.asarray(random[0]), ("batch", "pos")), axn.named(random[0].T, ("pos", "batch"))):
        padded, counted = axn.pad_batch(x, "batch", {"batch": "data"}, mesh)
        assert isinstance(padded.array, np.ndarray) == isinstance(x.array, np.ndarray)
        assert padded.names == x.names
        at = x.names.index("batch") - 2
        expected = np.concatenate([x.array, np.take(x.array, [-1], axis=at)], axis=at)
        np.testing.assert_array_equal(padded.array, expected)
        np.testing.assert_array_equal(counted.array, [True, True, True, False])
    same, counted = axn.pad_batch({"x": rows}, axn.Axis("batch", 3))
    assert same["x"] is rows
    assert counted.array.all()
    none, counted = axn.pad_batch(axn.zeros({"batch": 0, "pos": 2}), axn.Axis("batch", 2))
    assert none.tolist() == [[0, 0], [0, 0]]
    assert not counted.array.any()
    many, _ = jax.jit(lambda x: axn.pad_batch(x, axn.Axis("batch", 5)))(rows)
    assert many.axis_size("batch") == 5


def test_mistakes():
    x = axn.zeros({"batch": 6, "pos": 2})
    fails(
        AxisSizeError,
        "pad_batch: the batch has batch=6, more than 4",
        lambda: axn.pad_batch(x, axn.Axis("batch", 4)),
    )
    fails(
        AxisSizeError,
        "pad_batch: arrays have batch with the sizes 1, 6\n  hint: rename the axes that are no rows",
        lambda: axn.pad_batch((x, axn.zeros({"batch": 1})), "batch"),
    )
    with pytest.raises(AxisNotFoundError, match="pad_batch: "):
        axn.pad_batch(x, "rows")
