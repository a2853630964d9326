"""Conversion of an index by name to positions, and reading by it.

An index is a tuple of *steps*, one for each axis that it mentions. Reads and writes use the same steps, so that they
always select the same elements. Python's ints and slices are applied first, as a box; the rest is one positional
index, in which index arrays are matched by name.
"""

import builtins
import math
import operator
from collections.abc import Mapping, Sequence
from functools import lru_cache, reduce
from types import EllipsisType
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.export import is_symbolic_dim

from .. import plans
from .._checks import current_report, expect
from ..axis import AxisKey, AxisSelector, selection
from ..axis import selector as one_axis
from ..core import Core, facts, shape_of
from ..errors import ArgumentError, AxisNotFoundError, AxisSizeError, OperandError, describe, message, suggestion
from ..plans import Names
from . import _lift
from ._merging import fitted, may_merge, settled_gradient
from ._operands import integers
from ._piece import at_start, read_locally, sliced, strided, window
from ._widen import widened
from .dslice import dslice

_FOR_MASKS = "use where() to choose by a mask, or compress() to select by one"
Item: TypeAlias = Mapping[Any, Any] | tuple[Any, ...] | EllipsisType
"""What stands in the brackets of `x[...]`: axes to selectors, or pairs of an axis and a selector."""
Step = tuple[str, str, Any]
"""One step of an index: the axis, its kind, and what of it is static.

| kind | static | argument |
| --- | --- | --- |
| int | | an int, in range |
| traced | | a 0-d array |
| slice | the length | the start, in range |
| strided | start, stop and step | |
| window | the length | the start, anywhere |
| array | the names of its axes | an array |
"""


class Reach(NamedTuple):
    """How to treat indices out of range, and promises about the indices.

    Attributes:
        mode: as in `x.at[...]` of JAX, and "wrap", which wraps around. None reads the nearest element, or 0 in a
            window, and writes nothing.
        fill: the value that "fill" reads, as an option `fill_value`.
        sorted: the indices ascend.
        unique: no element is selected twice.
        wraps: negative numbers in index arrays count from the end; otherwise they are out of range.
    """

    mode: str | None = None
    fill: _lift.Options = ()
    sorted: bool = False
    unique: bool = False
    wraps: bool = True


class Position(NamedTuple):
    """A positional index.

    Attributes:
        dims: an entry for each dimension of the array.
        labels: the dimensions of what it selects: names, and ints for those that have none.
        union: the names of the index arrays.
        sizes: the sizes of the names.
        exact: whether there is at most one index array, so that promises about it hold for the whole index.
    """

    dims: tuple[Any, ...]
    labels: tuple[Any, ...]
    union: Names
    sizes: dict[str, int]
    exact: bool

    @property
    def places(self) -> int:
        """The number of positions along the axes that it indexes by arrays."""
        return math.prod(self.sizes[name] for name in self.union)


def reaching(
    function: str,
    modes: Sequence[str],
    mode: str | None,
    fill_value: Any = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
) -> Reach:
    """Check the options for indices out of range, and the promises about indices."""
    if mode is not None and mode not in modes:
        raise ArgumentError(message(function, f"the mode must be one of {', '.join(modes)}, not {mode!r}"))
    if isinstance(fill_value, Core | jax.Array | np.ndarray):
        hint = "choose afterwards: axn.where(...)"
        raise OperandError(message(function, "fill_value must be a Python scalar", hint=hint))
    fill = _lift.static(function, {"fill_value": fill_value})
    return Reach(mode, fill, bool(indices_are_sorted), bool(unique_indices))


def check_along(function: str, x: Core, indices: Any, axis: AxisSelector) -> None:
    """Check that indices along an axis have that axis, and none that the array lacks."""
    for operand in (x, indices):
        if not isinstance(operand, Core):
            raise _lift.unnamed(function, operand)
    name, _ = one_axis(axis, function)
    lines = (f"array has: {facts(x)}", f"indices have: {facts(indices)}")
    if name not in indices.names:
        problem = f"the indices have no axis named {name!r}"
        hint = suggestion(name, indices.names) or "use take to replace the axis by the axes of the index"
        raise AxisNotFoundError(message(function, problem, *lines, hint=hint))
    for other in indices.names:
        if other not in x.names:
            problem = f"the indices have axis {other!r}, which the array lacks"
            raise AxisNotFoundError(message(function, problem, *lines, hint=suggestion(other, x.names)))


