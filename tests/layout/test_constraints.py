"""How arrays are laid out while they are computed, and how operands agree on a layout."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import axonym as axn
from axonym.errors import ShardingError

pytestmark = pytest.mark.sampled


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


@pytest.mark.parametrize("form", ["{c d b}, {c d b} -> c d", "{c d b}, {d b} -> c d", "{c d b}, {c d b e} -> c d e"])
def test_products_are_right_where_batch_axes_change_places_with_the_summed_one(
    auto_mesh: jax.sharding.Mesh, form: str
) -> None:
    """XLA alone loses most of such a product (tests/upstream/test_batched_products.py)."""
    every = axn.make_axes(c=4, d=4, b=4, e=3)
    left = axn.random.normal(jax.random.key(0), every[:3])
    right = axn.random.normal(jax.random.key(1), every if " e}" in form else every[:3])
    if form.count("{d b}"):
        right = right["c", 0]
    expected = axn.einsum(form, left, right)
    for place, other in (("c", "d"), ("d", "c")):
        with axn.set_mesh(auto_mesh):
            given = axn.shard((left, right), {"d": "model", "b": "data"})
            with axn.axis_mapping({place: "model", other: "data"}):
                found = jax.jit(lambda x, y: axn.einsum(form, x, y))(*given)
        np.testing.assert_allclose(found.array, expected.array, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: axn.sort(x, "a", descending=True),
        lambda x: axn.partition(x, "a", 1),
        lambda x: axn.top_k(x, "a", 3)[0],
        lambda x: axn.median(x, "a"),
        lambda x: axn.quantile(x, 0.3, "a"),
    ],
    ids=["sort", "partition", "top_k", "median", "quantile"],
)
def test_a_sort_of_a_split_axis_beside_an_uneven_one_has_a_gradient(auto_mesh: jax.sharding.Mesh, fn: Any) -> None:
    """XLA alone ends the process."""

    def loss(x: axn.NamedArray) -> jax.Array:
        return axn.sin(fn(axn.insert(x, [2], 1.0, "b"))).sum().scalar()

    x = axn.random.normal(jax.random.key(0), axn.make_axes(b=8, a=4, c=8))
    expected = jax.jit(jax.grad(loss))(x)
    with axn.set_mesh(auto_mesh):
        found = jax.jit(jax.grad(loss))(axn.shard(x, {"a": "data", "b": "model"}))
    np.testing.assert_allclose(found.array, expected.array, rtol=1e-5, atol=1e-6)
