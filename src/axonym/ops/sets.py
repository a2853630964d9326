"""Set operations: unique values, and values that two arrays have in common.

The number of values depends on data, but sizes are static: a sized `Axis` for the result is an argument. If there are
more values, the result has the first ones in order. If there are fewer, it is padded with `fill_value`, by default the
smallest value. NaNs count as one value. All axes are flattened; their order in storage does not matter. An axis that
two operands share must have one size.
"""

from collections.abc import Sequence
from itertools import compress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, overload

import jax
import jax.numpy as jnp
import numpy as np

from ..axis import Axis, AxisSelection, AxisSelector, axis_name, sized
from ..base.calls import explain_calls
from ..base.kinds import to_tuple
from ..engine import checks
from ..engine.batched import apply_batched
from ..engine.core import Core, Operand
from ..errors import ArgumentError, message
from ..names import plans
from ..names.plans import Names

if TYPE_CHECKING:
    from ..array import NamedArray

__all__ = [
    "intersect1d",
    "isin",
    "setdiff1d",
    "setxor1d",
    "union1d",
    "unique",
    "unique_all",
    "unique_counts",
    "unique_inverse",
    "unique_values",
]

Values: TypeAlias = Operand | Sequence[Any]
"""An array with or without names, or a list of numbers."""

_METHODS = ("auto", "compare_all", "binary_search", "sort")


@overload
def intersect1d(
    x: Values,
    y: Values,
    Common: Axis,
    *,
    return_indices: Literal[False] = False,
    fill_value: Operand | None = None,
) -> "NamedArray": ...
@overload
def intersect1d(
    x: Values,
    y: Values,
    Common: Axis,
    *,
    return_indices: Literal[True],
    fill_value: Operand | None = None,
) -> "tuple[NamedArray, NamedArray, NamedArray]": ...
def intersect1d(
    x: Values,
    y: Values,
    Common: Axis,
    *,
    return_indices: bool = False,
    fill_value: Operand | None = None,
) -> "NamedArray | tuple[NamedArray, NamedArray, NamedArray]":
    """Return the values that two arrays have in common, sorted.

    Args:
        x: any axes; one of the two may be a plain array or list.
        y: the same.
        Common: the axis of the values.
        return_indices: also return the first position of each value in `x` and in `y`, flattened in storage order;
            beyond their ends for the padding.
        fill_value: the padding after the values.

    Returns:
        The values over `Common`; with `return_indices`, a tuple of them and both positions.

    Examples:
        >>> axn.intersect1d(axn.named([3, 1, 2], "i"), [2, 3], axn.Axis("value", 2)).tolist()
        [2, 3]
    """
    # Positions are nearly free once both arrays are sorted, so that there is one function for both cases.
    results: tuple[NamedArray, NamedArray, NamedArray] = _apply_to_sets(
        _intersect1d, x, y, Common, fill_value, 3
    )
    return results if return_indices else results[0]


def isin(
    element: Operand,
    test_elements: Values,
    *,
    invert: bool = False,
    method: str = "auto",
) -> "NamedArray":
    """Test whether each element is in `test_elements`.

    Args:
        element: any axes.
        test_elements: any axes, or a plain array or list.
        invert: test whether it is not.
        method: the algorithm: "compare_all" (the default of "auto"), or "binary_search" or "sort" for many others.

    Returns:
        Booleans with the axes of `element`.

    Raises:
        ArgumentError: if `method` is unknown.

    Examples:
        >>> axn.isin(axn.named([3, 1, 4, 1], "i"), [1, 2]).tolist()
        [False, True, False, True]
    """
    if method not in _METHODS:
        problem = f"the method must be one of {', '.join(_METHODS)}, not {method!r}"
        raise ArgumentError(message("isin", problem))
    others, names = _name_axes(test_elements)
    operands, core = (element, others), ((), names)
    return apply_batched(_isin, operands, core, (), dims=len(names), invert=invert, method=method)


def setdiff1d(
    x: Values,
    y: Values,
    Rest: Axis,
    *,
    fill_value: Operand | None = None,
) -> "NamedArray":
    """Return the values of `x` that are not in `y`, sorted.

    Args:
        x: any axes; one of the two may be a plain array or list.
        y: the same.
        Rest: the axis of the values.
        fill_value: the padding after the values.

    Returns:
        The values over `Rest`.

    Examples:
        >>> axn.setdiff1d(axn.named([3, 1, 2], "i"), [2], axn.Axis("value", 2)).tolist()
        [1, 3]
    """
    result: NamedArray = _apply_to_sets(_setdiff1d, x, y, Rest, fill_value)
    return result


