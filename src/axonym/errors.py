"""Every exception that Axonym raises, and the one builder of their messages.

A message has up to four parts, each on its own line: what was asked (after the function's name), what is there, what
was needed, and a hint at what would work. It lists axes with their sizes, but never values: they may be traced or
on other hosts, and would have to be fetched from the device.
"""

import difflib
from collections.abc import Iterable, Sequence

__all__ = [
    "ArgumentError",
    "AxisClashError",
    "AxisError",
    "AxisNotFoundError",
    "AxisSizeError",
    "BroadcastError",
    "LostAxisError",
    "OperandError",
    "PatternError",
    "ShapeKeyError",
    "ShardingError",
    "describe",
    "message",
    "suggestion",
    "with_line",
]


class AxisError(ValueError):
    """The names or sizes of axes do not fit the operation.

    Args:
        problem: the text of the error. A plan only knows names, and gives only the problem; the operation adds what
            is there.
        hint: what would work, stored separately for that operation.
    """

    def __init__(self, problem: str, hint: str | None = None) -> None:
        super().__init__(problem)
        self.hint = hint


class AxisNotFoundError(AxisError):
    """An axis is missing."""


class ShapeKeyError(AxisNotFoundError, KeyError):
    """A shape was asked for something else than the name of one of its axes."""

    __str__ = ValueError.__str__  # that of KeyError quotes the text


class AxisSizeError(AxisError):
    """One name has two different sizes, or an index is out of range."""


class AxisClashError(AxisError):
    """One name would refer to two axes of one array."""


class BroadcastError(AxisError):
    """Neither operand's axes contain the other's."""


class LostAxisError(AxisError):
    """An array has fewer dimensions than names: raw JAX removed a dimension, but not its name."""


class PatternError(AxisError):
    """An expression of einsum or rearrange is invalid, or does not fit its arrays."""


class ArgumentError(ValueError):
    """An argument has an invalid value."""


class OperandError(TypeError):
    """An operand or argument has the wrong type."""


class ShardingError(ValueError):
    """A mapping, a mesh and an array do not fit together."""


def message(function: str, problem: str, *lines: str, hint: str | None = None) -> str:
    """Build the text of an error: the function and the problem, one line per fact, and a hint."""
    body = [f"{function}: {problem}", *(f"  {line}" for line in lines)]
    if hint:
        body.append(f"  hint: {hint}")
    return "\n".join(body)


def with_line(text: str, line: str) -> str:
    """Add a line to the text of an error, before its hint."""
    lines = text.split("\n")
    at = len(lines) - lines[-1].startswith("  hint: ")
    return "\n".join([*lines[:at], f"  {line}", *lines[at:]])


def describe(names: Sequence[str], shape: Sequence[int] | None) -> str:
    """Format axes with their sizes, as in `batch=32, embed=64`; anonymous leading dimensions come first."""
    if shape is None:
        return ", ".join(names) or "no axes"
    anonymous = len(shape) - len(names)
    if anonymous < 0:
        return f"names {', '.join(names)} on an array of shape {tuple(shape)}"
    parts = [f"anonymous {tuple(shape[:anonymous])}"] if anonymous else []
    parts += [f"{name}={size}" for name, size in zip(names, shape[anonymous:], strict=True)]
    return ", ".join(parts) or "no axes"


def suggestion(name: object, known: Iterable[str]) -> str | None:
    """Return a hint with the closest name, or None if no name is close."""
    if not isinstance(name, str):
        return None
    by_lower = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return f"did you mean {by_lower[close[0]]!r}?" if close else None
