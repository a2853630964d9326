"""Operations that are not elementwise: selection, padding, searching and others."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import DTypeLike

import axonym as axn
from axonym import Axis, AxisSelector, NamedArray, axis_name
from axonym.engine import AxisKey, wrap
from axonym.errors import ArgumentError, message

from ._adapt import Function, Operand, adapted
from ._elementwise import axisless_meets_plain, raw

__all__ = [
    "allclose",
    "array_equal",
    "array_equiv",
    "bincount",
    "clip",
    "isclose",
    "nonzero",
    "packbits",
    "pad",
    "pad_left",
    "repeat",
    "searchsorted",
    "tile",
    "trace",
    "tril",
    "triu",
    "unique",
    "unique_all",
    "unique_counts",
    "unique_inverse",
    "unique_values",
    "unpackbits",
    "where",
]

raw_array_or_scalar = raw
nonzero = adapted(axn.nonzero)
unique = adapted(axn.unique)
unique_all = adapted(axn.unique_all)
unique_counts = adapted(axn.unique_counts)
unique_inverse = adapted(axn.unique_inverse)
unique_values = adapted(axn.unique_values)


def _named(*operands: object) -> bool:
    """Return whether an operation on these values gives a NamedArray, and not the result of `jax.numpy`."""
    return any(isinstance(x, NamedArray) for x in operands) and not axisless_meets_plain(*operands)


def _chooses_named(condition: Operand, x: Operand, y: Operand) -> bool:
    """Return whether `where` gives a NamedArray; a condition without axes does not matter for this."""
    if isinstance(condition, NamedArray) and condition.ndim:
        return True
    if not isinstance(x, NamedArray) and not isinstance(y, NamedArray):
        return False
    return not axisless_meets_plain(condition, x, y)


def where(
    condition: Operand,
    x: Operand | None = None,
    y: Operand | None = None,
    fill_value: int | None = None,
    new_axis: Axis | None = None,
) -> Any:
    """Choose from `x` or `y` by name; without them, return the indices where the condition is true, one array per axis.

    With a scalar condition, the operands need not have the same dtype and axes, and the result is named only if one of
    them is.
    """
    if x is None and y is None:
        if fill_value is None or new_axis is None:
            raise ArgumentError(
                message("where", "without x and y, both fill_value and new_axis are needed")
            )
        return _where(condition, fill_value=fill_value, new_axis=new_axis)
    if x is None or y is None:
        raise ArgumentError(message("where", "give both x and y, or neither"))
    if not _chooses_named(condition, x, y):
        return jnp.where(raw(condition), raw(x), raw(y))
    return _where(condition, x, y)


_where = adapted(axn.where)


def clip(array: Operand, a_min: Operand | None, a_max: Operand | None) -> Any:
    """Clip each element, by name; any of the three may have the most axes, and a bound may be None."""
    if not _named(array, a_min, a_max):
        return jnp.clip(raw(array), raw(a_min), raw(a_max))
    return _clip(array, a_min, a_max)


_clip: Function = adapted(axn.clip)


def isclose(
    a: Operand, b: Operand, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> Any:
    """Return whether two elements differ by at most `atol + rtol * |b|`, by name."""
    if not _named(a, b):
        return jnp.isclose(raw(a), raw(b), rtol, atol, equal_nan)
    return _isclose(a, b, rtol, atol, equal_nan)


_isclose = adapted(axn.isclose)


def allclose(
    a: Operand, b: Operand, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> bool:
    """Return whether all elements are close; the result is a bool, so that this works only outside jit."""
    return bool(raw(isclose(a, b, rtol, atol, equal_nan)).all())


def array_equal(a: Operand, b: Operand) -> bool:
    """Return whether two arrays have the same axes, in any order, and equal elements; the result is a bool."""
    if not _named(a, b):
        return bool(jnp.array_equal(raw(a), raw(b)))
    return bool(_array_equal(a, b))


def array_equiv(a: Operand, b: Operand) -> bool:
    """Return whether two arrays are equal after one is broadcast to the axes of the other; the result is a bool."""
    if not _named(a, b):
        return bool(jnp.array_equiv(raw(a), raw(b)))
    return bool(_array_equiv(a, b))


_array_equal: Function = adapted(axn.array_equal)
_array_equiv: Function = adapted(axn.array_equiv)


@adapted
def trace(
    array: NamedArray,
    axis1: AxisSelector,
    axis2: AxisSelector,
    offset: int = 0,
    dtype: DTypeLike | None = None,
) -> NamedArray:
    """Sum the diagonal of the matrices that two axes span; both axes are removed."""
    return axn.trace(array, axis1, axis2, offset, dtype)


@adapted
def tril(array: NamedArray, axis1: AxisSelector, axis2: AxisSelector, k: int = 0) -> NamedArray:
    """Keep the lower triangle of the matrices that two axes span, which become the last ones."""
    return axn.tril(array, axis1, axis2, k).rearrange((..., axis1, axis2))


@adapted
def triu(array: NamedArray, axis1: AxisSelector, axis2: AxisSelector, k: int = 0) -> NamedArray:
    """Keep the upper triangle of the matrices that two axes span, which become the last ones."""
    return axn.triu(array, axis1, axis2, k).rearrange((..., axis1, axis2))


@adapted
def pad(
    array: NamedArray,
    pad_width: Mapping[AxisKey, tuple[int, int]],
    *,
    mode: str = "constant",
    constant_values: Operand = 0,
    **kwargs: Any,
) -> NamedArray:
    """Pad an array along axes, some of which it may lack."""
    have: tuple[str, ...] = ()
    if isinstance(array, NamedArray):
        have = array.names
    widths = {axis: width for axis, width in pad_width.items() if axis_name(axis) in have}
    if np.ndim(raw(constant_values)):  # in the form of `jax.numpy`, such as one for each end
        ends: dict[str, tuple[int, int]] = dict.fromkeys(have, (0, 0))
        for axis, (before, after) in widths.items():
            ends[axis_name(axis)] = (before, after)
        padded = jnp.pad(
            array.array, list(ends.values()), mode, constant_values=raw(constant_values)
        )
        return wrap(array, padded, have)
    return axn.pad(array, widths, mode=mode, constant_values=constant_values, **kwargs)


@adapted
def pad_left(
    array: NamedArray, axis: AxisSelector, new_axis: Axis, value: Operand = 0
) -> NamedArray:
    """Pad an axis at the start with a value, up to the size of `new_axis`, which replaces it."""
    return axn.pad_left(array, axis, new_axis, value)


@adapted
def packbits(a: NamedArray, axis: AxisSelector, *, bitorder: str = "big") -> NamedArray:
    """Pack every eight elements along an axis into the bits of a byte."""
    return axn.packbits(a, axis, bitorder=bitorder)


@adapted
def unpackbits(
    a: NamedArray, axis: AxisSelector, *, count: int | None = None, bitorder: str = "big"
) -> NamedArray:
    """Unpack the bits of bytes along an axis."""
    return axn.unpackbits(a, axis, count=count, bitorder=bitorder)


@adapted
def searchsorted(
    a: NamedArray,
    v: Operand,
    *,
    side: str = "left",
    sorter: Operand | None = None,
    method: str = "scan",
) -> Any:
    """Return the positions at which to insert values; the result has the axes of `v`, and is plain if `v` is.

    The only axis of `a` and of `sorter` may have a name that `v` has too.
    """
    if not isinstance(a, NamedArray) or (not isinstance(v, NamedArray) and jnp.ndim(v)):
        return jnp.searchsorted(raw(a), raw(v), side=side, sorter=raw(sorter), method=method)
    if len(a.names) != 1:
        problem = f"the sorted values must have one axis, not {len(a.names)}"
        raise ArgumentError(message("searchsorted", problem))
    own: dict[AxisSelector, AxisSelector] = {a.names[0]: "sorted values"}
    order = None
    if sorter is not None:
        order = NamedArray(jnp.asarray(raw(sorter)), ("sorted values",))
    return axn.searchsorted(a.rename(own), v, side=side, sorter=order, method=method)


@adapted
def bincount(
    x: NamedArray,
    Counts: Axis,
    *,
    weights: Operand | None = None,
    minlength: int = 0,
) -> NamedArray:
    """Count how often each integer below the size of `Counts` occurs; `minlength` is ignored."""
    if weights is not None and not isinstance(weights, NamedArray):
        weights = NamedArray(jnp.asarray(weights), x.axes)
    return axn.bincount(x, Counts, weights=weights)


@adapted
def repeat(
    a: NamedArray,
    repeats: int | jax.Array | Sequence[int],
    axis: AxisSelector,
    total_repeat_length: int | None = None,
) -> NamedArray:
    """Repeat each element along an axis, which keeps its name."""
    if isinstance(repeats, jax.Array) and not repeats.ndim and not isinstance(repeats, Tracer):
        repeats = int(repeats)
    return axn.repeat(a, repeats, axis, total_repeat_length)


@adapted
def tile(a: NamedArray, reps: dict[AxisKey, int]) -> NamedArray:
    """Repeat a whole array along axes; axes that it lacks are added in front."""
    return axn.tile(a, reps)
