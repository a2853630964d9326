"""Functions that change names, order and grouping of axes."""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import EllipsisType
from typing import TYPE_CHECKING, Any, overload

import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding

from .. import _constraints, layout, plans
from ..axis import Axis, AxisKey, AxisSelection, AxisSelector, AxisSpec, Pairs, selection, selector, shown, spec
from ..core import Core, Operand, axes_of, facts, renamed, shape_of, wrap
from ..errors import AxisError, AxisNotFoundError, AxisSizeError, OperandError, describe, message
from ..plans import Names
from . import _lift, _regroup

if TYPE_CHECKING:
    from ..array import NamedArray

__all__ = [
    "broadcast_arrays",
    "broadcast_axis",
    "broadcast_to",
    "flatten",
    "flatten_axes",
    "rearrange",
    "rename",
    "squeeze",
    "tag",
    "unflatten_axis",
    "untag",
]


def _node(function: str, x: Any) -> Any:
    """Return the array and the names of an operand, checked."""
    if not isinstance(x, Core):
        raise _lift.unnamed(function, x)
    return x.node


def rename(x: "NamedArray", renames: Mapping[AxisKey, AxisSelector]) -> "NamedArray":
    """Rename axes, all at once, so that names may be swapped.

    Raises:
        AxisNotFoundError: if an old axis is missing.
        AxisClashError: if a name would occur twice.
        AxisSizeError: if an `Axis` has another size than the renamed axis.
    """
    (array,), old_names = _node("rename", x)
    if not isinstance(renames, Mapping):
        problem = f"expected a dict of old names to new ones, got {type(renames).__name__}"
        raise OperandError(message("rename", problem, hint='write x.rename({"old": "new"})'))
    table = [(selector(old, "rename"), selector(new, "rename")) for old, new in renames.items()]
    try:
        names = plans.rename(old_names, tuple((old, new) for (old, _), (new, _) in table))
    except AxisError as flaw:
        _lift.fail("rename", flaw, x)
    shape = shape_of("rename", array, old_names)
    for (old, size), (_, new_size) in table:
        _lift.check_given("rename", ((old, size),), old_names, shape)
        _lift.check_given("rename", ((old, new_size),), old_names, shape)
    return renamed(x, names)


def tag(x: "NamedArray", *axes: AxisSelector) -> "NamedArray":
    """Name all anonymous leading dimensions, in order: the inverse of `untag`.

    Raises:
        AxisSizeError: if the number of names, or a size, does not match.
        AxisClashError: if a name is already in use.
    """
    (array,), names = _node("tag", x)
    shape = shape_of("tag", array, names)
    given = selection(axes, "tag")
    anonymous = len(shape) - len(names)
    if len(given) != anonymous:
        problem = f"{len(given)} names for {anonymous} anonymous dimensions"
        raise AxisSizeError(message("tag", problem, f"array has: {facts(x)}", f"names: {[n for n, _ in given]}"))
    new = (*(name for name, _ in given), *names)
    try:
        plans.distinct(new)
    except AxisError as flaw:
        _lift.fail("tag", flaw, x)
    _lift.check_given("tag", given, new, shape)
    return renamed(x, new)


def untag(x: "NamedArray", *axes: AxisSelector) -> "NamedArray":
    """Move axes to the front and make them anonymous, in the given order, after dimensions that are already anonymous.

    Anonymous dimensions are what raw `jax.vmap` and `jax.lax.scan` map over.

    Example:
        >>> x = axn.ones((axn.Axis("batch", 2), axn.Axis("embed", 3)))
        >>> jax.vmap(lambda row: row.sum("embed"))(x.untag("batch")).tag("batch")
        NamedArray(float32[batch=2])
        [3. 3.]
    """
    _node("untag", x)
    moved = _ordered("untag", x, (*axes, ...))
    return renamed(moved, moved.node[1][len(axes) :])


