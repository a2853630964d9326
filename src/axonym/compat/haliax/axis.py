"""Axes and set operations on axes, with Haliax's names and result types."""

import itertools
from collections.abc import Mapping, Sequence
from types import EllipsisType
from typing import Any, TypeAlias, TypeVar

import jax

import axonym as axn
from axonym import Axis, AxisSelection, AxisSelector, AxisSpec, make_axes
from axonym.engine import Pairs, names_in, selection, selector, selectors, spec
from axonym.errors import AxisClashError, AxisNotFoundError, message, suggestion

from ._adapt import adapted

__all__ = [
    "Axis",
    "AxisSelection",
    "AxisSelector",
    "AxisSpec",
    "PartialAxisSpec",
    "PartialShapeDict",
    "ShapeDict",
    "axis_name",
    "axis_size",
    "axis_spec_to_shape_dict",
    "axis_spec_to_tuple",
    "concat_axes",
    "concat_axis_specs",
    "dblock",
    "ds",
    "dslice",
    "eliminate_axes",
    "intersect_axes",
    "is_axis_compatible",
    "make_axes",
    "rearrange_for_partial_order",
    "replace_axis",
    "replace_missing_with_ellipsis",
    "resolve_axis",
    "selects_axis",
    "to_jax_shape",
    "union_axes",
    "unsize_axes",
    "without_axes",
]

Ax = TypeVar("Ax", bound=AxisSelector)
PartialAxisSpec: TypeAlias = Sequence[AxisSelector | EllipsisType]
ShapeDict: TypeAlias = Mapping[str, int]
PartialShapeDict: TypeAlias = Mapping[str, int | None]


