"""The published faults are programs that run, and their twins are other programs."""

import equinox as eqx
import jax
import numpy as np
import pytest

import axonym as axn
from tests.testing.faults import FAULTS


def numbers(result):
    return [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(result)]


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_runs_and_looks_normal(name, auto_mesh):
    """No shape and no number gives a fault away; on a mesh, as on one device."""
    fault = FAULTS[name]
    with axn.set_mesh(auto_mesh):
        broken, repaired = (numbers(eqx.filter_jit(case.f)(*case.args)) for case in map(fault.make, (False, True)))
    assert [x.shape for x in broken] == [x.shape for x in repaired]
    assert all(np.isfinite(x).all() for x in (*broken, *repaired))
