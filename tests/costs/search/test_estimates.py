"""Which mappings are worth a trace, by estimates that were right or wrong before."""

import dataclasses

import jax
import pytest

import axonym as axn
from axonym.costs.search.choice import Choice
from axonym.costs.search.estimates import Estimates
from axonym.costs.search.step import Step
from axonym.errors import ShardingError
from axonym.report import abstract_mesh
from tests.costs.made import made

MESH = abstract_mesh({"data": 4, "model": 2}, "plan")
ROWS = Choice(computed=(("batch", ("data",)),))
HEADS = Choice(computed=(("batch", ("data",)), ("heads", ("model",))))
HEADS_FREE = Choice(computed=(*HEADS.computed, ("pos", ("model",))), yielding=("pos",))


def taking(factor, peak=1.0):
    """Return a cost of so many times the work, and so many times the memory of the device."""
    cost = made()
    work = tuple(
        dataclasses.replace(row, computing=factor * row.computing, moving=0.0, sending=0.0) for row in cost.work
    )
    memory = dataclasses.replace(cost.memory, temporary=round(peak * cost.target.memory))
    return dataclasses.replace(cost, work=work, memory=memory, communication=())


@pytest.fixture
def estimates():
    found = Estimates()
    found.learn(ROWS, MESH, taking(1, 0.5), taking(1, 0.5))
    return found


def test_an_estimate_is_enough_if_it_is_slower_or_its_kind_was_traced(estimates):
    assert estimates.is_enough(ROWS, MESH, taking(1.01, 0.5))
    # One that saves half of a percent is as fast.
    assert estimates.is_enough(HEADS, MESH, taking(0.995, 0.5))
    assert not estimates.is_enough(HEADS, MESH, taking(0.98, 0.5))
    # A better one of a known kind needs no trace, and others must beat it from now on.
    assert estimates.is_enough(ROWS, MESH, taking(0.6, 0.5))
    assert estimates.is_enough(HEADS, MESH, taking(0.7, 0.5))


def test_estimates_are_corrected_as_the_traced_choice_with_most_in_common(estimates):
    other = abstract_mesh({"data": 8}, "plan")
    stored = dataclasses.replace(HEADS, stored=(("embed", ("data",)),))
    estimates.learn(HEADS, MESH, taking(1.1, 0.5), taking(2.2, 0.5))
    estimates.learn(stored, other, taking(1.5, 0.5), taking(1, 0.5))
    for choice, mesh, factor in (
        (HEADS, MESH, 0.5),
        (stored, other, 1.5),
        (dataclasses.replace(HEADS, stored=(("embed", ("model",)),)), MESH, 0.5),
        (ROWS, MESH, 1),
        # Of a new kind, so that other kinds say how good it is.
        (HEADS_FREE, MESH, 0.5),
    ):
        found = estimates.correct(choice, mesh, taking(1.9, 0.5))
        assert found.time.seconds == pytest.approx(factor * taking(1.9).time.seconds)
        assert found.memory == taking(1.9, 0.5).memory
    assert not estimates.is_enough(HEADS_FREE, MESH, taking(0.9, 0.5))
    assert estimates.is_enough(HEADS, MESH, taking(2.1, 0.5))


@pytest.mark.parametrize("factor", [0.5, 1.1])
@pytest.mark.parametrize(("time", "mesh"), [(20, MESH), (1, abstract_mesh({"data": 8}, "plan"))], ids=["time", "mesh"])
def test_a_traced_choice_of_another_time_or_mesh_makes_no_estimate_longer(estimates, time, mesh, factor):
    """Positions on all of 512 devices say nothing about two of them; but what seems to be better is traced."""
    estimates.learn(HEADS, mesh, taking(time * factor, 0.5), taking(time, 0.5))
    best = min(1, time * factor)
    found = estimates.correct(HEADS, MESH, taking(0.95, 0.5))
    assert found.time.seconds == pytest.approx(min(1, factor) * taking(0.95).time.seconds)
    assert not estimates.is_enough(HEADS, MESH, taking(0.95 * best, 0.5))
    assert estimates.is_enough(HEADS, MESH, taking(2.1 * best, 0.5))


@pytest.mark.parametrize(("factor", "is_enough"), [(0.5, False), (0.95, True), (1.05, True), (1.2, False)])
def test_the_best_of_a_known_kind_is_traced_where_estimates_are_far_off(estimates, factor, is_enough):
    """Attention to split positions takes 0.2 to 1.3 of its estimate, so that one factor says little about others."""
    estimates.learn(HEADS, MESH, taking(factor, 0.5), taking(1, 0.5))
    best = min(1.0, factor)
    assert estimates.is_enough(HEADS, MESH, taking(0.9 * best / factor, 0.5)) == is_enough
    assert estimates.is_enough(HEADS, MESH, taking(1.1 * best / factor, 0.5))


