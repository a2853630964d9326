"""Every exception that Axonym raises, and the one builder of their messages.

A message has up to four parts, each on its own line: what was asked (led by the function's name), what is there,
what was needed, and a hint that can be followed. It names axes with their sizes and never prints values: a value
may be a tracer, may live on other hosts, and would have to be fetched from the device.
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
    "ShardingError",
    "describe",
    "message",
    "suggestion",
]


class AxisError(ValueError):
    """The names or the sizes of axes do not fit what was asked.

    Args:
        problem: the text of the error. A plan knows names only and tells just the problem; the operation that asked
            for the plan adds what is there.
        hint: what would work, kept apart for that operation.
    """

    def __init__(self, problem: str, hint: str | None = None) -> None:
        super().__init__(problem)
        self.hint = hint


class AxisNotFoundError(AxisError):
    """An axis was asked for that is not there."""


class AxisSizeError(AxisError):
    """One name stands for two different sizes, or an index lies outside of its axis."""


class AxisClashError(AxisError):
    """One name would stand for two axes of one array."""


class BroadcastError(AxisError):
    """Neither operand's axes contain the other's."""


class LostAxisError(AxisError):
    """An array has fewer dimensions than names: raw JAX took a dimension away whose name stayed."""


class PatternError(AxisError):
    """An expression of einsum or rearrange cannot be read, or has another form than its arrays."""


class ArgumentError(ValueError):
    """An argument has a value that makes no sense."""


class OperandError(TypeError):
    """An operand is of a kind that the operation cannot name."""


class ShardingError(ValueError):
    """A mapping, a mesh and an array do not fit together."""


def message(function: str, problem: str, *lines: str, hint: str | None = None) -> str:
    """Build the text of an error: the function and the problem, one line per fact, and a hint."""
    body = [f"{function}: {problem}", *(f"  {line}" for line in lines)]
    if hint:
        body.append(f"  hint: {hint}")
    return "\n".join(body)


def describe(names: Sequence[str], shape: Sequence[int] | None) -> str:
    """Spell axes with their sizes, such as `batch=32, embed=64`; anonymous leading dimensions come first."""
    if shape is None:
        return ", ".join(names) or "no axes"
    anonymous = len(shape) - len(names)
    if anonymous < 0:
        return f"names {', '.join(names)} on an array of shape {tuple(shape)}"
    parts = [f"anonymous {tuple(shape[:anonymous])}"] if anonymous else []
    parts += [f"{name}={size}" for name, size in zip(names, shape[anonymous:], strict=True)]
    return ", ".join(parts) or "no axes"


def suggestion(name: object, known: Iterable[str]) -> str | None:
    """Give the hint for a near miss, or None where nothing comes near."""
    if not isinstance(name, str):
        return None
    by_lower = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return f"did you mean {by_lower[close[0]]!r}?" if close else None
