"""The mapping: its context, the specs it gives, and how operands agree on a layout."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

import axonym as axn
from axonym import layout
from axonym.errors import OperandError, ShardingError

P = PartitionSpec
MESH = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
MAPPING = layout.resolve_mapping({"batch": "data", "embed": ("data", "model"), "heads": "model", "mlp": None})


def spec(names: tuple[str, ...], shape: tuple[int, ...], mesh: Any = MESH, **mapping: Any) -> PartitionSpec:
    return layout.partition_spec(names, shape, layout.resolve_mapping(mapping) if mapping else MAPPING, mesh)


@pytest.mark.parametrize(
    ("names", "shape", "expected"),
    [
        (("batch", "pos"), (8, 5), P("data", None)),
        (("pos", "embed"), (5, 8), P(None, ("data", "model"))),
        (("heads", "batch"), (2, 4), P("model", "data")),
        (("mlp",), (3,), P(None)),
        (("batch",), (3, 7, 4), P(None, None, "data")),
        (("batch",), (0,), P("data")),
        ((), (), P()),
        ((), (3,), P(None)),
    ],
)
def test_a_spec_has_one_entry_per_dimension(names: Any, shape: Any, expected: PartitionSpec) -> None:
    assert spec(names, shape) == expected
    assert spec(names, shape, mesh=None) == expected


def test_a_spec_without_a_mesh_checks_no_sizes() -> None:
    assert spec(("batch",), (3,), mesh=None) == P("data")


def test_manual_axes_are_left_out() -> None:
    mesh = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Manual, AxisType.Auto))
    assert spec(("pos", "embed"), (5, 2), mesh) == P(None, "model")
    assert spec(("batch",), (3,), mesh) == P(None)


FACTS = "  array has: batch=6, embed=3\n"
MESH_FACTS = "  mesh: data=4, model=2"


@pytest.mark.parametrize(
    ("mapping", "text"),
    [
        (
            {"batch": "dta"},
            "shard: axis 'batch' is mapped to 'dta', which is no axis of the mesh\n"
            f"{FACTS}  mapping: {{'batch': 'dta'}}\n{MESH_FACTS}\n  hint: did you mean 'data'?",
        ),
        (
            {"batch": "model", "embed": "model"},
            "shard: mesh axis 'model' would shard both 'batch' and 'embed' of one array\n"
            f"{FACTS}  mapping: {{'batch': 'model', 'embed': 'model'}}\n{MESH_FACTS}\n"
            "  hint: map one of the two elsewhere, or rename it on this array: x.rename({'embed': ...})",
        ),
        (
            {"batch": "data"},
            "shard: batch=6 cannot be split evenly in 4 over mesh axis data\n"
            f"{FACTS}  mapping: {{'batch': 'data'}}\n{MESH_FACTS}\n"
            "  hint: use a multiple of 4, as round_axis_for_partitioning does, or map 'batch' to None",
        ),
        (
            {"batch": ("data", "model")},
            "shard: batch=6 cannot be split evenly in 8 over mesh axis data, model\n"
            f"{FACTS}  mapping: {{'batch': ('data', 'model')}}\n{MESH_FACTS}\n"
            "  hint: use a multiple of 8, as round_axis_for_partitioning does, or map 'batch' to None",
        ),
    ],
    ids=["no mesh axis", "twice", "uneven", "uneven over two"],
)
def test_a_layout_that_cannot_be_is_explained(mapping: dict[str, Any], text: str) -> None:
    with pytest.raises(ShardingError) as caught:
        spec(("batch", "embed"), (6, 3), **mapping)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("mapping", "text"),
    [
        (
            {"batch": 3},
            "axis mapping: axis 'batch' is mapped to 3\n  hint: map it to a mesh axis, a tuple of them, or None",
        ),
        (
            {"batch": ("data", 1)},
            "axis mapping: axis 'batch' is mapped to ('data', 1)\n"
            "  hint: map it to a mesh axis, a tuple of them, or None",
        ),
        (
            ["batch"],
            "axis mapping: a mapping is a dict from axis names to mesh axes, not ['batch']\n"
            '  hint: write {"batch": "data", "mlp": "model"}',
        ),
        (
            {3: "data"},
            "axis mapping: a mapping is a dict from axis names to mesh axes, not {3: 'data'}\n"
            '  hint: write {"batch": "data", "mlp": "model"}',
        ),
    ],
    ids=["number", "number in a tuple", "list", "number as a key"],
)
def test_what_is_no_mapping_is_explained(mapping: Any, text: str) -> None:
    with pytest.raises(OperandError) as caught:
        axn.axis_mapping(mapping)
    assert str(caught.value) == text


def test_a_mapping_is_current_inside_its_block() -> None:
    assert axn.current_mapping() is None
    with axn.axis_mapping({"batch": "data"}, mlp=["model"]):
        assert dict(axn.current_mapping()) == {"batch": ("data",), "mlp": ("model",)}
        with axn.axis_mapping({"embed": None}):
            assert dict(axn.current_mapping()) == {"embed": ()}
        with axn.axis_mapping({"mlp": None, "heads": "model"}, merge=True):
            assert dict(axn.current_mapping()) == {"batch": ("data",), "mlp": (), "heads": ("model",)}
        assert str(axn.current_mapping()) == "{'batch': 'data', 'mlp': 'model'}"
    assert axn.current_mapping() is None
    with pytest.raises(RuntimeError), axn.axis_mapping({"batch": "data"}):
        raise RuntimeError
    assert axn.current_mapping() is None


def test_the_mapping_is_part_of_every_cache_key() -> None:
    seen = []

    @jax.jit
    def fn(x: jax.Array) -> jax.Array:
        seen.append(axn.current_mapping() and dict(axn.current_mapping()))
        return x

    for mapping in (None, {"a": "data"}, {"a": "model"}, {"a": "data"}, None):
        if mapping is None:
            fn(jnp.ones(2))
        else:
            with axn.axis_mapping(mapping):
                fn(jnp.ones(2))
    assert seen == [None, {"a": ("data",)}, {"a": ("model",)}]


def test_eager_operations_follow_the_mapping(auto_mesh: jax.sharding.Mesh) -> None:
    """A kernel is kept per names, and laid out anew under each mapping."""
    x, w = axn.ones((axn.Axis("a", 4), axn.Axis("b", 8))), axn.ones((axn.Axis("b", 8), axn.Axis("c", 4)))
    with jax.set_mesh(auto_mesh):
        for mapping in ({"a": "data", "c": "model"}, {"a": "model", "c": "data"}, {"a": None}):
            with axn.axis_mapping(mapping):
                got = axn.dot(x, w, axis="b").sharding.spec
            assert tuple(got) + (None,) * (2 - len(got)) == (mapping["a"], mapping.get("c"))


MESH_AXES = st.lists(st.sampled_from(["x", "y", "z"]), unique=True, max_size=2).map(tuple)


@given(st.data())
def test_settle_uses_each_mesh_axis_once(data: st.DataObject) -> None:
    labels = tuple(data.draw(st.permutations("abc")))
    operands = [
        (own, data.draw(st.lists(MESH_AXES, min_size=len(own), max_size=len(own))))
        for own in data.draw(st.lists(st.permutations("abc").map(lambda p: p[:2]), max_size=3))
    ]
    table = layout.settle(labels, operands)
    used = [axis for entry in table.values() for axis in entry]
    assert len(used) == len(set(used))
    assert tuple(table) == labels
    for label, entry in table.items():
        offers = [entries[own.index(label)] for own, entries in operands if label in own]
        first = next((offer for offer in offers if offer), ())
        assert set(entry) <= set(first)
    if operands and operands[0][1][0] and labels[0] == operands[0][0][0]:
        assert table[labels[0]] == operands[0][1][0]


def test_values_on_a_mesh_survive_a_change_of_layout(explicit_mesh: jax.sharding.Mesh) -> None:
    with jax.set_mesh(explicit_mesh):
        array = jax.device_put(jnp.arange(8.0).reshape(4, 2), jax.NamedSharding(explicit_mesh, P("data", "model")))
        assert layout.entries_of(array) == (("data",), ("model",))
        assert layout.has_explicit_axes(array)
        moved = layout.relayout(array, [("model",), ()])
        assert layout.entries_of(moved) == (("model",), ())
        assert moved.tolist() == array.tolist()
        assert layout.relayout(moved, layout.entries_of(moved)) is moved
    assert not layout.has_explicit_axes(jnp.ones(2))
