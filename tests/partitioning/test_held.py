"""Leaves of trees that are arrays, or named arrays that hold one."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import axonym as axn
from axonym.partitioning import held

NAMED = axn.arange(axn.Axis("batch", 8))


def test_arrays_with_and_without_names_and_other_leaves() -> None:
    plain = np.arange(3)
    assert [held.holds_array(leaf) for leaf in (NAMED, plain, jnp.ones(2), "text", None, 3)] == [True] * 3 + [False] * 3
    assert held.array_of(NAMED) is NAMED.array
    assert held.array_of(plain) is plain


def test_arrays_are_put_back_where_they_were() -> None:
    first, text, last = held.fill([NAMED, "text", np.arange(3)], [jnp.zeros(8), jnp.ones(3)])
    assert (first.names, first.tolist(), text, last.tolist()) == (("batch",), [0.0] * 8, "text", [1.0] * 3)


def test_a_placeholder_keeps_shape_dtype_and_names() -> None:
    empty = held.without_data(NAMED)
    assert empty.names == ("batch",)
    assert empty.array == jax.ShapeDtypeStruct((8,), jnp.int32)
    assert held.without_data("text") == "text"


def test_a_layout_is_read_from_the_type(explicit_mesh: jax.sharding.Mesh) -> None:
    x = jax.device_put(jnp.ones((8, 4)), NamedSharding(explicit_mesh, PartitionSpec("data", None)))
    assert held.spec_of(x) == PartitionSpec("data", None)
    assert held.spec_of(np.ones(3)) is None
