"""Internal. Expressions of einsum: which axes are summed over, and which the result has.

`ops/contract` calls it with the names of the operands. An operand in braces binds its terms by name, any other operand
by position; there, each letter stands for one axis in all operands.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ..errors import AxisClashError, PatternError, suggestion
from . import pattern, plans
from .pattern import DOTS, Bindings, Bound, Expression, Term, flaw
from .plans import Names


class Subscripts(NamedTuple):
    """The axes that are summed over, those of the result, and sizes to check."""

    contracted: Names
    out: Names
    given: tuple[tuple[str, int], ...]


def plan_einsum(text: str, operands: tuple[Names, ...], aliases: Bindings) -> Subscripts:
    """Plan an einsum over operands with these names."""
    expression = pattern.parse_expression(text, True)
    pattern.check_used(expression, aliases)
    table = dict(aliases)
    sides, result = expression.operands, expression.result.terms
    if not operands:
        raise flaw(PatternError, "no arrays given", text, None)
    if sides and len(sides) != len(operands):
        count = "1 operand" if len(sides) == 1 else f"{len(sides)} operands"
        problem = f"the expression has {count}, but {len(operands)} were given"
        hint = "commas separate the operands: one part for each array"
        raise flaw(PatternError, problem, text, (sides[0].start, sides[-1].end), hint)

    union = plans.unite(operands)
    bound: dict[str, str] = {}
    if sides and all(side.ordered for side in sides):
        bound = _bind_ordered(expression, operands, table)
        named, wanted = tuple(bound.values()), tuple(_look_up_result(expression, bound))
    else:
        named = tuple(_look_up_named(expression, operands, table))
        wanted = tuple(name for _, name in pattern.bind_by_name(text, result, union, table))

    # Dots in the result keep the other axes in their place. Without dots anywhere, operands in braces name only those
    # axes that matter, and the others stay in front.
    rest = plans.without(union, (*wanted, *named))
    out = wanted
    if pattern.has_dots(result):
        at = [term.name for term in result].index(DOTS)
        out = (*wanted[:at], *rest, *wanted[at:])
    elif sides and not any(pattern.has_dots(side.terms) for side in sides):
        out = (*rest, *wanted)
    given = tuple(
        (bound.get(key, name or key), size) for key, (name, size) in aliases if size is not None
    )
    return Subscripts(plans.without(union, out), out, given)


def _look_up_named(
    expression: Expression, operands: tuple[Names, ...], table: Mapping[str, Bound]
) -> Iterator[str]:
    """Look up the axes named by operands in braces."""
    # An expression may leave the operands out, "-> batch", and then names none of their axes.
    for side, names in zip(expression.operands, operands, strict=bool(expression.operands)):
        if side.ordered and [term.name for term in side.terms] != [DOTS]:
            hint = "use braces for all operands: their axes are then found by name"
            at = (side.start, side.end)
            raise flaw(PatternError, "only some operands are in braces", expression.text, at, hint)
        yield from (
            name for _, name in pattern.bind_by_name(expression.text, side.terms, names, table)
        )


def _bind_ordered(
    expression: Expression, operands: tuple[Names, ...], table: Mapping[str, Bound]
) -> dict[str, str]:
    """Bind the letters of ordered operands, each to one axis in all of them."""
    text = expression.text
    bound: dict[str, str] = {}
    dotted: dict[str, Term] = {}
    pairs = zip(expression.operands, operands, strict=True)
    for number, (side, names) in enumerate(pairs, start=1):
        for term, axes in pattern.bind_by_position(text, side, names, f"operand {number}"):
            if term.name is None or term.name == DOTS:
                dotted.update(dict.fromkeys(axes, term))
            else:
                pattern.check_keyword(text, term, axes[0], table)
                _bind(text, term, term.name, axes[0], number, bound)
    # An axis that a letter binds in one operand would be summed by that letter, and kept by the dots.
    for letter, name in bound.items():
        if name in dotted:
            problem = f"axis {name!r} is {letter!r} in one operand and covered by ... in another"
            at = (dotted[name].start, dotted[name].end)
            raise flaw(AxisClashError, problem, text, at, f"write {letter!r} in both")
    _check_dots(expression)
    return bound


def _check_dots(expression: Expression) -> None:
    """Raise PatternError for dots on only one side of an ordered expression."""
    left = [side for side in expression.operands if pattern.has_dots(side.terms)]
    right = expression.result
    if bool(left) == pattern.has_dots(right.terms):
        return
    problem, hint, side = "... is only on the right", None, right
    if left:
        problem, side = "... is only on the left", left[0]
        hint = "write ... on both sides, or give letters to the axes to sum over"
    term = next(term for term in side.terms if term.name == DOTS)
    raise flaw(PatternError, problem, expression.text, (term.start, term.end), hint)


def _bind(
    text: str, term: Term, letter: str, name: str, number: int, bound: dict[str, str]
) -> None:
    """Bind a letter to an axis; no other letter may stand for this axis."""
    at = (term.start, term.end)
    if bound.setdefault(letter, name) != name:
        problem = (
            f"{letter!r} stands for axis {bound[letter]!r}, but operand {number} has {name!r} there"
        )
        hint = f'use another letter, or rename the axis: x.rename({{"{name}": "{bound[letter]}"}})'
        raise flaw(AxisClashError, problem, text, at, hint)
    # Otherwise one of the letters could be summed and the other one kept.
    for other, axis in bound.items():
        if axis == name and other != letter:
            problem = f"{other!r} and {letter!r} both stand for axis {name!r}"
            hint = f"use one letter, or rename the axis of operand {number}"
            raise flaw(AxisClashError, problem, text, at, hint)


def _look_up_result(expression: Expression, bound: Mapping[str, str]) -> Iterator[str]:
    """Look up the axes of an ordered result."""
    for term in expression.result.terms:
        if term.name is None or term.name == DOTS:
            continue
        if term.name not in bound:
            problem, letters = f"{term.name!r} is not on the left", ", ".join(bound)
            hint = suggestion(term.name, bound) or f"an axis of the result is one of: {letters}"
            raise flaw(PatternError, problem, expression.text, term.span, hint)
        yield bound[term.name]
