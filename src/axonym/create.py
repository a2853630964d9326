"""Make named arrays from axes.

With a mesh and an axis mapping in context, results are created in the layout of the mapping on Explicit mesh axes; on
Auto axes the compiler chooses their layout by their use.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from . import _constraints
from .array import NamedArray
from .axis import Axis, AxisSelector, AxisSpec, not_in_a_tuple, selector, shown, sized, spec
from .core import Core, Operand, facts, shape_of, wrap
from .errors import AxisClashError, AxisError, OperandError, message
from .ops import _lift
from .ops._batch import batched
from .ops._operands import integers
from .ops._widen import widened

__all__ = [
    "arange",
    "bartlett",
    "blackman",
    "eye",
    "fftfreq",
    "fromfunction",
    "full",
    "full_like",
    "geomspace",
    "hamming",
    "hanning",
    "kaiser",
    "linspace",
    "logspace",
    "one_hot",
    "ones",
    "ones_like",
    "rfftfreq",
    "tri",
    "zeros",
    "zeros_like",
]


def full(shape: AxisSpec, fill_value: Any, dtype: DTypeLike | None = None) -> NamedArray:
    """Make an array of one value.

    Raises:
        OperandError: if `fill_value` is not a scalar.
    """
    if isinstance(fill_value, Axis):
        raise not_in_a_tuple("full", *spec(shape, "full"), fill_value)
    _check_scalar("full", fill_value)
    return _filled("full", shape, fill_value, dtype)


def _filled(function: str, shape: AxisSpec, fill_value: Any, dtype: DTypeLike | None) -> NamedArray:
    axes = spec(shape, function)
    sizes, names = tuple(axis.size for axis in axes), tuple(axis.name for axis in axes)
    sharding = _constraints.explicit_sharding(names, sizes)
    try:
        return NamedArray(_lift.run(_full(sizes, dtype, sharding), fill_value), names)
    except TypeError:
        if isinstance(dtype, Axis):
            raise not_in_a_tuple(function, *axes, dtype) from None
        raise


def _full(sizes: tuple[int, ...], dtype: Any, sharding: Any) -> Callable[[Any], jax.Array]:
    return lambda value: jnp.full(sizes, value, dtype, out_sharding=sharding)


def _check_scalar(function: str, fill_value: Any) -> None:
    if isinstance(fill_value, NamedArray) or jnp.ndim(fill_value):
        problem = f"the fill value must be a scalar, not {type(fill_value).__name__}"
        raise OperandError(message(function, problem, hint="repeat an array along new axes: x.broadcast_axis(...)"))


def zeros(shape: AxisSpec, dtype: DTypeLike | None = None) -> NamedArray:
    """Make an array of zeros, by default in JAX's default float dtype."""
    return _filled("zeros", shape, 0, float if dtype is None else dtype)


def ones(shape: AxisSpec, dtype: DTypeLike | None = None) -> NamedArray:
    """Make an array of ones, by default in JAX's default float dtype."""
    return _filled("ones", shape, 1, float if dtype is None else dtype)


def _parts(function: str, x: NamedArray) -> tuple[jax.Array, tuple[str, ...]]:
    """Return the array and the names of a named argument, checked."""
    if not isinstance(x, NamedArray):
        raise _lift.unnamed(function, x)
    shape_of(function, x.array, x.names)
    return x.array, x.names


def full_like(x: NamedArray, fill_value: Any, dtype: DTypeLike | None = None) -> NamedArray:
    """Make an array of one value with the axes, dtype and sharding of another."""
    array, _ = _parts("full_like", x)
    _check_scalar("full_like", fill_value)
    return _filled_like(x, array, fill_value, dtype)


def _filled_like(x: NamedArray, array: jax.Array, fill_value: Any, dtype: DTypeLike | None) -> NamedArray:
    made = _lift.run(lambda value: jnp.full_like(array, value, dtype), fill_value)
    return wrap(x, _constraints.laid_out_like(made, array), x.names)


def zeros_like(x: NamedArray, dtype: DTypeLike | None = None) -> NamedArray:
    """Make an array of zeros with the axes, dtype and sharding of another."""
    array, _ = _parts("zeros_like", x)
    return _filled_like(x, array, 0, dtype)


def ones_like(x: NamedArray, dtype: DTypeLike | None = None) -> NamedArray:
    """Make an array of ones with the axes, dtype and sharding of another."""
    array, _ = _parts("ones_like", x)
    return _filled_like(x, array, 1, dtype)


def arange(axis: AxisSpec, *, start: Any = 0, step: Any = 1, dtype: DTypeLike | None = None) -> NamedArray:
    """Count from `start` by `step`, over one axis or in row-major order over several; both may be traced.

    Example:
        >>> axn.arange(axn.Axis("x", 4), start=2)
        NamedArray(int32[x=4])
        [2 3 4 5]
    """
    axes = spec(axis, "arange")
    sizes, names = tuple(a.size for a in axes), tuple(a.name for a in axes)
    dtype = jnp.result_type(start, step) if dtype is None else dtype
    count = jax.lax.iota(dtype, math.prod(sizes)).reshape(sizes)
    counted = count if isinstance(step, int) and step == 1 else count * _number(step, dtype)
    shifted = counted if isinstance(start, int) and start == 0 else counted + _number(start, dtype)
    return _laid_out(shifted, names)


