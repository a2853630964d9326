"""A model of three equal layers on 4 x 2 devices, whose collectives can be counted by hand."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import axonym as axn
import axonym.nn as nn
from axonym.costs.report import Cost

Batch, Embed, Mlp, Layers = axn.make_axes(batch=8, embed=16, mlp=32, layers=3)
MESH = {"data": 4, "model": 2}
MAPPINGS = axn.Mappings({"embed": "data", "mlp": "model"}, {"batch": "data", "mlp": "model"})


class Block(eqx.Module):
    up: nn.Linear
    down: nn.Linear

    @staticmethod
    def init(*, key):
        linear = functools.partial(nn.Linear.init, use_bias=False, key=key)
        return Block(linear(Embed, Mlp), linear(Mlp, Embed))

    def __call__(self, x):
        return x + self.down(axn.tanh(self.up(x)))


class Model(eqx.Module):
    blocks: nn.Stacked

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
    model = jax.eval_shape(lambda key: Model(nn.Stacked.init(Layers, Block)(key=key)), jax.random.key(0))
    state = jax.eval_shape(ADAM.init, model)
    return model, state, axn.NamedArray(jax.ShapeDtypeStruct((8, 16), dtype), (Batch, Embed))


@functools.cache
def trained() -> Cost:
    """Return the cost of a step that donates what it replaces."""
    compiled = axn.named_jit(step, MAPPINGS, donate_args=(True, True))
    return axn.cost(compiled, MAPPINGS, MESH, *abstract(), target="v5e")
