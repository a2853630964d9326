"""Indexing by name, and choosing elements by a condition.

`x["batch", 0, "embed", 2:5]` and `x[{"batch": 0, "embed": slice(2, 5)}]` are the same. An int drops its axis, a slice
keeps it, and an array of indices replaces it by its own axes; a list or a plain 1-d array counts as named after the
axis that it indexes.
"""

import builtins
import operator
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from .. import layout, plans
from ..axis import AxisSelector
from ..axis import selector as one_axis
from ..core import Core, Operand, facts, shape_of, wrap
from ..errors import AxisError, AxisNotFoundError, AxisSizeError, OperandError, describe, message, suggestion
from . import _lift

if TYPE_CHECKING:
    from ..array import NamedArray

__all__ = ["getitem", "index", "slice", "take", "tril", "triu", "where"]

Names = tuple[str, ...]
Step = tuple[str, str, Any]
"""One step of an index: the axis, its kind (int, slice or array), and what of it is static."""


def index(x: "NamedArray", selectors: Mapping[AxisSelector, Any]) -> "NamedArray":
    """Index by name.

    Ints and slices are taken first. Then the axes of index arrays, lined up by name, stand in the place of the axes
    that they index where those are neighbours, else in front. An axis that an index array shares with `x`, and that is
    not indexed itself, is matched position by position. Out of range, an index array reads the nearest element, as in
    `jax.numpy`; a Python int is an error.

    Args:
        x: axes {those of `selectors`, ...}.
        selectors: axes to ints (Python's or traced), slices with static bounds, arrays or lists of integers.

    Raises:
        AxisNotFoundError: if an axis is missing.
        AxisSizeError: if a Python int is out of range, or a name has two sizes.
        OperandError: if a selector is of another kind.
    """
    return _indexed("index", x, selectors, None)


def take(x: "NamedArray", axis: AxisSelector, index: "Operand | Sequence[int]") -> "NamedArray":
    """Pick elements along an axis, whose place the axes of `index` take; out of range reads NaN, as in `jnp.take`."""
    if isinstance(axis, str) and isinstance(index, Core) and isinstance(x, Core) and index.node[1]:
        (array,), names = x.node
        (indices,), own = index.node
        try:
            kernel = _index(names, ((axis, "array", own),), "take", "fill")
        except AxisError as flaw:
            _lift.fail("take", flaw, x)
        return wrap(x, kernel.call(array, indices), kernel.names)
    return _indexed("take", x, {axis: index}, "fill")


def slice(x: "NamedArray", axis: AxisSelector, *, start: "int | Operand" = 0, length: int) -> "NamedArray":
    """Cut `length` elements from `start` on, which may be traced; the start is moved so that the piece fits.

    Raises:
        AxisNotFoundError: if `axis` is missing.
        AxisSizeError: if the axis is shorter than `length`.
    """
    if not isinstance(x, Core):
        raise _lift.unnamed("slice", x)
    (array,), names = x.node
    given = one_axis(axis, "slice")
    begin: Any = start.node[0][0] if isinstance(start, Core) else _lift.plain("slice", start)
    if jnp.ndim(begin) or not jnp.issubdtype(jnp.result_type(begin), jnp.integer) or not isinstance(length, int):
        problem = "the start must be one integer, and the length an int"
        raise OperandError(message("slice", problem, hint="index by an array to take several pieces"))
    try:
        kernel = _sliced(names, given, length)
    except AxisError as flaw:
        _lift.fail("slice", flaw, x)
    return wrap(x, _run(kernel, array, begin), names)


@lru_cache(plans.CACHE)
def _sliced(names: Names, given: tuple[str, int | None], length: int) -> _lift.Kernel:
    (at,) = plans.positions(names, (given[0],))

    def body(array: Any, start: Any) -> Any:
        shape = shape_of("slice", array, names)
        _lift.check_given("slice", (given,), names, shape)
        if not 0 <= length <= shape[at]:
            problem = f"cannot cut {length} elements from {given[0]}={shape[at]}"
            raise AxisSizeError(message("slice", problem, f"array has: {describe(names, shape)}"))
        array = _lift.whole(array, (at,))
        if isinstance(start, int):
            begin = start + shape[at] if start < 0 else start
            return _cut(array, at % array.ndim, min(max(begin, 0), shape[at] - length), length)
        return lax.dynamic_slice_in_dim(array, start, length, at % array.ndim)

    return _lift.Kernel(names, body)


