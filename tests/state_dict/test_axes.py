"""Arrays that know the axes they were saved with."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load, save

import axonym as axn
from axonym.state_dict import StoredArray, to_state_dict

A, B = axn.make_axes(a=2, b=3)


@pytest.fixture
def array():
    return to_state_dict({"x": axn.named(np.arange(6.0, dtype="f4").reshape(2, 3), (A, B))})["x"]


def test_only_the_array_itself_has_axes(array):
    assert type(array) is StoredArray
    assert array.axes == ((("a", 2, False),), (("b", 3, False),))
    for other in (array.T, array[0], array.copy(), copy.deepcopy(array), array.astype("f2"), array.reshape(3, 2)):
        assert getattr(other, "axes", None) is None
    for plain in (
        array + 1,
        np.exp(array),
        array.sum(0),
        np.asarray(array),
        pickle.loads(pickle.dumps(np.asarray(array))),
    ):
        assert type(plain) is np.ndarray
    assert isinstance(array.sum(), np.float32)


def test_it_is_an_array_for_others(array):
    plain = np.asarray(array)
    for result in (jax.jit(lambda x: x * 1)(array), jnp.asarray(array), jax.device_put(array), array + jnp.zeros(3)):
        assert isinstance(result, jax.Array)
        np.testing.assert_array_equal(result, plain)
    np.testing.assert_array_equal(load(save({"x": array}))["x"], plain)
    np.testing.assert_array_equal(axn.named(array, (A, B)).array, plain)
    assert jax.tree.leaves({"x": array})[0] is array