def setxor1d(
    x: Values,
    y: Values,
    Either: Axis,
    *,
    fill_value: Operand | None = None,
) -> "NamedArray":
    """Return the values that are in exactly one of two arrays, sorted.

    Args:
        x: any axes; one of the two may be a plain array or list.
        y: the same.
        Either: the axis of the values.
        fill_value: the padding after the values.

    Returns:
        The values over `Either`.

    Examples:
        >>> axn.setxor1d(axn.named([3, 1], "i"), [3, 2], axn.Axis("value", 2)).tolist()
        [1, 2]
    """
    result: NamedArray = _apply_to_sets(_setxor1d, x, y, Either, fill_value)
    return result


def union1d(
    x: Values,
    y: Values,
    Union: Axis,
    *,
    fill_value: Operand | None = None,
) -> "NamedArray":
    """Return the values that are in at least one of two arrays, sorted.

    Args:
        x: any axes; one of the two may be a plain array or list.
        y: the same.
        Union: the axis of the values.
        fill_value: the padding after the values.

    Returns:
        The values over `Union`.

    Examples:
        >>> axn.union1d(axn.named([3, 1], "i"), [3, 2], axn.Axis("value", 3)).tolist()
        [1, 2, 3]
    """
    result: NamedArray = _apply_to_sets(_union1d, x, y, Union, fill_value)
    return result


@overload
def unique(
    array: "NamedArray",
    Unique: Axis,
    *,
    return_index: Literal[False] = False,
    return_inverse: Literal[False] = False,
    return_counts: Literal[False] = False,
    axis: AxisSelector | None = None,
    fill_value: Operand | None = None,
    equal_nan: bool = True,
) -> "NamedArray": ...
@overload
def unique(
    array: "NamedArray",
    Unique: Axis,
    *,
    return_index: Literal[True],
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: AxisSelector | None = None,
    fill_value: Operand | None = None,
    equal_nan: bool = True,
) -> "tuple[NamedArray, ...]": ...
@overload
def unique(
    array: "NamedArray",
    Unique: Axis,
    *,
    return_index: bool = False,
    return_inverse: Literal[True],
    return_counts: bool = False,
    axis: AxisSelector | None = None,
    fill_value: Operand | None = None,
    equal_nan: bool = True,
) -> "tuple[NamedArray, ...]": ...
@overload
def unique(
    array: "NamedArray",
    Unique: Axis,
    *,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: Literal[True],
    axis: AxisSelector | None = None,
    fill_value: Operand | None = None,
    equal_nan: bool = True,
) -> "tuple[NamedArray, ...]": ...
def unique(
    array: "NamedArray",
    Unique: Axis,
    *,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: AxisSelector | None = None,
    fill_value: Operand | None = None,
    equal_nan: bool = True,
) -> "NamedArray | tuple[NamedArray, ...]":
    """Return the unique values of an array, sorted, or the unique slices along an axis.

    Args:
        array: any axes.
        Unique: the axis of the values; for slices, it replaces `axis`.
        return_index: also return the first position of each value, in the array flattened in storage order, or along
            `axis`.
        return_inverse: also return the number of the value of each element (over the axes of `array`) or each slice
            (over `axis`).
        return_counts: also return how often each value occurs; 0 for the padding.
        axis: the axis whose slices are compared; None compares single elements.
        fill_value: the padding after the values.
        equal_nan: whether all NaNs are one value.

    Returns:
        The values over `Unique`, or a tuple of them and all further results.

    Examples:
        >>> x = axn.named([3, 1, 3, 1], "i")
        >>> values, counts = axn.unique(x, axn.Axis("value", 3), return_counts=True, fill_value=-1)
        >>> values.tolist(), counts.tolist()
        ([1, 3, -1], [2, 2, 0])
    """
    if not isinstance(array, Core):
        raise checks.no_names("unique", array)
    size = sized(Unique, "unique")
    names: Names = (size.name,)
    core: list[AxisSelection] = [array.names]
    values, inverse = names, array.names
    if axis is not None:
        inverse = (axis_name(axis),)
        others = plans.without(array.names, inverse)
        core = [(axis, *others)]
        values = (size.name, *others)

    operands: list[Operand] = [array]
    if fill_value is not None:
        operands.append(fill_value)
        core.append(())

    flags = (return_index, return_inverse, return_counts)
    results: tuple[NamedArray, ...] = apply_batched(
        _unique,
        operands,
        core,
        (values, *compress((names, inverse, names), flags)),
        each=True,
        in_place=True,
        whole=True,
        slices=axis is not None,
        size=size.size,
        flags=flags,
        equal_nan=equal_nan,
    )
    return results if any(flags) else results[0]


