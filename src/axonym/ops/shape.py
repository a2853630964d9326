"""Functions that change names, order and grouping of axes."""

import itertools
import math
from collections.abc import Mapping, Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Any, overload

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding

from ..axis import (
    Axis,
    AxisKey,
    AxisSelection,
    AxisSelector,
    AxisSpec,
    Pairs,
    names_and_sizes,
    names_in,
    selection,
    selector,
    shown,
    spec,
)
from ..base.calls import explain_calls
from ..base.kinds import type_text
from ..base.phrases import write_size_conflict
from ..engine import checks, kernels, regroup
from ..engine.core import Core, Operand, axes_of, facts, rename_axes, shape_of, wrap
from ..engine.renaming import share_by_renaming
from ..errors import AxisError, AxisNotFoundError, AxisSizeError, OperandError, describe, message
from ..layout import context, explicit
from ..names import plans
from ..names.plans import Names

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


def _check_node(function: str, x: object) -> tuple[tuple[jax.Array], Names]:
    """Return the array and the names of an operand, checked."""
    if not isinstance(x, Core):
        raise checks.no_names(function, x)
    return x.node


def rename(x: "NamedArray", renames: Mapping[AxisKey, AxisSelector]) -> "NamedArray":
    """Rename axes, all at once, so that names may be swapped.

    Args:
        x: axes {those of `renames`, ...}.
        renames: a mapping from old axes to new ones; the size of an `Axis` on either side is checked.

    Returns:
        The same array with the new names.

    Raises:
        AxisNotFoundError: if an old axis is missing.
        AxisClashError: if a name would occur twice.
        AxisSizeError: if an `Axis` has another size than the renamed axis.

    Examples:
        >>> axn.ones(axn.make_axes(query=2, key=3)).rename({"query": "key", "key": "query"}).shape
        {'key': 2, 'query': 3}
    """
    (array,), old_names = _check_node("rename", x)
    if not isinstance(renames, Mapping):
        problem = f"expected a dict of old names to new ones, got {type_text(renames)}"
        raise OperandError(message("rename", problem, hint='write x.rename({"old": "new"})'))
    pairs: list[tuple[str, str]] = []
    sizes: list[tuple[str, int | None]] = []
    for old_axis, new_axis in renames.items():
        old, size = selector(old_axis, "rename")
        new, new_size = selector(new_axis, "rename")
        pairs.append((old, new))
        sizes += [(old, size), (old, new_size)]

    # Names are only metadata: nothing is computed, also while tracing.
    names = checks.run_plan("rename", (x,), plans.rename, old_names, tuple(pairs))
    checks.check_given("rename", tuple(sizes), old_names, shape_of("rename", array, old_names))
    return rename_axes(x, names)


def tag(x: "NamedArray", *axes: AxisSelector) -> "NamedArray":
    """Name all anonymous leading dimensions, in order: the inverse of `untag`.

    Args:
        x: an array with anonymous dimensions.
        axes: one axis for each of them.

    Returns:
        Axes {*axes, ...}.

    Raises:
        AxisSizeError: if the number of names, or a size, does not match.
        AxisClashError: if a name is already in use.

    Examples:
        >>> x = axn.NamedArray(jnp.ones((2, 3)), ("embed",))
        >>> x.tag("batch").shape
        {'batch': 2, 'embed': 3}
    """
    (array,), names = _check_node("tag", x)
    shape = shape_of("tag", array, names)
    given = selection(axes, "tag")
    fresh = names_in(given)
    anonymous = len(shape) - len(names)
    if len(given) != anonymous:
        problem = f"{len(given)} names for {anonymous} anonymous dimensions"
        raise AxisSizeError(message("tag", problem, f"array has: {facts(x)}", f"names: {[*fresh]}"))
    new = (*fresh, *names)
    checks.run_plan("tag", (x,), plans.distinct, new)
    checks.check_given("tag", given, new, shape)
    return rename_axes(x, new)


