"""Types with more room: for positions along an axis, and for what is computed of narrow numbers."""

from typing import Any

import jax.numpy as jnp
import numpy as np


def widened(positions: Any) -> Any:
    """Give integers of less than 32 bits a type in which all positions along an axis can be counted."""
    dtype = getattr(positions, "dtype", None)
    narrow = dtype is not None and dtype.itemsize < 4 and jnp.issubdtype(dtype, jnp.integer)
    return positions.astype(np.int32) if narrow else positions


def at_least_float32(dtype: Any) -> Any:
    """Return the dtype to compute in: that of float32 or wider numbers themselves, and float32 for all others.

    It is what `jax.numpy.promote_types` gives for float32, also where JAX is told to promote nothing by itself.
    """
    return dtype if jnp.issubdtype(dtype, jnp.inexact) and jnp.dtype(dtype).itemsize >= 4 else jnp.dtype(jnp.float32)


def widened_to(dtype: Any, x: Any) -> Any:
    """Give an array a dtype that is wider than its own, as arithmetic does by itself where JAX lets it."""
    return x.astype(dtype) if x.dtype.itemsize < dtype.itemsize else x
