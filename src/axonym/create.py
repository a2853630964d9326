"""Make named arrays from axes.

With a mesh and an axis mapping in context, and Explicit mesh axes, results are laid out by the mapping from the start;
on Auto axes the compiler lays them out by their use.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from . import layout
from .array import NamedArray
from .axis import Axis, AxisSpec, spec
from .core import facts, wrap
from .errors import AxisClashError, message

__all__ = ["arange", "full", "full_like", "one_hot", "ones", "ones_like", "zeros", "zeros_like"]


def full(shape: AxisSpec, fill_value: Any, dtype: DTypeLike | None = None) -> NamedArray:
    """Make an array of one value."""
    axes = spec(shape, "full")
    sizes, names = tuple(axis.size for axis in axes), tuple(axis.name for axis in axes)
    return NamedArray(jnp.full(sizes, fill_value, dtype, out_sharding=layout.explicit_sharding(names, sizes)), names)


def zeros(shape: AxisSpec, dtype: DTypeLike | None = None) -> NamedArray:
    """Make an array of zeros, in JAX's default float dtype unless told otherwise."""
    return full(shape, 0, float if dtype is None else dtype)


def ones(shape: AxisSpec, dtype: DTypeLike | None = None) -> NamedArray:
    """Make an array of ones, in JAX's default float dtype unless told otherwise."""
    return full(shape, 1, float if dtype is None else dtype)


def full_like(x: NamedArray, fill_value: Any, dtype: DTypeLike | None = None) -> NamedArray:
    """Make an array of one value with the axes, dtype and sharding of another."""
    return wrap(x, jnp.full_like(x.array, fill_value, dtype), x.names)


def zeros_like(x: NamedArray, dtype: DTypeLike | None = None) -> NamedArray:
    """Make an array of zeros with the axes, dtype and sharding of another."""
    return wrap(x, jnp.zeros_like(x.array, dtype), x.names)


def ones_like(x: NamedArray, dtype: DTypeLike | None = None) -> NamedArray:
    """Make an array of ones with the axes, dtype and sharding of another."""
    return wrap(x, jnp.ones_like(x.array, dtype), x.names)


def arange(axis: AxisSpec, *, start: Any = 0, step: Any = 1, dtype: DTypeLike | None = None) -> NamedArray:
    """Count from `start` in steps, over one axis or in row-major order over several; both may be traced.

    Example:
        >>> axn.arange(axn.Axis("x", 4), start=2)
        NamedArray(int32[x=4])
        [2 3 4 5]
    """
    axes = spec(axis, "arange")
    sizes, names = tuple(a.size for a in axes), tuple(a.name for a in axes)
    dtype = jnp.result_type(start, step) if dtype is None else dtype
    count = jax.lax.iota(dtype, math.prod(sizes)).reshape(sizes)
    counted = count if isinstance(step, int) and step == 1 else count * jnp.asarray(step, dtype)
    shifted = counted if isinstance(start, int) and start == 0 else counted + jnp.asarray(start, dtype)
    return NamedArray(shifted, names)


def one_hot(x: NamedArray, class_axis: Axis, *, dtype: DTypeLike | None = None) -> NamedArray:
    """Turn class numbers into vectors over `class_axis`, the last axis: one at the class and zero elsewhere.

    A number outside of the axis gives zeros.

    Raises:
        AxisClashError: if `x` has the class axis already.
    """
    if class_axis.name in x.names:
        problem = f"the array already has axis {class_axis.name!r}"
        raise AxisClashError(message("one_hot", problem, f"array has: {facts(x)}"))
    hot = jax.nn.one_hot(x.array, class_axis.size, dtype=float if dtype is None else dtype)
    return wrap(x, hot, (*x.names, class_axis.name))
