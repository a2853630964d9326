"""Tolerances follow from the dtype."""

import jax.numpy as jnp
import pytest

from axonym.testing import TOLERANCES, tolerance


@pytest.mark.parametrize("name", TOLERANCES)
def test_tolerances_are_a_few_roundings(name):
    epsilon = float(jnp.finfo(name).eps)
    one, several = TOLERANCES[name]
    assert epsilon < one < 1000 * epsilon
    assert one < several < 10 * epsilon**0.5


def test_other_dtypes():
    assert tolerance(jnp.int32, is_same_program=False) == tolerance(bool, is_same_program=True) == 0
    assert tolerance(jnp.float8_e4m3fn, is_same_program=True) == 0.25
    assert tolerance(jnp.float8_e5m2, is_same_program=False) == 0.5
