"""Functions that change names, order and grouping of axes, and those that join and take apart arrays."""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import EllipsisType
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from .. import layout, plans
from ..axis import Axis, AxisSelection, AxisSelector, AxisSpec, selector, spec
from ..core import Core, axes_of, facts, renamed, shape_of, wrap
from ..errors import AxisClashError, AxisError, AxisNotFoundError, AxisSizeError, OperandError, describe, message
from . import _lift, _regroup

if TYPE_CHECKING:
    from ..array import NamedArray

__all__ = [
    "broadcast_axis",
    "broadcast_to",
    "concatenate",
    "flatten",
    "flatten_axes",
    "rearrange",
    "rename",
    "split",
    "stack",
    "tag",
    "unbind",
    "unflatten_axis",
    "untag",
]

Names = tuple[str, ...]


def _node(function: str, x: Any) -> Any:
    """Take apart the operand of a function, which must have names."""
    if not isinstance(x, Core):
        raise _lift.unnamed(function, x)
    return x.node


def rename(x: "NamedArray", renames: Mapping[AxisSelector, AxisSelector]) -> "NamedArray":
    """Give axes new names, all at once, so that a swap is possible.

    Raises:
        AxisNotFoundError: if an old axis is missing.
        AxisClashError: if a name would stand twice.
        AxisSizeError: if an `Axis` has another size than the one it names.
    """
    (array,), old_names = _node("rename", x)
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
    """Name the anonymous leading dimensions, all of them, in their order: the inverse of `untag`.

    Raises:
        AxisSizeError: if the number of names, or a size, does not fit.
        AxisClashError: if a name is already there.
    """
    (array,), names = _node("tag", x)
    shape = shape_of("tag", array, names)
    given = _lift.axes(axes, "tag")
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
    """Move axes to the front and make them anonymous, in the given order, behind those that are anonymous already.

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
    """Store the axes in another order, or split and merge axes as an expression says.

    In a sequence, `...` stands for all axes not mentioned, in the order they have. An expression has an arrow:

    * `"b s e -> b e s"`: letters bind by position, and the axes keep the names that they have;
    * `"{embed} -> embed ..."`: names bind by name;
    * `"b (h d) -> h b d"` splits an axis, where all sizes but one are given: `h=4`. With braces, the group names its
      axis: `"{(embed: h d)} -> h ... d"`;
    * `"h b d -> b (embed: h d)"` merges axes; the last varies fastest.

    Args:
        x: the array.
        order: the axes in the new order, or an expression.
        bindings: what a name in the expression stands for: an axis, the name of one, or a size.

    Raises:
        AxisNotFoundError: if an axis is missing, or left out without `...`.
        PatternError: if an expression cannot be read, or has another number of axes than the array.
        AxisSizeError: if an axis does not split into the given sizes, or an `Axis` has another size.
        AxisClashError: if a name would stand for two axes.

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
        problem = f"the keyword {next(iter(bindings))!r} goes with an expression, not with an order"
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
    """Give `x` exactly these axes in this order, adding by repetition those that it lacks.

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
            raise AxisNotFoundError(
                message(function, problem, f"array has: {facts(x)}", f"asked for: {', '.join(map(str, axes))}")
            )
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
        return lax.broadcast_in_dim(_lift.lined_up(array, names, order), shape, at)

    return _lift.Kernel(target, body)


def flatten_axes(x: "NamedArray", old_axes: AxisSelection, new_axis: AxisSelector) -> "NamedArray":
    """Merge axes into one, which stands where the first of them stood; the last of `old_axes` varies fastest.

    Raises:
        AxisNotFoundError: if one of `old_axes` is missing.
        AxisSizeError: if `new_axis` is an `Axis` of another size than their product.
    """
    (array,), names = _node("flatten_axes", x)
    given = _lift.axes(old_axes, "flatten_axes")
    new = selector(new_axis, "flatten_axes")
    try:
        kernel = _flattened(names, given, new)
    except AxisError as flaw:
        _lift.fail("flatten_axes", flaw, x)
    return wrap(x, kernel.call(array), kernel.names)


@lru_cache(plans.CACHE)
def _flattened(names: Names, given: "_lift.Pairs", new: tuple[str, int | None]) -> _lift.Kernel:
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
        return _regroup.reshape(array, groups)

    return _lift.Kernel(target, body)


def flatten(x: "NamedArray", new_axis: AxisSelector) -> "NamedArray":
    """Merge all axes into one, in storage order."""
    (_,), names = _node("flatten", x)
    if not names:
        return broadcast_axis(x, Axis(selector(new_axis, "flatten")[0], 1))
    return flatten_axes(x, names, new_axis)


def unflatten_axis(x: "NamedArray", axis: AxisSelector, new_axes: AxisSpec) -> "NamedArray":
    """Split one axis into several, in place; the last of them varies fastest.

    Raises:
        AxisNotFoundError: if `axis` is missing.
        AxisSizeError: if the new sizes do not multiply to the old one.
        AxisClashError: if a new name is already there.
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
            problem = f"{', '.join(map(str, new))} multiply to {math.prod(sizes)}, not to {given[0]}={shape[at]}"
            raise AxisSizeError(message("unflatten_axis", problem, f"array has: {describe(names, shape)}"))
        groups = [_regroup.Group(1, (n,), ("",)) for n in array.shape]
        groups[at] = _regroup.Group(1, sizes, fresh)
        return _regroup.reshape(array, groups)

    return _lift.Kernel(target, body)


