import jax
import pytest
from jax.sharding import AxisType, PartitionSpec

from axonym.layout import modes

MIXED = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto, AxisType.Explicit))


def test_axes_are_found_by_their_mode_inside_and_outside_of_a_shard_map() -> None:
    assert modes.list_modes(MIXED) == {"data": "Auto", "model": "Explicit"}
    assert modes.find_auto_axes(MIXED) == {"data"}
    assert modes.find_explicit_axes(MIXED) == {"model"}
    assert not modes.is_in_shard_map()

    def look(x: jax.Array) -> jax.Array:
        mesh = jax.sharding.get_abstract_mesh()
        assert modes.is_in_shard_map()
        assert modes.find_manual_axes(mesh) == {"data"}
        assert modes.has_explicit(mesh)
        assert not modes.has_auto(mesh)
        return x

    with jax.set_mesh(MIXED):
        spec = PartitionSpec("data")
        jax.jit(jax.shard_map(look, in_specs=spec, out_specs=spec, axis_names={"data"}))(jax.numpy.ones(4))


@pytest.mark.parametrize("mode", ["Auto", "Explicit", "Manual"])
def test_a_mesh_of_one_mode_is_told_from_a_mixed_one(mode: modes.Mode) -> None:
    mesh = modes.make_mesh({"data": 4, "model": 2}, mode)
    assert set(mesh.axis_types) == {AxisType[mode]}
    assert modes.is_one_mode(mesh) == (mode != "Manual")
    assert modes.is_explicit(mesh) == (mode == "Explicit")
    assert modes.is_manual(mesh) == (mode == "Manual")
    assert not modes.is_one_mode(MIXED)
