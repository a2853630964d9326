"""Indexing and updates by name."""

# `_writing` makes methods of `AtPart`.
# pyright: reportPrivateUsage=false

import builtins
from collections.abc import Callable, Mapping, Sequence
from types import EllipsisType
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

import axonym as axn
from axonym import Axis, AxisSelector, axis_name
from axonym.engine import AxisKey, facts, selector, selectors_of, shown, wrap
from axonym.errors import AxisNotFoundError, AxisSizeError, BroadcastError, OperandError, message

from ._adapt import Operand, adapted
from ._shape import common_axes
from .types import GatherScatterModeStr

__all__ = ["index", "slice", "take", "updated_slice"]

Selectors: TypeAlias = Mapping[AxisSelector, Any]
Item: TypeAlias = Selectors | tuple[object, ...] | EllipsisType


@adapted
def index(array: axn.NamedArray, slices: Selectors) -> axn.NamedArray:
    """Index by name; the axes of the result are in Haliax's order.

    Unlike in Axonym, index arrays, dslices and ints form one positional index as in numpy: their axes replace the
    indexed dimensions if these are adjacent, and otherwise come first. The axes of the largest index come last, and an
    axis that an index shares with the array counts as indexed.
    """
    return _indexed(array, slices)


@adapted
def getitem(array: axn.NamedArray, item: Item) -> axn.NamedArray:
    """Index by a dict, or by pairs of an axis and a selector."""
    if item is ...:
        hint = "use the array itself; only x.at and references take ..."
        raise OperandError(message("index", "Invalid index type: ... names no axis", hint=hint))
    return _indexed(array, selectors_of("index", array, item))


def _indexed(array: axn.NamedArray, slices: Selectors) -> axn.NamedArray:
    parts = _selectors(array, slices)
    return _ordered(axn.index(array, parts), array, parts)


def _selectors(array: axn.NamedArray, slices: Selectors) -> dict[AxisSelector, Any]:
    """Check the axes of an index, and convert slices of Pallas to dslices."""
    if not isinstance(slices, Mapping):
        problem = f"an index is a dict from axes to selectors, not {type(slices).__name__}"
        raise OperandError(message("index", problem))
    found: dict[AxisSelector, Any] = {}
    for axis, part in slices.items():
        name, size = selector(axis, "index")
        if isinstance(array, axn.NamedArray) and size not in (None, array.shape.get(name, size)):
            array.resolve_axis(axis)
        found[name] = window(part)
    if not isinstance(array, axn.NamedArray):
        return found
    found = paired(array.axes, found)
    for axis, part in found.items():
        found[axis] = _unknown(array.shape.get(axis_name(axis)), part)
    return found


def window(part: Any) -> object:
    """Convert a dynamic slice of JAX, such as `pl.ds(1, 3)`, to a dslice, or to a slice if it has a stride."""
    if isinstance(part, axn.dslice | builtins.slice) or not (
        hasattr(part, "start") and hasattr(part, "size")
    ):
        return part
    stride = getattr(part, "stride", 1)
    if stride == 1:
        return axn.dslice(part.start, part.size)
    return builtins.slice(part.start, part.start + part.size * stride, stride)


def parts_of(
    function: str, x: axn.NamedArray, axes: Sequence[Axis], item: Item
) -> dict[AxisSelector, Any]:
    """Parse the contents of brackets that select a part of a view of `x` with these axes."""
    return paired(axes, windows(selectors_of(function, x, item)))


def windows(selectors: Mapping[AxisKey, Any]) -> dict[AxisKey, object]:
    """Apply `window` to each selector."""
    return {axis: window(part) for axis, part in selectors.items()}


def paired(axes: Sequence[Axis], selectors: Mapping[AxisSelector, Any]) -> dict[AxisSelector, Any]:
    """Name each plain index array of one dimension after the first axis of its size that is not indexed.

    As in Haliax, it is then paired with that axis, position by position. An array that fits no axis keeps the name of
    the axis that it indexes, and so does a list.
    """
    indexed = set(map(axis_name, selectors))

    def one(part: object) -> object:
        if not isinstance(part, jax.Array) or part.ndim != 1:
            return part
        if not jnp.issubdtype(part.dtype, jnp.integer):
            return part
        for axis in axes:
            if axis.name not in indexed and axis.size == part.shape[0]:
                return axn.NamedArray(part, (axis.name,))
        return part

    return {axis: one(part) for axis, part in selectors.items()}


