"""Mutable arrays with names."""

import builtins
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

import axonym as axn
from axonym import Axis, AxisSelector
from axonym.engine import AxisKey, facts
from axonym.errors import message

from ._adapt import KindError, adapted
from ._index import cast_to, parts_of, window
from .core import NamedArray, SliceSpec

__all__ = ["NamedRef", "freeze", "get", "new_ref", "swap"]


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
    def __init__(self, _ref: Any, _axes: Any, _prefix: tuple[Any, ...] = ()) -> None:
        super().__init__(_ref, _axes)
        parts: dict[AxisSelector, Any] = {
            axis.name: window(part)
            for axis, part in zip(self.whole.axes, _prefix, strict=bool(_prefix))
        }
        chosen = {name: part for name, part in parts.items() if not _is_whole(part)}
        self.stages = (chosen,) if chosen else ()

    @property
    def _ref(self) -> Any:
        return self.whole.array

    @property
    def _axes(self) -> tuple[Axis, ...]:
        return self.whole.axes

    @property
    def _prefix(self) -> tuple[Any, ...]:
        return tuple(_composed(axis, self.stages) for axis in self.whole.axes)

    @adapted
    def resolve_axis(self, axis: AxisSelector) -> Axis:
        """Return an axis of the view with its size."""
        return super().resolve_axis(axis)

    @adapted
    def slice(self, selector: Mapping[AxisKey, Any]) -> "NamedRef":
        """Return a view of a part; views of views compose."""
        return self._viewing(
            super().slice({axis: window(part) for axis, part in selector.items()}).stages
        )

    def unsliced(self) -> "NamedRef":
        """Return the whole array that this is a view of."""
        return self._viewing(())

    def _viewing(self, stages: tuple[Any, ...]) -> "NamedRef":
        made = object.__new__(NamedRef)
        made.whole, made.stages = self.whole, stages
        return made

    def unsafe_buffer_pointer(self) -> Any:
        """Return the address of the buffer."""
        return self._ref.unsafe_buffer_pointer()

    @adapted
    def value(self) -> axn.NamedArray:
        """Read the view."""
        return super().value()

    def __getitem__(self, item: Any) -> NamedArray:
        whole: Any = self.value()
        part: NamedArray = whole if item is ... else whole[item]
        return part

    @property
    def shape(self) -> Any:
        """The sizes of the axes of the view: a plain dict, which can be iterated."""
        return dict(super().shape)

    @adapted
    def __setitem__(self, item: Any, value: Any) -> None:
        is_plain = isinstance(value, list | np.ndarray | jax.Array)
        if np.ndim(value) if is_plain else isinstance(value, axn.NamedArray) and value.ndim:
            part = jax.eval_shape(lambda: self[item])
            value = NamedArray(value, part.axes) if is_plain else value
            if set(part.shape) > set(value.shape):
                lines = (f"part has: {facts(part)}", f"value has: {facts(value)}")
                raise KindError(
                    message(
                        "ref", "a value needs all axes of the part that it is written to", *lines
                    )
                )
        super().__setitem__(
            parts_of("ref", self.whole, self.axes, item), cast_to(self.whole, value)
        )


def _is_whole(part: Any) -> bool:
    return isinstance(part, builtins.slice) and part == builtins.slice(None)


def _composed(axis: Axis, stages: tuple[dict[AxisSelector, Any], ...]) -> Any:
    """Return the index of one axis of a view: a number, a dynamic slice of JAX, or `slice(None)` if no stage has it."""
    from jax.experimental import pallas  # slow to import, and rarely needed

    parts = [stage[axis.name] for stage in stages if axis.name in stage]
    start: Any = 0
    size, stride = axis.size, 1
    for part in parts:
        if isinstance(part, builtins.slice):
            first, stop, step = part.indices(size)
            start, size, stride = (
                start + first * stride,
                len(range(first, stop, step)),
                stride * step,
            )
        elif isinstance(part, axn.dslice):
            start, size = start + part.start * stride, part.size
        else:
            at = getattr(part, "array", part)
            return start + (at + size if isinstance(at, int) and at < 0 else at) * stride
    return pallas.Slice(start, size, stride) if parts else builtins.slice(None)


@adapted
def new_ref(value: NamedArray) -> NamedRef:
    """Make a mutable array with an initial value."""
    made = axn.new_ref(value)
    return NamedRef(made.whole.array, made.axes)


def freeze(ref: NamedRef) -> NamedArray:
    """Read a reference, or a view of it; unlike in Axonym, it may be used afterwards."""
    return get(ref)


@adapted
def get(ref: NamedRef, idx: SliceSpec | Any = ...) -> NamedArray:
    """Read a part of a reference: `ref[idx]`."""
    return ref[idx]


@adapted
def swap(ref: NamedRef, idx: SliceSpec | Any, value: Any) -> NamedArray:
    """Write a part of a reference, and return its old value."""
    before = ref[idx]
    ref[idx] = value
    return before
