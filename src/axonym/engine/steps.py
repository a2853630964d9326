"""Internal. The steps of an index by name: one for each axis that it mentions.

An index is a tuple of steps, each with an argument. A step is static, and part of the key of a kernel; its argument may
be traced. Reads and writes use the same steps, so that they always select the same elements.
"""

import builtins
import operator
from collections.abc import Iterable, Mapping, Sequence
from types import EllipsisType
from typing import Any, Literal, NamedTuple, TypeAlias, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.export import is_symbolic_dim
from numpy.typing import NDArray

from ..axis import AxisKey, AxisSelector, selection, selector as one_axis
from ..base.dtypes import widen_positions
from ..base.kinds import Payload, to_tuple, type_text
from ..dynamic_slice import dslice
from ..errors import AxisNotFoundError, AxisSizeError, OperandError, describe, message, suggestion
from ..names import plans
from ..names.plans import Names, hold_axes
from . import checks
from .audits import current_report, expect
from .core import Core, facts, payload_of, shape_of, sizes_of
from .operands import convert_list, integers
from .reading import take_at, take_slice, take_strided, take_window

Item: TypeAlias = Mapping[Any, Any] | tuple[Any, ...] | EllipsisType
"""The contents of the brackets of `x[...]`: axes to selectors, or pairs of an axis and a selector."""

Argument: TypeAlias = int | jax.Array | NDArray[np.generic]

_FOR_MASKS = "use where() to choose by a mask, or compress() to select by one"


# Steps are part of the keys of kernels: tuples are hashed and compared in C, three times as fast as dataclasses. Tuples
# of equal entries are equal, whatever their class, so each has a `kind` of its own.


@hold_axes("name")
class Int(NamedTuple):
    """One position: a Python int, in range."""

    name: str
    kind: Literal["int"] = "int"

    def read(self, array: jax.Array, at: int, argument: Payload) -> jax.Array:
        """Read one position along dimension `at`."""
        return _take_position(array, at, argument)


@hold_axes("name")
class Traced(NamedTuple):
    """One position: an array without dimensions."""

    name: str
    kind: Literal["traced"] = "traced"

    def read(self, array: jax.Array, at: int, argument: Payload) -> jax.Array:
        """Read one position along dimension `at`."""
        return _take_position(array, at, argument)


@hold_axes("name")
class Slice(NamedTuple):
    """Some positions in a row; the argument is the start, a Python int, and all are in range."""

    name: str
    length: int
    kind: Literal["slice"] = "slice"

    def read(self, array: jax.Array, at: int, argument: Payload) -> jax.Array:
        """Read a piece."""
        return take_slice(array, at, argument, self.length)


@hold_axes("name")
class Strided(NamedTuple):
    """A static slice, with any step or of an axis whose size is symbolic; the argument is not used."""

    name: str
    start: int | None
    stop: int | None
    step: int | None
    kind: Literal["strided"] = "strided"

    @property
    def slice(self) -> builtins.slice:
        """The slice."""
        return builtins.slice(self.start, self.stop, self.step)

    def read(self, array: jax.Array, at: int, argument: object) -> jax.Array:
        """Read a slice."""
        return take_strided(array, at, self.slice)


@hold_axes("name")
class Window(NamedTuple):
    """A `dslice`: some positions in a row from anywhere, perhaps out of range; the argument is the start."""

    name: str
    length: int
    kind: Literal["window"] = "window"

    def read(self, array: jax.Array, at: int, argument: Payload) -> jax.Array:
        """Read a piece, with zeros out of range."""
        return take_at(take_window, array, at, argument, self.length)


@hold_axes("name", "axes")
class Gather(NamedTuple):
    """The positions in an index array, which has these axes; all index arrays are read together."""

    name: str
    axes: Names
    kind: Literal["gather"] = "gather"


Step: TypeAlias = Int | Traced | Slice | Strided | Window | Gather
"""The part of an index for one axis, `name`."""


def removes_axis(step: Step) -> bool:
    """Return whether a result lacks the axis of a step."""
    return isinstance(step, Int | Traced)


def _take_position(array: jax.Array, at: int, argument: Payload) -> jax.Array:
    return lax.squeeze(take_slice(array, at, widen_positions(argument), 1), (at,))


def axes_of_steps(steps: Iterable[Step]) -> Names:
    """Return the axes that an index mentions."""
    return tuple(step.name for step in steps)


