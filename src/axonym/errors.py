"""All exceptions that Axonym raises, and the function that builds their messages.

A message has up to four parts, each on its own line: the request (after the function's name), the facts, the
requirement, and a hint. It lists axes with their sizes, but never values: these may be traced or on other hosts, and
would have to be fetched from the device.
"""

import difflib
from collections.abc import Iterable, Sequence
from typing import TypeVar

from .base.callers import is_called_by_optax, layer_at_work

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

    Examples:
        >>> text = axn.errors.message("load", "no such file", hint="save it first")
        >>> text.function, text.problem, text.hint
        ('load', 'no such file', 'save it first')
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
        text: a message, with all parts; or only the problem, from a plan of names. A plan knows neither sizes nor the
            called function: the operation adds both with `explained`.
        hint: what would work, for an error of a plan.
        facts: lines below the problem, for an error of a plan.

    Examples:
        >>> try:
        ...     axn.zeros({"batch": 2}).sum("bacth")
        ... except axn.errors.AxonymError as error:
        ...     error.function, error.problem, error.hint
        ('sum', "no axis named 'bacth'", "did you mean 'batch'?")
    """

    function: str | None
    problem: str
    facts: tuple[str, ...]
    hint: str | None

    def __init__(self, text: str, hint: str | None = None, facts: tuple[str, ...] = ()) -> None:
        if isinstance(text, Message):
            super().__init__(text)
            self.function, self.problem = text.function, text.problem
            self.facts, self.hint = text.facts, text.hint
        else:
            super().__init__("\n  ".join((text, *facts)))
            self.function, self.problem, self.facts, self.hint = None, text, facts, hint


class AxisError(AxonymError, ValueError):
    """The names or sizes of axes do not fit the operation; the classes below say how.

    Examples:
        >>> try:
        ...     axn.zeros({"pos": 2}) + axn.zeros({"head": 3})
        ... except axn.errors.AxisError as error:
        ...     type(error).__name__
        'BroadcastError'
    """


class AxisNotFoundError(AxisError):
    """An axis is missing.

    Examples:
        >>> axn.zeros({"batch": 2}).sum("bacth")
        Traceback (most recent call last):
        axonym.errors.AxisNotFoundError: sum: no axis named 'bacth'
          array has: batch=2
          hint: did you mean 'batch'?
    """


class ShapeKeyError(AxisNotFoundError, KeyError):
    """A shape was indexed by something other than the name of one of its axes.

    Examples:
        >>> axn.zeros({"batch": 2}).shape["pos"]
        Traceback (most recent call last):
        axonym.errors.ShapeKeyError: shape: no axis named 'pos'
          array has: batch=2
    """

    __str__ = ValueError.__str__  # that of KeyError quotes the text


class AxisSizeError(AxisError):
    """One name has two different sizes, or an index is out of range.

    Examples:
        >>> axn.zeros({"pos": 2})["pos", 5]
        Traceback (most recent call last):
        axonym.errors.AxisSizeError: index: index 5 is out of range for pos=2
          array has: pos=2
    """


class AxisClashError(AxisError):
    """One name would refer to two axes of one array.

    Examples:
        >>> axn.zeros({"query": 2, "key": 2}).rename({"key": "query"})
        Traceback (most recent call last):
        axonym.errors.AxisClashError: rename: axis 'query' would appear twice
          array has: query=2, key=2
    """


class BroadcastError(AxisError):
    """Neither operand's axes contain the other's.

    Examples:
        >>> axn.zeros({"pos": 2}) + axn.zeros({"head": 3})
        Traceback (most recent call last):
        axonym.errors.BroadcastError: add: no operand has the axes of all others
          operand 1 has: pos=2
          operand 2 has: head=3
          hint: if the outer product is meant, give an operand the others' axes first: ...
    """


class LostAxisError(AxisError):
    """An array has fewer dimensions than names: raw JAX removed a dimension, but not its name.

    Examples:
        >>> jax.vmap(lambda x: x.sum("embed"))(axn.zeros({"batch": 2, "embed": 3}))
        Traceback (most recent call last):
        axonym.errors.LostAxisError: sum: an array of shape (3,) cannot have the 2 axes batch, embed
          raw jax.vmap, lax.scan and indexing remove the leading dimension, but not its name
          hint: use axn.vmap(f, "batch") or axn.scan(f, "batch"), or make the axis anonymous first: ...
    """


class PatternError(AxisError):
    """An expression of einsum or rearrange is invalid, or does not fit its arrays.

    Examples:
        >>> axn.rearrange(axn.zeros({"batch": 2}), "{batch -> batch")
        Traceback (most recent call last):
        axonym.errors.PatternError: ...
    """


class ArgumentError(AxonymError, ValueError):
    """An argument has an invalid value.

    Examples:
        >>> axn.nn.Dropout(2.0)
        Traceback (most recent call last):
        axonym.errors.ArgumentError: Dropout: pdrop must be a probability from 0 to 1, not 2.0
    """


class OperandError(AxonymError, TypeError):
    """An operand or argument has the wrong type.

    Examples:
        >>> axn.softmax(3, "pos")
        Traceback (most recent call last):
        axonym.errors.OperandError: softmax: expected a NamedArray, got int
          hint: name its dimensions first: axn.named(array, ("batch", "embed"))
    """


class ShardingError(AxonymError, ValueError):
    """A mapping, a mesh and an array do not fit together.

    Examples:
        >>> axn.shard(axn.zeros({"batch": 2}), {"batch": "data"})
        Traceback (most recent call last):
        axonym.errors.ShardingError: shard: there is no mesh
          mapping: {'batch': 'data'}
          hint: run inside of: with axn.set_mesh(jax.make_mesh((...,), ("data",)))
    """


def message(function: str, problem: str, *facts: str, hint: str | None = None) -> Message:
    """Build the text of an error: the function and the problem, one line per fact, and a hint.

    The last fact is the layer of the model in which the error is raised, if there is one.

    Args:
        function: what the user called.
        problem: what is wrong.
        facts: what is there, and what was needed; one line each.
        hint: what would work, without the word "hint".

    Examples:
        >>> print(axn.errors.message("load", "no such file", "folder has: a, b", hint="save it first"))
        load: no such file
          folder has: a, b
          hint: save it first
    """
    # A message that `explained` builds again has its layer, which need not be the one at work now.
    layer = None if any(fact.startswith(_LAYER) for fact in facts) else layer_at_work()
    if layer is not None:
        facts = (*facts, f"{_LAYER}{layer}")
    if is_called_by_optax():
        hint = _OF_OPTAX
    lines = [f"{function}: {problem}", *facts, *([f"hint: {hint}"] if hint else ())]
    built = Message("\n  ".join(lines))
    built.function, built.problem, built.facts, built.hint = function, problem, facts, hint
    return built


def explained(error: E, function: str, *facts: str) -> E:
    """Return an error with further facts; an error of a plan also gets the name of the function.

    Args:
        error: the error to explain; it stays as it is.
        function: what the user called.
        facts: lines to add below those of the error.

    Returns:
        An error of the same class.

    Examples:
        >>> error = axn.errors.PatternError("there is no ->")
        >>> print(axn.errors.explained(error, "rearrange", "array has: batch=2"))
        rearrange: there is no ->
          array has: batch=2
    """
    text = message(error.function or function, error.problem, *error.facts, *facts, hint=error.hint)
    return type(error)(text)


def describe(names: Sequence[str], shape: Sequence[int] | None) -> str:
    """Format axes with their sizes, as in `batch=32, embed=64`; anonymous leading dimensions come first.

    Args:
        names: the names of the trailing dimensions.
        shape: the sizes of all dimensions; without it, only the names are written.

    Examples:
        >>> axn.errors.describe(("batch", "embed"), (7, 32, 64))
        'anonymous (7,), batch=32, embed=64'
    """
    if shape is None:
        return ", ".join(names) or "no axes"
    anonymous = len(shape) - len(names)
    # An array that lost a dimension: nobody knows which name has which size.
    if anonymous < 0:
        return f"names {', '.join(names)} on an array of shape {tuple(shape)}"
    parts = [f"anonymous {tuple(shape[:anonymous])}"] if anonymous else []
    parts += [f"{name}={size}" for name, size in zip(names, shape[anonymous:], strict=True)]
    return ", ".join(parts) or "no axes"


def suggestion(name: object, known: Iterable[str]) -> str | None:
    """Return a hint with the closest name, or None if no name is close.

    A derived name, such as `pos.key` from `pos`, does not count as a misspelling. Neither do words that differ only in
    their first letter, such as batch and patch.

    Args:
        name: the requested name; anything but a string has no close name.
        known: the names to choose from.

    Examples:
        >>> axn.errors.suggestion("bacth", ["batch", "embed"])
        "did you mean 'batch'?"
    """
    if not isinstance(name, str):
        return None
    # To difflib, "Batch" and "BATCH" would have one letter in common.
    by_lower = {
        candidate.lower(): candidate for candidate in known if not _is_another(name, candidate)
    }
    close = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return f"did you mean {by_lower[close[0]]!r}?" if close else None


def _is_another(name: str, candidate: str) -> bool:
    derived = name.startswith(f"{candidate}.") or candidate.startswith(f"{name}.")
    return derived or (name[1:] == candidate[1:] and name[:1].lower() != candidate[:1].lower())