def _number(value: Any, dtype: Any) -> Any:
    """Cast a start or a step; a negative one wraps around in unsigned integers, so that counting down works."""
    return np.asarray(value).astype(dtype) if isinstance(value, int) else jnp.asarray(value, dtype)


def _laid_out(array: jax.Array, names: tuple[str, ...]) -> NamedArray:
    """Name a new array; on a mesh with Explicit axes, lay it out by the mapping."""
    sharding = _constraints.explicit_sharding(names, array.shape)
    return NamedArray(array if sharding is None else jax.reshard(array, sharding), names)


def linspace(
    axis: AxisSelector, *, start: Operand, stop: Operand, endpoint: bool = True, dtype: DTypeLike | None = None
) -> NamedArray:
    """Make evenly spaced numbers from `start` to `stop`.

    Args:
        axis: the axis of the numbers, the last axis of the result; its size is 50 if only a name is given.
        start: the first number: a scalar or an array, possibly traced.
        stop: the last number; the axes of `start` must contain those of `stop`, or the reverse.
        endpoint: whether to include `stop`.
        dtype: the dtype of the result; a float by default.

    Example:
        >>> axn.linspace(axn.Axis("x", 3), start=0, stop=1).tolist()
        [0.0, 0.5, 1.0]
    """
    return _spaced(jnp.linspace, axis, (start, stop), endpoint, dtype)


def logspace(
    axis: AxisSelector,
    *,
    start: Operand,
    stop: Operand,
    endpoint: bool = True,
    base: Operand = 10.0,
    dtype: DTypeLike | None = None,
) -> NamedArray:
    """Make numbers whose logarithms to `base` are evenly spaced from `start` to `stop`; arguments as in `linspace`."""
    return _spaced(_logspace, axis, (start, stop, base), endpoint, dtype)


def _logspace(
    start: jax.Array, stop: jax.Array, base: jax.Array, *, num: int, endpoint: bool, dtype: Any, axis: int
) -> jax.Array:
    return jnp.logspace(start, stop, num, endpoint, base[..., None] if base.ndim else base, dtype, axis)


def geomspace(
    axis: AxisSelector, *, start: Operand, stop: Operand, endpoint: bool = True, dtype: DTypeLike | None = None
) -> NamedArray:
    """Make numbers with a constant ratio from `start` to `stop`; arguments as in `linspace`."""
    return _spaced(jnp.geomspace, axis, (start, stop), endpoint, dtype)


def _spaced(
    fn: Callable[..., jax.Array], axis: AxisSelector, ends: tuple[Operand, ...], endpoint: bool, dtype: Any
) -> NamedArray:
    """Make numbers along a new last axis, for each position of the axes of the ends."""
    function = _lift.title(fn)
    name, size = selector(axis, function)
    operands: list[Any] = [end if isinstance(end, Core) else _lift.plain(function, end) for end in ends]
    if not any(isinstance(end, Core) for end in ends):
        if jnp.ndim(operands[0]):
            raise OperandError(message(function, "a plain array has no names", hint=_lift.NAME_IT))
        operands[0] = NamedArray(jnp.asarray(operands[0]), ())
    options: dict[str, Any] = {"num": 50 if size is None else size, "endpoint": endpoint, "dtype": dtype, "axis": -1}
    made = batched(fn, operands, ((),) * len(operands), (name,), **options)
    return _laid_out(made.array, made.names)


def eye(row: Axis, column: AxisSelector, *, k: int = 0, dtype: DTypeLike | None = None) -> NamedArray:
    """Make a matrix with ones on a diagonal and zeros elsewhere.

    Args:
        row: the first axis.
        column: the second axis; of the same size if only a name is given.
        k: the diagonal: 0 is the main one, positive numbers are above it.
        dtype: the dtype of the result; by default JAX's default float dtype.

    Example:
        >>> axn.eye(axn.Axis("in", 2), "out")
        NamedArray(float32[in=2, out=2])
        [[1. 0.]
         [0. 1.]]
    """
    first, second = _matrix_axes("eye", row, column)
    return _laid_out(jnp.eye(first.size, second.size, k, dtype), (first.name, second.name))


def tri(row: Axis, column: AxisSelector, *, k: int = 0, dtype: DTypeLike | None = None) -> NamedArray:
    """Make a matrix with ones on and below a diagonal and zeros above it; arguments as in `eye`."""
    first, second = _matrix_axes("tri", row, column)
    return _laid_out(jnp.tri(first.size, second.size, k, dtype), (first.name, second.name))


