"""How names, sizes, a mapping and a mesh give a PartitionSpec."""

import dataclasses
from typing import Any

import jax
import pytest
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

import axonym as axn
from axonym.errors import OperandError, ShardingError
from axonym.layout import context, partition

P = PartitionSpec


MESH = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


MAPPING = context.resolve_mapping({"batch": "data", "embed": ("data", "model"), "heads": "model", "mlp": None})


def spec(names: tuple[str, ...], shape: tuple[int, ...], mesh: Any = MESH, **mapping: Any) -> PartitionSpec:
    return partition.find_layout(names, shape, context.resolve_mapping(mapping) if mapping else MAPPING, mesh).spec


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


FACTS = "  array has: batch=6, embed=3\n"


MESH_FACTS = "  mesh: data=4, model=2"


@pytest.mark.parametrize(
    ("mapping", "text"),
    [
        (
            {"batch": "dta"},
            "shard: axis 'batch' is mapped to 'dta', which is not an axis of the mesh\n"
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
            "  hint: use a multiple of 4, as pad_axes and pad_batch do, or map 'batch' to None",
        ),
        (
            {"batch": ("data", "model")},
            "shard: batch=6 cannot be split evenly in 8 over mesh axis data, model\n"
            f"{FACTS}  mapping: {{'batch': ('data', 'model')}}\n{MESH_FACTS}\n"
            "  hint: use a multiple of 8, as pad_axes and pad_batch do, or map 'batch' to None",
        ),
    ],
    ids=["no mesh axis", "twice", "uneven", "uneven over two"],
)
def test_a_layout_that_cannot_be_is_explained(mapping: dict[str, Any], text: str) -> None:
    with pytest.raises(ShardingError) as caught:
        spec(("batch", "embed"), (6, 3), **mapping)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("names", "mapping", "expected"),
    [
        (("batch", "embed.out"), {"embed": "model"}, P(None, "model")),
        (("embed", "embed.out"), {"embed": "model"}, P("model", None)),
        (("embed.out", "embed"), {"embed": "model"}, P(None, "model")),
        (("embed", "embed.out"), {"embed": "model", "embed.out": "data"}, P("model", "data")),
        (("embed", "embed.out"), {"embed": "model", "embed.out": None}, P("model", None)),
        (("embed", "embed.out"), {"embed.out": "model"}, P(None, "model")),
        (("embed", "embed.out"), {"embed": None}, P(None, None)),
        (("embed.out", "mlp"), {"embed": ("data", "model"), "mlp": "model"}, P("data", "model")),
        (("embed.out", "mlp"), {"embed": ("data", "model"), "mlp": "data"}, P("model", "data")),
        # Two derived names of one base: the order of storage plays no part.
        (("embed.b", "embed.a"), {"embed": "model"}, P(None, "model")),
        (("embed.a", "embed.b"), {"embed": "model"}, P("model", None)),
        # The nearest base with an entry counts, through roles of roles.
        (("pos.key.new",), {"pos": "data"}, P("data")),
        (("pos.key.new",), {"pos": "data", "pos.key": "model"}, P("model")),
        (("pos.key",), {"po": "data", "pos.ke": "data", "key": "data"}, P(None)),
    ],
)
def test_a_derived_name_follows_its_base_where_a_mesh_axis_is_free(names: Any, mapping: Any, expected: Any) -> None:
    assert spec(names, (8,) * len(names), **mapping) == expected


@pytest.mark.parametrize(
    ("size", "expected"), [(16, P(("data", "model"))), (12, P("data")), (6, P("model")), (5, P(None))]
)
def test_the_first_alternative_that_divides_is_used(size: int, expected: PartitionSpec) -> None:
    several = axn.partitioning.first_fitting(("data", "model"), "data", "model", None)
    assert spec(("mlp",), (size,), mlp=several) == expected
    assert spec(("mlp.out",), (size,), mlp=several) == expected
    with axn.axis_mapping({"mlp": several, "batch": None}), axn.axis_mapping({"batch": "data"}, merge=True):
        merged = axn.current_mapping()
    assert partition.find_layout(("mlp",), (size,), merged, MESH).spec == expected


def test_alternatives_that_do_not_fit_are_explained() -> None:
    first = axn.partitioning.first_fitting
    for wrong, shown in (((None, "data"), "(None, 'data')"), (("data",), "('data')"), ((), "()")):
        problem = f"it takes alternatives in order, and None only as the last one, not {shown}"
        with pytest.raises(OperandError) as caught:
            first(*wrong)
        assert str(caught.value) == f'first_fitting: {problem}\n  hint: write first_fitting("model", None)'
    with pytest.raises(ShardingError) as refused:
        spec(("mlp",), (3,), mlp=first("data", "model"))
    assert str(refused.value) == (
        "shard: mlp=3 cannot be split evenly in 4 over mesh axis data\n"
        "  array has: mlp=3\n"
        "  mapping: {'mlp': first_fitting('data', 'model')}\n"
        "  mesh: data=4, model=2\n"
        "  hint: use a multiple of 4, as pad_axes and pad_batch do, or map 'mlp' to None"
    )
    with pytest.raises(ShardingError, match="axis 'mlp' is mapped to 'modl', which is not an axis of the mesh"):
        spec(("mlp",), (8,), mlp=first("data", "modl"))
    twice = "mesh axis 'model' would shard both 'heads' and 'mlp' of one array"
    with pytest.raises(ShardingError, match=twice):
        spec(("heads", "mlp"), (2, 2), heads="model", mlp=first("data", "model"))


