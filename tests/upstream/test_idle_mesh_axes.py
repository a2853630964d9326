"""JAX sums gradients over mesh axes that a shard_map leaves idle, though all devices along them have the same.

The test holds while JAX has the fault. Where it begins to fail, `faults/idle_mesh_axes.py` can go.
"""

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

SPLIT = PartitionSpec("data")


def sends(mesh: Mesh, manual: set[str]) -> bool:
    """Return whether the gradient of a function that needs no collective has one."""

    def loss(x: jax.Array) -> jax.Array:
        options = {"axis_names": manual, "check_vma": False}
        return (jax.shard_map(jnp.sin, in_specs=SPLIT, out_specs=SPLIT, **options)(x) ** 2).sum()

    with jax.set_mesh(mesh):
        x = jax.device_put(jnp.ones((8, 8)), NamedSharding(mesh, SPLIT))
        return "all-reduce" in jax.jit(jax.grad(loss)).lower(x).compile().as_text()


def test_a_gradient_is_summed_over_an_idle_axis(auto_mesh: Mesh) -> None:
    assert sends(auto_mesh, {"data", "model"})
    assert not sends(auto_mesh, {"data"})
