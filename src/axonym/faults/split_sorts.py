"""Internal. XLA ends the process over the gradient of a sort of a split axis.

It does so beside an axis that is split unevenly, on Auto axes, in all versions. There is no reproducer, since it would
end the process that runs the tests. XLA gathers the whole operand of `jax.lax.top_k` on each device, but sorts each
shard where it is.
"""

from collections.abc import Iterable

import jax
import jax.numpy as jnp

from ..layout.constraints import constrain_dimensions, find_free_auto_axes
from ..layout.context import context_mesh, current_mapping


def gather_sorted(array: jax.Array, dimensions: Iterable[int]) -> jax.Array:
    """On Auto mesh axes, gather the dimensions that are sorted, as the sort does anyway."""
    if not find_free_auto_axes() or not jnp.issubdtype(array.dtype, jnp.inexact):
        return array
    return constrain_dimensions(array, {at % array.ndim: () for at in dimensions})


def gathers_top_k() -> bool:
    """Return whether XLA may gather the operand of a `jax.lax.top_k`, so that a sort sends less."""
    return current_mapping() is not None and context_mesh() is not None
