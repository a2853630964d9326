"""Common parts of all adapters: convert results to Haliax's `NamedArray`, and errors to Haliax's types."""

import functools
import re
from collections.abc import Callable
from typing import Any, ParamSpec, TypeAlias, TypeVar, cast

import jax
from jax.typing import ArrayLike

import axonym
from axonym.errors import AxisNotFoundError, AxisSizeError, OperandError

__all__ = ["Function", "KindError", "Operand", "SizeConflictError", "adapted", "adopt"]

P = ParamSpec("P")
_MISSING = re.compile(r"no axis named '([^']*)'")  # programs match Haliax's words: "not found"
R = TypeVar("R")
Function: TypeAlias = Callable[..., Any]
"""A function of a program, of Axonym or of JAX, with any arguments."""
Operand: TypeAlias = axonym.NamedArray | ArrayLike
"""What Haliax's operations take."""


class SizeConflictError(AxisSizeError, RuntimeError):
    """A name has two sizes, for which Haliax raises ValueError in some places and RuntimeError in others."""


class KindError(OperandError, ValueError):
    """An operand has the wrong type, for which Haliax raises TypeError in some places and ValueError in others."""


@functools.cache
def _named_array() -> type[axonym.NamedArray]:
    from .core import NamedArray  # imported here because it lists all operations as methods

    return NamedArray


def adopt(result: R) -> R:
    """Convert each Axonym array in a result to Haliax's `NamedArray`, a subclass."""
    if isinstance(result, axonym.NamedArray):
        return cast(R, _adopted(result))
    if isinstance(result, jax.Array | bool | int | float | str | None):
        return result
    leaves = jax.tree.leaves(result, is_leaf=axonym.is_named_array)
    if not any(type(leaf) is axonym.NamedArray for leaf in leaves):
        return result
    return cast(R, jax.tree.map(_adopted, result, is_leaf=axonym.is_named_array))


def _adopted(leaf: object) -> object:
    if type(leaf) is not axonym.NamedArray:
        return leaf
    made = object.__new__(_named_array())
    made.node = leaf.node
    return made


def adapted(fn: Callable[P, R]) -> Callable[P, R]:
    """Adapt a function of Axonym to Haliax: convert results and errors, with words that programs look for."""

    @functools.wraps(fn)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return adopt(fn(*args, **kwargs))
        except (SizeConflictError, KindError):
            raise
        except AxisSizeError as error:
            raise SizeConflictError(str(error), error.hint) from error.__cause__
        except OperandError as error:
            raise KindError(*error.args) from error.__cause__
        except AxisNotFoundError as error:
            text = str(error)
            if _MISSING.search(text) is None:
                raise
            raise type(error)(
                _MISSING.sub(r"axis '\1' not found", text, count=1), error.hint
            ) from error.__cause__

    return call
