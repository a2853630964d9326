"""Check the settings of layers, which are static, and convert numbers to Python ones."""

import inspect
import operator
from numbers import Integral
from typing import Any, cast

import jax
import numpy as np

from ..array import NamedArray
from ..axis import Axis
from ..core import Core
from ..errors import ArgumentError, OperandError, message

__all__ = ["activated", "as_axis", "as_python", "check_activation", "drawn", "fraction", "integer"]


def integer(function: str, what: str, value: Any, least: int | None = None) -> int:
    """Return a setting as a Python int.

    Raises:
        ArgumentError: if it is not an integer, or smaller than `least`.
    """
    kind = "an int" if least is None else f"an int of at least {least}"
    try:
        number = operator.index(value)
    except TypeError:
        # Not the values of an array, which may be on a device.
        given = type(value).__name__ if hasattr(value, "dtype") else repr(value)
        raise ArgumentError(message(function, f"{what} must be {kind}, not {given}")) from None
    if least is not None and number < least:
        raise ArgumentError(message(function, f"{what} must be {kind}, not {number}"))
    return number


def fraction(function: str, what: str, value: Any, kind: str = "a probability") -> float:
    """Return a setting from 0 to 1 as a Python float; a NumPy number would change the dtype of other operands.

    Raises:
        ArgumentError: if it is smaller or larger.
        OperandError: if it is not a concrete number.
    """
    try:
        if 0 <= value <= 1:
            return float(value)
    except (TypeError, ValueError):
        problem = f"{what} must be a static Python number from 0 to 1, not {type(value).__name__}"
        raise OperandError(message(function, problem)) from None
    raise ArgumentError(message(function, f"{what} must be {kind} from 0 to 1, not {value}"))


def as_python(value: Any) -> Any:
    """Return a NumPy number as a Python one, which changes no dtype; others, perhaps traced, stay as they are."""
    return value.item() if isinstance(value, np.generic) else value


def as_axis(name: str, given: Any) -> Axis:
    """Return a hidden axis, which may be given by its size."""
    axis: Axis = Axis(name, int(given)) if isinstance(given, Integral) else given
    return axis


def check_activation(function: str, activation: Any) -> None:
    """Check that an activation can be called.

    Raises:
        OperandError: if it cannot.
    """
    if not callable(activation):
        problem = f"activation must be a function, not {activation!r}"
        raise OperandError(message(function, problem, hint="pass the function itself, such as axn.nn.relu"))


def activated(layer: str, activation: Any, x: NamedArray) -> NamedArray:
    """Apply an activation.

    Raises:
        OperandError: if it is a function of JAX, which takes arrays without names.
    """
    try:
        result: NamedArray = activation(x)
    except TypeError as error:
        if isinstance(error, OperandError) or NamedArray.__name__ not in str(error):
            raise
        name = getattr(activation, "__name__", type(activation).__name__)
        hint = "use the one in axonym.nn, or axn.nmap(activation)"
        raise OperandError(message(layer, f"the activation {name} does not take a NamedArray", hint=hint)) from error
    return result


def drawn(layer: str, initializer: Any, key: jax.Array, axes: tuple[Axis, ...]) -> NamedArray:
    """Make a parameter by an initializer.

    Raises:
        OperandError: if the initializer does not take a key and axes, or does not return a NamedArray. Errors inside
            of it stay as they are.
    """
    if not callable(initializer):
        raise _no_initializer(layer, f"an initializer is a function, not {type(initializer).__name__}")
    try:
        inspect.signature(initializer).bind(key, axes)
    except TypeError as error:
        raise _no_initializer(layer, f"the initializer does not take a key and axes: {error}") from error
    except ValueError:  # written in C
        pass
    try:
        made: Any = initializer(key, axes)
    except TypeError as error:
        home = getattr(initializer, "__module__", None) or ""
        if home.partition(".")[0] != "jax":
            raise
        raise _no_initializer(layer, f"an initializer of JAX takes a key and a shape, not axes: {error}") from error
    if not isinstance(made, Core):
        raise _no_initializer(layer, f"the initializer returned {type(made).__name__}, not a NamedArray")
    return cast(NamedArray, made)


def _no_initializer(layer: str, problem: str) -> OperandError:
    hint = "wrap an initializer of JAX: lambda key, axes: axn.named(f(key, [axis.size for axis in axes]), axes)"
    return OperandError(message(layer, problem, "such as: axn.nn.initializer.normal(0.02)", hint=hint))
