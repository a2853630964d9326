"""Mutable arrays with names, based on `jax.new_ref`: all holders of a reference see what is written to it.

Functions under `jax.jit`, `lax.scan` or `axn.scan` may close over a reference; functions under `jax.jit` or
`axn.named_jit` may take one as an argument. They cannot return one.
"""

import builtins
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .array import NamedArray
from .axis import Axis, AxisKey, AxisSelection, AxisSelector, axis_name
from .base.dtypes import widen_positions
from .base.kinds import type_text
from .engine.core import Operand, axes_of, facts
from .engine.position import Reach, reading, run_with_ints
from .engine.scatter import write
from .engine.steps import (
    Gather,
    Int,
    Item,
    Slice,
    Step,
    Strided,
    Traced,
    Window,
    check_range,
    removes_axis,
    selectors_of,
    step_of_range,
    steps_of,
)
from .errors import OperandError, describe, message
from .shape import Shape

__all__ = ["NamedRef", "freeze", "get", "new_ref", "swap"]

Stage = dict[AxisSelector, Any]
_PLAIN = Reach()


@jax.tree_util.register_pytree_node_class
class NamedRef:
    """A mutable array whose trailing dimensions have names, or a view of a part of one.

    `ref[...]` reads everything, `ref["batch", 0]` and `ref[{"batch": 0}]` a part; all selectors of NamedArrays work.
    Assigning to an index writes a scalar, or an array whose axes are among those of the part. For indices out of range,
    reads behave like `x[...]` and writes like `x.at[...].set`.

    Args:
        ref: the reference, from `jax.new_ref`.
        axes: one axis per trailing dimension: an `Axis`, whose size must match, or a name.

    Attributes:
        whole: a NamedArray that holds the reference as its array.
        stages: the indices that make the view, each applied to the result of those before it.

    Raises:
        AxisSizeError: if the number of axes or a size does not match.

    Examples:
        >>> ref = axn.new_ref(axn.zeros((axn.Axis("batch", 2), axn.Axis("pos", 3))))
        >>> ref["batch", 1, "pos", 1:] = 5.0
        >>> ref["batch", 1].tolist()
        [0.0, 5.0, 5.0]
    """

    __slots__ = ("stages", "whole")
    whole: NamedArray
    stages: tuple[Stage, ...]

    def __init__(self, ref: jax.Ref, axes: AxisSelection) -> None:
        self.whole = NamedArray(ref, axes)
        self.stages = ()

    # properties
    @property
    def axes(self) -> tuple[Axis, ...]:
        """The named axes of the view with their sizes, in storage order."""
        return axes_of("axes", _describe(self))

    @property
    def shape(self) -> Shape:
        """The sizes of the named axes of the view, by name."""
        return Shape(self.axes)

    @property
    def named_shape(self) -> Shape:
        """An alias of `shape`."""
        return self.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the elements."""
        return self.whole.dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions of the view, anonymous ones included."""
        return _describe(self).ndim

    def resolve_axis(self, axis: AxisSelector) -> Axis:
        """Return an axis of the view with its size.

        Args:
            axis: a name, or an `Axis` whose size must be that of the view.

        Raises:
            AxisNotFoundError: if it is missing.
            AxisSizeError: if an `Axis` has another size.
        """
        return _describe(self).resolve_axis(axis)

    # views
    def slice(self, selector: Mapping[AxisKey, Any]) -> "NamedRef":
        """Return a view of a part, which reads and writes this array; a view can be viewed again.

        Args:
            selector: a mapping from axes to ints (static or traced), slices, dslices, and lists or arrays of positions,
                which keep the axis.

        Raises:
            OperandError: if an index array has other axes than the one that it indexes.

        Examples:
            >>> ref = axn.new_ref(axn.zeros(axn.Axis("pos", 4)))
            >>> last = ref.slice({"pos": slice(2, None)})
            >>> last["pos", 0] = 7.0
            >>> ref[...].tolist()
            [0.0, 0.0, 7.0, 0.0]
        """
        stages = _add_stage("slice", self, selector)
        for step, argument in zip(*steps_of("slice", _describe(self), selector), strict=True):
            if not isinstance(step, Gather):
                continue
            if step.axes != (step.name,):
                problem = f"a view keeps the axes of its array, but the index over {step.name!r} has other ones"
                held = f"index has: {describe(step.axes, argument.shape)}"
                raise OperandError(message("slice", problem, held, hint="use it in ref[...]"))
            # Views are arguments of programs, and JAX would make each element of a list an input.
            stages[-1][step.name] = argument
        return _make_view(self, stages)

    def unsliced(self) -> "NamedRef":
        """Return a reference to the complete array of which this is a view."""
        return _make_view(self, ())

    # reading and writing
    def value(self) -> NamedArray:
        """Read the view."""
        return get(self)

    # Reads see what was written before, since `_load` reads the reference anew.
    def __getitem__(self, item: Item) -> NamedArray:
        return _apply_stages("ref", _load(self), _add_stage("ref", self, item))

    def __setitem__(self, item: Item, value: Operand) -> None:
        stages = _add_stage("ref", self, item)
        self.whole.array[...] = _write_through("ref", _load(self), stages, value).array

    def __repr__(self) -> str:
        return f"NamedRef({self.dtype}[{facts(_describe(self)).replace('no axes', '')}])"

    def tree_flatten(self) -> tuple[tuple[Any, ...], Any]:
        """Return the reference, and the parts of indices that may be traced, as children."""
        # Static parts are compared by JAX, which asks for equality and hashes: slices have no hash before Python 3.12.
        entries = [(name, part) for stage in self.stages for name, part in stage.items()]
        static = tuple((name, _encode_static(part)) for name, part in entries)
        children = tuple(part for _, part in entries if _encode_static(part) is None)
        counts = tuple(map(len, self.stages))
        return (self.whole.array, *children), (self.whole.names, counts, static)

    @classmethod
    def tree_unflatten(cls, aux: Any, children: tuple[Any, ...]) -> "NamedRef":
        """Put the children back, whatever they are."""
        names, counts, static = aux
        # JAX also puts placeholders back, which `__init__` would refuse.
        made = object.__new__(cls)
        made.whole = object.__new__(NamedArray)
        made.whole.node = ((children[0],), names)
        rest = iter(children[1:])
        entries = iter(
            [(name, next(rest) if part is None else part[0](*part[1])) for name, part in static]
        )
        made.stages = tuple(dict(next(entries) for _ in range(count)) for count in counts)
        return made


