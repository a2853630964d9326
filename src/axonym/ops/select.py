"""Choosing elements by a condition, and finding where it holds.

How many elements a condition chooses depends on the data, which no compiled program can: where that decides the size of
a result, a sized `Axis` is an argument. What is too much is cut off, and what is missing is filled up.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, overload

import jax
import jax.numpy as jnp

from ..axis import Axis, AxisSelection, AxisSelector, selector, sized
from ..core import Core, Operand, facts
from ..errors import ArgumentError, AxisNotFoundError, AxisSizeError, OperandError, message
from . import _lift
from ._batch import batched, hashable
from ._operands import integers, names_of
from ._widen import widened

if TYPE_CHECKING:
    from ..array import NamedArray

__all__ = ["argwhere", "choose", "compress", "flatnonzero", "nonzero", "piecewise", "select", "where"]


def argwhere(array: "NamedArray", coordinate: AxisSelector, *, size: Axis, fill_value: Operand = 0) -> "NamedArray":
    """Return the positions of the elements that are not zero: `nonzero`, stacked along a new axis.

    Args:
        array: any axes; leading anonymous dimensions stay.
        coordinate: the new axis, with one position for each axis of `array`, in storage order.
        size: the axis of the elements found.
        fill_value: the coordinates of those that are missing.

    Raises:
        AxisSizeError: if `coordinate` is given with another size than the number of axes.
    """
    names = _names("argwhere", array)
    name, given = selector(coordinate, "argwhere")
    if given not in (None, len(names)):
        problem = f"axis {name!r} was given with size {given}, but there are {len(names)} coordinates"
        raise AxisSizeError(message("argwhere", problem, f"array has: {facts(array)}"))
    size = sized(size, "argwhere")
    return batched(_argwhere, (array, fill_value), (names, ()), (size.name, name), each=True, size=size.size)


def choose(
    index: Operand, choices: "Sequence[Operand] | NamedArray", axis: AxisSelector | None = None, *, mode: str = "clip"
) -> "NamedArray":
    """Choose each element from the array whose number `index` gives, by name.

    Args:
        index: integers.
        choices: a sequence of arrays or scalars; or one array that has them along `axis`.
        axis: the axis of `choices`, which the result lacks.
        mode: what a number out of range means: "clip" takes the nearest, "wrap" counts round and round.

    Raises:
        ArgumentError: if there are no choices, or `mode` is another.
        OperandError: if `index` has no integers.
    """
    if mode not in ("clip", "wrap"):
        raise ArgumentError(message("choose", f"the mode must be 'clip' or 'wrap', not {mode!r}"))
    if isinstance(choices, Core):
        if axis is None:
            problem = "one array of choices needs the axis that they lie along"
            hint = 'write choose(index, choices, "option"), or give a list of arrays'
            raise OperandError(message("choose", problem, f"choices have: {facts(choices)}", hint=hint))
        integers("choose", "the index", index)
        return batched(_choose, (index, choices), ((), axis), (), each=True, mode=mode, along=True)
    if not isinstance(choices, Sequence) or axis is not None:
        problem = f"the choices are a NamedArray with an axis, or a list of operands, not {type(choices).__name__}"
        raise OperandError(message("choose", problem))
    _several("choose", "choices", choices)
    integers("choose", "the index", index)
    return _lift.nary(_choose, index, *choices, mode=mode)


def compress(
    condition: Operand, x: "NamedArray", axis: AxisSelection | None = None, *, size: Axis, fill_value: Operand = 0
) -> "NamedArray":
    """Take the elements along `axis` where a condition holds, in order, to the front of an axis of a given size.

    Args:
        condition: a mask over `axis`; further axes line up by name, and each of their positions is compressed for
            itself.
        x: axes {axis, ...}.
        axis: one axis; several, or None for all, are first flattened, in the order given.
        size: the axis of the elements taken; it stands in the place of `axis` if that is one.
        fill_value: what stands behind the elements taken.

    Raises:
        AxisNotFoundError: if `condition` or `x` lacks an axis.

    Example:
        >>> x = axn.named([3, 1, 4, 1, 5], "i")
        >>> axn.compress(x > 2, x, "i", size=axn.Axis("large", 4), fill_value=-1)
        NamedArray(int32[large=4])
        [ 3  4  5 -1]
    """
    size = sized(size, "compress")
    over = _names("compress", x) if axis is None else hashable(axis, "compress")
    operands, core = (x, condition, fill_value), (over, over, ())
    return batched(_compress, operands, core, (size.name,), each=True, in_place=True, size=size.size)


def flatnonzero(array: "NamedArray", *, size: Axis, fill_value: Operand = 0) -> "NamedArray":
    """Return where the elements that are not zero stand in the array that all axes flatten to, in storage order."""
    names, size = _names("flatnonzero", array), sized(size, "flatnonzero")
    return batched(_flatnonzero, (array, fill_value), (names, ()), (size.name,), each=True, size=size.size)


def nonzero(array: "NamedArray", *, size: Axis, fill_value: Operand = 0) -> "tuple[NamedArray, ...]":
    """Return where the elements are that are not zero: for each axis, in storage order, their indices along it.

    Args:
        array: at least one axis; leading anonymous dimensions stay.
        size: the axis of the elements found, in storage order; with fewer of them, the indices end in `fill_value`.
        fill_value: an integer.

    Example:
        >>> x = axn.named([[0, 7], [8, 9]], ("i", "j"))
        >>> i, j = x.nonzero(size=axn.Axis("found", 3))
        >>> x["i", i, "j", j]
        NamedArray(int32[found=3])
        [7 8 9]
    """
    return _nonzero_of("nonzero", _nonzero, array, size, fill_value)


def piecewise(
    x: "NamedArray",
    condlist: Sequence[Operand],
    funclist: "Sequence[Operand | Callable[..., NamedArray]]",
    *args: Any,
    **kwargs: Any,
) -> "NamedArray":
    """Apply to each element of `x` the function whose condition holds; where several hold, the last one counts.

    Each function is applied to all of `x`, so that its gradient must be finite everywhere.

    Args:
        x: an array.
        condlist: conditions, by name.
        funclist: for each condition, and at the end possibly for all other elements (else they become zero), a
            function of `x` or a value.
        args: further arguments of the functions.
        kwargs: the same by keyword.

    Returns:
        The axes of all, in the dtype of `x`.
    """
    if not isinstance(x, Core):
        raise _lift.unnamed("piecewise", x)
    _several("piecewise", "conditions", condlist)
    if len(funclist) not in (len(condlist), len(condlist) + 1):
        problem = f"{len(condlist)} conditions, but {len(funclist)} functions"
        hint = "give one function per condition, and possibly one more for all other elements"
        raise ArgumentError(message("piecewise", problem, hint=hint))
    values = [entry(x, *args, **kwargs) if callable(entry) else entry for entry in funclist]
    return _lift.nary(_piecewise, x, *condlist, *values, conditions=len(condlist))


def select(condlist: Sequence[Operand], choicelist: Sequence[Operand], default: Operand = 0) -> "NamedArray":
    """Choose each element from the first of several arrays whose condition holds, by name.

    Args:
        condlist: conditions.
        choicelist: for each one an array or a scalar.
        default: what stands where no condition holds.

    Raises:
        ArgumentError: if there are no conditions, or another number of choices.
    """
    _several("select", "conditions", condlist)
    if len(condlist) != len(choicelist):
        raise ArgumentError(message("select", f"{len(condlist)} conditions, but {len(choicelist)} choices"))
    return _lift.nary(_select, *condlist, *choicelist, default)


@overload
def where(condition: Operand, x: Operand, y: Operand) -> "NamedArray": ...
@overload
def where(condition: Operand, *, fill_value: Operand = 0, new_axis: Axis) -> "tuple[NamedArray, ...]": ...
def where(
    condition: Operand,
    x: Operand | None = None,
    y: Operand | None = None,
    fill_value: Operand = 0,
    new_axis: Axis | None = None,
) -> "NamedArray | tuple[NamedArray, ...]":
    """Choose each element from `x` where `condition` is true and from `y` elsewhere, by name.

    Without `x` and `y`, return where the condition is true, as `nonzero` does.

    Args:
        condition: a mask.
        x: an array or a scalar.
        y: the same.
        fill_value: without `x` and `y`, the index of what is missing to fill `new_axis`.
        new_axis: without `x` and `y`, the axis of the elements found.

    Example:
        >>> x = axn.named([3, 1, 4], "i")
        >>> axn.where(x > 2, x, 0)
        NamedArray(int32[i=3])
        [3 0 4]
    """
    if x is not None and y is not None and new_axis is None:
        return _lift.nary(jnp.where, condition, x, y)
    if x is not None or y is not None or new_axis is None:
        problem = "needs either x and y, or new_axis"
        hint = 'write where(condition, x, y), or where(condition, fill_value=0, new_axis=Axis("found", 10))'
        raise OperandError(message("where", problem, hint=hint))
    return _nonzero_of("where", _where, condition, new_axis, fill_value)


def _nonzero_of(function: str, fn: Any, array: Any, size: Axis, fill_value: Operand) -> "tuple[NamedArray, ...]":
    """Look for elements by a function that returns an index array for each axis."""
    names, size = _names(function, array), sized(size, function)
    integers(function, "the fill value", fill_value)
    result: tuple[NamedArray, ...] = batched(
        fn, (array, fill_value), (names, ()), ((size.name,),) * len(names), each=True, size=size.size
    )
    return result


def _names(function: str, array: Any) -> tuple[str, ...]:
    """Return the names of an array that has axes to look along."""
    names = names_of(function, array)
    if not names:
        raise AxisNotFoundError(message(function, "there is no axis to look along", f"array has: {facts(array)}"))
    return names


def _several(function: str, what: str, operands: Any) -> None:
    """Refuse what is not a sequence of at least one operand."""
    if not isinstance(operands, Sequence) or isinstance(operands, str):
        raise OperandError(message(function, f"{what} go here as a list, not as {type(operands).__name__}"))
    if not operands:
        raise ArgumentError(message(function, f"there are no {what}"))


def _argwhere(array: jax.Array, fill_value: jax.Array, *, size: int) -> jax.Array:
    return jnp.stack(_nonzero(array, fill_value, size=size), -1)


def _choose(index: jax.Array, *choices: jax.Array, mode: str, along: bool = False) -> jax.Array:
    """Choose from several arrays, or from one 1-d array."""
    number = choices[0].shape[0] if along else len(choices)
    if not number:
        raise AxisSizeError(message("choose", "the axis of the choices has no elements"))
    index = widened(index)
    index = index % number if mode == "wrap" else jnp.clip(index, 0, number - 1)
    if along:
        return choices[0][index]
    result = jnp.broadcast_to(choices[-1], jnp.broadcast_shapes(index.shape, *map(jnp.shape, choices)))
    for i in range(number - 1):
        result = jnp.where(index == i, choices[i], result)
    return result


def _compress(x: jax.Array, condition: jax.Array, fill_value: jax.Array, *, size: int) -> jax.Array:
    if not x.size:
        return jnp.full(size, fill_value, x.dtype)
    (at,) = jnp.nonzero(condition.ravel(), size=size)
    found = jnp.arange(size) < jnp.count_nonzero(condition)
    return jnp.where(found, x.ravel().at[at].get(mode="clip"), fill_value.astype(x.dtype))


def _flatnonzero(array: jax.Array, fill_value: jax.Array, *, size: int) -> jax.Array:
    return _nonzero(array.ravel(), fill_value, size=size)[0]


def _nonzero(array: jax.Array, fill_value: jax.Array, *, size: int) -> tuple[jax.Array, ...]:
    # jnp.nonzero fills only where there are elements at all.
    missing = jnp.arange(size) >= jnp.count_nonzero(array)
    return tuple(jnp.where(missing, fill_value, at) for at in jnp.nonzero(array, size=size))


def _piecewise(x: jax.Array, *operands: jax.Array, conditions: int) -> jax.Array:
    masks, values = operands[:conditions], operands[conditions:]
    default = values[conditions] if len(values) > conditions else 0
    result = _select(*masks[::-1], *values[:conditions][::-1], default).astype(x.dtype)
    return jnp.broadcast_to(result, jnp.broadcast_shapes(result.shape, x.shape))


def _select(*operands: Any) -> jax.Array:
    conditions = len(operands) // 2

    def call(*operands: jax.Array) -> jax.Array:
        return jnp.select(operands[:conditions], operands[conditions:-1], operands[-1])

    # jnp.select makes constants that have no layout, which jax.vmap does not accept next to arrays that have one.
    chosen: jax.Array = _lift.local(call, operands, _lift.broadcast_entries(operands))
    return chosen


def _where(array: jax.Array, fill_value: jax.Array, *, size: int) -> tuple[jax.Array, ...]:
    return _nonzero(array, fill_value, size=size)
