"""Internal. Settings of layers: checks, and conversion to Python numbers.

Settings are static, so each call of a compiled function hashes and compares them. An array cannot be hashed, and a
NumPy number would decide the dtype of results.
"""

import inspect
import operator
from collections.abc import Callable
from numbers import Integral
from typing import Any

import jax
import numpy as np

from ..array import NamedArray
from ..axis import Axis
from ..base.kinds import type_text
from ..engine.core import Core
from ..errors import ArgumentError, OperandError, message


def check_int(function: str, what: str, value: Any, least: int | None = None) -> int:
    """Return a setting as a Python int.

    Raises:
        ArgumentError: if it is not an integer, or smaller than `least`.
    """
    kind = "an int" if least is None else f"an int of at least {least}"
    # It accepts integers of NumPy, and no floats, which `int` would round.
    try:
        number = operator.index(value)
    except TypeError:
        # The repr of an array would wait for its values, which may be on a device.
        given = type(value).__name__ if hasattr(value, "dtype") else repr(value)
        raise ArgumentError(message(function, f"{what} must be {kind}, not {given}")) from None
    if least is not None and number < least:
        raise ArgumentError(message(function, f"{what} must be {kind}, not {number}"))
    return number


def check_fraction(function: str, what: str, value: float, kind: str = "a probability") -> float:
    """Return a setting from 0 to 1 as a Python float; a NumPy number would change the dtype of other operands.

    Raises:
        ArgumentError: if it is smaller or larger.
        OperandError: if it is not a concrete number.
    """
    try:
        if 0 <= value <= 1:
            return float(value)
    except (TypeError, ValueError):
        problem = f"{what} must be a static Python number from 0 to 1, not {type_text(value)}"
        raise OperandError(message(function, problem)) from None
    raise ArgumentError(message(function, f"{what} must be {kind} from 0 to 1, not {value}"))


def as_python(value: object) -> Any:
    """Return a NumPy number as a Python one, which changes no dtype; others, perhaps traced, stay as they are."""
    return value.item() if isinstance(value, np.generic) else value


def as_axis(name: str, given: Any) -> Axis:
    """Return a hidden axis, which users may give by its size alone."""
    if isinstance(given, Integral):
        return Axis(name, int(given))
    axis: Axis = given
    return axis


def check_activation(function: str, activation: object) -> None:
    """Check that an activation can be called.

    Raises:
        OperandError: if it cannot.
    """
    if not callable(activation):
        problem = f"activation must be a function, not {activation!r}"
        raise OperandError(
            message(function, problem, hint="pass the function itself, such as axn.nn.relu")
        )


def apply_activation(
    layer: str, activation: Callable[[NamedArray], NamedArray], x: NamedArray
) -> NamedArray:
    """Apply an activation.

    Raises:
        OperandError: if it is a function of JAX, which takes arrays without names.
    """
    try:
        return activation(x)
    except TypeError as error:
        # A TypeError of JAX about a NamedArray names its class. Any other comes from inside the activation.
        if isinstance(error, OperandError) or NamedArray.__name__ not in str(error):
            raise
        name = getattr(activation, "__name__", type(activation).__name__)
        hint = "use the one in axonym.nn, or axn.nmap(activation)"
        problem = f"the activation {name} does not take a NamedArray"
        raise OperandError(message(layer, problem, hint=hint)) from error


def draw_parameter(
    layer: str,
    initializer: Callable[[jax.Array, tuple[Axis, ...]], NamedArray],
    key: jax.Array,
    axes: tuple[Axis, ...],
) -> NamedArray:
    """Make a parameter by an initializer.

    Raises:
        OperandError: if the initializer does not take a key and axes, or does not return a NamedArray. Errors inside
            of it stay as they are.
    """
    if not callable(initializer):
        raise _no_initializer(layer, f"an initializer is a function, not {type_text(initializer)}")

    # The signature is checked first: a TypeError of the call may come from inside the initializer.
    try:
        inspect.signature(initializer).bind(key, axes)
    except TypeError as error:
        raise _no_initializer(
            layer, f"the initializer does not take a key and axes: {error}"
        ) from error
    except ValueError:  # written in C
        pass

    try:
        parameter = initializer(key, axes)
    except TypeError as error:
        # Initializers of JAX have the same number of arguments, so only the call fails. Errors of others stay.
        home = getattr(initializer, "__module__", None) or ""
        if home.partition(".")[0] != "jax":
            raise
        problem = f"an initializer of JAX takes a key and a shape, not axes: {error}"
        raise _no_initializer(layer, problem) from error

    if not isinstance(parameter, Core):
        raise _no_initializer(
            layer, f"the initializer returned {type_text(parameter)}, not a NamedArray"
        )
    return parameter


def _no_initializer(layer: str, problem: str) -> OperandError:
    hint = "wrap an initializer of JAX: lambda key, axes: axn.named(f(key, [axis.size for axis in axes]), axes)"
    return OperandError(
        message(layer, problem, "such as: axn.nn.initializer.normal(0.02)", hint=hint)
    )


# A user context is part of the key of every trace cache of JAX. With a plain global, a traced function would
# keep the old value.
KEEPS_INTERMEDIATES: Any = jax.make_user_context(default_value=False)


def keeps_intermediates() -> bool:
    """Return whether `keep_intermediates` is current."""
    return bool(KEEPS_INTERMEDIATES.value)


def read_tangent(tangent: Any) -> Any:
    """Return a tangent of a custom JVP with symbolic zeros, None for a zero."""
    return None if isinstance(tangent, jax.custom_derivatives.SymbolicZero) else tangent
