"""Stages of unequal depth: places without a layer are skipped, and everything is as if they were not there."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import axonym as axn
from axonym import nn
from axonym.errors import ArgumentError, AxisSizeError, ShardingError
from tests.nn.layouts import draw, fails
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
    Tilted,
    close,
    gradients_by_hand,
    loss_of,
    mean_square,
    pipeline,
)

pytestmark = pytest.mark.sampled


class Unit(Residual):
    """Layers that have no finite value, and no finite gradient, with parameters of zero."""

    @staticmethod
    def init(*, key):
        return Unit(*jax.tree.leaves(Residual.init(key=key), is_leaf=axn.is_named_array))

    def __call__(self, x, mask=1.0, shift=0.0, *, key=None):
        norm = axn.sqrt((self.weight**2).sum())
        return Residual(self.weight / norm, self.scale)(x, mask, shift, key=key)


def make(layers, *, kinds=(Residual,), recomputes=False, **options):
    Block = L.resize(layers)
    if len(kinds) == 1:
        return nn.Stacked.init(Block, *kinds, gradient_checkpointing=recomputes, **options)(key=KEY)
    return nn.Interleaved.init(Block, kinds, gradient_checkpointing=recomputes, **options)(key=KEY)


def split(stack):
    return [(layer.weight.array, layer.scale) for layer in stack.unstacked()]


# Six layers on four stages: two on each of the first three, or one of each round but the last ones.
STACKS = {
    "Stacked": ({}, (1.0,), "auto"),
    "rounds": ({"rounds": 2, "recomputes": True}, (1.0,), "explicit"),
    "Interleaved": ({"kinds": (Residual, Tilted), "recomputes": True}, (1.0, 1.25), "auto"),
}


@pytest.mark.parametrize("kind", STACKS)
def test_values_gradients_and_updates_are_those_of_the_layers_one_by_one(kind, auto_mesh, explicit_mesh):
    options, tilts, mode = STACKS[kind]
    stack, x, mask, shift = make(6, stages=4, **options), draw(B, P, E), draw(B, P), draw(L.resize(6), E)
    mesh = {"auto": auto_mesh, "explicit": explicit_mesh}[mode]

    def loss(stack, x, mask, shift):
        # An argument with the names of layers could not be placed on stages that do not divide it.
        return loss_of(stack, x, mask, axn.named(shift, (stack.Block, E)))

    run = jax.value_and_grad(loss, argnums=(0, 1, 2, 3))
    value, gradients = jax.device_get(pipeline(run, mesh, stack, x, mask, shift.array))
    expected, (of_layers, *rest) = gradients_by_hand(split(stack), x.array, mask.array, shift.array, tilts, 2)
    close(value, expected)
    close(split(gradients[0]), of_layers)
    close([gradients[1].array, gradients[2].array, gradients[3]], rest)

    # A step of an optimiser that clips the gradients of all layers together.
    optimiser = optax.chain(optax.clip_by_global_norm(0.1), optax.add_decayed_weights(0.1), optax.sgd(1.0))

    @jax.jit
    def update(gradients, parameters):
        updates, _ = optimiser.update(gradients, optimiser.init(parameters), parameters)
        return eqx.apply_updates(parameters, updates)

    updated, theirs = update(gradients[0], stack), update(of_layers, split(stack))
    close(split(updated), theirs)
    # Places without a layer stay zero.
    whole, parts = (sum(jnp.abs(leaf).sum() for leaf in jax.tree.leaves(tree)) for tree in (updated, theirs))
    np.testing.assert_allclose(whole, parts, rtol=1e-6)


def test_layers_without_finite_gradients_at_zero(auto_mesh):
    stack, x = make(6, kinds=(Unit,), stages=4), draw(B, P, E)
    plain = make(6, kinds=(Unit,))
    expected = jax.jit(jax.value_and_grad(mean_square, argnums=(0, 1)))(plain, x)

    def both(stack, x):
        alternating = axn.pipeline_value_and_grad(lambda stack: stack, lambda _, x: x, lambda _, x, __: (x * x).mean())
        return jax.value_and_grad(mean_square, argnums=(0, 1))(stack, x), alternating(stack, x)

    (value, gradients), (again, alternating) = pipeline(both, auto_mesh, stack, x)
    close([value, again], [expected[0]] * 2)
    for found in (gradients[0], alternating):
        close(split(jax.device_get(found)), split(expected[1][0]))
    close(gradients[1].array, expected[1][1].array)


def test_a_skipped_layer_costs_what_a_layer_of_another_stage_does():
    def flops(layers, **options):
        with axn.pipelined(B, MICROBATCHES):
            cost = axn.cost(
                jax.value_and_grad(mean_square),
                axn.Mappings(STORED, COMPUTED),
                {"data": 4, "model": 2},
                make(layers, **options),
                draw(B, P, E),
                depth="traced",
            )
        return cost.totals["flops"]

    assert flops(6, stages=4) <= 1.01 * flops(8)


@pytest.mark.parametrize("options", [{}, {"rounds": 2}, {"kinds": (Residual, Tilted)}])
def test_stages_change_no_layer_outside_of_a_pipeline(options):
    stack, plain, x = make(6, stages=4, **options), make(6, **{**options, "rounds": 1}), draw(B, P, E)
    # Initial values are those of the real layers.
    for one, other in zip(split(stack), split(plain), strict=True):
        np.testing.assert_array_equal(one[0], other[0])
    np.testing.assert_array_equal(stack.get_layer(-1).weight.array, plain.get_layer(5).weight.array)
    of_layer = lambda layer, x: (layer(x), x.mean())  # noqa: E731
    for found, expected in (
        (stack.scan_via(of_layer)(x), plain.scan_via(of_layer)(x)),
        (stack.vmap(x), plain.vmap(x)),
    ):
        jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-6), found, expected)

    # Files have the layers alone, and load into any number of stages.
    stored, expected = axn.state_dict.to_state_dict(stack), axn.state_dict.to_state_dict(plain)
    assert stored.keys() == expected.keys()
    for key, array in stored.items():
        np.testing.assert_array_equal(array, expected[key])
    other = jax.tree.map(jnp.ones_like, make(6, stages=5, **options))
    for loaded in (axn.state_dict.from_state_dict(other, expected), other.with_layers(plain.unstacked())):
        total = sum(jnp.abs(leaf).sum() for leaf in jax.tree.leaves(loaded))
        np.testing.assert_allclose(total, sum(np.abs(array).sum() for array in expected.values()), rtol=1e-6)


def test_mistakes(auto_mesh):
    stack = make(6, stages=3)
    assert stack.storage == (L.resize(6),)
    with axn.set_mesh(auto_mesh), axn.axis_mapping(COMPUTED), axn.pipelined(B, MICROBATCHES):
        text = (
            "Stacked.fold: layers=6 cannot be split evenly into 4 stages over mesh axis data\n"
            "  hint: use a multiple of 4 layers, or make the stack with stages=4"
        )
        fails(AxisSizeError, text, lambda: jax.eval_shape(mean_square, stack, draw(B, P, E)))
    text = "Stacked.init: the number of stages must be a positive int, not 0\n  hint: write stages=2"
    fails(ArgumentError, text, lambda: make(6, stages=0))
    text = (
        "Interleaved.init: layers=7, 2 in each repetition, leave 1 layers\n"
        "  hint: stages=4 need whole repetitions: use a multiple of 2 layers"
    )
    fails(AxisSizeError, text, lambda: make(7, kinds=(Residual, Tilted), stages=4))

    stack = make(6, stages=4)
    with axn.set_mesh(auto_mesh), pytest.raises(ShardingError) as raised:
        axn.shard_map(mean_square, {"layers": "data"}, strict=False)(stack, draw(B, P, E))
    assert str(raised.value).startswith(
        "Stacked: layers for unequal stages are split over data\n"
        "  hint: devices would have unequal numbers of them; make the layers without stages"
    )
    assert dataclasses.replace(stack, stages=1).storage == (L.resize(6),)
