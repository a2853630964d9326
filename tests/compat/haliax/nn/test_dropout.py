"""Dropout: the mask, the key, and `inference` as a leaf that survives all transformations."""

import axonym.compat.haliax  # noqa: F401  # makes `haliax` resolve

# isort: split

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

Batch, Pos, Embed = hax.make_axes(batch=3, pos=4, embed=5)
KEY = jax.random.PRNGKey(0)
VALUES = np.arange(1, 61, dtype=np.float32).reshape(3, 4, 5)
X = hax.named(VALUES, (Batch, Pos, Embed))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_mask_is_that_of_jax(dtype):
    out = hnn.Dropout(0.25)(X.astype(dtype), key=KEY)
    keep = jax.random.bernoulli(KEY, 0.75, VALUES.shape)
    assert type(out) is hax.NamedArray
    assert out.axes == X.axes
    assert out.dtype == dtype
    expected = jnp.where(keep, VALUES.astype(dtype) / jnp.asarray(0.75, dtype), 0)
    np.testing.assert_allclose(out.array.astype(jnp.float32), expected.astype(jnp.float32), rtol=1e-2)
    functional = hnn.dropout(X.astype(dtype), 0.25, inference=False, key=KEY)
    np.testing.assert_array_equal(functional.array, out.array)


@pytest.mark.parametrize("together", [Pos, "pos", (Pos,), ("pos",)], ids=str)
def test_axes_that_are_dropped_together(together):
    out = hnn.Dropout(0.5, broadcast_axes=together)(X, key=KEY)
    keep = jax.random.bernoulli(KEY, 0.5, (3, 5))[:, None]
    np.testing.assert_allclose(out.array, jnp.where(keep, VALUES / 0.5, 0), rtol=1e-6)
    layer = hnn.Dropout(0.5, together)
    assert layer.broadcast_axes == together
    np.testing.assert_array_equal(hnn.dropout(X, 0.5, together, inference=False, key=KEY).array, out.array)


def test_what_needs_no_key():
    assert hnn.Dropout(0.0)(X) is X
    assert hnn.Dropout(0.5, inference=True)(X) is X
    assert hnn.Dropout(0.5)(X, inference=True) is X
    out = hnn.Dropout(1.0)(X)
    assert type(out) is hax.NamedArray
    np.testing.assert_array_equal(out.array, np.zeros((3, 4, 5)))
    assert hnn.dropout(X, 0.5, inference=True) is X


@pytest.mark.parametrize("error", [RuntimeError, TypeError, ValueError])
def test_a_missing_key(error):
    with pytest.raises(error, match=r"dropout: dropping with probability 0.1 needs a key\n  hint: pass key=\.\.\."):
        hnn.Dropout(0.1)(X)
    with pytest.raises(error, match="needs a key"):
        hnn.Dropout(0.1, inference=True)(X, inference=False)


def test_what_is_no_probability():
    with pytest.raises(ValueError, match=r"probability from 0 to 1, not 1\.5"):
        hnn.Dropout(1.5)
    with pytest.raises(ValueError, match="probability from 0 to 1, not -1"):
        hnn.dropout(X, -1, inference=False, key=KEY)


def test_fields_and_defaults():
    layer = hnn.Dropout()
    assert (layer.pdrop, layer.broadcast_axes, layer.inference, layer.is_active) == (0.5, None, False, True)
    assert not hnn.Dropout(0.0).is_active
    assert not hnn.Dropout(0.1, inference=True).is_active
    assert jax.tree.leaves(layer) == [False]
    assert hash(layer) == hash(hnn.Dropout())
    with pytest.raises(TypeError):
        hnn.dropout(X, 0.5)  # inference has no default


def test_inference_is_a_leaf_in_whose_place_there_may_be_anything():
    model = {"dropout": hnn.Dropout(0.5), "scale": hax.ones(Embed)}
    labels = jax.tree.map(lambda leaf: "decay" if eqx.is_array(leaf) else "frozen", model)
    assert (labels["dropout"].inference, labels["scale"].array) == ("frozen", "decay")
    assert jax.tree.map(eqx.is_array, model)["dropout"].inference is False
    arrays, rest = eqx.partition(model, eqx.is_array)
    assert (arrays["dropout"].inference, rest["dropout"].inference) == (None, False)
    assert hax.state_dict.to_state_dict(arrays).keys() == {"scale"}
    assert eqx.tree_equal(eqx.combine(arrays, rest), model)


@pytest.mark.parametrize("filtered", [False, True])
def test_optimizers_take_a_model_with_dropout(filtered):
    model = {"dropout": hnn.Dropout(0.5), "scale": hax.ones(Embed)}
    own = eqx.filter(model, eqx.is_inexact_array) if filtered else model
    optimizer = optax.masked(optax.adamw(0.1), jax.tree.map(eqx.is_array, own))
    gradients = jax.tree.map(lambda leaf: leaf * 1, own)
    updates, state = optimizer.update(gradients, optimizer.init(own), own)
    for changed in (eqx.apply_updates(model, updates), optax.apply_updates(own, updates)):
        assert changed["scale"].axes == (Embed,)
        assert not changed["dropout"].inference
    assert eqx.nn.inference_mode(eqx.apply_updates(model, updates))["dropout"](X) is X
    assert jax.tree.structure(state) == jax.tree.structure(optimizer.init(own))
    spoilt = eqx.tree_at(lambda model: model["dropout"].inference, model, jnp.float32(0))  # as unmasked Adam leaves it
    out = eqx.filter_jit(lambda model: model["dropout"](X, key=KEY))(spoilt)
    np.testing.assert_array_equal(out.array, model["dropout"](X, key=KEY).array)


