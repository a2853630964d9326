"""Parse the expressions of einsum and rearrange, and find the axes that their terms stand for.

    expression = [operand {"," operand}] "->" result
    operand    = {term} | "{" {term} "}"
    result     = {term}
    term       = NAME | "..." | "(" [NAME ":"] {NAME} ")"

The terms of a plain operand bind by position, those in braces by name. Groups in parentheses are only for
rearrange. A comma is a space in rearrange, and separates operands in einsum. An error quotes the expression and
marks the place.
"""

import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, SupportsIndex

from ..axis import Axis
from ..errors import (
    AxisClashError,
    AxisError,
    AxisNotFoundError,
    OperandError,
    PatternError,
    message,
    suggestion,
)
from ..plans import CACHE, Names

__all__ = [
    "DOTS",
    "Bindings",
    "Bound",
    "Expression",
    "Side",
    "Term",
    "agree",
    "all_used",
    "bind",
    "by_name",
    "by_position",
    "flat",
    "flaw",
    "has_dots",
    "read",
]

Bound = tuple[str | None, int | None]
Bindings = tuple[tuple[str, Bound], ...]
DOTS = "..."
TOKEN = re.compile(r"(?P<space>\s+)|(?P<name>[^\W\d]\w*(?:\.[^\W\d]\w*)*)|(?P<mark>->|\.\.\.|[{}():,])|(?P<other>\S)")
HINTS = {">": "write ->", "-": "write ->", ".": "write ..."}
ENDS = {",": "an expression has one result", "->": "an expression has one ->"}


class Term(NamedTuple):
    """A name, `...` or a group (`parts`, where `name` may be missing), and its place in the text."""

    name: str | None
    parts: tuple["Term", ...] | None
    start: int
    end: int


class Side(NamedTuple):
    """One operand, or the result."""

    terms: tuple[Term, ...]
    ordered: bool
    start: int
    end: int


class Expression(NamedTuple):
    """A parsed expression; without operands, it gives only the result."""

    text: str
    operands: tuple[Side, ...]
    result: Side


def flaw(
    kind: type[AxisError], problem: str, text: str, at: tuple[int, int] | None, hint: str | None = None
) -> AxisError:
    """Build an error that quotes the expression and underlines a part of it."""
    lines = [problem, "  " + re.sub(r"\s", " ", text)]
    if at is not None:
        lines.append("  " + " " * at[0] + "^" * max(at[1] - at[0], 1))
    return kind("\n".join(lines), hint)


@lru_cache(CACHE)
def read(text: str, several: bool) -> Expression:
    """Parse an expression: one of einsum (`several` operands, no groups) or of rearrange.

    Raises:
        PatternError: if it is invalid.
    """
    return _Reader(text, several).expression()


class _Reader:
    """The state of parsing one expression: its tokens and the number of the next one."""

    def __init__(self, text: str, several: bool) -> None:
        self.text, self.several, self.next = text, several, 0
        found = [match for match in TOKEN.finditer(text) if match.lastgroup != "space"]
        for match in found:
            if match.lastgroup == "other":
                hint = HINTS.get(match[0], "names have letters, digits and _; bind any other name by keyword")
                raise self.wrong(f"unexpected {match[0]!r}", match.span(), hint)
        self.tokens = [(match[0], *match.span()) for match in found if several or match[0] != ","]
        self.tokens.append(("", len(text), len(text)))

    def wrong(self, problem: str, at: tuple[int, int], hint: str | None = None) -> AxisError:
        return flaw(PatternError, problem, self.text, at, hint)

    def take(self) -> tuple[str, int, int]:
        self.next += 1
        return self.tokens[self.next - 1]

    def peek(self) -> str:
        return self.tokens[self.next][0]

    def expression(self) -> Expression:
        operands = [self.side()]
        while self.peek() == ",":
            self.take()
            operands.append(self.side())
        token, *at = self.take()
        if token != "->":
            if token:
                raise self.wrong(f"unexpected {token!r}", (at[0], at[1]))
            example = 'for the sum over all of them: "a b, b ->"' if self.several else 'as in "a b -> b a"'
            hint = f"write -> and the axes of the result, {'or just -> ' if self.several else ''}{example}"
            raise self.wrong("the expression has no ->", (at[0], at[1]), hint)
        result = self.side()
        token, *at = self.take()
        if token:
            raise self.wrong(f"unexpected {token!r}", (at[0], at[1]), ENDS.get(token))
        if not result.ordered:
            hint = "the result has its axes in the order in which they are written"
            raise self.wrong("braces are for the left side", (result.start, result.end), hint)
        only_result = len(operands) == 1 and operands[0].ordered and not operands[0].terms
        return Expression(self.text, () if only_result else tuple(operands), result)

    def side(self) -> Side:
        start, braced = self.tokens[self.next][1], self.peek() == "{"
        if braced:
            self.take()
        terms: list[Term] = []
        while self.peek() not in ("", "->", "}") and (braced or self.peek() != ","):
            if self.peek() == ",":
                self.take()
            else:
                terms.append(self.term())
        if braced:
            if self.peek() != "}":
                raise self.wrong("the brace is not closed", (start, start + 1))
            self.take()
        end = self.tokens[self.next - 1][2] if self.tokens[self.next][1] > start else start
        self.once(terms)
        return Side(tuple(terms), not braced, start, end)

    def term(self) -> Term:
        token, start, end = self.take()
        if token == "(" and not self.several:
            return self.group(start)
        if token in ("{", ")", ":", "("):
            hint = "rearrange splits and merges axes" if self.several and token in "()" else None
            raise self.wrong(f"unexpected {token!r}", (start, end), hint)
        return Term(token, None, start, end)

    def group(self, start: int) -> Term:
        label: str | None = None
        parts: list[Term] = []
        while self.peek() not in ("", ")"):
            token, *at = self.take()
            if token == ":" and len(parts) == 1 and label is None and parts[0].name != DOTS:
                label = parts.pop().name
            elif token in ("->", "{", "}", "(", ":"):
                hint = "a group holds names: (name: a b)" if token != "->" else "close the group with )"
                raise self.wrong(f"unexpected {token!r} in a group", (at[0], at[1]), hint)
            else:
                parts.append(Term(token, None, at[0], at[1]))
        if self.peek() != ")":
            raise self.wrong("the group is not closed", (start, start + 1))
        end = self.take()[2]
        if not parts:
            raise self.wrong("the group is empty", (start, end), "broadcast_axis adds an axis of size 1")
        return Term(label, tuple(parts), start, end)

    def once(self, terms: Sequence[Term]) -> None:
        seen: set[str | None] = set()
        for term in flat(terms):
            if term.name in seen:
                hint = None if term.name == DOTS else "the axes of an array have different names"
                raise self.wrong(f"{term.name!r} appears twice", (term.start, term.end), hint)
            seen.add(term.name)


