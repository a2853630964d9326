"""Indexing by name.

`x["batch", 0, "embed", 2:5]` and `x[{"batch": 0, "embed": slice(2, 5)}]` are equivalent. An int removes the axis, a
slice keeps it, and an index array replaces it by its own axes; the axis of a list or a plain 1-d array has the name
of the axis that it indexes.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.export import is_symbolic_dim

from .. import plans
from .._checks import current_report, expect
from ..axis import AxisKey, AxisSelector, AxisSpec, selection, shown, spec
from ..axis import selector as one_axis
from ..core import Core, Operand, facts, shape_of, wrap
from ..errors import ArgumentError, AxisError, AxisNotFoundError, AxisSizeError, OperandError, describe, message
from ..plans import Names
from . import _lift
from ._batch import batched
from ._operands import integers
from ._piece import sliced
from ._position import (
    Item,
    Reach,
    Step,
    check_along,
    check_range,
    check_start,
    planned,
    reaching,
    reading,
    run,
    selectors_of,
    size_of,
)
from ._widen import widened

if TYPE_CHECKING:
    from ..array import NamedArray

__all__ = ["getitem", "index", "ravel_multi_index", "slice", "take", "take_along_axis", "unravel_index"]

_PLAIN, _FILL = Reach(), Reach("fill")
_MODES = ("fill", "clip", "wrap")


def index(x: "NamedArray", selectors: Mapping[AxisKey, Any]) -> "NamedArray":
    """Index by name.

    Ints and slices are applied first. Then index arrays are matched by name, and their axes replace the indexed axes if
    those are adjacent, and otherwise come first. An axis that an index array shares with `x`, and that is not indexed
    itself, is matched position by position. Numbers out of range that are known without JAX are an error; others read
    the nearest element, as in `jax.numpy`, a `dslice` reads 0, and `axonym.debug.checks` reports them.

    Args:
        x: axes {those of `selectors`, ...}.
        selectors: a mapping from axes to ints (static or traced), slices with static bounds, `dslice`s, arrays or
            lists of integers.

    Raises:
        AxisNotFoundError: if an axis is missing.
        AxisSizeError: if a Python int, a list, an array of NumPy or a `dslice` with a Python int is out of range, a
            name has two sizes, or an index array reads an axis without elements.
        OperandError: if a selector is of another kind.
    """
    steps, arguments = planned("index", x, selectors)
    check_range("index", x, steps, arguments)
    return _read("index", x, steps, arguments, _PLAIN)


def getitem(x: "NamedArray", item: Item) -> "NamedArray":
    """Index by a dict, or by pairs of an axis and a selector."""
    return x if item is ... else index(x, selectors_of("index", x, item))


def take(
    x: "NamedArray",
    axis: AxisSelector,
    index: "Operand | Sequence[int]",
    *,
    mode: str = "fill",
    fill_value: Any = None,
) -> "NamedArray":
    """Take elements along an axis, which is replaced by the axes of `index`.

    Args:
        x: axes {axis, ...}.
        axis: the axis.
        index: an int, integers of any axes, or a list.
        mode: what an index array reads out of range: "fill" reads `fill_value`, "clip" the nearest element; "wrap"
            wraps around. Negative indices count from the end, but read the first element with "clip", as in `jnp.take`.
        fill_value: None means NaN, the lowest signed integer or the highest unsigned one, as in `jnp.take`.

    Raises:
        AxisNotFoundError: if `axis` is missing.
        AxisSizeError: if a Python int is out of range, unless `mode` is "clip" or "wrap"; or if the axis has no
            elements to read.
    """
    return _taken("take", x, axis, index, mode, fill_value)


def take_along_axis(
    x: "NamedArray", indices: "NamedArray", axis: AxisSelector, *, mode: str = "fill", fill_value: Any = None
) -> "NamedArray":
    """Take elements along an axis at indices that have this axis too, of any size, such as the result of `argsort`.

    Args:
        x: axes {axis, ...}.
        indices: axes {axis, ...}; it broadcasts along other axes of `x`.
        axis: the axis.
        mode: as in `take`, but negative indices count from the end with "clip" too, as in `jnp.take_along_axis`.
        fill_value: as in `take`.

    Raises:
        AxisNotFoundError: if `axis` is missing from either, or `indices` has an axis that `x` lacks.

    Example:
        >>> x = axn.named([[3, 1, 2], [4, 6, 5]], ("row", "column"))
        >>> axn.take_along_axis(x, x.argsort("column"), "column").tolist()
        [[1, 2, 3], [4, 5, 6]]
    """
    check_along("take_along_axis", x, indices, axis)
    return _taken("take_along_axis", x, axis, indices, mode, fill_value)


def _taken(function: str, x: Core, axis: AxisSelector, index: Any, mode: str, fill_value: Any) -> "NamedArray":
    if mode == "fill" and fill_value is None:
        if isinstance(axis, str) and isinstance(index, Core) and isinstance(x, Core):
            (array,), names = x.node
            (picks,), new = index.node
            if current_report() is not None and axis in names:
                _report_outside(function, x, axis, picks)
            try:
                key = (names, axis, new, function)
                kernel = _filling.get(key) or plans.keep(
                    _filling, key, reading(names, ((axis, "array", new),), function, _FILL)
                )
            except AxisError as flaw:
                _lift.fail(function, flaw, x)
            return wrap(x, kernel.call(array, picks), kernel.names)
        reach = _FILL
    else:
        reach = reaching(function, _MODES, mode, fill_value)
        # As in jax.numpy, the two differ: negative indices do not count from the end in take with mode="clip".
        reach = reach._replace(wraps=(function, mode) != ("take", "clip"))
    steps, arguments = planned(function, x, {axis: index}, mode)
    if mode == "fill" and fill_value is None and current_report() is not None:
        _report_outside(function, x, steps[0][0], arguments[0])
    return _read(function, x, steps, arguments, reach)


def _report_outside(function: str, x: Core, name: str, picks: Any) -> None:
    size = size_of(function, x, name)
    expect(function, "index", picks, -size, size - 1, f"array has: {facts(x)}", room=f"{name}={size}")


_filling: dict[tuple[Names, str, Names, str], _lift.Kernel] = {}


def _read(function: str, x: Core, steps: tuple[Step, ...], arguments: Sequence[Any], reach: Reach) -> "NamedArray":
    (array,), names = x.node
    try:
        kernel = reading(names, steps, function, reach)
    except AxisError as flaw:
        _lift.fail(function, flaw, x)
    return wrap(x, run(kernel, array, *arguments), kernel.names)


def slice(x: "NamedArray", axis: AxisSelector, *, start: "int | Operand" = 0, length: int) -> "NamedArray":
    """Cut `length` elements from a `start`; one that is traced is moved so that the piece fits.

    Raises:
        AxisNotFoundError: if `axis` is missing.
        AxisSizeError: if the axis is shorter than `length`, or the piece from a Python int does not fit.
    """
    if not isinstance(x, Core):
        raise _lift.unnamed("slice", x)
    (array,), names = x.node
    given = one_axis(axis, "slice")
    begin: Any = start.node[0][0] if isinstance(start, Core) else _lift.plain("slice", start)
    if (
        jnp.ndim(begin)
        or not jnp.issubdtype(jnp.result_type(begin), jnp.integer)
        or not (isinstance(length, int) or is_symbolic_dim(length))
    ):
        problem = "the start must be one integer, and the length an int"
        raise OperandError(message("slice", problem, hint="index by an array to take several pieces"))
    try:
        kernel = _sliced(names, given, length)
    except AxisError as flaw:
        _lift.fail("slice", flaw, x)
    check_start("slice", x, given[0], begin, length)
    return wrap(x, run(kernel, array, begin), names)


@lru_cache(plans.CACHE)
def _sliced(names: Names, given: tuple[str, int | None], length: int) -> _lift.Kernel:
    (at,) = plans.positions(names, (given[0],))

    def body(array: Any, start: Any) -> Any:
        shape = shape_of("slice", array, names)
        _lift.check_given("slice", (given,), names, shape)
        if not 0 <= length <= shape[at]:
            problem = f"cannot cut {length} elements from {given[0]}={shape[at]}"
            raise AxisSizeError(message("slice", problem, f"array has: {describe(names, shape)}"))
        begin = start
        if isinstance(start, int):
            begin = start + shape[at] if start < 0 else start
        return sliced(array, at % array.ndim, widened(begin), length)

    return _lift.Kernel(names, body)


def ravel_multi_index(indices: Mapping[AxisKey, Operand], axes: AxisSpec, *, mode: str = "clip") -> "NamedArray":
    """Convert an index of each axis to positions in the flattened array.

    Args:
        indices: integers for each of the axes; they broadcast by name.
        axes: the axes in the order of flattening, such as `x.axes`.
        mode: what an index out of range means: the nearest element for "clip"; "wrap" wraps around.

    Raises:
        AxisNotFoundError: if `indices` lacks an axis, or has one that is not in `axes`.

    Example:
        >>> Row, Column = axn.make_axes(row=2, column=3)
        >>> axn.ravel_multi_index({"row": 1, "column": axn.named([0, 2], "i")}, (Row, Column)).tolist()
        [3, 5]
    """
    function = "ravel_multi_index"
    if mode not in _MODES[1:]:
        raise ArgumentError(message(function, f"the mode must be one of clip, wrap, not {mode!r}"))
    given, known = selection(tuple(indices), function), spec(axes, function)
    lines = (f"axes: {shown(*known) or 'none'}",)
    names = tuple(name for name, _ in given)
    if set(names) != {axis.name for axis in known}:
        problem = f"the indices are for {', '.join(names) or 'no axes'}"
        raise AxisNotFoundError(message(function, problem, *lines, hint="give one index for each of the axes"))
    table = dict(zip(names, indices.values(), strict=True))
    for name, value in table.items():
        integers(function, f"the index over {name!r}", value)
    shape = tuple(axis.size for axis in known)
    if math.prod(shape) > np.iinfo(np.int32).max:
        _check_room(function, list(table.values()), shape, lines)
    return _lift.nary(_ravel_multi_index, *(table[axis.name] for axis in known), shape=shape, mode=mode)


def unravel_index(indices: "NamedArray", axes: AxisSpec) -> "dict[str, NamedArray]":
    """Convert positions in a flattened array to an index of each axis, for `x[...]` and `x.at[...]`.

    Args:
        indices: integers of any axes; negative ones count from the end, and those out of range are clipped.
        axes: the axes in the order of flattening, such as `x.axes`.

    Example:
        >>> x = axn.named([[3, 1, 2], [4, 6, 5]], ("row", "column"))
        >>> where = axn.unravel_index(x.argmax(), x.axes)
        >>> {name: index.item() for name, index in where.items()}, x[where].item()
        ({'row': 1, 'column': 1}, 6)
    """
    known = spec(axes, "unravel_index")
    integers("unravel_index", "the indices", indices)
    shape, out = tuple(axis.size for axis in known), ((),) * len(known)
    results = batched(_unravel_index, (indices,), ((),), out, shape=shape) if known else ()
    return {axis.name: result for axis, result in zip(known, results, strict=True)}


def _check_room(function: str, indices: Sequence[Any], shape: tuple[int, ...], lines: Sequence[str]) -> None:
    """Check that the dtype of the indices, which is that of the result, can hold all positions."""
    values = [value.node[0][0] if isinstance(value, Core) else value for value in indices]
    dtype = jnp.result_type(int, *map(widened, values))
    if math.prod(shape) - 1 > np.iinfo(dtype).max:
        problem = f"{dtype} cannot index {math.prod(shape)} elements"
        hint = "give indices of int64, under jax.enable_x64(True)"
        raise ArgumentError(message(function, problem, *lines, hint=hint))


def _ravel_multi_index(*indices: Any, shape: tuple[int, ...], mode: str) -> jax.Array:
    return jnp.ravel_multi_index([widened(index) for index in indices], shape, mode=mode)


def _unravel_index(indices: jax.Array, shape: tuple[int, ...]) -> tuple[jax.Array, ...]:
    return tuple(jnp.unravel_index(widened(indices), shape))
