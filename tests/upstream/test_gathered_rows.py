"""XLA gathers rows that were looked up, instead of exchanging parts of them, if ids are split along two axes.

The test holds on all versions so far. Where it begins to fail, `faults/gathered_rows.py` can go.
"""

import re

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec


@pytest.mark.parametrize("is_right", [False, True])
def test_ids_that_are_split_along_two_axes(is_right: bool) -> None:
    mesh = jax.make_mesh((2, 2, 2), ("data", "context", "model"), axis_types=(AxisType.Auto,) * 3)

    def on(x: jax.Array, *axes: str | None) -> jax.Array:
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec(*axes)))

    @jax.jit
    def look_up(table: jax.Array, ids: jax.Array) -> jax.Array:
        table, ids = on(table, None, "data"), on(ids, "data", "context")
        if is_right:  # what Axonym adds: where rows are looked up, ids are not split over the mesh axis of the columns
            ids = on(ids, None, "context")
        rows = jnp.take(table, ids, axis=0)
        if is_right:
            rows = on(rows, None, "context", "data")
        return on(rows, "data", "context", None)

    program = look_up.lower(jnp.ones((512, 64)), jnp.zeros((8, 32), jnp.int32)).compile().as_text() or ""
    assert bool(re.search(r"f32\[[\d,]*\]\S* all-gather", program)) != is_right