def test_a_spec_without_a_mesh_checks_no_sizes() -> None:
    assert spec(("batch",), (3,), mesh=None) == P("data")


def test_manual_axes_are_left_out() -> None:
    mesh = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Manual, AxisType.Auto))
    assert spec(("pos", "embed"), (5, 2), mesh) == P(None, "model")
    assert spec(("batch",), (3,), mesh) == P(None)


def test_a_plain_alias_inherits_nothing() -> None:
    Embed = axn.Axis("embed", 8)
    assert axn.pspec_for(axn.ones(Embed.derive("out")), {"embed": "model"}, MESH) == P("model")
    assert axn.pspec_for(axn.ones(Embed.alias("embed_out")), {"embed": "model"}, MESH, strict=False) == P(None)


def test_a_derived_name_must_divide_too() -> None:
    with pytest.raises(ShardingError) as error:
        spec(("embed.out",), (3,), embed="model")
    assert str(error.value) == (
        "shard: embed.out=3 cannot be split evenly in 2 over mesh axis model\n"
        "  array has: embed.out=3\n"
        "  mapping: {'embed': 'model'}\n"
        "  mesh: data=4, model=2\n"
        "  hint: use a multiple of 2, as pad_axes and pad_batch do, or map 'embed.out' to None"
    )


def test_a_slice_by_one_is_told_what_keeps_the_size() -> None:
    with pytest.raises(ShardingError) as error:
        spec(("pos",), (63,), pos="data")
    assert str(error.value).endswith(
        "hint: use a multiple of 4, as pad_axes and pad_batch do, or map 'pos' to None; "
        'in place of a slice such as x["pos", 1:], which has one less, axn.roll(x, -1, "pos") keeps the size: '
        "give the last one no weight"
    )


def test_a_mapping_may_leave_sizes_that_do_not_divide_to_jax() -> None:
    mapping = dataclasses.replace(context.resolve_mapping({"batch": "data"}), uneven=True)
    explicit = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)

    def inside(mesh: AbstractMesh, own: Any = mapping) -> PartitionSpec:
        found: list[PartitionSpec] = []
        jax.eval_shape(lambda: found.append(partition.find_layout(("batch",), (6,), own, mesh).spec))
        return found[0]

    # JAX takes them inside of a program, on Auto axes.
    assert inside(MESH) == P("data")
    assert partition.find_layout(("batch",), (6,), mapping, MESH, lays_out=False).spec == P("data")
    refused = "batch=6 cannot be split evenly in 4"
    with pytest.raises(ShardingError, match=refused):
        partition.find_layout(("batch",), (6,), mapping, MESH)
    with pytest.raises(ShardingError, match=refused):
        inside(explicit)
    with pytest.raises(ShardingError, match=refused):
        inside(MESH, context.resolve_mapping({"batch": "data"}))


def test_what_is_made_of_a_mapping_leaves_the_same_sizes_to_jax() -> None:
    mapping = dataclasses.replace(context.resolve_mapping({"batch": "data", "embed": "model"}), uneven=True)
    assert axn.Mappings(mapping, overrides={"table": {"embed": None}}).of(("embed",), "table").uneven
    with axn.axis_mapping(mapping), context.unmap_names(("embed",)):
        current = context.current_mapping()
        assert current is not None
        assert current.uneven
        assert current["embed"] == ()


def test_what_is_not_split_evenly_is_whole_where_a_mapping_leaves_it_to_jax() -> None:
    uneven = dataclasses.replace(MAPPING, uneven=True)

    def entries(mesh: Any, mapping: Any = uneven, *, heads: int = 4) -> Any:
        found = partition.resolve_uneven(("batch", "heads"), (6, heads), mapping, mesh, "named_jit")
        return found["batch"], found["heads"]

    explicit = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    assert entries(MESH) == ((), ("model",))
    assert entries(MESH, heads=3) == ((), ())
    assert entries(MESH, MAPPING) == entries(explicit) == (("data",), ("model",))


def test_an_override_takes_the_mesh_axes_that_other_axes_have():
    """An axis of the override comes first, or one that derives from it; two of the override clash as before."""
    stored = {"embed": "data", "mlp": "model"}

    def layout(names, shape, override):
        mapping = axn.Mappings(stored, overrides={"moments": override}).of(names, "moments.weight")
        return partition.find_layout(names, shape, mapping, MESH)

    shape = (8, 8, 8)
    assert layout(("embed", "layers", "mlp"), shape, {"layers": ("data", "model")}) == ((), ("data", "model"), ())
    assert layout(("embed", "layers", "mlp"), shape, {"layers": "data"}) == ((), ("data",), ("model",))
    assert layout(("embed", "layers.out", "mlp"), shape, {"layers": "model"}) == (("data",), ("model",), ())
    assert layout(("vocab", "embed"), (8, 8), {"layers": "data"}) == ((), ("data",))
    fitting = {"layers": axn.partitioning.first_fitting(("data", "model"), "model", None)}
    found = [layout(("layers", "embed", "mlp"), (size, 8, 8), fitting) for size in (8, 6, 3)]
    assert found == [(("data", "model"), (), ()), (("model",), ("data",), ()), ((), ("data",), ("model",))]
    with pytest.raises(ShardingError, match="mesh axis 'data' would shard both 'layers' and 'heads' of one array"):
        layout(("layers", "heads"), (8, 8), {"layers": "data", "heads": "data"})
