"""Decisions layer by layer, against all of them, and the step that they give."""

import dataclasses
import functools
import itertools

import jax
import numpy as np
import optax
import pytest

import axonym as axn
import axonym.nn as nn
from axonym.costs.report import Work
from axonym.costs.search.decisions import list_mixes
from axonym.errors import OperandError
from axonym.partitioning import TARGETS, EachLayer
from tests.feedforward import FeedForward

Batch, Embed, Mlp, Layers = axn.make_axes(batch=1024, embed=16, mlp=32, layers=4)
pytestmark = pytest.mark.sampled
ADAM = optax.adam(1e-3)
MESH = {"data": 8}
STACK = EachLayer([True, "offload", False], Layers.size)
CHOICES = {"recompute": STACK, "parts": [1, 2]}
# Products take most of the time, so that it costs something to compute again.
SLOW = {"flops": {"float32": 1e9}, "link": axn.partitioning.Link(1e10), "efficiency": None}
TARGET = dataclasses.replace(TARGETS["v5e"], **SLOW)


def loss(model, x):
    return (model.fold(x) ** 2).mean().scalar()


def train(parts, model, state, x):
    """Take a step, with gradients added up over parts of the batch."""
    rows, Part = x.resolve_axis("batch"), axn.Axis("part", parts)
    pieces = x.unflatten_axis("batch", (rows.resize(rows.size // parts), Part))

    def add(total, piece):
        return jax.tree.map(lambda one, other: one + other / parts, total, jax.grad(loss)(model, piece))

    grads = axn.fold(add, Part)(jax.tree.map(lambda leaf: 0 * leaf, model), pieces)
    updates, state = ADAM.update(grads, state)
    return optax.apply_updates(model, updates), state


def initialize(key):
    return nn.Stacked.init(Layers, FeedForward)(Embed, Mlp, key=key, use_bias=False)


def with_policy(model, recompute):
    return dataclasses.replace(model, gradient_checkpointing=axn.ScanCheckpointPolicy.make(recompute))


@functools.cache
def step_of(parts):
    return axn.named_jit(functools.partial(train, parts), {}, donate_args=(True, True))


def build(*, recompute, parts):
    """Return the step of some choices, and its arguments."""
    model = with_policy(jax.eval_shape(initialize, jax.random.key(0)), recompute)
    x = jax.eval_shape(lambda: axn.zeros((Batch, Embed)))
    return step_of(parts), model, jax.eval_shape(ADAM.init, model), x


def rank(cost):
    return max(0, cost.memory.peak - cost.target.memory), cost.time.scheduled


@functools.cache
def all_costs():
    """Return the costs of all mappings with all choices."""
    found = []
    for rows, stored, width in itertools.product([(), ("data",)], repeat=3):
        if not width or not (rows or stored):
            mappings = axn.Mappings({"embed": stored, "mlp": width}, {"batch": rows, "mlp": width})
            for recompute, parts in itertools.product(STACK, CHOICES["parts"]):
                fn, *args = build(recompute=recompute, parts=parts)
                found.append(axn.cost(fn, mappings, MESH, *args, target=TARGET, depth="traced"))
    return found


@functools.cache
def planned(memory, limit=10):
    target = dataclasses.replace(TARGET, memory=memory)
    return axn.plan(build, MESH, target=target, limit=limit, verify=0, choices=CHOICES)


@pytest.mark.parametrize(
    ("memory", "chosen"),
    [
        # To cut the batch in two leaves enough memory to keep everything, or what half of the layers compute.
        (200000, {"recompute": False, "parts": 2}),
        (120000, {"recompute": [True, False], "parts": 2}),
    ],
)
def test_the_plan_is_as_good_as_the_best_of_all(memory, chosen):
    target = dataclasses.replace(TARGET, memory=memory)
    best = min((dataclasses.replace(one, target=target) for one in all_costs()), key=rank)
    found = planned(memory)
    assert rank(found.best.cost) <= (rank(best)[0], 1.01 * rank(best)[1])
    assert found.choices == chosen
    # Two products of each layer, and each has two more in the backward pass; the devices share them.
    flops = 3 * Layers.size * 2 * 2 * Batch.size * Embed.size * Mlp.size
    assert found.bound == pytest.approx(flops / 8 / TARGET.flops["float32"], rel=0.01)
    assert found.gap == pytest.approx(found.best.cost.time.seconds / found.bound - 1)
    assert f"the best takes {found.gap:.0%} more" in str(found)


def test_the_plan_is_the_same_each_time():
    assert str(planned.__wrapped__(120000, 4)) == str(planned(120000, 4))


def test_the_chosen_step_computes_what_one_device_computes():
    found = planned(120000)
    model, x = initialize(jax.random.key(0)), axn.random.normal(jax.random.key(1), (Batch, Embed))
    expected, _ = jax.jit(functools.partial(train, 1))(model, ADAM.init(model), x)
    step, *_ = build(**found.choices)
    run = axn.named_jit(step, found.mappings)
    chosen = with_policy(model, found.choices["recompute"])
    with axn.set_mesh(jax.make_mesh(tuple(found.mesh.values()), tuple(found.mesh))):
        got, _ = run(chosen, ADAM.init(chosen), x)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-6)


def test_where_nothing_fits_the_best_lacks_least():
    least = min(one.memory.peak for one in all_costs())
    found = planned(1000)
    assert found.problems
    assert found.best.cost.memory.peak <= 1.01 * least


def test_stacks_share_the_memory():
    """The front equals the best of all combinations of two stacks."""
    fn, *args = build(recompute=True, parts=1)
    mappings = axn.Mappings({"embed": "data"}, {"batch": "data"})
    start = axn.cost(fn, mappings, MESH, *args, target=TARGET, depth="traced")

    def changed(layer, seconds, nbytes):
        work = (*start.work, Work(layer, "other", 0.0, 0.0, seconds, 0.0, 0.0))
        memory = dataclasses.replace(start.memory, temporary=start.memory.temporary + nbytes)
        return dataclasses.replace(start, work=work, memory=memory)

    stack = EachLayer("abc", 8)
    costs = [
        [start, changed("encoder", 3.0, -100), changed("encoder", 5.0, -110)],
        [start, changed("decoder", 2.0, -90), None],
    ]
    found = list_mixes([stack.shares, stack.shares], costs)
    more = {"encoder": [(0, 0), (3.0, -100), (5.0, -110)], "decoder": [(0, 0), (2.0, -90)]}
    expected = []
    for one, other in itertools.product(stack.shares, stack.shares):
        if not other[2]:
            pairs = [*zip(one, more["encoder"], strict=True), *zip(other, more["decoder"], strict=False)]
            seconds, nbytes = (sum(share * by[at] for share, by in pairs) for at in range(2))
            expected.append((start.time.seconds + seconds, start.memory.peak + nbytes))
    for one in found:
        beats = [other for other in expected if other[0] < one.seconds - 1e-9 and other[1] <= one.nbytes + 1e-6]
        assert not beats
    for seconds, nbytes in expected:
        assert any(one.seconds <= seconds + 1e-9 and one.nbytes <= nbytes + 1e-6 for one in found)


def test_what_builds_no_step():
    with pytest.raises(OperandError) as raised:
        axn.plan(lambda **chosen: step_of(1), MESH, choices=CHOICES)
    assert str(raised.value) == (
        "plan: without arguments, it takes a function that builds the step\n"
        "  it returned: NamedJit\n"
        "  hint: return the step and its arguments, (step, model, state, batch), or pass the arguments"
    )