def _matrix_axes(function: str, row: Axis, column: AxisSelector) -> tuple[Axis, ...]:
    first = sized(row, function)
    name, size = selector(column, function)
    return spec((first, Axis(name, first.size if size is None else size)), function)


def fromfunction(fn: Callable[..., Any], axes: AxisSpec, dtype: DTypeLike = int) -> NamedArray:
    """Compute an array from the indices of its elements.

    Args:
        fn: a function that takes one array of indices per axis, each with all axes, and returns an array with some of
            the axes, or a scalar.
        axes: the axes of the result.
        dtype: the dtype of the indices.

    Raises:
        AxisError: if the function returns an array with another axis.

    Example:
        >>> axn.fromfunction(lambda pos, key_pos: key_pos <= pos, axn.make_axes(pos=2, key_pos=3))
        NamedArray(bool[pos=2, key_pos=3])
        [[ True False False]
         [ True  True False]]
    """
    every = spec(axes, "fromfunction")
    result = fn(*(arange(axis, dtype=dtype).broadcast_to(every) for axis in every))
    if not isinstance(result, NamedArray):
        if jnp.ndim(_lift.plain("fromfunction", result)):
            raise OperandError(message("fromfunction", "the function returned an array without names"))
        return _filled("fromfunction", every, result, None)
    if not set(result.axes) <= set(every):
        problem = f"the function returned axes {facts(result)}"
        raise AxisError(message("fromfunction", problem, f"asked for: {shown(*every)}"))
    whole = result.broadcast_to(every)
    return _laid_out(whole.array, whole.names)


def bartlett(axis: Axis) -> NamedArray:
    """Make a Bartlett window: a triangle that is zero at both ends."""
    return _window(jnp.bartlett, axis)


def blackman(axis: Axis) -> NamedArray:
    """Make a Blackman window, the sum of a constant and two cosines."""
    return _window(jnp.blackman, axis)


def hamming(axis: Axis) -> NamedArray:
    """Make a Hamming window, a raised cosine that is above zero at both ends."""
    return _window(jnp.hamming, axis)


def hanning(axis: Axis) -> NamedArray:
    """Make a von Hann window, a raised cosine that is zero at both ends."""
    return _window(jnp.hanning, axis)


def kaiser(axis: Axis, beta: Any) -> NamedArray:
    """Make a Kaiser window, from a Bessel function; it is narrower for a larger `beta`."""
    if isinstance(beta, NamedArray) or jnp.ndim(beta):
        raise OperandError(message("kaiser", f"beta must be a scalar, not {type(beta).__name__}"))
    return _window(jnp.kaiser, axis, beta)


def _window(fn: Callable[..., jax.Array], axis: Axis, *arguments: Any) -> NamedArray:
    given = sized(axis, _lift.title(fn))
    return _laid_out(fn(given.size, *arguments), (given.name,))


def one_hot(x: Operand, class_axis: Axis, *, dtype: DTypeLike | None = None) -> NamedArray:
    """Convert class numbers to vectors over `class_axis`, the last axis: one at the class and zero elsewhere.

    A number out of range gives zeros. A plain number or 0-d array gives one vector.

    Raises:
        AxisClashError: if `x` has the class axis already.
        OperandError: if `x` is not of integers.
    """
    alone = isinstance(x, int | float | np.generic | np.ndarray | jax.Array) and not jnp.ndim(x)
    given: Any = NamedArray(jnp.asarray(x), ()) if alone else x
    array, names = _parts("one_hot", given)
    integers("one_hot", "the array of classes", given, for_masks='write x.astype("int32")')
    classes = sized(class_axis, "one_hot")
    if classes.name in names:
        problem = f"the array already has axis {classes.name!r}"
        raise AxisClashError(message("one_hot", problem, f"array has: {facts(given)}"))
    hot = jax.nn.one_hot(widened(array), classes.size, dtype=float if dtype is None else dtype)
    return wrap(given, hot, (*names, classes.name))


def fftfreq(axis: Axis, d: Any = 1.0, *, dtype: DTypeLike | None = None) -> NamedArray:
    """Return the frequencies of `fft` over an axis whose samples are `d` apart, in cycles per unit of `d`.

    Example:
        >>> axn.fftfreq(axn.Axis("time", 4), 0.5).tolist()
        [0.0, 0.5, -1.0, -0.5]
    """
    samples = sized(axis, "fftfreq")
    return _laid_out(jnp.fft.fftfreq(samples.size, d, dtype=dtype), (samples.name,))


def rfftfreq(axis: Axis, d: Any = 1.0, *, dtype: DTypeLike | None = None) -> NamedArray:
    """Return the frequencies of `rfft` over an axis whose samples are `d` apart; the result has size n // 2 + 1.

    Example:
        >>> axn.rfftfreq(axn.Axis("time", 4), 0.5).axes
        (Axis(name='time', size=3),)
    """
    samples = sized(axis, "rfftfreq")
    return _laid_out(jnp.fft.rfftfreq(samples.size, d, dtype=dtype), (samples.name,))
