"""Internal. Parse the expressions of einsum and rearrange, and find the axes that their terms stand for.

    expression = [operand {"," operand}] "->" result
    operand    = {term} | "{" {term} "}"
    result     = {term}
    term       = NAME | "..." | "(" [NAME ":"] {NAME} ")"

The terms of a plain operand bind by position, those in braces by name. Groups in parentheses are only for
rearrange. A comma is a space in rearrange, and separates operands in einsum. An error quotes the expression and
marks the place.

`subscripts` reads einsum, `engine/regroup` carries rearrange out. This module knows neither sizes nor arrays.
"""

import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, SupportsIndex, TypeGuard, TypeVar

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
from .plans import CACHE, Names

Bound = tuple[str | None, int | None]
Bindings = tuple[tuple[str, Bound], ...]
Span = tuple[int, int]
UNBOUND: Bound = (None, None)
DOTS = "..."
E = TypeVar("E", bound=AxisError)
TOKEN = re.compile(
    r"(?P<space>\s+)|(?P<name>[^\W\d]\w*(?:\.[^\W\d]\w*)*)|(?P<mark>->|\.\.\.|[{}():,])|(?P<other>\S)"
)
HINTS = {">": "write ->", "-": "write ->", ".": "write ..."}
ENDS = {",": "an expression has one result", "->": "an expression has one ->"}


class Term(NamedTuple):
    """A name, `...` or a group (`parts`; its `name` may be missing), and its place in the text."""

    name: str | None
    parts: tuple["Term", ...] | None
    start: int
    end: int

    @property
    def label(self) -> str:
        """The name; empty if it is missing."""
        return self.name or ""

    @property
    def span(self) -> Span:
        """Its place in the text."""
        return self.start, self.end

    def inside(self, text: str) -> str:
        """Return the contents of the parentheses of a group without a name."""
        return text[self.start + 1 : self.end - 1].strip()


class Side(NamedTuple):
    """One operand, or the result."""

    terms: tuple[Term, ...]
    ordered: bool
    start: int
    end: int

    @property
    def span(self) -> Span:
        """Its place in the text."""
        return self.start, self.end

    @property
    def dots(self) -> int | None:
        """The position of the ellipsis among the terms."""
        return next((at for at, term in enumerate(self.terms) if term.name == DOTS), None)


class Expression(NamedTuple):
    """A parsed expression; without operands, it gives only the result."""

    text: str
    operands: tuple[Side, ...]
    result: Side


def flaw(
    kind: type[E], problem: str, text: str, at: tuple[int, int] | None, hint: str | None = None
) -> E:
    """Build an error that quotes the expression and underlines a part of it."""
    # A tab or a line break in the text would move the mark below it.
    quoted = re.sub(r"\s", " ", text)
    if at is None:
        return kind(problem, hint, (quoted,))
    mark = " " * at[0] + "^" * max(at[1] - at[0], 1)
    return kind(problem, hint, (quoted, mark))


@lru_cache(CACHE)
def parse_expression(text: str, several: bool) -> Expression:
    """Parse an expression: one of einsum (`several` operands, no groups) or of rearrange.

    Raises:
        PatternError: if it is invalid.
    """
    return _Reader(text, several).expression()


class _Reader:
    """The state of parsing one expression: its tokens and the number of the next one."""

    def __init__(self, text: str, several: bool) -> None:
        self.text, self.several, self.next = text, several, 0
        self.tokens: list[tuple[str, int, int]] = []
        for match in TOKEN.finditer(text):
            if match.lastgroup == "other":
                names = "names have letters, digits and _; bind any other name by keyword"
                hint = HINTS.get(match[0], names)
                raise self.wrong(f"unexpected {match[0]!r}", match.span(), hint)
            is_ignored = match.lastgroup == "space" or (match[0] == "," and not several)
            if not is_ignored:
                self.tokens.append((match[0], *match.span()))
        # An empty token marks the end, so that `peek` needs no check.
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
        token, *span = self.take()
        if token != "->":
            raise self.without_arrow(token, (span[0], span[1]))
        result = self.side()
        token, *span = self.take()
        if token:  # anything but the end
            raise self.wrong(f"unexpected {token!r}", (span[0], span[1]), ENDS.get(token))
        if not result.ordered:
            hint = "the result has its axes in the order in which they are written"
            raise self.wrong("braces are for the left side", result.span, hint)
        # "-> a b" has no operands at all; "{} -> a b" has one without terms.
        only_result = len(operands) == 1 and operands[0].ordered and not operands[0].terms
        if only_result:
            operands = []
        return Expression(self.text, tuple(operands), result)

    def without_arrow(self, token: str, span: Span) -> AxisError:
        if token:
            return self.wrong(f"unexpected {token!r}", span)
        einsum = 'or just -> for the sum over all of them: "a b, b ->"'
        example = einsum if self.several else 'as in "a b -> b a"'
        hint = f"write -> and the axes of the result, {example}"
        return self.wrong("the expression has no ->", span, hint)

    def side(self) -> Side:
        # A brace ends only with its partner, and a comma in it separates names. Without a brace it ends the operand.
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
        # The end of the last token of this side, of which there may be none.
        end = self.tokens[self.next - 1][2] if self.tokens[self.next][1] > start else start
        self.check_once(terms)
        return Side(tuple(terms), not braced, start, end)

    def term(self) -> Term:
        token, start, end = self.take()
        if token == "(" and not self.several:
            return self.group(start)
        if token in ("{", ")", ":", "("):
            is_group = self.several and token in "()"
            hint = "rearrange splits and merges axes" if is_group else None
            raise self.wrong(f"unexpected {token!r}", (start, end), hint)
        return Term(token, None, start, end)

    def group(self, start: int) -> Term:
        label: str | None = None
        parts: list[Term] = []
        while self.peek() not in ("", ")"):
            token, first, last = self.take()
            # Only a colon tells that the name before it was the label of the group, not its first part.
            if token == ":" and len(parts) == 1 and label is None and parts[0].name != DOTS:
                label = parts.pop().name
            elif token in ("->", "{", "}", "(", ":"):
                is_open = token == "->"
                hint = "close the group with )" if is_open else "a group holds names: (name: a b)"
                raise self.wrong(f"unexpected {token!r} in a group", (first, last), hint)
            else:
                parts.append(Term(token, None, first, last))
        if self.peek() != ")":
            raise self.wrong("the group is not closed", (start, start + 1))
        end = self.take()[2]
        if not parts:
            hint = "broadcast_axis adds an axis of size 1"
            raise self.wrong("the group is empty", (start, end), hint)
        return Term(label, tuple(parts), start, end)

    def check_once(self, terms: Sequence[Term]) -> None:
        seen: set[str | None] = set()
        for term in flatten_terms(terms):
            if term.name in seen:
                is_name = term.name != DOTS
                hint = "the axes of an array have different names" if is_name else None
                raise self.wrong(f"{term.name!r} appears twice", term.span, hint)
            seen.add(term.name)