def new_ref(value: NamedArray) -> NamedRef:
    """Make a mutable array with an initial value, which it copies; `jax.new_ref` for named arrays.

    Args:
        value: the initial value.

    Returns:
        A reference with the axes and the dtype of `value`.

    Raises:
        OperandError: if `value` is not a NamedArray.

    Examples:
        >>> count = axn.new_ref(axn.zeros(axn.Axis("expert", 2)))
        >>> @jax.jit
        ... def add(x):
        ...     count["expert", 1] = count["expert", 1] + x
        >>> add(3.0)
        >>> count[...].tolist()
        [0.0, 3.0]
    """
    if not isinstance(value, NamedArray):
        problem = f"expected a NamedArray, got {type_text(value)}"
        raise OperandError(
            message("new_ref", problem, hint='name it first: axn.named(array, ("batch", ...))')
        )
    return NamedRef(jax.new_ref(value.array), value.names)


def freeze(ref: NamedRef) -> NamedArray:
    """Read a reference, or a view of it, and invalidate the reference; `jax.freeze` for named arrays.

    Args:
        ref: the reference, which must not be read or written afterwards.

    Raises:
        OperandError: if `ref` is not a NamedRef.

    Examples:
        >>> ref = axn.new_ref(axn.zeros(axn.Axis("pos", 2)))
        >>> ref["pos", 0] = 5.0
        >>> axn.freeze(ref).tolist()
        [5.0, 0.0]
    """
    _check("freeze", ref)
    whole: Any = ref.whole.array
    return _apply_stages("freeze", NamedArray(jax.freeze(whole), ref.whole.names), ref.stages)


