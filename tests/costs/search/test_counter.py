"""Counted choices: which are traced, which are estimated, and what becomes of estimates."""

import dataclasses
import math

import jax
import pytest

import axonym as axn
from axonym.costs.search.choice import Choice
from axonym.costs.search.counter import Counter
from axonym.costs.search.estimates import Estimates
from axonym.costs.search.lessons import Budget, OutOfBudgetError
from axonym.costs.search.step import Step
from axonym.costs.search.tally import Tally
from axonym.errors import OperandError
from axonym.report import abstract_mesh
from tests.costs.programs import MESH, abstract, loss

FAST = Choice(computed=(("batch", ("data", "model")),))
SLOW = Choice(computed=(("batch", ("model",)),))
STORED = Choice(stored=(("embed", ("data",)),), computed=(("batch", ("model",)),))


def make_counter(piped=None, budget=None):
    model, _, x = abstract()
    step, tally = Step(jax.grad(loss), (model, x), {}, "v5e", {}, piped), Tally(lambda _: None, 100)
    found = Counter(step, dict(MESH), tally, Estimates(), budget or Budget(100))
    found.find_axes(None)
    return found


def test_a_mapping_that_is_far_from_the_best_is_only_estimated():
    counter = make_counter()
    # A template is made for the second mapping.
    assert counter.score(SLOW) is not None
    assert not counter.candidates[SLOW].is_estimated
    found = counter.score(Choice(stored=(("embed", ("model",)),), computed=(("batch", ("model",)),)))
    *_, last = counter.candidates.values()
    assert last.is_estimated
    mappings = axn.Mappings({"embed": "model"}, {"batch": "model"})
    model, _, x = abstract()
    traced = axn.cost(jax.grad(loss), mappings, MESH, model, x, target="v5e", depth="traced")
    # Scores are for one example.
    assert found[1] == pytest.approx(traced.time.compared / 8)


def test_an_estimated_candidate_can_be_traced():
    counter = make_counter()
    for choice in (SLOW, FAST, STORED):
        counter.score(choice)
    other = Choice(stored=(("embed", ("model",)),), computed=(("batch", ("model",)),))
    counter.score(other)
    before = counter.candidates[other]
    counter.trace(other)
    after = counter.candidates[other]
    assert (before.is_estimated, after.is_estimated) == (True, False)
    assert after.cost.totals == before.cost.totals


def test_a_choice_that_is_not_legal_has_no_score():
    counter = make_counter()
    clash = Choice(computed=(("batch", ("data",)), ("embed", ("data",))))
    assert counter.score(clash) is None
    assert clash not in counter.candidates


def test_a_pipeline_needs_its_axes():
    with pytest.raises(OperandError) as raised:
        make_counter(piped=("layer", "batch"))
    assert str(raised.value).startswith("plan: pipelined=('layer', 'batch'), and no parameters have an axis 'layer'")


def test_the_mesh_of_a_counter_can_change():
    counter = make_counter()
    other = counter.move_to({"data": 8})
    assert other.score(Choice(computed=(("batch", ("data",)),))) is not None
    assert not counter.candidates
    ((sizes),) = [one.mesh for one in other.candidates.values()]
    assert math.prod(size for _, size in sizes) == abstract_mesh({"data": 8}, "plan").size


def test_a_choice_that_must_be_traced_needs_a_trace():
    counter = make_counter(budget=Budget(100, 1))
    assert counter.score(SLOW) is not None
    # The first mapping says how good estimates are, so that others do without a trace.
    assert counter.score(FAST) is not None
    assert counter.candidates[FAST].is_estimated
    piped = dataclasses.replace(SLOW, microbatches=2)
    with pytest.raises(OutOfBudgetError):
        counter.score(piped)