def rearrange(
    x: "NamedArray",
    order: AxisSelector | Sequence[AxisSelector | EllipsisType],
    /,
    **bindings: AxisSelector | int,
) -> "NamedArray":
    """Store the axes in another order, or split and merge axes by an expression.

    In a sequence, `...` stands for all axes not mentioned, in their present order. An expression has an arrow:

    * `"b s e -> b e s"`: letters bind by position, and the axes keep their names;
    * `"{embed} -> embed ..."`: names bind by name;
    * `"b (h d) -> h b d"` splits an axis; all sizes but one must be given: `h=4`. In braces, the group names its axis:
      `"{(embed: h d)} -> h ... d"`;
    * `"h b d -> b (embed: h d)"` merges axes; the last varies fastest.

    Args:
        x: the array.
        order: the axes in the new order, or an expression.
        bindings: the axis, its name or its size, for a name in the expression.

    Raises:
        AxisNotFoundError: if an axis is missing, or omitted without `...`.
        PatternError: if an expression is invalid, or has another number of axes than the array.
        AxisSizeError: if an axis does not split into the given sizes, or an `Axis` has another size.
        AxisClashError: if a name would refer to two axes.

    Example:
        >>> x = axn.ones((axn.Axis("batch", 2), axn.Axis("embed", 12)))
        >>> x.rearrange("b (h d) -> h b d", h=axn.Axis("heads", 4), d="head_size").axes
        (Axis(name='heads', size=4), Axis(name='batch', size=2), Axis(name='head_size', size=3))
    """
    if not isinstance(x, Core):
        raise _lift.unnamed("rearrange", x)
    if isinstance(order, str) and order not in x.node[1] and not order.isidentifier():
        return _regroup.by_expression(x, order, bindings)
    if bindings:
        problem = f"the keyword {next(iter(bindings))!r} needs an expression, not an order"
        raise OperandError(message("rearrange", problem, hint='write the order as "a b -> b a"'))
    if isinstance(order, str | Axis):
        order = (order,)
    return _ordered("rearrange", x, order)


def _ordered(function: str, x: "NamedArray", order: Sequence[AxisSelector | EllipsisType]) -> "NamedArray":
    """Store the axes in an order in which `...` stands for those not mentioned."""
    (array,), names = x.node
    entries = tuple(e if e is ... or e.__class__ is str else selector(e, function)[0] for e in order)
    try:
        kernel = _rearranged(names, entries, function)
    except AxisError as flaw:
        _lift.fail(function, flaw, x)
    sized = tuple((e.name, e.size) for e in order if isinstance(e, Axis))
    if sized:
        _lift.check_given(function, sized, names, shape_of(function, array, names))
    if kernel.names == names:
        shape_of(function, array, names)
        return x
    return wrap(x, kernel.call(array), kernel.names)


@lru_cache(plans.CACHE)
def _rearranged(names: Names, order: tuple[Any, ...], function: str) -> _lift.Kernel:
    target = plans.complete(names, order)

    def body(array: Any) -> Any:
        shape_of(function, array, names)
        return _lift.lined_up(array, names, target)

    return _lift.Kernel(target, body)


def broadcast_axis(x: "NamedArray", axes: AxisSpec) -> "NamedArray":
    """Add the axes that `x` lacks, in front, by repetition.

    Raises:
        AxisSizeError: if `x` has one of the axes with another size.
    """
    _node("broadcast_axis", x)
    given = spec(axes, "broadcast_axis")
    new = (a for a in given if a.name not in x.names)
    return _broadcast_to("broadcast_axis", x, (*new, *axes_of("broadcast_axis", x)), given)


def broadcast_to(x: "NamedArray", axes: AxisSpec) -> "NamedArray":
    """Broadcast `x` to exactly these axes in this order, adding by repetition those that it lacks.

    Raises:
        AxisNotFoundError: if `x` has an axis that is not among them.
        AxisSizeError: if `x` has one of the axes with another size.
    """
    _node("broadcast_to", x)
    given = spec(axes, "broadcast_to")
    return _broadcast_to("broadcast_to", x, given, given)


def _broadcast_to(function: str, x: "NamedArray", axes: tuple[Axis, ...], check: tuple[Axis, ...]) -> "NamedArray":
    target = tuple(axis.name for axis in axes)
    (array,), names = x.node
    shape = shape_of(function, array, names)
    for name in names:
        if name not in target:
            problem = f"the array has axis {name!r}, which the result would not have"
            raise AxisNotFoundError(message(function, problem, f"array has: {facts(x)}", f"asked for: {shown(*axes)}"))
    own = tuple((a.name, a.size) for a in check if a.name in names)
    _lift.check_given(function, own, names, shape)
    if target == names:
        return x
    kernel = _broadcast(names, target, tuple(axis.size for axis in axes))
    return wrap(x, kernel.call(array), target)


@lru_cache(plans.CACHE)
def _broadcast(names: Names, target: Names, sizes: tuple[int, ...]) -> _lift.Kernel:
    order = tuple(name for name in target if name in names)

    def body(array: Any) -> Any:
        anonymous = array.ndim - len(names)
        shape = (*array.shape[:anonymous], *sizes)
        at = (*range(anonymous), *(anonymous + target.index(name) for name in order))
        array = _lift.lined_up(array, names, order)
        return lax.broadcast_in_dim(array, shape, at, out_sharding=_spread(array, order, target, sizes))

    return _lift.Kernel(target, body)


