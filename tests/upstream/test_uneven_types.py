"""JAX has no type for an axis that is split unevenly, so a slice by one of a split axis is whole on Explicit mesh axes.

Where the test begins to fail, such a slice may stay split.
"""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec


def test_a_slice_by_one_of_a_split_axis_has_no_type(explicit_mesh: jax.sharding.Mesh) -> None:
    with jax.set_mesh(explicit_mesh):
        x = jax.reshard(jnp.arange(64.0), PartitionSpec("data"))
        # JAX does not export the class of the error.
        with pytest.raises(Exception, match=r"out dim \(63\) is not divisible by mesh axes \(4\)"):
            jax.jit(lambda x: x[1:]).trace(x)
        with pytest.raises(ValueError, match="does not evenly divide the dimension size 63"):
            jax.reshard(jnp.ones(63), PartitionSpec("data"))