def unique_all(
    array: "NamedArray",
    Unique: Axis,
    *,
    axis: AxisSelector | None = None,
    fill_value: Operand | None = None,
) -> "tuple[NamedArray, NamedArray, NamedArray, NamedArray]":
    """Return the values, first positions, inverse and counts of `unique` with `equal_nan=False`.

    Args:
        array: any axes.
        Unique: the axis of the values; for slices, it replaces `axis`.
        axis: the axis whose slices are compared; None compares single elements.
        fill_value: the padding after the values.

    Returns:
        The values, first positions and counts over `Unique`; the inverse over the axes of `array`, or over `axis`.

    Examples:
        >>> values, first, inverse, counts = axn.unique_all(axn.named([3, 1, 3], "i"), axn.Axis("value", 2))
        >>> first.tolist(), inverse.tolist(), counts.tolist()
        ([1, 0], [1, 0, 1], [1, 2])
    """
    values, index, inverse, counts = unique(
        array,
        Unique,
        return_index=True,
        return_inverse=True,
        return_counts=True,
        axis=axis,
        fill_value=fill_value,
        equal_nan=False,
    )
    return values, index, inverse, counts


def unique_counts(
    array: "NamedArray",
    Unique: Axis,
    *,
    axis: AxisSelector | None = None,
    fill_value: Operand | None = None,
) -> "tuple[NamedArray, NamedArray]":
    """Return the values and counts of `unique` with `equal_nan=False`.

    Args:
        array: any axes.
        Unique: the axis of the values; for slices, it replaces `axis`.
        axis: the axis whose slices are compared; None compares single elements.
        fill_value: the padding after the values.

    Returns:
        The values, and how often each occurs, over `Unique`.

    Examples:
        >>> values, counts = axn.unique_counts(axn.named([3, 1, 3], "i"), axn.Axis("value", 2))
        >>> values.tolist(), counts.tolist()
        ([1, 3], [1, 2])
    """
    values, counts = unique(
        array, Unique, return_counts=True, axis=axis, fill_value=fill_value, equal_nan=False
    )
    return values, counts


def unique_inverse(
    array: "NamedArray",
    Unique: Axis,
    *,
    axis: AxisSelector | None = None,
    fill_value: Operand | None = None,
) -> "tuple[NamedArray, NamedArray]":
    """Return the values and the inverse of `unique` with `equal_nan=False`.

    Args:
        array: any axes.
        Unique: the axis of the values; for slices, it replaces `axis`.
        axis: the axis whose slices are compared; None compares single elements.
        fill_value: the padding after the values.

    Returns:
        The values over `Unique`, and the number of the value of each element or slice.

    Examples:
        >>> values, inverse = axn.unique_inverse(axn.named([3, 1, 3], "i"), axn.Axis("value", 2))
        >>> inverse.tolist()
        [1, 0, 1]
    """
    values, inverse = unique(
        array, Unique, return_inverse=True, axis=axis, fill_value=fill_value, equal_nan=False
    )
    return values, inverse


def unique_values(
    array: "NamedArray",
    Unique: Axis,
    *,
    axis: AxisSelector | None = None,
    fill_value: Operand | None = None,
) -> "NamedArray":
    """Return the values of `unique` with `equal_nan=False`.

    Args:
        array: any axes.
        Unique: the axis of the values; for slices, it replaces `axis`.
        axis: the axis whose slices are compared; None compares single elements.
        fill_value: the padding after the values.

    Returns:
        The values over `Unique`.

    Examples:
        >>> axn.unique_values(axn.named([3, 1, 3], "i"), axn.Axis("value", 2)).tolist()
        [1, 3]
    """
    return unique(array, Unique, axis=axis, fill_value=fill_value, equal_nan=False)


def _apply_to_sets(
    fn: checks.Function,
    x: Values,
    y: Values,
    size: Axis,
    fill_value: Operand | None,
    results: int = 0,
) -> Any:
    """Apply a function of two flattened arrays; `results` is the length of the tuple that it returns, if any."""
    size = sized(size, checks.title(fn))
    (first, over_first), (second, over_second) = _name_axes(x), _name_axes(y)
    operands, core = [first, second], [over_first, over_second]
    if fill_value is not None:
        operands.append(fill_value)
        core.append(())
    out: Any = ((size.name,),) * results if results else (size.name,)
    return apply_batched(fn, operands, core, out, each=True, whole=True, size=size.size)


def _name_axes(operand: Values) -> tuple[Operand, Names]:
    """Return the names of all axes of an operand; all of them are core axes."""
    if isinstance(operand, Core):
        return operand, operand.names
    if not isinstance(operand, jax.Array):
        operand = np.asarray(operand)
    # The axes of a plain array get names that no result has; errors may show them.
    return operand, tuple(f"dimension {i}" for i in range(operand.ndim))


