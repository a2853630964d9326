"""Rules of Qwix on linear layers, against Qwix on layers of Flax and against NumPy."""

import dataclasses

import equinox as eqx
import flax.linen as flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import qwix

import axonym as axn
from axonym import nn
from axonym.errors import ArgumentError, OperandError
from axonym.quant import quantize_with_qwix

# Qwix reads all names of Flax, old ones too, when it replaces functions.
pytestmark = pytest.mark.filterwarnings("ignore:'VariableState' was removed:DeprecationWarning")

Batch, Embed, Mlp, Heads, Layers = axn.make_axes(batch=8, embed=16, mlp=32, heads=4, layers=3)
KEY = jax.random.key(0)
RULES = {
    "weights": qwix.QtRule(weight_qtype=jnp.int8),
    "both": qwix.QtRule(weight_qtype=jnp.int8, act_qtype=jnp.int8),
    "int4 in tiles": qwix.QtRule(weight_qtype=jnp.int4, tile_size=4),
    "nf4": qwix.QtRule(weight_qtype="nf4", tile_size=8),
    "fp8": qwix.QtRule(weight_qtype=jnp.float8_e4m3fn, act_qtype=jnp.float8_e4m3fn),
    "zero points": qwix.QtRule(weight_qtype=jnp.int8, weight_calibration_method="minmax"),
    "clipped": qwix.QtRule(weight_qtype=jnp.int8, weight_calibration_method="absmax,0.5", act_qtype=jnp.int8),
    "gradients": qwix.QtRule(weight_qtype=jnp.int8, act_qtype=jnp.int8, bwd_qtype=jnp.int8),
}
# Gradients of minmax are not in Qwix.
TRAINED = [name for name in RULES if name != "zero points"]


def array(seed, *axes):
    """Draw numbers that no error of one ulp rounds to another integer, whatever divides by the scale."""
    numbers = np.random.default_rng(seed).integers(-120, 120, [axis.size for axis in axes]) + 0.25
    numbers[0], numbers[:, 0] = 127.5, 127.5
    return axn.named(jnp.asarray(numbers / 128, jnp.float32), axes)


def layer_and_input(dtype=jnp.float32):
    layer = nn.Linear.init(Embed, Mlp, key=KEY)
    layer = dataclasses.replace(layer, weight=array(0, Embed, Mlp), bias=axn.random.normal(KEY, Mlp))
    return jax.tree.map(lambda leaf: leaf.astype(dtype), (layer, array(1, Batch, Embed)))


def in_flax(provider, layer):
    """Return the same layer as one of Flax, and its parameters."""
    dense = qwix.quantize_model(flax.Dense(Mlp.size, dtype=layer.weight.dtype), provider)
    return dense, {"params": {"kernel": layer.weight.array, "bias": layer.bias.array}}


