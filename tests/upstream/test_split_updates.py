"""XLA does not move the start of a `dynamic_update_slice` into range along a dimension that it splits.

The tests hold while JAX has the fault, in all versions so far. Where they begin to fail it may be gone; `fit_start` of
`faults/merged_slices.py`, which moves starts, is then needed for the fault of `test_slices_of_slices` alone.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec

SPLIT = PartitionSpec(("data", "model"))


@pytest.mark.parametrize("start", [20, -20])
def test_an_update_out_of_range_writes_nothing(start: int, auto_mesh: Mesh) -> None:
    put = lambda x, at: lax.dynamic_update_slice(x, jnp.ones(1), (at,))  # noqa: E731
    alone = jax.jit(put)(jnp.zeros(16), jnp.int32(start))
    assert alone[15 if start > 0 else 0] == 1
    with jax.set_mesh(auto_mesh):
        found = jax.jit(put, out_shardings=SPLIT)(jax.device_put(np.zeros(16), SPLIT), jnp.int32(start))
    np.testing.assert_array_equal(np.asarray(found), 0)


def test_the_gradient_of_a_slice_out_of_range_is_zero(auto_mesh: Mesh) -> None:
    read = lambda x, at: lax.dynamic_slice(x, (at,), (1,)).sum()  # noqa: E731
    with jax.set_mesh(auto_mesh):
        x = jax.device_put(np.zeros(16), SPLIT)
        found = jax.jit(jax.grad(read), out_shardings=SPLIT)(x, jnp.int32(20))
    np.testing.assert_array_equal(np.asarray(found), 0)