def selectors_of(function: str, x: Core, item: Any) -> Mapping[AxisSelector, Any]:
    """Parse the contents of brackets: a dict, or pairs of an axis and a selector."""
    if isinstance(item, Mapping):
        return item
    if item is ...:
        return {}
    pairs = item if isinstance(item, tuple) else (item,)
    if len(pairs) % 2 or not all(isinstance(axis, str) or hasattr(axis, "name") for axis in pairs[::2]):
        shown = ", ".join(type(part).__name__ for part in pairs)
        hint = 'write x["batch", 0] or x[{"batch": 0, "embed": slice(2, 5)}]'
        problem = f"an index is a dict, or pairs of an axis and a selector, not ({shown})"
        raise OperandError(message(function, problem, f"array has: {facts(x)}", hint=hint))
    selection(pairs[::2], function)
    return dict(zip(pairs[::2], pairs[1::2], strict=True))


def planned(
    function: str, x: Core, selectors: Mapping[AxisKey, Any], mode: str | None = None
) -> tuple[tuple[Step, ...], tuple[Any, ...]]:
    """Split the selectors of an index into its steps and the arguments of a kernel.

    A Python int out of range is an error, unless `mode` is "clip" or "wrap".
    """
    if not isinstance(x, Core):
        raise _lift.unnamed(function, x)
    if not isinstance(selectors, Mapping):
        problem = f"an index is a dict from axes to selectors, not {type(selectors).__name__}"
        raise OperandError(message(function, problem, f"array has: {facts(x)}", hint="write {'batch': 0}"))
    (array,), names = x.node
    shape = shape_of(function, array, names)
    given = selection(tuple(selectors), function)
    steps: list[Step] = []
    arguments: list[Any] = []
    for (name, given_size), selector in zip(given, selectors.values(), strict=True):
        if name not in names:
            problem = f"no axis named {name!r}"
            hint = suggestion(name, names)
            raise AxisNotFoundError(message(function, problem, f"array has: {facts(x)}", hint=hint))
        size = shape[names.index(name) - len(names)]
        _lift.check_given(function, ((name, given_size),), names, shape)
        kind, static, argument = _step(function, x, name, size, selector, mode)
        steps.append((name, kind, static))
        arguments.append(argument)
    return tuple(steps), tuple(arguments)


def _step(function: str, x: Core, name: str, size: int, selector: Any, mode: str | None) -> tuple[str, Any, Any]:
    """Split a selector into its kind, its static part and the argument of a kernel."""
    if isinstance(selector, builtins.slice):
        return _slice_step(function, name, size, selector)
    if isinstance(selector, int | np.integer) and not isinstance(selector, bool):
        at = operator.index(selector)
        if size and mode in ("clip", "wrap"):
            at = at % size if mode == "wrap" else min(max(at, 0), size - 1)
        if not -size <= at < size:
            raise _out_of_range(function, x, name, size, at)
        return "int", None, at % size
    if isinstance(selector, dslice):
        start = _start(function, name, selector.start)
        if isinstance(start, int) and 0 <= start <= size - selector.size:
            return "slice", selector.size, start
        if isinstance(start, int) and size and not -selector.size < start < size:
            problem = f"dslice({start}, {selector.size}) has no element of {name}={size}"
            raise AxisSizeError(message(function, problem, f"array has: {facts(x)}"))
        return "window", selector.size, start
    indices: Any
    if isinstance(selector, Core):
        (indices,), own = selector.node
    elif isinstance(selector, np.ndarray | jax.Array | list | tuple):
        indices = selector if isinstance(selector, np.ndarray | jax.Array) else _listed(function, name, selector)
        if indices.ndim > 1:
            problem = f"the index over {name!r} has shape {tuple(indices.shape)}, but no names"
            raise OperandError(message(function, problem, hint='name them: axn.named(index, ("a", "b"))'))
        own = (name,) if indices.ndim else ()
    else:
        problem = f"cannot index axis {name!r} by {type(selector).__name__}"
        raise OperandError(message(function, problem, hint="use an int, a slice, or an array of integers"))
    _check_indices(function, name, indices, own)
    return ("array", own, indices) if own else ("traced", None, indices)


