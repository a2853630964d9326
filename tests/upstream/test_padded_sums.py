"""XLA takes each window over an axis of one element, padded on both sides, to hold the element.

The test holds while XLA has the fault, also on one device. Where it begins to fail, `faults/padded_sums.py` can go.
"""

import jax
import jax.numpy as jnp
import numpy as np


def test_the_gradient_of_the_middle_of_a_cumulative_sum() -> None:
    def middle(x: jax.Array, weights: jax.Array) -> jax.Array:
        return jnp.cumsum(x, 1)[:, 1].dot(weights)

    x, weights = jnp.ones((2, 3)), jnp.array([1.0, 10.0])
    np.testing.assert_array_equal(jax.grad(middle)(x, weights), [[1, 1, 0], [10, 10, 0]])
    np.testing.assert_array_equal(jax.jit(jax.grad(middle))(x, weights), [[1, 1, 1], [10, 10, 10]])
