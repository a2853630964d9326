"""Indexing by name.

`x["batch", 0, "embed", 2:5]` and `x[{"batch": 0, "embed": slice(2, 5)}]` are equivalent. An int removes the axis, a
slice keeps it, and an index array replaces it by its own axes. A list or a plain 1-d array has the axis that it
indexes.
"""

import builtins
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.export import is_symbolic_dim
from jax.typing import ArrayLike

from ..axis import (
    Axis,
    AxisKey,
    AxisSelector,
    AxisSpec,
    names_and_sizes,
    names_in,
    selection,
    selector as one_axis,
    shown,
    spec,
)
from ..base.calls import explain_calls
from ..base.dtypes import widen_positions
from ..base.kinds import Payload
from ..engine import checks, kernels, pointwise
from ..engine.audits import current_report, expect
from ..engine.batched import apply_batched
from ..engine.core import Core, Operand, facts, shape_of, wrap
from ..engine.operands import integers, payload
from ..engine.position import Reach, make_reach, reading, run_with_ints
from ..engine.reading import take_slice
from ..engine.renaming import share_by_renaming
from ..engine.steps import (
    Gather,
    Int,
    Item,
    Slice,
    Step,
    check_along,
    check_range,
    check_start,
    selectors_of,
    size_of,
    steps_of,
)
from ..errors import (
    ArgumentError,
    AxisNotFoundError,
    AxisSizeError,
    OperandError,
    describe,
    message,
)
from ..names import plans
from ..names.plans import Names

if TYPE_CHECKING:
    from ..array import NamedArray

__all__ = [
    "getitem",
    "index",
    "ravel_multi_index",
    "slice",
    "take",
    "take_along_axis",
    "unravel_index",
]

_PLAIN, _FILL = Reach(), Reach("fill")
_MODES = ("fill", "clip", "wrap")


def index(x: "NamedArray", selectors: Mapping[AxisKey, object]) -> "NamedArray":
    """Index by name: `x[selectors]`.

    Ints and slices are applied first. Then index arrays are matched by name, and their axes replace the indexed axes if
    those are adjacent, and otherwise come first. An axis that an index array shares with `x`, and that is not indexed
    itself, is matched position by position. Numbers out of range raise an error if they are known without JAX.
    Otherwise they read the nearest element, as in `jax.numpy`, or 0 in a `dslice`, and `axonym.debug.checks` reports
    them.

    Args:
        x: axes {those of `selectors`, ...}.
        selectors: a mapping from axes to ints (static or traced), slices with static bounds, `dslice`s, arrays or
            lists of integers.

    Returns:
        The axes of `x` without those indexed by ints, and those of index arrays.

    Raises:
        AxisNotFoundError: if an axis is missing.
        AxisSizeError: if a Python int, a list, an array of NumPy or a `dslice` with a Python int is out of range, a
            name has two sizes, or an index array reads an axis without elements.
        OperandError: if a selector is of another kind.

    Examples:
        >>> x = axn.arange(axn.make_axes(batch=2, pos=3))
        >>> axn.index(x, {"batch": 1, "pos": [2, 0]})
        NamedArray(int32[pos=2])
        [5 3]
    """
    steps, arguments = steps_of("index", x, selectors)
    check_range("index", x, steps, arguments)
    return _read_steps("index", x, steps, arguments, _PLAIN)


def getitem(x: "NamedArray", item: Item) -> "NamedArray":
    """Index by a dict, or by pairs of an axis and a selector: `x[item]`.

    Args:
        x: axes {those of `item`, ...}.
        item: a mapping as in `index`, a tuple (axis, selector, axis, selector, ...), or `...` for all of `x`.

    Returns:
        As `index`.

    Raises:
        AxisNotFoundError: if an axis is missing.
        AxisSizeError: as in `index`.

    Examples:
        >>> axn.arange(axn.make_axes(batch=2, pos=3))["batch", 1, "pos", 0].item()
        3
    """
    if item is ...:
        return x
    if type(item) is tuple and len(item) == 2:
        found = _read_piece(x, *item)
        if found is not None:
            return found
    return index(x, selectors_of("index", x, item))


