"""XLA gathers a whole array where one reshard moves mesh axes from several dimensions to another one.

The test holds while XLA has the fault. Where it begins to fail, `faults/gathered_moves.py` can go.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P


def test_a_move_from_two_dimensions_gathers(auto_mesh: jax.sharding.Mesh) -> None:
    def move(*steps: P) -> str:
        @jax.jit
        def run(x: jax.Array) -> jax.Array:
            # The numbers are computed, so that a constraint on them is not one on the argument.
            x = lax.with_sharding_constraint(jnp.sin(x), P(None, "data", "model"))
            for step in steps:
                x = lax.with_sharding_constraint(x, step)
            return x

        shape = jax.ShapeDtypeStruct(
            (8, 64, 64), "float32", sharding=jax.NamedSharding(auto_mesh, P(None, "data", "model"))
        )
        return run.lower(shape).compile().as_text()

    with jax.set_mesh(auto_mesh):
        target = P(("data", "model"), None, None)
        assert "all-gather" in move(target)
        assert "all-gather" not in move(P("data", None, "model"), target)
