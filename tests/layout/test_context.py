import jax
import pytest

import axonym as axn
from axonym.layout import context


def test_names_are_looked_up_in_the_current_mapping_by_themselves_or_by_their_base() -> None:
    with axn.axis_mapping({"batch": "data", "embed": None}):
        sizes = {"batch": 8, "embed.out": 4, "other": 2}
        assert context.map_names(sizes) == {"batch": ("data",), "embed.out": ()}
        with context.unmap_names(("batch",)):
            assert context.map_names({"batch": 8}) == {"batch": ()}
    assert context.map_names({"batch": 8}) == {}
    mesh = jax.sharding.AbstractMesh((4, 2), ("data", "model"))
    several = {"batch": axn.partitioning.first_fitting("data", "model", None)}
    with jax.sharding.use_abstract_mesh(mesh), axn.axis_mapping(several):
        found = [context.map_names({"batch": size, "batch.key": 8}) for size in (12, 6, 5)]
    assert found == [{"batch": entry, "batch.key": ("data",)} for entry in (("data",), ("model",), ())]


def test_a_parameter_leaves_by_the_mapping_that_stores_it_and_data_by_the_current_one() -> None:
    mappings = axn.Mappings({"embed": "data"}, {"batch": "data"})
    with context.STORED.using(mappings), axn.axis_mapping({"batch": "data"}):
        assert dict(context.find_stored_mapping(("embed",)) or {}) == {"embed": ("data",)}
        assert dict(context.find_stored_mapping(("batch", "embed")) or {}) == {"batch": ("data",)}
    assert context.find_stored_mapping(("embed",)) is None


def test_overrides_matter_for_the_axes_that_they_have_unless_the_path_is_known() -> None:
    mappings = axn.Mappings({"embed": "data"}, {"batch": "data"}, {"optimizer": {"layers": "data"}})
    with context.STORED.using(mappings), axn.axis_mapping({"batch": "data"}):
        assert dict(context.find_stored_mapping(("embed",)) or {}) == {"embed": ("data",)}
        assert context.find_stored_mapping(("layers", "embed")) is None
        assert dict(context.find_stored_mapping(("layers", "embed"), "blocks") or {}) == {"embed": ("data",)}


def test_only_a_mesh_is_a_mesh(auto_mesh: jax.sharding.Mesh) -> None:
    assert context.context_mesh() is None
    assert context.context_mesh(auto_mesh) is auto_mesh
    with jax.set_mesh(auto_mesh):
        assert context.context_mesh() == auto_mesh.abstract_mesh
        assert context.mesh_for_blocks(auto_mesh) is None
    with pytest.raises(TypeError) as error:
        context.context_mesh({"data": 8})  # type: ignore[arg-type]
    assert str(error.value) == (
        "mesh: a mesh must be a Mesh or an AbstractMesh, not {'data': 8}\n"
        '  hint: write jax.make_mesh((4, 2), ("data", "model"))'
    )
