"""Tolerances, by dtype, within which a claim calls numbers equal."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

__all__ = ["TOLERANCES", "tolerance"]

TOLERANCES: Mapping[str, tuple[float, float]] = {
    "float64": (1e-13, 1e-10),
    "complex128": (1e-13, 1e-10),
    "float32": (4e-6, 1e-4),
    "complex64": (4e-6, 1e-4),
    "float16": (4e-3, 2e-2),
    "bfloat16": (2e-2, 1e-1),
}
"""By dtype, how far apart two numbers may be as a share of the largest number of their array: where one program
computes both, as where an example changes and another one must not, and where two programs do, as under two layouts.
Narrower floats, of 8 bits or fewer, may differ by a quarter and by a half; integers and booleans not at all."""


def tolerance(dtype: Any, *, is_same_program: bool) -> float:
    """Return how far apart equal numbers may be, as a share of the largest one.

    Args:
        dtype: the dtype of the compared numbers, or the narrowest dtype in which they were computed.
        is_same_program: whether one compiled program computes both.

    Examples:
        >>> axn.testing.tolerance(jnp.float32, is_same_program=True)
        4e-06
    """
    if not jnp.issubdtype(dtype, jnp.inexact):
        return 0.0
    narrow = 0.25, 0.5
    return TOLERANCES.get(jnp.dtype(dtype).name, narrow)[not is_same_program]
