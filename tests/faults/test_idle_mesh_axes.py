"""A function whose devices compute the same has its own values and gradients, and sends nothing."""

import jax
import jax.numpy as jnp
import numpy as np

from axonym.faults.idle_mesh_axes import run_on_idle_axes


def test_values_and_gradients_of_trees(auto_mesh):
    def fn(numbers, tree):
        return tree["x"] * numbers.sum() + tree["scale"] * len(tree["name"])

    def loss(x, scale):
        tree = {"x": x, "scale": scale, "name": "four"}
        return (run_on_idle_axes(fn, {"data", "model"}, jnp.arange(3), tree) ** 2).sum()

    with jax.set_mesh(auto_mesh):
        compiled = jax.jit(jax.value_and_grad(loss, (0, 1))).lower(jnp.ones(4), 2.0).compile()
        value, (by_x, by_scale) = compiled(jnp.ones(4), 2.0)
    assert "all-reduce" not in compiled.as_text()
    np.testing.assert_allclose(value, 4 * (3 + 8) ** 2)
    np.testing.assert_allclose(by_x, np.full(4, 2 * 11 * 3))
    np.testing.assert_allclose(by_scale, 4 * 2 * 11 * 4)
