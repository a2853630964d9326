"""Quantised linear layers, against what numpy computes by delayed scaling, and in training."""

import dataclasses
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import axonym.compat.haliax  # noqa: F401

# isort: split
import haliax as hax
import haliax.nn as hnn
from haliax.quantization import (
    DefaultDotGeneralOp,
    Fp8DotGeneralOp,
    Int8DotGeneralOp,
    QuantizationConfig,
    apply_updates,
    partition_for_grad_overwrite,
    quantize_linear_layers,
)
from haliax.state_dict import from_state_dict, to_state_dict

from tests.compat.haliax.nn.arrays import draw, same_trees, zeros_like

Batch, In, Mid, Out = hax.make_axes(batch=8, input=16, mid=12, output=12)
KEY = jax.random.PRNGKey(0)
FP8 = QuantizationConfig(fp8=True, amax_history_length=4)
STATE = ("input_scale", "output_grad_scale", "kernel_scale")
HISTORIES = ("input_amax_history", "output_grad_amax_history", "kernel_amax_history")


class Model(eqx.Module):
    up: hnn.Linear
    down: hnn.Linear

    @staticmethod
    def init(*, key):
        first, second = jax.random.split(key)
        return Model(hnn.Linear.init(In, Mid, key=first), hnn.Linear.init(Mid, In, key=second))

    def __call__(self, x):
        return x + self.down(hnn.relu(self.up(x)))


def quantized(tree):
    found = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, hnn.Linear))
    return [not isinstance(each.dot_general, DefaultDotGeneralOp) for each in found if isinstance(each, hnn.Linear)]


def test_the_gradient_is_the_state_after_the_step():
    layer = quantize_linear_layers(
        hnn.Linear.init(In, Out, key=KEY), QuantizationConfig(fp8=True, amax_history_length=3)
    )
    limits = {"input": 448.0, "kernel": 448.0, "output_grad": 57344.0}
    state = {name: np.zeros(3, np.float32) for name in limits}

    @eqx.filter_jit
    @eqx.filter_grad(has_aux=True)
    def step(layer, x, dy):
        y = layer(x)
        return (y * dy).sum().scalar(), y

    for i in range(5):
        x, dy = (draw(Batch, own, seed=10 * i + j) for j, own in enumerate((In, Out)))
        scales = {name: state[name].max() / limits[name] or 1.0 for name in limits}
        for name, value in (("input", x), ("kernel", layer.weight), ("output_grad", dy)):
            state[name] = np.roll(state[name], -1)
            state[name][0] = np.abs(np.asarray(value.array)).max()
        grads, y = step(layer, x, dy)
        overwrites, rest = partition_for_grad_overwrite(grads)
        layer = apply_updates(layer, jax.tree.map(jnp.zeros_like, rest), overwrites)
        for name in limits:
            np.testing.assert_allclose(getattr(layer.dot_general, f"{name}_scale"), [scales[name]], rtol=1e-6)
            np.testing.assert_allclose(getattr(layer.dot_general, f"{name}_amax_history"), state[name], rtol=1e-6)
    np.testing.assert_allclose(y.array, np.asarray(x.array) @ np.asarray(layer.weight.array).T, atol=0.2)
    np.testing.assert_allclose(grads.weight.array, np.asarray(dy.array).T @ np.asarray(x.array), atol=1.0)


@pytest.mark.parametrize(
    ("config", "optimizer"), [(FP8, optax.adamw(1e-2)), (QuantizationConfig(int8=True), optax.sgd(0.5))]
)
def test_training(config, optimizer):
    model = quantize_linear_layers(Model.init(key=KEY), config)
    opt_state = optimizer.init(eqx.filter(partition_for_grad_overwrite(model)[1], eqx.is_inexact_array))
    x = draw(Batch, In)

    @eqx.filter_jit
    def train_step(model, opt_state):
        loss, grads = eqx.filter_value_and_grad(lambda model: hax.mean((model(x) - 1) ** 2).scalar())(model)
        overwrites, grads = partition_for_grad_overwrite(grads)
        updates, opt_state = optimizer.update(grads, opt_state, params=eqx.filter(model, eqx.is_inexact_array))
        return loss, apply_updates(model, updates, overwrites), opt_state

    losses = []
    for _ in range(8):
        loss, model, opt_state = train_step(model, opt_state)
        losses.append(float(loss))
    assert losses[-1] < 0.9 * losses[0]
    assert quantized(model) == [True, True]
    if config.fp8:
        assert np.all(model.up.dot_general.input_amax_history > 0)


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        (None, [True, True, True]),
        (["up"], [True, False, False]),
        (["first.down", "last"], [False, True, True]),
        (r"first\..*", [True, True, False]),
        ("up", [False, False, False]),
        (".*(up|last)$", [True, False, True]),
        ([], [False, False, False]),
    ],
)
def test_targets(targets, expected):
    tree = {"first": Model.init(key=KEY), "last": hnn.Linear.init(In, Out, key=KEY)}
    result = quantize_linear_layers(tree, QuantizationConfig(targets, int8=True))
    assert quantized(result) == expected


