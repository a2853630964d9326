"""The mapping: its context, the specs it gives, and how operands agree on a layout."""

import inspect
import threading
from typing import Any

import jax
import jax.numpy as jnp
import pytest
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
            "axis mapping: a mapping must be a dict from axis names to mesh axes, not ['batch']\n"
            '  hint: write {"batch": "data", "mlp": "model"}',
        ),
        (
            {3: "data"},
            "axis mapping: a mapping must be a dict from axis names to mesh axes, not {3: 'data'}\n"
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


def test_one_block_may_be_entered_inside_of_itself_and_in_several_threads() -> None:
    def current() -> dict[str, object]:
        return dict(axn.current_mapping() or {})

    block = axn.axis_mapping({"a": "data"})
    with block:
        with block:
            assert current() == {"a": ("data",)}
        assert current() == {"a": ("data",)}
    assert axn.current_mapping() is None
    found: dict[int, object] = {}
    both_inside = threading.Barrier(2)

    def work(i: int) -> None:
        with axn.axis_mapping({f"own {i}": "data"}):
            with block:
                both_inside.wait()
            found[i] = current()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {0: {"own 0": ("data",)}, 1: {"own 1": ("data",)}}


def test_what_a_mapping_is_merged_into_is_what_is_current_when_the_block_is_entered() -> None:
    block = axn.axis_mapping({"embed": "data"}, merge=True)
    with axn.axis_mapping({"batch": "data"}), block:
        assert dict(axn.current_mapping() or {}) == {"batch": ("data",), "embed": ("data",)}
    with block:
        assert dict(axn.current_mapping() or {}) == {"embed": ("data",)}


def test_a_mapping_that_is_never_made_current_is_an_error_at_the_next_use() -> None:
    def place() -> str:
        frame = inspect.currentframe()
        assert frame is not None
        assert frame.f_back is not None
        return f"{__file__}, line {frame.f_back.f_lineno}"

    for use in (axn.current_mapping, lambda: axn.auto_sharded(axn.ones(axn.Axis("batch", 8)))):
        here = place(), axn.axis_mapping({"batch": "data"}) and None
        with pytest.raises(ShardingError) as error:
            use()
        assert str(error.value) == (
            "axis_mapping: a mapping was made, and never made current\n  mapping: {'batch': 'data'}\n"
            f"  made in: {here[0]}\n  hint: use a block: with axn.axis_mapping(...):"
        )
        assert axn.current_mapping() is None  # it is told once
    kept = axn.axis_mapping({"batch": "data"})
    assert axn.current_mapping() is None
    with kept:
        assert dict(axn.current_mapping() or {}) == {"batch": ("data",)}


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
        "  hint: use a multiple of 2, as round_axis_for_partitioning does, or map 'embed.out' to None"
    )


FSDP = axn.Mappings({"embed": "data", "mlp": "model"}, {"batch": "data", "mlp": "model"})


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("embed", "mlp"), {"embed": ("data",), "mlp": ("model",)}),
        (("batch", "embed"), {"batch": ("data",), "mlp": ("model",)}),
        (("batch.all",), {"batch": ("data",), "mlp": ("model",)}),
        (("mlp",), {"embed": ("data",), "mlp": ("model",)}),
        ((), {"embed": ("data",), "mlp": ("model",)}),
    ],
)
def test_mappings_tell_parameters_from_data(names: Any, expected: Any) -> None:
    assert dict(FSDP.of(names)) == expected


def test_an_axis_that_parameters_list_is_no_sign_of_data() -> None:
    listed = axn.Mappings({"embed": "data", "mlp": None}, {"batch": "data", "mlp": "model"})
    assert dict(listed.of(("embed", "mlp"))) == {"embed": ("data",), "mlp": ()}


@pytest.mark.parametrize(
    ("pattern", "path", "hit"),
    [
        ("mlp", "0.layers.mlp.up.weight", True),
        ("mlp.up", "0.layers.mlp.up.weight", True),
        ("mlp.*.weight", "0.layers.mlp.up.weight", True),
        ("up.weight", "mu.layers.mlp.up.weight", True),
        ("m?p", "0.layers.mlp.up.weight", True),
        ("mlp.weight", "0.layers.mlp.up.weight", False),
        ("ml", "0.layers.mlp.up.weight", False),
        ("weight.bias", "0.weight", False),
    ],
)
def test_overrides_are_for_runs_of_path_components(pattern: str, path: str, hit: bool) -> None:
    mappings = axn.Mappings({"embed": "data", "mlp": "model"}, overrides={pattern: {"embed": None, "vocab": "data"}})
    changed = {"embed": (), "mlp": ("model",), "vocab": ("data",)}
    assert dict(mappings.of(("embed",), path)) == (changed if hit else {"embed": ("data",), "mlp": ("model",)})


def test_mappings_are_equal_by_their_entries_and_hashable() -> None:
    same = axn.Mappings({"embed": ("data",), "mlp": "model"}, {"batch": "data", "mlp": ("model",)})
    assert same == FSDP
    assert hash(same) == hash(FSDP)
    assert axn.Mappings({"embed": "data"}).compute == axn.Mappings({"embed": "data"}).parameters
    assert axn.Mappings({"embed": "data"}) != FSDP


def test_two_mappings_are_refused_where_one_goes() -> None:
    with pytest.raises(OperandError) as error:
        axn.axis_mapping(FSDP)  # type: ignore[arg-type]
    assert str(error.value) == (
        "axis mapping: expected one mapping, not the two of Mappings\n  hint: pass its `parameters` or its `compute`"
    )


def test_a_plain_jit_is_traced_again_under_another_mapping_also_in_threads(auto_mesh: jax.sharding.Mesh) -> None:
    seen: list[Any] = []

    @jax.jit
    def place(x: axn.NamedArray) -> axn.NamedArray:
        seen.append(str(axn.current_mapping()))
        return axn.auto_sharded(x)

    mappings: list[Any] = [{"batch": "data"}, {"batch": "model"}, {"batch": ("data", "model")}, None]
    specs: dict[int, Any] = {}

    def work(i: int) -> None:
        with jax.set_mesh(auto_mesh):
            x = axn.ones(axn.Axis("batch", 8))
            for _ in range(2):
                if mappings[i] is None:
                    specs[i] = place(x).sharding.spec
                else:
                    with axn.axis_mapping(mappings[i]):
                        specs[i] = place(x).sharding.spec

    for _ in range(2):  # the second round finds everything in the cache
        threads = [threading.Thread(target=work, args=(i,)) for i in range(len(mappings))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert specs == {0: P("data"), 1: P("model"), 2: P(("data", "model")), 3: P()}
    assert sorted(seen) == ["None", "{'batch': 'data'}", "{'batch': 'model'}", "{'batch': ('data', 'model')}"]
