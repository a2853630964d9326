"""Functions that make axes longer: copies of elements or of whole arrays, and padding."""

import operator
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from .. import _constraints, plans
from ..axis import Axis, AxisKey, AxisSelector, Pairs, selection, selector, shown, sized
from ..core import Core, Operand, facts, shape_of, wrap
from ..errors import ArgumentError, AxisError, AxisSizeError, OperandError, describe, message
from ..plans import Names
from . import _lift
from ._batch import batched
from ._widen import widened

if TYPE_CHECKING:
    from ..array import NamedArray

__all__ = ["pad", "pad_left", "repeat", "tile"]

_MODES = (
    *("constant", "edge", "empty", "linear_ramp", "maximum", "mean"),
    *("median", "minimum", "reflect", "symmetric", "wrap"),
)


def repeat(
    x: "NamedArray",
    repeats: Operand | Sequence[int],
    axis: AxisSelector,
    total_repeat_length: int | None = None,
) -> "NamedArray":
    """Repeat each element along an axis, which keeps its name.

    Args:
        x: axes {axis, ...}.
        repeats: how often; one integer for all, or one for each position of `axis`, which may be traced and have more
            axes of `x`.
        axis: the axis.
        total_repeat_length: the new size of the axis, needed if `repeats` is traced or has more axes; the result is
            cut, or padded with the last element, to this size.

    Raises:
        AxisNotFoundError: if `axis` is missing.
        ArgumentError: if the new size is not known.

    Example:
        >>> axn.repeat(axn.named([1, 2], "x"), 2, "x").tolist()
        [1, 1, 2, 2]
        >>> axn.repeat(axn.named([1, 2], "x"), [3, 1], "x").tolist()
        [1, 1, 1, 2]
    """
    name, _ = selector(axis, "repeat")
    if isinstance(repeats, int | np.integer) and not isinstance(repeats, bool):
        count = _count("repeat", repeats, axis)
        return _lift.along_with(jnp.repeat, x, axis, repeats=count, total_repeat_length=total_repeat_length)
    counts: Any = repeats if isinstance(repeats, Core) else _lift.plain("repeat", _as_array(repeats))
    values = counts.array if isinstance(counts, Core) else counts
    dtype = jnp.result_type(values)
    if not jnp.issubdtype(dtype, jnp.integer):
        raise OperandError(message("repeat", f"repeats must be integers, not {dtype}"))
    if total_repeat_length is None:
        if isinstance(values, Tracer) or jnp.ndim(values) > 1:
            problem = "the new size of the axis cannot be computed from these repeats"
            raise ArgumentError(message("repeat", problem, hint="give it: total_repeat_length=..."))
        known = np.asarray(values)
        if not known.ndim:
            return repeat(x, known[()], axis)
        _count("repeat", known.min(initial=0), axis)
        total_repeat_length = int(known.sum())
    core = (axis, axis if (counts.node[1] if isinstance(counts, Core) else jnp.ndim(counts)) else ())
    options: dict[str, Any] = {"total_repeat_length": total_repeat_length}
    return batched(_repeat, (x, counts), core, (name,), each=True, in_place=True, **options)


def _as_array(values: Any) -> Any:
    """Convert a list to an array, of integers if it is empty."""
    return np.asarray(values, None if len(values) else int) if isinstance(values, list | tuple) else values


def _repeat(array: jax.Array, repeats: jax.Array, *, total_repeat_length: int) -> jax.Array:
    return jnp.repeat(array, widened(repeats), total_repeat_length=total_repeat_length)


def tile(x: "NamedArray", reps: Mapping[AxisKey, int]) -> "NamedArray":
    """Repeat a whole array along axes; axes that it lacks are added in front.

    Args:
        x: the array.
        reps: a mapping from axes to numbers of copies; for an axis that `x` lacks, its size.

    Example:
        >>> axn.tile(axn.named([1, 2], "x"), {"x": 2, "copy": 2})
        NamedArray(int32[copy=2, x=4])
        [[1 2 1 2]
         [1 2 1 2]]
    """
    if not isinstance(x, Core):
        raise _lift.unnamed("tile", x)
    (array,), names = x.node
    if not isinstance(reps, Mapping):
        problem = f"reps must be a dict from axes to ints, not {type(reps).__name__}"
        raise OperandError(message("tile", problem, f"array has: {facts(x)}", hint='write {"pos": 2}'))
    given = selection(tuple(reps), "tile")
    try:
        kernel = _tiled(names, given, tuple(_count("tile", reps[axis], axis) for axis in reps))
    except AxisError as flaw:
        _lift.fail("tile", flaw, x)
    return wrap(x, kernel.call(array), kernel.names)