def _run(kernel: _lift.Kernel, array: Any, *arguments: Any) -> Any:
    """Call a kernel: under a trace with Python ints as they are, so that they stay static."""
    return kernel.body(array, *arguments) if isinstance(array, Tracer) else kernel.call(array, *arguments)


def getitem(x: "NamedArray", item: Any) -> "NamedArray":
    """Index by a dict, or by pairs of an axis and a selector."""
    if isinstance(item, Mapping):
        return index(x, item)
    if item is ...:
        return x
    pairs = item if isinstance(item, tuple) else (item,)
    if len(pairs) % 2 or not all(isinstance(axis, str) or hasattr(axis, "name") for axis in pairs[::2]):
        shown = ", ".join(type(part).__name__ for part in pairs)
        hint = 'write x["batch", 0] or x[{"batch": 0, "embed": slice(2, 5)}]'
        problem = f"an index is a dict, or pairs of an axis and a selector, not ({shown})"
        raise OperandError(message("index", problem, f"array has: {facts(x)}", hint=hint))
    _lift.axes(pairs[::2], "index")
    return index(x, dict(zip(pairs[::2], pairs[1::2], strict=True)))


def _indexed(function: str, x: "NamedArray", selectors: Mapping[AxisSelector, Any], mode: str | None) -> "NamedArray":
    if not isinstance(x, Core):
        raise _lift.unnamed(function, x)
    if not isinstance(selectors, Mapping):
        problem = f"an index is a dict from axes to selectors, not {type(selectors).__name__}"
        raise OperandError(message(function, problem, f"array has: {facts(x)}", hint="write {'batch': 0}"))
    (array,), names = x.node
    shape = shape_of(function, array, names)
    given = _lift.axes(tuple(selectors), function)
    steps: list[Step] = []
    arguments: list[Any] = []
    for (name, given_size), selector in zip(given, selectors.values(), strict=True):
        if name not in names:
            problem = f"no axis named {name!r}"
            hint = suggestion(name, names)
            raise AxisNotFoundError(message(function, problem, f"array has: {facts(x)}", hint=hint))
        size = shape[names.index(name) - len(names)]
        _lift.check_given(function, ((name, given_size),), names, shape)
        kind, static, argument = _step(function, x, name, size, selector)
        steps.append((name, kind, static))
        arguments.append(argument)
    try:
        kernel = _index(names, tuple(steps), function, mode)
    except AxisError as flaw:
        _lift.fail(function, flaw, x)
    return wrap(x, _run(kernel, array, *arguments), kernel.names)


def _step(function: str, x: "NamedArray", name: str, size: int, selector: Any) -> tuple[str, Any, Any]:
    """Sort a selector: its kind, what of it is static, and what of it is an argument of the kernel."""
    if isinstance(selector, builtins.slice):
        try:
            start, stop, step = selector.indices(size)
        except (TypeError, ValueError):
            problem = f"the bounds of a slice over {name!r} must be ints, and its step not zero"
            hint = "use x.slice(axis, start=..., length=...) where the start is traced"
            raise OperandError(message(function, problem, hint=hint)) from None
        if step == 1:
            return "slice", max(stop - start, 0), start
        return "strided", (start, None if stop < 0 else stop, step), 0
    if isinstance(selector, int | np.integer) and not isinstance(selector, bool):
        at = operator.index(selector)
        if not -size <= at < size:
            raise AxisSizeError(
                message(function, f"index {at} is out of range for {name}={size}", f"array has: {facts(x)}")
            )
        return "int", None, at % size
    indices: Any
    if isinstance(selector, Core):
        (indices,), own = selector.node
    elif isinstance(selector, np.ndarray | jax.Array | list | tuple):
        indices = (
            selector
            if isinstance(selector, np.ndarray | jax.Array)
            else np.asarray(selector, dtype=None if len(selector) else int)
        )
        if indices.ndim > 1:
            problem = f"the index over {name!r} has shape {tuple(indices.shape)}, and its axes have no names"
            raise OperandError(message(function, problem, hint='name them: axn.named(index, ("a", "b"))'))
        own = (name,) if indices.ndim else ()
    else:
        problem = f"cannot index axis {name!r} by {type(selector).__name__}"
        raise OperandError(message(function, problem, hint="use an int, a slice, or an array of integers"))
    _check_integer(function, name, indices)
    _check_named(function, name, indices, own)
    return ("array", own, indices) if own else ("traced", None, indices)


