"""`MLP`, against numpy."""

import dataclasses

import equinox as eqx
import jax
import numpy as np
import pytest

import axonym.compat.haliax  # noqa: F401

# isort: split
import haliax as hax
import haliax.nn as hnn
from haliax.nn.mlp import DEFAULT_WIDTH_NAME
from haliax.state_dict import from_state_dict, to_state_dict

from tests.compat.haliax.nn.arrays import draw, same, same_trees, zeros_like

Batch, In, Out = hax.make_axes(batch=3, input=4, output=2)
KEY = jax.random.PRNGKey(0)
X = draw(Batch, In)


def test_values_and_hidden_axes():
    mlp = hnn.MLP.init(In, Out, 5, 3, key=KEY)
    assert DEFAULT_WIDTH_NAME == "mlp"
    hidden = [hax.Axis("mlp", 5), hax.Axis("mlp2", 5), hax.Axis("mlp", 5)]
    assert [layer.In for layer in mlp.layers] == [In, *hidden]
    assert [layer.Out for layer in mlp.layers] == [*hidden, Out]
    assert (mlp.In, mlp.Out) == (In, Out)
    assert mlp.activation is hnn.relu
    values = np.asarray(X.array)
    for i, (layer, key) in enumerate(zip(mlp.layers, jax.random.split(KEY, 4), strict=True)):
        drawn = np.asarray(jax.random.truncated_normal(key, -3, 3, layer.weight.array.shape))
        weight = drawn / np.sqrt(values.shape[1])
        np.testing.assert_allclose(layer.weight.array, weight, rtol=1e-6)
        values = values @ weight.T
        values = np.maximum(values, 0) if i < 3 else values
    same(mlp(X, key=KEY), (Batch, Out), values)


def test_options():
    Wide = hax.Axis("wide", 5)
    options = {"out_first": False, "use_bias": False, "use_final_bias": True, "key": KEY, "init_scale": 0.5}
    mlp = eqx.filter_eval_shape(hnn.MLP.init, (In,), Out, Wide, 2, hax.tanh, **options)
    assert [layer.Out for layer in mlp.layers] == [Wide, Wide.alias("wide2"), Out]
    assert mlp.layers[0].weight.axes == (In, Wide)
    assert [layer.bias is None for layer in mlp.layers] == [True, True, False]
    assert (mlp.In, mlp.activation) == ((In,), hax.tanh)
    assert eqx.filter_eval_shape(mlp, hax.ones(In)).axes == (Out,)
    assert len(eqx.filter_eval_shape(hnn.MLP.init, In, Out, 5, 0, key=KEY).layers) == 1
    same_trees(hnn.MLP(In, Out, 5, 1, key=KEY), hnn.MLP.init(In, Out, 5, 1, key=KEY))


def test_fields_and_trees():
    mlp = hnn.MLP.init(In, Out, 5, 1, hnn.gelu, key=KEY)
    assert [field.name for field in dataclasses.fields(mlp)] == ["activation", "layers"]
    same_trees(hnn.MLP(hnn.gelu, mlp.layers), mlp)
    assert all(eqx.is_array(leaf) for leaf in jax.tree.leaves(mlp))
    state = to_state_dict(mlp, "mlp")
    assert sorted(state) == [f"mlp.layers.{i}.{name}" for i in range(2) for name in ("bias", "weight")]
    same_trees(from_state_dict(zeros_like(mlp), state, "mlp"), mlp)


def test_one_step_of_training_lowers_the_loss():
    mlp = hnn.MLP.init(In, Out, 5, 2, key=KEY)

    @eqx.filter_jit
    @eqx.filter_value_and_grad
    def loss(mlp):
        return hax.mean((mlp(X) - 1) ** 2).scalar()

    before, grads = loss(mlp)
    after, _ = loss(eqx.apply_updates(mlp, jax.tree.map(lambda g: -0.05 * g, grads)))
    assert after < before


def test_names_on_both_sides():
    with pytest.raises(ValueError, match="'mlp' is in both In and Out"):
        hnn.MLP.init(hax.Axis("mlp", 5), Out, 5, 1, key=KEY)
    with pytest.raises(ValueError, match="depth must not be negative"):
        hnn.MLP.init(In, Out, 5, -1, key=KEY)
