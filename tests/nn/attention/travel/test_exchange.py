"""Attention after an exchange: values and gradients."""

import pytest

import axonym as axn
from axonym import nn
from benchmarks.measure import collectives, totals
from tests.nn.attending import with_gradients
from tests.nn.split import CAUSAL, MAPPING, attend, check, check_dropout, check_mask, check_scores, expected, inputs, on

pytestmark = pytest.mark.sampled


@pytest.mark.parametrize(
    ("case", "method", "kind"),
    [
        ("none", "all-to-all", "explicit"),
        ("segments or prefix", "all-to-all", "auto"),
    ],
)
def test_value_and_gradients(case, method, kind, auto_mesh, explicit_mesh):
    check_mask(case, method, {"auto": auto_mesh, "explicit": explicit_mesh}[kind])


def test_biases_sinks_and_caps(auto_mesh):
    check_scores("all-to-all", auto_mesh)


def test_what_is_dropped_is_the_same_as_on_one_device(explicit_mesh):
    check_dropout("all-to-all", explicit_mesh)


def test_a_map_over_mesh_axes_is_not_gathered(explicit_mesh):
    """XLA gathers the mapped axis for an all-to-all; the parts are sent one by one."""
    given = inputs()
    each = axn.vmap(lambda *x: attend(*x, mask=nn.causal(), implementation="all-to-all"), "batch")
    found, program = on(explicit_mesh, MAPPING, with_gradients(each), *given)
    check(found, expected(CAUSAL, *(x.array for x in given)))
    assert set(totals(collectives(program))) <= {"collective-permute", "all-reduce"}
