"""Which layers of a model get a quantised product."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jax import lax

import axonym as axn
from axonym import nn, quant
from axonym.errors import ArgumentError, OperandError

E, M, H = axn.make_axes(embed=4, mlp=6, heads=2)
Layers, Outer = axn.make_axes(layers=3, outer=2)
KEY = jax.random.key(0)
FP8 = functools.partial(quant.Fp8DotGeneral.init, amax_history_length=5)


class Block(eqx.Module):
    qkv: nn.Linear
    mlp: nn.MLP

    @staticmethod
    def init(*, key):
        return Block(nn.Linear.init(E, (H, M), key=key), nn.MLP.init(E, E, M, 1, key=key))


@pytest.fixture(scope="module")
def model():
    def make():
        stack = nn.Stacked.init(Layers, Block)(key=KEY)
        return {"blocks": stack, "head": nn.Linear.init(E, M, key=KEY), "scale": axn.ones(E), "step": 3}

    return eqx.filter_eval_shape(make)


PATHS = ["blocks.stacked.qkv", "blocks.stacked.mlp.layers.0", "blocks.stacked.mlp.layers.1", "head"]


def quantised(model, targets, make=FP8):
    model = quant.quantize_linear_layers(model, quant.QuantizationConfig(make, targets))
    block = model["blocks"].stacked
    layers = [block.qkv, *block.mlp.layers, model["head"]]
    return [path for path, layer in zip(PATHS, layers, strict=True) if layer.dot_general is not None]


def test_targets(model):
    assert quantised(model, None) == PATHS
    assert quantised(model, "qkv") == PATHS[:1]
    assert quantised(model, "mlp.layers.1") == [PATHS[2]]
    assert quantised(model, r"mlp\..*") == PATHS[1:3]
    assert quantised(model, r"blocks\..*") == PATHS[:3]
    assert quantised(model, ["head", "qkv"]) == [PATHS[0], PATHS[3]]
    assert quantised(model, "head|qkv") == [PATHS[0], PATHS[3]]
    assert quantised(model, lambda path, layer: layer.Out == (M,)) == [PATHS[1], PATHS[3]]
    assert quantised(model, lambda path, layer: False) == []
    assert quantised(model, []) == []


def test_the_rest_of_the_model_stays_and_the_product_can_be_taken_away_again(model):
    there = quant.quantize_linear_layers(model, quant.QuantizationConfig(FP8))
    assert there["scale"].array is model["scale"].array
    assert there["blocks"].stacked.qkv.weight.array is model["blocks"].stacked.qkv.weight.array
    back = quant.quantize_linear_layers(there, quant.QuantizationConfig(lambda: None))
    assert jax.tree.structure(back) == jax.tree.structure(model)


def test_stacked_layers_have_a_state_each():
    def make():
        return {"nested": nn.Stacked.init(Outer, _Stack)(key=KEY), "one": nn.Linear.init(E, E, key=KEY, out_first=True)}

    found = quant.quantize_linear_layers(eqx.filter_eval_shape(make), quant.QuantizationConfig(FP8))
    state = found["nested"].stacked.layers.stacked.dot_general
    assert [leaf.shape for leaf in jax.tree.leaves(state)] == [(2, 3, 5)] * 3
    assert [leaf.shape for leaf in jax.tree.leaves(found["one"].dot_general)] == [(5,)] * 3
    each = jax.vmap(lambda key: nn.Linear.init(E, M, key=key))(jax.random.split(KEY, 4))
    found = quant.quantize_linear_layers(each, quant.QuantizationConfig())
    assert found.dot_general.input_amax_history.shape == (4, 1024)


class _Stack(eqx.Module):
    layers: nn.Stacked

    @staticmethod
    def init(*, key):
        return _Stack(nn.Stacked.init(Layers, nn.Linear)(E, E, key=key))


def test_each_layer_has_a_state_of_its_own():
    layers = [nn.Linear.init(E, E, key=KEY)] * 2
    first, second = quant.quantize_linear_layers(layers, quant.QuantizationConfig(FP8))
    assert first.dot_general.input_amax_history is not second.dot_general.input_amax_history


def fails(error, text, tree, *config):
    with pytest.raises(error) as caught:
        quant.quantize_linear_layers(tree, quant.QuantizationConfig(*config))
    assert type(caught.value) is error
    assert str(caught.value) == text


def test_errors(model):
    fails(
        ArgumentError,
        "quantize_linear_layers: the target 'qvk' matches no linear layer\n"
        "  there are: blocks.stacked.qkv, blocks.stacked.mlp.layers.0, blocks.stacked.mlp.layers.1, head\n"
        "  hint: did you mean 'qkv'?",
        model,
        FP8,
        ["head", "qvk"],
    )
    fails(
        ArgumentError,
        "quantize_linear_layers: the target 'head' matches no linear layer\n  there are no linear layers",
        {"scale": axn.ones(E)},
        FP8,
        "head",
    )
    fails(
        ArgumentError,
        "quantize_linear_layers: the target '(' is not a regular expression: "
        "missing ), unterminated subpattern at position 0",
        model,
        FP8,
        "(",
    )
    fails(
        OperandError,
        "quantize_linear_layers: dot_general must be a function that makes a product, not Fp8DotGeneral\n"
        "  hint: write Fp8DotGeneral.init, or a lambda: each layer needs a state of its own",
        model,
        FP8(),
    )
    for config, kind in ((None, "NoneType"), (FP8(), "Fp8DotGeneral")):
        with pytest.raises(OperandError) as caught:
            quant.quantize_linear_layers(model, config)
        assert str(caught.value) == (
            f"quantize_linear_layers: config must be a QuantizationConfig, not {kind}\n"
            "  hint: write QuantizationConfig(Int8DotGeneral)"
        )


def test_any_function_may_multiply():
    def doubling(*args, **kwargs):
        return 2 * lax.dot_general(*args, **kwargs)

    layer = nn.Linear.init(E, M, key=KEY, use_bias=False)
    doubled = quant.quantize_linear_layers(layer, quant.QuantizationConfig(lambda: jax.tree_util.Partial(doubling)))
    x = axn.ones(E, jnp.float32)
    assert axn.allclose(jax.jit(lambda layer, x: layer(x))(doubled, x), 2 * layer(x))
    doubled = quant.quantize_linear_layers(layer, quant.QuantizationConfig(lambda: doubling))
    assert axn.allclose(jax.jit(lambda layer, x: layer(x))(doubled, x), 2 * layer(x))


def test_numbers_of_what_multiplies_are_state():
    class Scaling(eqx.Module):
        factor: float

        def __call__(self, *args, precision, preferred_element_type):
            return self.factor * lax.dot_general(*args, precision)

    stack = nn.Stacked.init(Layers, nn.Linear)(E, E, key=KEY, use_bias=False)
    found = quant.quantize_linear_layers(stack, quant.QuantizationConfig(lambda: Scaling(2.0)))
    assert found.stacked.dot_general.factor.tolist() == [2.0] * 3
    x = axn.ones(E, jnp.float32)
    assert axn.allclose(found.fold(x), 8 * stack.fold(x), atol=1e-5)
