"""Parts that are sent one by one arrive where an all-to-all brings them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from axonym.faults.mapped_exchanges import exchange_one_by_one


def test_parts_arrive_as_of_an_all_to_all(auto_mesh):
    def send(array, shift):
        return lax.ppermute(array, "data", [(i, (i + shift) % 4) for i in range(4)])

    def both(x):
        one_by_one = exchange_one_by_one(x, lax.axis_index("data"), 4, send, 1, 0)
        return one_by_one, lax.all_to_all(x, "data", 1, 0, tiled=True)

    split = PartitionSpec("data"), PartitionSpec(None, "data")
    run = functools.partial(jax.shard_map, mesh=auto_mesh, in_specs=split[0], out_specs=(split[1],) * 2)
    found, wanted = jax.jit(run(both, check_vma=False))(jnp.arange(64.0).reshape(8, 8))
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(wanted, np.arange(64.0).reshape(8, 8))