@pytest.mark.parametrize("name", TRAINED)
def test_training_is_that_of_qwix_in_flax(name):
    layer, x = layer_and_input()
    dense, own = in_flax(qwix.QtProvider([RULES[name]]), layer)
    expected, by_flax = jax.value_and_grad(lambda own, x: (dense.apply(own, x) ** 2).sum(), (0, 1))(own, x.array)

    quantised = quantize_with_qwix(layer, [RULES[name]])
    assert quantised.weight is layer.weight
    loss, (by_layer, by_x) = eqx.filter_jit(jax.value_and_grad(lambda layer, x: (layer(x) ** 2).sum().array, (0, 1)))(
        quantised, x
    )
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    np.testing.assert_allclose(by_layer.weight.array, by_flax[0]["params"]["kernel"], rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(by_x.array, by_flax[1], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("name", [name for name in RULES if name != "gradients"])
def test_stored_weights_are_those_of_qwix_in_flax(name, dtype):
    layer, x = layer_and_input(dtype)
    dense, own = in_flax(qwix.PtqProvider([RULES[name]]), layer)
    params = qwix.quantize_params(own["params"], dense.init(KEY, x.array)["params"])
    expected = dense.apply({"params": params}, x.array)

    stored = quantize_with_qwix(layer, [RULES[name]], store=True)
    assert stored.weight.axes == layer.weight.axes
    assert stored.weight.dtype.itemsize == 1
    assert jnp.array_equal(stored.weight.array, params["kernel"].array.qvalue)
    result = eqx.filter_jit(stored.__call__)(x)
    assert result.dtype == dtype
    tolerance = 1e-6 if dtype == jnp.float32 else 0.02
    np.testing.assert_allclose(
        result.array.astype(jnp.float32), expected.astype(jnp.float32), rtol=tolerance, atol=tolerance
    )


def test_8_bits_by_numpy():
    layer, x = layer_and_input()
    weight = np.asarray(layer.weight.array)
    scale = np.abs(weight).max(0) / 127.5
    rounded = np.clip(np.round(weight / scale), -128, 127)
    expected = np.asarray(x.array) @ (rounded * scale) + np.asarray(layer.bias.array)
    for store in (False, True):
        result = quantize_with_qwix(layer, [RULES["weights"]], store=store)(x)
        np.testing.assert_allclose(result.array, expected, rtol=1e-5, atol=1e-5)


class Block(eqx.Module):
    qkv: nn.Linear
    out: nn.Linear

    @staticmethod
    def init(*, key):
        return Block(nn.Linear.init(Embed, (Heads, Mlp), key=key), nn.Linear.init((Heads, Mlp), Embed, key=key))

    def __call__(self, x):
        return x + self.out(axn.tanh(self.qkv(x)))


@pytest.mark.parametrize("store", [False, True])
def test_the_layers_of_a_stack(store):
    """Two axes are summed over, the last one in tiles; each layer of the stack has its own scales."""
    stack = nn.Stacked.init(Layers, Block)(key=jax.random.split(KEY, Layers.size))
    model = {"blocks": stack, "head": nn.Linear.init(Embed, Mlp, key=KEY)}
    x = axn.random.normal(KEY, (Batch, Embed))
    first = qwix.QuantizationRule(module_path="blocks/.*/out", weight_qtype=jnp.int8, act_qtype=jnp.int8, tile_size=8)
    rules = [first, qwix.QuantizationRule(module_path="head"), qwix.QtRule(module_path=".*", weight_qtype=jnp.int4)]
    quantised = quantize_with_qwix(model, rules, store=store)
    assert quantised["head"] is model["head"]

    first, _, last = (dataclasses.replace(rule, module_path=".*") for rule in rules)
    qkv = qwix.quantize_model(flax.DenseGeneral((Heads.size, Mlp.size)), qwix.QtProvider([last]))
    out = qwix.quantize_model(flax.DenseGeneral(Embed.size, axis=(-2, -1)), qwix.QtProvider([first]))
    expected = x.array
    for at in range(Layers.size):
        first, last = (
            {"params": {"kernel": layer.weight["layers", at].array, "bias": layer.bias["layers", at].array}}
            for layer in (stack.stacked.qkv, stack.stacked.out)
        )
        expected += out.apply(last, jnp.tanh(qkv.apply(first, expected)))
    result = eqx.filter_jit(quantised["blocks"].fold)(x)
    assert result.axes == x.axes
    np.testing.assert_allclose(result.array, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["auto", "explicit"])
@pytest.mark.parametrize("store", [False, True])
def test_on_a_mesh(kind, store):
    types = {"auto": jax.sharding.AxisType.Auto, "explicit": jax.sharding.AxisType.Explicit}
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(types[kind],) * 2, devices=jax.devices()[:4])
    layer, x = layer_and_input()
    quantised = quantize_with_qwix(layer, [RULES["both"]], store=store)
    expected = quantised(x)
    with axn.set_mesh(mesh), axn.axis_mapping({"batch": "data", "mlp": "model"}):
        placed, x = axn.shard((quantised, x))
        assert placed.weight.array.sharding.spec == jax.P(None, "model")
        result = axn.named_jit(lambda layer, x: layer(x))(placed, x)
    assert result.array.sharding.spec == jax.P("data", "model")
    np.testing.assert_allclose(result.array, expected.array, rtol=1e-5, atol=1e-5)


ERRORS = {
    "not a rule": (
        [qwix.QtProvider([])],
        {},
        OperandError,
        "quantize_with_qwix: rules must be a list of qwix.QuantizationRule, not of QtProvider\n"
        '  hint: write [qwix.QuantizationRule(module_path=".*", weight_qtype=jnp.int8)]',
    ),
    "one rule": (
        RULES["both"],
        {},
        OperandError,
        "quantize_with_qwix: rules must be a list of qwix.QuantizationRule, not QtRule\n"
        '  hint: write [qwix.QuantizationRule(module_path=".*", weight_qtype=jnp.int8)]',
    ),
    "no such layer": (
        [qwix.QuantizationRule(module_path="up", weight_qtype=jnp.int8)],
        {},
        ArgumentError,
        "quantize_with_qwix: the rule for 'up' matches no linear layer\n"
        "  there are: mlp/layers/0, mlp/layers/1\n"
        "  hint: module_path must match a whole path, and op_names, if any, must have 'dot_general'",
    ),
    "statistics": (
        [qwix.QuantizationRule(weight_qtype=jnp.int8, act_qtype=jnp.int8, act_static_scale=True)],
        {},
        ArgumentError,
        "quantize_with_qwix: act_static_scale=True needs variables or keys of a Flax module\n"
        "  hint: leave it out: scales of activations are then computed at each call",
    ),
    "gradients": (
        [RULES["gradients"]],
        {"store": True},
        ArgumentError,
        "quantize_with_qwix: bwd_qtype is for gradients, and stored weights have none\n"
        "  hint: leave out bwd_qtype or store=True",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    rules, options, error, text = ERRORS[name]
    model = {"mlp": nn.MLP.init(Embed, Embed, Mlp, 1, key=KEY)}
    with pytest.raises(error) as caught:
        quantize_with_qwix(model, rules, **options)
    assert str(caught.value) == text


@pytest.mark.parametrize("dtype", [jnp.int8, jnp.float8_e4m3fn])
def test_a_stored_weight_is_not_quantised_again(dtype):
    rules = [qwix.QuantizationRule(weight_qtype=dtype)]
    model = quantize_with_qwix({"head": nn.Linear.init(Embed, Mlp, key=KEY)}, rules, store=True)
    with pytest.raises(ArgumentError) as caught:
        quantize_with_qwix(model, rules)
    text = f"quantize_with_qwix: the weight of head is of {dtype.__name__}, so it is quantised already"
    assert str(caught.value) == text + "\n  hint: start from the model before"


def test_a_layer_whose_weight_is_elsewhere_stays():
    layer, rules = nn.Linear.init(Embed, Mlp, key=KEY), [qwix.QuantizationRule(weight_qtype=jnp.int8)]
    model = quantize_with_qwix({"whole": layer, "hole": eqx.filter(layer, lambda _: False)}, rules)
    assert jax.tree.structure(model["hole"]) == jax.tree.structure(eqx.filter(layer, lambda _: False))
    assert jax.tree.structure(model["whole"]) == jax.tree.structure(quantize_with_qwix(layer, rules))
