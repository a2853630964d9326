"""XLA loses the rest of a split array where a piece from its start is gathered, and written back to where it was.

The test holds while XLA has the fault. Where it begins to fail, `faults/gathered_pieces.py` can go.
"""

import jax
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec


def test_a_piece_that_is_gathered_and_written_back(auto_mesh: jax.sharding.Mesh) -> None:
    @jax.jit
    def doubled(x: jax.Array) -> jax.Array:
        piece = lax.with_sharding_constraint(lax.slice_in_dim(x, 0, 5), PartitionSpec(None))
        return lax.with_sharding_constraint(lax.dynamic_update_slice(x, 2 * piece, (0,)), PartitionSpec("data"))

    with jax.set_mesh(auto_mesh):
        x = jax.device_put(np.ones(8, np.float32), PartitionSpec("data"))
        np.testing.assert_array_equal(doubled(x), [2, 2, 2, 2, 2, 0, 0, 0])
