"""The engine of rearrange, flatten and unflatten: axes are split into pieces, put in order and merged."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
from jax import lax

from .. import _constraints, layout, plans
from ..core import Core, shape_of, wrap
from ..errors import (
    AxisClashError,
    AxisError,
    AxisNotFoundError,
    AxisSizeError,
    PatternError,
    describe,
    message,
    suggestion,
)
from ..plans import Names
from . import _lift, _pattern
from ._pattern import DOTS, Bindings, Bound, Expression, Term, flaw

if TYPE_CHECKING:
    from ..array import NamedArray

__all__ = ["Group", "Regrouping", "by_expression", "regrouping", "reshape"]

Pieces = tuple[tuple[str, int | None], ...]


class Group(NamedTuple):
    """A number of adjacent dimensions (`dims`) that become dimensions of these sizes and names."""

    dims: int
    sizes: tuple[int, ...]
    names: Names


class Regrouping(NamedTuple):
    """The plan of an expression of rearrange.

    Attributes:
        split: for each axis its pieces, each with its name and, where known, its size.
        order: the pieces in the order of the result.
        merge: for each axis of the result the number of its pieces.
        names: the axes of the result.
        old: sizes of axes to check.
        new: for each axis of the result a size to check, or None.
        spans: for each axis its place in the expression.
        ends: for each axis of the result its place in the expression.
    """

    split: tuple[Pieces, ...]
    order: tuple[int, ...]
    merge: tuple[int, ...]
    names: Names
    old: Pieces
    new: tuple[int | None, ...]
    spans: tuple[tuple[int, int], ...]
    ends: tuple[tuple[int, int], ...]


def reshape(array: jax.Array, groups: Sequence[Group], names: Names = ()) -> jax.Array:
    """Reshape an array group by group; for messages, pass its names.

    On a mesh with Explicit axes, the mapping lays out the new dimensions that it has, and otherwise the first
    dimension of a group keeps its mesh axes: an axis whose leading part is sharded splits and merges in place.
    """
    shape = tuple(size for group in groups for size in group.sizes)
    if not _constraints.has_explicit_axes(array):
        return lax.reshape(array, shape)
    source, target = _layouts(array, groups)
    wanted = _constraints.sharding_from(array, target)
    return lax.reshape(_constraints.relayout(array, source, names), shape, out_sharding=wanted)


def _layouts(array: jax.Array, groups: Sequence[Group]) -> tuple[list[layout.Entry], list[layout.Entry]]:
    """Choose the mesh axes of each dimension right before and after a reshape."""
    entries = iter(_constraints.entries_of(array))
    owned = [[next(entries) for _ in range(group.dims)] for group in groups]
    mapping = layout.mapped(name for group in groups for name in group.names if name)
    same = [group.dims == len(group.sizes) == 1 for group in groups]
    used = (axis for own, is_same in zip(owned, same, strict=True) if is_same for axis in own[0])
    free = _constraints.free_axes(jax.typeof(array).sharding.mesh, used)
    source: list[layout.Entry] = []
    target: list[layout.Entry] = []
    for group, own, is_same in zip(groups, owned, same, strict=True):
        if is_same:
            source += own
            target += own
            continue
        fresh: list[layout.Entry] = []
        for i, (name, size) in enumerate(zip(group.names, group.sizes, strict=True)):
            wanted = mapping[name] if name in mapping else own[0] if i == 0 else ()
            fresh.append(_constraints.claim(wanted, size, free))
        stays = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(own[0], fresh[0], strict=False))
        source += [tuple(axis for axis, _ in stays), *[() for _ in own[1:]]]
        target += fresh
    return source, target


def by_expression(x: Core, text: str, bindings: Mapping[str, object]) -> "NamedArray":
    """Apply `rearrange` with an expression."""
    (array,), names = x.node
    try:
        kernel = _regrouped(text, names, _pattern.bind("rearrange", bindings, sizes=True))
    except AxisError as flawed:
        _lift.fail("rearrange", flawed, x)
    return x if kernel is None else wrap(x, kernel.call(array), kernel.names)  # type: ignore[return-value]  # a Core is a NamedArray


@lru_cache(plans.CACHE)
def _regrouped(text: str, names: Names, bindings: Bindings) -> _lift.Kernel | None:
    """Make the kernel of an expression; None if it neither changes nor checks anything."""
    plan = regrouping(text, names, bindings)
    pieces = tuple(piece for own in plan.split for piece, _ in own)
    splits, merges = any(len(own) > 1 for own in plan.split), any(count > 1 for count in plan.merge)
    in_order = plan.order == tuple(range(len(pieces)))
    checks = plan.old or any(size is not None for own in plan.split for _, size in own)
    if names == plan.names and in_order and not (splits or merges or checks or any(plan.new)):
        return None

    def body(array: Any) -> Any:
        shape = shape_of("rearrange", array, names)
        _lift.check_given("rearrange", plan.old, names, shape)
        split, merged = _sizes(text, plan, names, shape)
        anonymous = array.ndim - len(names)
        lead = [Group(1, (size,), ("",)) for size in shape[:anonymous]]
        if splits:
            own = [tuple(piece for piece, _ in pieces) for pieces in plan.split]
            array = reshape(array, [*lead, *(Group(1, s, n) for s, n in zip(split, own, strict=True))], names)
        if not in_order:
            array = lax.transpose(array, (*range(anonymous), *(anonymous + at for at in plan.order)))
        if merges:
            result = zip(plan.merge, merged, plan.names, strict=True)
            array = reshape(array, [*lead, *(Group(count, (size,), (name,)) for count, size, name in result)])
        return array

    return _lift.Kernel(plan.names, body)


def _sizes(
    text: str, plan: Regrouping, names: Names, shape: tuple[int, ...]
) -> tuple[list[tuple[int, ...]], list[int]]:
    """Return the sizes of the pieces of each axis, and of the axes of the result."""
    split: list[tuple[int, ...]] = []
    have = shape[len(shape) - len(names) :]
    for name, size, pieces, span in zip(names, have, plan.split, plan.spans, strict=True):
        known = math.prod(given for _, given in pieces if given is not None)
        fits = size == known if all(given is not None for _, given in pieces) else known and size % known == 0
        if not fits:
            spelled = " and ".join(piece if given is None else f"{piece}={given}" for piece, given in pieces)
            problem = f"axis {name!r} of size {size} does not split into {spelled}"
            raise _wrong_size(problem, text, span, describe(names, shape))
        split.append(tuple(size // known if given is None else given for _, given in pieces))
    flat = [size for own in split for size in own]
    merged: list[int] = []
    at = 0
    for count, name, given, span in zip(plan.merge, plan.names, plan.new, plan.ends, strict=True):
        size = math.prod(flat[piece] for piece in plan.order[at : at + count])
        if given not in (None, size):
            problem = f"axis {name!r} was given with size {given}, but would have size {size}"
            raise _wrong_size(problem, text, span, describe(names, shape))
        merged.append(size)
        at += count
    return split, merged


def _wrong_size(problem: str, text: str, span: tuple[int, int], facts: str) -> AxisSizeError:
    marked = flaw(AxisSizeError, problem, text, span)
    return AxisSizeError(message("rearrange", str(marked), f"array has: {facts}"))


def regrouping(text: str, names: Names, bindings: Bindings) -> Regrouping:
    """Plan an expression of rearrange for an array with these names.

    Raises:
        PatternError: if the expression is invalid, or does not fit the number of axes.
        AxisNotFoundError: if an axis is missing, or would be dropped.
        AxisClashError: if a name would refer to two axes.
    """
    expression = _pattern.read(text, False)
    _pattern.all_used(expression, bindings)
    table = dict(bindings)
    if not expression.operands:
        hint = f'name the axes on the left, or write "{{}} {text.strip()}" to find them by name'
        raise flaw(PatternError, "the left side is empty", text, (0, text.index("->")), hint)
    (side,) = expression.operands
    left = _left(expression, names, table)
    result = list(_result(expression, left, table))
    order = tuple(piece for _, _, pieces in result for piece in pieces)
    _check_all_there(expression, left, order)
    for at, (term, name, _) in enumerate(result):
        if name in [other for _, other, _ in result[:at]]:
            raise flaw(AxisClashError, f"axis {name!r} would appear twice", text, (term.start, term.end))
    # A keyword of the left side gives a size there; on the right it gives only a name.
    known = {term.name for term in side.terms} | set(left.where)
    free = {key: size for key, (_, size) in table.items() if key not in known}
    found = [term.name or "" for term in _pattern.flat(expression.result.terms) if term.name in free]
    return Regrouping(
        left.split,
        order,
        tuple(len(pieces) for _, _, pieces in result),
        tuple(name for _, name, _ in result),
        (*left.sized, *((table[key][0] or key, table[key][1]) for key in found)),
        tuple(free.get(term.name or "") if term.parts else None for term, _, _ in result),
        left.spans,
        tuple((term.start, term.end) for term, _, _ in result),
    )


class Left(NamedTuple):
    """The left side of an expression, bound to the names of an array.

    Attributes:
        names: the axes.
        split: for each axis its pieces, each with its name and, where known, its size.
        where: the number of the piece for each name of the left side.
        rest: the pieces without a name, each a whole axis.
        sized: sizes of axes to check.
        spans: for each axis its place in the expression.
    """

    names: Names
    split: tuple[Pieces, ...]
    where: dict[str, int]
    rest: tuple[int, ...]
    sized: Pieces
    spans: tuple[tuple[int, int], ...]

    @property
    def flat(self) -> list[str]:
        """The names of all pieces."""
        return [name for pieces in self.split for name, _ in pieces]


def _left(expression: Expression, names: Names, table: Mapping[str, Bound]) -> Left:
    (side,), text = expression.operands, expression.text
    fresh = {part.name for term in side.terms for part in term.parts or ()}
    # A keyword for a piece does not apply to an axis of the same name that is split.
    whole = {key: value for key, value in table.items() if key not in fresh}
    held = dict(_held(expression, names, whole))
    split: list[Pieces] = []
    where: dict[str, int] = {}
    rest: list[int] = []
    at = 0
    for name in names:
        term = held.get(name)
        parts: tuple[Term | None, ...] = (term,)
        pieces: Pieces = ((name, None),)
        if term is not None and term.parts is not None:
            parts, pieces = term.parts, _pieces(text, term.parts, table)
        split.append(pieces)
        for i, part in enumerate(parts, start=at):
            if part is None:
                rest.append(i)
            else:
                where[part.name or ""] = i
        at += len(parts)
    sized = tuple((name, whole[term.name or ""][1]) for name, term in held.items() if term.name in whole)
    marks = [held.get(name, side) for name in names]
    spans = tuple((mark.start, mark.end) for mark in marks)
    return Left(names, tuple(split), where, tuple(rest), sized, spans)


def _held(expression: Expression, names: Names, table: Mapping[str, Bound]) -> Iterator[tuple[str, Term]]:
    """Return each axis that the left side names, with its term."""
    (side,), text = expression.operands, expression.text
    for term in side.terms:
        if term.parts is not None and _pattern.has_dots(term.parts):
            raise flaw(PatternError, "... cannot be split", text, (term.start, term.end))
        if term.name is None and not side.ordered:
            hint = f"write the name of the axis: (name: {text[term.start + 1 : term.end - 1].strip()})"
            raise flaw(PatternError, "the axis to split has no name", text, (term.start, term.end), hint)
    if not side.ordered:
        named = _pattern.by_name(text, side.terms, names, table)
        yield from ((name, term) for term, name in named)
        return
    if _pattern.has_dots(expression.result.terms) and not _pattern.has_dots(side.terms):
        term = next(t for t in expression.result.terms if _pattern.has_dots((t,)))
        raise flaw(PatternError, "... is only on the right", text, (term.start, term.end))
    for term, axes in _pattern.by_position(text, side, names, "the array"):
        if term.name != DOTS:
            _pattern.agree(text, term, axes[0], table)
            yield axes[0], term


def _pieces(text: str, parts: Sequence[Term], table: Mapping[str, Bound]) -> Pieces:
    """Name the pieces of a split axis; a keyword gives a size, a name or both."""
    bound = [table.get(part.name or "", (None, None)) for part in parts]
    unknown = [part for part, (_, size) in zip(parts, bound, strict=True) if size is None]
    if len(unknown) > 1:
        problem = f"the sizes of {' and '.join(repr(part.name) for part in unknown)} are not known"
        at = (unknown[0].start, unknown[-1].end)
        raise flaw(PatternError, problem, text, at, f"give all but one by keyword: {unknown[0].name}=4")
    return tuple((name or part.name or "", size) for part, (name, size) in zip(parts, bound, strict=True))


def _result(
    expression: Expression, left: Left, table: Mapping[str, Bound]
) -> Iterator[tuple[Term, str, tuple[int, ...]]]:
    """Return each axis of the result: its term, its name and its pieces."""
    flat = left.flat
    terms = expression.result.terms
    single = {term: _piece(expression, left, table, term) for term in _pattern.flat(terms) if term.name != DOTS}
    rest = tuple(piece for piece in left.rest if piece not in single.values())
    for term in terms:
        if term.parts is None:
            for piece in rest if term.name == DOTS else (single[term],):
                yield term, flat[piece], (piece,)
            continue
        at = (term.start, term.end)
        if term.name is None:
            inside = expression.text[term.start + 1 : term.end - 1].strip()
            raise flaw(PatternError, "a merged axis needs a name", expression.text, at, f"write (name: {inside})")
        pieces = [piece for part in term.parts for piece in (rest if part.name == DOTS else (single[part],))]
        if not pieces:
            raise flaw(AxisNotFoundError, "no axes to merge: ... matches none", expression.text, at)
        yield term, table.get(term.name, (None,))[0] or term.name, tuple(pieces)


def _piece(expression: Expression, left: Left, table: Mapping[str, Bound], term: Term) -> int:
    """Return the piece for a name on the right: a name of the left side or, with braces there, an axis."""
    name = term.name or ""
    if name in left.where:
        return left.where[name]
    at = (term.start, term.end)
    if expression.operands[0].ordered:
        hint = suggestion(name, left.where)
        raise flaw(PatternError, f"{name!r} is not on the left", expression.text, at, hint)
    flat = left.flat
    axis = table.get(name, (None,))[0] or name
    own = {flat[piece]: piece for piece in left.rest}
    if axis in own:
        return own[axis]
    if axis in left.names:
        called = next((repr(key) for key, piece in left.where.items() if flat[piece] == axis), "split")
        raise flaw(AxisClashError, f"axis {axis!r} is {called} on the left", expression.text, at)
    hint = suggestion(axis, (*own, *left.where))
    raise flaw(AxisNotFoundError, f"no axis named {axis!r}", expression.text, at, hint)


def _check_all_there(expression: Expression, left: Left, order: Sequence[int]) -> None:
    """Raise an error if the result lacks a piece, or has one twice."""
    text, result = expression.text, expression.result
    terms = {term.name: term for term in _pattern.flat(expression.operands[0].terms)}
    flat = left.flat
    for name, piece in left.where.items():
        if piece not in order:
            at = (terms[name].start, terms[name].end)
            hint = f'rearrange keeps all axes; x.sum("{flat[piece]}") removes one'
            raise flaw(PatternError, f"{name!r} is not on the right", text, at, hint)
    for piece, name in enumerate(flat):
        if order.count(piece) > 1:
            raise flaw(AxisClashError, f"axis {name!r} appears twice", text, (result.start, result.end))
    lacking = [flat[piece] for piece in left.rest if piece not in order]
    if lacking:
        hint = "name all axes, or write ... for the others"
        problem = f"the result leaves out {', '.join(lacking)}"
        raise flaw(AxisNotFoundError, problem, text, (result.start, result.end), hint)
