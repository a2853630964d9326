"""Dropout of attention weights, by place."""

import jax
import numpy as np
import pytest

import axonym as axn
from axonym.nn.attention.dropping import drop
from tests.nn.layouts import draw

pytestmark = pytest.mark.sampled

H, Q, K = axn.make_axes(heads=3, pos=8, key=40)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_a_part_drops_what_the_whole_drops(impl):
    x, key = draw(H, Q, K), jax.random.key(0, impl=impl)
    starts = {"heads": 1, "pos": 2, "key": 7}

    @jax.jit
    def both(x, key):
        part = x["heads", 1:]["pos", 2:6]["key", 7:30]
        return drop(x, 0.25, key).array, drop(part, 0.25, key, starts, x.shape).array

    whole, found = map(np.asarray, both(x, key))
    np.testing.assert_array_equal(found, whole[1:, 2:6, 7:30])
    kept = whole != 0
    np.testing.assert_allclose(whole, np.asarray(x.array) * kept / 0.75, rtol=1e-6)
    assert abs(kept.mean() - 0.75) < 0.05
    # Rows, columns and heads are no copies of each other.
    for axis in range(3):
        assert np.unique(kept, axis=axis).shape == kept.shape


def test_all_or_nothing_is_dropped():
    x, key = draw(Q, K), jax.random.key(0)
    assert drop(x, 0.0, key) is x
    assert not drop(x, 1.0, key).array.any()
