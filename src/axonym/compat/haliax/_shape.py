"""Names, order, grouping, joining and splitting of axes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import axonym as axn
from axonym import Axis, AxisSelection, AxisSelector, AxisSpec, axis_name
from axonym.engine import AxisKey, facts, selection, selector, selectors, shown, spec
from axonym.errors import (
    AxisClashError,
    AxisNotFoundError,
    AxisSizeError,
    BroadcastError,
    OperandError,
    message,
)

from ._adapt import Operand, adapted
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
    a: Operand, axes: AxisSpec, ensure_order: bool = True, enforce_no_extra_axes: bool = True
) -> axn.NamedArray:
    """Add the axes that `a` lacks, in front, and order all axes as in `axes`; a scalar may be broadcast too.

    Args:
        a: an array or a scalar.
        axes: the axes; one that `a` has may be given as a name.
        ensure_order: put the axes in the given order, unless they already are.
        enforce_no_extra_axes: raise an error if `a` has other axes.
    """
    if not isinstance(a, axn.NamedArray):
        a = axn.named(a, ())
    sizes: dict[str, Any] = dict(selection(axes))
    for name, size in sizes.items():
        if size is None:
            sizes[name] = a.shape.get(name)
    wanted = spec(sizes, "broadcast_to")
    names = axis_name(wanted)
    extra = [name for name in a.names if name not in names]
    if extra and enforce_no_extra_axes:
        lines = (f"array has: {shown(*a.axes)}", f"asked for: {shown(*wanted) or 'no axes'}")
        raise AxisNotFoundError(
            message("broadcast_to", f"the array has the extra axis {extra[0]!r}", *lines)
        )
    x = axn.broadcast_axis(a, wanted)
    if not ensure_order or tuple(name for name in x.names if name in names) == names:
        return x
    return axn.rearrange(x, (*names, ...))


def broadcast_axis(a: axn.NamedArray, axis: AxisSpec) -> axn.NamedArray:
    """Add the axes that `a` lacks, in front; unlike in Axonym, the given axes are put in the given order."""
    return broadcast_to(a, axis, enforce_no_extra_axes=False)


def broadcast_arrays(
    *arrays: Operand | None, require_subset: bool = True, ensure_order: bool = True
) -> tuple[Any, ...]:
    """Broadcast all arrays to the axes of all; scalars and None are unchanged.

    Unlike in Axonym, axes that the largest array lacks are put before its own, those of the next largest array first.
    """
    return broadcast_arrays_and_return_axes(
        *arrays, require_subset=require_subset, ensure_order=ensure_order
    )[0]


@adapted
def broadcast_arrays_and_return_axes(
    *arrays: Operand | None, require_subset: bool = True, ensure_order: bool = True
) -> tuple[tuple[Any, ...], tuple[Axis, ...]]:
    """Apply `broadcast_arrays`, and return the common axes too."""
    named: list[axn.NamedArray] = []
    for x in arrays:
        if isinstance(x, axn.NamedArray):
            named.append(x)
        elif x is not None and jnp.ndim(x):
            problem = f"a plain array of shape {jnp.shape(x)} has no axes to broadcast"
            raise OperandError(
                message("broadcast_arrays", problem, hint="name it first: hax.named(array, (...))")
            )
    axes = common_axes([x.axes for x in named])
    if require_subset:
        axes = _axes_of_all(named, axes)
    spread: list[Operand | None] = []
    for x in arrays:
        if isinstance(x, axn.NamedArray):
            x = broadcast_to(x, axes, ensure_order=ensure_order)
        spread.append(x)
    return tuple(spread), axes


def _axes_of_all(named: Sequence[axn.NamedArray], common: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """Return the axes of the first array that has all axes, else the common axes; raise unless axes are nested."""
    known: set[str] = set()
    for x in sorted(named, key=lambda x: x.size, reverse=True):
        own = set(x.names)
        if known and own and not (own <= known or known <= own):
            raise _no_subset(named)
        known |= own
    for x in named:
        if set(x.names) == known:
            return x.axes
    return common


def _no_subset(named: Sequence[axn.NamedArray]) -> BroadcastError:
    problem = "cannot broadcast: no subset relationship between the axes"
    hint = "give one the axes of the others first: x.broadcast_axis(...)"
    return BroadcastError(message("broadcast_arrays", problem, *_operands(named), hint=hint))


def _operands(named: Sequence[axn.NamedArray]) -> list[str]:
    """List the operands in an error."""
    return [f"operand {i} has: {facts(x)}" for i, x in enumerate(named, start=1)]


def common_axes(operands: Sequence[tuple[Axis, ...]]) -> tuple[Axis, ...]:
    """Return the axes of the largest array, preceded by axes that only smaller arrays have."""
    common: dict[str, int] = {}
    for axes in sorted(operands, key=axn.axis_size, reverse=True):
        added: dict[str, int] = {}
        for axis in axes:
            if axis.name not in common:
                added[axis.name] = axis.size
            elif common[axis.name] != axis.size:
                problem = f"axis {axis.name!r} has two sizes: {common[axis.name]} and {axis.size}"
                hint = f"rename one of the two {axis.name!r} axes"
                raise AxisSizeError(message("broadcast_arrays", problem, hint=hint))
        common = added | common
    return spec(common)


@adapted
def rename(array: axn.NamedArray, renames: Mapping[AxisKey, AxisSelector]) -> axn.NamedArray:
    """Rename axes, all at once; unlike in Axonym, missing names and the sizes of old axes are ignored."""
    table: dict[AxisSelector, AxisSelector] = {}
    for old, new in renames.items():
        name, _ = selector(old, "rename")
        (target,) = selectors((selector(new, "rename"),))
        if not isinstance(array, axn.NamedArray) or name in array.names:
            table[name] = target
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
    known = {"array", "old_axes", "new_axis"}
    if len(args) > 3 or not {"array", "new_axis"} <= given.keys() <= known:
        problem = "expected (array, old_axes, new_axis) or (axes, [old_axes,] new_axis)"
        raise OperandError(message("flatten_axes", problem))
    x, new = given["array"], given["new_axis"]
    if not isinstance(x, axn.NamedArray):
        return _flattened_spec(x, given.get("old_axes"), new)
    old: AxisSelection = given.get("old_axes", x.names)
    if not selection(old, "flatten_axes"):
        return axn.broadcast_axis(x, Axis(selector(new, "flatten_axes")[0], 1))
    return axn.flatten_axes(x, old, new)


def _flattened_spec(axes: AxisSpec, old: AxisSelection | None, new: AxisSelector) -> AxisSpec:
    function = "flatten_axes"
    merged = have = spec(axes, function)
    if old is not None:
        merged = axn.resolve_axis(have, selectors(selection(old)))
    name, size = selector(new, function)
    made = Axis(name, axn.axis_size(merged))
    if size not in (None, made.size):
        problem = f"{name}={size} was given, but the axes merge to size {made.size}"
        raise AxisSizeError(message(function, problem, f"axes: {shown(*have) or 'none'}"))
    if old is None:
        return made
    first = min(map(have.index, merged), default=0)
    rest = axn.without_axes(have, merged)
    if name in axis_name(rest):
        raise AxisClashError(message(function, f"axis {name!r} would appear twice"))
    result = (*rest[:first], made, *rest[first:])
    if isinstance(axes, Mapping):
        return axn.union_axes({}, result)
    return result


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
    old = a.resolve_axis(selectors(selection(axis)))
    before = a.names
    merged = flatten_axes(a, old, axis_name)
    if reorder_to_front:
        merged = axn.rearrange(merged, (axis_name, ...))

    @adapted
    def unflatten(b: axn.NamedArray) -> axn.NamedArray:
        b = axn.unflatten_axis(b, axis_name, old)
        ordered = iter([name for name in before if name in b.names])
        order: list[str] = []
        for name in b.names:
            if name in before:
                name = next(ordered)
            order.append(name)
        return axn.rearrange(b, order)

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
            problem = "the arrays do not have the same axes"
            raise AxisNotFoundError(message(function, problem, *_operands(named)))


@adapted
def roll(array: axn.NamedArray, shift: Any, axis: AxisSelection) -> axn.NamedArray:
    """Shift elements along axes; those shifted beyond the end reappear at the start."""
    if isinstance(shift, axn.NamedArray) and shift.ndim:
        problem = f"shift must be a scalar, but has axes: {shown(*shift.axes)}"
        raise OperandError(
            message("roll", problem, f"array has: {shown(*array.axes) or 'no axes'}")
        )
    if isinstance(shift, jax.Array | np.ndarray) and shift.ndim == 1:
        shift = list(shift)
    return axn.roll(array, shift, axis)
