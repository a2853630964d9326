"""The answer of a search does not depend on the names or the order of axes, in random problems with a score by hand."""

import dataclasses
import math
import random

import jax
import pytest

import axonym as axn
from axonym.costs.search.axes import Axes
from axonym.costs.search.choice import Choice
from axonym.costs.search.lessons import Budget
from axonym.costs.search.search import Search

PARAMETERS = ("vocab", "embed", "heads", "size", "mlp")
DATA = ("batch", "pos")


def make_problem(seed):
    """Return a mesh, the sizes of axes, and arrays of parameters with their numbers of elements."""
    rng = random.Random(seed)
    count = rng.choice([2, 2, 3])
    mesh = {f"m{i}": rng.choice([2, 3, 4, 8, 16]) for i in range(count)}
    sizes = {name: frozenset({2 ** rng.randrange(2, 10)}) for name in (*PARAMETERS, *DATA)}
    shapes = [("vocab", "embed"), ("embed", "heads", "size"), ("embed", "mlp"), ("embed",)]
    arrays = {own: math.prod(min(sizes[name]) for name in own) for own in shapes}
    return mesh, sizes, arrays


def make_axes(problem, renamed, rng):
    """Return the axes of a problem by other names, and in another order if there is a generator."""
    mesh, sizes, arrays = problem

    def shuffle(items):
        items = list(items)
        if rng is not None:
            rng.shuffle(items)
        return items

    return Axes(
        {renamed[name]: mesh[name] for name in shuffle(mesh)},
        {renamed[name]: sizes[name] for name in shuffle(PARAMETERS)},
        {renamed[name]: sizes[name] for name in shuffle(DATA)},
        Choice(),
        {tuple(renamed[name] for name in shuffle(own)): arrays[own] for own in shuffle(arrays)},
    )


def make_score(problem, renamed):
    """Return a cost that looks like one of a step: computing, gathering, summing and memory."""
    mesh, sizes, arrays = problem
    back = {new: old for old, new in renamed.items()}

    def ways(entries, names):
        used = {back[axis] for name, entry in entries if back[name] in names for axis in entry}
        return math.prod(mesh[axis] for axis in used)

    def score(choice):
        used = [axis for _, entry in choice.computed for axis in entry]
        if len(used) > len(set(used)) + 1:
            return None
        seconds, memory = 0.0, 0.0
        for own, count in sorted(arrays.items()):
            computed, stored = ways(choice.computed, (*own, *DATA)), ways(choice.stored, own)
            seconds += 50 * count * min(sizes["batch"]) / computed + count * (stored - 1) / stored
            seconds += count * (ways(choice.computed, DATA) - 1) / ways(choice.computed, own)
            memory += count / stored
        return 0.0, seconds, 0.0, memory

    return score


def solve(problem, limit, seed=None):
    rng = None if seed is None else random.Random(seed)
    names = (*PARAMETERS, *DATA, *problem[0])
    renamed = {name: name if rng is None else f"{rng.random():.6f}" for name in names}
    axes, score = make_axes(problem, renamed, rng), make_score(problem, renamed)
    axes = dataclasses.replace(axes, data=Search(axes, score, Budget(limit)).rank_data())
    search = Search(axes, score, Budget(limit))
    search.begin(limit // 2)
    for choice in search.list_best()[:2]:
        search.climb(choice, limit // 4)
    return search.look_up(search.list_best()[0])


@pytest.mark.parametrize(("limit", "cases"), [(20, 50), (200, 5)])
def test_names_and_order_change_nothing(limit, cases):
    for seed in range(cases):
        problem = make_problem(seed)
        assert solve(problem, limit, seed) == pytest.approx(solve(problem, limit)), problem


def test_rows_take_the_mesh_axis_with_most_devices():
    for mesh in ({"data": 8, "model": 2}, {"model": 2, "data": 8}, {"data": 2, "model": 8}):
        axes = Axes(mesh, {}, {"batch": frozenset({8})}, Choice())
        (found,) = axes.find_widest("batch", tuple(mesh))
        assert mesh[found] == 8


def test_a_small_limit_sees_what_every_rule_would_choose():
    # Rows are fewer than devices, as they usually are on many chips.
    sizes = {"layers": 64, "embed": 8192, "mlp": 2**15, "heads": 64, "size": 128}
    arrays = {("layers", "embed", "mlp"): 3 * 2**34, ("layers", "embed", "heads", "size"): 4 * 2**32}
    data = {"batch": frozenset({256}), "pos": frozenset({4096})}
    parameters = {name: frozenset({size}) for name, size in sizes.items()}
    axes = Axes({"data": 256, "model": 8}, parameters, data, Choice(), arrays)
    starts = axes.list_starts()[:10]
    rows, layers = ("batch", ("data",)), [("mlp", ("model",)), ("heads", ("model",))]
    divided = tuple(sorted([rows, *layers]))
    # FSDP, FSDP with tensor parallelism, data parallelism, and positions along what rows leave.
    assert any(one.computed == (rows,) and one.stored for one in starts)
    assert any(one.computed == divided and ("embed", ("data",)) in one.stored for one in starts)
    assert Choice((), (rows,)) in starts
    assert any(dict(one.computed) == {"batch": ("data",), "pos": ("model",)} for one in axes.list_starts()[:20])


def test_a_plan_does_not_depend_on_names():
    def plan(mesh, names):
        inputs, width, rows = names
        weights = [axn.zeros({inputs: 64, width: 256}), axn.zeros({width: 256, inputs: 64})]

        def loss(weights, x):
            h = axn.dot(x, weights[0], axis=inputs)
            return axn.square(axn.dot(h, weights[1], axis=width)).mean().scalar()

        x = axn.zeros({rows: 4, inputs: 64})
        found = axn.plan(jax.grad(loss), mesh, weights, x, target="v5e", limit=20, verify=0)
        return found.best.cost.totals

    expected = plan({"data": 8, "model": 2}, ("embed", "mlp", "batch"))
    assert plan({"model": 8, "data": 2}, ("z", "a", "m")) == expected
    assert plan({"zero": 2, "one": 8}, ("mlp", "batch", "embed")) == expected
