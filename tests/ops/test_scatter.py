"""How an index by name writes: what becomes of it in JAX."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

import axonym as axn
from tests.laws import primitives


def test_promises_reach_the_scatter() -> None:
    x = axn.zeros((axn.Axis("a", 2), axn.Axis("b", 4)))
    at = axn.named([0, 2], "i")

    def flags(call: Any, name: str) -> tuple[bool, bool]:
        (equation,) = [e for e in jax.make_jaxpr(call)(x).eqns if e.primitive.name.startswith(name)]
        return equation.params["indices_are_sorted"], equation.params["unique_indices"]

    assert flags(lambda x: x.at["b", at].set(1.0), "scatter") == (False, False)
    promised = {"indices_are_sorted": True, "unique_indices": True}
    assert flags(lambda x: x.at["b", at].set(1.0, **promised), "scatter") == (True, True)
    assert flags(lambda x: x.at["b", at].get(**promised), "gather") == (True, True)
    # Indices that ascend along one axis need not when there is another one.
    assert flags(lambda x: x.at["b", at, "a", [0, 1]].set(1.0, **promised), "scatter") == (False, True)
    # No element can be meant twice, which its gradient makes use of.
    assert flags(lambda x: x.at["b", axn.dslice(jnp.int32(1), 2)].set(1.0), "scatter")[1]


def test_a_box_is_one_update_in_place() -> None:
    x = axn.zeros((axn.Axis("a", 2), axn.Axis("b", 4)))
    assert set(primitives(lambda x: x.at["a", 1, "b", 1:3].set(1.0), x)) <= {"broadcast_in_dim", "dynamic_update_slice"}
    assert primitives(lambda x: x.at["b", 0:4].add(x), x) == ["add"]
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
