"""How an index by name writes: what becomes of it in JAX."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from measure import collectives, totals

import axonym as axn
from tests.laws import count_equations

pytestmark = pytest.mark.sampled


def test_promises_reach_the_scatter() -> None:
    x = axn.zeros((axn.Axis("a", 2), axn.Axis("b", 4)))
    at = axn.named([0, 2], "i")

    def promises(call: Any) -> set[str]:
        """List what the compiler may rely on."""
        return set(re.findall(r"(indices_are_sorted|unique_indices) = true", jax.jit(call).lower(x).as_text()))

    assert promises(lambda x: x.at["b", at].set(1.0)) == set()
    both = {"indices_are_sorted": True, "unique_indices": True}
    assert promises(lambda x: x.at["b", at].set(1.0, **both)) == {*both}
    assert promises(lambda x: x.at["b", at].get(**both)) >= {"indices_are_sorted"}  # XLA asks for no more
    # Indices that ascend along one axis need not when there is another one.
    assert promises(lambda x: x.at["b", at, "a", [0, 1]].set(1.0, **both)) == {"unique_indices"}
    # No element can be meant twice, which its gradient makes use of.
    assert "unique_indices" in promises(lambda x: x.at["b", axn.dslice(jnp.int32(1), 2)].set(1.0))


# The names of x, of the index and of the update; the axis that is indexed; the same in raw JAX; and how all lie.
Raw = Callable[[Any, jax.Array, jax.Array], jax.Array]
SIZES = {"batch": 8, "pos": 4, "vocab": 32, "embed": 16}
WRITES: dict[str, tuple[str, str, str, Raw, dict[str, Any]]] = {
    "an axis in common": ("batch vocab", "batch", "batch", jax.vmap(lambda x, i, v: x.at[i].add(v)), {"batch": "data"}),
    "two axes in common": (
        "batch pos vocab",
        "batch pos",
        "batch pos",
        jax.vmap(jax.vmap(lambda x, i, v: x.at[i].add(v))),
        {"batch": "data", "pos": "model"},
    ),
    "in the middle": (
        "vocab batch embed",
        "batch",
        "batch embed",
        jax.vmap(lambda x, i, v: x.at[i].add(v), (1, 0, 0), 1),
        {"batch": "data", "embed": "model"},
    ),
    "repeated over a mesh axis": (
        "batch vocab embed",
        "batch",
        "batch embed",
        jax.vmap(lambda x, i, v: x.at[i].add(v)),
        {"batch": "data"},
    ),
    "the indexed axis is split": (
        "batch vocab embed",
        "batch",
        "batch embed",
        jax.vmap(lambda x, i, v: x.at[i].add(v)),
        {"batch": "data", "vocab": "model"},
    ),
    "the gradient of an embedding": (
        "vocab embed",
        "batch pos",
        "batch pos embed",
        lambda x, i, v: x.at[i].add(v),
        {"batch": "data", "embed": "model"},
    ),
}


@pytest.mark.parametrize("name", WRITES)
def test_updating_moves_no_more_than_raw_jax_does(name: str, auto_mesh: Mesh, explicit_mesh: Mesh) -> None:
    *axes, raw, layout = WRITES[name]
    rng = np.random.default_rng(0)
    of_x, of_at, of_update = (tuple(names.split()) for names in axes)
    x, update = (
        axn.named(rng.normal(size=[SIZES[name] for name in names]).astype(np.float32), names)
        for names in (of_x, of_update)
    )
    at = axn.named(rng.integers(0, SIZES["vocab"], [SIZES[name] for name in of_at]), of_at)

    def write(x: axn.NamedArray, at: axn.NamedArray, update: axn.NamedArray) -> axn.NamedArray:
        return x.at["vocab", at].add(update)

    def total(x: axn.NamedArray, at: axn.NamedArray, update: axn.NamedArray) -> jax.Array:
        return (write(x, at, update) ** 2).sum().scalar()

    def raw_total(x: jax.Array, at: jax.Array, update: jax.Array) -> jax.Array:
        return (raw(x, at, update) ** 2).sum()

    def placed(mesh: Mesh) -> Any:
        return [axn.shard(z, layout, mesh=mesh, strict=False) for z in (x, at, update)]

    for mine, theirs in (write, raw), (jax.grad(total, (0, 2)), jax.grad(raw_total, (0, 2))):
        with jax.set_mesh(auto_mesh):
            arrays = [z.array for z in placed(auto_mesh)]
            by_hand = jax.jit(theirs).lower(*arrays).compile()
            expected = jax.tree.leaves(by_hand(*arrays))
        for mesh in (auto_mesh, explicit_mesh):
            with jax.set_mesh(mesh):
                named = placed(mesh)
                program = jax.jit(mine).lower(*named).compile()
                assert totals(collectives(program)) == totals(collectives(by_hand))
                for result, reference in zip(jax.tree.leaves(program(*named)), expected, strict=True):
                    np.testing.assert_allclose(result, reference, rtol=1e-5, atol=1e-6)


def test_a_box_is_one_update_in_place() -> None:
    x = axn.zeros((axn.Axis("a", 2), axn.Axis("b", 4)))
    assert count_equations(lambda x: x.at["a", 1, "b", 1:3].set(1.0), x) <= count_equations(
        lambda x: lax.dynamic_update_slice(x, jnp.full((1, 2), 1.0), (1, 1)), x.array
    )
    assert count_equations(lambda x: x.at["b", 0:4].add(x), x) <= count_equations(lambda x: x + x, x.array)
    step = jax.jit(lambda x, i: x.at["b", i].set(1.0).at["a", 0, "b", 0:2].add(2.0), donate_argnums=0)
    donated = axn.NamedArray(jnp.zeros((2, 4)), ("a", "b"))
    assert step(donated, 3).tolist() == [[2, 2, 0, 1], [0, 0, 0, 1]]
    assert donated.array.is_deleted()


def test_an_update_keeps_the_dtype() -> None:
    box = axn.Axis("b", 3)
    for dtype in (jnp.bfloat16, jnp.uint8, jnp.complex64):
        x = axn.zeros(box, dtype=dtype)
        for result in (x.at["b", 0].set(2), x.at["b", [0]].add(2), axn.updated_slice(x, {"b": 0}, 2)):
            assert result.dtype == dtype
            assert result.tolist() == [2, 0, 0]
    mask = axn.zeros(box, dtype=bool)
    assert mask.at["b", 0].set(True).at["b", [2]].max(True).tolist() == [True, False, True]
    weak = axn.NamedArray(jnp.broadcast_to(1.0, 3), "b")
    assert weak.at["b", 0].set(2.0).array.weak_type
    assert weak.at["b", [0]].set(2.0).array.weak_type


def test_keys_are_updated_too() -> None:
    keys = axn.NamedArray(jax.random.split(jax.random.key(0), 3), ("a",))
    for result in (
        keys.at["a", 0].set(keys["a", 1]),
        keys.at["a", [0]].set(keys["a", 1]),
        keys.updated_slice({"a": 0}, keys["a", 1]),
    ):
        assert (jax.random.key_data(result.array) == jax.random.key_data(keys.array[jnp.array([1, 1, 2])])).all()


def test_starts_of_several_dtypes() -> None:
    with jax.enable_x64(True):
        x = axn.zeros((axn.Axis("a", 2), axn.Axis("b", 3)))
        starts = {"a": jnp.int64(1), "b": np.uint8(2)}
        assert x.updated_slice(starts, 1.0).tolist() == x.at[starts].set(1.0).tolist() == [[0, 0, 0], [0, 0, 1]]
        assert x.at["a", 1, "b", axn.dslice(jnp.int64(2), 3)].set(1.0).tolist() == [[0, 0, 0], [0, 0, 1]]


@pytest.mark.parametrize("wide", [True, False])
def test_indices_of_several_dtypes(wide: bool) -> None:
    with jax.enable_x64(wide), jax.numpy_dtype_promotion("strict"):
        x = axn.zeros(axn.make_axes(a=2, b=3, c=2))
        for dtype in (np.int8, np.uint32, np.int64):
            index = {"b": axn.named(np.array([2, 0], dtype), "a"), "c": jnp.int32(-1)}
            assert x.at[index].add(1.0).tolist() == [[[0, 0], [0, 0], [0, 1]], [[0, 1], [0, 0], [0, 0]]]


def test_a_part_without_elements_is_left_alone() -> None:
    x = axn.ones((axn.Axis("a", 2), axn.Axis("b", 4)))
    for at in (slice(2, 2), [], axn.dslice(jnp.int32(1), 0)):
        assert x.at["b", at].set(5.0).tolist() == x.tolist()
        assert x.at["b", at].get().shape == {"a": 2, "b": 0}


def test_an_array_from_outside_of_a_mesh_is_updated_within(explicit_mesh: Mesh) -> None:
    x = axn.NamedArray(jnp.zeros((2, 3)), ("a", "b"))
    with jax.set_mesh(explicit_mesh):
        for result in (
            x.at["b", 1].set(1.0),
            x.at["b", [1]].set(1.0),
            jax.jit(lambda x: x.updated_slice({"b": 1}, 1.0))(x),
        ):
            assert result.tolist() == [[0, 1, 0], [0, 1, 0]]


@pytest.mark.parametrize("mesh", ["auto_mesh", "explicit_mesh"])
@pytest.mark.parametrize("name", ["add", "max", "set"])
def test_updating_at_many_positions_of_an_axis_in_common(name: str, mesh: str, request: pytest.FixtureRequest) -> None:
    x, at = np.arange(64, dtype=np.float32).reshape(8, 8), np.random.default_rng(0).integers(0, 8, (8, 8))
    expected = getattr(jnp.asarray(x).at[at, np.arange(8)], name)(1.0)
    with jax.set_mesh(request.getfixturevalue(mesh)):
        for over in ({"b": "model"}, {"e": "model"}, {"e": ("data", "model")}):
            placed = axn.shard(axn.named(x, ("b", "e")), over)
            positions = axn.shard(axn.named(at, ("f", "e")), {"f": "data", "e": "model"})
            result = jax.jit(lambda x, at: getattr(x.at["b", at], name)(1.0))(placed, positions)
            np.testing.assert_array_equal(result.array, expected)
