"""By how much arrays differ."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from axonym.testing.differences import differences, find_largest


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([1.0, 4.0], [1.0, 2.0], [0.0, 0.5]),
        ([1.0, 4.0], [1.0 + 1e-6, 4.0], [0.0, 0.0]),
        ([np.nan, 4.0], [np.nan, 4.0], [0.0, 0.0]),
        ([np.nan, 4.0], [1.0, 4.0], [np.inf, 0.0]),
        ([np.inf, -np.inf], [np.inf, np.inf], [0.0, np.inf]),
        ([0.0, 0.0], [0.0, 1e-30], [0.0, 1.0]),
        ([], [], []),
    ],
)
def test_differences_are_shares_of_the_largest_number(one, other, expected):
    found = differences(np.float32(one), np.float32(other), is_same_program=True)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float8_e4m3fn, np.complex64, np.int8, np.uint8, bool])
def test_all_dtypes_are_compared(dtype):
    x = jnp.asarray([0, 1, 1]).astype(dtype)
    assert not differences(x, x, is_same_program=True).any()
    assert differences(x, x[::-1], is_same_program=True).tolist() == [1, 0, 1]


def test_what_is_zero_but_for_the_rounding_of_others_is_equal():
    noise = np.float32([1e-7, -2e-7])
    others = [np.float32([[1.0, np.inf], [-3.0, 2.0]]), np.int32([100]), jax.random.key(0), np.float32([])]
    assert find_largest(others) == 3
    assert find_largest([]) == 0
    assert differences(noise, 0 * noise, is_same_program=False).any()
    assert not differences(noise, 0 * noise, is_same_program=False, among=3.0).any()
    assert differences(100 * noise, 0 * noise, is_same_program=False, among=3.0).tolist() == [0, 1]


def test_keys_are_compared_by_their_words():
    keys = jax.random.split(jax.random.key(0))
    assert differences(keys, keys[::-1], is_same_program=True).any()
    assert not differences(keys, keys, is_same_program=True).any()
