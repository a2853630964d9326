"""XLA remembers what it put around a split array, but not the value that it put there.

Each test holds while jax 0.10 has the fault, and asks for the right result of later versions. Where one begins to fail
on an older version, the fault is gone there: lower the bound here, and drop `faults/shared_paddings.py`.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

FAULTY = jax.__version_info__ < (0, 12)
Several = Callable[[jax.Array], Sequence[jax.Array]]


def paddings(x: jax.Array) -> Sequence[jax.Array]:
    return jnp.pad(x, 1, constant_values=5), jnp.pad(x, 1)


def accumulations(x: jax.Array) -> Sequence[jax.Array]:
    return lax.cumsum(x), lax.cumprod(x)


@pytest.mark.parametrize("several", [paddings, accumulations])
def test_two_operations_on_windows_of_one_array(auto_mesh: Mesh, several: Several) -> None:
    x = jnp.full(8, 2.0)
    split = jax.device_put(x, NamedSharding(auto_mesh, PartitionSpec("model")))
    first, second = jax.jit(several)(split)
    np.testing.assert_array_equal(first, several(x)[0])
    assert np.array_equal(second, several(x)[1]) != FAULTY