def _count(function: str, value: Any, axis: AxisSelector) -> int:
    """Check a number for an axis, which must be static."""
    try:
        count = operator.index(value)
    except TypeError:
        problem = f"the number for axis {selector(axis, function)[0]!r} must be an int, not {type(value).__name__}"
        raise OperandError(message(function, problem)) from None
    if count < 0:
        problem = f"the number for axis {selector(axis, function)[0]!r} must not be negative, got {count}"
        raise ArgumentError(message(function, problem))
    return count


@lru_cache(plans.CACHE)
def _tiled(names: Names, given: Pairs, counts: tuple[int, ...]) -> _lift.Kernel:
    table = {name: count for (name, _), count in zip(given, counts, strict=True)}
    new = tuple(name for name in table if name not in names)
    there = tuple((name, size) for name, size in given if name in names)
    target = (*new, *names)
    for name, size in given:
        if name in new and size not in (None, table[name]):
            raise AxisSizeError(f"axis {name!r} was given with size {size} for {table[name]} copies")

    def body(array: Any) -> Any:
        shape = shape_of("tile", array, names)
        _lift.check_given("tile", there, names, shape)
        copied = plans.positions(names, tuple(name for name, _ in there))
        lined = _lift.lined_up(_lift.whole(array, copied), names, target)
        reps = [1] * (len(shape) - len(names)) + [table.get(name, 1) for name in target]
        return _lift.local(partial(jnp.tile, reps=reps), [lined], list(_constraints.entries_of(lined)))

    return _lift.Kernel(target, body)


def pad(
    x: "NamedArray",
    pad_width: Mapping[AxisKey, tuple[int, int] | int],
    *,
    mode: str = "constant",
    constant_values: Operand = 0,
    end_values: float = 0,
    stat_length: int | None = None,
    reflect_type: str = "even",
) -> "NamedArray":
    """Pad an array along axes, which keep their names.

    Args:
        x: the array.
        pad_width: a mapping from axes to (before, after), the numbers of elements to add, or to one number for both.
        mode: as in `jax.numpy.pad`: "constant", "edge", "empty", "linear_ramp", "maximum", "mean", "median",
            "minimum", "reflect", "symmetric" or "wrap".
        constant_values: a scalar, for "constant"; it may be traced.
        end_values: the number at which a "linear_ramp" ends.
        stat_length: how many elements at each end "maximum", "mean", "median" and "minimum" are taken over; None
            means all.
        reflect_type: "odd" or "even", for "reflect" and "symmetric".

    Raises:
        AxisNotFoundError: if an axis is missing.
        AxisSizeError: if an axis has no elements, and the mode needs some.
        ArgumentError: if the mode is unknown, or a number is negative.

    Example:
        >>> axn.pad(axn.named([1, 2], "x"), {"x": (1, 2)}).tolist()
        [0, 1, 2, 0, 0]
    """
    if not isinstance(x, Core):
        raise _lift.unnamed("pad", x)
    (array,), names = x.node
    if not isinstance(pad_width, Mapping):
        problem = f"pad_width must be a dict from axes to (before, after), not {type(pad_width).__name__}"
        raise OperandError(message("pad", problem, f"array has: {facts(x)}", hint='write {"pos": (0, 1)}'))
    if mode not in _MODES:
        raise ArgumentError(message("pad", f"unknown mode {mode!r}", f"modes: {', '.join(_MODES)}"))
    given = selection(tuple(pad_width), "pad")
    widths = tuple(_both(axis, width) for axis, width in pad_width.items())
    options: dict[str, Any] = {}
    if mode in ("maximum", "mean", "median", "minimum"):
        options["stat_length"] = stat_length
    elif mode in ("reflect", "symmetric"):
        if reflect_type not in ("even", "odd"):
            raise ArgumentError(message("pad", f"unknown reflect_type {reflect_type!r}", "types: even, odd"))
        options["reflect_type"] = reflect_type
    elif mode == "linear_ramp":
        options["end_values"] = end_values
    try:
        kernel = _padded(names, given, widths, mode, _lift.static(pad, options))
    except AxisError as flaw:
        _lift.fail("pad", flaw, x)
    value = _scalar("pad", constant_values)
    return wrap(x, kernel.call(array, value), names)


