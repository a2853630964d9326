"""A model of three equal layers on 4 x 2 devices, whose collectives can be counted by hand."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import axonym as axn
import axonym.nn as nn
from axonym.costs.report import Cost
from tests.feedforward import FeedForward

Batch, Embed, Mlp, Layers = axn.make_axes(batch=8, embed=16, mlp=32, layers=3)
MESH = {"data": 4, "model": 2}
MAPPINGS = axn.Mappings({"embed": "data", "mlp": "model"}, {"batch": "data", "mlp": "model"})

# The targets, as errors list them.
NAMES = "v4, v5e, v5p, v6e, v7x, a100, h100, h100-96gb, h200, b200, gb200, cpu"


class Model(eqx.Module):
    blocks: nn.Stacked

    @staticmethod
    def init(key, layers=Layers):
        return Model(nn.Stacked.init(layers, FeedForward)(Embed, Mlp, key=key, use_bias=False))

    def __call__(self, x):
        return self.blocks.fold(x)


def loss(model, x):
    return (model(x) ** 2).mean().scalar()


ADAM = optax.adam(1e-3)


def step(model, state, x):
    value, grads = jax.value_and_grad(loss)(model, x)
    updates, state = ADAM.update(grads, state)
    return optax.apply_updates(model, updates), state, value


def abstract(dtype=jnp.float32):
    """Return a model, the state of its optimiser and a batch, none of which exists."""
    model = jax.eval_shape(Model.init, jax.random.key(0))
    state = jax.eval_shape(ADAM.init, model)
    return model, state, axn.NamedArray(jax.ShapeDtypeStruct((8, 16), dtype), (Batch, Embed))


def simulated(sizes):
    """Return a mesh of this machine, for whose compiler a program is made even where one for TPUs is installed."""
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=(jax.sharding.AxisType.Auto,) * len(sizes))


@functools.cache
def trained() -> Cost:
    """Return the cost of a step that donates what it replaces."""
    compiled = axn.named_jit(step, MAPPINGS, donate_args=(True, True))
    return axn.cost(compiled, MAPPINGS, simulated(MESH), *abstract(), target="v5e")
