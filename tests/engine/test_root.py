"""Square roots whose gradient is defined at zero."""

import jax
import jax.numpy as jnp
import numpy as np

from axonym.engine.root import root


def test_it_is_the_root_except_for_its_slope_at_zero() -> None:
    x = jnp.array([0.0, 4.0, 9.0])
    slopes = [jax.grad(root), jax.hessian(root), jax.grad(lambda x: root(x * x))]
    value, slope, curvature, size = jax.jit(lambda x: [jax.vmap(fn)(x) for fn in (root, *slopes)])(x)
    np.testing.assert_array_equal(value, [0, 2, 3])
    np.testing.assert_allclose(slope, [0, 1 / 4, 1 / 6])
    np.testing.assert_allclose(curvature, [0, -1 / 32, -1 / 108], rtol=1e-6)
    np.testing.assert_allclose(size, [0, 1, 1])
