"""Functions that JAX cannot type on Explicit axes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import axonym as axn
from axonym.engine import auto
from tests.laws import assert_close


@pytest.mark.sampled
@pytest.mark.parametrize(
    "value",
    [
        pytest.param(lambda x, y: x.at["a", 1].set(y), id="update"),
        pytest.param(lambda x, y: x.at["a", axn.named(jnp.array([3, 1, 3, 0]), "b")].add(y), id="scatter"),
        pytest.param(lambda x, y: axn.insert(x, 2, y, "a"), id="insert"),
    ],
)
@pytest.mark.parametrize(
    "made",
    [
        pytest.param(lambda y: y, id="itself"),
        pytest.param(lambda y: axn.named(y.array, "b"), id="named"),
        pytest.param(lambda y: axn.flip(-y, "b"), id="computed"),
    ],
)
def test_eager_gradients_of_what_was_made_before_an_explicit_mesh_lie_on_it(
    explicit_mesh: jax.sharding.Mesh, value: Any, made: Any
) -> None:
    x, y = axn.named(jnp.arange(-16.0, 16).reshape(8, 4), ("a", "b")), axn.named(jnp.arange(4.0), "b")
    gradient = jax.grad(lambda y, x: (value(x, made(y)) ** 2).sum().scalar())
    expected = jax.jit(gradient)(y, x)
    with axn.set_mesh(explicit_mesh), axn.axis_mapping({"a": "data", "b": "model"}):
        found = gradient(y, axn.shard(x))
        assert jax.typeof(found.array).sharding.mesh == jax.typeof(axn.shard(x).array).sharding.mesh
        assert_close(y - 0.5 * found, y - 0.5 * expected)


def test_a_function_is_computed_as_on_auto_axes(explicit_mesh: jax.sharding.Mesh) -> None:
    numbers = np.arange(32.0, dtype=np.float32).reshape(8, 4)[::-1]
    x = jax.device_put(numbers, NamedSharding(explicit_mesh, PartitionSpec("data", None)))
    # A sort along a split dimension is one of those that have no type there.
    found = auto.local(lambda x: jnp.sort(x, axis=0), [x], [("data",), ()])
    np.testing.assert_array_equal(found, np.sort(numbers, axis=0))
    assert jax.typeof(found).sharding.spec == PartitionSpec("data", None)


def test_what_cannot_be_computed_in_shards_is_gathered_along_its_dimension_only(
    explicit_mesh: jax.sharding.Mesh,
) -> None:
    x = jax.device_put(jnp.ones((8, 4)), NamedSharding(explicit_mesh, PartitionSpec("data", "model")))
    assert jax.typeof(auto.whole(x, [0])).sharding.spec == PartitionSpec(None, "model")
