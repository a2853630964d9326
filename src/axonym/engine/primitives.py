"""Internal. Arithmetic directly in primitives, for the functions that programs trace most often.

JAX traces a jitted function for each shape before inlining it. Most of `jax.numpy` is jitted, and so are the operators
of arrays: an addition takes 0.3 milliseconds. The derivative of a loop's step is traced under another mesh than the
step itself, which costs this time again. The functions here give the same program without separate traces.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..base.dtypes import at_least_float32, match_ranks

Number = float | int
Array = jax.Array
Binary = Callable[[Array | Number, Array | Number], Array]

# Classes are compared: to Python, a `np.float64` is a float too, but it has a dtype. Under `jax.disable_jit`, operands
# are those of the user.
_REAL = (bool, int, float)


def _make_binary(primitive: Callable[..., Array], general: Callable[..., Array]) -> Binary:
    """Make a function of two operands call a primitive if they are floats of one dtype, or Python numbers.

    A scalar beside an array is left to `jax.numpy`, which promotes it whatever JAX may promote.
    """

    def call(x: Any, y: Any) -> Array:
        # A complex number makes the result complex, whatever the array is.
        if complex in (x.__class__, y.__class__):
            return general(x, y)
        x_is_number = x.__class__ in _REAL
        like = y if x_is_number else x
        if not jnp.issubdtype(like.dtype, jnp.inexact):
            return general(x, y)
        # NumPy makes the constant: `jnp.asarray` would trace a conversion.
        if x_is_number:
            return primitive(np.array(x, y.dtype), y)
        if y.__class__ in _REAL:
            return primitive(x, np.array(y, x.dtype))
        if x.dtype != y.dtype or bool(x.ndim) != bool(y.ndim):
            return general(x, y)
        return primitive(*match_ranks(x, y))

    return call


add = _make_binary(lax.add, jnp.add)
subtract = _make_binary(lax.sub, jnp.subtract)
multiply = _make_binary(lax.mul, jnp.multiply)
divide = _make_binary(lax.div, jnp.true_divide)

# The function that replaces each of these of `jax.numpy`.
BY_FUNCTION: dict[Any, Binary] = {
    jnp.add: add,
    jnp.subtract: subtract,
    jnp.multiply: multiply,
    jnp.true_divide: divide,
}


def equal(x: Array, y: Array) -> Array:
    """Compare numbers, as `jnp.equal` does."""
    if x.dtype != y.dtype:
        return jnp.equal(x, y)
    return lax.eq(*match_ranks(x, y))


def where(condition: Array, x: Array, y: Array | Number) -> Array:
    """Choose elements of `x` where a condition is true, and of `y` elsewhere, as `jnp.where` does."""
    if not _has_type_of(condition, x):
        return jnp.where(condition, x, y)
    if isinstance(y, Number):
        return lax.select(condition, x, lax.full_like(x, y))
    if x.dtype != y.dtype or not _has_type_of(y, x):
        return jnp.where(condition, x, y)
    return lax.select(condition, x, y)


def _has_type_of(x: Any, y: Any) -> bool:
    """Return whether arrays have one shape, and on an Explicit mesh one layout."""
    mine, other = jax.typeof(x), jax.typeof(y)
    same: bool = mine.shape == other.shape and mine.sharding == other.sharding
    return same


def total(x: Array, at: Sequence[int]) -> Array:
    """Add up floats over dimensions, and keep these with size 1; sum narrow floats in float32, as `jnp.sum` does."""
    return _wide_total(x, _normalize_dims(x, at)).astype(x.dtype)


def mean(x: Array, at: Sequence[int]) -> Array:
    """Take the mean of floats over dimensions, and keep these with size 1; compute narrow floats in float32."""
    dims = _normalize_dims(x, at)
    count = math.prod([x.shape[dim] for dim in dims])
    if not isinstance(count, int):  # a symbolic size
        return x.mean(dims, keepdims=True)
    return divide(_wide_total(x, dims), count).astype(x.dtype)


def largest(x: Array, at: Sequence[int]) -> Array:
    """Take the maximum of floats over dimensions, kept with size 1; minus infinity if there are no elements."""
    dims = _normalize_dims(x, at)
    found = lax.reduce_max(x, dims)
    return lax.expand_dims(lax.max(np.array(-np.inf, x.dtype), found), dims)


def _normalize_dims(x: Array, at: Sequence[int]) -> list[int]:
    """Count dimensions from the first, as primitives do."""
    return [dim % x.ndim for dim in at]


def _wide_total(x: Array, dims: Sequence[int]) -> Array:
    """Add up in float32 or wider."""
    return lax.expand_dims(lax.reduce_sum(x.astype(at_least_float32(x.dtype)), dims), dims)
