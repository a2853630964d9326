"""XLA's scatter adds what it computed for elements that are not there, where devices have unequally many.

Seven of eight elements, split in two, have an eighth on the last device: a zero, until something is computed of it.
The tests hold on all versions so far. Where they begin to fail, `faults/uneven_scatters.py` can go.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def test_a_sum_of_segments(auto_mesh: Mesh) -> None:
    @jax.jit
    def total(x: jax.Array) -> jax.Array:
        return jax.ops.segment_sum(jnp.exp(x[1:]), jnp.zeros(7, int), 1)

    split = jax.device_put(jnp.zeros(8), NamedSharding(auto_mesh, PartitionSpec("model")))
    np.testing.assert_array_equal(total(jnp.zeros(8)), [7])
    np.testing.assert_array_equal(total(split), [8])


def test_the_gradient_of_an_embedding(auto_mesh: Mesh) -> None:
    @jax.jit
    @jax.grad
    def slope(table: jax.Array, tokens: jax.Array) -> jax.Array:
        return jnp.exp(table[tokens[1:]]).sum()

    tokens = jnp.zeros(8, int)
    split = jax.device_put(tokens, NamedSharding(auto_mesh, PartitionSpec("model")))
    np.testing.assert_array_equal(slope(jnp.zeros(1), tokens), [7])
    np.testing.assert_array_equal(slope(jnp.zeros(1), split), [8])
