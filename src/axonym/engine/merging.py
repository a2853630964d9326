"""Starts in range, and what keeps XLA from merging slices where it gets that wrong.

A dynamic slice moves its start so that the slice fits. Two passes of XLA forget this; `tests/upstream` shows both:

- Of a slice of a slice, up to jax 0.10, the simplifier makes one slice at the sum of both starts. A gather or scatter
  at a single position becomes such slices too; its position is out of range on all devices but one where the axis is
  split, which no user sees. So what a gradient adds at one position of a split axis, it added on each device.
- A split `dynamic_update_slice` with a start out of range writes nothing, in all versions.

Up to jax 0.10, XLA also remembers what it put around an array that is split, to compute windows that reach over the
ends of blocks, but not the value that it put there: of two paddings of one array, or of its cumulative sum and its
cumulative product, the second has the value of the first at its ends.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.export import is_symbolic_dim

from ..dtypes import widened

_MERGES = jax.__version_info__ < (0, 12)


def fitted(start: Any, size: int, length: int = 1, *, wraps: bool = True) -> Any:
    """Move starts so that a piece of this length fits; negative ones count from the end if `wraps` is set."""
    start = widened(start)
    if wraps and jnp.issubdtype(start.dtype, jnp.signedinteger):
        start = lax.select(start < 0, start + like(size, start), start)
    return lax.clamp(like(0, start), start, like(size - length, start))


def settled(array: jax.Array, count: int) -> jax.Array:
    """Prepare an array for a scatter at `count` positions, so that it is not merged with what made the array."""
    if not may_merge(array, count):
        return array
    apart: jax.Array = lax.optimization_barrier(array)
    return apart


def settled_gradient(array: jax.Array, count: int, *, fits: bool = False) -> jax.Array:
    """Prepare an array for a gather at `count` positions, so that its gradient is not merged with others.

    Positions that fit are out of range only on the devices of a mesh. The gradient of a slice, too, is a scatter if
    `jax.vmap` maps over starts, which nothing shows.
    """
    if not jnp.issubdtype(array.dtype, jnp.inexact) or (fits and _devices(array) == 1):
        return array
    if may_merge(array, count):
        return _with_own_gradient(array)
    return array


def with_gradient_apart(array: jax.Array) -> jax.Array:
    """Keep the gradient of an array as it is made, a slice, until it is made.

    Where the slice is shorter than the axis is split, XLA otherwise gives it the layout of what it is added to, and
    refuses its own program (all versions).
    """
    if not jnp.issubdtype(array.dtype, jnp.inexact) or _devices(array) == 1:
        return array
    return _with_own_gradient(array)


def may_merge(array: jax.Array, count: int) -> bool:
    """Return whether a device may have to look at only one of `count` positions."""
    if not _MERGES or jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        return False
    return is_symbolic_dim(count) or count <= _devices(array)


def _devices(array: jax.Array) -> int:
    """Return the number of devices by which the compiler may split an array."""
    sizes: list[int] = [jax.typeof(array).sharding.mesh.size, jax.sharding.get_abstract_mesh().size]
    return max(1, *sizes)


@jax.custom_jvp
def _with_own_gradient(array: jax.Array) -> jax.Array:
    return array


@_with_own_gradient.defjvp
def _(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    return primals[0], lax.optimization_barrier(tangents[0])


def unshared(array: jax.Array) -> jax.Array:
    """Prepare an array for an operation on windows, so that it does not get the padding of another operation."""
    if not _MERGES or _devices(array) == 1:
        return array
    own: jax.Array = lax.optimization_barrier(array)
    return own


def like(value: int, other: object) -> Any:
    """Return a number, or a symbolic size, in the dtype of an array of integers."""
    dtype = jnp.result_type(other)
    if is_symbolic_dim(value):
        return jnp.asarray(value, dtype)
    return np.asarray(value, dtype)