def _isin(
    element: jax.Array, others: jax.Array, *, dims: int, invert: bool, method: str
) -> jax.Array:
    if others.ndim == dims:
        return jnp.isin(element, others, invert=invert, method=method)
    # Each position of anonymous dimensions has elements of its own, which `jnp.isin` would flatten.
    others = others.reshape(*others.shape[: others.ndim - dims], -1)
    return jnp.any(element[..., None] == others, -1) ^ invert


def _intersect1d(
    x: jax.Array, y: jax.Array, fill: jax.Array | None = None, *, size: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    merged = _merge(x, y)
    values, at, found = _choose(merged.values, merged.first & merged.in_x & merged.in_y, size, fill)
    if not merged.values.size:
        return values, at, at
    return (
        values,
        jnp.where(found, merged.at_x[at], x.size),
        jnp.where(found, merged.at_y[at], y.size),
    )


def _setdiff1d(
    x: jax.Array, y: jax.Array, fill: jax.Array | None = None, *, size: int
) -> jax.Array:
    merged = _merge(x, y)
    return _choose(merged.values, merged.first & merged.in_x & ~merged.in_y, size, fill)[0]


def _setxor1d(x: jax.Array, y: jax.Array, fill: jax.Array | None = None, *, size: int) -> jax.Array:
    merged = _merge(x, y)
    return _choose(merged.values, merged.first & (merged.in_x ^ merged.in_y), size, fill)[0]


def _union1d(x: jax.Array, y: jax.Array, fill: jax.Array | None = None, *, size: int) -> jax.Array:
    merged = _merge(x, y)
    return _choose(merged.values, merged.first, size, fill)[0]


class _Merged(NamedTuple):
    """The elements of two arrays, sorted.

    Attributes:
        values: the elements.
        first: whether an element is the first of its value.
        in_x: whether its value is in the first array.
        in_y: whether its value is in the second array.
        at_x: the first position of its value in the first array, if any.
        at_y: the first position of its value in the second array, if any.
    """

    values: jax.Array
    first: jax.Array
    in_x: jax.Array
    in_y: jax.Array
    at_x: jax.Array
    at_y: jax.Array


def _merge(x: jax.Array, y: jax.Array) -> _Merged:
    dtype = jnp.result_type(x, y)
    values = jnp.concatenate([x.astype(dtype).ravel(), y.astype(dtype).ravel()])
    # Stable, so that the first of equal elements is the first one in its array.
    order = jnp.argsort(values, stable=True)
    values = values[order]
    same = (values[1:] == values[:-1]) | ((values[1:] != values[1:]) & (values[:-1] != values[:-1]))
    first = jnp.concatenate([jnp.ones(values[:1].shape, bool), ~same])
    # All equal elements learn from a scatter by group where their value first occurs in each of the arrays.
    group = jnp.cumsum(first) - 1
    none = values.size

    def places(chosen: jax.Array) -> jax.Array:
        return jnp.full(none, none).at[group].min(jnp.where(chosen, order, none))[group]

    at_x, at_y = places(order < x.size), places(order >= x.size)
    return _Merged(values, first, at_x < none, at_y < none, at_x, at_y - x.size)


def _choose(
    values: jax.Array, keep: jax.Array, size: int, fill: jax.Array | None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Move the values to keep to the front; return their positions, and a mask of the places that they fill."""
    # The padding of `nonzero` reads the first element, which the selection replaces.
    (at,) = jnp.nonzero(keep, size=size)
    found = jnp.arange(size) < keep.sum()
    if not (values.size and size):
        return _fill_empty(size, values.dtype, fill), at, found

    taken = values[at]
    if fill is None:
        fill = jnp.where(found[0], taken[0], 0)  # the smallest value, if there is any
    return jnp.where(found, taken, fill.astype(taken.dtype)), at, found


def _unique(
    array: jax.Array,
    fill: jax.Array | None = None,
    *,
    slices: bool,
    size: int,
    flags: tuple[bool, bool, bool],
    equal_nan: bool,
) -> tuple[jax.Array, ...]:
    if not array.size:  # for which `jnp.unique` has no padding
        compared, slice_shape = (array.shape[:1], array.shape[1:]) if slices else (array.shape, ())
        values = jnp.broadcast_to(_fill_empty((), array.dtype, fill), (size, *slice_shape))
        index, inverse = jnp.zeros(size, int), jnp.zeros(compared, int)
        return (values, *compress((index, inverse, index), flags))

    axis = 0 if slices else None
    results: Any = jnp.unique(
        array, *flags, axis=axis, equal_nan=equal_nan, size=size, fill_value=fill
    )
    return to_tuple(results)


def _fill_empty(shape: int | tuple[()], dtype: np.dtype[Any], fill: jax.Array | None) -> jax.Array:
    """Make the values of an empty set."""
    return jnp.zeros(shape, dtype) if fill is None else jnp.full(shape, fill, dtype)


explain_calls(globals(), __all__)
