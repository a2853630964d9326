"""Mappings from named axes to mesh axes."""

import dataclasses
from typing import Any

import jax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import axonym as axn
from axonym.errors import AxisClashError, OperandError
from axonym.layout import context


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


def test_an_axis_that_parameters_list_is_no_sign_of_data() -> None:
    listed = axn.Mappings({"embed": "data", "mlp": None}, {"batch": "data", "mlp": "model"})
    assert dict(listed.of(("embed", "mlp"))) == {"embed": ("data",), "mlp": ()}


def test_a_replaced_field_keeps_the_overrides() -> None:
    given = axn.Mappings({"embed": "data"}, {"batch": "data"}, {"mlp": {"embed": None}})
    changed = dataclasses.replace(given, compute={"batch": "model"})
    assert changed == axn.Mappings({"embed": "data"}, {"batch": "model"}, {"mlp": {"embed": None}})


@pytest.mark.parametrize("overrides", [["mlp"], "mlp", 3, {3: {"embed": None}}, [("mlp", {}, {})]], ids=repr)
def test_overrides_that_are_no_pairs_are_an_error(overrides: Any) -> None:
    with pytest.raises(OperandError) as error:
        axn.Mappings({"embed": "data"}, {}, overrides)
    assert str(error.value) == (
        f"Mappings: overrides must be a dict from patterns of paths to mappings, not {overrides!r}\n"
        '  hint: write {"mlp.*.weight": {"embed": None}}'
    )


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


def test_axes_may_be_keys() -> None:
    Batch, Embed = axn.make_axes(batch=8, embed=4)
    expected = context.resolve_mapping({"batch": "data", "embed": None})
    assert context.resolve_mapping({Batch: "data", "embed": None}) == expected
    assert context.resolve_mapping({Batch: "data", Embed.resize(9): None}) == expected
    assert axn.Mappings({Embed: "data"}, {Batch: "data"}) == axn.Mappings({"embed": "data"}, {"batch": "data"})
    with pytest.raises(AxisClashError) as caught:
        context.resolve_mapping({Batch: "data", "batch": None})
    assert str(caught.value) == (
        "axis mapping: axis 'batch' is a key twice, as an Axis and by its name\n  hint: keep one of the two"
    )


def test_axes_are_keys_wherever_a_mapping_goes(auto_mesh: jax.sharding.Mesh) -> None:
    Batch, Embed = axn.make_axes(batch=8, embed=4)
    x, split = axn.ones((Batch, Embed)), PartitionSpec("data", None)
    with axn.set_mesh(auto_mesh):
        assert axn.shard(x, {Batch: "data"}).array.sharding.spec == split
        assert axn.pspec_for(x, {Batch: "data"}) == split
        jitted = axn.named_jit(lambda x: x + 1, {Batch: "data"})(x)
        assert jitted.array.sharding.is_equivalent_to(NamedSharding(auto_mesh, split), 2)
        total = axn.shard_map(lambda x: axn.psum(x.sum(Batch.name), "batch"), {Batch: "data"})(x)
        assert total.tolist() == [8.0] * 4
        with axn.axis_mapping({Batch: "data"}):
            assert axn.shard(x).array.sharding.spec == split
        assert not axn.check(lambda x: x, {Batch: "data"}, auto_mesh, x, quiet=True).errors
