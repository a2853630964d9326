import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

import axonym as axn
from axonym.layout.context import resolve_mapping
from axonym.partitioning import trees

TREE = {"layers": [axn.ones({"embed": 4, "mlp": 1}), None, jnp.ones(3)], "bias": axn.ones({"mlp": 8}), "step": 3}


def test_names_paths_and_axes_of_a_tree_with_holes_are_found() -> None:
    assert trees.collect_names(TREE) == {"embed", "mlp"}
    assert trees.collect_paths(TREE) == {"layers.0", "bias"}
    assert trees.find_several(TREE) == {"embed", "mlp"}

    class Module(eqx.Module):
        Embed: axn.Axis = eqx.field(static=True)
        name: str = eqx.field(static=True)

    assert trees.find_static_axes(Module(axn.Axis("embed", 4), "m")) == {"Embed": (axn.Axis("embed", 4),)}


def test_the_placeholder_of_an_axis_with_one_element_is_replicated(auto_mesh: Mesh) -> None:
    mapping = resolve_mapping({"mlp": "data"})
    assert mapping is not None
    placed = trees.shard_tree(TREE, mapping, auto_mesh)
    assert placed["layers"][0].sharding.spec == PartitionSpec(None, None)
    assert placed["bias"].sharding.spec == PartitionSpec("data")
    assert placed["layers"][1] is None
    np.testing.assert_array_equal(placed["bias"].array, np.ones(8))
