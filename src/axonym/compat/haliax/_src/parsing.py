"""The expressions of `einsum` and `rearrange`, taken apart."""

import dataclasses
import re
from collections.abc import Sequence
from types import EllipsisType
from typing import NoReturn

from axonym.errors import PatternError

__all__ = ["AxisCapture", "Expression", "parse_einsum", "parse_rearrangement", "raise_parse_error"]

_TOKEN = re.compile(r"\s*(?:(->|\.\.\.|[(){}:,])|([A-Za-z_]\w*)|\"([^\"]*)\"|'([^']*)')")
_END = ""


@dataclasses.dataclass(frozen=True)
class AxisCapture:
    """An entry of an expression: a name, or a group of names in parentheses.

    Attributes:
        binding: the name of the whole; None for a group without one.
        axes: the names in the group; for a single name, that one.
        char_range: where the entry is in the text.
    """

    binding: str | None = None
    axes: tuple[str, ...] = ()
    char_range: tuple[int, int] | None = None


_AxisCapture = AxisCapture


@dataclasses.dataclass(frozen=True)
class Expression:
    """One side of an expression, or one operand of it.

    Attributes:
        captures: the entries.
        is_ordered: False inside of braces, where entries are found by name.
    """

    captures: Sequence[AxisCapture | EllipsisType]
    is_ordered: bool


def parse_einsum(expression: str) -> tuple[Sequence[Expression], Expression]:
    """Parse the operands and the result; without an arrow, the result has no axes."""
    parser = _Parser(expression)
    operands = [] if parser.token == _END else [parser.operand()]
    while parser.token == ",":
        parser.next()
        operands.append(parser.operand())
    result = Expression([], True)
    if parser.token != _END:
        parser.expect("->")
        result = parser.operand()
    parser.expect(_END)
    return operands, result


def parse_rearrangement(expression: str) -> tuple[Expression, Expression]:
    """Parse the axes before and after the arrow."""
    parser = _Parser(expression)
    before = parser.operand()
    parser.expect("->")
    after = parser.operand()
    parser.expect(_END)
    return before, after


def raise_parse_error(message: str, expression: str, pos: int | tuple[int, int] | None) -> NoReturn:
    """Raise an error that points at a place of an expression."""
    first, last = (pos, pos + 1) if isinstance(pos, int) else pos or (0, len(expression))
    marks = " " * first + "^" * max(last - first, 1)
    raise PatternError(f"{message}\n  {expression}\n  {marks}")


class _Parser:
    """A parser that reads an expression token by token; `token` is the current one, a sign or the type of its text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.end = 0
        self.next()

    def next(self) -> None:
        """Go on to the next token."""
        self.last = self.end
        found = _TOKEN.match(self.text, self.end)
        if found is None:
            rest = self.text[self.end :]
            if rest.strip():
                at = self.end + len(rest) - len(rest.lstrip())
                raise_parse_error(f"{self.text[at]!r} begins no name", self.text, at)
            self.token, self.name, self.start = _END, "", len(self.text)
            return
        self.end = found.end()
        self.start = found.end() - len(found[0].lstrip())
        self.token = found[1] or "name"
        self.name = found[2] or found[3] or found[4] or ""

    def expect(self, token: str) -> None:
        """Check the current token, and go on."""
        if self.token != token:
            what = f"expected {token!r}" if token else "expected no more"
            raise_parse_error(what, self.text, self.start)
        self.next()

    def operand(self) -> Expression:
        """Read the entries of one operand or side."""
        if self.token != "{":
            return Expression(self.entries(commas=False), True)
        self.next()
        entries = self.entries(commas=True)
        self.expect("}")
        return Expression(entries, False)

    def entries(self, *, commas: bool) -> list[AxisCapture | EllipsisType]:
        """Read names, groups and `...`; commas between them are ignored inside of braces."""
        found: list[AxisCapture | EllipsisType] = []
        while True:
            if self.token == "...":
                found.append(...)
                self.next()
            elif self.token == "name":
                found.append(AxisCapture(self.name, (self.name,), (self.start, self.end)))
                self.next()
            elif self.token == "(":
                found.append(self.group())
            elif commas and self.token == "," and found:
                self.next()
            else:
                return found

    def group(self) -> AxisCapture:
        """Read a group: `(a b)` or `(name: a b)`."""
        start, binding = self.start, None
        axes: list[str] = []
        self.next()
        while self.token in ("name", ":"):
            if self.token == ":":
                if binding is not None or len(axes) != 1:
                    raise_parse_error(
                        "the name of a group comes first, and once", self.text, self.start
                    )
                binding = axes.pop()
            else:
                axes.append(self.name)
            self.next()
        if self.token == "(":
            raise_parse_error("a group cannot hold another", self.text, self.start)
        self.expect(")")
        if not axes:
            raise_parse_error("a group needs axes", self.text, start)
        return AxisCapture(binding, tuple(axes), (start, self.last))
