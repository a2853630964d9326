"""XLA loses most of a product in which batch axes and the summed axis change places on a mesh.

The tests hold on all versions so far. Where they begin to fail, `faults/batched_products.py` can go.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec


@pytest.mark.parametrize("is_right", [False, True])
def test_a_result_split_over_the_mesh_axes_of_the_summed_axis(auto_mesh: Mesh, is_right: bool) -> None:
    def on(*axes: str | None) -> NamedSharding:
        return NamedSharding(auto_mesh, PartitionSpec(*axes))

    @jax.jit
    def product(x: jax.Array) -> jax.Array:
        if is_right:  # what Axonym adds: the batch axes are laid out before
            unconstrained = PartitionSpec.UNCONSTRAINED
            x = jax.lax.with_sharding_constraint(x, on("model", "data", unconstrained))  # type: ignore[arg-type]
        return jax.lax.with_sharding_constraint(jnp.einsum("cdb,cdb->cd", x, x), on("model", "data"))

    x = jnp.ones((4, 4, 4))
    found = np.asarray(product(jax.device_put(x, on(None, "model", "data"))))
    assert (found == 4).all() == is_right
