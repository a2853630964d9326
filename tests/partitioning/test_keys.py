"""Keys of a mapping that no array has: the same answer whatever ran before."""

import subprocess
import sys
from typing import Any

import jax
import pytest
from jax.sharding import AbstractMesh, AxisType

import axonym as axn
from axonym.errors import ShardingError
from axonym.layout.records import Ledger
from axonym.partitioning.keys import check_keys

MESH = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
B, E = axn.make_axes(batch=8, embed=4)


@pytest.mark.parametrize(("paths", "shown"), [({"", "layers.0.weight"}, "layers.0.weight"), ({""}, "none")])
def test_an_override_for_no_array_is_explained_with_the_paths_that_there_are(paths: set[str], shown: str) -> None:
    mappings = axn.Mappings({}, overrides={"layer_1": {"mlp": None}})
    with pytest.raises(ShardingError) as error:
        check_keys("shard", mappings, {"mlp"}, MESH, paths)
    hint = "\n  hint: did you mean 'layers'?" if shown != "none" else ""
    assert str(error.value) == f"shard: no array has a path that matches 'layer_1'\n  paths: {shown}{hint}"


def test_keys_of_what_is_computed_are_looked_for_where_all_of_it_is_seen() -> None:
    text = (
        "named_jit: the mapping has axis 'mpl', which no array here has\n"
        "  mapping: {'mpl': 'model'}\n"
        "  axes of the arrays: embed, mlp\n"
        "  hint: did you mean 'mlp'?"
    )
    names = {"embed", "mlp"}
    computed, stored = axn.Mappings({"embed": "data"}, {"mpl": "model"}), axn.Mappings({"mpl": "model"}, {})
    check_keys("named_jit", computed, names, MESH)
    for mappings, complete in ((computed, False), (stored, True)):
        with pytest.raises(ShardingError) as error:
            check_keys("named_jit", mappings, names, MESH, ledger=None if complete else Ledger())
        assert str(error.value) == text
    with pytest.raises(ShardingError) as error:
        check_keys("shard", axn.Mappings({}, {"batch": "date"}), names, MESH)
    assert str(error.value) == (
        "shard: axis 'batch' is mapped to 'date', which is not an axis of the mesh\n"
        "  mapping: {'batch': 'date'}\n"
        "  mesh: data=4, model=2\n"
        "  hint: did you mean 'data'?"
    )


def test_plain_arrays_are_to_be_named(auto_mesh: jax.sharding.Mesh) -> None:
    with axn.set_mesh(auto_mesh), pytest.raises(ShardingError) as error:
        axn.shard(jax.numpy.ones((8, 4)), {"batch": "data"})
    assert str(error.value) == (
        "shard: the mapping has axis 'batch', which no array here has\n"
        "  mapping: {'batch': 'data'}\n"
        "  axes of the arrays: none\n"
        "  hint: plain arrays are not laid out: name them, axn.named(array, ('batch', ...))"
    )


def misspelt(key: str) -> str:
    return (
        f"the mapping has axis {key!r}, which no array here has\n  mapping: {{'batch': 'data', '{key}': None}}\n"
        "  axes of the arrays: batch, embed\n"
        "  hint: pass strict=False where one mapping serves several models"
    )


def test_what_ran_before_is_no_excuse_for_a_misspelt_key(auto_mesh: jax.sharding.Mesh) -> None:
    """Arrays that others laid out by an equal mapping say nothing about a function."""
    mapping: dict[str, Any] = {"batch": "data", "hiden": None}
    with axn.set_mesh(auto_mesh):
        x = axn.ones((B, E))
        with axn.axis_mapping(mapping):
            axn.auto_sharded(x.rename({"embed": "hiden"}))
        axn.named_jit(lambda x: x.rename({"embed": "hiden"}), mapping)(x)
        calls: dict[str, Any] = {
            "named_jit": lambda: axn.named_jit(lambda x: axn.auto_sharded(2 * x), mapping)(x),
            "fsdp": lambda: axn.fsdp(lambda x: 2 * x, mapping, {"batch": "data"})(x),
            "shard_map": lambda: axn.shard_map(lambda x: 2 * x, mapping)(x),
            "shard": lambda: axn.shard(x, mapping),
            "pspec_for": lambda: axn.pspec_for(x, mapping),
        }
        for function, call in calls.items():
            for _ in range(2):
                with pytest.raises(ShardingError) as error:
                    call()
                assert str(error.value) == f"{function}: {misspelt('hiden')}"
        assert axn.pspec_for(x, mapping, strict=False) == jax.P("data", None)
        with axn.axis_mapping(mapping):  # it is for a whole model
            assert axn.pspec_for(x) == jax.P("data", None)


PROGRAM = """
import sys
import jax
import axonym as axn

B, E, H = axn.make_axes(batch=8, embed=4, hiden=4)
mapping = {"batch": "data", "hiden": None}
step = axn.named_jit(lambda x: axn.auto_sharded(2 * x), mapping)
unrelated = axn.named_jit(lambda: axn.ones((B, H)), mapping)
with axn.set_mesh(jax.make_mesh((1,), ("data",))):
    if sys.argv[1] == "after":
        unrelated()
    try:
        step(axn.ones((B, E)))
    except axn.errors.ShardingError as error:
        print(error)
"""


def test_fresh_processes_give_the_same_answer_in_both_orders() -> None:
    said = [
        subprocess.run([sys.executable, "-c", PROGRAM, order], capture_output=True, text=True, check=True).stdout
        for order in ("at once", "after")
    ]
    assert said == [f"named_jit: {misspelt('hiden')}\n"] * 2


def test_an_axis_of_what_is_inside_is_found_though_all_of_it_was_traced_before(auto_mesh: jax.sharding.Mesh) -> None:
    mapping = {"batch": "data", "heads": "model"}

    def heads(x: axn.NamedArray) -> axn.NamedArray:
        return axn.auto_sharded(x.unflatten_axis("embed", (axn.Axis("heads", 2), axn.Axis("dim", 2)))).sum(
            ("heads", "dim")
        )

    jitted = jax.jit(heads)

    def entering(x: axn.NamedArray) -> axn.NamedArray:
        with axn.axis_mapping(mapping):
            return jitted(x)

    with axn.set_mesh(auto_mesh):
        x = axn.ones((B, E))
        with axn.axis_mapping(mapping):
            jitted(x)
        functions: list[Any] = [
            lambda: axn.named_jit(lambda x: heads(x), mapping),
            lambda: axn.named_jit(lambda x: jitted(x), mapping),
            lambda: axn.named_jit(lambda x: axn.named_jit(jitted, mapping)(x), mapping),
            lambda: axn.named_jit(lambda x: entering(x), {"batch": "data"}),
            lambda: axn.shard_map(lambda x: jitted(x), mapping, manual_axes="data"),
        ]
        for make in functions:
            for _ in range(2):  # the second function finds what the first one traced
                assert make()(x).array.tolist() == [4.0] * 8


def test_functions_whose_mappings_name_axes_of_the_arguments_share_traces(auto_mesh: jax.sharding.Mesh) -> None:
    traces: list[str] = []

    @jax.jit
    def inner(x: axn.NamedArray) -> axn.NamedArray:
        traces.append("")
        return axn.auto_sharded(2 * x)

    with axn.set_mesh(auto_mesh):
        for _ in range(2):
            axn.named_jit(lambda x: inner(x), {"batch": "data"})(axn.ones((B, E)))
    assert len(traces) == 1