def gathers_in(steps: Iterable[Step]) -> list[Gather]:
    """Return the steps that are index arrays."""
    return [step for step in steps if isinstance(step, Gather)]


def selectors_of(function: str, x: Core, item: Item) -> Mapping[AxisSelector, Any]:
    """Parse the contents of brackets: a dict, or pairs of an axis and a selector.

    Args:
        function: what the user called, for errors.
        x: the array, for errors.
        item: the contents.

    Returns:
        Selectors by axis, an `Axis` or a name.

    Raises:
        OperandError: if it is neither.

    Examples:
        >>> from axonym.engine import selectors_of
        >>> selectors_of("getitem", axn.zeros({"batch": 2}), ("batch", 0))
        {'batch': 0}
    """
    if isinstance(item, Mapping):
        return item
    if item is ...:
        return {}
    pairs: tuple[Any, ...] = to_tuple(item)
    if len(pairs) == 2 and isinstance(pairs[0], str):  # as usual, and nothing can be wrong
        return {pairs[0]: pairs[1]}
    # In pairs, axes and selectors take turns.
    axes = pairs[::2]
    are_axes = all(isinstance(axis, str) or hasattr(axis, "name") for axis in axes)
    if len(pairs) % 2 or not are_axes:
        shown = ", ".join(type(part).__name__ for part in pairs)
        hint = 'write x["batch", 0] or x[{"batch": 0, "embed": slice(2, 5)}]'
        if any(getattr(part, "dtype", None) == np.bool_ for part in pairs):
            hint = _FOR_MASKS
        elif any(part is None for part in pairs):
            hint = "leave None out: operands are lined up by name, without axes of size 1"
        problem = f"an index is a dict, or pairs of an axis and a selector, not ({shown})"
        raise OperandError(message(function, problem, f"array has: {facts(x)}", hint=hint))
    # An axis that is listed twice would vanish in the dict.
    selection(axes, function)
    return dict(zip(axes, pairs[1::2], strict=True))


def steps_of(
    function: str, x: Core, selectors: Mapping[AxisKey, Any], mode: str | None = None
) -> tuple[tuple[Step, ...], tuple[Any, ...]]:
    """Convert the selectors of an index to its steps and their arguments.

    A Python int out of range is an error, unless `mode` is "clip" or "wrap".
    """
    if not isinstance(x, Core):
        raise checks.no_names(function, x)
    if not isinstance(selectors, Mapping):
        problem = f"an index is a dict from axes to selectors, not {type_text(selectors)}"
        hint = "write {'batch': 0}"
        raise OperandError(message(function, problem, f"array has: {facts(x)}", hint=hint))
    (array,), names = x.node
    shape = shape_of(function, array, names)
    # Parsed together, so that an axis that is selected twice is found.
    given = selection(tuple(selectors), function)
    sizes = sizes_of(names, shape)
    steps: list[Step] = []
    arguments: list[Payload] = []
    for (name, asked), selector in zip(given, selectors.values(), strict=True):
        if asked is not None or name not in sizes:
            checks.require(function, x, {name: asked})
        step, argument = _convert_selector(function, x, name, sizes[name], selector, mode)
        steps.append(step)
        arguments.append(argument)
    return tuple(steps), tuple(arguments)


def _convert_selector(
    function: str, x: Core, name: str, size: int, selector: Any, mode: str | None
) -> tuple[Step, Any]:
    """Convert one selector."""
    if isinstance(selector, builtins.slice):
        return _slice_step(function, name, size, selector)
    if is_int(selector):
        return Int(name), _wrap_int(function, x, name, size, operator.index(selector), mode)
    if isinstance(selector, dslice):
        return _window_step(function, x, name, size, selector)
    indices, axes = _index_array(function, name, selector)
    _check_indices(function, name, indices, axes)
    return (Gather(name, axes) if axes else Traced(name)), indices


