"""Functions that join and split arrays, and insert and delete elements."""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from .. import _constraints, layout, plans
from ..axis import Axis, AxisSelector, selector, sized, spec
from ..core import Core, Operand, facts, shape_of, wrap
from ..errors import AxisClashError, AxisError, AxisSizeError, OperandError, describe, message
from ..plans import Names
from . import _lift, _piece
from ._operands import position_of

if TYPE_CHECKING:
    from ..array import NamedArray

__all__ = ["concatenate", "delete", "insert", "split", "stack", "unbind"]

Places = int | slice | Sequence[int] | np.ndarray[Any, Any]
"""Positions along an axis that are known while tracing, because the size of the result depends on them."""


def unbind(x: "NamedArray", axis: AxisSelector) -> tuple["NamedArray", ...]:
    """Split an array along an axis into arrays without it, one for each position.

    Raises:
        AxisNotFoundError: if `axis` is missing.
    """
    if not isinstance(x, Core):
        raise _lift.unnamed("unbind", x)
    (array,), names = x.node
    given = selector(axis, "unbind")
    try:
        kernel = _unbound(names, given)
    except AxisError as flaw:
        _lift.fail("unbind", flaw, x)
    return tuple(wrap(x, part, kernel.names) for part in kernel.call(array))


@lru_cache(plans.CACHE)
def _unbound(names: Names, given: tuple[str, int | None]) -> _lift.Kernel:
    (at,) = plans.positions(names, (given[0],))

    def body(array: Any) -> Any:
        shape = shape_of("unbind", array, names)
        _lift.check_given("unbind", (given,), names, shape)
        array = _lift.whole(array, (at,))
        return [lax.index_in_dim(array, i, at, keepdims=False) for i in range(shape[at])]

    return _lift.Kernel(plans.without(names, (given[0],)), body)


def split(
    x: "NamedArray", axis: AxisSelector, new_axes: Sequence[Axis] | Mapping[str, int]
) -> tuple["NamedArray", ...]:
    """Split an array along an axis into pieces; `new_axes` gives its name and size in each piece.

    Raises:
        AxisNotFoundError: if `axis` is missing.
        AxisSizeError: if the sizes of the pieces do not add up to that of the axis.
    """
    if not isinstance(x, Core):
        raise _lift.unnamed("split", x)
    (array,), names = x.node
    given = selector(axis, "split")
    if not isinstance(new_axes, Iterable) or isinstance(new_axes, str):
        problem = f"the pieces must be given as a list of axes, not as {type(new_axes).__name__}"
        hint = 'give each piece its name and size, such as [Axis("first", 2), Axis("second", 3)]'
        raise OperandError(message("split", problem, f"array has: {facts(x)}", hint=hint))
    pieces = spec(new_axes, "split") if isinstance(new_axes, Mapping) else [sized(each, "split") for each in new_axes]
    sizes = tuple(piece.size for piece in pieces)
    try:
        kernel = _cut(names, given, sizes)
        targets = [plans.rename(names, ((given[0], piece.name),)) for piece in pieces]
    except AxisError as flaw:
        _lift.fail("split", flaw, x)
    return tuple(wrap(x, part, target) for part, target in zip(kernel.call(array), targets, strict=True))


@lru_cache(plans.CACHE)
def _cut(names: Names, given: tuple[str, int | None], sizes: tuple[int, ...]) -> _lift.Kernel:
    (at,) = plans.positions(names, (given[0],))

    def body(array: Any) -> Any:
        shape = shape_of("split", array, names)
        _lift.check_given("split", (given,), names, shape)
        if sum(sizes) != shape[at]:
            problem = f"pieces of sizes {sizes} add up to {sum(sizes)}, not to {given[0]}={shape[at]}"
            raise AxisSizeError(message("split", problem, f"array has: {describe(names, shape)}"))
        return lax.split(_lift.whole(array, (at,)), sizes, axis=at % array.ndim)

    return _lift.Kernel(names, body)


