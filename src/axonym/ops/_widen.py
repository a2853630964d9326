"""Integers in a type that has room for all positions along an axis."""

from typing import Any

import jax.numpy as jnp
import numpy as np


def widened(positions: Any) -> Any:
    """Give integers of less than 32 bits a type in which all positions along an axis can be counted."""
    dtype = getattr(positions, "dtype", None)
    narrow = dtype is not None and dtype.itemsize < 4 and jnp.issubdtype(dtype, jnp.integer)
    return positions.astype(np.int32) if narrow else positions