def get(ref: NamedRef, idx: Item = ...) -> NamedArray:
    """Read a part of a reference: `ref[idx]`.

    Args:
        ref: the reference, or a view.
        idx: an index as in `x[...]`; by default everything.

    Returns:
        The part, with the axes that `x[idx]` has for a NamedArray.

    Raises:
        OperandError: if `ref` is not a NamedRef.

    Examples:
        >>> axn.ref.get(axn.new_ref(axn.arange(axn.Axis("pos", 3))), ("pos", 2)).item()
        2
    """
    _check("get", ref)
    return _apply_stages("get", _load(ref), _add_stage("get", ref, idx))


def swap(ref: NamedRef, idx: Item, value: Operand) -> NamedArray:
    """Write a part of a reference, `ref[idx] = value`, and return its old value.

    Args:
        ref: the reference, or a view.
        idx: an index as in `x[...]`.
        value: a scalar, or an array whose axes are among those of the part.

    Returns:
        The part before the write, with the axes that `x[idx]` has for a NamedArray.

    Raises:
        OperandError: if `ref` is not a NamedRef.

    Examples:
        >>> ref = axn.new_ref(axn.arange(axn.Axis("pos", 3)))
        >>> axn.ref.swap(ref, ("pos", 2), 7).item(), ref[...].tolist()
        (2, [0, 1, 7])
    """
    _check("swap", ref)
    x, stages = _load(ref), _add_stage("swap", ref, idx)
    ref.whole.array[...] = _write_through("swap", x, stages, value).array
    return _apply_stages("swap", x, stages)


def _check(function: str, ref: Any) -> None:
    if not isinstance(ref, NamedRef):
        problem = f"expected a NamedRef, got {type_text(ref)}"
        raise OperandError(message(function, problem, hint="make one: axn.new_ref(x)"))


def _make_view(ref: NamedRef, stages: tuple[Stage, ...]) -> NamedRef:
    """Make a view of the complete array of a reference, through these indices."""
    made = object.__new__(NamedRef)
    made.whole, made.stages = ref.whole, stages
    return made


def _describe(ref: NamedRef) -> NamedArray:
    """Describe a view: its names, shape and dtype without its elements."""
    array = ref.whole.array
    spec = NamedArray(jax.ShapeDtypeStruct(array.shape, array.dtype), ref.whole.names)
    if ref.stages:  # a view, which is rare: others need not be traced
        spec = jax.eval_shape(lambda x: _apply_stages("ref", x, ref.stages), spec)
    return spec


def _add_stage(function: str, ref: NamedRef, item: Any) -> tuple[Stage, ...]:
    """Add an index to those of a view; it is merged with the last one if they share no axis."""
    shown = _describe(ref)
    selectors = selectors_of(function, shown, item)
    check_range(function, shown, *steps_of(function, shown, selectors))
    stage: Stage = {axis_name(axis): part for axis, part in selectors.items()}
    # One read with two selectors costs less than two reads.
    if ref.stages and not ref.stages[-1].keys() & stage.keys():
        return (*ref.stages[:-1], {**ref.stages[-1], **stage})
    return (*ref.stages, stage)


def _load(ref: NamedRef) -> NamedArray:
    """Read all of a reference. The compiler reads only the part that is needed."""
    return NamedArray(ref.whole.array[...], ref.whole.names)


def _apply_stage(function: str, x: NamedArray, stage: Stage) -> NamedArray:
    steps, arguments = steps_of(function, x, stage)
    kernel = reading(x.names, steps, function, _PLAIN)
    return NamedArray(run_with_ints(kernel, x.array, *arguments), kernel.names)


def _apply_stages(function: str, x: NamedArray, stages: Sequence[Stage]) -> NamedArray:
    """Read the part of an array that a view shows."""
    for stage in stages:
        x = _apply_stage(function, x, stage)
    return x