def flatten_terms(terms: Iterable[Term]) -> Iterator[Term]:
    """Iterate over names and dots, including the parts of groups, but not their labels."""
    for term in terms:
        yield from term.parts or (term,)  # no group is empty


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
        elif sizes and _is_integer(value) and operator.index(value) >= 0:
            found.append((key, (None, operator.index(value))))
        else:
            kinds = "an Axis, the name of one or a size" if sizes else "an Axis or the name of one"
            problem = f"the keyword {key!r} must be {kinds}, not {value!r}"
            raise OperandError(message(function, problem))
    return tuple(found)


def _is_integer(value: object) -> TypeGuard[SupportsIndex]:
    """Return whether a value can be an index, without the slow check of the protocol for an int."""
    return value.__class__ is int or isinstance(value, SupportsIndex)


def name_for(table: Mapping[str, Bound], key: str) -> str:
    """Return the name of the axis that a keyword gives for a name of the expression, or the name itself."""
    return table.get(key, UNBOUND)[0] or key


def has_dots(terms: Iterable[Term]) -> bool:
    """Return whether any of the terms is an ellipsis."""
    return any(term.name == DOTS for term in flatten_terms(terms))


def check_used(expression: Expression, bindings: Bindings) -> None:
    """Raise PatternError for a keyword that is not in the expression."""
    # `flat` skips the labels of groups, and the terms themselves skip the parts.
    known = {
        term.label
        for side in (*expression.operands, expression.result)
        for term in (*side.terms, *flatten_terms(side.terms))
    } - {"", DOTS}
    for key, _ in bindings:
        if key not in known:
            problem = f"the keyword {key!r} is not in the expression"
            raise flaw(PatternError, problem, expression.text, None, suggestion(key, known))


def bind_by_position(
    text: str, side: Side, names: Names, operand: str
) -> Iterator[tuple[Term, Names]]:
    """Assign to each term of an ordered operand its axes: one, or those of the dots."""
    terms, count = side.terms, len(names)
    # Dots take what the other terms leave, which may be nothing.
    dots = side.dots
    needed = len(terms) - (dots is not None)
    if count < needed or (count > needed and dots is None):
        own = {1: "1 axis"}.get(count, f"{count} axes")
        problem = f"{operand} has {own}, but the expression has {needed}"
        hint = "write ... for the others" if count > len(terms) else None
        # "ab" for two axes is how NumPy writes "a b".
        if len(terms) == 1 and len(terms[0].label) == count > 1:
            hint = f'separate names by spaces: "{" ".join(terms[0].label)}"'
        raise flaw(PatternError, problem, text, side.span, hint)

    at = 0
    for term in terms:
        length = count - needed if term.name == DOTS else 1
        yield term, names[at : at + length]
        at += length


def bind_by_name(
    text: str, terms: Iterable[Term], names: Names, table: Mapping[str, Bound]
) -> Iterator[tuple[Term, str]]:
    """Assign to each term, except the dots, the axis of its keyword, or that of its own name."""
    seen: set[str] = set()
    for term in terms:
        if term.name is None or term.name == DOTS:
            continue
        name = name_for(table, term.name)
        if name not in names:
            problem = f"no axis named {name!r}"
            if name != term.name:
                problem += f", which {term.name!r} stands for"
            spaced = [one for one in names if " " in one and name in one.split()]
            hint = f"spaces separate names: write a letter, and a={spaced[0]!r}" if spaced else None
            near = hint or suggestion(name, names)
            raise flaw(AxisNotFoundError, problem, text, term.span, near)
        # Two terms with different names may stand for one axis by their keywords.
        if name in seen:
            raise flaw(AxisClashError, f"axis {name!r} appears twice", text, term.span)
        seen.add(name)
        yield term, name


def check_keyword(text: str, term: Term, name: str, table: Mapping[str, Bound]) -> None:
    """Raise AxisClashError if the keyword and the position of a term give different axes."""
    # A keyword that only gives a size says nothing of the axis.
    said, _ = table.get(term.label, UNBOUND)
    if said is not None and said != name:
        problem = f"{term.name!r} was given as axis {said!r}, but stands for {name!r} here"
        raise flaw(AxisClashError, problem, text, term.span)