def flat(terms: Iterable[Term]) -> Iterator[Term]:
    """Iterate over names and dots, including the parts of groups, but not their labels."""
    for term in terms:
        yield from (term,) if term.parts is None else term.parts


def bind(function: str, bindings: Mapping[str, object], sizes: bool) -> Bindings:
    """Normalise keywords: each to the name and the size that it gives, or None.

    Args:
        function: the name of the function in errors.
        bindings: the keywords; each an `Axis`, a name or, with `sizes`, an int.
        sizes: whether a keyword may be a size.

    Raises:
        OperandError: if a keyword is something else.
    """
    found: list[tuple[str, Bound]] = []
    for key, value in bindings.items():
        if isinstance(value, str):
            found.append((key, (value, None)))
        elif isinstance(value, Axis):
            found.append((key, (value.name, value.size)))
        elif sizes and isinstance(value, SupportsIndex) and operator.index(value) >= 0:
            found.append((key, (None, operator.index(value))))
        else:
            kinds = "an Axis, the name of one or a size" if sizes else "an Axis or the name of one"
            raise OperandError(message(function, f"the keyword {key!r} must be {kinds}, not {value!r}"))
    return tuple(found)


def has_dots(terms: Iterable[Term]) -> bool:
    return any(term.name == DOTS for term in flat(terms))


def all_used(expression: Expression, bindings: Bindings) -> None:
    """Raise PatternError for a keyword that is not in the expression."""
    sides = (*expression.operands, expression.result)
    terms = [term for side in sides for term in (*side.terms, *flat(side.terms))]
    known = {term.name for term in terms if term.name is not None and term.name != DOTS}
    for key, _ in bindings:
        if key not in known:
            problem = f"the keyword {key!r} is not in the expression"
            raise flaw(PatternError, problem, expression.text, None, suggestion(key, known))


def by_position(text: str, side: Side, names: Names, operand: str) -> Iterator[tuple[Term, Names]]:
    """Assign to each term of an ordered operand its axes: one, or those of the dots."""
    terms, count = side.terms, len(names)
    dots = next((at for at, term in enumerate(terms) if term.name == DOTS), None)
    if count < len(terms) - (dots is not None) or (dots is None and count > len(terms)):
        own = f"{count} {'axis' if count == 1 else 'axes'}"
        problem = f"{operand} has {own}, but the expression has {len(terms) - (dots is not None)}"
        hint = "write ... for the others" if count > len(terms) else None
        if len(terms) == 1 and len(terms[0].name or "") == count > 1:
            hint = f'separate names by spaces: "{" ".join(terms[0].name or "")}"'
        raise flaw(PatternError, problem, text, (side.start, side.end), hint)
    for at, term in enumerate(terms):
        if at == dots:
            yield term, names[at : at + count - len(terms) + 1]
        else:
            place = at if dots is None or at < dots else count - len(terms) + at
            yield term, (names[place],)


def by_name(text: str, terms: Iterable[Term], names: Names, table: Mapping[str, Bound]) -> Iterator[tuple[Term, str]]:
    """Assign to each term, except the dots, the axis of its keyword, or that of its own name."""
    seen: set[str] = set()
    for term in terms:
        if term.name is None or term.name == DOTS:
            continue
        name = table.get(term.name, (None,))[0] or term.name
        if name not in names:
            called = "" if name == term.name else f", which {term.name!r} stands for"
            problem = f"no axis named {name!r}{called}"
            raise flaw(AxisNotFoundError, problem, text, (term.start, term.end), suggestion(name, names))
        if name in seen:
            raise flaw(AxisClashError, f"axis {name!r} appears twice", text, (term.start, term.end))
        seen.add(name)
        yield term, name


def agree(text: str, term: Term, name: str, table: Mapping[str, Bound]) -> None:
    """Raise AxisClashError if the keyword and the position of a term give different axes."""
    said = table.get(term.name or "", (None, None))[0]
    if said is not None and said != name:
        problem = f"{term.name!r} was given as axis {said!r}, but stands for {name!r} here"
        raise flaw(AxisClashError, problem, text, (term.start, term.end))
