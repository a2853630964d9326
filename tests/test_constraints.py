"""How arrays are laid out while they are computed, and how operands agree on a layout."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AxisType, PartitionSpec
from measure import collectives, totals

import axonym as axn
from axonym import _constraints
from axonym.errors import ShardingError

P = PartitionSpec
MESH_AXES = st.lists(st.sampled_from(["x", "y", "z"]), unique=True, max_size=2).map(tuple)


@given(st.data())
def test_settle_uses_each_mesh_axis_once(data: st.DataObject) -> None:
    labels = tuple(data.draw(st.permutations("abc")))
    operands = [
        (own, data.draw(st.lists(MESH_AXES, min_size=len(own), max_size=len(own))))
        for own in data.draw(st.lists(st.permutations("abc").map(lambda p: p[:2]), max_size=3))
    ]
    table = _constraints.settle(labels, operands)
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
        assert _constraints.entries_of(array) == (("data",), ("model",))
        assert _constraints.has_explicit_axes(array)
        moved = _constraints.relayout(array, [("model",), ()])
        assert _constraints.entries_of(moved) == (("model",), ())
        assert moved.tolist() == array.tolist()
        assert _constraints.relayout(moved, _constraints.entries_of(moved)) is moved
    assert not _constraints.has_explicit_axes(jnp.ones(2))


def test_where_two_axes_want_one_mesh_axis_the_mapping_decides(explicit_mesh: jax.sharding.Mesh) -> None:
    a, b = jnp.arange(32.0).reshape(4, 8), jnp.ones((4, 8))
    with jax.set_mesh(explicit_mesh):
        rows = axn.named(jax.device_put(a, P("data")), ("a", "b"))
        columns = axn.named(jax.device_put(b, P(None, "data")), ("a", "b"))
        for mapping, expected in [
            ({"a": "data"}, P("data", None)),
            ({"b": "data"}, P(None, "data")),
            ({"a": "model", "b": "data"}, P(None, "data")),
        ]:
            with axn.axis_mapping(mapping):
                for total in (rows + columns, columns + rows, jax.jit(lambda x, y: x + y)(rows, columns)):
                    assert jax.typeof(total.array).sharding.spec == expected
                    assert total.array.tolist() == (a + b).tolist()
                gradient = jax.jit(jax.grad(lambda x, y: (x * y).sum().array))(columns, rows)
                assert jax.typeof(gradient.array).sharding.spec == P(None, "data")
                assert gradient.array.tolist() == a.tolist()


def test_partial_sums_are_scattered_and_not_the_weight_moved(explicit_mesh: jax.sharding.Mesh) -> None:
    x, w = jnp.arange(64.0).reshape(8, 8), jnp.arange(64.0).reshape(8, 8) % 5
    with jax.set_mesh(explicit_mesh), axn.axis_mapping({"batch": "data", "embed": "model"}):
        named = axn.named(jax.device_put(x, P("data", "model")), ("batch", "embed"))
        weight = axn.named(jax.device_put(w, P("model", None)), ("embed", "embed.out"))
        apply = jax.jit(lambda x, w: axn.dot(x, w, axis="embed"))
        out = apply(named, weight)
        assert jax.typeof(out.array).sharding.spec == P("data", "model")
        assert out.array.tolist() == (x @ w).tolist()
        assert "reshard" not in str(apply.trace(named, weight).jaxpr)


def test_an_axis_of_the_result_is_not_moved_under_a_partial_sum() -> None:
    mesh = jax.make_mesh((2, 2, 2), ("x", "y", "z"), axis_types=(AxisType.Explicit,) * 3)
    h, w = jnp.arange(4 * 8 * 4.0).reshape(4, 8, 4) % 7, jnp.arange(8 * 4 * 16.0).reshape(8, 4, 16) % 5
    expected = jnp.einsum("bhd,hde->be", h, w)
    with jax.set_mesh(mesh), axn.axis_mapping({"batch": "z", "embed": ("x", "y")}):
        named = axn.named(jax.device_put(h, P(None, ("y", "z"))), ("batch", "heads", "dim"))
        weight = axn.named(jax.device_put(w, P(("y", "z"), None, "x")), ("heads", "dim", "embed"))
        apply = jax.jit(lambda h, w: axn.dot(h, w, axis=("heads", "dim")))
        out = apply(named, weight)
        assert jax.typeof(out.array).sharding.spec == P("z", ("x", "y"))
        assert out.array.tolist() == expected.tolist()
        by_hand = jax.jit(lambda h, w: jnp.einsum("bhd,hde->be", h, w, out_sharding=P("z", ("x", "y"))))
        programs = apply.lower(named, weight).compile(), by_hand.lower(named.array, weight.array).compile()
        mine, theirs = (totals(collectives(program)) for program in programs)
        assert mine == theirs


def mesh_of(kind: AxisType, *sizes: int) -> jax.sharding.Mesh:
    return jax.make_mesh(sizes, ("data", "model")[: len(sizes)], axis_types=(kind,) * len(sizes))


ELSEWHERE = {
    "explicit, flat": ((AxisType.Explicit, 8), (AxisType.Explicit, 4, 2)),
    "explicit, turned": ((AxisType.Explicit, 4, 2), (AxisType.Explicit, 2, 4)),
    "auto, flat": ((AxisType.Auto, 8), (AxisType.Auto, 4, 2)),
    "auto, turned": ((AxisType.Auto, 4, 2), (AxisType.Auto, 2, 4)),
    "to auto": ((AxisType.Explicit, 4, 2), (AxisType.Auto, 4, 2)),
    "to explicit": ((AxisType.Auto, 8), (AxisType.Explicit, 8)),
}


def typed(mesh: jax.sharding.Mesh) -> str:
    kinds = zip(mesh.shape.items(), mesh.axis_types, strict=True)
    return ", ".join(f"{axis}={size} ({kind.name})" for (axis, size), kind in kinds)


@pytest.mark.parametrize(("own", "current"), ELSEWHERE.values(), ids=ELSEWHERE)
def test_an_array_of_another_mesh_is_refused_until_it_is_moved(own: Any, current: Any) -> None:
    """On Auto axes too, where JAX would compute with it, and forget the layout."""
    numbers = np.arange(128.0, dtype=np.float32).reshape(16, 8)
    there, here = mesh_of(*own), mesh_of(*current)
    mapping = {"batch": "data", "embed": "model"} if len(here.shape) > 1 else {"batch": "data"}
    x = axn.shard(axn.named(numbers, ("batch", "embed")), {"batch": "data"}, there)
    facts = f"\n  its mesh: {typed(there)}\n  mesh: {typed(here)}\n"
    facts += "  hint: move it first, outside of jit: axn.shard(x, mapping)"
    array = f"is on another mesh than the current one\n  array has: batch=16, embed=8{facts}"
    operand = f"mesh: an operand is on another mesh than the current one\n  its shape: (16, 8){facts}"
    double = axn.named_jit(lambda state: {"x": state["x"] * 2}, mapping)
    calls: dict[str, Any] = {
        f"named_jit: argument state['x'] {array}": lambda x: double({"x": x})["x"],
        f"fsdp: argument x {array}": axn.fsdp(lambda x: x * 2, mapping, {}),
        f"shard_map: argument x {array}": axn.shard_map(lambda x: x * 2, mapping),
        f"shard: an array {array}": jax.jit(lambda x: 2 * axn.auto_sharded(x)),
        operand: lambda x: x * 2,
    }
    with jax.set_mesh(here), axn.axis_mapping(mapping):
        for text, call in calls.items():
            for _ in range(2):  # an error is not cached either
                with pytest.raises(ShardingError) as error:
                    call(x)
                assert str(error.value) == text
            moved = call(axn.shard(x))
            assert moved.sharding.is_equivalent_to(jax.NamedSharding(here, axn.pspec_for(x, mapping)), 2)
            np.testing.assert_array_equal(moved.array, 2 * numbers)
        with pytest.raises(ShardingError) as error:
            axn.dot(x, axn.shard(x), axis="embed")
        assert str(error.value) == operand


def test_operands_of_two_meshes_are_refused_where_no_mesh_is_current() -> None:
    x = axn.named(jnp.ones(8), "batch")
    left, right = (axn.shard(x, {"batch": "data"}, mesh_of(AxisType.Auto, *sizes)) for sizes in ((4, 2), (2, 4)))
    with pytest.raises(ShardingError) as error:
        left + right
    assert str(error.value) == (
        "mesh: an operand is on another mesh than the one before it\n  its shape: (8,)\n"
        "  its mesh: data=2 (Auto), model=4 (Auto)\n  mesh: data=4 (Auto), model=2 (Auto)\n"
        "  hint: move it first, outside of jit: axn.shard(x, mapping)"
    )
    assert (left + left).array.tolist() == [2.0] * 8
