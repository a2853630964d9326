"""Square roots of sums of squares, as in deviations and norms: the gradient is defined at zero."""

import jax
import jax.numpy as jnp


def root(squares: jax.Array) -> jax.Array:
    """Take the root of sums of squares; at zero, where its slope is infinite, the gradient is zero."""
    rooted: jax.Array = _rooted(squares)
    return rooted


@jax.custom_jvp
def _rooted(squares: jax.Array) -> jax.Array:
    return jnp.sqrt(squares)


@_rooted.defjvp
def _rooted_jvp(
    primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    root = _rooted(*primals)
    # Zero is replaced twice: 0 / 0 would spoil second derivatives, though nothing selects it.
    slope = jnp.where(root == 0, 0, 0.5 / jnp.where(root == 0, 1, root))
    return root, tangents[0] * slope