def concatenate(axis: AxisSelector, arrays: Sequence["NamedArray"]) -> "NamedArray":
    """Join arrays along an axis that they have.

    One array has the axes of all others, and gives the result its order of axes; the others are repeated along those
    that they lack, as in an elementwise operation.

    Raises:
        AxisNotFoundError: if an array lacks `axis`.
        BroadcastError: if no array has the axes of all others.
        AxisSizeError: if another axis has two sizes, or the size of an `Axis` is not the sum.
    """
    given = selector(axis, "concatenate")
    _several("concatenate", arrays)
    return _join("concatenate", _concatenated, given, arrays)


def stack(axis: AxisSelector, arrays: Sequence["NamedArray"]) -> "NamedArray":
    """Join arrays along a new axis, which comes first; an array may lack other axes, as in `concatenate`.

    Raises:
        BroadcastError: if no array has the axes of all others.
        AxisClashError: if the arrays already have the new axis.
        AxisSizeError: if an axis has two sizes, or the size of an `Axis` is not the number of arrays.
    """
    given = selector(axis, "stack")
    _several("stack", arrays)
    if given[1] not in (None, len(arrays)):
        problem = f"axis {given[0]!r} was given with size {given[1]} for {len(arrays)} arrays"
        raise AxisSizeError(message("stack", problem))
    return _join("stack", _stacked, given, arrays)


def _several(function: str, arrays: Any) -> None:
    """Raise an error unless the argument is a sequence of arrays."""
    if arrays.__class__ not in (list, tuple) and not isinstance(arrays, Sequence):
        problem = f"the arrays must be given as a list, not as {type(arrays).__name__}"
        lines = (f"array has: {facts(arrays)}",) if isinstance(arrays, Core) else ()
        raise OperandError(message(function, problem, *lines))


def _join(function: str, make: Any, given: tuple[str, int | None], arrays: Sequence["NamedArray"]) -> "NamedArray":
    if not arrays:
        raise OperandError(message(function, "no arrays to join"))
    for x in arrays:
        if not isinstance(x, Core):
            raise _lift.unnamed(function, x)
    try:
        kernel = make(tuple(x.node[1] for x in arrays), given)
    except AxisError as flaw:
        _lift.fail(function, flaw, *arrays)
    return wrap(arrays[0], kernel.call(*(x.node[0][0] for x in arrays)), kernel.names)


@lru_cache(plans.CACHE)
def _concatenated(operands: tuple[Names, ...], given: tuple[str, int | None]) -> _lift.Kernel:
    for names in operands:
        plans.require(names, (given[0],))
    target = plans.broadcast(operands)
    (at,) = plans.positions(target, (given[0],))

    def body(*arrays: Any) -> Any:
        for array, names in zip(arrays, operands, strict=True):
            shape_of("concatenate", array, names)
        kept = [plans.without(names, (given[0],)) for names in operands]
        shapes = [
            tuple(a.shape[i] for i in plans.positions(names, own))
            for a, names, own in zip(arrays, operands, kept, strict=True)
        ]
        sizes = _lift.one_size("concatenate", kept, shapes)
        lined = [_spread(a, names, target, sizes) for a, names in zip(arrays, operands, strict=True)]
        total = sum(a.shape[at] for a in lined)
        if given[1] not in (None, total):
            problem = f"axis {given[0]!r} was given with size {given[1]}, but the sizes add up to {total}"
            raise AxisSizeError(message("concatenate", problem))
        return lax.concatenate(_same_layout(lined, target, given[0]), at % lined[0].ndim)

    return _lift.Kernel(target, body)


@lru_cache(plans.CACHE)
def _stacked(operands: tuple[Names, ...], given: tuple[str, int | None]) -> _lift.Kernel:
    target = plans.broadcast(operands)
    if given[0] in target:
        raise AxisClashError(f"the arrays already have axis {given[0]!r}", "concatenate joins along an existing axis")

    def body(*arrays: Any) -> Any:
        sizes = _lift.check_sizes("stack", operands, arrays)
        lined = [_spread(a, names, target, sizes) for a, names in zip(arrays, operands, strict=True)]
        lined, at = _same_layout(lined, target), lined[0].ndim - len(target)
        if layout.taken_axes():
            # Within a `vmap`, JAX's stack assumes that mapped operands have the layout of those that are not mapped.
            return lax.concatenate([lax.expand_dims(a, (at,)) for a in lined], at)
        return jnp.stack(lined, axis=at)

    return _lift.Kernel((given[0], *target), body)