def _spread(array: Any, names: Names, target: Names, sizes: tuple[int, ...]) -> NamedSharding | None:
    """Lay new axes out by the mapping, on Explicit mesh axes that the array does not use; None if none is left."""
    mapping, mesh = layout.current_mapping(), layout.context_mesh()
    if mapping is None or mesh is None:
        return None
    own = _constraints.entries_of(array)
    table = dict(zip((*range(len(names) - len(own), 0), *names), own, strict=True))
    free = _constraints.free_axes(mesh, (axis for entry in own for axis in entry))
    new = {name: entry for name, entry in layout.mapped(target).items() if name not in names}
    # As in a layout by the mapping alone, names with their own entries take precedence over derived ones.
    for name in sorted(new, key=lambda name: (name not in mapping, name)):
        table[name] = _constraints.claim(new[name], sizes[target.index(name)], free)
    if not any(table[name] for name in new):
        return None
    return _constraints.sharding_from(array, [table.get(at, ()) for at in (*range(len(names) - len(own), 0), *target)])


@overload
def broadcast_arrays(
    *arrays: "NamedArray", require_subset: bool = True, ensure_order: bool = True
) -> tuple["NamedArray", ...]: ...
@overload
def broadcast_arrays(
    *arrays: Operand | None, require_subset: bool = True, ensure_order: bool = True
) -> tuple[Any, ...]: ...
def broadcast_arrays(
    *arrays: Operand | None, require_subset: bool = True, ensure_order: bool = True
) -> tuple[Any, ...]:
    """Broadcast all arrays to the axes of all, by repetition; scalars and None are unchanged.

    Args:
        arrays: named arrays, scalars and None.
        require_subset: raise an error unless one array has the axes of all others, as in a binary operation.
            Otherwise the axes that the array with the most axes lacks come first.
        ensure_order: return all arrays in one order. Otherwise each keeps its own, after the axes that it lacked.

    Raises:
        BroadcastError: if no array has the axes of all others, with `require_subset`.
        AxisSizeError: if a name has two sizes.

    Example:
        >>> x, y = axn.named([1, 2], "x"), axn.named([1, 2, 3], "y")
        >>> [one.shape for one in axn.broadcast_arrays(x, y, require_subset=False)]
        [{'y': 3, 'x': 2}, {'y': 3, 'x': 2}]
    """
    named = [x for x in arrays if isinstance(x, Core)]
    for x in arrays:
        if x is not None and not isinstance(x, Core) and jnp.ndim(_lift.plain("broadcast_arrays", x)):
            raise _lift.unnamed("broadcast_arrays", x)
    operands = tuple(x.node[1] for x in named)
    sizes = _lift.check_sizes("broadcast_arrays", operands, [x.node[0][0] for x in named])
    target = max(operands, key=len, default=())
    if require_subset and named:
        try:
            target = plans.broadcast(operands)
        except AxisError as flaw:
            _lift.fail("broadcast_arrays", flaw, *named)
    for names in operands:
        target = (*plans.without(names, target), *target)
    axes = tuple(Axis(name, sizes[name]) for name in target)
    spread = broadcast_to if ensure_order else broadcast_axis
    return tuple(spread(x, axes) if isinstance(x, Core) else x for x in arrays)  # type: ignore[arg-type]


def squeeze(x: "NamedArray", axis: AxisSelection) -> "NamedArray":
    """Drop axes of size 1; `broadcast_axis` is the inverse.

    Raises:
        AxisNotFoundError: if an axis is missing.
        AxisSizeError: if an axis has another size.
    """
    (array,), names = _node("squeeze", x)
    try:
        kernel = _squeezed(names, selection(axis, "squeeze"))
    except AxisError as flaw:
        _lift.fail("squeeze", flaw, x)
    return wrap(x, kernel.call(array), kernel.names)


@lru_cache(plans.CACHE)
def _squeezed(names: Names, given: Pairs) -> _lift.Kernel:
    gone = tuple(name for name, _ in given)
    at = plans.positions(names, gone)

    def body(array: Any) -> Any:
        shape = shape_of("squeeze", array, names)
        _lift.check_given("squeeze", given, names, shape)
        for name, position in zip(gone, at, strict=True):
            if shape[position] != 1:
                problem = f"axis {name!r} has size {shape[position]}, not 1"
                hint = f"x[{name!r}, 0] takes the first of its elements"
                raise AxisSizeError(message("squeeze", problem, f"array has: {describe(names, shape)}", hint=hint))
        return lax.squeeze(array, at)

    return _lift.Kernel(plans.without(names, gone), body)


