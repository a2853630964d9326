"""Internal. Checks of operands that several kinds of operations share: integers, counts, one axis.

`checks` asks about axes; this module asks about the values beside them.
"""

import operator
from collections.abc import Sequence
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
from jax.export import is_symbolic_dim
from numpy.typing import NDArray

from ..axis import AxisSelector, selector
from ..base.kinds import Payload, type_text
from ..errors import ArgumentError, AxisNotFoundError, OperandError, message
from . import checks
from .core import Core, facts


def integers(function: str, what: str, operand: object, *, for_masks: str | None = None) -> None:
    """Raise an error unless an operand has an integer dtype.

    Args:
        function: the name of the operation in the error.
        what: the name of the operand in the error.
        operand: the operand.
        for_masks: the hint for booleans.

    Raises:
        OperandError: if it has another dtype, or is not an operand.
    """
    value = payload(function, operand)
    # Python numbers have the dtype that JAX would give them.
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        dtype = jnp.result_type(value)
    if not jnp.issubdtype(dtype, jnp.integer):
        hint = for_masks if jnp.issubdtype(dtype, jnp.bool_) else None
        problem = f"{what} must have an integer dtype, not {dtype}"
        raise OperandError(message(function, problem, hint=hint))


def convert_list(values: Payload) -> NDArray[np.generic]:
    """Convert a list of integers to an array; NumPy would make floats of an empty list."""
    array = np.asarray(values)
    return array if array.size else array.astype(int)


def static_int(function: str, what: str, value: Payload) -> int:
    """Return a number on which shapes depend as a Python int.

    Raises:
        OperandError: if it is not a static integer.
    """
    # JAX takes a symbolic size wherever it takes an int.
    if is_symbolic_dim(value):
        return cast(int, value)
    # To Python, True is an int; as a size it is a mistake.
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)
    problem = f"{what} must be a static integer, not {type_text(value)}"
    raise OperandError(message(function, problem))


def static_count(function: str, value: Payload, axis: AxisSelector) -> int:
    """Check a number for an axis, which must be static."""
    name, _ = selector(axis, function)
    try:
        count = operator.index(value)
    except TypeError:
        problem = f"the number for axis {name!r} must be an int, not {type_text(value)}"
        raise OperandError(message(function, problem)) from None
    if count < 0:
        problem = f"the number for axis {name!r} must not be negative, got {count}"
        raise ArgumentError(message(function, problem))
    return count


def names_of(function: str, array: object) -> tuple[str, ...]:
    """Return the names of an array.

    Raises:
        OperandError: if it is not a NamedArray.
    """
    if not isinstance(array, Core):
        raise checks.no_names(function, array)
    return array.names


def payload(function: str, operand: object) -> Any:
    """Return the array of an operand; check a plain operand and return it."""
    return operand.array if isinstance(operand, Core) else checks.plain(function, operand)


def own_names(operand: object) -> tuple[str, ...]:
    """Return the names of an operand; a plain one has the empty tuple."""
    return operand.names if isinstance(operand, Core) else ()


def only_axis(function: str, array: Payload) -> str:
    """Return the name of the only axis of an array.

    Raises:
        AxisNotFoundError: unless it has exactly one.
        OperandError: if it is not a NamedArray.
    """
    names = names_of(function, array)
    if len(names) != 1:
        hint = "say which one is meant: axis=..." if names else None
        problem = f"needs one axis, got {len(names)}"
        raise AxisNotFoundError(message(function, problem, f"array has: {facts(array)}", hint=hint))
    return names[0]


def position_of(function: str, x: object, axis: AxisSelector) -> int:
    """Find the dimension of one axis, counted from the right; the size of an `Axis` is checked.

    Raises:
        AxisNotFoundError: if it is missing.
        AxisSizeError: if it has another size.
        OperandError: if `x` is not a NamedArray, or `axis` not one axis.
    """
    name, size = selector(axis, function)
    checks.require(function, x, {name: size})
    names = names_of(function, x)
    return names.index(name) - len(names)


def one_of(function: str, argument: str, value: object, allowed: Sequence[object]) -> None:
    """Raise ArgumentError for a value of an argument that is not allowed."""
    if value not in allowed:
        problem = f"{argument}={value!r} is not one of {', '.join(map(repr, allowed))}"
        raise ArgumentError(message(function, problem))