def _write_through(
    function: str, x: NamedArray, stages: Sequence[Stage], value: Operand
) -> NamedArray:
    """Write to nested views by a single index of the complete array, so that only the written elements are touched."""
    taken = _compose_stages(function, x, stages)
    steps = tuple(step for step, _ in taken.values())
    arguments = [argument for _, argument in taken.values()]
    return write(function, x, steps, arguments, "set", value, _PLAIN)


def _compose_stages(
    function: str, x: NamedArray, stages: Sequence[Stage]
) -> dict[str, tuple[Step, Any]]:
    """Compose the indices of nested views into one index: for each axis, the step and its argument."""
    steps, arguments = steps_of(function, x, stages[0])
    taken = {step.name: (step, argument) for step, argument in zip(steps, arguments, strict=True)}
    if len(stages) > 1:
        # Only names and sizes of the part matter, so nothing is read.
        part = jax.eval_shape(lambda x: _apply_stage(function, x, stages[0]), x)
        for name, inner in _compose_stages(function, part, stages[1:]).items():
            is_nested = name in taken
            taken[name] = _compose(x.axis_size(name), taken[name], inner) if is_nested else inner
    return taken


def _compose(size: int, outer: tuple[Step, Any], inner: tuple[Step, Any]) -> tuple[Step, Any]:
    """Convert an index into a part of an axis to an index into the complete axis.

    The result is static if both indices are. Otherwise, it is an array of positions; positions outside the part are
    mapped beyond the end of the axis, so that they are not written.
    """
    # Windows and gathers may start anywhere at run time; other parts are known ranges.
    (part, start), (within, at) = outer, inner
    name = part.name
    if isinstance(part, Window):
        length = part.length
        chosen = _select_positions(within, at, length)
        positions = widen_positions(start) + chosen
    elif isinstance(part, Gather):
        length = start.size
        chosen = _select_positions(within, at, length)
        positions = _select_positions(part, jnp.asarray(start).at[chosen].get(mode="clip"), size)
    else:
        # A range of a range is a range, and a range has a step of its own: no array of positions is needed.
        places = _positions(size, part, start)
        if isinstance(within, Int):
            return Int(name), places[at]
        if isinstance(within, Slice | Strided):
            return step_of_range(name, places[_to_slice(within, at)])
        length = len(places)
        chosen = _select_positions(within, at, length)
        positions = places.start + places.step * chosen
    is_inside = (chosen >= 0) & (chosen < length) & (positions >= 0) & (positions < size)
    positions = jnp.where(is_inside, positions, size)
    if removes_axis(within):
        return Traced(name), positions
    return Gather(name, within.axes if isinstance(within, Gather) else (name,)), positions


def _positions(size: int, part: Step, start: int) -> range:
    """Return the positions of a static part of an axis."""
    everything = range(size)
    return everything[_to_slice(part, start)] if isinstance(part, Slice | Strided) else everything


def _to_slice(step: Slice | Strided, start: int) -> builtins.slice:
    if isinstance(step, Strided):
        return step.slice
    return builtins.slice(start, start + step.length)


def _select_positions(within: Step, at: Any, length: int) -> Any:
    """Return the positions that an index selects from a part of this length; some may be out of range."""
    if isinstance(within, Window):
        return widen_positions(at) + np.arange(within.length, dtype=np.int32)
    if isinstance(within, Slice | Strided):
        return np.arange(length, dtype=np.int32)[_to_slice(within, at)]
    if isinstance(within, Int):
        return at
    at = widen_positions(at)
    # In uint32, a position beyond the part could become negative below; `length` is out of range, too.
    if jnp.issubdtype(at.dtype, jnp.unsignedinteger):
        at = jnp.minimum(at, length).astype(np.int32)
    return jnp.where(at < 0, at + length, at)


def _encode_static(part: Any) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
    """Convert a static selector to a comparable form: a function that makes it, and its arguments; None if traced."""
    if isinstance(part, int | np.integer):
        return int, (int(part),)
    if isinstance(part, builtins.slice):
        return (builtins.slice, (part.start, part.stop, part.step))
    return None
