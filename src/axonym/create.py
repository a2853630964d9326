"""Make named arrays from axes.

With a mesh and an axis mapping in context, results on Explicit mesh axes have the layout of the mapping; on Auto axes,
the compiler chooses a layout by how they are used.

Functions have the names of `jax.numpy`, and take axes where it takes shapes and lengths.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from .array import NamedArray
from .axis import (
    Axis,
    AxisSelector,
    AxisSpec,
    names_and_sizes,
    not_in_a_tuple,
    selector,
    shown,
    sized,
    spec,
)
from .base.calls import explain_calls
from .base.dtypes import refuse_dtype, widen_positions
from .base.kinds import type_text
from .engine import checks, kernels
from .engine.batched import apply_batched
from .engine.core import Core, Operand, facts, shape_of, wrap
from .engine.operands import integers, payload
from .errors import AxisClashError, AxisError, OperandError, message
from .layout import constraints, explicit

__all__ = [
    "arange",
    "eye",
    "fromfunction",
    "full",
    "full_like",
    "geomspace",
    "linspace",
    "logspace",
    "one_hot",
    "ones",
    "ones_like",
    "tri",
    "zeros",
    "zeros_like",
]


def full(shape: AxisSpec, fill_value: ArrayLike, dtype: DTypeLike | None = None) -> NamedArray:
    """Make an array of one value.

    Args:
        shape: the axes of the array, with their sizes.
        fill_value: the value, a number or an array without dimensions.
        dtype: by default that of the value.

    Examples:
        >>> axn.full({"x": 3}, 7)
        NamedArray(int32[x=3])
        [7 7 7]
    """
    if isinstance(fill_value, Axis):
        raise not_in_a_tuple("full", *spec(shape, "full"), fill_value)
    _check_scalar("full", fill_value)
    return _fill("full", shape, fill_value, dtype)


def _fill(
    function: str, shape: AxisSpec, fill_value: ArrayLike, dtype: DTypeLike | None
) -> NamedArray:
    """Make an array of one value, without a check of the value."""
    axes = spec(shape, function)
    names, sizes = names_and_sizes(axes)
    sharding = constraints.explicit_sharding(names, sizes, is_strict=False)

    # The value is an operand: as a constant, each new value would be a new program.
    def fill(value: ArrayLike) -> jax.Array:
        return jnp.full(sizes, value, dtype, out_sharding=sharding)

    try:
        return NamedArray(kernels.run(fill, fill_value), names)
    except TypeError:
        # `ones(Batch, Embed)`: the second axis became the dtype.
        if isinstance(dtype, Axis):
            raise not_in_a_tuple(function, *axes, dtype) from None
        refuse_dtype(function, dtype)
        raise


def _check_scalar(function: str, fill_value: Operand) -> None:
    if isinstance(fill_value, Core) or jnp.ndim(fill_value):
        problem = f"the fill value must be a scalar, not {type_text(fill_value)}"
        hint = "repeat an array along new axes: x.broadcast_axis(...)"
        raise OperandError(message(function, problem, hint=hint))


def zeros(shape: AxisSpec, dtype: DTypeLike | None = None) -> NamedArray:
    """Make an array of zeros.

    Args:
        shape: the axes of the array, with their sizes.
        dtype: by default JAX's float dtype.

    Examples:
        >>> axn.zeros({"x": 3})
        NamedArray(float32[x=3])
        [0. 0. 0.]
    """
    return _fill("zeros", shape, 0, float if dtype is None else dtype)


def ones(shape: AxisSpec, dtype: DTypeLike | None = None) -> NamedArray:
    """Make an array of ones.

    Args:
        shape: the axes of the array, with their sizes.
        dtype: by default JAX's float dtype.

    Examples:
        >>> axn.ones({"x": 3})
        NamedArray(float32[x=3])
        [1. 1. 1.]
    """
    return _fill("ones", shape, 1, float if dtype is None else dtype)


def _get_array(function: str, x: NamedArray) -> jax.Array:
    """Check that an argument is a NamedArray, and return its array."""
    if not isinstance(x, NamedArray):
        raise checks.no_names(function, x)
    shape_of(function, x.array, x.names)
    return x.array


def full_like(x: NamedArray, fill_value: ArrayLike, dtype: DTypeLike | None = None) -> NamedArray:
    """Make an array of one value with the axes, dtype and sharding of another.

    Args:
        x: the other array.
        fill_value: the value, a number or an array without dimensions.
        dtype: by default that of `x`.

    Examples:
        >>> axn.full_like(axn.ones({"x": 3}), 7)
        NamedArray(float32[x=3])
        [7. 7. 7.]
    """
    array = _get_array("full_like", x)
    _check_scalar("full_like", fill_value)
    return _fill_like(x, array, fill_value, dtype)


def _fill_like(
    x: NamedArray, array: jax.Array, fill_value: ArrayLike, dtype: DTypeLike | None
) -> NamedArray:
    def fill(value: ArrayLike) -> jax.Array:
        return jnp.full_like(array, value, dtype)

    made = kernels.run(fill, fill_value)
    return wrap(x, explicit.reshard_like(made, array), x.names)


def zeros_like(x: NamedArray, dtype: DTypeLike | None = None) -> NamedArray:
    """Make an array of zeros with the axes, dtype and sharding of another.

    Args:
        x: the other array.
        dtype: by default that of `x`.

    Examples:
        >>> axn.zeros_like(axn.ones({"x": 3}))
        NamedArray(float32[x=3])
        [0. 0. 0.]
    """
    return _fill_like(x, _get_array("zeros_like", x), 0, dtype)


def ones_like(x: NamedArray, dtype: DTypeLike | None = None) -> NamedArray:
    """Make an array of ones with the axes, dtype and sharding of another.

    Args:
        x: the other array.
        dtype: by default that of `x`.

    Examples:
        >>> axn.ones_like(axn.zeros({"x": 3}))
        NamedArray(float32[x=3])
        [1. 1. 1.]
    """
    return _fill_like(x, _get_array("ones_like", x), 1, dtype)


def arange(
    axis: AxisSpec, *, start: Any = 0, step: Any = 1, dtype: DTypeLike | None = None
) -> NamedArray:
    """Count from `start` by `step`, over one axis or in row-major order over several.

    The axes say how many numbers there are; `jnp.arange` takes a stop instead.

    Args:
        axis: the axes of the result, with their sizes.
        start: the first number, which may be traced.
        step: the difference of neighbours, which may be traced.
        dtype: by default that of `start` and `step`.

    Examples:
        >>> axn.arange(axn.Axis("x", 4), start=2)
        NamedArray(int32[x=4])
        [2 3 4 5]
    """
    names, sizes = names_and_sizes(spec(axis, "arange"))
    dtype = jnp.result_type(start, step) if dtype is None else dtype
    # jnp.arange takes no traced start.
    count = jax.lax.iota(dtype, math.prod(sizes)).reshape(sizes)
    if not isinstance(step, int) or step != 1:
        count = count * _cast_number(step, dtype)
    if not isinstance(start, int) or start != 0:
        count = count + _cast_number(start, dtype)
    return _name(count, names)


def _cast_number(value: ArrayLike, dtype: DTypeLike) -> ArrayLike:
    """Cast a start or a step; a negative one wraps around in unsigned integers, so that counting down works."""
    # jnp.asarray(-1, "uint8") raises.
    return np.asarray(value).astype(dtype) if isinstance(value, int) else jnp.asarray(value, dtype)


def _name(array: jax.Array, names: tuple[str, ...]) -> NamedArray:
    return NamedArray(constraints.shard_new(array, names), names)


def linspace(
    axis: AxisSelector,
    *,
    start: Operand,
    stop: Operand,
    endpoint: bool = True,
    dtype: DTypeLike | None = None,
) -> NamedArray:
    """Make evenly spaced numbers from `start` to `stop`.

    Args:
        axis: the axis of the numbers, the last axis of the result; its size is 50 if only a name is given.
        start: the first number: a scalar or an array, possibly traced.
        stop: the last number; the axes of `start` must contain those of `stop`, or the reverse.
        endpoint: whether to include `stop`.
        dtype: the dtype of the result; a float by default.

    Examples:
        >>> axn.linspace(axn.Axis("x", 3), start=0, stop=1).tolist()
        [0.0, 0.5, 1.0]
    """
    return _space(jnp.linspace, axis, (start, stop), endpoint, dtype)


def logspace(
    axis: AxisSelector,
    *,
    start: Operand,
    stop: Operand,
    endpoint: bool = True,
    base: Operand = 10.0,
    dtype: DTypeLike | None = None,
) -> NamedArray:
    """Make numbers whose logarithms to `base` are evenly spaced from `start` to `stop`.

    Args:
        axis: the axis of the numbers, as in `linspace`.
        start, stop: the logarithms of the first and of the last number.
        endpoint, dtype: as in `linspace`.
        base: the base, a scalar or an array as `start`.

    Examples:
        >>> axn.logspace(axn.Axis("x", 3), start=0, stop=2)
        NamedArray(float32[x=3])
        [  1.  10. 100.]
    """
    return _space(_logspace, axis, (start, stop, base), endpoint, dtype)


def _logspace(
    start: jax.Array, stop: jax.Array, base: jax.Array, *, num: int, **options: Any
) -> jax.Array:
    # The numbers are the last dimension of the result, which a base of several elements must not be aligned with.
    aligned = base[..., None] if base.ndim else base
    return jnp.logspace(start, stop, num, base=aligned, **options)


def geomspace(
    axis: AxisSelector,
    *,
    start: Operand,
    stop: Operand,
    endpoint: bool = True,
    dtype: DTypeLike | None = None,
) -> NamedArray:
    """Make numbers with a constant ratio from `start` to `stop`, which must not be zero.

    Args:
        axis, start, stop, endpoint, dtype: as in `linspace`.

    Examples:
        >>> axn.geomspace(axn.Axis("x", 3), start=1, stop=4).round(3)
        NamedArray(float32[x=3])
        [1. 2. 4.]
    """
    return _space(jnp.geomspace, axis, (start, stop), endpoint, dtype)


def _space(
    fn: Callable[..., jax.Array],
    axis: AxisSelector,
    ends: tuple[Operand, ...],
    endpoint: bool,
    dtype: DTypeLike | None,
) -> NamedArray:
    """Make numbers along a new last axis, for each position of the axes of start and stop."""
    function = checks.title(fn)
    name, size = selector(axis, function)
    if size is None:
        size = 50  # as in numpy
    first = payload(function, ends[0])
    # `apply_batched` takes its axes from a named operand, and here all may be scalars.
    if not any(isinstance(end, Core) for end in ends):
        if jnp.ndim(first):
            raise OperandError(message(function, "a plain array has no names", hint=checks.NAME_IT))
        ends = (NamedArray(jnp.asarray(first), ()), *ends[1:])
    options: dict[str, Any] = {"num": size, "endpoint": endpoint, "dtype": dtype, "axis": -1}
    made = apply_batched(fn, ends, ((),) * len(ends), (name,), **options)
    return _name(made.array, made.names)


# Without a program, JAX sends `k` to the device.
_make_eye = jax.jit(jnp.eye, static_argnums=(0, 1, 2, 3))


def eye(
    row: Axis, column: AxisSelector, *, k: int = 0, dtype: DTypeLike | None = None
) -> NamedArray:
    """Make a matrix with ones on a diagonal and zeros elsewhere.

    Args:
        row: the first axis.
        column: the second axis; of the same size if only a name is given.
        k: the diagonal: 0 is the main one, positive numbers are above it.
        dtype: the dtype of the result; by default JAX's default float dtype.

    Examples:
        >>> axn.eye(axn.Axis("in", 2), "out")
        NamedArray(float32[in=2, out=2])
        [[1. 0.]
         [0. 1.]]
    """
    first, second = _check_matrix_axes("eye", row, column)
    made = _make_eye(first.size, second.size, k, dtype)
    return _name(made, (first.name, second.name))


def tri(
    row: Axis, column: AxisSelector, *, k: int = 0, dtype: DTypeLike | None = None
) -> NamedArray:
    """Make a matrix with ones on and below a diagonal and zeros above it.

    Args:
        row: the first axis.
        column: the second axis; of the same size if only a name is given.
        k: the diagonal, as in `eye`.
        dtype: the dtype of the result; by default JAX's default float dtype.

    Examples:
        >>> axn.tri(axn.Axis("row", 2), "column")
        NamedArray(float32[row=2, column=2])
        [[1. 0.]
         [1. 1.]]
    """
    first, second = _check_matrix_axes("tri", row, column)
    return _name(jnp.tri(first.size, second.size, k, dtype), (first.name, second.name))


def _check_matrix_axes(function: str, row: Axis, column: AxisSelector) -> tuple[Axis, ...]:
    first = sized(row, function)
    name, size = selector(column, function)
    second = Axis(name, first.size if size is None else size)
    return spec((first, second), function)


def fromfunction(fn: Callable[..., Any], axes: AxisSpec, dtype: DTypeLike = int) -> NamedArray:
    """Compute an array from the indices of its elements.

    Args:
        fn: a function that takes one array of indices per axis, each with all axes, and returns an array with some of
            the axes, or a scalar.
        axes: the axes of the result.
        dtype: the dtype of the indices.

    Raises:
        AxisError: if the function returns an array with another axis.

    Examples:
        >>> axn.fromfunction(lambda pos, key_pos: key_pos <= pos, axn.make_axes(pos=2, key_pos=3))
        NamedArray(bool[pos=2, key_pos=3])
        [[ True False False]
         [ True  True False]]
    """
    every = spec(axes, "fromfunction")
    # Indices with all axes, as in NumPy: two of one axis each could not be compared, since neither has the other's.
    result = fn(*(arange(axis, dtype=dtype).broadcast_to(every) for axis in every))
    if not isinstance(result, NamedArray):
        if jnp.ndim(checks.plain("fromfunction", result)):
            problem = "the function returned an array without names"
            raise OperandError(message("fromfunction", problem))
        return _fill("fromfunction", every, result, None)
    if not set(result.axes) <= set(every):
        problem = f"the function returned axes {facts(result)}"
        raise AxisError(message("fromfunction", problem, f"asked for: {shown(*every)}"))
    whole = result.broadcast_to(every)
    return _name(whole.array, whole.names)


def one_hot(x: Operand, class_axis: Axis, *, dtype: DTypeLike | None = None) -> NamedArray:
    """Convert class numbers to vectors over `class_axis`, the last axis: one at the class and zero elsewhere.

    A number out of range gives zeros. A plain number or 0-d array gives one vector.

    Args:
        x: class numbers, with any axes.
        class_axis: the axis of the classes, with its size.
        dtype: by default JAX's float dtype.

    Returns:
        The axes of `x`, then `class_axis`.

    Raises:
        AxisClashError: if `x` has the class axis already.
        OperandError: if `x` is not of integers.

    Examples:
        >>> axn.one_hot(axn.named([0, 2], "batch"), axn.Axis("label", 3))
        NamedArray(float32[batch=2, label=3])
        [[1. 0. 0.]
         [0. 0. 1.]]
    """
    if isinstance(x, int | float | np.generic | np.ndarray | jax.Array) and not jnp.ndim(x):
        x = NamedArray(jnp.asarray(x), ())
    if not isinstance(x, NamedArray):
        raise checks.no_names("one_hot", x)
    shape_of("one_hot", x.array, x.names)
    integers("one_hot", "the array of classes", x, for_masks='write x.astype("int32")')

    classes = sized(class_axis, "one_hot")
    if classes.name in x.names:
        problem = f"the array already has axis {classes.name!r}"
        raise AxisClashError(message("one_hot", problem, f"array has: {facts(x)}"))
    # In uint8, the position of class 300 would wrap around to 44.
    hot = jax.nn.one_hot(
        widen_positions(x.array), classes.size, dtype=float if dtype is None else dtype
    )
    return wrap(x, hot, (*x.names, classes.name))


explain_calls(globals(), __all__)