def _check_integer(function: str, name: str, indices: Any) -> None:
    if not jnp.issubdtype(indices.dtype, jnp.integer):
        problem = f"the index over {name!r} has dtype {indices.dtype}"
        hint = "an index must be of integers; use where() to choose by a mask"
        raise OperandError(message(function, problem, hint=hint))


def _check_named(function: str, name: str, indices: Any, own: Names) -> None:
    if jnp.ndim(indices) > len(own):
        problem = f"the index over {name!r} has anonymous dimensions"
        facts = f"index has: {describe(own, jnp.shape(indices))}"
        raise OperandError(message(function, problem, facts, hint="name them: index.tag(...)"))


@lru_cache(plans.CACHE)
def _index(names: Names, steps: tuple[Step, ...], function: str, mode: str | None) -> _lift.Kernel:
    """Make the kernel of an index: ints and slices first, then all index arrays together."""
    dropped = tuple(name for name, kind, _ in steps if kind in ("int", "traced"))
    gathered = tuple(name for name, kind, _ in steps if kind == "array")
    kept = plans.without(names, dropped)
    own = tuple(static for _, kind, static in steps if kind == "array")
    target = _gathered_names(kept, gathered, own) if gathered else kept

    def body(array: Any, *arguments: Any) -> Any:
        shape_of(function, array, names)
        current, indices = names, []
        for (name, kind, static), argument in zip(steps, arguments, strict=True):
            (at,) = plans.positions(current, (name,))
            if kind == "array":
                shape_of(function, argument, static)
                _check_integer(function, name, argument)
                indices.append(argument)
                continue
            array = _lift.whole(array, (at,))
            if kind == "slice":
                array = _cut(array, at % array.ndim, argument, static)
            elif kind == "strided":
                array = array[(*[builtins.slice(None)] * (at % array.ndim), builtins.slice(*static))]
            else:
                array = lax.squeeze(_cut(array, at % array.ndim, argument, 1), (at,))
                current = plans.without(current, (name,))
        if not gathered:
            return array
        return _gather(function, array, kept, gathered, indices, own, target, mode)

    return _lift.Kernel(target, body)


def _cut(array: jax.Array, at: int, start: Any, length: int) -> jax.Array:
    """Take a slice; where arrays are concrete the start is an argument, so that a loop over starts compiles once."""
    if length == array.shape[at]:
        return array
    if isinstance(start, int):
        return lax.slice_in_dim(array, start, start + length, axis=at)
    if not length:
        return lax.slice_in_dim(array, 0, 0, axis=at)
    return lax.dynamic_slice_in_dim(array, start, length, at)


def _gathered_names(names: Names, indexed: Names, own: tuple[Names, ...]) -> Names:
    """Name the result of index arrays."""
    union: Names = ()
    for one in sorted(own, key=len, reverse=True):
        union = plans.union(union, one)
    kept = plans.without(names, indexed)
    new = plans.without(union, kept)
    at = sorted(map(names.index, indexed))
    if at[-1] - at[0] + 1 != len(at):
        return (*new, *kept)
    before = plans.without(names[: at[0]], indexed)
    return (*before, *new, *kept[len(before) :])