def test_inference_can_be_switched_in_a_model():
    model = {"layers": [hnn.Dropout(0.5), hnn.Dropout(0.1)]}
    switched = eqx.nn.inference_mode(model)
    assert [layer.inference for layer in switched["layers"]] == [True, True]
    assert [layer.inference for layer in eqx.nn.inference_mode(switched, value=False)["layers"]] == [False, False]
    assert eqx.tree_at(lambda layer: layer.inference, hnn.Dropout(0.5), True)(X) is X
    shared = hnn.Dropout(0.5)
    assert [layer.inference for layer in eqx.nn.inference_mode([shared, shared])] == [True, True]


def test_switched_back_a_model_has_the_structure_that_it_had():
    model = {"layer": hnn.Dropout(0.5), "scale": hax.ones(Embed)}
    switched = eqx.nn.inference_mode(model)
    assert jax.tree.structure(eqx.nn.inference_mode(switched, value=False)) == jax.tree.structure(model)
    assert jax.tree.structure(switched) == jax.tree.structure(model | {"layer": hnn.Dropout(0.5, inference=True)})


def test_the_state_dict_has_inference_as_a_bool(tmp_path):
    layer = hnn.Dropout(0.5, inference=True)
    state = hax.state_dict.to_state_dict({"dropout": layer}, "m")
    assert state == {"m.dropout.inference": True}
    assert type(state["m.dropout.inference"]) is bool
    assert hax.state_dict.from_state_dict({"dropout": hnn.Dropout(0.5)}, state, "m") == {"dropout": layer}
    hax.state_dict.save_state_dict(state, tmp_path / "m.safetensors")
    loaded = hax.state_dict.load_state_dict(tmp_path / "m.safetensors")
    assert hax.state_dict.from_state_dict({"dropout": hnn.Dropout(0.5)}, loaded, "m") == {"dropout": layer}
    assert hax.state_dict.from_state_dict({"dropout": layer}, {}, "m") == {"dropout": layer}
    assert hax.state_dict.to_torch_compatible_state_dict(layer) == {}
    stacked = hnn.Stacked.init(hax.Axis("layers", 2), Block)(0.5)
    state = hax.state_dict.to_state_dict(stacked)
    assert [state[f"{i}.dropout.inference"] for i in range(2)] == [False, False]
    other = hax.state_dict.from_state_dict(eqx.nn.inference_mode(stacked), state)
    assert jax.tree.structure(other) == jax.tree.structure(stacked)


def test_integers_cannot_be_scaled():
    with pytest.raises(AssertionError, match="which int32 cannot represent"):
        hnn.Dropout(0.5)(X.astype(jnp.int32), key=KEY)
    assert hnn.Dropout(0.5, inference=True)(X.astype(jnp.int32)).dtype == jnp.int32


@pytest.mark.parametrize("inference", [False, True])
def test_inference_survives_transformations(inference):
    layer = hnn.Dropout(0.5, inference=inference)
    expected = layer(X, key=KEY).array
    np.testing.assert_array_equal(hax.named_jit(lambda layer, x: layer(x, key=KEY))(layer, X).array, expected)
    traced = jax.jit(lambda layer, x: layer(x, key=KEY))(layer, X)  # the flag is an array here
    np.testing.assert_array_equal(traced.array, expected)
    assert type(traced) is hax.NamedArray
    gradient = eqx.filter_jit(eqx.filter_grad(lambda x, layer: layer(x, key=KEY).sum().scalar()))(X, layer)
    np.testing.assert_array_equal(gradient.array, (expected != 0) * (1 if inference else 2))


def test_of_a_plain_array():
    out = hnn.dropout(jnp.asarray(VALUES), 0.25, inference=False, key=KEY)
    assert isinstance(out, jax.Array)
    np.testing.assert_array_equal(out, hnn.Dropout(0.25)(X, key=KEY).array)


class Block(eqx.Module):
    dropout: hnn.Dropout
    scale: hax.NamedArray

    @staticmethod
    def init(pdrop):
        return Block(hnn.Dropout(pdrop), hax.ones(Embed))

    def __call__(self, x, *, key=None):
        return self.dropout(x * self.scale, key=key)


def test_in_a_stack_of_layers():
    Layers = hax.Axis("layers", 2)
    stacked = hnn.Stacked.init(Layers, Block, gradient_checkpointing=True)(0.5)
    keys = jax.random.split(KEY, 2)
    expected = VALUES
    for key in keys:
        expected = jnp.where(jax.random.bernoulli(key, 0.5, VALUES.shape), expected / 0.5, 0)
    run = eqx.filter_jit(lambda stacked, x, keys: stacked.fold(x, key=keys))
    np.testing.assert_allclose(run(stacked, X, keys).array, expected, rtol=1e-6)
    np.testing.assert_array_equal(run(eqx.nn.inference_mode(stacked), X, keys).array, VALUES)
