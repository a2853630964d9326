"""Small helpers without other dependencies."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from axonym import is_named_array

__all__ = [
    "UNSPECIFIED",
    "StringHolderEnum",
    "T",
    "Unspecified",
    "ensure_tuple",
    "is_jax_or_hax_array_like",
    "is_named_array",
    "maybe_untuple",
    "safe_update_wrapper",
    "safe_wraps",
]

T = TypeVar("T")


class Unspecified:
    """The type of `UNSPECIFIED`."""

    def __repr__(self) -> str:
        return "UNSPECIFIED"


UNSPECIFIED = Unspecified()
"""What an argument is that was not given, where None means something."""


def ensure_tuple(x: Sequence[T] | T) -> tuple[T, ...]:
    """Convert a sequence to a tuple; a string, or a value that is not a sequence, becomes a tuple of one."""
    if isinstance(x, Sequence) and not isinstance(x, str):
        return tuple(x)
    alone: Any = x
    return (alone,)


def maybe_untuple(x: Sequence[T] | T) -> T | Sequence[T]:
    """Return the entry of a tuple of one, and everything else unchanged."""
    return x[0] if isinstance(x, tuple) and len(x) == 1 else x


def is_jax_or_hax_array_like(x: Any) -> bool:
    """Return whether `x` is a named array, or has a shape and a dtype."""
    return is_named_array(x) or (hasattr(x, "shape") and hasattr(x, "dtype"))


def safe_update_wrapper(wrapper: Any, wrapped: Any) -> Any:
    """Copy the name and docstring of `wrapped` to a wrapper, if it has any: callable modules do not."""
    given = [name for name in functools.WRAPPER_ASSIGNMENTS if hasattr(wrapped, name)]
    return functools.update_wrapper(wrapper, wrapped, given, ())


def safe_wraps(fn: Any) -> Callable[[Any], Any]:
    """Decorate a wrapper like `functools.wraps`, which may also wrap a callable module."""
    return lambda wrapper: safe_update_wrapper(wrapper, fn)


class StringHolderEnum(type):
    """The metaclass of classes of string constants: `Class.NAME` is the string, and iteration gives all."""

    __members__: dict[str, str]

    def __new__(
        cls, name: str, bases: tuple[type, ...], members: dict[str, Any]
    ) -> "StringHolderEnum":
        """Collect the constants."""
        made = super().__new__(cls, name, bases, members)
        made.__members__ = {
            key: text for key, text in members.items() if isinstance(text, str) and key[:2] != "__"
        }
        return made

    def __iter__(cls) -> Iterator[str]:
        return iter(cls.__members__.values())

    def __len__(cls) -> int:
        return len(cls.__members__)

    def __contains__(cls, text: object) -> bool:
        return text in cls.__members__.values()
