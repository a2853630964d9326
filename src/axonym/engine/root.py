"""Internal. Square roots of sums of squares, for deviations and norms: the gradient is defined at zero."""

import jax
import jax.numpy as jnp


def root(squares: jax.Array) -> jax.Array:
    """Take the root of sums of squares; at zero, where its slope is infinite, the gradient is zero."""
    rooted: jax.Array = _take_root(squares)
    return rooted


@jax.custom_jvp
def _take_root(squares: jax.Array) -> jax.Array:
    return jnp.sqrt(squares)


@_take_root.defjvp
def _differentiate_root(
    primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    root = _take_root(*primals)
    # Zero is replaced twice: 0 / 0 would spoil second derivatives, though nothing selects it.
    slope = jnp.where(root == 0, 0, 0.5 / jnp.where(root == 0, 1, root))
    return root, tangents[0] * slope
