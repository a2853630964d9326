"""Mutable arrays with names."""

import builtins
from collections.abc import Mapping
from typing import Any, TypeAlias, cast

import jax
import numpy as np

import axonym as axn
from axonym import Axis, AxisSelection, AxisSelector
from axonym.engine import AxisKey, facts
from axonym.errors import message

from ._adapt import KindError, Operand, adapted
from ._index import Item, cast_to, parts_of, window, windows
from .core import NamedArray

__all__ = ["NamedRef", "freeze", "get", "new_ref", "swap"]


Stage: TypeAlias = dict[AxisSelector, Any]


@jax.tree_util.register_pytree_node_class
class NamedRef(axn.NamedRef):
    """A mutable array with names, or a view of a part of one; `ref[idx]` reads and `ref[idx] = value` writes.

    Unlike in Axonym, a plain array of exactly the shape of the part may be written; a named one needs all its axes.

    Args:
        _ref: the reference, from `jax.new_ref`.
        _axes: its axes.
        _prefix: the indices that make a view, one for each axis: an int, a slice, or a dynamic slice of JAX.
    """

    __slots__ = ()

    @adapted
    def __init__(self, _ref: Any, _axes: AxisSelection, _prefix: tuple[object, ...] = ()) -> None:
        super().__init__(_ref, _axes)
        chosen: Stage = {}
        for axis, part in zip(self.whole.axes, _prefix, strict=bool(_prefix)):
            part = window(part)
            if not isinstance(part, builtins.slice) or part != builtins.slice(None):
                chosen[axis.name] = part
        if chosen:
            self.stages = (chosen,)

    @property
    def _ref(self) -> jax.Array:
        return self.whole.array

    @property
    def _axes(self) -> tuple[Axis, ...]:
        return self.whole.axes

    @property
    def _prefix(self) -> tuple[object, ...]:
        return tuple(_composed(axis, self.stages) for axis in self.whole.axes)

    @adapted
    def resolve_axis(self, axis: AxisSelector) -> Axis:
        """Return an axis of the view with its size."""
        return super().resolve_axis(axis)

    @adapted
    def slice(self, selector: Mapping[AxisKey, Any]) -> "NamedRef":
        """Return a view of a part; a view can be viewed again."""
        return self._viewing(super().slice(windows(selector)).stages)

    def unsliced(self) -> "NamedRef":
        """Return the complete array of which this is a view."""
        return self._viewing(())

    def _viewing(self, stages: tuple[Stage, ...]) -> "NamedRef":
        made = object.__new__(NamedRef)
        made.whole, made.stages = self.whole, stages
        return made

    def unsafe_buffer_pointer(self) -> int:
        """Return the address of the buffer."""
        return self._ref.unsafe_buffer_pointer()

    @adapted
    def value(self) -> axn.NamedArray:
        """Read the view."""
        return super().value()

    def __getitem__(self, item: Item) -> NamedArray:
        whole = cast(NamedArray, self.value())
        if item is ...:
            return whole
        return cast(NamedArray, whole[item])

    @property
    def shape(self) -> Any:
        """The sizes of the axes of the view: a plain dict, which can be iterated."""
        return dict(super().shape)

    @adapted
    def __setitem__(self, item: Item, value: Any) -> None:
        if isinstance(value, list | np.ndarray | jax.Array) and np.ndim(value):
            value = NamedArray(value, jax.eval_shape(lambda: self[item]).axes)
        if isinstance(value, axn.NamedArray) and value.ndim:
            part = jax.eval_shape(lambda: self[item])
            if set(part.shape) > set(value.shape):
                lines = (f"part has: {facts(part)}", f"value has: {facts(value)}")
                problem = "a value needs all axes of the part that it is written to"
                raise KindError(message("ref", problem, *lines))
        super().__setitem__(
            parts_of("ref", self.whole, self.axes, item), cast_to(self.whole, value)
        )


def _composed(axis: Axis, stages: tuple[Stage, ...]) -> object:
    """Return the index of one axis of a view: a number, a dynamic slice of JAX, or `slice(None)` without any index."""
    from jax.experimental import pallas  # slow to import, and rarely needed

    parts = [stage[axis.name] for stage in stages if axis.name in stage]
    if not parts:
        return builtins.slice(None)
    if any(np.ndim(getattr(part, "array", part)) for part in parts if not _is_range(part)):
        places = axn.arange(axis)
        for part in parts:
            places = places[axis.name, part]
        return places.array
    start: Any = 0
    size, stride = axis.size, 1
    for part in parts:
        if isinstance(part, builtins.slice):
            chosen = range(*part.indices(size))
            start += chosen.start * stride
            size, stride = len(chosen), stride * chosen.step
        elif isinstance(part, axn.dslice):
            start, size = start + part.start * stride, part.size
        else:
            at = getattr(part, "array", part)
            if isinstance(at, int) and at < 0:
                at += size
            return start + at * stride
    return pallas.Slice(start, size, stride)


def _is_range(part: object) -> bool:
    return isinstance(part, builtins.slice | axn.dslice)


@adapted
def new_ref(value: NamedArray) -> NamedRef:
    """Make a mutable array with an initial value."""
    made = axn.new_ref(value)
    return NamedRef(made.whole.array, made.axes)


def freeze(ref: NamedRef) -> NamedArray:
    """Read a reference, or a view of it; unlike in Axonym, it may be used afterwards."""
    return get(ref)


@adapted
def get(ref: NamedRef, idx: Item = ...) -> NamedArray:
    """Read a part of a reference: `ref[idx]`."""
    return ref[idx]


@adapted
def swap(ref: NamedRef, idx: Item, value: Operand) -> NamedArray:
    """Write a part of a reference, and return its old value."""
    before = ref[idx]
    ref[idx] = value
    return before