def _ordered(result: axn.NamedArray, array: axn.NamedArray, selectors: Selectors) -> axn.NamedArray:
    """Order the axes of an indexed array as Haliax does."""
    order = _order(array, selectors)
    if order is None or order == result.names:
        return result
    return axn.rearrange(result, order)


def _order(array: axn.NamedArray, selectors: Selectors) -> tuple[str, ...] | None:
    """Return the order in which Haliax has the axes of an indexed array; None if it is the same as in Axonym."""
    parts: dict[str, object] = {}
    for axis, part in selectors.items():
        if not isinstance(part, builtins.slice):
            parts[axis_name(axis)] = part
    operands = [_own_axes(name, parts[name]) for name in array.names if name in parts]
    union = axis_name(common_axes(operands))
    if not union:
        return None
    indexed = {*union, *parts}
    at = [i for i, name in enumerate(array.names) if name in indexed]
    kept = [name for name in array.names if name not in indexed]
    first = 0
    if at[-1] - at[0] + 1 == len(at):  # they are adjacent
        first = at[0]
    return (*kept[:first], *union, *kept[first:])


def _own_axes(name: str, part: Any) -> tuple[Axis, ...]:
    """Return the axes of a selector that is not a slice; a selector without names has the axis that it indexes."""
    if isinstance(part, axn.NamedArray):
        return part.axes
    if isinstance(part, axn.dslice):
        return (Axis(name, part.size),)
    return tuple(Axis(name, size) for size in np.shape(part)[:1])


@adapted
def take(array: axn.NamedArray, axis: AxisSelector, index: Operand) -> axn.NamedArray:
    """Take elements along an axis, which is replaced by the axes of `index`.

    Unlike in Axonym, the new axes come first if the index has other axes of the array, and the index may be a plain
    array.
    """
    result = axn.take(array, axis, index)
    if not isinstance(index, axn.NamedArray):
        return result
    shared = {*index.names} & {*array.names} - {axis_name(axis)}
    if not shared:
        return result
    new = [name for name in index.names if name not in shared]
    return axn.rearrange(result, (*new, *(name for name in result.names if name not in new)))


@adapted
def slice(array: axn.NamedArray, *args: Any, **kwargs: Any) -> axn.NamedArray:
    """Cut pieces at starts that may be traced, each moved so that the piece fits.

    There are two forms: `(array, axis, new_axis=None, start=0, length=None)` cuts along one axis, and
    `(array, {axis: start}, {axis: length or Axis})` along several. A new name or `Axis` may replace the axis.
    """
    start = kwargs.get("start")
    if args:
        start = args[0]
    if isinstance(start, Mapping):
        return _sliced_along(array, *args, **kwargs)
    return _sliced(array, *args, **kwargs)


def _sliced(
    array: axn.NamedArray,
    axis: AxisSelector,
    new_axis: AxisSelector | None = None,
    start: Operand = 0,
    length: int | Axis | None = None,
) -> axn.NamedArray:
    name = selector(axis, "slice")[0]
    new, size = name, None
    if new_axis is not None:
        new, size = selector(new_axis, "slice")
    wanted = size
    if length is not None:
        wanted = to_size(length)
    if wanted is None:
        hint = "give the length, or an Axis as new_axis"
        raise OperandError(message("slice", f"the piece along {name!r} has no length", hint=hint))
    if size not in (None, wanted):
        raise AxisSizeError(message("slice", f"new_axis {new}={size} is not of length {wanted}"))
    if isinstance(array, axn.NamedArray) and name in array.names:
        start = fitting(start, array.axis_size(name), wanted)
    result = axn.slice(array, axis, start=start, length=wanted)
    if new == name:
        return result
    return axn.rename(result, {name: new})


