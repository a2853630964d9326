"""Inside of a shard_map, JAX forgets that indices made by a sort differ from device to device.

The test holds while JAX has the fault. Where it begins to fail, `faults/sorted_positions.py` can go.
"""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec


def test_the_type_of_sorted_positions(auto_mesh: jax.sharding.Mesh) -> None:
    types: list[set[str]] = []

    def body(x: jax.Array) -> jax.Array:
        places = jnp.searchsorted(x, jnp.ones(3), method="sort")
        types.extend(set(jax.typeof(array).mat.varying) for array in (x, jnp.argsort(x), places))
        return jnp.zeros(())

    split = PartitionSpec("data")
    jax.eval_shape(jax.shard_map(body, mesh=auto_mesh, in_specs=split, out_specs=PartitionSpec()), jnp.ones(8))
    assert types == [{"data"}, set(), set()]