@jax.tree_util.register_pytree_node_class
class dslice(axn.dslice):  # noqa: N801  # Haliax's name
    """Select `length` elements from `start` on; unlike in Axonym, two are equal if start and size are."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, axn.dslice):
            return NotImplemented
        return self.size == other.size and self.start == other.start

    def __hash__(self) -> int:
        return hash((self.start, self.size))

    @staticmethod
    def block(idx: Any, size: int) -> "dslice":
        """Select block number `idx` of blocks of `size` elements."""
        return dslice(idx * size, size)


ds = dslice
dblock = dslice.block


def _pairs(axes: AxisSelection, function: str) -> Pairs:
    """Return the name and the size of each axis; unlike elsewhere, a name may occur twice."""
    if isinstance(axes, Sequence) and not isinstance(axes, str):
        return tuple(selector(axis, function) for axis in axes)
    return selection(axes, function)


def is_one(axes: object) -> bool:
    """Return whether a selection is a single selector: some functions then return one axis and not a tuple."""
    return isinstance(axes, Axis | str)


@adapted
def axis_name(ax: AxisSelection) -> Any:
    """Return the name of one axis, or a tuple with the names of several, which may repeat."""
    names = names_in(_pairs(ax, "axis_name"))
    if is_one(ax):
        return names[0]
    return names


@adapted
def axis_size(ax: AxisSpec) -> int:
    """Return the size of an axis, or the product of the sizes of several."""
    return axn.axis_size(ax)


@adapted
def axis_spec_to_shape_dict(axis_spec: AxisSelection) -> dict[str, int | None]:
    """Return a dict from names to sizes, or None without a size; for a repeated name the last size is used."""
    return dict(_pairs(axis_spec, "axis_spec_to_shape_dict"))


@adapted
def axis_spec_to_tuple(axis_spec: AxisSelection) -> tuple[AxisSelector, ...]:
    """Return any selection as a tuple; an axis without a size becomes its name."""
    return selectors(_pairs(axis_spec, "axis_spec_to_tuple"))


@adapted
def concat_axes(a1: AxisSelection, a2: AxisSelection) -> Any:
    """Append the axes of `a2` to those of `a1`, which must have none of them."""
    return axn.concat_axes(a1, a2)


@adapted
def concat_axis_specs(a1: AxisSelection, a2: AxisSelection) -> Any:
    """Apply `concat_axes`, by its old name."""
    return axn.concat_axes(a1, a2)


@adapted
def eliminate_axes(axis_spec: AxisSelection, to_remove: AxisSelection) -> Any:
    """Drop axes by name, all of which must be present."""
    return axn.eliminate_axes(axis_spec, to_remove)


@adapted
def intersect_axes(ax1: AxisSelection, ax2: AxisSelection) -> Any:
    """Return the axes of `ax1` that are in `ax2`; unlike in Axonym, with the size in `ax2`, or as a name."""
    axn.intersect_axes(ax1, ax2)
    others = dict(selection(ax2, "intersect_axes"))
    names = names_in(selection(ax1, "intersect_axes"))
    kept = {name: others[name] for name in names if name in others}
    if isinstance(ax1, Mapping):
        return kept
    return selectors(tuple(kept.items()))


@adapted
def is_axis_compatible(ax1: AxisSelector, ax2: AxisSelector) -> bool:
    """Return whether two axes have the same name; sizes are ignored."""
    return selector(ax1)[0] == selector(ax2)[0]


@adapted
def rearrange_for_partial_order(
    partial_order: PartialAxisSpec, axes: tuple[Ax, ...]
) -> tuple[Ax, ...]:
    """Complete an order in which any number of `...` stand for the axes that it omits.

    The last `...` stands for the rest. Each other one stands for the axes that come next in `axes`, up to an axis that
    the order names before its last `...`.
    """
    function = "rearrange_for_partial_order"
    known = names_in(_pairs(axes, function))
    order: list[str | EllipsisType] = []
    for entry in partial_order:
        if entry is not ...:
            entry, _ = selector(entry, function)
        order.append(entry)
    said = [entry for entry in order if entry is not ...]
    line = f"axes: {', '.join(known) or 'none'}"
    for name in said:
        if name not in known:
            problem = f"no axis named {name!r}"
            raise AxisNotFoundError(message(function, problem, line, hint=suggestion(name, known)))
        if said.count(name) > 1:
            raise AxisClashError(message(function, f"the order has axis {name!r} twice", line))
    left = [name for name in known if name not in said]
    if left and ... not in order:
        problem = f"the order leaves out {', '.join(left)}: it must be a permutation of the axes, or contain ..."
        raise AxisNotFoundError(message(function, problem, line))
    at = dict(zip(known, axes, strict=True))
    if ... not in order:
        return tuple(map(at.__getitem__, said))
    last = len(order) - 1 - order[::-1].index(...)
    rest, end = order[:last], order[last + 1 :]
    waiting = [name for name in known if name not in end]
    complete: list[Any] = []
    for entry in rest:
        if entry is not ...:
            complete.append(entry)
            continue
        waiting = list(itertools.dropwhile(complete.__contains__, waiting))
        complete += itertools.takewhile(lambda name: name not in said, waiting)
    complete += [name for name in left if name not in complete] + end
    return tuple(map(at.__getitem__, complete))


@adapted
def replace_axis(axis_spec: AxisSelection, old: AxisSelector, new: AxisSelection) -> Any:
    """Replace an axis, found by name with an unchecked size, by one or more."""
    return axn.replace_axis(axis_spec, selector(old, "replace_axis")[0], new)


@adapted
def replace_missing_with_ellipsis(
    ax1: AxisSelection, ax2: AxisSelection
) -> tuple[AxisSelector | EllipsisType, ...]:
    """Replace each axis of `ax1` that is not in `ax2` by `...`."""
    known = dict(selection(ax2, "replace_missing_with_ellipsis"))
    replaced: list[AxisSelector | EllipsisType] = []
    for axis in selectors(selection(ax1, "replace_missing_with_ellipsis")):
        if axn.axis_name(axis) in known:
            replaced.append(axis)
        else:
            replaced.append(...)
    return tuple(replaced)


@adapted
def resolve_axis(axis_spec: AxisSpec, axis_selection: AxisSelection) -> Any:
    """Look up axes by name: one gives an `Axis`, a sequence a tuple, a dict a dict."""
    found = axn.resolve_axis(axis_spec, axis_selection)
    if isinstance(axis_selection, Mapping) and not isinstance(found, Axis):
        return {axis.name: axis.size for axis in found}
    return found


@adapted
def selects_axis(selector: AxisSelection, selected: AxisSelection) -> bool:
    """Return whether each axis of `selected` is in `selector`, with the same size where both have one."""
    return axn.selects_axis(selector, selected)


@adapted
def to_jax_shape(shape: AxisSpec) -> Any:
    """Return the size of an axis, or a tuple with the sizes of several."""
    sizes = tuple(axis.size for axis in spec(shape, "to_jax_shape"))
    if isinstance(shape, Axis):
        return sizes[0]
    return sizes


@adapted
def union_axes(a1: AxisSelection, a2: AxisSelection) -> Any:
    """Append the axes of `a2` that `a1` lacks to those of `a1`; the result is a dict if either is one."""
    return axn.union_axes(a1, a2)


@adapted
def unsize_axes(axis_spec: AxisSelection, to_unsize: AxisSelection | None = None) -> Any:
    """Drop the sizes of all axes, or of the given ones; in a dict they become None, and one axis becomes its name."""
    bare = axn.unsize_axes(axis_spec, to_unsize)
    if to_unsize is None and is_one(axis_spec):
        return bare[0]
    if isinstance(axis_spec, Mapping):
        return axis_spec_to_shape_dict(bare)
    return bare


@adapted
def without_axes(
    axis_spec: AxisSelection, to_remove: AxisSelection, allow_mismatched_sizes: bool = False
) -> Any:
    """Drop axes by name; missing ones are ignored, and so are sizes with `allow_mismatched_sizes`."""
    if allow_mismatched_sizes:
        to_remove = names_in(selection(to_remove))
    return axn.without_axes(axis_spec, to_remove)
