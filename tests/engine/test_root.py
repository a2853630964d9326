"""Square roots whose gradient is defined at zero."""

import jax
import jax.numpy as jnp
import numpy as np

from axonym.engine.root import root


def test_it_is_the_root_except_for_its_slope_at_zero() -> None:
    x = jnp.array([0.0, 4.0, 9.0])
    np.testing.assert_array_equal(root(x), jnp.sqrt(x))
    slopes = jax.vmap(jax.grad(root))(x)
    np.testing.assert_allclose(slopes, [0, 1 / 4, 1 / 6])
    np.testing.assert_allclose(jax.vmap(jax.hessian(root))(x), [0, -1 / 32, -1 / 108], rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(jax.grad(lambda x: root(x * x)))(x), [0, 1, 1])