def _gather(
    function: str,
    array: jax.Array,
    names: Names,
    indexed: Names,
    indices: Sequence[jax.Array],
    own: tuple[Names, ...],
    target: Names,
    mode: str | None,
) -> jax.Array:
    """Read elements at index arrays."""
    kept = plans.without(names, indexed)
    union: Names = ()
    for one in own:
        union = plans.union(union, one)
    shared = tuple(name for name in kept if name in union)
    shape = array.shape[array.ndim - len(names) :]
    kept_shape = tuple(shape[names.index(name)] for name in kept)
    index_shapes = [i.shape[i.ndim - len(o) :] for i, o in zip(indices, own, strict=True)]
    sizes = _lift.one_size(function, [kept, *own], [kept_shape, *index_shapes])
    dims: list[Any] = [builtins.slice(None)] * array.ndim
    anonymous = array.ndim - len(names)
    for name, positions, of in zip(indexed, indices, own, strict=True):
        _check_named(function, name, positions, of)
        dims[anonymous + names.index(name)] = _lift.lined_up(positions, of, _from_first(union, of))
    for name in shared:
        dims[anonymous + names.index(name)] = _lift.lined_up(
            jnp.arange(sizes[name]), (name,), _from_first(union, (name,))
        )
    at = [i for i, dim in enumerate(dims) if not isinstance(dim, builtins.slice)]
    # As in numpy: the new dimensions come where neighbours were indexed, otherwise in front.
    first = at[0] if at[-1] - at[0] + 1 == len(at) else 0
    rest = plans.without(kept, shared)
    before = rest[: max(first - anonymous, 0)]
    order = (*before, *union, *rest[len(before) :])
    sharding = None
    if layout.has_explicit_axes(array) or any(map(layout.has_explicit_axes, indices)):
        array = _lift.whole(array, at)
        sharding = _gather_layout(array, names, dims, at, union, order)
    result: jax.Array = array.at[tuple(dims)].get(mode=mode or "clip", out_sharding=sharding)
    if first < anonymous:
        result = jnp.moveaxis(result, range(len(union)), range(anonymous, anonymous + len(union)))
    return _lift.lined_up(result, order, target)


def _from_first(union: Names, own: Names) -> Names:
    """Return the names of `union` from the first of `own` on: positional indexing adds leading dimensions itself."""
    return union[min(map(union.index, own)) :]


def _gather_layout(
    array: jax.Array, names: Names, dims: Sequence[Any], at: Sequence[int], union: Names, order: Names
) -> jax.sharding.NamedSharding:
    """Lay out gathered elements, on a mesh with Explicit axes: as the indices are, then as the array is."""
    entries = layout.entries_of(array)
    anonymous = len(entries) - len(names)
    given = [(union[len(union) - dims[i].ndim :], layout.entries_of(dims[i])) for i in at]
    given.append((names, entries[anonymous:]))
    table = layout.settle(order, given, layout.current_mapping())
    leading = [table[name] for name in union] if at[-1] - at[0] + 1 != len(at) and anonymous else []
    named = [table[name] for name in (order[len(union) :] if leading else order)]
    return layout.sharding_from(array, [*leading, *entries[:anonymous], *named])


def where(condition: Operand, x: Operand, y: Operand) -> "NamedArray":
    """Choose each element from `x` where `condition` is true and from `y` elsewhere, by name."""
    return _lift.nary(jnp.where, condition, x, y)


def tril(x: "NamedArray", axis1: AxisSelector, axis2: AxisSelector, k: int = 0) -> "NamedArray":
    """Keep the elements whose index in `axis2` is at most that in `axis1` plus `k`; the others become zero."""
    return _triangle("tril", x, axis1, axis2, k)


def triu(x: "NamedArray", axis1: AxisSelector, axis2: AxisSelector, k: int = 0) -> "NamedArray":
    """Keep the elements whose index in `axis2` is at least that in `axis1` plus `k`; the others become zero."""
    return _triangle("triu", x, axis1, axis2, k)


def _triangle(function: str, x: "NamedArray", axis1: AxisSelector, axis2: AxisSelector, k: int) -> "NamedArray":
    if not isinstance(x, Core):
        raise _lift.unnamed(function, x)
    (array,), names = x.node
    given = _lift.axes((axis1, axis2), function)
    try:
        kernel = _triangular(function, names, given, k)
    except AxisError as flaw:
        _lift.fail(function, flaw, x)
    return wrap(x, kernel.call(array), names)


@lru_cache(plans.CACHE)
def _triangular(function: str, names: Names, given: "_lift.Pairs", k: int) -> _lift.Kernel:
    pair = tuple(name for name, _ in given)
    plans.positions(names, pair)

    def body(array: Any) -> Any:
        shape = shape_of(function, array, names)
        _lift.check_given(function, given, names, shape)
        sizes = dict(zip(names, shape[len(shape) - len(names) :], strict=True))
        row, column = (lax.broadcasted_iota(jnp.int32, [sizes[name] for name in pair], i) for i in (0, 1))
        keep = column - row <= k if function == "tril" else column - row >= k
        return jnp.where(_lift.lined_up(keep, pair, names), array, jnp.zeros((), array.dtype))

    return _lift.Kernel(names, body)
