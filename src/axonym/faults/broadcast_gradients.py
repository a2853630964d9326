"""Internal. XLA may gather the rows of all devices before the transpose of an explicit broadcast.

The transpose is the sum over rows in the gradient of a bias. All versions, on Auto axes. There is no reproducer of a
few lines: `tests/nn/test_norm.py` counts what the gradient of a norm sends.
"""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp


def add_then_broadcast(
    add: Callable[[jax.Array, jax.Array], jax.Array],
    terms: Sequence[jax.Array],
    shape: tuple[int, ...],
) -> jax.Array:
    """Add terms; the last may lack dimensions, so that the sum broadcasts it and its transpose is a reshape."""
    return jnp.broadcast_to(functools.reduce(add, terms), shape)
