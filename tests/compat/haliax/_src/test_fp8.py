"""Scales of 8-bit products."""

import axonym.compat.haliax  # noqa: F401 # isort: skip

import jax
import numpy as np
import pytest
from haliax._src.fp8 import compute_scale


@pytest.mark.parametrize(
    ("amax", "scale", "margin", "wanted"),
    [
        (448.0, 2.0, 0, 1.0),
        (1.0, 2.0, 0, 1 / 448),
        (3.0, 1.0, 1, 6 / 448),
        (0.0, 2.0, 0, 2.0),
        (-1.0, 2.0, 0, 2.0),
        (np.inf, 2.0, 0, 2.0),
        (np.nan, 3.0, 0, 3.0),
    ],
)
def test_the_largest_magnitude_becomes_the_largest_number(amax, scale, margin, wanted):
    found = jax.jit(compute_scale, static_argnums=3)(np.float32(amax), np.float32(scale), np.float32(448), margin)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
