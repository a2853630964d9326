"""Experts that take all tokens that choose them: values and gradients on a mesh, and what is sent."""

import math

import equinox as eqx
import measure
import numpy as np
import pytest

import axonym as axn
from axonym.current.machine import IS_PROOF
from tests.nn.routed import Case, check, inputs, on_mesh, run

pytestmark = pytest.mark.sampled

SAME = {"batch": "data", "experts": "data"}
CASES = {
    "split like tokens": Case({}, SAME, "auto_mesh", stored={"embed": "model", "experts": "data"}),
    "with a part of the hidden axis": Case({}, {**SAME, "mlp": "model"}, "explicit_mesh"),
    "all choose the same experts": Case({}, SAME, "explicit_mesh", one_sided=True),
    "split otherwise than tokens": Case({}, {"batch": "data", "experts": "model"}, "explicit_mesh"),
    "over more axes than tokens, in another order": Case(
        {}, {"batch": "data", "experts": ("model", "data")}, "auto_mesh"
    ),
    "with a capacity for the tokens of all devices": Case(
        {"capacity_factor": 0.75}, {**SAME, "seq": "model"}, "auto_mesh"
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradients(name, request):
    case = CASES[name]
    found, text = on_mesh(case, request.getfixturevalue(case.kind))
    check(case, found)

    sent = measure.collectives(text, unknown_trip_count=1)
    gathered = [each for each in sent if each.kind == "all-gather" and "experts" in each.name]
    assert not gathered
    exchanges = [each.bytes for each in sent if each.kind == "all-to-all"]
    assert bool(exchanges) == ("otherwise" not in name)


@pytest.mark.parametrize("kind", ["auto_mesh", "explicit_mesh"])
def test_each_direction_sends_a_row_for_each_choice_and_a_quarter_more(kind, request):
    case = Case({}, SAME, kind)
    _, text = on_mesh(case, request.getfixturevalue(kind))
    exchanges = sorted(
        each.bytes for each in measure.collectives(text, unknown_trip_count=1) if each.kind == "all-to-all"
    )
    # Of 12 tokens with two choices and 4 numbers on each of 4 devices.
    bucket = 4 * math.ceil(1.25 * 12 * 2 / 4)
    # Forwards there and back; backwards the tokens, the gradients of results, and those of tokens back.
    assert exchanges[-5:] == [4 * 4 * bucket] * 5
    # The expert and the weight of each, and the gradient of the weight.
    assert exchanges[:-5] == [4 * bucket] * 5


def test_a_proof_follows_the_same_function():
    """A proof sees all experts applied to all tokens: the same value and gradients, by the same reference."""
    mask = axn.named(np.arange(48).reshape(8, 6) % 5 > 0, ("batch", "seq"))
    case = Case({}, {}, "auto_mesh", masked=mask)
    with IS_PROOF.using(True):
        found = eqx.filter_jit(run)(inputs(case), mask)
    check(case, found)
