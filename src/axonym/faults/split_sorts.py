"""Internal. XLA ends the process over the gradient of a sort of a split axis.

It does so if another axis is split unevenly, on Auto axes, in all versions. There is no reproducer, since it would
end the process that runs the tests.
"""

from collections.abc import Iterable

import jax
import jax.numpy as jnp

from ..layout.constraints import constrain_dimensions, find_free_auto_axes


def gather_sorted(array: jax.Array, dimensions: Iterable[int]) -> jax.Array:
    """On Auto mesh axes, gather the dimensions that are sorted, as the sort does anyway."""
    if not find_free_auto_axes() or not jnp.issubdtype(array.dtype, jnp.inexact):  # no gradient
        return array
    return constrain_dimensions(array, {at % array.ndim: () for at in dimensions})