def _spread(array: jax.Array, names: Names, target: Names, sizes: Mapping[str, int]) -> jax.Array:
    """Line an array up with all names of the result, and repeat it along those that it lacks."""
    array = _lift.lined_up(array, names, target)
    if len(names) == len(target):
        return array
    anonymous = array.ndim - len(target)
    own = array.shape[anonymous:]
    full = [size if name in names else sizes[name] for name, size in zip(target, own, strict=True)]
    return jnp.broadcast_to(array, (*array.shape[:anonymous], *full))


def _same_layout(arrays: Sequence[jax.Array], names: Names, joined: str | None = None) -> list[jax.Array]:
    """Convert arrays to a common dtype and, with Explicit axes, to one layout that does not split the joined axis."""
    dtype = jnp.result_type(*arrays)
    if any(map(_constraints.has_explicit_axes, arrays)):
        arrays = _constraints.on_one_mesh(arrays)
        labels = [(*range(len(names) - a.ndim, 0), *names) for a in arrays]
        operands = list(zip(labels, map(_constraints.entries_of, arrays), strict=True))
        table = _constraints.settle([label for label in labels[0] if label != joined], operands)
        wanted = [[table.get(label, ()) for label in own] for own in labels]
        arrays = list(map(_constraints.relayout, arrays, wanted))
    return [a.astype(dtype) for a in arrays]


def delete(x: "NamedArray", index: Places, axis: AxisSelector) -> "NamedArray":
    """Delete elements along an axis, which keeps its name.

    Args:
        x: axes {axis, ...}.
        index: the positions, static; negative ones count from the end.
        axis: the axis.

    Raises:
        AxisNotFoundError: if `axis` is missing.
        AxisSizeError: if a position is out of range.

    Example:
        >>> axn.delete(axn.named([1, 2, 3, 4], "x"), [0, -1], "x").tolist()
        [2, 3]
    """
    size = _size("delete", x, axis)
    kept = np.delete(np.arange(size), _positions("delete", index, axis, size, size))
    return _reordered("delete", x, axis, None, 0, kept)


def insert(x: "NamedArray", index: Places, values: Operand, axis: AxisSelector) -> "NamedArray":
    """Insert elements before given positions along an axis, which keeps its name.

    Args:
        x: axes {axis, ...}.
        index: the positions in `x`, static; the size of the axis means the end.
        values: a scalar, or an array whose axes are among those of `x`, converted to the dtype of `x`; with `axis` it
            has one element for each position, or any number for a single position.
        axis: the axis.

    Raises:
        AxisNotFoundError: if `axis` is missing, or `values` has an axis that `x` lacks.
        AxisSizeError: if a position is out of range, or a size does not fit.

    Example:
        >>> axn.insert(axn.named([1, 2, 3], "x"), [0, 2], 9, "x").tolist()
        [9, 1, 2, 9, 3]
    """
    size = _size("insert", x, axis)
    at = _positions("insert", index, axis, size, size + 1)
    if len(at) == 1 and isinstance(values, Core) and selector(axis)[0] in values.names:
        at = np.repeat(at, _size("insert", values, selector(axis)[0]))
    # An element that is inserted at a position sorts just before the present one.
    order = np.argsort(np.concatenate([2 * np.arange(size), 2 * at - 1]), kind="stable")
    return _reordered("insert", x, axis, values, len(at), order)


def _size(function: str, x: Core, axis: AxisSelector) -> int:
    at = position_of(function, x, axis)
    return x.array.shape[at]


