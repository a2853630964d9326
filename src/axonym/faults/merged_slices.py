"""Internal. XLA merges slices and forgets to move their starts into range.

A dynamic slice moves its start so that the slice fits. Two passes of XLA forget this:

- The simplifier turns a slice of a slice into one slice at the sum of both starts, up to jax 0.10
  (`tests/upstream/test_slices_of_slices.py`). A gather or scatter at a single position becomes such slices too. If the
  axis is split, the position is out of range on all devices but one, unseen by users: for a gradient at one position of
  a split axis, each device added the value to its own part.
- A split `dynamic_update_slice` with a start out of range writes nothing, in all versions
  (`tests/upstream/test_split_updates.py`).
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.export import is_symbolic_dim

from ..base.dtypes import widen_positions

MERGES = jax.__version_info__ < (0, 12)


def fit_start(start: Any, size: int, length: int = 1, *, wraps: bool = True) -> Any:
    """Move starts so that a piece of this length fits; negative ones count from the end if `wraps` is set."""
    start = widen_positions(start)
    if wraps and jnp.issubdtype(start.dtype, jnp.signedinteger):
        start = lax.select(start < 0, start + like(size, start), start)
    return lax.clamp(like(0, start), start, like(size - length, start))


def separate(array: jax.Array, count: int) -> jax.Array:
    """Prepare an array for a scatter at `count` positions, so that XLA does not merge the scatter with its operand."""
    if not may_merge(array, count):
        return array
    apart: jax.Array = lax.optimization_barrier(array)
    return apart


def separate_gradient(array: jax.Array, count: int, *, fits: bool = False) -> jax.Array:
    """Prepare an array for a gather at `count` positions, so that its gradient is not merged with others.

    Positions that fit the axis can be out of range only for the part of a device on a mesh. The gradient of a slice is
    also a scatter if `jax.vmap` maps over starts, which this code cannot detect.
    """
    if not jnp.issubdtype(array.dtype, jnp.inexact) or (fits and count_devices(array) == 1):
        return array
    return _with_own_gradient(array) if may_merge(array, count) else array


def keep_gradient_apart(array: jax.Array) -> jax.Array:
    """Compute the gradient of an array, a slice, before XLA can merge it with others.

    If the slice has fewer elements than the axis has parts, XLA otherwise gives it the layout of the array that it is
    added to, and refuses its own program (all versions).
    """
    if not jnp.issubdtype(array.dtype, jnp.inexact) or count_devices(array) == 1:
        return array
    return _with_own_gradient(array)


def may_merge(array: jax.Array, count: int) -> bool:
    """Return whether a device may handle only one of `count` positions."""
    if not MERGES or jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        return False
    return is_symbolic_dim(count) or count <= count_devices(array)


def count_devices(array: jax.Array) -> int:
    """Return the number of devices by which the compiler may split an array."""
    sizes: list[int] = [jax.typeof(array).sharding.mesh.size, jax.sharding.get_abstract_mesh().size]
    return max(1, *sizes)


@jax.custom_jvp
def _with_own_gradient(array: jax.Array) -> jax.Array:
    return array


@_with_own_gradient.defjvp
def _(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    return primals[0], lax.optimization_barrier(tangents[0])


def like(value: int, other: object) -> Any:
    """Return a number, or a symbolic size, in the dtype of an array of integers."""
    # NumPy makes a literal of the program, which JAX would trace as an operation; it knows no symbolic sizes.
    make: Any = jnp.asarray if is_symbolic_dim(value) else np.asarray
    return make(value, jnp.result_type(other))