def _sliced_along(array: axn.NamedArray, start: Selectors, length: Selectors) -> axn.NamedArray:
    lengths = {selector(axis, "slice")[0]: (axis, size) for axis, size in length.items()}
    renames: dict[AxisSelector, AxisSelector] = {}
    for axis, begin in start.items():
        name = selector(axis, "slice")[0]
        if name not in lengths:
            problem = f"axis {name!r} has a start, but no length"
            raise AxisNotFoundError(
                message("slice", problem, f"lengths of: {', '.join(lengths) or 'no axes'}")
            )
        _, size = lengths.pop(name)
        have = array.resolve_axis(axis)
        count = to_size(size)
        if isinstance(begin, int) and begin > have.size - count:
            problem = f"cannot cut {count} elements, starting at {begin}, from {shown(have)}"
            raise AxisSizeError(message("slice", problem))
        array = axn.slice(array, axis, start=fitting(begin, have.size, count), length=count)
        if isinstance(size, Axis) and size.name != name:
            renames[name] = size.name
    if lengths:
        problem = f"axis {next(iter(lengths))!r} has a length, but no start"
        raise AxisNotFoundError(message("slice", problem))
    if not renames:
        return array
    return axn.rename(array, renames)


def to_size(length: int | Axis) -> int:
    """Return a length; that of an `Axis` is its size."""
    if isinstance(length, Axis):
        return length.size
    return length


@adapted
def updated_slice(array: axn.NamedArray, start: Selectors, update: Operand) -> axn.NamedArray:
    """Write a piece into an array at starts that may be traced; the piece is converted to the dtype of the array.

    Raises:
        AxisSizeError: if a start is a Python int, and the piece would run over the end. Other starts are moved.
    """
    if not isinstance(array, axn.NamedArray) or not isinstance(start, Mapping):
        return axn.updated_slice(array, start, cast_to(array, update))
    sizes: dict[str, int] = {}
    if isinstance(update, axn.NamedArray):
        sizes = dict(zip(update.names, np.shape(update.array), strict=False))
        extra = ", ".join(name for name in sizes if name not in array.names)
        if extra:
            problem = f"the update has axes ({extra}) that are not in the original array with shape {array.shape}"
            raise BroadcastError(message("updated_slice", problem, f"update has: {facts(update)}"))
    starts: dict[AxisSelector, Any] = dict(start)
    for axis, begin in start.items():
        if axis_name(axis) not in array.names:
            continue
        have, count = array.resolve_axis(axis), sizes.get(axis_name(axis), 1)
        if isinstance(begin, int) and begin > have.size - count:
            problem = f"a piece of {count} elements that starts at {begin} runs over the end of {shown(have)}"
            raise AxisSizeError(message("updated_slice", problem, f"array has: {facts(array)}"))
        starts[axis] = fitting(begin, have.size, count)
    return axn.updated_slice(array, starts, cast_to(array, update))


def fitting(start: Any, size: int, length: int) -> Any:
    """Move a start that is not traced so that a piece of this length fits, as in lax; -1 is the last position.

    Axonym raises for a number out of range.
    """
    if not isinstance(start, int | np.integer):
        return start
    if start < 0:
        start += size
    return max(0, min(start, size - length))


def cast_to(array: axn.NamedArray, update: Any) -> Any:
    """Convert an update to the dtype of the array, as in JAX; in Axonym, lossy conversions are errors."""
    if not isinstance(array, axn.NamedArray):
        return update
    if isinstance(update, int | float) and (
        array.dtype == bool or jnp.issubdtype(array.dtype, jnp.integer)
    ):
        return np.asarray(update).astype(array.dtype)
    if not isinstance(update, axn.NamedArray | np.ndarray | np.generic | jax.Array):
        return update
    dtype = update.dtype
    if dtype == array.dtype or jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return update
    return update.astype(array.dtype)


class At:
    """The type of `x.at`: an index selects the part of `x` to read or update."""

    __slots__ = ("_x",)

    def __init__(self, x: axn.NamedArray) -> None:
        self._x = x

    @adapted
    def __getitem__(self, item: Item) -> "AtPart":
        return AtPart(self._x, selectors_of("at", self._x, item))


def _traced(part: object) -> object:
    """Convert an index to an array, so that `mode` applies; in Axonym, a Python int out of range is an error."""
    if isinstance(part, int | np.integer):
        return jnp.asarray(part)
    return part