def _positions(function: str, index: Any, axis: AxisSelector, size: int, end: int) -> np.ndarray[Any, Any]:
    """Normalise positions, all of which must be before `end`."""
    if isinstance(index, slice):
        return np.arange(size)[index]
    if not isinstance(index, int | np.integer | np.ndarray | list | tuple):
        problem = f"positions must be static ints, not {type(index).__name__}"
        raise OperandError(message(function, problem, hint="an index array, x[axis, array], may be traced"))
    at = np.atleast_1d(np.asarray(index, dtype=None if np.size(index) else int))
    if at.ndim > 1 or not np.issubdtype(at.dtype, np.integer):
        problem = f"positions must be a one-dimensional array of integers, not {at.dtype} of shape {at.shape}"
        raise OperandError(message(function, problem))
    if at.size and not (-size <= at.min() and at.max() < end):
        raise AxisSizeError(message(function, f"a position is out of range for {selector(axis)[0]}={size}"))
    at = at.astype(np.intp)  # a narrower type may not hold them
    return np.where(at < 0, at + size, at)


def _reordered(
    function: str, x: "NamedArray", axis: AxisSelector, values: Any, count: int, order: np.ndarray[Any, Any]
) -> "NamedArray":
    """Take elements along an axis in an order that counts `count` further elements after those of `x`."""
    (array,), names = x.node
    own = values.node[1] if isinstance(values, Core) else ()
    fresh = values.node[0][0] if isinstance(values, Core) else _lift.plain(function, 0 if values is None else values)
    try:
        kernel = _reorder(function, names, selector(axis)[0], own, count)
    except AxisError as flaw:
        _lift.fail(function, flaw, x, values)
    if isinstance(array, Tracer) or isinstance(fresh, Tracer):
        return wrap(x, kernel.body(array, jnp.asarray(fresh), order), names)
    # Where arrays are concrete the order is an argument, so that a loop over places compiles once.
    return wrap(x, kernel.call(array, fresh, order), names)


_FEW_RUNS = 8  # each is a separate slice, which adds to the time to compile


def _runs(order: Any, size: int) -> list[tuple[int, int]]:
    """Split an order of elements into runs of consecutive positions that do not cross `size`.

    There are none if the order is empty, is not known, or has too many runs.
    """
    if not isinstance(order, np.ndarray):
        return []
    starts = np.flatnonzero((np.diff(order, prepend=-2) != 1) | (order == size))
    if len(starts) > _FEW_RUNS:
        return []
    return [(int(order[start]), int(order[stop - 1]) + 1) for start, stop in pairwise((*starts, len(order)))]


@lru_cache(plans.CACHE)
def _reorder(function: str, names: Names, axis: str, own: Names, count: int) -> _lift.Kernel:
    (at,) = plans.positions(names, (axis,))
    plans.require(names, own)

    def joined(array: Any, values: Any, order: Any, runs: Sequence[tuple[int, int]]) -> Any:
        size, sources = array.shape[at], [array]
        if count:
            shape = list(array.shape)
            shape[at] = count
            fresh = _lift.lined_up(jnp.asarray(values, array.dtype), own, names)
            sources.append(jnp.broadcast_to(fresh, shape))
        if not runs:
            return jnp.take(jnp.concatenate(sources, at), order, at, mode="clip")  # all are in range

        def piece(start: int, stop: int) -> jax.Array:
            source, first = (array, 0) if start < size else (sources[-1], size)
            return _piece.sliced(source, at, start - first, stop - start)

        # The gradient of a gather, a scatter, would move twice as much as that of slices.
        return jnp.concatenate([piece(*run) for run in runs], at)

    def body(array: Any, values: Any, order: Any) -> Any:
        shape = shape_of(function, values, own) if own else jnp.shape(values)
        if len(shape) > len(own):
            problem = f"values of shape {shape} have dimensions without names"
            raise OperandError(message(function, problem, hint=_lift.NAME_IT))
        expected = dict(zip(names, array.shape[array.ndim - len(names) :], strict=True)) | {axis: count}
        for name, size in zip(own, shape, strict=True):
            if size != expected[name]:
                problem = f"the values have {name}={size}, but the size must be {expected[name]}"
                raise AxisSizeError(message(function, problem, f"array has: {describe(names, array.shape)}"))
        array = _lift.whole(array, (at,))
        call = partial(joined, runs=_runs(order, array.shape[at]))
        return _lift.local(call, [array, values, order], list(_constraints.entries_of(array)))

    return _lift.Kernel(names, body)
