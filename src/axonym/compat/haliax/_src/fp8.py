"""Scales of products in 8-bit floating point."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

__all__ = ["compute_scale"]


def compute_scale(
    amax: jax.Array, scale: jax.Array, fp8_max: ArrayLike, margin: int = 0
) -> jax.Array:
    """Return the scale at which the largest magnitude `amax` becomes the largest number, less `margin` bits.

    Where `amax` is not a positive number, the old scale is kept. Values are divided by the scale.
    """
    wanted = amax * 2.0**margin / fp8_max
    return jnp.where((amax > 0) & jnp.isfinite(amax), wanted, scale)