def check_range(function: str, x: Core, steps: Sequence[Step], arguments: Sequence[Any]) -> None:
    """Raise an error for an index out of range if it is a list or an array of NumPy; report all others."""
    for (name, kind, static), argument in zip(steps, arguments, strict=True):
        if isinstance(argument, np.ndarray):
            if argument.size:
                _check_known(function, x, name, argument)
        elif kind in ("traced", "array", "window") and not isinstance(argument, int) and current_report() is not None:
            size = size_of(function, x, name)
            least = -size if kind != "window" else 1 - static
            expect(function, "index", argument, least, size - 1, f"array has: {facts(x)}", room=f"{name}={size}")


def _check_known(function: str, x: Core, name: str, indices: Any) -> None:
    size = size_of(function, x, name)
    if is_symbolic_dim(size):
        return
    for at in (indices.min(), indices.max()):
        if not -size <= at < size:
            raise _out_of_range(function, x, name, size, int(at))


def check_start(function: str, x: Core, name: str, start: Any, length: Any) -> None:
    """Raise an error if a piece at a Python int does not fit, and report one at any other start."""
    size = size_of(function, x, name)
    if is_symbolic_dim(size) or is_symbolic_dim(length) or length > size:
        return
    if isinstance(start, int | np.integer | np.ndarray):
        known = np.asarray(start)
        for at in (known.min(), known.max()) if known.size and known.dtype.kind in "iu" else ():
            if not (-size <= at <= -length or 0 <= at <= size - length):
                problem = f"a piece of {length} from {at} does not fit into {name}={size}"
                raise AxisSizeError(message(function, problem, f"array has: {facts(x)}"))
    elif current_report() is not None:
        room = f"a piece of {length} in {name}={size}"
        expect(function, "start", start, -size, size - length, f"array has: {facts(x)}", room=room)


def size_of(function: str, x: Core, name: str) -> int:
    """Return the size of an axis that an array is known to have."""
    (array,), names = x.node
    return shape_of(function, array, names)[names.index(name) - len(names)]


def _out_of_range(function: str, x: Core, name: str, size: int, at: int) -> AxisSizeError:
    return AxisSizeError(message(function, f"index {at} is out of range for {name}={size}", f"array has: {facts(x)}"))


def _listed(function: str, name: str, selector: Sequence[Any]) -> Any:
    """Convert a list of integers, some of which may be traced, to an array."""
    try:
        return np.asarray(selector, dtype=None if len(selector) else int)
    except (TypeError, ValueError):
        pass
    try:
        return jnp.asarray([part.node[0][0] if isinstance(part, Core) else part for part in selector])
    except (TypeError, ValueError):
        problem = f"the list over {name!r} cannot be converted to an array of integers"
        raise OperandError(message(function, problem, hint="its elements are ints or 0-d arrays")) from None


def _slice_step(function: str, name: str, size: int, selector: Any) -> tuple[str, Any, Any]:
    try:
        if is_symbolic_dim(size):
            bounds = selector.start, selector.stop, selector.step
            return "strided", tuple(bound if bound is None else operator.index(bound) for bound in bounds), 0
        start, stop, step = selector.indices(size)
    except (TypeError, ValueError):
        problem = f"the bounds of a slice over {name!r} must be ints, and its step not zero"
        hint = "use axn.dslice(start, length), or x.slice(axis, start=..., length=...), where the start is traced"
        raise OperandError(message(function, problem, hint=hint)) from None
    if step == 1 or not range(start, stop, step):
        return "slice", len(range(start, stop, step)), start if step == 1 else 0
    return "strided", (start, None if stop < 0 else stop, step), 0