def untag(x: "NamedArray", *axes: AxisSelector) -> "NamedArray":
    """Move axes to the front and make them anonymous, in the given order, after dimensions that are already anonymous.

    Raw `jax.vmap` and `jax.lax.scan` map over anonymous dimensions.

    Args:
        x: axes {*axes, ...}.
        axes: the axes that lose their names.

    Returns:
        The other axes of `x`.

    Raises:
        AxisNotFoundError: if an axis is missing.

    Examples:
        >>> x = axn.ones((axn.Axis("batch", 2), axn.Axis("embed", 3)))
        >>> jax.vmap(lambda row: row.sum("embed"))(x.untag("batch")).tag("batch")
        NamedArray(float32[batch=2])
        [3. 3.]
    """
    _check_node("untag", x)
    moved = _reorder("untag", x, (*axes, ...))
    return rename_axes(moved, moved.node[1][len(axes) :])


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

    Returns:
        The axes in the given order.

    Raises:
        AxisNotFoundError: if an axis is missing, or omitted without `...`.
        PatternError: if an expression is invalid, or has another number of axes than the array.
        AxisSizeError: if an axis does not split into the given sizes, or an `Axis` has another size.
        AxisClashError: if a name would refer to two axes.

    Examples:
        >>> x = axn.ones((axn.Axis("batch", 2), axn.Axis("embed", 12)))
        >>> x.rearrange("b (h d) -> h b d", h=axn.Axis("heads", 4), d="head_size").axes
        (Axis(name='heads', size=4), Axis(name='batch', size=2), Axis(name='head_size', size=3))
    """
    if not isinstance(x, Core):
        raise checks.no_names("rearrange", x)
    # A name of an axis is an order of one axis, even if it has spaces.
    if isinstance(order, str) and order not in x.node[1] and not order.isidentifier():
        return regroup.by_expression(x, order, bindings)
    if bindings:
        problem = f"the keyword {next(iter(bindings))!r} needs an expression, not an order"
        raise OperandError(message("rearrange", problem, hint='write the order as "a b -> b a"'))
    if isinstance(order, str | Axis):
        order = (order,)
    return _reorder("rearrange", x, order)


def _reorder(
    function: str, x: "NamedArray", order: Sequence[AxisSelector | EllipsisType]
) -> "NamedArray":
    """Store the axes in an order in which `...` stands for the axes not mentioned."""
    (array,), names = x.node
    entries: list[str | EllipsisType] = []
    sizes: list[tuple[str, int | None]] = []
    for entry in order:
        if entry is ... or isinstance(entry, str):
            entries.append(entry)
        else:
            pair = selector(entry, function)
            entries.append(pair[0])
            sizes.append(pair)

    kernel = checks.run_plan(function, (x,), _make_rearrangement, names, tuple(entries), function)
    if sizes:
        checks.check_given(function, tuple(sizes), names, shape_of(function, array, names))
    if kernel.names == names:  # without a copy, but the array is checked as in the kernel
        shape_of(function, array, names)
        return x
    return wrap(x, kernel.call(array), kernel.names)


@share_by_renaming("names", "order")
def _make_rearrangement(
    names: Names, order: tuple[str | EllipsisType, ...], function: str
) -> kernels.Kernel:
    target = plans.complete(names, order)

    def body(array: jax.Array) -> jax.Array:
        shape_of(function, array, names)
        return kernels.line_up(array, names, target)

    return kernels.Kernel(target, body)


def broadcast_axis(x: "NamedArray", axes: AxisSpec) -> "NamedArray":
    """Add the axes that `x` lacks, in front, by repetition.

    Args:
        x: any axes.
        axes: the axes with their sizes.

    Returns:
        Axes {those of `axes` that `x` lacks, ...}.

    Raises:
        AxisSizeError: if `x` has one of the axes with another size.

    Examples:
        >>> axn.named([1, 2], "embed").broadcast_axis(axn.Axis("batch", 3)).shape
        {'batch': 3, 'embed': 2}
    """
    _check_node("broadcast_axis", x)
    given = spec(axes, "broadcast_axis")
    new = [axis for axis in given if axis.name not in x.names]
    return _broadcast_to("broadcast_axis", x, (*new, *axes_of("broadcast_axis", x)), given)


def broadcast_to(x: "NamedArray", axes: AxisSpec) -> "NamedArray":
    """Broadcast `x` to exactly these axes in this order; axes that it lacks are added by repetition.

    Args:
        x: axes among `axes`.
        axes: the axes of the result with their sizes.

    Returns:
        Exactly `axes`, in their order.

    Raises:
        AxisNotFoundError: if `x` has an axis that is not among them.
        AxisSizeError: if `x` has one of the axes with another size.

    Examples:
        >>> axn.named([1, 2], "embed").broadcast_to(axn.make_axes(embed=2, batch=3)).shape
        {'embed': 2, 'batch': 3}
    """
    _check_node("broadcast_to", x)
    given = spec(axes, "broadcast_to")
    return _broadcast_to("broadcast_to", x, given, given)


def _broadcast_to(
    function: str, x: "NamedArray", axes: tuple[Axis, ...], check: tuple[Axis, ...]
) -> "NamedArray":
    target, sizes = names_and_sizes(axes)
    (array,), names = x.node
    shape = shape_of(function, array, names)
    for name in names:
        if name not in target:
            problem = f"the array has axis {name!r}, which the result would not have"
            lines = f"array has: {facts(x)}", f"asked for: {shown(*axes)}"
            raise AxisNotFoundError(message(function, problem, *lines))
    own = tuple((axis.name, axis.size) for axis in check if axis.name in names)
    checks.check_given(function, own, names, shape)
    # No kernel for what is there already: eager code broadcasts often, and mostly for nothing.
    if target == names:
        return x
    kernel = _make_broadcast(names, target, sizes)
    return wrap(x, kernel.call(array), target)


@share_by_renaming("names", "target")
def _make_broadcast(names: Names, target: Names, sizes: tuple[int, ...]) -> kernels.Kernel:
    order = plans.intersect(target, names)

    def body(array: jax.Array) -> jax.Array:
        # One `broadcast_in_dim`: `jnp.broadcast_to` could not say how new axes are sharded.
        anonymous = array.ndim - len(names)
        shape = (*array.shape[:anonymous], *sizes)
        at = (*range(anonymous), *(anonymous + target.index(name) for name in order))
        array = kernels.line_up(array, names, order)
        sharding = _shard_new_axes(array, order, target, sizes)
        return lax.broadcast_in_dim(array, shape, at, out_sharding=sharding)

    return kernels.Kernel(target, body)


def _shard_new_axes(
    array: jax.Array, names: Names, target: Names, sizes: tuple[int, ...]
) -> NamedSharding | None:
    """Shard new axes by the mapping, over Explicit mesh axes that the array does not use; None if none remains."""
    mapping, mesh = context.current_mapping(), context.context_mesh()
    if mapping is None or mesh is None:
        return None
    own = explicit.get_layout(array)
    table = dict(zip(plans.labels(names, len(own)), own, strict=True))
    free = explicit.free_axes(mesh, itertools.chain.from_iterable(own))
    new = {
        name: entry
        for name, entry in context.map_names(dict(zip(target, sizes, strict=True))).items()
        if name not in names
    }
    # As in a layout by the mapping alone, names with their own entries come before derived ones: two names may ask for
    # one mesh axis.
    for name in sorted(new, key=lambda name: (not mapping.has_own(name), name)):
        table[name] = explicit.claim(new[name], sizes[target.index(name)], free)
    if not any(plans.values_at(table, new)):
        return None
    labels = plans.labels(target, len(own) - len(names) + len(target))
    return explicit.make_sharding(array, [table.get(label, ()) for label in labels])


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
    """Broadcast each array to the axes of all arrays, by repetition; scalars and None are unchanged.

    Args:
        arrays: named arrays, scalars and None.
        require_subset: raise an error unless one array has the axes of all others, as in a binary operation.
            Otherwise the axes that the array with the most axes lacks come first.
        ensure_order: return all arrays in one order. Otherwise each keeps its own, after the axes that it lacked.

    Returns:
        A tuple with one entry for each argument.

    Raises:
        BroadcastError: if no array has the axes of all others, with `require_subset`.
        AxisSizeError: if a name has two sizes.

    Examples:
        >>> x, y = axn.named([1, 2], "x"), axn.named([1, 2, 3], "y")
        >>> [one.shape for one in axn.broadcast_arrays(x, y, require_subset=False)]
        [{'y': 3, 'x': 2}, {'y': 3, 'x': 2}]
    """
    named: list[Core] = []
    for x in arrays:
        if isinstance(x, Core):
            named.append(x)
        elif x is not None and jnp.ndim(checks.plain("broadcast_arrays", x)):
            raise checks.no_names("broadcast_arrays", x)

    operands = tuple(x.node[1] for x in named)
    sizes = checks.check_sizes("broadcast_arrays", operands, [x.node[0][0] for x in named])
    # The array with the most axes stays as it is.
    target = max(operands, key=len, default=())
    if require_subset and named:
        target = checks.run_plan("broadcast_arrays", named, plans.broadcast, operands)
    for names in operands:
        target = (*plans.without(names, target), *target)

    axes = tuple(Axis(name, sizes[name]) for name in target)
    spread = broadcast_to if ensure_order else broadcast_axis
    return tuple(spread(x, axes) if isinstance(x, Core) else x for x in arrays)  # type: ignore[arg-type]


def squeeze(x: "NamedArray", axis: AxisSelection) -> "NamedArray":
    """Drop axes of size 1; `broadcast_axis` is the inverse.

    Args:
        x: axes {axis, ...}.
        axis: one axis or several; `jnp.squeeze` drops all of size 1 without it.

    Returns:
        The axes of `x` except `axis`.

    Raises:
        AxisNotFoundError: if an axis is missing.
        AxisSizeError: if an axis has another size.

    Examples:
        >>> axn.ones(axn.make_axes(batch=1, embed=3)).squeeze("batch").shape
        {'embed': 3}
    """
    (array,), names = _check_node("squeeze", x)
    kernel = checks.run_plan("squeeze", (x,), _make_squeeze, names, selection(axis, "squeeze"))
    return wrap(x, kernel.call(array), kernel.names)


@share_by_renaming("names", "given")
def _make_squeeze(names: Names, given: Pairs) -> kernels.Kernel:
    gone = names_in(given)
    at = plans.positions(names, gone)

    def body(array: jax.Array) -> jax.Array:
        shape = shape_of("squeeze", array, names)
        checks.check_given("squeeze", given, names, shape)
        for name, position in zip(gone, at, strict=True):
            if shape[position] != 1:
                problem = f"axis {name!r} has size {shape[position]}, not 1"
                hint = f"x[{name!r}, 0] takes the first of its elements"
                raise AxisSizeError(
                    message("squeeze", problem, f"array has: {describe(names, shape)}", hint=hint)
                )
        return lax.squeeze(array, at)

    return kernels.Kernel(plans.without(names, gone), body)


def flatten_axes(x: "NamedArray", old_axes: AxisSelection, new_axis: AxisSelector) -> "NamedArray":
    """Merge axes into one; the last of `old_axes` varies fastest.

    Args:
        x: axes {*old_axes, ...}.
        old_axes: the axes to merge, from the slowest to the fastest.
        new_axis: the merged axis; the size of an `Axis` is checked.

    Returns:
        The axes of `x`, with `new_axis` where the first of `old_axes` in storage was.

    Raises:
        AxisNotFoundError: if one of `old_axes` is missing.
        AxisSizeError: if the size of an `Axis` as `new_axis` is not their product.

    Examples:
        >>> axn.ones(axn.make_axes(heads=2, batch=3, head_size=4)).flatten_axes(("heads", "head_size"), "embed").shape
        {'embed': 8, 'batch': 3}
    """
    (array,), names = _check_node("flatten_axes", x)
    given = selection(old_axes, "flatten_axes")
    new = selector(new_axis, "flatten_axes")
    kernel = checks.run_plan("flatten_axes", (x,), _make_flatten, names, given, new)
    return wrap(x, kernel.call(array), kernel.names)


@share_by_renaming("names", "given", "new")
def _make_flatten(names: Names, given: Pairs, new: tuple[str, int | None]) -> kernels.Kernel:
    old = names_in(given)
    if not old:
        raise AxisError("no axes to merge", "broadcast_axis adds an axis of size 1")
    plans.positions(names, old)
    # In storage the merged axes must be neighbours, in the order in which they vary.
    first = min(map(names.index, old))
    rest = plans.without(names, old)
    ordered = (*rest[:first], *old, *rest[first:])
    target = (*rest[:first], new[0], *rest[first:])
    plans.distinct(target)

    def body(array: jax.Array) -> jax.Array:
        shape = shape_of("flatten_axes", array, names)
        checks.check_given("flatten_axes", given, names, shape)
        array = kernels.line_up(array, names, ordered)
        at = array.ndim - len(ordered) + first
        merged = array.shape[at : at + len(old)]
        size = math.prod(merged)
        if new[1] not in (None, size):
            problem = write_size_conflict(new[0], new[1], f"the axes merge to size {size}")
            held = checks.write_axes(describe(names, shape))
            raise AxisSizeError(message("flatten_axes", problem, held))
        # A reshape by groups keeps the shards of dimensions that it does not touch.
        groups = regroup.keep_dimensions(array.shape)
        groups[at : at + len(old)] = [regroup.Group(len(old), (size,), (new[0],))]
        return regroup.reshape(array, groups, ordered)

    return kernels.Kernel(target, body)


def flatten(x: "NamedArray", new_axis: AxisSelector) -> "NamedArray":
    """Merge all axes into one, in storage order.

    Args:
        x: any axes.
        new_axis: the merged axis; the size of an `Axis` is checked.

    Returns:
        Axes {new_axis}.

    Raises:
        AxisSizeError: if the size of an `Axis` as `new_axis` is not the product of all sizes.

    Examples:
        >>> axn.ones(axn.make_axes(row=2, column=3)).flatten("pixel").shape
        {'pixel': 6}
    """
    (_,), names = _check_node("flatten", x)
    if not names:  # an axis of size 1, for which there is nothing to merge
        new = selector(new_axis, "flatten")
        checks.require_size("flatten", new, 1, "no axes merge to size 1")
        return broadcast_axis(x, Axis(new[0], 1))
    return flatten_axes(x, names, new_axis)


def unflatten_axis(x: "NamedArray", axis: AxisSelector, new_axes: AxisSpec) -> "NamedArray":
    """Split one axis into several, in place; the last of them varies fastest.

    Args:
        x: axes {axis, ...}.
        axis: the axis to split.
        new_axes: the axes with their sizes, from the slowest to the fastest.

    Returns:
        The axes of `x`, with `new_axes` instead of `axis`.

    Raises:
        AxisNotFoundError: if `axis` is missing.
        AxisSizeError: if the product of the new sizes is not the old one.
        AxisClashError: if a new name is already in use.

    Examples:
        >>> axn.ones(axn.Axis("embed", 6)).unflatten_axis("embed", axn.make_axes(heads=2, head_size=3)).shape
        {'heads': 2, 'head_size': 3}
    """
    (array,), names = _check_node("unflatten_axis", x)
    given = selector(axis, "unflatten_axis")
    new = spec(new_axes, "unflatten_axis")
    kernel = checks.run_plan("unflatten_axis", (x,), _make_unflatten, names, given, new)
    return wrap(x, kernel.call(array), kernel.names)


@share_by_renaming("names", "given", "new")
def _make_unflatten(
    names: Names, given: tuple[str, int | None], new: tuple[Axis, ...]
) -> kernels.Kernel:
    plans.require(names, (given[0],))
    first = names.index(given[0])
    fresh, sizes = names_and_sizes(new)
    target = (*names[:first], *fresh, *names[first + 1 :])
    plans.distinct(target)

    def body(array: jax.Array) -> jax.Array:
        shape = shape_of("unflatten_axis", array, names)
        checks.check_given("unflatten_axis", (given,), names, shape)
        at = array.ndim - len(names) + first
        if math.prod(sizes) != shape[at]:
            problem = f"{shown(*new)} multiply to {math.prod(sizes)}, not to {given[0]}={shape[at]}"
            held = f"array has: {describe(names, shape)}"
            raise AxisSizeError(message("unflatten_axis", problem, held))
        groups = regroup.keep_dimensions(array.shape)
        groups[at] = regroup.Group(1, sizes, fresh)
        return regroup.reshape(array, groups, names)

    return kernels.Kernel(target, body)


explain_calls(globals(), __all__)
