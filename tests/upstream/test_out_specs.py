"""JAX reads the `out_specs` of a shard_map after it has traced the function.

`axonym.shard_map` relies on it: names show how results are split, and are known when the function was traced. A JAX
that reads them before would raise here, and in each `axonym.shard_map` with results, since the list would be empty.
"""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, PartitionSpec

import axonym as axn


@pytest.mark.parametrize("compiled", [False, True])
def test_out_specs_are_read_after_the_function_was_traced(auto_mesh: Mesh, compiled: bool) -> None:
    out_specs: list[PartitionSpec] = []

    def local(x: jax.Array) -> list[jax.Array]:
        out_specs[:] = [PartitionSpec("data"), PartitionSpec()]
        return [x, x.sum()[None] * 0]

    mapped = jax.shard_map(
        local,
        mesh=auto_mesh,
        in_specs=PartitionSpec("data"),
        out_specs=out_specs,
        check_vma=False,
    )
    with jax.set_mesh(auto_mesh):
        blocks, whole = (jax.jit(mapped) if compiled else mapped)(jnp.arange(8.0))
    assert (blocks.shape, whole.shape) == ((8,), (1,))
    assert blocks.tolist() == list(range(8))


def test_results_are_laid_out_by_the_names_that_they_have_at_the_end(auto_mesh: Mesh) -> None:
    Batch = axn.Axis("batch", 8)
    with axn.set_mesh(auto_mesh):
        swap = axn.shard_map(lambda x: x.rename({"batch": "model"}), {"batch": "data"}, out_mapping={"model": "data"})
        assert swap(axn.arange(Batch)).tolist() == list(range(8))
