"""What JAX does at the moment."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from axonym.layout import tracing


def test_an_eager_gradient_and_an_eager_vmap_are_no_trace() -> None:
    seen: list[bool] = []

    def look(x: jax.Array) -> jax.Array:
        seen.append(tracing.tracing())
        return (x * x).sum()

    x = jnp.ones((2, 3))
    look(x)
    jax.grad(look)(x)
    jax.vmap(look)(x)
    jax.jit(look)(x)
    jax.make_jaxpr(lambda x: look(x))(x)
    assert seen == [False, False, False, True, True]


def test_a_transformation_is_active_where_arrays_cannot_be_moved() -> None:
    seen: list[bool] = []

    def look(x: jax.Array) -> jax.Array:
        seen.append(tracing.transforming())
        return (x * x).sum()

    x = jnp.ones((2, 3))
    look(x)
    jax.grad(look)(x)
    jax.jit(look)(x)
    assert seen == [False, True, True]


def test_a_guard_of_transfers_does_not_mind() -> None:
    with jax.transfer_guard("disallow"):
        assert not tracing.tracing()


def test_a_constant_is_made_to_vary_over_the_axes_of_a_shard_map(auto_mesh: jax.sharding.Mesh) -> None:
    kinds: list[set[str]] = []

    def body(x: jax.Array) -> jax.Array:
        one = tracing.varying(jnp.ones(()), ["data"])
        again = tracing.varying(one, ["data"])
        kinds.extend(set(jax.typeof(array).mat.varying) for array in (one, again))
        return x * again

    split = PartitionSpec("data")
    x = jnp.arange(8.0)
    found = jax.jit(jax.shard_map(body, mesh=auto_mesh, in_specs=split, out_specs=split))(x)
    assert kinds == [{"data"}, {"data"}]
    assert found.tolist() == x.tolist()
