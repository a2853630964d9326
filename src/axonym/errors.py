"""Every exception that Axonym raises, and the one builder of their messages.

A message has up to four parts, each on its own line: what was asked (after the function's name), what is there, what
was needed, and a hint at what would work. It lists axes with their sizes, but never values: they may be traced or
on other hosts, and would have to be fetched from the device.
"""

import difflib
from collections.abc import Iterable, Sequence
from typing import TypeVar

from .callers import is_called_by_optax, layer_at_work

__all__ = [
    "ArgumentError",
    "AxisClashError",
    "AxisError",
    "AxisNotFoundError",
    "AxisSizeError",
    "AxonymError",
    "BroadcastError",
    "LostAxisError",
    "Message",
    "OperandError",
    "PatternError",
    "ShapeKeyError",
    "ShardingError",
    "describe",
    "explained",
    "message",
    "suggestion",
]

_LAYER = "in the layer: "
_OF_OPTAX = (
    "Optax calls a tree of labels that is a module: give it a function, "
    "lambda model: axn.parameters.labels(model, label)"
)
E = TypeVar("E", bound="AxonymError")


class Message(str):
    """The text of an error, which keeps the parts that it was built from.

    Attributes:
        function: what was called.
        problem: what is wrong.
        facts: what is there, and what was needed.
        hint: what would work.
    """

    function: str
    problem: str
    facts: tuple[str, ...]
    hint: str | None


class AxonymError(Exception):
    """Any error that Axonym raises; it keeps the parts of its text.

    Attributes:
        function: what was called; None in an error of a plan.
        problem: what is wrong.
        facts: what is there, and what was needed.
        hint: what would work.

    Args:
        text: a message, with all parts; or only the problem, from a plan of names. A plan knows no sizes and not
            what was called: the operation adds both with `explained`.
        hint: what would work, for an error of a plan.
        facts: lines below the problem, for an error of a plan.
    """

    function: str | None
    problem: str
    facts: tuple[str, ...]
    hint: str | None

    def __init__(self, text: str, hint: str | None = None, facts: tuple[str, ...] = ()) -> None:
        if isinstance(text, Message):
            super().__init__(text)
            self.function, self.problem, self.facts, self.hint = (
                text.function,
                text.problem,
                text.facts,
                text.hint,
            )
        else:
            super().__init__("\n  ".join((text, *facts)))
            self.function, self.problem, self.facts, self.hint = None, text, facts, hint


class AxisError(AxonymError, ValueError):
    """The names or sizes of axes do not fit the operation."""


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


class ArgumentError(AxonymError, ValueError):
    """An argument has an invalid value."""


class OperandError(AxonymError, TypeError):
    """An operand or argument has the wrong type."""


class ShardingError(AxonymError, ValueError):
    """A mapping, a mesh and an array do not fit together."""


def message(function: str, problem: str, *facts: str, hint: str | None = None) -> Message:
    """Build the text of an error: the function and the problem, one line per fact, and a hint.

    The last fact is the layer of the model in which the error is raised, if there is one.
    """
    layer = None if any(fact.startswith(_LAYER) for fact in facts) else layer_at_work()
    if layer is not None:
        facts = (*facts, f"{_LAYER}{layer}")
    if is_called_by_optax():
        hint = _OF_OPTAX
    lines = [f"{function}: {problem}", *facts]
    if hint:
        lines.append(f"hint: {hint}")
    built = Message("\n  ".join(lines))
    built.function, built.problem, built.facts, built.hint = function, problem, facts, hint
    return built


def explained(error: E, function: str, *facts: str) -> E:
    """Return an error with further facts; the function is for an error of a plan, which has none yet."""
    text = message(error.function or function, error.problem, *error.facts, *facts, hint=error.hint)
    return type(error)(text)


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
    """Return a hint with the closest name, or None if no name is close.

    A name that derives from another, such as `pos.key` from `pos`, is no misspelling of it; nor are two words that
    differ in their first letter alone, such as batch and patch.
    """
    if not isinstance(name, str):
        return None
    by_lower = {
        candidate.lower(): candidate for candidate in known if not _is_another(name, candidate)
    }
    close = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return f"did you mean {by_lower[close[0]]!r}?" if close else None


def _is_another(name: str, candidate: str) -> bool:
    derived = name.startswith(f"{candidate}.") or candidate.startswith(f"{name}.")
    return derived or (name[1:] == candidate[1:] and name[:1].lower() != candidate[:1].lower())