def _read_piece(x: Core, axis: object, selector: object) -> "NamedArray | None":
    """Read at an int or a slice of one axis, in half the time of other indices; None leaves the index to `index`.

    A wrong index and a symbolic size are also left to `index`.
    """
    if not isinstance(x, Core) or type(axis) is not str:
        return None
    (array,), names = x.node
    size = _find_size(array, names, axis)
    if size is None:
        return None
    length = None
    # The start is an argument of the program, so that a loop over positions compiles once.
    if type(selector) is int and -size <= selector < size:
        start = selector % size
    elif type(selector) is builtins.slice and selector.step is None:
        try:
            start, stop, _ = selector.indices(size)
        except TypeError:
            return None
        length = max(stop - start, 0)
    else:
        return None
    # By the length and not by the start and the stop: slices of one length share a program.
    key = (names, axis, length)
    kernel = _pieces.get(key)
    if kernel is None:
        step = Int(axis) if length is None else Slice(axis, length)
        kernel = plans.keep(_pieces, key, reading(names, (step,), "index", _PLAIN))
    return wrap(x, run_with_ints(kernel, array, start), kernel.names)


def _find_size(array: Payload, names: Names, axis: str) -> int | None:
    """Return the size of an axis; None if it is not there, or not an int, or there is no array."""
    shape = getattr(array, "shape", None)
    if type(shape) is not tuple or axis not in names or len(shape) < len(names):
        return None
    size = shape[names.index(axis) - len(names)]
    return size if type(size) is int else None


_pieces: dict[tuple[Names, str, int | None], kernels.Kernel] = {}


def take(
    x: "NamedArray",
    axis: AxisSelector,
    index: "Operand | Sequence[int]",
    *,
    mode: str = "fill",
    fill_value: complex | np.generic | None = None,
) -> "NamedArray":
    """Take elements along an axis, which is replaced by the axes of `index`.

    Args:
        x: axes {axis, ...}.
        axis: the axis.
        index: an int, integers of any axes, or a list.
        mode: what an index array reads out of range: "fill" reads `fill_value`, "clip" the nearest element; "wrap"
            wraps around. Negative indices count from the end, but read the first element with "clip", as in `jnp.take`.
        fill_value: None means NaN, the lowest signed integer or the highest unsigned one, as in `jnp.take`.

    Returns:
        The axes of `x`, with those of `index` instead of `axis`.

    Raises:
        AxisNotFoundError: if `axis` is missing.
        AxisSizeError: if a Python int is out of range, unless `mode` is "clip" or "wrap"; or if the axis has no
            elements to read.

    Examples:
        >>> x = axn.named([10, 20, 30], "vocab")
        >>> axn.take(x, "vocab", axn.named([2, 0], "pos"))
        NamedArray(int32[pos=2])
        [30 10]
    """
    if mode == "fill" and fill_value is None and isinstance(index, Core) and isinstance(x, Core):
        (array,), names = x.node
        (picks,), new = index.node
        name, size = axis, None
        if type(axis) is Axis:
            name, size = axis.name, axis.size
        # The usual call, as of an embedding, takes a short way; a report of indices needs the longer one.
        if isinstance(name, str) and name in names and current_report() is None:
            filled = _fills.get((names, name, new)) or _make_fill(x, name, new)
            try:
                is_sized = size is None or array.shape[filled.place] == size
            except (AttributeError, IndexError):  # no array, or one that lost dimensions
                is_sized = False
            if is_sized:
                made: NamedArray = kernels.new(type(x))  # `wrap`, inlined to save a call
                made.node = ((filled.call(array, picks),), filled.names)
                return made
    return _take("take", x, axis, index, mode, fill_value)


def take_along_axis(
    x: "NamedArray",
    indices: "NamedArray",
    axis: AxisSelector,
    *,
    mode: str = "fill",
    fill_value: complex | np.generic | None = None,
) -> "NamedArray":
    """Take elements along an axis at indices that have this axis too, of any size, such as the result of `argsort`.

    Args:
        x: axes {axis, ...}.
        indices: axes {axis, ...}; it broadcasts along other axes of `x`.
        axis: the axis.
        mode: as in `take`, but negative indices count from the end with "clip" too, as in `jnp.take_along_axis`.
        fill_value: as in `take`.

    Returns:
        The axes of `x`; along `axis`, the size of `indices`.

    Raises:
        AxisNotFoundError: if `axis` is missing from either, or `indices` has an axis that `x` lacks.

    Examples:
        >>> x = axn.named([[3, 1, 2], [4, 6, 5]], ("row", "column"))
        >>> axn.take_along_axis(x, x.argsort("column"), "column").tolist()
        [[1, 2, 3], [4, 5, 6]]
    """
    check_along("take_along_axis", x, indices, axis)
    return _take("take_along_axis", x, axis, indices, mode, fill_value)


