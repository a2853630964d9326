"""Published faults are found, in the layer where they are, and their repaired twins pass."""

import equinox as eqx
import jax
import numpy as np
import pytest

import axonym as axn
from axonym import testing
from axonym.testing import ClaimError
from tests.testing.faults import FAULTS

pytestmark = pytest.mark.sampled
each_fault = pytest.mark.parametrize("name", FAULTS)
OPTIONS = {"mappings", "where", "is_absent", "step", "cache", "optimizer", "merged"}


def claim(name, is_repaired):
    """Make the claim that a fault breaks."""
    fault = FAULTS[name]
    case = fault.make(is_repaired)
    options = dict(case.options)
    assert options.keys() <= OPTIONS
    check = getattr(testing, f"assert_{fault.claim}")
    if fault.claim == "same_layouts":
        mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
        check(case.f, options.pop("mappings"), mesh, *case.args, **options)
    elif fault.claim == "same_storage":
        check(case.f, *case.args, **options)
    else:
        check(case.f, fault.axis, *case.args, **options)


def numbers(result):
    return [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(result)]


@each_fault
def test_each_fault_runs_and_looks_normal(name, auto_mesh):
    """No shape and no number gives a fault away; on a mesh, as on one device."""
    fault = FAULTS[name]
    with axn.set_mesh(auto_mesh):
        broken, repaired = (numbers(eqx.filter_jit(case.f)(*case.args)) for case in map(fault.make, (False, True)))
    assert [x.shape for x in broken] == [x.shape for x in repaired]
    assert all(np.isfinite(x).all() for x in (*broken, *repaired))


@each_fault
def test_each_fault_is_found_in_its_layer(name):
    fault = FAULTS[name]
    with pytest.raises(ClaimError) as error:
        claim(name, is_repaired=False)
    # A layout may be wrong for several axes: the mapping says for which.
    assert error.value.axis == (None if fault.claim == "same_layouts" else fault.axis)
    assert error.value.layer == fault.layer
    assert error.value.claim == fault.claim
    assert f"first appears: layer {fault.layer}" in str(error.value)
    assert error.value.effect > 1e-4


@each_fault
def test_each_repaired_twin_passes(name):
    claim(name, is_repaired=True)


def test_the_factor_of_a_gradient_names_the_mesh_axis():
    with pytest.raises(ClaimError) as error:
        claim("gradient summed twice", is_repaired=False)
    assert error.value.parameter == "model.weight"
    assert error.value.factor == pytest.approx(4)
    assert str(error.value).splitlines()[:2] == [
        "assert_same_layouts: under {'batch': 'data'} on Auto axes, model.weight is not that of one device",
        "  factor: 4, the size of mesh axis data",
    ]
