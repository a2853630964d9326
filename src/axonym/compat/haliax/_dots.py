"""Each `...` on the right of an expression, written out: Haliax allows several there, Axonym one."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from types import EllipsisType
from typing import Any, TypeAlias

from axonym import Axis
from axonym.errors import PatternError

from ._src.parsing import AxisCapture, parse_einsum, parse_rearrangement, raise_parse_error
from .axis import rearrange_for_partial_order

Terms: TypeAlias = Sequence[AxisCapture | EllipsisType]
Aliases: TypeAlias = dict[str, Any]

# An expression that is wrong comes back unchanged: the error of Axonym quotes it as it was written.


def in_rearrange(
    text: str, names: Sequence[str], aliases: Mapping[str, Any]
) -> tuple[str, Aliases]:
    """Write out the dots on the right, which stand for all axes that the right side does not name."""
    known = dict(aliases)
    try:
        before, after = parse_rearrangement(text)
    except PatternError:
        return text, known
    if ... not in after.captures or list(before.captures).count(...) > 1:
        return text, known
    left, _, _ = text.partition("->")
    fresh = (word for word in map("_{}".format, itertools.count()) if word not in text)
    words: list[str] = []
    if before.is_ordered:
        covered = list(itertools.islice(fresh, max(len(names) - len(before.captures) + 1, 0)))
        left = left.replace("...", " ".join(covered))
        for term in before.captures:
            words += covered if isinstance(term, EllipsisType) else term.axes
    else:
        groups = [term for term in _named(before.captures) if text[_start(term)] == "("]
        pieces = {word for term in groups for word in term.axes}
        whole = {word: value for word, value in known.items() if word not in pieces}
        split = {_meant(term.binding or "", whole): term.axes for term in groups}
        said = {*_flat(before.captures), *_flat(after.captures)} - pieces
        for name in names:
            words += split.get(name) or (_word_for(name, said, known, fresh),)
    written = _written_out(text, after.captures, words)
    return (text, dict(aliases)) if written is None else (f"{left}-> {written}", known)


def in_einsum(
    text: str, names: Sequence[Sequence[str]], aliases: Mapping[str, Any]
) -> tuple[str, Aliases]:
    """Write out several dots on the right of an expression whose operands are in braces or left out.

    They stand for all axes except those that only the left side names, which are summed over.
    """
    known = dict(aliases)
    try:
        operands, result = parse_einsum(text)
    except PatternError:
        return text, known
    positional = any(side.is_ordered and side.captures for side in operands)
    if list(result.captures).count(...) < 2 or positional:
        return text, known
    said = set(_flat(result.captures))
    kept = {_meant(word, known) for word in said}
    summed = {_meant(word, known) for side in operands for word in _flat(side.captures)} - kept
    fresh = (word for word in map("_{}".format, itertools.count()) if word not in text)
    union = dict.fromkeys(itertools.chain.from_iterable(names))
    words = [_word_for(name, said, known, fresh) for name in union if name not in summed]
    written = _written_out(text, result.captures, words)
    if written is None:
        return text, dict(aliases)
    return f"{text.partition('->')[0]}-> {written}", known


def _written_out(text: str, terms: Terms, words: Sequence[str]) -> str | None:
    """Write the terms with all words in their order; None if they are wrong, so that Axonym raises its error."""
    said = list(_flat(terms))
    wrong = [word for word in said if said.count(word) > 1 or word not in words]
    if wrong and list(terms).count(...) > 1:
        problem = "appears twice" if wrong[0] in words else "is not on the left"
        raise_parse_error(f"{wrong[0]!r} {problem}", text, None)
    if wrong:
        return None
    order: list[str | EllipsisType] = []
    for term in terms:
        order += (term,) if isinstance(term, EllipsisType) else term.axes
    rest = list(rearrange_for_partial_order(order, tuple(words)))
    written: list[str] = []
    for term in terms:
        if isinstance(term, EllipsisType):
            filling = list(itertools.takewhile(lambda word: word not in said, rest))
            written += filling
            del rest[: len(filling)]
        else:
            written.append(text[slice(*(term.char_range or ()))])
            del rest[: len(term.axes)]
    return " ".join(written)


def _named(terms: Terms) -> Iterator[AxisCapture]:
    return (term for term in terms if not isinstance(term, EllipsisType))


def _flat(terms: Terms) -> Iterator[str]:
    return itertools.chain.from_iterable(term.axes for term in _named(terms))


def _start(term: AxisCapture) -> int:
    return term.char_range[0] if term.char_range else 0


def _meant(word: str, aliases: Mapping[str, Any]) -> str:
    """Return the axis name that a keyword gives to a word; without one, or if it gives a size, return the word."""
    value = aliases.get(word)
    if isinstance(value, Axis):
        return value.name
    return value if isinstance(value, str) else word


def _word_for(name: str, words: set[str], aliases: Aliases, fresh: Iterator[str]) -> str:
    """Return the word that stands for an axis, or give it a new one."""
    for word in words:
        if _meant(word, aliases) == name:
            return word
    word = next(fresh)
    aliases[word] = name
    return word
