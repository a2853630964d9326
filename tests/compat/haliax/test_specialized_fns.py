"""`hax.top_k`, against numpy."""

import axonym.compat.haliax  # noqa: F401 # isort: skip

import haliax as hax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax.specialized_fns import top_k

A, B = hax.Axis("A", 2), hax.Axis("B", 4)
X = hax.NamedArray(jnp.array([[3.0, 1.0, 4.0, 1.5], [9.0, 2.0, 6.0, 5.0]]), (A, B))


@pytest.mark.parametrize("new", [None, "K", hax.Axis("K", 2)])
def test_the_axis_stays_in_its_place(new):
    values, indices = top_k(X, B, 2, new)
    name = "B" if new is None else "K"
    assert type(values) is type(indices) is hax.NamedArray
    assert values.axes == indices.axes == (A, hax.Axis(name, 2))
    np.testing.assert_array_equal(values.array, [[4, 3], [9, 6]])
    np.testing.assert_array_equal(indices.array, [[2, 0], [0, 2]])
    values, _ = hax.top_k(arr=hax.NamedArray(X.array.T, (B, A)), axis="B", k=2, new_axis=new)
    assert values.axes == (hax.Axis(name, 2), A)
    np.testing.assert_array_equal(values.array, [[4, 9], [3, 6]])


def test_bad_arguments():
    with pytest.raises(ValueError, match="choose 9"):
        hax.top_k(X, B, 9)
    with pytest.raises(ValueError, match="'Q'"):
        hax.top_k(X, "Q", 1)
    with pytest.raises(ValueError, match="size 3"):
        hax.top_k(X, B, 2, hax.Axis("K", 3))
