"""Initialisers: shapes, names and the statistics that they promise."""

import jax
import numpy as np

import axonym as axn
from axonym import nn

In, Out = axn.make_axes(embed=64, mlp=512)


def test_fan_in_scales_by_the_root_of_the_number_of_inputs():
    weight = nn.fan_in(64, 2.0)(jax.random.key(0), (In, Out))
    assert weight.axes == (In, Out)
    # A normal distribution cut off at three has a standard deviation of 0.9866.
    np.testing.assert_allclose(np.std(weight.array), 0.9866 * 2 / 8, rtol=0.01)
    assert np.abs(weight.array).max() <= 3 * 2 / 8
