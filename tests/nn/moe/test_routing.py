"""Biases that make the load of experts even."""

import equinox as eqx
import jax
import numpy as np

import axonym as axn
from axonym import nn
from tests.nn.layouts import draw
from tests.nn.moe.test_choice import Many, model_and_tokens
from tests.nn.routed import near


def test_biases_balance_the_load():
    model, x = model_and_tokens({"use_choice_bias": True, "weighing": "sigmoid"})

    @jax.jit
    def step(bias, x):
        _, routing = eqx.tree_at(lambda model: model.choice_bias, model, bias)(x)
        return nn.update_choice_bias(bias, routing.load, Many, 0.01), routing.load

    bias, x, loads = axn.zeros(Many), x + 1, []
    for _ in range(100):
        moved, load = step(bias, x)
        # Rounded: the load of an expert may be the mean.
        near(moved.array, np.asarray(bias.array) + 0.01 * np.sign(1 - np.round(8 * np.asarray(load.array), 4)))
        bias = moved
        loads.append(float(load.max()))
    assert loads[0] > 3 / 8
    assert np.mean(loads[-10:]) < 1.3 / 8


def test_biases_of_a_stack_have_loads_of_their_own():
    Layers = axn.Axis("layers", 2)
    bias = draw(Layers, Many)
    load = axn.named([[0.1] * 7 + [0.3], [0.125] * 8], (Layers, Many))
    moved = nn.update_choice_bias(bias, load, Many, 0.5)
    assert moved.axes == bias.axes
    near(moved.array - bias.array, [[0.5] * 7 + [-0.5], [0] * 8])
