"""Pieces of an array along one dimension, where Explicit mesh axes split it."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

import axonym as axn


def test_a_position_of_a_split_axis_has_a_gradient_beside_manual_axes(explicit_mesh: Mesh) -> None:
    def block(x: jax.Array, i: jax.Array) -> jax.Array:
        part = axn.NamedArray(x, ("a", "b"))
        return (part["b", 3] * part["b", i]).array

    def total(x: axn.NamedArray) -> jax.Array:
        split, whole = PartitionSpec("data"), PartitionSpec()
        blocks = jax.shard_map(block, axis_names={"data"}, in_specs=(split, whole), out_specs=split)
        return blocks(x.array, jnp.int32(5)).sum()

    with jax.set_mesh(explicit_mesh):
        x = axn.shard(axn.random.normal(jax.random.key(0), axn.make_axes(a=8, b=8)), {"a": "data", "b": "model"})
        gradient = jax.jit(jax.grad(total))(x)
    expected = np.zeros((8, 8), np.float32)
    expected[:, [5, 3]] = np.asarray(x.array)[:, [3, 5]]
    np.testing.assert_array_equal(gradient.array, expected)
