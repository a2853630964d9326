"""Which mappings are worth a trace, by estimates that were right or wrong before."""

import dataclasses

import jax
import pytest

import axonym as axn
from axonym.costs.search.choice import Choice
from axonym.costs.search.estimates import Estimates
from axonym.costs.search.step import Step
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


def test_a_slower_mapping_is_beaten(estimates):
    assert estimates.is_beaten(ROWS, MESH, taking(1.01, 0.5))
    # One that saves half of a percent is as fast.
    assert estimates.is_beaten(ROWS, MESH, taking(0.995, 0.5))
    assert not estimates.is_beaten(ROWS, MESH, taking(0.98, 0.5))


def test_a_mapping_with_a_new_entry_is_traced_if_it_may_be_good(estimates):
    other = abstract_mesh({"data": 8}, "plan")
    for choice, mesh in ((HEADS, MESH), (ROWS, other)):
        # One estimate was right so far, so that a new entry may be a fourth off.
        assert not estimates.is_beaten(choice, mesh, taking(1.2, 0.5))
        assert estimates.is_beaten(choice, mesh, taking(1.3, 0.5))
    # Every further one that is right makes others more likely to be.
    estimates.learn(ROWS, MESH, taking(1.1, 0.5), taking(1.1, 0.5))
    assert estimates.is_beaten(HEADS, MESH, taking(1.2, 0.5))
    # One that was too high makes others as doubtful.
    estimates.learn(ROWS, MESH, taking(1.1, 0.5), taking(2.2, 0.5))
    assert not estimates.is_beaten(HEADS, MESH, taking(1.9, 0.5))


def test_an_estimate_that_was_too_high_leaves_room(estimates):
    estimates.learn(HEADS, MESH, taking(1.1, 0.5), taking(2.2, 0.5))
    # The entry of the heads is new, and to blame; other mappings are not.
    assert not estimates.is_beaten(HEADS, MESH, taking(1.97, 0.5))
    assert estimates.is_beaten(HEADS, MESH, taking(2.01, 0.5))
    assert estimates.is_beaten(ROWS, MESH, taking(1.01, 0.5))


def test_estimates_of_slow_mappings_may_be_far_off(estimates):
    estimates.learn(HEADS, MESH, taking(4, 0.5), taking(9, 0.5))
    assert estimates.is_beaten(HEADS, MESH, taking(1.01, 0.5))


def test_mappings_far_beyond_the_memory_are_beaten_once_one_fits(estimates):
    assert estimates.is_beaten(ROWS, MESH, taking(0.5, 1.6))
    assert not estimates.is_beaten(ROWS, MESH, taking(0.5, 1.2))


def test_nothing_is_beaten_before_a_mapping_fits():
    estimates = Estimates()
    estimates.learn(ROWS, MESH, taking(1, 2), taking(1, 2))
    assert not estimates.is_beaten(ROWS, MESH, taking(9, 9))


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
