"""Internal. The differences between two arrays, beyond rounding."""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .tolerances import tolerance


def as_numbers(array: Any) -> np.ndarray[Any, Any]:
    """Return an array on the host, in a dtype that NumPy subtracts exactly enough; keys become raw integers."""
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    found = np.asarray(array)
    if jnp.issubdtype(found.dtype, jnp.complexfloating):
        return found.astype(np.complex128)
    # NumPy has no numbers of 8 bits and no bfloat16 of its own; integers of 64 bits keep theirs.
    if jnp.issubdtype(found.dtype, jnp.floating):
        return found.astype(np.float64)
    return found.astype(np.int64) if found.dtype != np.uint64 else found


def differences(
    x: Any, y: Any, *, is_same_program: bool, limit: float | None = None, among: float = 0.0
) -> np.ndarray[Any, Any]:
    """Return the differences beyond the tolerance, as shares of the largest element; zero within the tolerance.

    Two NaN are equal, and so are two infinities of one sign; they differ infinitely from anything else.

    Args:
        x: an array.
        y: another one.
        is_same_program: whether one compiled program computes both.
        limit: the tolerance; by default that of the narrowest dtype.
        among: the largest number of all arrays that are computed together, such as gradients. A gradient that is zero
            up to rounding, such as that of attention's key bias, has a rounding error relative to this number.
    """
    one, other = as_numbers(x), as_numbers(y)
    narrowest = max((x.dtype, y.dtype), key=lambda dtype: tolerance(dtype, is_same_program=False))
    with np.errstate(all="ignore"):
        same = (one == other) | (np.isnan(one) & np.isnan(other))
        gap = np.where(same, 0.0, np.abs(one - other).astype(np.float64))
        gap = np.where(np.isnan(gap), np.inf, gap)
        sizes = np.abs(np.concatenate([np.ravel(one), np.ravel(other)])).astype(np.float64)
        scale = max(sizes[np.isfinite(sizes)], default=0.0)
        share = gap / scale if scale else gap
    if limit is None:
        limit = tolerance(narrowest, is_same_program=is_same_program)
    rounding = tolerance(narrowest, is_same_program=True) * among
    return np.where((share > limit) & (gap > rounding), share, 0.0)


def find_largest(arrays: Iterable[Any]) -> float:
    """Return the largest finite absolute value of some floating arrays; keys and other integers do not count."""
    numbers = [np.abs(as_numbers(x)) for x in arrays if jnp.issubdtype(x.dtype, jnp.inexact)]
    return max((float(x[np.isfinite(x)].max(initial=0.0)) for x in numbers), default=0.0)
