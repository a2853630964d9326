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
from .core import facts, shape_of, wrap
from .errors import AxisClashError, OperandError, message
from .ops import _lift

__all__ = ["arange", "full", "full_like", "one_hot", "ones", "ones_like", "zeros", "zeros_like"]


def full(shape: AxisSpec, fill_value: Any, dtype: DTypeLike | None = None) -> NamedArray:
    """Make an array of one value.

    Raises:
        OperandError: if `fill_value` is no scalar.
    """
    _check_scalar("full", fill_value)
    return _filled("full", shape, fill_value, dtype)


def _filled(function: str, shape: AxisSpec, fill_value: Any, dtype: DTypeLike | None) -> NamedArray:
    axes = spec(shape, function)
    sizes, names = tuple(axis.size for axis in axes), tuple(axis.name for axis in axes)
    return NamedArray(jnp.full(sizes, fill_value, dtype, out_sharding=layout.explicit_sharding(names, sizes)), names)


def _check_scalar(function: str, fill_value: Any) -> None:
    if isinstance(fill_value, NamedArray) or jnp.ndim(fill_value):
        problem = f"the fill value must be a scalar, not {type(fill_value).__name__}"
        raise OperandError(message(function, problem, hint="repeat an array along new axes: x.broadcast_axis(...)"))


def zeros(shape: AxisSpec, dtype: DTypeLike | None = None) -> NamedArray:
    """Make an array of zeros, in JAX's default float dtype unless told otherwise."""
    return _filled("zeros", shape, 0, float if dtype is None else dtype)


def ones(shape: AxisSpec, dtype: DTypeLike | None = None) -> NamedArray:
    """Make an array of ones, in JAX's default float dtype unless told otherwise."""
    return _filled("ones", shape, 1, float if dtype is None else dtype)


def _parts(function: str, x: NamedArray) -> tuple[jax.Array, tuple[str, ...]]:
    """Return the array and the names of an argument that must have names, and all of them a dimension."""
    if not isinstance(x, NamedArray):
        raise _lift.unnamed(function, x)
    shape_of(function, x.array, x.names)
    return x.array, x.names


def full_like(x: NamedArray, fill_value: Any, dtype: DTypeLike | None = None) -> NamedArray:
    """Make an array of one value with the axes, dtype and sharding of another."""
    array, names = _parts("full_like", x)
    _check_scalar("full_like", fill_value)
    return wrap(x, layout.laid_out_like(jnp.full_like(array, fill_value, dtype), array), names)


def zeros_like(x: NamedArray, dtype: DTypeLike | None = None) -> NamedArray:
    """Make an array of zeros with the axes, dtype and sharding of another."""
    array, names = _parts("zeros_like", x)
    return wrap(x, layout.laid_out_like(jnp.zeros_like(array, dtype), array), names)


def ones_like(x: NamedArray, dtype: DTypeLike | None = None) -> NamedArray:
    """Make an array of ones with the axes, dtype and sharding of another."""
    array, names = _parts("ones_like", x)
    return wrap(x, layout.laid_out_like(jnp.ones_like(array, dtype), array), names)


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
    sharding = layout.explicit_sharding(names, sizes)
    return NamedArray(shifted if sharding is None else jax.reshard(shifted, sharding), names)


def one_hot(x: NamedArray, class_axis: Axis, *, dtype: DTypeLike | None = None) -> NamedArray:
    """Turn class numbers into vectors over `class_axis`, the last axis: one at the class and zero elsewhere.

    A number outside of the axis gives zeros.

    Raises:
        AxisClashError: if `x` has the class axis already.
    """
    array, names = _parts("one_hot", x)
    (classes,) = spec(class_axis, "one_hot")
    if classes.name in names:
        problem = f"the array already has axis {classes.name!r}"
        raise AxisClashError(message("one_hot", problem, f"array has: {facts(x)}"))
    hot = jax.nn.one_hot(array, classes.size, dtype=float if dtype is None else dtype)
    return wrap(x, hot, (*names, classes.name))
