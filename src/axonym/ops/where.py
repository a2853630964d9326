"""Choosing elements by a condition, and finding where it holds.

The number of elements that a condition selects depends on data, but sizes are static. So if this number is the size of
the result, a sized `Axis` is an argument. The result is truncated or padded to the size of this axis.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, overload

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from ..axis import Axis, AxisSelection, AxisSelector, selector, sized
from ..base.calls import explain_calls
from ..base.dtypes import widen_positions
from ..base.kinds import type_text
from ..engine import auto, checks, pointwise
from ..engine.batched import apply_batched, hashable
from ..engine.core import Core, Operand, facts
from ..engine.operands import integers, names_of
from ..errors import ArgumentError, AxisNotFoundError, AxisSizeError, OperandError, message

if TYPE_CHECKING:
    from ..array import NamedArray

__all__ = [
    "argwhere",
    "choose",
    "compress",
    "flatnonzero",
    "nonzero",
    "piecewise",
    "select",
    "where",
]


def argwhere(
    array: "NamedArray", coordinate: AxisSelector, *, size: Axis, fill_value: Operand = 0
) -> "NamedArray":
    """Return the positions of the nonzero elements: `nonzero`, stacked along a new axis.

    Args:
        array: any axes; leading anonymous dimensions stay.
        coordinate: the new axis, with one position for each axis of `array`, in storage order.
        size: the axis of the elements found.
        fill_value: the coordinates in the padding.

    Returns:
        Integers over {size, coordinate}.

    Raises:
        AxisSizeError: if the size of `coordinate` is not the number of axes.

    Examples:
        >>> x = axn.named([[0, 7], [8, 0]], ("row", "column"))
        >>> axn.argwhere(x, "axis", size=axn.Axis("found", 2)).tolist()
        [[0, 1], [1, 0]]
    """
    names = _require_names("argwhere", array)
    name, given = selector(coordinate, "argwhere")
    there = "there are {} coordinates"
    checks.require_size("argwhere", (name, given), len(names), there, array)
    size = sized(size, "argwhere")
    operands, core, out = (array, fill_value), (names, ()), (size.name, name)
    return apply_batched(_argwhere, operands, core, out, each=True, size=size.size)


def choose(
    index: Operand,
    choices: "Sequence[Operand] | NamedArray",
    axis: AxisSelector | None = None,
    *,
    mode: str = "clip",
) -> "NamedArray":
    """Choose each element from the array numbered by `index`, by name.

    Args:
        index: integers.
        choices: a sequence of arrays or scalars; or one array that has them along `axis`.
        axis: the axis of the choices.
        mode: how to treat a number out of range: "clip" takes the nearest one, "wrap" wraps around. `jnp.choose` raises
            an error by default.

    Returns:
        The axes of all operands except `axis`.

    Raises:
        ArgumentError: if there are no choices, or `mode` is unknown.
        OperandError: if `index` is not of integers.

    Examples:
        >>> axn.choose(axn.named([0, 1], "i"), [axn.named([1, 2], "i"), 10]).tolist()
        [1, 10]
    """
    if mode not in ("clip", "wrap"):
        raise ArgumentError(message("choose", f"the mode must be 'clip' or 'wrap', not {mode!r}"))
    if isinstance(choices, Core):
        if axis is None:
            problem = "a single array of choices needs the axis of the choices"
            held = f"choices have: {facts(choices)}"
            hint = 'write choose(index, choices, "option"), or give a list of arrays'
            raise OperandError(message("choose", problem, held, hint=hint))
        integers("choose", "the index", index)
        return apply_batched(
            _choose, (index, choices), ((), axis), (), each=True, mode=mode, along=True
        )
    if not isinstance(choices, Sequence) or axis is not None:
        wanted = "a NamedArray with an axis, or a list of operands"
        problem = f"choices must be {wanted}, not {type_text(choices)}"
        raise OperandError(message("choose", problem))
    _check_some("choose", "choices", choices)
    integers("choose", "the index", index)
    return pointwise.nary(_choose, index, *choices, mode=mode)


def compress(
    condition: Operand,
    x: "NamedArray",
    axis: AxisSelection | None = None,
    *,
    size: Axis,
    fill_value: Operand = 0,
) -> "NamedArray":
    """Take the elements along `axis` where a condition holds, in order, into an axis of a given size.

    Args:
        condition: a mask over `axis`; other axes are matched by name, and each of their positions is compressed
            separately.
        x: axes {axis, ...}.
        axis: one axis; several, or None for all, are first flattened, in the order given.
        size: the axis of the elements taken.
        fill_value: the padding after the elements taken.

    Returns:
        The other axes of both, with `size` instead of `axis` if that is a single axis.

    Raises:
        AxisNotFoundError: if `condition` or `x` lacks an axis.

    Examples:
        >>> x = axn.named([3, 1, 4, 1, 5], "i")
        >>> axn.compress(x > 2, x, "i", size=axn.Axis("large", 4), fill_value=-1)
        NamedArray(int32[large=4])
        [ 3  4  5 -1]
    """
    size = sized(size, "compress")
    over: AxisSelection = (
        _require_names("compress", x) if axis is None else hashable(axis, "compress")
    )
    operands, core, out = (x, condition, fill_value), (over, over, ()), (size.name,)
    return apply_batched(_compress, operands, core, out, each=True, in_place=True, size=size.size)


def flatnonzero(array: "NamedArray", *, size: Axis, fill_value: Operand = 0) -> "NamedArray":
    """Return the positions of the nonzero elements in the array flattened in storage order.

    Args:
        array: at least one axis; leading anonymous dimensions stay.
        size: the axis of the elements found.
        fill_value: the padding after the positions.

    Returns:
        Integers over {size}.

    Raises:
        AxisNotFoundError: if the array has no axis.

    Examples:
        >>> axn.flatnonzero(axn.named([0, 7, 8], "i"), size=axn.Axis("found", 2)).tolist()
        [1, 2]
    """
    names, size = _require_names("flatnonzero", array), sized(size, "flatnonzero")
    operands, core, out = (array, fill_value), (names, ()), (size.name,)
    return apply_batched(_flatnonzero, operands, core, out, each=True, size=size.size)


def nonzero(
    array: "NamedArray", *, size: Axis, fill_value: Operand = 0
) -> "tuple[NamedArray, ...]":
    """Return the indices of the nonzero elements along each axis, in storage order.

    Args:
        array: at least one axis; leading anonymous dimensions stay.
        size: the axis of the elements found; `jnp.nonzero` needs its size only while tracing.
        fill_value: an integer, the padding after the indices.

    Returns:
        A tuple with integers over {size} for each axis of `array`.

    Raises:
        AxisNotFoundError: if the array has no axis.

    Examples:
        >>> x = axn.named([[0, 7], [8, 9]], ("i", "j"))
        >>> i, j = x.nonzero(size=axn.Axis("found", 3))
        >>> x["i", i, "j", j]
        NamedArray(int32[found=3])
        [7 8 9]
    """
    return _find_nonzero("nonzero", _nonzero, array, size, fill_value)


def piecewise(
    x: "NamedArray",
    condlist: Sequence[Operand],
    funclist: "Sequence[Operand | Callable[..., NamedArray]]",
    *args: object,
    **kwargs: object,
) -> "NamedArray":
    """Apply to each element of `x` the function whose condition holds; if several hold, the last one counts.

    Each function is applied to all of `x`, so its gradient must be finite everywhere.

    Args:
        x: an array.
        condlist: conditions, matched by name.
        funclist: for each condition a function of `x` or a value; optionally, one more for all other elements, which
            are zero otherwise.
        args: further arguments of the functions.
        kwargs: the same by keyword.

    Returns:
        An array in the dtype of `x` with the axes of all operands.

    Raises:
        ArgumentError: if there are no conditions, or the number of functions does not fit.

    Examples:
        >>> x = axn.named([-2, 3], "i")
        >>> axn.piecewise(x, [x < 0], [lambda x: -x, 0]).tolist()
        [2, 0]
    """
    if not isinstance(x, Core):
        raise checks.no_names("piecewise", x)
    _check_some("piecewise", "conditions", condlist)
    if len(funclist) not in (len(condlist), len(condlist) + 1):
        problem = f"{len(condlist)} conditions, but {len(funclist)} functions"
        hint = "give one function per condition, and possibly one more for all other elements"
        raise ArgumentError(message("piecewise", problem, hint=hint))
    # `jnp.piecewise` branches for each element, which becomes a selection of all values in any case.
    values = [entry(x, *args, **kwargs) if callable(entry) else entry for entry in funclist]
    return pointwise.nary(_piecewise, x, *condlist, *values, conditions=len(condlist))


def select(
    condlist: Sequence[Operand], choicelist: Sequence[Operand], default: Operand = 0
) -> "NamedArray":
    """Choose each element from the first of several arrays whose condition holds, by name.

    Args:
        condlist: conditions.
        choicelist: an array or a scalar for each condition.
        default: the value where no condition holds.

    Returns:
        The axes of all operands.

    Raises:
        ArgumentError: if there are no conditions, or the number of choices differs.

    Examples:
        >>> x = axn.named([-2, 0, 3], "i")
        >>> axn.select([x < 0, x > 0], [-1, 1]).tolist()
        [-1, 0, 1]
    """
    _check_some("select", "conditions", condlist)
    if len(condlist) != len(choicelist):
        problem = f"{len(condlist)} conditions, but {len(choicelist)} choices"
        raise ArgumentError(message("select", problem))
    return pointwise.nary(_select, *condlist, *choicelist, default)


@overload
def where(condition: Operand, x: Operand, y: Operand) -> "NamedArray": ...
@overload
def where(
    condition: Operand, *, fill_value: Operand = 0, new_axis: Axis
) -> "tuple[NamedArray, ...]": ...
def where(
    condition: Operand,
    x: Operand | None = None,
    y: Operand | None = None,
    fill_value: Operand = 0,
    new_axis: Axis | None = None,
) -> "NamedArray | tuple[NamedArray, ...]":
    """Choose each element from `x` where `condition` is true and from `y` elsewhere, by name.

    Without `x` and `y`, it is `nonzero` of the condition.

    Args:
        condition: a mask.
        x: an array or a scalar.
        y: the same.
        fill_value: without `x` and `y`, the padding of the indices.
        new_axis: without `x` and `y`, the axis of the elements found.

    Returns:
        The axes of all operands; without `x` and `y`, a tuple of integers over {new_axis}.

    Raises:
        OperandError: with `x` or `y` alone, or with neither them nor `new_axis`.

    Examples:
        >>> x = axn.named([3, 1, 4], "i")
        >>> axn.where(x > 2, x, 0)
        NamedArray(int32[i=3])
        [3 0 4]
    """
    if x is not None and y is not None and new_axis is None:
        return pointwise.nary(jnp.where, condition, x, y)
    if x is not None or y is not None or new_axis is None:
        problem = "needs either x and y, or new_axis"
        indices = 'where(condition, fill_value=0, new_axis=Axis("found", 10))'
        hint = f"write where(condition, x, y), or {indices}"
        raise OperandError(message("where", problem, hint=hint))
    return _find_nonzero("where", _where, condition, new_axis, fill_value)


def _find_nonzero(
    function: str, fn: checks.Function, array: object, size: Axis, fill_value: Operand
) -> "tuple[NamedArray, ...]":
    """Find elements with a function that returns an index array for each axis."""
    names, size = _require_names(function, array), sized(size, function)
    integers(function, "the fill value", fill_value)
    result: tuple[NamedArray, ...] = apply_batched(
        fn,
        (array, fill_value),
        (names, ()),
        ((size.name,),) * len(names),
        each=True,
        size=size.size,
    )
    return result


def _require_names(function: str, array: Any) -> tuple[str, ...]:
    """Return the names of an array that has at least one axis."""
    names = names_of(function, array)
    if not names:
        problem = "the array has no axis to search along"
        raise AxisNotFoundError(message(function, problem, f"array has: {facts(array)}"))
    return names


def _check_some(function: str, what: str, operands: object) -> None:
    """Raise an error unless there is a sequence of at least one operand."""
    if not isinstance(operands, Sequence) or isinstance(operands, str):
        problem = f"{what} must be given as a list, not as {type_text(operands)}"
        raise OperandError(message(function, problem))
    if not operands:
        raise ArgumentError(message(function, f"no {what} given"))


def _argwhere(array: jax.Array, fill_value: jax.Array, *, size: int) -> jax.Array:
    return jnp.stack(_nonzero(array, fill_value, size=size), -1)


def _choose(index: jax.Array, *choices: jax.Array, mode: str, along: bool = False) -> jax.Array:
    """Choose from several arrays, or from one 1-d array."""
    number = choices[0].shape[0] if along else len(choices)
    if not number:
        raise AxisSizeError(message("choose", "the axis of the choices has no elements"))
    # The number of choices may be more than narrow integers can hold.
    index = widen_positions(index)
    index = index % number if mode == "wrap" else jnp.clip(index, 0, number - 1)
    if along:
        return choices[0][index]

    # `jnp.choose` stacks all choices; selections need no memory for them.
    shape = jnp.broadcast_shapes(index.shape, *map(jnp.shape, choices))
    result = jnp.broadcast_to(choices[-1], shape)
    for i in range(number - 1):
        result = jnp.where(index == i, choices[i], result)
    return result


def _compress(x: jax.Array, condition: jax.Array, fill_value: jax.Array, *, size: int) -> jax.Array:
    if not x.size:  # from which not even the padding could be read
        return jnp.full(size, fill_value, x.dtype)
    # `jnp.compress` takes no size above that of the axis.
    (at,) = jnp.nonzero(condition.ravel(), size=size)
    found = jnp.arange(size) < jnp.count_nonzero(condition)
    return jnp.where(found, x.ravel().at[at].get(mode="clip"), fill_value.astype(x.dtype))


def _flatnonzero(array: jax.Array, fill_value: jax.Array, *, size: int) -> jax.Array:
    return _nonzero(array.ravel(), fill_value, size=size)[0]


def _nonzero(array: jax.Array, fill_value: jax.Array, *, size: int) -> tuple[jax.Array, ...]:
    # `jnp.nonzero` pads only if there are any elements.
    missing = jnp.arange(size) >= jnp.count_nonzero(array)
    return tuple(jnp.where(missing, fill_value, at) for at in jnp.nonzero(array, size=size))


def _piecewise(x: jax.Array, *operands: jax.Array, conditions: int) -> jax.Array:
    masks, values = operands[:conditions], operands[conditions:]
    # Before the selection, which would promote them to a common dtype.
    every: list[ArrayLike] = [*values, 0]
    cast = [jax.lax.convert_element_type(value, x.dtype) for value in every[: conditions + 1]]
    *chosen, default = cast
    # The last condition that holds counts, in `select` the first one.
    result = _select(*masks[::-1], *chosen[::-1], default)
    return jnp.broadcast_to(result, jnp.broadcast_shapes(result.shape, x.shape))


def _select(*operands: jax.Array) -> jax.Array:
    conditions = len(operands) // 2

    def call(*operands: jax.Array) -> jax.Array:
        return jnp.select(operands[:conditions], operands[conditions:-1], operands[-1])

    # `jnp.select` makes constants without a sharding, which `jax.vmap` does not accept next to arrays that have one.
    chosen: jax.Array = auto.local(call, operands, auto.broadcast_entries(operands))
    return chosen


def _where(array: jax.Array, fill_value: jax.Array, *, size: int) -> tuple[jax.Array, ...]:
    return _nonzero(array, fill_value, size=size)


explain_calls(globals(), __all__)