def _both(axis: AxisSelector, width: Any) -> tuple[int, int]:
    before, after = width if isinstance(width, tuple | list) and len(width) == 2 else (width, width)
    return _count("pad", before, axis), _count("pad", after, axis)


def _scalar(function: str, value: Operand) -> Any:
    """Return the array of an operand without axes, checked."""
    scalar = value.node[0][0] if isinstance(value, Core) else _lift.plain(function, value)
    if jnp.ndim(scalar):
        kind = f"axes {', '.join(value.names)}" if isinstance(value, Core) else f"shape {jnp.shape(scalar)}"
        raise OperandError(message(function, f"the fill value must be a scalar, but has {kind}"))
    return scalar


@lru_cache(plans.CACHE)
def _padded(
    names: Names, given: Pairs, widths: tuple[tuple[int, int], ...], mode: str, options: _lift.Options
) -> _lift.Kernel:
    at = plans.positions(names, tuple(name for name, _ in given))

    def body(array: Any, value: Any) -> Any:
        shape = shape_of("pad", array, names)
        _lift.check_given("pad", given, names, shape)
        every = [(0, 0)] * len(shape)
        for (name, _), position, width in zip(given, at, widths, strict=True):
            every[position] = width
            if any(width) and not shape[position] and mode not in ("constant", "empty"):
                problem = f"axis {name!r} is empty, and mode {mode!r} extends existing elements"
                raise AxisSizeError(message("pad", problem, f"array has: {describe(names, shape)}"))

        def padded(array: Any, value: Any) -> Any:
            if mode == "constant":
                return jnp.pad(array, every, constant_values=value)
            return jnp.pad(array, every, mode, **_lift.keywords_of(options))

        array = _lift.whole(array, at)
        return _lift.local(padded, [array, value], list(_constraints.entries_of(array)))

    return _lift.Kernel(names, body)


def pad_left(x: "NamedArray", axis: AxisSelector, new_axis: Axis, value: Operand = 0) -> "NamedArray":
    """Pad an axis at the start with a value, up to the size of `new_axis`, which replaces it.

    Args:
        x: axes {axis, ...}.
        axis: the axis.
        new_axis: the axis with its new size and, perhaps, a new name.
        value: a scalar, or an array whose axes are among the other axes of `x`.

    Raises:
        AxisNotFoundError: if `axis` is missing.
        AxisSizeError: if `new_axis` is shorter than `axis`.

    Example:
        >>> axn.pad_left(axn.named([1, 2], "pos"), "pos", axn.Axis("padded", 4), -1)
        NamedArray(int32[padded=4])
        [-1 -1  1  2]
    """
    new = sized(new_axis, "pad_left")
    return batched(_pad_left, (x, value), (axis, ()), (new.name,), in_place=True, new_axis=new)


def _pad_left(array: jax.Array, value: jax.Array, *, new_axis: Axis) -> jax.Array:
    extra = new_axis.size - array.shape[-1]
    if extra < 0:
        problem = f"cannot pad {array.shape[-1]} elements to {shown(new_axis)}"
        raise AxisSizeError(message("pad_left", problem, hint="cut them with x.slice(...)"))
    scalar = value.astype(array.dtype) if not value.ndim else jnp.zeros((), array.dtype)
    padded = lax.pad(array, scalar, [*[(0, 0, 0)] * (array.ndim - 1), (extra, 0, 0)])
    if not value.ndim:
        return padded
    return jnp.where(jnp.arange(new_axis.size) < extra, value[..., None].astype(array.dtype), padded)