def _unknown(size: int | None, part: object) -> object:
    """Hide the numbers of an index: Axonym raises for known numbers out of range, and moves traced ones into range."""
    if isinstance(part, axn.dslice) and isinstance(part.start, int):
        if size is None or -part.size < part.start < size:
            return part
        return axn.dslice(jnp.asarray(part.start), part.size)
    if isinstance(part, axn.NamedArray) and isinstance(part.array, np.ndarray):
        return wrap(part, jnp.asarray(part.array), part.names)
    if isinstance(part, np.ndarray):
        return jnp.asarray(part)
    if not isinstance(part, list | tuple) or not part:
        return part
    if all(isinstance(each, int | np.integer) for each in part):
        return jnp.asarray(part)
    return part


def _writing(operation: str) -> Callable[..., axn.NamedArray]:
    """Make the method of `x.at[...]` for one way to update."""

    @adapted
    def write(
        self: "AtPart",
        update: Operand,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: GatherScatterModeStr | None = None,
    ) -> axn.NamedArray:
        x = self._x
        if operation == "divide" and jnp.issubdtype(x.dtype, jnp.integer):
            x = x.astype(jnp.result_type(float))
        result: axn.NamedArray = getattr(part_of(x, self._selectors), operation)(
            cast_to(x, update),
            indices_are_sorted=indices_are_sorted,
            unique_indices=unique_indices,
            mode=mode,
        )
        return result

    write.__name__ = operation
    write.__doc__ = f"Update the part by `{operation}`, in the dtype of the array."
    return write


class AtPart:
    """A part of an array, selected by `x.at[...]`, to read or update.

    Unlike Axonym's, it converts updates to the dtype of the array, `divide` converts integers to floats, and `apply`
    calls a function of plain arrays.
    """

    __slots__ = ("_part", "_selectors", "_x")

    @adapted
    def __init__(self, x: axn.NamedArray, selectors: Selectors) -> None:
        self._x = x
        parts = _selectors(x, selectors)
        self._selectors = dict(zip(parts, map(_traced, parts.values()), strict=True))
        self._part = part_of(x, self._selectors)

    @adapted
    def get(
        self,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: GatherScatterModeStr | None = None,
        fill_value: ArrayLike | None = None,
    ) -> axn.NamedArray:
        """Read the part, with a choice of the values for indices out of range."""
        part = self._part.get(
            indices_are_sorted=indices_are_sorted,
            unique_indices=unique_indices,
            mode=mode,
            fill_value=fill_value,
        )
        return _ordered(part, self._x, self._selectors)

    set = _writing("set")
    add = _writing("add")
    subtract = _writing("subtract")
    multiply = _writing("multiply")
    mul = multiply
    divide = _writing("divide")
    power = _writing("power")
    min = _writing("min")
    max = _writing("max")

    def apply(
        self,
        func: Callable[[jax.Array], ArrayLike],
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: GatherScatterModeStr | None = None,
    ) -> axn.NamedArray:
        """Replace the part by an elementwise function of its plain array.

        The function is applied to an element as often as index arrays have it. If indices may repeat, there is no
        gradient; `unique_indices` promises that they do not.
        """
        if not unique_indices and any(map(_may_repeat, self._selectors.values())):
            return self._apply_often(func, mode)
        part = self.get()
        return self.set(
            wrap(part, func(part.array), part.names),
            indices_are_sorted=indices_are_sorted,
            unique_indices=unique_indices,
            mode=mode,
        )

    @adapted
    def _apply_often(
        self, func: Callable[[jax.Array], ArrayLike], mode: GatherScatterModeStr | None
    ) -> axn.NamedArray:
        """Apply a function to each element as often as the index has it."""
        x = self._x
        never = axn.zeros_like(x, dtype=jnp.int32)
        times = part_of(never, self._selectors).add(1, mode=mode).array

        def again(done: jax.Array, array: jax.Array) -> jax.Array:
            return jnp.where(done < times, cast_to(x, func(array)), array)

        return wrap(x, jax.lax.fori_loop(0, times.max(initial=0), again, x.array), x.names)


def part_of(x: axn.NamedArray, selectors: Selectors) -> Any:
    """Select a part as Axonym does."""
    at: Any = axn.NamedArray.at
    return at.fget(x)[selectors]


def _may_repeat(part: Any) -> bool:
    """Return whether an index may have an element twice; a window out of range does if it is clipped."""
    if isinstance(part, builtins.slice):
        return False
    return isinstance(part, axn.dslice) or np.ndim(getattr(part, "array", part)) > 0
