"""Pipelines whose stages do not divide the layers: the step is built with places for them."""

import dataclasses
import functools
import math

import jax

import axonym as axn
import axonym.nn as nn
from axonym.partitioning import TARGETS
from tests.feedforward import FeedForward

Batch, Embed, Mlp, Layers = axn.make_axes(batch=64, embed=16, mlp=32, layers=7)
# Networks so slow that to send the gradients of parameters takes longest.
TARGET = dataclasses.replace(TARGETS["v5e"], link=axn.partitioning.Link(1e6), efficiency=None)


def loss(model, x):
    return (model.fold(x) ** 2).mean().scalar()


GRAD = jax.value_and_grad(loss)


def build(*, stages, rounds):
    make = nn.Stacked.init(Layers, FeedForward, gradient_checkpointing=True, stages=stages, rounds=rounds)
    model = jax.eval_shape(functools.partial(make, Embed, Mlp, use_bias=False), key=jax.random.key(0))
    return GRAD, model, jax.eval_shape(lambda: axn.zeros((Batch, Embed)))


def count_stages(one):
    entry = one.mappings.compute.get("layers", ()) if one.microbatches else ()
    return math.prod(dict(one.mesh)[axis] for axis in entry)


def test_stages_and_rounds_are_chosen_with_the_pipeline():
    options = {"target": TARGET, "limit": 40, "verify": 0, "pipelined": (Layers, "batch")}
    found = axn.plan(build, {"data": 4}, choices={"stages": [1, 4], "rounds": [1, 2]}, **options)
    # Microbatches alone, with one stage, also save memory.
    piped = [one for one in (found.best, *found.others) if count_stages(one) == 4]
    assert {one.choices["stages"] for one in piped} == {4}
    assert {one.choices["rounds"] for one in piped} == {1, 2}
    for one in piped[:2]:
        fn, *args = build(**one.choices)
        with axn.pipelined("batch", one.microbatches):
            by_hand = axn.cost(fn, one.mappings, dict(one.mesh), *args, target=TARGET, depth="traced")
        assert by_hand.totals == one.cost.totals
    print(
        [(o.choices, o.microbatches, o.cost.time.scheduled, o.fits) for o in (found.best, *found.others)], found.illegal
    )
