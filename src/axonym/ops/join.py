"""Functions that join and split arrays, and insert and delete elements."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.export import is_symbolic_dim
from jax.typing import ArrayLike
from numpy.typing import NDArray

from ..axis import Axis, AxisSelector, selector, sized, spec
from ..base.calls import explain_calls
from ..base.kinds import type_text
from ..engine import auto, checks, kernels, reading
from ..engine.core import Core, Operand, facts, shape_of, wrap
from ..engine.operands import convert_list, own_names, payload, position_of
from ..engine.renaming import share_by_renaming
from ..errors import AxisClashError, AxisSizeError, OperandError, describe, message
from ..layout import context, explicit, partition
from ..layout.assignment import Entry
from ..names import plans
from ..names.plans import Names

if TYPE_CHECKING:
    from ..array import NamedArray

__all__ = ["concatenate", "delete", "insert", "split", "stack", "unbind"]

Positions: TypeAlias = NDArray[np.intp]
Places = int | slice | Sequence[int] | NDArray[np.integer[Any]]
"""Positions along an axis that are known while tracing, because the size of the result depends on them."""


def unbind(x: "NamedArray", axis: AxisSelector) -> tuple["NamedArray", ...]:
    """Split an array along an axis into arrays without it, one for each position.

    Args:
        x: axes {axis, ...}.
        axis: the axis, which is removed.

    Returns:
        A tuple of arrays with the other axes of `x`.

    Raises:
        AxisNotFoundError: if `axis` is missing.

    Examples:
        >>> [part.tolist() for part in axn.named([[1, 2], [3, 4]], ("row", "column")).unbind("row")]
        [[1, 2], [3, 4]]
    """
    if not isinstance(x, Core):
        raise checks.no_names("unbind", x)
    (array,), names = x.node
    given = selector(axis, "unbind")
    kernel = checks.run_plan("unbind", (x,), _make_unbind, names, given)
    return tuple(wrap(x, part, kernel.names) for part in kernel.call(array))


@share_by_renaming("names", "given")
def _make_unbind(names: Names, given: tuple[str, int | None]) -> kernels.Kernel:
    (at,) = plans.positions(names, (given[0],))

    def body(array: jax.Array) -> list[jax.Array]:
        shape = shape_of("unbind", array, names)
        checks.check_given("unbind", (given,), names, shape)
        # Otherwise each part of a split axis would be gathered on its own.
        array = auto.whole(array, (at,))
        return [lax.index_in_dim(array, i, at, keepdims=False) for i in range(shape[at])]

    return kernels.Kernel(plans.without(names, (given[0],)), body)


def split(
    x: "NamedArray", axis: AxisSelector, new_axes: Sequence[Axis] | Mapping[str, int] | int
) -> tuple["NamedArray", ...]:
    """Split an array along an axis into pieces.

    Args:
        x: axes {axis, ...}.
        axis: the axis to split.
        new_axes: its name and size in each piece; or a number of equal pieces, in which it keeps its name.

    Returns:
        A tuple of pieces, with the axes of `x` in the same order.

    Raises:
        AxisNotFoundError: if `axis` is missing.
        AxisSizeError: if the sizes of the pieces do not add up to that of the axis, or it has no such equal parts.

    Examples:
        >>> gate, up = axn.arange(axn.Axis("mlp", 4)).split("mlp", 2)
        >>> up.axes, up.tolist()
        ((Axis(name='mlp', size=2),), [2, 3])
    """
    if not isinstance(x, Core):
        raise checks.no_names("split", x)
    (array,), names = x.node
    given = selector(axis, "split")
    if isinstance(new_axes, int | np.integer) and not isinstance(new_axes, bool):
        new_axes = _divide_axis(x, axis, int(new_axes))
    if not isinstance(new_axes, Iterable) or isinstance(new_axes, str):
        problem = f"the pieces must be given as a list of axes, not as {type_text(new_axes)}"
        hint = 'give each piece its name and size, such as [Axis("first", 2), Axis("second", 3)]'
        raise OperandError(message("split", problem, f"array has: {facts(x)}", hint=hint))
    if isinstance(new_axes, Mapping):
        new_axes = spec(new_axes, "split")
    pieces = [sized(each, "split") for each in new_axes]
    sizes = tuple(piece.size for piece in pieces)
    kernel = checks.run_plan("split", (x,), _make_split, names, given, sizes)
    rename = partial(checks.run_plan, "split", (x,), plans.rename, names)
    targets = [rename(((given[0], piece.name),)) for piece in pieces]
    return tuple(map(partial(wrap, x), kernel.call(array), targets))


def _divide_axis(x: Core, axis: AxisSelector, count: int) -> list[Axis]:
    (whole,) = checks.require("split", x, axis)
    if count < 1 or whole.size % count:
        problem = f"{whole.name}={whole.size} has no {count} equal parts"
        hint = "give the pieces names and sizes, such as [Axis(...), Axis(...)]"
        raise AxisSizeError(message("split", problem, f"array has: {facts(x)}", hint=hint))
    return [whole.resize(whole.size // count)] * count


@share_by_renaming("names", "given")
def _make_split(
    names: Names, given: tuple[str, int | None], sizes: tuple[int, ...]
) -> kernels.Kernel:
    (at,) = plans.positions(names, (given[0],))

    def body(array: jax.Array) -> list[jax.Array]:
        shape = shape_of("split", array, names)
        checks.check_given("split", (given,), names, shape)
        if sum(sizes) != shape[at]:
            wanted = f"{given[0]}={shape[at]}"
            problem = f"pieces of sizes {sizes} add up to {sum(sizes)}, not to {wanted}"
            raise AxisSizeError(message("split", problem, f"array has: {describe(names, shape)}"))

        def pieces(array: jax.Array) -> tuple[jax.Array, ...]:
            return tuple(lax.split(array, sizes, axis=at % array.ndim))

        return list(auto.move_into_parts(pieces, array, len(sizes)))

    return kernels.Kernel(names, body)


def concatenate(axis: AxisSelector, arrays: Sequence["NamedArray"]) -> "NamedArray":
    """Join arrays along an axis that they have.

    One array has the axes of all others, and the result has its order of axes. The other arrays are repeated along
    missing axes, as in an elementwise operation. Unlike in `jnp.concatenate`, the axis is the first argument.

    Args:
        axis: the axis to join along; the size of an `Axis` is that of the result.
        arrays: axes {axis, ...} each.

    Returns:
        The axes of the arrays; along `axis`, the sum of their sizes.

    Raises:
        AxisNotFoundError: if an array lacks `axis`.
        BroadcastError: if no array has the axes of all others.
        AxisSizeError: if another axis has two sizes, or the size of an `Axis` is not the sum.

    Examples:
        >>> axn.concatenate("i", [axn.named([1, 2], "i"), axn.named([3], "i")]).tolist()
        [1, 2, 3]
    """
    _check_is_list("concatenate", axis, arrays)
    given = selector(axis, "concatenate")
    return _join("concatenate", _make_concatenation, given, arrays)


def stack(axis: AxisSelector, arrays: Sequence["NamedArray"]) -> "NamedArray":
    """Join arrays along a new axis, which comes first; an array may lack other axes, as in `concatenate`.

    Args:
        axis: the new axis; the size of an `Axis` is the number of arrays.
        arrays: arrays without this axis.

    Returns:
        Axes {axis, ...}.

    Raises:
        BroadcastError: if no array has the axes of all others.
        AxisClashError: if the arrays already have the new axis.
        AxisSizeError: if an axis has two sizes, or the size of an `Axis` is not the number of arrays.

    Examples:
        >>> axn.stack("layer", [axn.named([1, 2], "i"), axn.named([3, 4], "i")])
        NamedArray(int32[layer=2, i=2])
        [[1 2]
         [3 4]]
    """
    _check_is_list("stack", axis, arrays)
    given = selector(axis, "stack")
    checks.require_size("stack", given, len(arrays), "there are {} arrays")
    return _join("stack", _make_stack, given, arrays)


def _check_is_list(function: str, axis: object, arrays: object) -> None:
    """Raise an error unless the second argument is a sequence of arrays."""
    if isinstance(axis, Core) or checks.holds_named(axis):
        hint = f'write {function}("batch", [x, y])'
        raise OperandError(message(function, "the axis comes first", hint=hint))
    if arrays.__class__ not in (list, tuple) and not isinstance(arrays, Sequence):
        problem = f"the arrays must be given as a list, not as {type_text(arrays)}"
        if isinstance(arrays, Core):
            raise OperandError(message(function, problem, f"array has: {facts(arrays)}"))
        raise OperandError(message(function, problem))


def _join(
    function: str,
    make: Callable[[tuple[Names, ...], tuple[str, int | None]], kernels.Kernel],
    given: tuple[str, int | None],
    arrays: Sequence["NamedArray"],
) -> "NamedArray":
    if not arrays:
        raise OperandError(message(function, "no arrays to join"))
    for x in arrays:
        if not isinstance(x, Core):
            raise checks.no_names(function, x)
    kernel = checks.run_plan(function, arrays, make, tuple(x.node[1] for x in arrays), given)
    return wrap(arrays[0], kernel.call(*(x.node[0][0] for x in arrays)), kernel.names)


@share_by_renaming("operands", "given")
def _make_concatenation(
    operands: tuple[Names, ...], given: tuple[str, int | None]
) -> kernels.Kernel:
    for names in operands:
        plans.require(names, (given[0],))
    target = plans.broadcast(operands)
    (at,) = plans.positions(target, (given[0],))

    def body(*arrays: jax.Array) -> jax.Array:
        # The joined axis may have another size in each array; all others must agree.
        kept: list[Names] = []
        shapes: list[tuple[int, ...]] = []
        for array, names in zip(arrays, operands, strict=True):
            shape = shape_of("concatenate", array, names)
            own = plans.without(names, (given[0],))
            kept.append(own)
            shapes.append(plans.values_at(shape, plans.positions(names, own)))
        sizes = checks.one_size("concatenate", kept, shapes)

        lined = _repeat_all("concatenate", arrays, operands, target, sizes)
        total = sum(a.shape[at] for a in lined)
        checks.require_size("concatenate", given, total, "the sizes add up to {}")
        alike, entries = _agree_on_layout(lined, target, given[0])

        def join(*arrays: jax.Array) -> jax.Array:
            return lax.concatenate(arrays, at % arrays[0].ndim)

        return auto.move_elements(join, alike, entries)

    return kernels.Kernel(target, body)


@share_by_renaming("operands", "given")
def _make_stack(operands: tuple[Names, ...], given: tuple[str, int | None]) -> kernels.Kernel:
    target = plans.broadcast(operands)
    if given[0] in target:
        hint = "concatenate joins along an existing axis"
        raise AxisClashError(f"the arrays already have axis {given[0]!r}", hint)

    def body(*arrays: jax.Array) -> jax.Array:
        sizes = checks.check_sizes("stack", operands, arrays)
        lined, _ = _agree_on_layout(_repeat_all("stack", arrays, operands, target, sizes), target)
        at = lined[0].ndim - len(target)
        if context.get_taken_axes():
            # Within a `vmap`, JAX's stack assumes that mapped operands are sharded as those that are not mapped.
            return lax.concatenate([lax.expand_dims(a, (at,)) for a in lined], at)
        return jnp.stack(lined, axis=at)

    return kernels.Kernel((given[0], *target), body)


def _repeat_all(
    function: str,
    arrays: Sequence[jax.Array],
    operands: Sequence[Names],
    target: Names,
    sizes: Mapping[str, int],
) -> list[jax.Array]:
    anonymous = checks.anonymous_shape(function, operands, list(map(jnp.shape, arrays)))
    pairs = zip(arrays, operands, strict=True)
    return [_repeat_missing(array, names, target, sizes, anonymous) for array, names in pairs]


def _repeat_missing(
    array: jax.Array,
    names: Names,
    target: Names,
    sizes: Mapping[str, int],
    anonymous: tuple[int, ...],
) -> jax.Array:
    """Align an array with all dimensions of the result, and repeat it along missing ones."""
    array = kernels.line_up(array, names, target)
    shape = list(array.shape[array.ndim - len(target) :])
    for at, name in enumerate(target):
        if name not in names:
            shape[at] = sizes[name]
    whole = (*anonymous, *shape)
    return array if array.shape == whole else jnp.broadcast_to(array, whole)


def _agree_on_layout(
    arrays: Sequence[jax.Array], names: Names, joined: str | None = None
) -> tuple[list[jax.Array], list[Entry] | None]:
    """Convert arrays to a common dtype and, with Explicit axes, to one layout; also return the layout.

    A part that the mesh axes of the joined axis do not divide, such as one position in front, is replicated along it.
    """
    dtype = jnp.result_type(*arrays)
    arrays = [a.astype(dtype) for a in arrays]
    typed = next(filter(explicit.has_explicit_axes, arrays), None)
    if typed is None:
        return arrays, None
    out = plans.labels(names, arrays[0].ndim)
    labels: list[tuple[object, ...]] = [plans.labels(names, a.ndim) for a in arrays]
    if joined is not None:
        # An array that the mesh axes do not divide must not decide on the layout of the joined axis.
        at, entry = out.index(joined), explicit.choose(out, labels, arrays)[joined]
        ways = partition.count_shards(explicit.mesh_of_type(typed), entry)
        labels = [
            (*own[:at], None, *own[at + 1 :]) if a.shape[at] % ways else own
            for own, a in zip(labels, arrays, strict=True)
        ]
    arrays, table = explicit.agree(out, labels, arrays, others_whole=True)
    return arrays, list(plans.values_at(table, out))


def delete(x: "NamedArray", index: Places, axis: AxisSelector) -> "NamedArray":
    """Delete elements along an axis, which keeps its name.

    Args:
        x: axes {axis, ...}.
        index: the positions, static; negative ones count from the end.
        axis: the axis.

    Returns:
        The axes of `x`, of which `axis` is shorter.

    Raises:
        AxisNotFoundError: if `axis` is missing.
        AxisSizeError: if a position is out of range.
        OperandError: if a position is traced, or not an integer.

    Examples:
        >>> axn.delete(axn.named([1, 2, 3, 4], "x"), [0, -1], "x").tolist()
        [2, 3]
    """
    size = _measure_axis("delete", x, axis)
    kept = np.delete(np.arange(size), _read_positions("delete", index, axis, size, size))
    return _take_in_order("delete", x, axis, 0, 0, kept)


def insert(x: "NamedArray", index: Places, values: Operand, axis: AxisSelector) -> "NamedArray":
    """Insert elements before given positions along an axis, which keeps its name.

    Args:
        x: axes {axis, ...}.
        index: the positions in `x`, static; the size of the axis means the end.
        values: a scalar, or an array whose axes are among those of `x`, converted to the dtype of `x`; with `axis` it
            has one element for each position, or any number for a single position.
        axis: the axis.

    Returns:
        The axes and dtype of `x`; `axis` is longer.

    Raises:
        AxisNotFoundError: if `axis` is missing, or `values` has an axis that `x` lacks.
        AxisSizeError: if a position is out of range, or a size does not fit.
        OperandError: if a position is traced, or not an integer.

    Examples:
        >>> axn.insert(axn.named([1, 2, 3], "x"), [0, 2], 9, "x").tolist()
        [9, 1, 2, 9, 3]
    """
    size = _measure_axis("insert", x, axis)
    at = _read_positions("insert", index, axis, size, size + 1)
    # As in NumPy, several values may go to one position.
    if len(at) == 1 and isinstance(values, Core) and selector(axis)[0] in values.names:
        at = np.repeat(at, _measure_axis("insert", values, selector(axis)[0]))
    # An element that is inserted at a position sorts just before the present one.
    order = np.argsort(np.concatenate([2 * np.arange(size), 2 * at - 1]), kind="stable")
    return _take_in_order("insert", x, axis, values, len(at), order)


def _measure_axis(function: str, x: Core, axis: AxisSelector) -> int:
    at = position_of(function, x, axis)
    size = x.array.shape[at]
    if is_symbolic_dim(size):  # positions are sorted by NumPy
        problem = f"the size of axis {selector(axis)[0]!r} is symbolic"
        hint = 'join slices: axn.concatenate("embed", [x["embed", :2], x["embed", 3:]])'
        raise OperandError(message(function, problem, hint=hint))
    return size


def _read_positions(
    function: str, index: Places, axis: AxisSelector, size: int, end: int
) -> Positions:
    """Normalise positions, all of which must be before `end`."""
    if isinstance(index, slice):
        return np.arange(size)[index]
    if not isinstance(index, int | np.integer | np.ndarray | list | tuple):
        problem = f"positions must be static ints, not {type_text(index)}"
        hint = "an index array, x[axis, array], may be traced"
        raise OperandError(message(function, problem, hint=hint))
    given = np.atleast_1d(convert_list(index))
    if given.ndim > 1 or not np.issubdtype(given.dtype, np.integer):
        wanted = "a one-dimensional array of integers"
        problem = f"positions must be {wanted}, not {given.dtype} of shape {given.shape}"
        raise OperandError(message(function, problem))
    if given.size and not (-size <= given.min() and given.max() < end):
        problem = f"a position is out of range for {selector(axis)[0]}={size}"
        raise AxisSizeError(message(function, problem))
    at = given.astype(np.intp)  # a narrower type may not hold them
    return np.where(at < 0, at + size, at)


def _take_in_order(
    function: str,
    x: "NamedArray",
    axis: AxisSelector,
    values: Operand,
    count: int,
    order: Positions,
) -> "NamedArray":
    """Take elements along an axis in an order that numbers `count` further elements after the elements of `x`."""
    (array,), names = x.node
    fresh, own = payload(function, values), own_names(values)
    name, _ = selector(axis)
    kernel = checks.run_plan(
        function, (x, values), _make_reorder, function, names, name, own, count
    )
    if isinstance(array, Tracer) or isinstance(fresh, Tracer):
        return wrap(x, kernel.body(array, jnp.asarray(fresh), order), names)
    # With concrete arrays the order is an argument, so that a loop over positions compiles once. While tracing it is a
    # constant, from which slices are made.
    return wrap(x, kernel.call(array, fresh, order), names)


_FEW_RUNS = 8  # each is a separate slice, which adds to the time to compile


def _find_runs(order: object, size: int) -> list[tuple[int, int]]:
    """Split an order of elements into runs of consecutive positions that do not cross `size`.

    The list is empty if the order is empty, traced, or has too many runs.
    """
    if not isinstance(order, np.ndarray):
        return []
    # A run begins where a position does not follow the one before, and at the first inserted element.
    starts = np.flatnonzero((np.diff(order, prepend=-2) != 1) | (order == size))
    if len(starts) > _FEW_RUNS:
        return []
    runs = pairwise((*starts, len(order)))
    return [(int(order[start]), int(order[stop - 1]) + 1) for start, stop in runs]


@share_by_renaming("names", "axis", "own")
def _make_reorder(function: str, names: Names, axis: str, own: Names, count: int) -> kernels.Kernel:
    (at,) = plans.positions(names, (axis,))
    plans.require(names, own)

    def join_all(
        array: jax.Array, values: ArrayLike, order: Positions, runs: Sequence[tuple[int, int]]
    ) -> jax.Array:
        size, sources = array.shape[at], [array]
        if count:
            shape = list(array.shape)
            shape[at] = count
            fresh = kernels.line_up(jnp.asarray(values, array.dtype), own, names)
            sources.append(jnp.broadcast_to(fresh, shape))
        if not runs:
            every = jnp.concatenate(sources, at)
            return jnp.take(
                every, order, at, mode="clip"
            )  # all are in range; "clip" costs no comparison

        def piece(start: int, stop: int) -> jax.Array:
            if start < size:
                return reading.take_slice(array, at, start, stop - start)
            return reading.take_slice(sources[-1], at, start - size, stop - start)

        # Slices, since the gradient of a gather is a scatter, which would move twice as much.
        return jnp.concatenate([piece(*run) for run in runs], at)

    def body(array: jax.Array, values: ArrayLike, order: Positions) -> jax.Array:
        shape = checks.find_shape(function, values, own)
        if len(shape) > len(own):
            problem = f"values of shape {shape} have dimensions without names"
            raise OperandError(message(function, problem, hint=checks.NAME_IT))
        expected = dict(zip(names, array.shape[array.ndim - len(names) :], strict=True))
        expected[axis] = count
        for name, size in zip(own, shape, strict=True):
            if size != expected[name]:
                problem = f"the values have {name}={size}, but the size must be {expected[name]}"
                held = f"array has: {describe(names, array.shape)}"
                raise AxisSizeError(message(function, problem, held))

        call = partial(join_all, runs=_find_runs(order, array.shape[at]))
        return auto.move_elements(call, [array, values, order])

    return kernels.Kernel(names, body)


explain_calls(globals(), __all__)