def test_layers_of_a_stack():
    Layers = hax.Axis("layers", 3)
    stack = hnn.Stacked.init(Layers, Model)(key=jax.random.split(KEY, 3))
    result = quantize_linear_layers(stack, QuantizationConfig(["up"], fp8=True, amax_history_length=4))
    assert quantized(result) == [True, False]
    assert result.stacked.up.dot_general.input_scale.shape == (3, 1)
    assert result.stacked.up.dot_general.kernel_amax_history.shape == (3, 4)
    assert quantized(quantize_linear_layers({"h": stack}, QuantizationConfig("h.up", fp8=True))) == [True, False]
    x = draw(Batch, In)

    @eqx.filter_jit
    @eqx.filter_grad(has_aux=True)
    def fold(stack):
        y = stack.fold(x)
        return y.sum().scalar(), y

    grads, y = fold(result)
    expected = np.asarray(x.array)
    for up, down in zip(
        np.asarray(stack.stacked.up.weight.array), np.asarray(stack.stacked.down.weight.array), strict=True
    ):
        expected = expected + np.maximum(expected @ up.T, 0) @ down.T
    np.testing.assert_allclose(y.array, expected, atol=0.5)
    overwrites, _ = partition_for_grad_overwrite(grads)
    seen = overwrites.stacked.up.dot_general.kernel_amax_history
    np.testing.assert_allclose(seen[:, 0], np.abs(np.asarray(stack.stacked.up.weight.array)).max((1, 2)))


def test_int8():
    layer = hnn.Linear.init(In, Out, key=KEY)
    result = quantize_linear_layers(layer, QuantizationConfig(int8=True))
    assert isinstance(result.dot_general, Int8DotGeneralOp)
    x = draw(Batch, In)
    np.testing.assert_allclose(result(x).array, layer(x).array, atol=0.05)
    with pytest.warns(UserWarning, match="no state"):
        assert sorted(to_state_dict(result)) == ["bias", "weight"]
    with pytest.warns(UserWarning, match="no state"):
        assert result.dot_general.to_state_dict("prefix") == {}
    own = Int8DotGeneralOp(DefaultDotGeneralOp.init())
    np.testing.assert_allclose(dataclasses.replace(layer, dot_general=own)(x).array, layer(x).array)


def test_state_dict_of_fp8():
    layer = quantize_linear_layers(hnn.Linear.init(In, Out, key=KEY), FP8)
    state = to_state_dict(layer, "proj")
    assert sorted(state) == sorted(
        ["proj.bias", "proj.weight", *(f"proj.dot_general.{name}" for name in (*STATE, *HISTORIES))]
    )
    same_trees(from_state_dict(zeros_like(layer), state, "proj"), layer)


def test_partition_and_updates():
    tree = {"op": Fp8DotGeneralOp.init(2), "weight": jnp.ones(2)}
    overwrites, rest = partition_for_grad_overwrite(tree)
    assert overwrites["weight"] is None
    assert rest["op"] is None
    after = jax.tree.map(lambda leaf: leaf + 5, overwrites)
    updated = apply_updates(tree, {"op": None, "weight": jnp.full(2, 2.0)}, after)
    np.testing.assert_array_equal(updated["op"].input_amax_history, [5, 5])
    np.testing.assert_array_equal(updated["weight"], [3, 3])


def test_configurations():
    config = QuantizationConfig()
    assert [field.name for field in dataclasses.fields(config)] == [
        "targets",
        "amax_history_length",
        "compute_dtype",
        "fp8",
        "int8",
    ]
    assert dataclasses.astuple(config) == (None, 1024, None, False, False)
    with pytest.raises(AssertionError, match="exclude each other"):
        QuantizationConfig(fp8=True, int8=True)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.fp8 = True
    layer = hnn.Linear.init(In, Out, key=KEY)
    with pytest.warns(UserWarning, match="neither fp8 nor int8"):
        assert quantize_linear_layers(layer, config) is layer
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = hnn.MLP.init(In, Out, 8, 1, key=KEY, dot_general=Fp8DotGeneralOp.init(4))
    assert quantized(made) == [True, True]
