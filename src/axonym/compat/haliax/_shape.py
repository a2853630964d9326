"""Names, order, grouping, joining and splitting of axes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import axonym as axn
from axonym import Axis, AxisSelection, AxisSelector, AxisSpec
from axonym.engine import AxisKey, facts, selection, selector, shown, spec
from axonym.errors import (
    AxisClashError,
    AxisNotFoundError,
    AxisSizeError,
    BroadcastError,
    OperandError,
    message,
)

from ._adapt import adapted
from .partitioning import auto_sharded

__all__ = [
    "broadcast_arrays",
    "broadcast_arrays_and_return_axes",
    "broadcast_axis",
    "broadcast_to",
    "concatenate",
    "flatten",
    "flatten_all_axes_but",
    "flatten_axes",
    "ravel",
    "rename",
    "roll",
    "split",
    "stack",
    "unbind",
    "unflatten_axis",
]


@adapted
def broadcast_to(
    a: Any, axes: AxisSpec, ensure_order: bool = True, enforce_no_extra_axes: bool = True
) -> axn.NamedArray:
    """Add the axes that `a` lacks, in front, and give `axes` their order; a scalar may be broadcast too.

    Args:
        a: an array or a scalar.
        axes: the axes; one that `a` has may be given as a name.
        ensure_order: put the axes in the given order, unless they already are.
        enforce_no_extra_axes: raise an error if `a` has other axes.
    """
    x = a if isinstance(a, axn.NamedArray) else axn.named(a, ())
    have = {axis.name: axis for axis in x.axes}
    entries: list[Any] = [
        have.get(entry, entry) if isinstance(entry, str) else entry for entry in selection_of(axes)
    ]
    wanted = spec(entries, "broadcast_to")
    names = tuple(axis.name for axis in wanted)
    extra = [name for name in x.names if name not in names]
    if extra and enforce_no_extra_axes:
        lines = (f"array has: {shown(*x.axes)}", f"asked for: {shown(*wanted) or 'no axes'}")
        raise AxisNotFoundError(
            message("broadcast_to", f"the array has the extra axis {extra[0]!r}", *lines)
        )
    x = axn.broadcast_axis(x, wanted)
    if not ensure_order or tuple(name for name in x.names if name in names) == names:
        return x
    return axn.rearrange(x, (*names, ...))


def broadcast_axis(a: axn.NamedArray, axis: AxisSpec) -> axn.NamedArray:
    """Add the axes that `a` lacks, in front; unlike in Axonym, the given axes are put in the given order."""
    return broadcast_to(a, axis, enforce_no_extra_axes=False)


def broadcast_arrays(
    *arrays: Any, require_subset: bool = True, ensure_order: bool = True
) -> tuple[Any, ...]:
    """Broadcast all arrays to the axes of all; scalars and None are unchanged.

    Unlike in Axonym, axes that the largest array lacks are put before its own, from the next largest array on.
    """
    return broadcast_arrays_and_return_axes(
        *arrays, require_subset=require_subset, ensure_order=ensure_order
    )[0]


@adapted
def broadcast_arrays_and_return_axes(
    *arrays: Any, require_subset: bool = True, ensure_order: bool = True
) -> tuple[tuple[Any, ...], tuple[Axis, ...]]:
    """Apply `broadcast_arrays`, and return the common axes too."""
    named = [x for x in arrays if isinstance(x, axn.NamedArray)]
    for x in arrays:
        if x is not None and not isinstance(x, axn.NamedArray) and jnp.ndim(x):
            problem = f"a plain array of shape {jnp.shape(x)} has no axes to broadcast"
            raise OperandError(
                message("broadcast_arrays", problem, hint="name it first: hax.named(array, (...))")
            )
    axes = common_axes([x.axes for x in named])
    if require_subset:
        known: set[str] = set()
        for x in sorted(named, key=lambda x: x.size, reverse=True):
            own = set(x.names)
            if known and own and not (own <= known or known <= own):
                raise _no_subset(named)
            known |= own
        first = next((x for x in named if set(x.names) == known), None)
        axes = axes if first is None else first.axes
    spread = tuple(
        broadcast_to(x, axes, ensure_order=ensure_order) if isinstance(x, axn.NamedArray) else x
        for x in arrays
    )
    return spread, axes


def _no_subset(named: Sequence[axn.NamedArray]) -> BroadcastError:
    lines = [
        f"operand {i} has: {shown(*x.axes) or 'no axes'}" for i, x in enumerate(named, start=1)
    ]
    problem = "cannot broadcast: no subset relationship between the axes"
    hint = "give one the axes of the others first: x.broadcast_axis(...)"
    return BroadcastError(message("broadcast_arrays", problem, *lines, hint=hint))


def common_axes(operands: Sequence[tuple[Axis, ...]]) -> tuple[Axis, ...]:
    """Return the axes of the largest array, with other axes of smaller ones before them."""

    def elements(axes: tuple[Axis, ...]) -> int:
        return axn.axis_size(axes)

    common: list[Axis] = []
    for axes in sorted(operands, key=elements, reverse=True):
        known = {axis.name: axis for axis in common}
        for axis in axes:
            if known.get(axis.name, axis) != axis:
                problem = (
                    f"axis {axis.name!r} has two sizes: {known[axis.name].size} and {axis.size}"
                )
                raise AxisSizeError(
                    message(
                        "broadcast_arrays",
                        problem,
                        hint=f"rename one of the two {axis.name!r} axes",
                    )
                )
        common = [*(axis for axis in axes if axis.name not in known), *common]
    return tuple(common)


@adapted
def rename(array: axn.NamedArray, renames: Mapping[AxisKey, AxisSelector]) -> axn.NamedArray:
    """Rename axes, all at once; unlike in Axonym, missing names and the sizes of old axes are ignored."""
    table: dict[AxisSelector, AxisSelector] = {}
    for old, new in renames.items():
        name, (target, new_size) = selector(old, "rename")[0], selector(new, "rename")
        if not isinstance(array, axn.NamedArray) or name in array.names:
            table[name] = target if new_size is None else new
    return axn.rename(array, table)


@adapted
def flatten(array: axn.NamedArray, new_axis_name: AxisSelector) -> axn.NamedArray:
    """Merge all axes into one, in storage order."""
    return axn.flatten(array, new_axis_name)


@adapted
def ravel(array: axn.NamedArray, new_axis_name: AxisSelector) -> axn.NamedArray:
    """Merge all axes into one, in storage order."""
    return axn.flatten(array, new_axis_name)


@adapted
def flatten_axes(*args: Any, **kwargs: Any) -> Any:
    """Merge axes into one: `(array, old_axes, new_axis)`, or `([axes, old_axes,] new_axis)` for axes without an array.

    Without old axes an array gets a leading axis of size 1. Merging all axes of a spec gives an `Axis`.
    """
    given = dict(zip(("array", "old_axes", "new_axis"), args, strict=False)) | kwargs
    if "axes" in given:
        given["array"] = given.pop("axes")
    if len(args) == 2 and "new_axis" not in kwargs:
        given["new_axis"] = given.pop("old_axes")
    if len(args) > 3 or not {"array", "new_axis"} <= given.keys() <= {
        "array",
        "old_axes",
        "new_axis",
    }:
        raise OperandError(
            message(
                "flatten_axes",
                "expected (array, old_axes, new_axis) or (axes, [old_axes,] new_axis)",
            )
        )
    x, new = given["array"], given["new_axis"]
    if not isinstance(x, axn.NamedArray):
        return _flattened_spec(x, given.get("old_axes"), new)
    old: Any = given.get("old_axes", x.names)
    if not selection(old, "flatten_axes"):
        return axn.broadcast_axis(x, Axis(selector(new, "flatten_axes")[0], 1))
    return axn.flatten_axes(x, old, new)


def _flattened_spec(axes: AxisSpec, old: AxisSelection | None, new: AxisSelector) -> Any:
    function = "flatten_axes"
    have = spec(axes, function)
    merged = have if old is None else tuple(axn.resolve_axis(have, tuple(selection_of(old))))
    name, size = selector(new, function)
    made = Axis(name, axn.axis_size(merged))
    if size not in (None, made.size):
        problem = f"{name}={size} was given, but the axes merge to size {made.size}"
        raise AxisSizeError(message(function, problem, f"axes: {shown(*have) or 'none'}"))
    if old is None:
        return made
    first = min((have.index(axis) for axis in merged), default=0)
    rest = [axis for axis in have if axis not in merged]
    result = (*rest[:first], made, *rest[first:])
    if name in [axis.name for axis in rest]:
        raise AxisClashError(message(function, f"axis {name!r} would appear twice"))
    return {axis.name: axis.size for axis in result} if isinstance(axes, Mapping) else result


def selection_of(axes: AxisSelection) -> list[AxisSelector]:
    """Return any selection as a list of selectors."""
    return [name if size is None else Axis(name, size) for name, size in selection(axes)]


@adapted
def unflatten_axis(array: axn.NamedArray, axis: AxisSelector, new_axes: AxisSpec) -> axn.NamedArray:
    """Split one axis into several, in place; without new axes, drop an axis of size 1."""
    return axn.unflatten_axis(array, axis, new_axes)


@adapted
def flatten_all_axes_but(
    a: axn.NamedArray, axis_name: str, axis: AxisSelection, reorder_to_front: bool = False
) -> tuple[axn.NamedArray, Callable[[axn.NamedArray], axn.NamedArray]]:
    """Merge `axis`, despite the name of this function, into one axis, and return a function that splits it again.

    That function restores the old order of the axes, among new ones that keep their places.
    """
    old = a.resolve_axis(tuple(selection_of(axis)))
    before = a.names
    merged = flatten_axes(a, old, axis_name)
    if reorder_to_front:
        merged = axn.rearrange(merged, (axis_name, ...))

    @adapted
    def unflatten(b: axn.NamedArray) -> axn.NamedArray:
        b = axn.unflatten_axis(b, axis_name, old)
        ordered = iter([name for name in before if name in b.names])
        return axn.rearrange(
            b, tuple(next(ordered) if name in before else name for name in b.names)
        )

    return merged, unflatten


@adapted
def split(a: axn.NamedArray, axis: AxisSelector, new_axes: Sequence[Axis]) -> list[axn.NamedArray]:
    """Split an array along an axis into a list of pieces."""
    return list(axn.split(a, axis, new_axes))


@adapted
def unbind(array: axn.NamedArray, axis: AxisSelector) -> list[axn.NamedArray]:
    """Split an array along an axis into a list of arrays without it, laid out by the current mapping."""
    return auto_sharded(list(axn.unbind(array, axis)))


@adapted
def stack(axis: AxisSelector, arrays: Sequence[axn.NamedArray]) -> axn.NamedArray:
    """Join arrays along a new axis, which comes first; unlike in Axonym, no arrays give zeros over an empty `Axis`."""
    arrays = list(arrays)
    if not arrays and isinstance(axis, Axis):
        return axn.zeros(axis, jnp.float32)
    _check_alike("stack", arrays)
    return axn.stack(axis, arrays)


@adapted
def concatenate(axis: AxisSelector, arrays: Sequence[axn.NamedArray]) -> axn.NamedArray:
    """Join arrays along an axis that they have, in the axis order of the first."""
    arrays = list(arrays)
    _check_alike("concatenate", arrays)
    return axn.concatenate(axis, arrays)


def _check_alike(function: str, arrays: Sequence[axn.NamedArray]) -> None:
    """Check that all arrays have the axes of the first: nothing is broadcast here."""
    named = [x for x in arrays if isinstance(x, axn.NamedArray)]
    for x in named:
        if set(x.names) != set(named[0].names):
            lines = [f"operand {i} has: {facts(each)}" for i, each in enumerate(named, start=1)]
            raise AxisNotFoundError(
                message(function, "the arrays do not have the same axes", *lines)
            )


@adapted
def roll(array: axn.NamedArray, shift: Any, axis: AxisSelection) -> axn.NamedArray:
    """Shift elements along axes; those shifted beyond the end reappear at the start."""
    if isinstance(shift, axn.NamedArray) and shift.ndim:
        problem = f"shift must be a scalar, but has axes: {shown(*shift.axes)}"
        raise OperandError(
            message("roll", problem, f"array has: {shown(*array.axes) or 'no axes'}")
        )
    each = list(shift) if isinstance(shift, jax.Array | np.ndarray) and shift.ndim == 1 else shift
    return axn.roll(array, each, axis)