def _start(function: str, name: str, start: Any) -> Any:
    """Check the start of a window: an int, or an array of one integer."""
    if isinstance(start, int | np.integer) and not isinstance(start, bool):
        return operator.index(start)
    if isinstance(start, Core) and start.names:
        problem = f"the start of the dslice over {name!r} has axes {', '.join(start.names)}"
        hint = f'to cut several pieces, index by the positions: start + axn.arange(Axis("{name}", length))'
        raise OperandError(message(function, problem, hint=hint))
    value = start.node[0][0] if isinstance(start, Core) else start
    if jnp.shape(value) or not jnp.issubdtype(getattr(value, "dtype", type(value)), jnp.integer):
        raise OperandError(message(function, f"the start of the dslice over {name!r} must be one integer"))
    return value


def _check_indices(function: str, name: str, indices: Any, own: Names) -> None:
    integers(function, f"the index over {name!r}", indices, for_masks=_FOR_MASKS)
    if jnp.ndim(indices) > len(own):
        problem = f"the index over {name!r} has anonymous dimensions"
        facts = f"index has: {describe(own, jnp.shape(indices))}"
        raise OperandError(message(function, problem, facts, hint="name them: index.tag(...)"))


def selected_names(names: Names, steps: Sequence[Step]) -> Names:
    """Return the names of what an index selects.

    The axes of index arrays replace the indexed axes if those are adjacent, and otherwise come first.
    """
    names = plans.without(names, tuple(name for name, kind, _ in steps if kind in ("int", "traced")))
    indexed = tuple(name for name, kind, _ in steps if kind == "array")
    if not indexed:
        return names
    arrays = sorted((static for _, kind, static in steps if kind == "array"), key=len, reverse=True)
    union: Names = reduce(plans.union, arrays, ())
    kept = plans.without(names, indexed)
    new = plans.without(union, kept)
    at = sorted(map(names.index, indexed))
    if at[-1] - at[0] + 1 != len(at):
        return (*new, *kept)
    before = plans.without(names[: at[0]], indexed)
    return (*before, *new, *kept[len(before) :])


def run(kernel: _lift.Kernel, array: Any, *arguments: Any) -> Any:
    """Call a kernel; while tracing, Python ints are passed unchanged, so that they stay static."""
    if isinstance(array, Tracer) and any(isinstance(argument, int) for argument in arguments):
        return kernel.body(array, *arguments)
    return _lift.run(kernel.call, array, *arguments)


@lru_cache(plans.CACHE)
def reading(names: Names, steps: tuple[Step, ...], function: str, reach: Reach) -> _lift.Kernel:
    """Make the kernel that reads what an index selects: ints and slices first, then all index arrays together."""
    plans.require(names, [name for name, _, _ in steps])
    boxed = ("int", "slice", "strided") if reach.mode else ("int", "slice", "strided", "traced", "window")
    rest = tuple(step for step in steps if step[1] not in boxed)
    target = selected_names(names, steps)

    def body(array: Any, *arguments: Any) -> Any:
        shape_of(function, array, names)
        current, left = names, []
        for (name, kind, static), argument in zip(steps, arguments, strict=True):
            (at,) = plans.positions(current, (name,))
            if not array.shape[at] and (kind == "traced" or kind not in boxed):
                _check_readable(function, array, current, name, static if kind == "window" else argument.size)
            if kind not in boxed:
                left.append(argument)
                continue
            dim = at % array.ndim
            if kind == "slice":
                array = sliced(array, dim, argument, static)
            elif kind == "strided":
                array = strided(array, dim, builtins.slice(*static))
            elif kind == "window":
                array = at_start(window, array, dim, argument, static)
            else:
                array = lax.squeeze(sliced(array, dim, widened(argument), 1), (at,))
                current = plans.without(current, (name,))
        return _gather(function, array, current, rest, left, target, reach) if rest else array

    return _lift.Kernel(target, body)


def _check_readable(function: str, array: jax.Array, names: Names, name: str, count: int) -> None:
    """Raise an error for reading `count` elements along an axis without any, not even a nearest one."""
    if count:
        problem = f"axis {name!r} has no elements to read"
        raise AxisSizeError(message(function, problem, f"array has: {describe(names, array.shape)}"))


