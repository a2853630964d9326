"""XLA merges a dynamic slice of a dynamic slice, and forgets to move the inner start into range.

Each test holds while jax 0.10 has the fault, and asks for the right result of later versions. Where one begins to fail
on a version older than that, the fault is gone there: lower the bound here and `MERGES` in
`faults/merged_slices.py`, which keeps Axonym from emitting what is merged.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from axonym.faults import merged_slices

FAULTY = jax.__version_info__ < (0, 12)


def check(found: Any, right: Any, wrong: Any) -> None:
    np.testing.assert_array_equal(np.asarray(found), wrong if FAULTY else right)


def of_slice(fn: Callable[..., jax.Array]) -> Any:
    """Apply a compiled function to four elements, 6 to 9, and to 7, which is none of their places."""
    call = jax.jit(lambda x, start, at: fn(lax.dynamic_slice(x, (start,), (4,)), at))
    return call(jnp.arange(16.0), 6, jnp.int32(7))


def test_the_workaround_is_in_place_where_the_fault_is() -> None:
    assert merged_slices.MERGES == FAULTY


def test_a_slice_of_a_slice() -> None:
    check(of_slice(lambda x, at: lax.dynamic_slice(x, (at,), (2,))), [8, 9], [13, 14])


def test_a_gather_of_one_element_of_a_slice() -> None:
    check(of_slice(lambda x, at: x.at[at].get(mode="clip")), 9, 13)


@pytest.mark.parametrize("name", ["add", "set"])
def test_a_scatter_of_one_element_into_a_slice(name: str) -> None:
    """It is out of range, and so dropped."""
    check(of_slice(lambda x, at: getattr(x.at[at], name)(5, mode="drop")), [6, 7, 8, 9], [6, 7, 8, 13])


def test_a_scatter_of_one_element_into_an_array_that_is_split_just_before(explicit_mesh: Mesh) -> None:
    """The position is out of range on all devices but one; each of them writes what belongs to that one."""

    def add(x: jax.Array) -> jax.Array:
        split = jax.reshard(x * 2, PartitionSpec(("data", "model")))
        one = lambda x: x.at[jnp.array([5])].add(100)  # noqa: E731
        result: jax.Array = jax.sharding.auto_axes(one, out_sharding=PartitionSpec(("data", "model")))(split)
        return result

    with jax.set_mesh(explicit_mesh):
        found = jax.jit(add)(jax.device_put(np.arange(16.0), PartitionSpec()))
    right = np.arange(16.0) * 2
    right[5] += 100
    wrong = right.copy()
    wrong[[1, 3, 6, 8, 10, 12, 14]] = 10
    check(found, right, wrong)


def test_the_gradient_of_one_element_beside_that_of_all(explicit_mesh: Mesh) -> None:
    def loss(x: jax.Array) -> jax.Array:
        one = lambda x: x.at[jnp.array([5])].get(mode="clip")  # noqa: E731
        picked = jax.sharding.auto_axes(one, out_sharding=PartitionSpec())(x)
        return (jax.reshard(x, PartitionSpec()) ** 2).sum() + 100 * picked.sum()

    with jax.set_mesh(explicit_mesh):
        found = jax.jit(jax.grad(loss))(jax.device_put(np.arange(16.0), PartitionSpec(("data", "model"))))
    right = np.arange(16.0) * 2
    right[5] += 100
    wrong = right.copy()
    wrong[[1, 3, 6, 8, 10, 12, 14]] = 10
    check(found, right, wrong)


def test_a_barrier_keeps_them_apart() -> None:
    """That is what Axonym does before a scatter, and to gradients of gathers."""
    kept = of_slice(lambda x, at: lax.optimization_barrier(x).at[at].add(5, mode="drop"))
    np.testing.assert_array_equal(kept, [6, 7, 8, 9])