def test_mappings_far_beyond_the_memory_are_beaten_once_one_fits(estimates):
    assert estimates.is_enough(HEADS, MESH, taking(0.5, 1.6))
    assert not estimates.is_enough(HEADS, MESH, taking(0.5, 1.2))


def test_before_a_mapping_fits_an_estimate_is_enough_if_it_needs_more_memory():
    estimates = Estimates()
    estimates.learn(ROWS, MESH, taking(1, 2), taking(1, 2))
    assert estimates.is_enough(ROWS, MESH, taking(0.5, 2.1))
    assert not estimates.is_enough(ROWS, MESH, taking(9, 2))
    assert not estimates.is_enough(HEADS, MESH, taking(9, 1.9))


def test_values_that_occur_once_get_no_template():
    x = axn.zeros({"batch": 8})
    step, mappings = Step(lambda x: 2 * x, (x,), {}, "cpu", {}), axn.Mappings({}, {"batch": "data"})
    estimates = Estimates()
    assert estimates.estimate(step, ROWS, mappings, MESH, ()) is None
    found = estimates.estimate(step, ROWS, mappings, MESH, ())
    assert found.memory.results == 4 * 8 / 4


@pytest.mark.parametrize(
    ("choice", "computed"),
    [
        (dataclasses.replace(ROWS, microbatches=4), "data"),
        (ROWS, axn.partitioning.first_fitting("data", "model")),
    ],
)
def test_what_depends_on_the_mesh_has_no_estimate(choice, computed):
    x = axn.zeros({"batch": 8})
    step, mappings = Step(lambda x: 2 * x, (x,), {}, "cpu", {}), axn.Mappings({}, {"batch": computed})
    estimates = Estimates()
    assert [estimates.estimate(step, choice, mappings, MESH, ()) for _ in range(2)] == [None, None]


def test_a_step_that_asks_for_mesh_axes_has_no_estimate():
    def ask(x):
        return x * axn.partitioning.current_mesh().shape["data"]

    step, mappings = Step(ask, (axn.zeros({"batch": 8}),), {}, "cpu", {}), axn.Mappings({}, {"batch": "data"})
    estimates = Estimates()
    assert [estimates.estimate(step, ROWS, mappings, MESH, ()) for _ in range(2)] == [None, None]


@pytest.mark.parametrize("choice", [ROWS, HEADS_FREE])
def test_a_template_has_a_kernel_where_positions_are_whole(choice):
    q = jax.eval_shape(lambda: axn.ones({"batch": 4, "heads": 2, "pos": 128, "head_dim": 64}))

    def attend(q):
        keys = q.rename({"pos": "key_pos"})
        return axn.nn.dot_product_attention("pos", "key_pos", "head_dim", q, keys, keys)

    step, mappings = Step(attend, (q,), {}, "v5p", {}), choice.make_mappings(())
    estimates = Estimates()
    traced = step.count(mappings, dict(MESH.shape), {}, None)
    assert estimates.estimate(step, choice, mappings, MESH, ()) is None
    found = estimates.estimate(step, choice, mappings, MESH, ())
    assert found.attention == traced.attention
    assert found.time.seconds == pytest.approx(traced.time.seconds, rel=1e-6)


def test_axes_that_decide_about_the_program_are_traced_once():
    q = jax.eval_shape(lambda: axn.ones({"batch": 4, "heads": 2, "pos": 128, "head_dim": 64}))

    def attend(q):
        keys = q.rename({"pos": "key_pos"})
        return axn.nn.dot_product_attention("pos", "key_pos", "head_dim", q, keys, keys)

    step, split = Step(attend, (q,), {}, "v5p", {}), Choice(computed=(("pos", ("data",)),))
    estimates = Estimates()
    for choice in (ROWS, HEADS):
        mappings = choice.make_mappings(())
        cost = step.count(mappings, dict(MESH.shape), {}, None)
        estimate = estimates.estimate(step, choice, mappings, MESH, ())
        estimates.learn(choice, MESH, cost, estimate)
    assert not estimates.is_strange(HEADS)
    assert estimates.is_strange(split)
    # Even one that seems slow may be fast.
    assert not estimates.is_enough(split, MESH, taking(9))
    estimates.learn(split, MESH, taking(1), taking(4))
    assert not estimates.is_strange(split)


def test_a_mapping_that_does_not_fit_is_refused_without_a_trace():
    x = axn.zeros({"batch": 8, "heads": 4})
    step = Step(lambda x: x + 1, (x,), {}, "cpu", {})
    clash = Choice(computed=(("batch", ("data",)), ("heads", ("data",))))
    estimates = Estimates()
    assert estimates.estimate(step, ROWS, ROWS.make_mappings(()), MESH, ()) is None
    with pytest.raises(ShardingError, match="'batch' and 'heads'"):
        estimates.estimate(step, clash, clash.make_mappings(()), MESH, ())