def unbind(x: "NamedArray", axis: AxisSelector) -> tuple["NamedArray", ...]:
    """Take an array apart along an axis, into arrays without it.

    Raises:
        AxisNotFoundError: if `axis` is missing.
    """
    (array,), names = _node("unbind", x)
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


def split(x: "NamedArray", axis: AxisSelector, new_axes: Sequence[Axis]) -> tuple["NamedArray", ...]:
    """Cut an array along an axis into pieces; each piece has its own name and size for it.

    Raises:
        AxisNotFoundError: if `axis` is missing.
        AxisSizeError: if the sizes of the pieces do not add up to that of the axis.
    """
    (array,), names = _node("split", x)
    given = selector(axis, "split")
    pieces = [spec(piece, "split")[0] for piece in new_axes]
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
    """Join arrays along an axis that they have, in the axis order of the first.

    Raises:
        AxisNotFoundError: if an array lacks an axis that another has.
        AxisSizeError: if another axis has two sizes, or `axis` is an `Axis` of another size than the sum.
    """
    given = selector(axis, "concatenate")
    return _join("concatenate", _concatenated, given, arrays)


def stack(axis: AxisSelector, arrays: Sequence["NamedArray"]) -> "NamedArray":
    """Join arrays along a new axis, which comes first, in the axis order of the first array.

    Raises:
        AxisNotFoundError: if an array lacks an axis that another has.
        AxisClashError: if the arrays have the new axis already.
        AxisSizeError: if an axis has two sizes, or `axis` is an `Axis` of another size than the number of arrays.
    """
    given = selector(axis, "stack")
    if given[1] not in (None, len(arrays)):
        problem = f"axis {given[0]!r} was given with size {given[1]} for {len(arrays)} arrays"
        raise AxisSizeError(message("stack", problem))
    return _join("stack", _stacked, given, arrays)


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
    target = operands[0]
    for names in operands:
        plans.require(names, (given[0], *target))
        plans.require(target, names)
    (at,) = plans.positions(target, (given[0],))
    others = plans.without(target, (given[0],))

    def body(*arrays: Any) -> Any:
        for array, names in zip(arrays, operands, strict=True):
            shape_of("concatenate", array, names)
        lined = [_lift.lined_up(a, names, target) for a, names in zip(arrays, operands, strict=True)]
        shapes = [tuple(a.shape[i] for i in plans.positions(target, others)) for a in lined]
        _lift.one_size("concatenate", [others] * len(shapes), shapes)
        total = sum(a.shape[at] for a in lined)
        if given[1] not in (None, total):
            problem = f"axis {given[0]!r} was given with size {given[1]}, but the sizes add up to {total}"
            raise AxisSizeError(message("concatenate", problem))
        return lax.concatenate(_same_layout([_lift.whole(a, (at,)) for a in lined]), at % lined[0].ndim)

    return _lift.Kernel(target, body)


@lru_cache(plans.CACHE)
def _stacked(operands: tuple[Names, ...], given: tuple[str, int | None]) -> _lift.Kernel:
    target = operands[0]
    for names in operands:
        plans.require(names, target)
        plans.require(target, names)
    if given[0] in target:
        raise AxisClashError(
            f"the arrays already have axis {given[0]!r}", "concatenate joins along an axis that is there"
        )

    def body(*arrays: Any) -> Any:
        _lift.check_sizes("stack", operands, arrays)
        lined = [_lift.lined_up(a, names, target) for a, names in zip(arrays, operands, strict=True)]
        return jnp.stack(_same_layout(lined), axis=lined[0].ndim - len(target))

    return _lift.Kernel((given[0], *target), body)


def _same_layout(arrays: list[jax.Array]) -> list[jax.Array]:
    """Bring arrays to a common dtype and, with Explicit axes, to the layout of the first."""
    dtype = jnp.result_type(*arrays)
    arrays = [a.astype(dtype) for a in arrays]
    if not any(map(layout.has_explicit_axes, arrays)):
        return arrays
    wanted = layout.entries_of(arrays[0])
    return [layout.relayout(a, wanted) for a in arrays]
