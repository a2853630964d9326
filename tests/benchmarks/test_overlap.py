"""Layers that are gathered ahead, and positions that are split between products, have the usual gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import perceptron
import pytest
from gpt2 import STRATEGIES, Gpt2, Gpt2Config
from overlap import ahead, line, split, with_library

import axonym as axn

SIZES = Gpt2Config(layers=3, embed=32, heads=4, positions=16, vocab=64, dropout=0.0)


def loss_and_gradients(model: Gpt2, tokens: axn.NamedArray) -> tuple[jax.Array, Gpt2]:
    return jax.value_and_grad(lambda model: model.loss(tokens).scalar())(model)


def test_layers_gathered_ahead_have_the_same_gradients(auto_mesh: jax.sharding.Mesh) -> None:
    model = Gpt2.init(SIZES, key=jax.random.key(0))
    tokens = axn.named(np.random.default_rng(1).integers(0, 64, (8, 17)), ("batch", "pos"))
    parameters, compute = STRATEGIES["fsdp"]
    found = []
    with axn.set_mesh(auto_mesh):
        for own in (model, ahead(model, parameters)):
            compiled = axn.named_jit(loss_and_gradients, axn.Mappings(parameters, compute))
            found.append(jax.tree.leaves(compiled(own, tokens)))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-7)


def test_positions_split_between_products_and_rings_have_the_same_gradients(explicit_mesh: jax.sharding.Mesh) -> None:
    tokens = axn.named(np.random.default_rng(1).integers(0, 64, (8, 17)), ("batch", "pos"))
    parameters, usual = STRATEGIES["tp"]
    sizes, compute = split(SIZES, usual)
    expected = jax.jit(loss_and_gradients)(Gpt2.init(SIZES, key=jax.random.key(0)), tokens)
    with axn.set_mesh(explicit_mesh):
        compiled = axn.named_jit(loss_and_gradients, axn.Mappings(parameters, compute))
        found = compiled(Gpt2.init(sizes, key=jax.random.key(0)), tokens)
        ringed = axn.named_jit(loss_and_gradients, axn.Mappings(parameters, compute), rings=True)
        in_parts = ringed(with_library(Gpt2.init(sizes, key=jax.random.key(0))), tokens)
    for one, other in zip(*map(jax.tree.leaves, (in_parts, found)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-7)
    for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-7)


def test_positions_are_split_where_the_layer_leaves_the_mesh_axis_free(auto_mesh: jax.sharding.Mesh) -> None:
    sizes, compute = split(SIZES, STRATEGIES["tp"][1])
    P = jax.sharding.PartitionSpec
    for names, spec in (
        (("batch", sizes.pos, "embed"), P("data", "model", None)),
        (("batch", sizes.pos, "mlp"), P("data", None, "model")),
        (("batch", "heads", sizes.pos, f"{sizes.pos}.key"), P("data", "model", None, None)),
    ):
        assert axn.pspec_for(axn.zeros(dict.fromkeys(names, 16)), compute, auto_mesh, strict=False) == spec


@pytest.mark.parametrize("ways", [1, 2, 4])
def test_products_in_rings_have_the_same_gradients(ways: int, explicit_mesh: jax.sharding.Mesh) -> None:
    sizes = perceptron.Sizes(layers=2, embed=8, mlp=16, positions=12, rows=8)
    x = axn.random.normal(jax.random.key(1), sizes.Input)
    stack = perceptron.init(sizes, jnp.dtype("float32"), key=jax.random.key(0))
    expected = jax.jit(perceptron.step)(stack, x)
    mesh = jax.sharding.Mesh(explicit_mesh.devices.reshape(-1, ways), ("data", "model"))
    mappings = axn.Mappings(perceptron.PARAMETERS, {**perceptron.COMPUTE, **perceptron.FORMS["rings"]})
    with axn.set_mesh(mesh):
        compiled = axn.named_jit(perceptron.step, mappings, rings=True)
        found = compiled(stack, x)
        text = compiled.lower(stack, x).as_text()
    assert ("collective_permute" in text) == (ways > 1)
    assert "all_gather" not in text
    for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", ["tp, sequences", "perceptron, ahead", "layers"])
def test_unknown_forms_are_errors(form: str) -> None:
    with pytest.raises(SystemExit, match=f"there is no form '{form}'; there are .*perceptron, rings"):
        line(form, 16)