def _take(
    function: str, x: Core, axis: AxisSelector, index: object, mode: str, fill_value: object
) -> "NamedArray":
    if not isinstance(x, Core):
        raise checks.no_names(function, x)
    if mode == "fill" and fill_value is None:
        reach = _FILL
    else:
        reach = make_reach(function, _MODES, mode, fill_value)
        # As in jax.numpy, the two differ: negative indices do not count from the end in take with mode="clip".
        reach = reach._replace(wraps=(function, mode) != ("take", "clip"))
    steps, arguments = steps_of(function, x, {axis: index}, mode)
    # "clip" and "wrap" ask for the elements that they read; NaN of "fill" may be a mistake.
    if mode == "fill" and fill_value is None and current_report() is not None:
        _report_outside(function, x, steps[0].name, arguments[0])
    return _read_steps(function, x, steps, arguments, reach)


def _report_outside(function: str, x: Core, name: str, picks: jax.Array) -> None:
    size = size_of(function, x, name)
    held, room = f"array has: {facts(x)}", f"{name}={size}"
    expect(function, "index", picks, -size, size - 1, held, room=room)


class _Fill(NamedTuple):
    """How elements are taken along an axis.

    Attributes:
        call: the kernel.
        names: those of the result.
        place: of the axis in a shape, counted from the last one.
    """

    call: checks.Function
    names: Names
    place: int


_fills: dict[tuple[Names, str, Names], _Fill] = {}


def _make_fill(x: Core, name: str, new: Names) -> _Fill:
    """Make a kernel, and keep it."""
    _, names = x.node
    kernel = checks.run_plan("take", (x,), reading, names, (Gather(name, new),), "take", _FILL)
    made = _Fill(kernel.call, kernel.names, names.index(name) - len(names))
    return plans.keep(_fills, (names, name, new), made)


def _read_steps(
    function: str, x: Core, steps: tuple[Step, ...], arguments: Sequence[object], reach: Reach
) -> "NamedArray":
    (array,), names = x.node
    kernel = checks.run_plan(function, (x,), reading, names, steps, function, reach)
    return wrap(x, run_with_ints(kernel, array, *arguments), kernel.names)


def slice(
    x: "NamedArray", axis: AxisSelector, *, start: "int | Operand" = 0, length: int
) -> "NamedArray":
    """Cut `length` elements from a `start`; a traced start is moved so that the piece fits.

    Args:
        x: axes {axis, ...}.
        axis: the axis.
        start: the first position, an int or a 0-d array, which may be traced; a negative int counts from the end.
        length: the number of elements, static.

    Returns:
        The axes of `x`; the size of `axis` is `length`.

    Raises:
        AxisNotFoundError: if `axis` is missing.
        AxisSizeError: if the axis is shorter than `length`, or the piece from a Python int does not fit.
        OperandError: if `start` is not one integer, or `length` is traced.

    Examples:
        >>> axn.slice(axn.named([1, 2, 3, 4], "pos"), "pos", start=1, length=2).tolist()
        [2, 3]
    """
    if not isinstance(x, Core):
        raise checks.no_names("slice", x)
    (array,), names = x.node
    given = one_axis(axis, "slice")
    begin = payload("slice", start)
    is_integer = not jnp.ndim(begin) and jnp.issubdtype(jnp.result_type(begin), jnp.integer)
    # The length is the size of the result, which a program knows when it is compiled.
    is_static = isinstance(length, int) or is_symbolic_dim(length)
    if not is_integer or not is_static:
        problem = "the start must be one integer, and the length an int"
        hint = "index by an array to take several pieces"
        raise OperandError(message("slice", problem, hint=hint))
    kernel = checks.run_plan("slice", (x,), _make_slice, names, given, length)
    check_start("slice", x, given[0], begin, length)
    return wrap(x, run_with_ints(kernel, array, begin), names)


@share_by_renaming("names", "given")
def _make_slice(names: Names, given: tuple[str, int | None], length: Any) -> kernels.Kernel:
    (at,) = plans.positions(names, (given[0],))

    def body(array: jax.Array, start: ArrayLike) -> jax.Array:
        shape = shape_of("slice", array, names)
        checks.check_given("slice", (given,), names, shape)
        if not 0 <= length <= shape[at]:
            problem = f"cannot cut {length} elements from {given[0]}={shape[at]}"
            raise AxisSizeError(message("slice", problem, f"array has: {describe(names, shape)}"))
        # Only here is the size known from which a negative start counts.
        if isinstance(start, int) and start < 0:
            start += shape[at]
        return take_slice(array, at % array.ndim, widen_positions(start), length)

    return kernels.Kernel(names, body)


