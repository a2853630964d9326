"""Integers in a type that has room for all positions along an axis."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import axonym as axn
from axonym.ops._widen import widened


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16])
def test_narrow_integers_are_converted(dtype: Any) -> None:
    for positions in (dtype(100), np.array([100], dtype), jnp.array([100], dtype), axn.named(np.array(100, dtype), ())):
        assert widened(positions).dtype == np.int32
        assert np.ravel(np.asarray(widened(positions))).tolist() == [100]


@pytest.mark.parametrize(
    "positions", [7, 0.5, "a", jnp.int32(7), jnp.uint32(7), np.int64(7), jnp.float16(7), np.bool_(1)]
)
def test_all_else_stays_as_it_is(positions: Any) -> None:
    assert widened(positions) is positions