def positional(
    function: str,
    array: Any,
    names: Names,
    steps: Sequence[Step],
    arguments: Sequence[Any],
    mode: str | None,
    batch: Names = (),
) -> Position:
    """Convert steps to a positional index, whose labels give the order of dimensions in numpy.

    An axis that an index array shares with the rest of the array is matched position by position, unless it is in
    `batch`, which the caller handles.
    """
    anonymous = array.ndim - len(names)
    sizes = dict(zip(names, array.shape[anonymous:], strict=True))
    dims: list[Any] = [builtins.slice(None)] * array.ndim
    vectors: list[tuple[str, Any, Names]] = []
    starts: dict[str, tuple[int, int]] = {}
    for (name, kind, static), argument in zip(steps, arguments, strict=True):
        at, size = anonymous + names.index(name), sizes[name]
        if kind == "window":
            vectors.append((name, _within(argument, static, size, mode), (name,)))
            sizes[name] = static
        elif kind == "strided":
            if is_symbolic_dim(size):
                hint = "choose by position instead: axn.where(axn.arange(axis) >= start, ...)"
                raise OperandError(message(function, f"cannot slice axis {name!r}: its size is symbolic", hint=hint))
            start, stop, step = builtins.slice(*static).indices(size)
            dims[at], sizes[name], starts[name] = builtins.slice(*static), len(range(start, stop, step)), (start, step)
        else:
            dims[at] = argument if kind == "int" else _checked(function, name, argument, static or (), size, mode)
            del sizes[name]
            if kind == "array":
                vectors.append((name, dims[at], static))
    lists = [(positions, own) for name, positions, own in vectors if name not in sizes]
    shapes = [positions.shape[positions.ndim - len(own) :] for positions, own in lists]
    operands = [tuple(sizes), *(own for _, own in lists)]
    known = _lift.one_size(function, operands, [tuple(sizes.values()), *shapes])
    given: Names = reduce(plans.union, operands[1:], ())
    for name in plans.without(tuple(sizes), batch):
        if name in given and all(name != other for other, _, _ in vectors):
            positions = jnp.arange(sizes[name])
            if name in starts:
                positions = starts[name][0] + starts[name][1] * positions
            vectors.append((name, positions, (name,)))
    union: Names = reduce(plans.union, [own for _, _, own in vectors], ())
    for name, positions, own in vectors:
        dims[anonymous + names.index(name)] = _lift.lined_up(positions, own, _from_first(union, own))
    labels = _labels(dims, (*range(anonymous), *names), union)
    return Position(tuple(dims), labels, union, known, len(vectors) <= 1)


def _labels(dims: Sequence[Any], labels: Sequence[Any], union: Names) -> tuple[Any, ...]:
    """Return numpy's order for an index: new dimensions replace indexed ones if adjacent, and otherwise come first."""
    at = [i for i, dim in enumerate(dims) if not isinstance(dim, builtins.slice)]
    first = at[0] if at and at[-1] - at[0] + 1 == len(at) else 0
    whole = [i for i, dim in enumerate(dims) if isinstance(dim, builtins.slice) and labels[i] not in union]
    return (*(labels[i] for i in whole if i < first), *union, *(labels[i] for i in whole if i >= first))


def _from_first(union: Names, own: Names) -> Names:
    """Return the names of `union` from the first of `own` on: positional indexing adds leading dimensions itself."""
    return union[min(map(union.index, own), default=len(union)) :]


def _within(start: Any, length: int, size: int, mode: str | None) -> Any:
    """Return the positions of a window, where a negative one does not count from the end."""
    positions = jnp.arange(length) + widened(start)
    if mode == "clip":
        return jnp.clip(positions, 0, max(size - 1, 0))
    return positions if mode == "promise_in_bounds" else jnp.where(positions < 0, size - 1 - positions, positions)