def ravel_multi_index(
    indices: Mapping[AxisKey, Operand], axes: AxisSpec, *, mode: str = "clip"
) -> "NamedArray":
    """Convert an index of each axis to positions in the flattened array.

    Args:
        indices: integers for each of the axes; they broadcast by name.
        axes: the axes in the order of flattening, such as `x.axes`.
        mode: how to treat an index out of range: "clip" takes the nearest element, "wrap" wraps around.

    Returns:
        Integers with the axes of all `indices`.

    Raises:
        AxisNotFoundError: if `indices` lacks an axis, or has one that is not in `axes`.
        ArgumentError: if `mode` is unknown, or the dtype of the indices cannot hold all positions.

    Examples:
        >>> Row, Column = axn.make_axes(row=2, column=3)
        >>> axn.ravel_multi_index({"row": 1, "column": axn.named([0, 2], "i")}, (Row, Column)).tolist()
        [3, 5]
    """
    function = "ravel_multi_index"
    if mode not in _MODES[1:]:
        raise ArgumentError(message(function, f"the mode must be one of clip, wrap, not {mode!r}"))
    given, known = selection(tuple(indices), function), spec(axes, function)
    lines = (f"axes: {shown(*known) or 'none'}",)
    names = names_in(given)
    order, shape = names_and_sizes(known)
    if set(names) != set(order):
        problem = f"the indices are for {', '.join(names) or 'no axes'}"
        hint = "give one index for each of the axes"
        raise AxisNotFoundError(message(function, problem, *lines, hint=hint))
    table = dict(zip(names, indices.values(), strict=True))
    for name, value in table.items():
        integers(function, f"the index over {name!r}", value)
    # The positions of smaller arrays fit in int32, the narrowest dtype of the result.
    if math.prod(shape) > np.iinfo(np.int32).max:
        _check_room(function, list(table.values()), shape, lines)
    # A function of single elements, so that the indices broadcast by name.
    ordered = plans.values_at(table, order)
    return pointwise.nary(_ravel_multi_index, *ordered, shape=shape, mode=mode)


def unravel_index(indices: "NamedArray", axes: AxisSpec) -> "dict[str, NamedArray]":
    """Convert positions in a flattened array to an index of each axis, for `x[...]` and `x.at[...]`.

    Args:
        indices: integers of any axes; negative ones count from the end, and those out of range are clipped.
        axes: the axes in the order of flattening, such as `x.axes`.

    Returns:
        A dict from the name of each axis to integers with the axes of `indices`; `jnp.unravel_index` returns a tuple.

    Examples:
        >>> x = axn.named([[3, 1, 2], [4, 6, 5]], ("row", "column"))
        >>> where = axn.unravel_index(x.argmax(), x.axes)
        >>> {name: index.item() for name, index in where.items()}, x[where].item()
        ({'row': 1, 'column': 1}, 6)
    """
    known = spec(axes, "unravel_index")
    integers("unravel_index", "the indices", indices)
    if not known:
        return {}
    names, shape = names_and_sizes(known)
    out = ((),) * len(known)
    results = apply_batched(_unravel_index, (indices,), ((),), out, shape=shape)
    return dict(zip(names, results, strict=True))


def _check_room(
    function: str, indices: Sequence[Operand], shape: tuple[int, ...], lines: Sequence[str]
) -> None:
    """Check that the dtype of the indices, which is that of the result, can hold all positions."""
    values = [payload(function, value) for value in indices]
    dtype = jnp.result_type(int, *map(widen_positions, values))
    if math.prod(shape) - 1 > np.iinfo(dtype).max:
        problem = f"{dtype} cannot index {math.prod(shape)} elements"
        hint = "give indices of int64, under jax.enable_x64(True)"
        raise ArgumentError(message(function, problem, *lines, hint=hint))


def _ravel_multi_index(*indices: ArrayLike, shape: tuple[int, ...], mode: str) -> jax.Array:
    return jnp.ravel_multi_index([widen_positions(index) for index in indices], shape, mode=mode)


def _unravel_index(indices: jax.Array, shape: tuple[int, ...]) -> tuple[jax.Array, ...]:
    return tuple(jnp.unravel_index(widen_positions(indices), shape))


explain_calls(globals(), __all__)
