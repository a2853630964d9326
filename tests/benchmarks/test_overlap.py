"""The loop that gathers layers ahead has the gradients of the usual one."""

import jax
import numpy as np
from gpt2 import STRATEGIES, Gpt2, Gpt2Config
from overlap import ahead

import axonym as axn


def loss_and_gradients(model: Gpt2, tokens: axn.NamedArray) -> tuple[jax.Array, Gpt2]:
    return jax.value_and_grad(lambda model: model.loss(tokens).scalar())(model)


def test_layers_gathered_ahead_have_the_same_gradients(auto_mesh: jax.sharding.Mesh) -> None:
    sizes = Gpt2Config(layers=3, embed=32, heads=4, positions=16, vocab=64, dropout=0.0)
    model = Gpt2.init(sizes, key=jax.random.key(0))
    tokens = axn.named(np.random.default_rng(1).integers(0, 64, (8, 17)), ("batch", "pos"))
    parameters, compute = STRATEGIES["fsdp"]
    found = []
    with axn.set_mesh(auto_mesh):
        for own in (model, ahead(model, parameters)):
            compiled = axn.named_jit(loss_and_gradients, axn.Mappings(parameters, compute))
            found.append(jax.tree.leaves(compiled(own, tokens)))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-7)
