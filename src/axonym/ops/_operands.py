"""Checks of operands that several kinds of operations share."""

from collections.abc import Sequence
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
from jax.export import is_symbolic_dim

from .. import plans
from ..axis import AxisSelector, selector
from ..core import Core, facts, shape_of
from ..errors import ArgumentError, AxisError, AxisNotFoundError, OperandError, message
from . import _lift


def integers(function: str, what: str, operand: Any, *, for_masks: str | None = None) -> None:
    """Raise an error unless an operand is of integers.

    Args:
        function: the name of the operation in the error.
        what: the name of the operand in the error.
        operand: the operand.
        for_masks: the hint for booleans.

    Raises:
        OperandError: if it has another dtype, or is not an operand.
    """
    value = operand.node[0][0] if isinstance(operand, Core) else _lift.plain(function, operand)
    dtype = value.dtype if hasattr(value, "dtype") else jnp.result_type(value)
    if not jnp.issubdtype(dtype, jnp.integer):
        hint = for_masks if jnp.issubdtype(dtype, jnp.bool_) else None
        raise OperandError(message(function, f"{what} must have an integer dtype, not {dtype}", hint=hint))


def static_int(function: str, what: str, value: Any) -> int:
    """Return a number on which shapes depend as a Python int.

    Raises:
        OperandError: if it is not a static integer.
    """
    if is_symbolic_dim(value):
        return cast(int, value)
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)
    problem = f"{what} must be a static integer, not {type(value).__name__}"
    raise OperandError(message(function, problem))


def names_of(function: str, array: Any) -> tuple[str, ...]:
    """Return the names of an array.

    Raises:
        OperandError: if it is not a NamedArray.
    """
    if not isinstance(array, Core):
        raise _lift.unnamed(function, array)
    return array.names


def only_axis(function: str, array: Any) -> str:
    """Return the name of the only axis of an array.

    Raises:
        AxisNotFoundError: if it has none or several.
        OperandError: if it is not a NamedArray.
    """
    names = names_of(function, array)
    if len(names) != 1:
        hint = "say which one is meant: axis=..." if names else None
        raise AxisNotFoundError(
            message(function, f"needs one axis, got {len(names)}", f"array has: {facts(array)}", hint=hint)
        )
    return names[0]


def position_of(function: str, x: Any, axis: AxisSelector) -> int:
    """Find the dimension of one axis, counted from the right; the size of an `Axis` is checked.

    Raises:
        AxisNotFoundError: if it is missing.
        AxisSizeError: if it has another size.
        OperandError: if `x` is not a NamedArray, or `axis` not one axis.
    """
    names, given = names_of(function, x), selector(axis, function)
    try:
        (at,) = plans.positions(names, (given[0],))
    except AxisError as flaw:
        _lift.fail(function, flaw, x)
    _lift.check_given(function, (given,), names, shape_of(function, x.array, names))
    return at


def one_of(function: str, argument: str, value: Any, allowed: Sequence[Any]) -> None:
    """Raise ArgumentError for a value of an argument that is not allowed."""
    if value not in allowed:
        raise ArgumentError(message(function, f"{argument}={value!r} is not one of {', '.join(map(repr, allowed))}"))