def is_int(value: object) -> TypeGuard[int | np.integer[Any]]:
    """Return whether a value is an integer of Python or NumPy; a bool is not."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _wrap_int(function: str, x: Core, name: str, size: int, at: int, mode: str | None) -> int:
    # An int is static, so that a mode for positions out of range is applied here.
    if size and mode == "wrap":
        return at % size
    if size and mode == "clip":
        return min(max(at, 0), size - 1)
    if not -size <= at < size:
        raise _range_error(function, x, name, size, at)
    return at % size


def _slice_step(function: str, name: str, size: int, selector: builtins.slice) -> tuple[Step, int]:
    try:
        if is_symbolic_dim(size):
            # Only JAX knows how many positions a slice of a symbolic size has.
            start, stop = _convert_bound(selector.start), _convert_bound(selector.stop)
            return Strided(name, start, stop, _convert_bound(selector.step)), 0
        start, stop, step = selector.indices(size)
    except (TypeError, ValueError):
        problem = f"the bounds of a slice over {name!r} must be ints, and its step not zero"
        hint = "use axn.dslice(start, length), or x.slice(axis, start=..., length=...), where the start is traced"
        raise OperandError(message(function, problem, hint=hint)) from None
    return step_of_range(name, range(start, stop, step))


def _convert_bound(bound: Any) -> int | None:
    return None if bound is None else operator.index(bound)


def step_of_range(name: str, positions: range) -> tuple[Step, int]:
    """Make the step of positions in range."""
    if positions.step == 1:
        return Slice(name, len(positions)), positions.start
    # A slice without elements may start anywhere, in range or not.
    if not positions:
        return Slice(name, 0), 0
    # A negative stop would count from the end.
    stop = None if positions.stop < 0 else positions.stop
    return Strided(name, positions.start, stop, positions.step), 0


def _window_step(
    function: str, x: Core, name: str, size: int, selector: dslice
) -> tuple[Step, Any]:
    length = selector.size
    start = _check_start_of_window(function, name, selector.start)
    if not isinstance(start, int):
        return Window(name, length), start
    # A start that is known and fits makes a slice, which compiles once for all starts.
    room = size - length
    if not is_symbolic_dim(room) and 0 <= start <= room:
        return Slice(name, length), start
    is_known = not any(map(is_symbolic_dim, (size, length)))
    if is_known and size and not -length < start < size:
        problem = f"dslice({start}, {length}) has no element of {name}={size}"
        raise AxisSizeError(message(function, problem, f"array has: {facts(x)}"))
    return Window(name, length), start


def _check_start_of_window(function: str, name: str, start: Any) -> Any:
    """Check the start of a window: an int, or an array of one integer."""
    if is_int(start):
        return operator.index(start)
    if isinstance(start, Core) and start.names:
        problem = f"the start of the dslice over {name!r} has axes {', '.join(start.names)}"
        hint = f'to cut several pieces, index by the positions: start + axn.arange(Axis("{name}", length))'
        raise OperandError(message(function, problem, hint=hint))
    value = payload_of(start)
    dtype = getattr(value, "dtype", type(value))
    if jnp.shape(value) or not jnp.issubdtype(dtype, jnp.integer):
        problem = f"the start of the dslice over {name!r} must be one integer"
        raise OperandError(message(function, problem))
    return value


def _index_array(function: str, name: str, selector: Any) -> tuple[Any, Names]:
    """Convert a selector to an index array and its axes; a plain one has the axis that it indexes."""
    if isinstance(selector, Core):
        return selector.array, selector.names
    if isinstance(selector, list | tuple):
        indices = _convert_list(function, name, selector)
    elif isinstance(selector, np.ndarray | jax.Array):
        indices = selector
    else:
        problem = f"cannot index axis {name!r} by {type_text(selector)}"
        hint = "use an int, a slice, or an array of integers"
        raise OperandError(message(function, problem, hint=hint))
    # One dimension can only be along the axis that it indexes; of several, names must say which is which.
    if indices.ndim > 1:
        problem = f"the index over {name!r} has shape {tuple(indices.shape)}, but no names"
        hint = 'name them: axn.named(index, ("a", "b"))'
        raise OperandError(message(function, problem, hint=hint))
    return indices, (name,) if indices.ndim else ()


def _convert_list(function: str, name: str, selector: Sequence[Payload]) -> Any:
    """Convert a list of integers, some of which may be traced, to an array."""
    try:
        return convert_list(selector)
    except (TypeError, ValueError):  # a tracer among them, or no integers at all
        pass
    try:
        return jnp.asarray(list(map(payload_of, selector)))
    except (TypeError, ValueError):
        problem = f"the list over {name!r} cannot be converted to an array of integers"
        hint = "its elements are ints or 0-d arrays"
        raise OperandError(message(function, problem, hint=hint)) from None


def _check_indices(function: str, name: str, indices: Payload, axes: Names) -> None:
    integers(function, f"the index over {name!r}", indices, for_masks=_FOR_MASKS)
    if jnp.ndim(indices) > len(axes):
        problem = f"the index over {name!r} has anonymous dimensions"
        held = f"index has: {describe(axes, jnp.shape(indices))}"
        raise OperandError(message(function, problem, held, hint="name them: index.tag(...)"))


def normalize_indices(
    function: str, name: str, indices: Payload, axes: Names, size: int, mode: str | None
) -> Any:
    """Check an index array again, as a transformation may have removed a named dimension."""
    shape_of(function, indices, axes)
    _check_indices(function, name, indices, axes)
    positions = widen_positions(indices)
    return jnp.remainder(positions, size) if mode == "wrap" else positions


def check_range(
    function: str, x: Core, steps: Sequence[Step], arguments: Sequence[Payload]
) -> None:
    """Raise an error for an index out of range if it is a list or an array of NumPy; report all others."""
    for step, argument in zip(steps, arguments, strict=True):
        if isinstance(argument, np.ndarray):
            _check_known(function, x, step.name, argument)
            continue
        # Values on a device are not read, which would wait for them: only an audit looks at them while a program runs.
        is_known = isinstance(argument, int) or isinstance(step, Int | Slice | Strided)
        if not is_known and current_report() is not None:
            size = size_of(function, x, step.name)
            # A window may begin before the array, if it reaches into it.
            least = 1 - step.length if isinstance(step, Window) else -size
            room, held = f"{step.name}={size}", f"array has: {facts(x)}"
            expect(function, "index", argument, least, size - 1, held, room=room)


def _check_known(function: str, x: Core, name: str, indices: NDArray[Any]) -> None:
    size = size_of(function, x, name)
    if is_symbolic_dim(size) or not indices.size:
        return
    # If there is a wrong one, the smallest or the largest is wrong.
    for at in (indices.min(), indices.max()):
        if not -size <= at < size:
            raise _range_error(function, x, name, size, int(at))


def _range_error(function: str, x: Core, name: str, size: int, at: int) -> AxisSizeError:
    problem = f"index {at} is out of range for {name}={size}"
    return AxisSizeError(message(function, problem, f"array has: {facts(x)}"))


def check_start(function: str, x: Core, name: str, start: Any, length: Any) -> None:
    """Raise an error if a piece at a Python int does not fit, and report one at any other start."""
    size = size_of(function, x, name)
    if is_symbolic_dim(size) or is_symbolic_dim(length) or length > size:
        return
    if not isinstance(start, int | np.integer | np.ndarray):
        room = f"a piece of {length} in {name}={size}"
        expect(function, "start", start, -size, size - length, f"array has: {facts(x)}", room=room)
        return
    known = np.asarray(start)
    if not known.size or known.dtype.kind not in "iu":
        return
    for at in (known.min(), known.max()):
        fits = 0 <= at <= size - length
        fits_from_the_end = -size <= at <= -length
        if not (fits or fits_from_the_end):
            problem = f"a piece of {length} from {at} does not fit into {name}={size}"
            raise AxisSizeError(message(function, problem, f"array has: {facts(x)}"))


def check_along(function: str, x: Core, indices: Core, axis: AxisSelector) -> None:
    """Check that indices along an axis have this axis, and that the array has all their axes."""
    for operand in (x, indices):
        if not isinstance(operand, Core):
            raise checks.no_names(function, operand)
    name, _ = one_axis(axis, function)
    lines = (f"array has: {facts(x)}", f"indices have: {facts(indices)}")
    if name not in indices.names:
        problem = f"the indices have no axis named {name!r}"
        near = suggestion(name, indices.names)
        hint = near or "use take to replace the axis by the axes of the index"
        raise AxisNotFoundError(message(function, problem, *lines, hint=hint))
    for other in plans.without(indices.names, x.names):
        problem = f"the indices have axis {other!r}, which the array lacks"
        raise AxisNotFoundError(message(function, problem, *lines, hint=suggestion(other, x.names)))


def size_of(function: str, x: Core, name: str) -> int:
    """Return the size of an axis that an array is known to have."""
    names = x.names
    return shape_of(function, x.array, names)[names.index(name) - len(names)]
