"""The private aliases of `rearrange`."""

import axonym.compat.haliax  # noqa: F401 # isort: skip

import haliax as hax
import numpy as np
from haliax._src.rearrange import axis_spec_rearrange, einops_rearrange, rearrange

VALUES = np.arange(24).reshape(4, 6)
X = hax.named(VALUES, ("a", "b"))


def test_aliases():
    assert rearrange is hax.rearrange
    turned = axis_spec_rearrange(X, (..., "a"))
    assert turned.axes == (hax.Axis("b", 6), hax.Axis("a", 4))
    np.testing.assert_array_equal(turned.array, VALUES.T)


def test_expressions():
    parted = einops_rearrange(X, "a (m n) -> n (q: a m)", m=2)
    assert parted.axes == (hax.Axis("n", 3), hax.Axis("q", 8))
    np.testing.assert_array_equal(parted.array, VALUES.reshape(4, 2, 3).transpose(2, 0, 1).reshape(3, 8))
