"""Internal. Operators of Python on named arrays: an object of another type may answer instead.

The functions that make operators are names of `axonym.engine`, for subclasses of `NamedArray` in other libraries.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from functools import wraps
from typing import Any, TypeVar

import jax

from ..errors import OperandError
from . import checks
from .core import Core

F = TypeVar("F", bound=Callable[[Any, Any], Any])

# Their operators repeat or join, and say nothing about the operand that does not fit.
_BUILT_IN = {"builtins", "collections", "array"}

_ABSTRACT: type[object] = jax.ShapeDtypeStruct

_CONTAINERS = (Sequence, Set, Mapping)


def left_operator(fn: F, reflected: str) -> F:
    """Convert a function of two operands to the method of its operator.

    If the function refuses the right operand, but the type of this operand defines the reflected operator, Python calls
    that operator: `x ** ω` is for ω to answer. Other objects get the error of the function.

    Args:
        fn: the function.
        reflected: the name of the reflected operator, such as `__radd__`.

    Returns:
        A method for the body of a class.

    Examples:
        >>> from axonym.engine import left_operator, right_operator
        >>> class LogArray(axn.NamedArray):
        ...     __add__ = left_operator(axn.logaddexp, "__radd__")
        ...     __radd__ = right_operator(axn.logaddexp)
    """

    @wraps(fn)
    def method(x: Core, y: object, /) -> Any:
        # `try` costs nothing unless an error is raised, so that operators of arrays pay nothing for other objects.
        try:
            return fn(x, y)
        except OperandError:
            if _defines(y, reflected):
                return NotImplemented
            raise

    return method  # type: ignore[return-value]  # positional only


def right_operator(fn: F) -> F:
    """Convert a function of two operands to the method of its reflected operator, which has them swapped.

    Python calls it after the left operand did not answer, so the error of the function is the last word.

    Args:
        fn: the function.

    Returns:
        A method for the body of a class.

    Examples:
        >>> from axonym.engine import right_operator
        >>> class Halved(axn.NamedArray):
        ...     __rmul__ = right_operator(lambda x, y: axn.multiply(x / 2, y))
        >>> (3 * Halved(jnp.ones(2), ("x",))).tolist()
        [1.5, 1.5]
    """

    @wraps(fn)
    def method(y: Core, x: object, /) -> Any:
        return fn(x, y)

    return method  # type: ignore[return-value]  # positional only


def equality_operator(fn: F, answer: bool) -> F:
    """Convert `equal` to the method of `==`, with the answer True for equal operands, or `not_equal` to that of `!=`.

    Abstract arrays have no elements: two of them are equal if they are the same structure, in names, shape, dtype and
    sharding. Objects of other types answer for themselves, except for containers, whose answer would be False.

    Args:
        fn: the function of elements.
        answer: what the operator returns for equal structures.

    Returns:
        A method for the body of a class.

    Examples:
        >>> from axonym.engine import equality_operator
        >>> same = equality_operator(axn.equal, True)
        >>> same(axn.arange(axn.Axis("x", 3)), 1).tolist()
        [False, True, False]
    """

    @wraps(fn)
    def method(x: Core, y: object, /) -> Any:
        # Not left to an error: within a trace, JAX computes with abstract arrays.
        if x.node[0][0].__class__ is _ABSTRACT and isinstance(y, Core) and _is_abstract(y):
            return (x.node == y.node) is answer
        try:
            return fn(x, y)
        except OperandError:
            if _defines(y, "__eq__") and not isinstance(y, _CONTAINERS):
                return NotImplemented
            # As static fields of modules, structures are compared with whatever else is there.
            if _is_abstract(x) and _is_foreign(y):
                return not answer
            raise

    return method  # type: ignore[return-value]  # positional only


def _is_abstract(x: Core) -> bool:
    return x.node[0][0].__class__ is _ABSTRACT


def _is_foreign(y: object) -> bool:
    return not isinstance(y, Core) and not checks.is_plain(y)


def _defines(y: object, operator: str) -> bool:
    """Return whether an object that is not an operand here has a type that defines the operator itself."""
    for cls in type(y).__mro__:
        if operator in vars(cls):
            is_own = cls.__module__ not in _BUILT_IN and vars(cls)[operator] is not None
            return is_own and _is_foreign(y)
    return False
