"""Pipelines whose stages work backward on one microbatch while they work forward on another."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import AxisSizeError, OperandError
from tests.nn.layouts import draw
from tests.nn.staging import (
    COMPUTED,
    KEY,
    MICROBATCHES,
    STORED,
    B,
    E,
    L,
    P,
    Residual,
    apply_by_hand,
    close,
    kept_by_hand,
    pipeline,
)

pytestmark = pytest.mark.sampled

V = axn.Axis("vocab", 5)
TOKENS = axn.named(jax.device_put(np.random.default_rng(0).integers(0, V.size, (B.size, P.size), np.int32)), (B, P))


class Model(eqx.Module):
    table: nn.Embedding
    blocks: nn.Stacked
    head: nn.Linear
    name: str = "model"

    @staticmethod
    def init(layers=L, policy=False):
        keys = jax.random.split(KEY, 3)
        blocks = nn.Stacked.init(layers, Residual, gradient_checkpointing=policy)(key=keys[0])
        return Model(nn.Embedding.init(V, E, key=keys[1]), blocks, nn.Linear.init(E, V, key=keys[2]))


def before(model, tokens, mask):
    """Embed tokens; the mask, an average of the carry and a count of tokens go along."""
    x = model.table(tokens)
    return x, mask, x.mean(), (tokens > 0).sum("pos")


def step(layer, carry, *, key=None):
    x, mask, total, count = carry
    x = layer(x, mask, key=key)
    return x, mask, total + x.mean(), count


def after(model, carry, tokens, mask):
    x, _, total, count = carry
    log_p = axn.log_softmax(model.head(x), axis=V)
    return -((log_p * axn.one_hot(tokens, V)).sum(V) * count).mean() + total


both = axn.pipeline_value_and_grad(lambda model: model.blocks, before, after, step=step)


def loss_by_hand(parameters, tokens, mask, *, dropout):
    table, layers, (weight, bias) = parameters
    x = table[tokens]
    total = x.mean()
    kept = kept_by_hand(2, L.size) if dropout else [1.0] * len(layers)
    for (layer, scale), keep in zip(layers, kept, strict=True):
        x = apply_by_hand(layer, scale, x, mask, 0.0, keep)
        total += x.mean()
    log_p = jax.nn.log_softmax(x @ weight + bias)
    picked = jnp.take_along_axis(log_p, tokens[..., None], -1)[..., 0]
    return -(picked * (tokens > 0).sum(1)[:, None]).mean() + total


@functools.partial(jax.jit, static_argnames="dropout")
def gradients_by_hand(*args, dropout):
    return jax.value_and_grad(loss_by_hand)(*args, dropout=dropout)


def parameters_of(model):
    layers = [(layer.weight.array, layer.scale) for layer in model.blocks.unstacked()]
    return model.table.weight.array, layers, (model.head.weight.array, model.head.bias.array)


@pytest.mark.parametrize(("mode", "dropout"), [("auto", True), ("explicit", True), ("no mesh", False)])
def test_equals_the_loss_of_the_whole_batch_by_hand(mode, dropout, auto_mesh, explicit_mesh):
    model, mask = Model.init(), draw(B, P)
    key = KEY if dropout else None
    call = lambda model, tokens, mask: both(model, tokens, mask, key=key)  # noqa: E731
    if mode == "no mesh":
        value, gradient = axn.named_jit(call)(model, TOKENS, mask)
    else:
        mesh = {"auto": auto_mesh, "explicit": explicit_mesh}[mode]
        value, gradient = pipeline(call, mesh, model, TOKENS, mask)

    expected, gradients = gradients_by_hand(parameters_of(model), TOKENS.array, mask.array, dropout=dropout)
    close(value, expected)
    close(parameters_of(gradient), gradients)


def test_memory_does_not_grow_with_the_number_of_microbatches(auto_mesh):
    """With twice the rows in twice the microbatches, a stage keeps as many inputs as before."""
    model = Model.init(policy=True)

    def temporary(microbatches):
        rows = B.resize(4 * microbatches)
        tokens = axn.ones((rows, P.resize(64)), dtype=int)
        mappings = axn.Mappings(STORED, COMPUTED)
        with axn.set_mesh(auto_mesh), axn.pipelined("batch", microbatches):
            run = axn.named_jit(both, mappings)
            given = axn.shard((model, tokens, tokens.astype("float32")), mappings)
            return run.lower(*given).compile().memory_analysis().temp_size_in_bytes

    # The data itself, here tokens and masks, is cut on each device.
    data = 2 * 4 * (32 - 4) * 4 * 64 // 2
    assert temporary(32) <= 1.1 * temporary(4) + data


def test_the_gradient_has_the_form_of_the_model(auto_mesh):
    model, mask = Model.init(), draw(B, P)
    _, gradient = pipeline(both, auto_mesh, model, TOKENS, mask)
    assert jax.tree.structure(gradient) == jax.tree.structure(eqx.filter(model, eqx.is_inexact_array))
    weight = gradient.blocks.stacked.weight.array
    assert weight.sharding.shard_shape(weight.shape) == (2, 4, 4)


SIX = nn.Stacked.init(L.resize(6), Residual)(key=KEY)
MISTAKES = {
    "data": (
        lambda model: both(model, TOKENS["batch", 0], draw(P)),
        AxisSizeError,
        "pipeline_value_and_grad: the work is cut along 'batch', which no array of the data has",
    ),
    "carry": (
        lambda model: axn.pipeline_value_and_grad(
            lambda model: model.blocks, lambda model, x: (model.table(x), 1), after, step=step
        )(model, TOKENS),
        OperandError,
        "pipeline_value_and_grad: an entry of the carry has no axis 'batch', and int32 cannot be averaged",
    ),
    "layers": (
        lambda model: both(eqx.tree_at(lambda m: m.blocks, model, SIX), TOKENS, draw(B, P)),
        AxisSizeError,
        "pipeline_value_and_grad: layers=6 cannot be split evenly into 4 stages over mesh axis data",
    ),
}


def test_inside_of_a_shard_map_over_the_data(auto_mesh):
    """Gradients are summed over the data once, after all ticks."""
    model, mask = Model.init(), draw(B, P)

    def local(model, tokens, mask):
        return axn.pmean(both(axn.pcast(model, "model"), tokens, mask), "model")

    call = axn.shard_map(local, axn.Mappings(STORED, COMPUTED), manual_axes="model")
    value, gradient = pipeline(call, auto_mesh, model, TOKENS, mask)
    expected, gradients = gradients_by_hand(parameters_of(model), TOKENS.array, mask.array, dropout=False)
    close(value, expected)
    close(parameters_of(gradient), gradients)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(mistake, auto_mesh):
    call, error, text = MISTAKES[mistake]
    cut = axn.pipelined("batch", MICROBATCHES)
    with axn.set_mesh(auto_mesh), axn.axis_mapping(COMPUTED), cut, pytest.raises(error) as caught:
        jax.eval_shape(lambda: call(Model.init()))
    assert str(caught.value).startswith(text)