def flatten_axes(x: "NamedArray", old_axes: AxisSelection, new_axis: AxisSelector) -> "NamedArray":
    """Merge axes into one, in place of the first of them; the last of `old_axes` varies fastest.

    Raises:
        AxisNotFoundError: if one of `old_axes` is missing.
        AxisSizeError: if the size of an `Axis` as `new_axis` is not their product.
    """
    (array,), names = _node("flatten_axes", x)
    given = selection(old_axes, "flatten_axes")
    new = selector(new_axis, "flatten_axes")
    try:
        kernel = _flattened(names, given, new)
    except AxisError as flaw:
        _lift.fail("flatten_axes", flaw, x)
    return wrap(x, kernel.call(array), kernel.names)


@lru_cache(plans.CACHE)
def _flattened(names: Names, given: Pairs, new: tuple[str, int | None]) -> _lift.Kernel:
    old = tuple(name for name, _ in given)
    if not old:
        raise AxisError("no axes to merge", "broadcast_axis adds an axis of size 1")
    plans.positions(names, old)
    first = min(map(names.index, old))
    rest = plans.without(names, old)
    ordered = (*rest[:first], *old, *rest[first:])
    target = (*rest[:first], new[0], *rest[first:])
    plans.distinct(target)

    def body(array: Any) -> Any:
        shape = shape_of("flatten_axes", array, names)
        _lift.check_given("flatten_axes", given, names, shape)
        array = _lift.lined_up(array, names, ordered)
        at = array.ndim - len(ordered) + first
        merged = array.shape[at : at + len(old)]
        size = math.prod(merged)
        if new[1] not in (None, size):
            problem = f"axis {new[0]!r} was given with size {new[1]}, but the axes merge to size {size}"
            raise AxisSizeError(message("flatten_axes", problem, f"array has: {describe(names, shape)}"))
        groups = [_regroup.Group(1, (n,), ("",)) for n in array.shape]
        groups[at : at + len(old)] = [_regroup.Group(len(old), (size,), (new[0],))]
        return _regroup.reshape(array, groups, ordered)

    return _lift.Kernel(target, body)


def flatten(x: "NamedArray", new_axis: AxisSelector) -> "NamedArray":
    """Merge all axes into one, in storage order."""
    (_,), names = _node("flatten", x)
    if not names:
        name, size = selector(new_axis, "flatten")
        if size not in (None, 1):
            problem = f"axis {name!r} was given with size {size}, but no axes merge to size 1"
            raise AxisSizeError(message("flatten", problem))
        return broadcast_axis(x, Axis(name, 1))
    return flatten_axes(x, names, new_axis)


def unflatten_axis(x: "NamedArray", axis: AxisSelector, new_axes: AxisSpec) -> "NamedArray":
    """Split one axis into several, in place; the last of them varies fastest.

    Raises:
        AxisNotFoundError: if `axis` is missing.
        AxisSizeError: if the product of the new sizes is not the old one.
        AxisClashError: if a new name is already in use.
    """
    (array,), names = _node("unflatten_axis", x)
    given = selector(axis, "unflatten_axis")
    try:
        kernel = _unflattened(names, given, spec(new_axes, "unflatten_axis"))
    except AxisError as flaw:
        _lift.fail("unflatten_axis", flaw, x)
    return wrap(x, kernel.call(array), kernel.names)


@lru_cache(plans.CACHE)
def _unflattened(names: Names, given: tuple[str, int | None], new: tuple[Axis, ...]) -> _lift.Kernel:
    plans.require(names, (given[0],))
    first = names.index(given[0])
    fresh = tuple(axis.name for axis in new)
    target = (*names[:first], *fresh, *names[first + 1 :])
    plans.distinct(target)
    sizes = tuple(axis.size for axis in new)

    def body(array: Any) -> Any:
        shape = shape_of("unflatten_axis", array, names)
        _lift.check_given("unflatten_axis", (given,), names, shape)
        at = array.ndim - len(names) + first
        if math.prod(sizes) != shape[at]:
            problem = f"{shown(*new)} multiply to {math.prod(sizes)}, not to {given[0]}={shape[at]}"
            raise AxisSizeError(message("unflatten_axis", problem, f"array has: {describe(names, shape)}"))
        groups = [_regroup.Group(1, (n,), ("",)) for n in array.shape]
        groups[at] = _regroup.Group(1, sizes, fresh)
        return _regroup.reshape(array, groups, names)

    return _lift.Kernel(target, body)