def _gather(
    function: str,
    array: jax.Array,
    names: Names,
    steps: Sequence[Step],
    arguments: Sequence[Any],
    target: Names,
    reach: Reach,
) -> jax.Array:
    """Read elements at index arrays."""
    if len(steps) == 1 and steps[0][1] == "array":
        ((name, _, own),) = steps
        if any(other in names for other in own if other != name):
            return _matched(function, array, names, name, own, arguments[0], target, reach)
    position = positional(function, array, names, steps, arguments, reach.mode)
    at = [i for i, dim in enumerate(position.dims) if not isinstance(dim, builtins.slice)]

    def read(array: jax.Array, *positions: Any) -> jax.Array:
        dims = list(position.dims)
        for i, each in zip(at, positions, strict=True):
            dims[i] = each
        return _elements(array, tuple(dims), reach, position.places, reach.sorted and position.exact)

    labels, operands = position.labels, [array, *(position.dims[i] for i in at)]
    indices = [(own, argument) for (_, kind, own), argument in zip(steps, arguments, strict=True) if kind == "array"]
    result = read_locally(read, operands, names, {name for name, _, _ in steps}, indices, labels, position.sizes)
    wanted: tuple[Any, ...] = (*range(array.ndim - len(names)), *target)
    return _lift.lined_up(result, labels, wanted)


def _elements(array: jax.Array, at: tuple[Any, ...], reach: Reach, count: int, is_sorted: bool = False) -> jax.Array:
    """Read elements at `count` positions."""
    if reach.mode in (None, "clip", "wrap"):
        at = in_range(array, at, count, reach.wraps)
    found: jax.Array = (
        settled_gradient(array, count)
        .at[at]
        .get(
            mode="clip" if reach.mode in (None, "wrap") else reach.mode,
            **_lift.keywords_of(reach.fill),
            indices_are_sorted=is_sorted,
            unique_indices=reach.unique,
            wrap_negative_indices=reach.wraps,
        )
    )
    return found


def in_range(array: jax.Array, at: tuple[Any, ...], count: int, wraps: bool) -> tuple[Any, ...]:
    """Move the positions of an index into range, if the compiler may forget to."""
    if not may_merge(array, count):
        return at
    return tuple(
        part if isinstance(part, builtins.slice | int) else fitted(part, size, wraps=wraps)
        for part, size in zip(at, array.shape, strict=False)
    )


def _checked(function: str, name: str, positions: Any, own: Names, size: int, mode: str | None) -> Any:
    """Check an index array again: a transformation may have removed a named dimension."""
    shape_of(function, positions, own)
    _check_indices(function, name, positions, own)
    positions = widened(positions)
    return jnp.remainder(positions, size) if mode == "wrap" else positions


def _matched(
    function: str, array: jax.Array, names: Names, name: str, own: Names, positions: Any, target: Names, reach: Reach
) -> jax.Array:
    """Read at one index array by mapping over the axes that it shares with the rest of the array.

    The compiler then knows that these are batch dimensions, which positions along them would hide.
    """
    anonymous = array.ndim - len(names)
    sizes = dict(zip(names, array.shape[anonymous:], strict=True))
    positions = _checked(function, name, positions, own, sizes.pop(name), reach.mode)
    known = _lift.one_size(function, [tuple(sizes), own], [tuple(sizes.values()), positions.shape])
    shared = tuple(other for other in own if other in sizes)
    labels: list[Any] = [*range(anonymous), *names]
    single = [label for label in labels if label not in shared]
    at, count = single.index(name), positions.size

    def read(array: jax.Array, positions: jax.Array) -> jax.Array:
        return _elements(array, (*[builtins.slice(None)] * at, positions), reach, count)

    mapped: Any = read
    for i, other in reversed(list(enumerate(shared))):
        outer = shared[:i]
        dims = [[label for label in each if label not in outer].index(other) for each in (labels, own)]
        mapped = jax.vmap(mapped, in_axes=tuple(dims))
    new = (label for label in own if label not in shared)
    have: tuple[Any, ...] = (*shared, *single[:at], *new, *single[at + 1 :])
    result = read_locally(mapped, [array, positions], names, {name}, [(own, positions)], have, known)
    wanted: tuple[Any, ...] = (*range(anonymous), *target)
    return _lift.lined_up(result, have, wanted)
