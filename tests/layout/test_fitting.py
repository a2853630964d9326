"""Fitted mappings split an axis into as many parts as its size and the mesh axes of its entry allow."""

import math

import hypothesis.strategies as st
import jax
from hypothesis import given
from jax.sharding import AbstractMesh

from axonym.layout.assignment import Mappings
from axonym.layout.fitting import fit_sizes

SIZES = st.integers(1, 96)
NAMES = st.dictionaries(st.sampled_from("abcd"), st.tuples(SIZES, st.permutations(["x", "y"]), st.integers(0, 2)))


def count(mesh, entry):
    return math.prod(mesh.shape[axis] for axis in entry)


@given(NAMES, NAMES, st.tuples(SIZES, SIZES))
def test_every_entry_has_the_greatest_common_divisor_of_what_was_asked_for(stored, computed, devices):
    mesh = AbstractMesh(devices, ("x", "y"))
    sizes = {name: size for name, (size, _, _) in {**stored, **computed}.items()}
    asked = [{name: tuple(axes[:n]) for name, (_, axes, n) in each.items()} for each in (stored, computed)]
    found = fit_sizes(Mappings(*asked), mesh, sizes, {})
    assert found.mesh.size == mesh.size
    for before, after in zip(asked, (found.mappings.parameters, found.mappings.compute), strict=True):
        assert after.keys() == before.keys()
        for name, entry in before.items():
            assert count(found.mesh, after[name]) == math.gcd(sizes[name], count(mesh, entry))
    for axis, parts in found.split.items():
        assert math.prod(parts.values()) == mesh.shape[axis]
        assert all(found.mesh.shape[part] == size for part, size in parts.items())


def test_a_mesh_axis_is_split_only_where_axes_need_different_parts():
    asked = Mappings({"kv_heads": "x", "mlp": "x", "embed": "y"})
    found = fit_sizes(asked, AbstractMesh((12, 2), ("x", "y")), {"kv_heads": 2, "mlp": 64, "embed": 8, "group": 9}, {})
    assert dict(found.mesh.shape) == {"x": 2, "x_2": 2, "x_3": 3, "y": 2}
    assert str(found.mappings.compute) == "{'kv_heads': 'x', 'mlp': ('x', 'x_2'), 'embed': 'y'}"
    partners = {"kv_heads": "group"}
    sizes = {"kv_heads": 2, "mlp": 64, "embed": 8, "group": 9}
    shared = fit_sizes(asked, AbstractMesh((12, 2), ("x", "y")), sizes, partners)
    assert shared.mappings.compute["group"] == ("x_3",)
    same = fit_sizes(asked, AbstractMesh((2, 2), ("x", "y")), {"kv_heads": 2, "mlp": 64, "embed": 8}, {})
    assert dict(same.mesh.shape) == {"x": 2, "y": 2}
    assert not same.split


def test_names_of_new_mesh_axes_are_new():
    found = fit_sizes(Mappings({"a": "x", "b": "x_2"}), AbstractMesh((4, 2), ("x", "x_2")), {"a": 2, "b": 4}, {})
    assert dict(found.mesh.shape) == {"x": 2, "x_3": 2, "x_2": 2}


def test_what_fitted_before_stays_on_its_devices():
    mesh = jax.make_mesh((2, 4), ("x", "y"))
    found = fit_sizes(Mappings({"a": ("y", "x"), "b": "y"}), mesh, {"a": 8, "b": 2}, {})
    assert found.mesh.axis_types == mesh.axis_types[:1] * 3
    spec = jax.sharding.PartitionSpec(found.mappings.compute["a"])
    before = jax.NamedSharding(mesh, jax.sharding.PartitionSpec(("y", "x")))
    assert jax.NamedSharding(found.mesh, spec).devices_indices_map((8,)) == before.devices_indices_map((8,))
