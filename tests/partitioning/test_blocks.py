"""The mapping: its context, the specs it gives, and how operands agree on a layout."""

import inspect
import threading
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

import axonym as axn
from axonym.errors import ShardingError
from axonym.layout import context, partition

P = PartitionSpec


MESH = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


MAPPING = context.resolve_mapping({"batch": "data", "embed": ("data", "model"), "heads": "model", "mlp": None})


def spec(names: tuple[str, ...], shape: tuple[int, ...], mesh: Any = MESH, **mapping: Any) -> PartitionSpec:
    return partition.find_layout(names, shape, context.resolve_mapping(mapping) if mapping else MAPPING, mesh).spec


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
