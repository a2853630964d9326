import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec

import axonym as axn
from axonym.layout import blocks

pytestmark = pytest.mark.sampled


@pytest.mark.parametrize("mesh_axes", [("data",), ("data", "model"), ("model", "data")])
def test_devices_are_listed_in_the_order_of_their_blocks(auto_mesh: Mesh, mesh_axes: tuple[str, ...]) -> None:
    """Each device sends its block to the next one: together, the blocks move by one."""

    def shift(block: jax.Array) -> jax.Array:
        devices, ordered = blocks.list_devices(mesh_axes)
        pairs = list(zip(devices, devices[1:] + devices[:1], strict=True))
        moved: jax.Array = lax.ppermute(block, ordered, pairs)
        return moved

    count = int(np.prod([auto_mesh.shape[axis] for axis in mesh_axes]))
    spec = PartitionSpec(mesh_axes)
    with jax.set_mesh(auto_mesh):
        moved = jax.jit(jax.shard_map(shift, in_specs=spec, out_specs=spec, check_vma=False))(jnp.arange(count))
    np.testing.assert_array_equal(moved, np.roll(np.arange(count), 1))


def test_entries_come_from_the_type_on_explicit_axes_and_from_the_mapping_on_auto_ones(
    auto_mesh: Mesh, explicit_mesh: Mesh
) -> None:
    mapping = {"batch": "data", "embed": "model"}
    for mesh in (auto_mesh, explicit_mesh):
        with axn.set_mesh(mesh), axn.axis_mapping(mapping):
            x = axn.shard(axn.ones({"batch": 8, "embed": 4}))
            assert blocks.find_entries(x.array, x.names) == [("data",), ("model",)]
            assert blocks.find_mesh(x.array) == mesh.abstract_mesh
            assert blocks.choose_manual_axes(mesh, [("data",), ()], typed=False) == {"data", "model"}
            assert blocks.choose_manual_axes(mesh, [("data",), ()], typed=True) == {"data"}
