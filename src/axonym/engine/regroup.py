"""Internal. The engine of rearrange, flatten and unflatten: axes are split into pieces, put in order and merged.

`names.pattern` parses an expression; this module binds it to the names of an array (`regrouping`), and carries it out
by at most two reshapes and a transpose. Sizes are checked while the kernel is traced.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import jax
from jax import lax

from ..axis import Pairs
from ..base.phrases import write_size_conflict
from ..errors import (
    AxisClashError,
    AxisNotFoundError,
    AxisSizeError,
    PatternError,
    describe,
    explained,
    suggestion,
)
from ..layout import assignment, context, explicit, partition
from ..names import pattern, plans
from ..names.pattern import DOTS, UNBOUND, Bindings, Bound, Expression, Span, Term, flaw, name_for
from ..names.plans import Names, hold_axes
from . import checks, kernels
from .core import Core, shape_of, sizes_of, wrap
from .renaming import share_by_renaming

if TYPE_CHECKING:
    from ..array import NamedArray


@hold_axes("name")
class Piece(NamedTuple):
    """A part of an axis, or a complete axis, with its size if known."""

    name: str
    size: int | None


@hold_axes("pieces")
class Source(NamedTuple):
    """An axis of the array: the pieces that it is split into, and its place in the expression."""

    pieces: tuple[Piece, ...]
    span: Span

    @property
    def names(self) -> Names:
        """The names of the pieces."""
        return tuple(piece.name for piece in self.pieces)


@hold_axes("name")
class Target(NamedTuple):
    """An axis of the result: the numbers of its pieces, a size to check, and its place in the expression."""

    name: str
    pieces: tuple[int, ...]
    size: int | None
    span: Span


class Group(NamedTuple):
    """A number of adjacent dimensions (`dims`) that become dimensions of these sizes and names."""

    dims: int
    sizes: tuple[int, ...]
    names: Names

    @property
    def is_same(self) -> bool:
        """Whether it is one dimension that stays one."""
        return self.dims == len(self.sizes) == 1


@hold_axes("sources", "targets", "checked")
class Regrouping(NamedTuple):
    """The plan of an expression of rearrange.

    Attributes:
        sources: the axes of the array.
        targets: the axes of the result.
        checked: sizes of axes to check.
    """

    sources: tuple[Source, ...]
    targets: tuple[Target, ...]
    checked: Pairs

    @property
    def names(self) -> Names:
        """The names of the result."""
        return tuple(target.name for target in self.targets)

    @property
    def order(self) -> tuple[int, ...]:
        """The numbers of all pieces in the order of the result."""
        return tuple(itertools.chain.from_iterable(target.pieces for target in self.targets))

    @property
    def splits(self) -> bool:
        """Whether an axis is split."""
        return any(len(source.pieces) > 1 for source in self.sources)

    @property
    def is_in_order(self) -> bool:
        """Whether all pieces stay where they are."""
        return self.order == tuple(range(len(self.order)))

    @property
    def merges(self) -> bool:
        """Whether axes are merged."""
        return any(len(target.pieces) > 1 for target in self.targets)

    @property
    def changes(self) -> bool:
        """Whether dimensions change."""
        return self.splits or self.merges or not self.is_in_order

    @property
    def is_checked(self) -> bool:
        """Whether the expression gives a size, which needs a check."""
        pieces = itertools.chain.from_iterable(source.pieces for source in self.sources)
        sizes = [piece.size for piece in pieces] + [target.size for target in self.targets]
        return bool(self.checked) or any(size is not None for size in sizes)


def keep_dimensions(shape: Iterable[int]) -> list[Group]:
    """Return the groups of anonymous dimensions that stay as they are."""
    # An empty name is that of no axis, so that no mapping shards these.
    return [Group(1, (size,), ("",)) for size in shape]


def reshape(array: jax.Array, groups: Sequence[Group], names: Names = ()) -> jax.Array:
    """Reshape an array group by group; for messages, pass its names.

    On Explicit axes, the mapping shards the new dimensions that it has. If it has no dimension of a group, the first
    dimension keeps the mesh axes of the group, so an axis whose leading part is sharded splits and merges in place.
    """
    shape = tuple(itertools.chain.from_iterable(group.sizes for group in groups))
    if not explicit.has_explicit_axes(array):
        return lax.reshape(array, shape)
    # JAX reshapes in place only what both layouts split alike, so that the rest is gathered before.
    source, target = _choose_layouts(array, groups)
    wanted = explicit.make_sharding(array, target)
    return lax.reshape(explicit.reshard(array, source, names), shape, out_sharding=wanted)


def _choose_layouts(
    array: jax.Array, groups: Sequence[Group]
) -> tuple[list[assignment.Entry], list[assignment.Entry]]:
    """Choose the mesh axes of each dimension right before and after a reshape."""
    entries = iter(explicit.get_layout(array))
    owned = [list(itertools.islice(entries, group.dims)) for group in groups]
    named: dict[str, int] = {}
    for group in groups:
        named.update(zip(group.names, group.sizes, strict=True))
    mapping = context.map_names({name: size for name, size in named.items() if name})

    # Dimensions that stay have their mesh axes already; new ones claim from the others, first come, first served.
    pairs = list(zip(groups, owned, strict=True))
    used = [axis for group, own in pairs if group.is_same for axis in own[0]]
    free = explicit.free_axes(jax.typeof(array).sharding.mesh, used)

    source: list[assignment.Entry] = []
    target: list[assignment.Entry] = []
    sizes = iter(array.shape)
    for group, own in pairs:
        before = list(itertools.islice(sizes, group.dims))
        if group.is_same:
            source += own
            target += own
            continue
        # Only the first new dimension can inherit mesh axes: the leading part of a group stays where it is.
        by_default = own[0]
        fresh: list[assignment.Entry] = []
        for name, size in zip(group.names, group.sizes, strict=True):
            # `claim` takes the mesh axes out of `free`, so that no later dimension gets them.
            fresh.append(explicit.claim(mapping.get(name, by_default), size, free))
            by_default = ()
        mesh = explicit.mesh_of_type(array)
        source += _keep_common(
            own, _find_leading(before, own, mesh), _find_leading(group.sizes, fresh, mesh)
        )
        target += fresh
    return source, target


def _find_leading(
    sizes: Sequence[int], entries: Sequence[assignment.Entry], mesh: assignment.MeshLike
) -> assignment.Entry:
    """Return the mesh axes that split the leading part of several dimensions, taken as one dimension.

    A dimension that is split down to single elements leaves the next one to be split further.
    """
    leading: assignment.Entry = ()
    for size, entry in zip(sizes, entries, strict=True):
        leading += entry
        if size != partition.count_shards(mesh, entry):
            break
    return leading


def _keep_common(
    entries: Sequence[assignment.Entry], before: assignment.Entry, after: assignment.Entry
) -> list[assignment.Entry]:
    """Return the mesh axes that dimensions keep in a reshape because they split the same leading part afterwards."""
    pairs = zip(before, after, strict=False)
    common = [one for one, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)]
    return [partition.only(entry, common) for entry in entries]


def by_expression(x: Core, text: str, bindings: Mapping[str, object]) -> "NamedArray":
    """Apply `rearrange` with an expression."""
    # One look-up by text, names and keywords: a repeated expression is neither parsed nor planned.
    (array,), names = x.node
    bound = pattern.bind("rearrange", bindings, sizes=True)
    kernel = checks.run_plan("rearrange", (x,), _find_kernel, text, names, bound)
    if kernel is None:
        return x  # type: ignore[return-value]  # a Core is a NamedArray
    return wrap(x, kernel.call(array), kernel.names)


@lru_cache(plans.CACHE)
def _find_kernel(text: str, names: Names, bindings: Bindings) -> kernels.Kernel | None:
    """Make the kernel of an expression; None if it neither changes nor checks anything."""
    plan = regrouping(text, names, bindings)
    # The array itself comes back then, without a dispatch.
    if names == plan.names and not (plan.changes or plan.is_checked):
        return None
    return _make_plan_kernel(text, names, plan)


@share_by_renaming("names", "plan")
def _make_plan_kernel(text: str, names: Names, plan: Regrouping) -> kernels.Kernel:
    def body(array: jax.Array) -> jax.Array:
        shape = shape_of("rearrange", array, names)
        checks.check_given("rearrange", plan.checked, names, shape)
        split, merged = _compute_sizes(text, plan, names, shape)
        anonymous = array.ndim - len(names)
        lead = keep_dimensions(shape[:anonymous])
        # All splits come first and all merges last, so that one transpose is enough.
        if plan.splits:
            parts = zip(split, plan.sources, strict=True)
            groups = [Group(1, sizes, source.names) for sizes, source in parts]
            array = reshape(array, [*lead, *groups], names)
        if not plan.is_in_order:
            order = plans.shift_places(plan.order, anonymous)
            array = lax.transpose(array, (*range(anonymous), *order))
        if plan.merges:
            wholes = zip(merged, plan.targets, strict=True)
            groups = [Group(len(own.pieces), (size,), (own.name,)) for size, own in wholes]
            array = reshape(array, [*lead, *groups])
        return array

    return kernels.Kernel(plan.names, body)


def _compute_sizes(
    text: str, plan: Regrouping, names: Names, shape: tuple[int, ...]
) -> tuple[list[tuple[int, ...]], list[int]]:
    """Return the sizes of the pieces of each axis, and of the axes of the result."""
    # Sizes are known only now: a plan is made from names.
    split: list[tuple[int, ...]] = []
    for (name, size), source in zip(sizes_of(names, shape).items(), plan.sources, strict=True):
        sizes = _size_pieces(size, source.pieces)
        if sizes is None:
            spelled = " and ".join(map(_spell, source.pieces))
            problem = f"axis {name!r} of size {size} does not split into {spelled}"
            raise _size_error(problem, text, source.span, describe(names, shape))
        split.append(sizes)

    flat = list(itertools.chain.from_iterable(split))
    merged: list[int] = []
    for target in plan.targets:
        size = math.prod(plans.values_at(flat, target.pieces))
        if target.size not in (None, size):
            problem = write_size_conflict(target.name, target.size, f"would have size {size}")
            raise _size_error(problem, text, target.span, describe(names, shape))
        merged.append(size)
    return split, merged


def _size_pieces(size: int, pieces: Sequence[Piece]) -> tuple[int, ...] | None:
    """Return the sizes of the pieces of an axis, one of which may be unknown; None if they do not fit."""
    sizes = [1 if piece.size is None else piece.size for piece in pieces]
    unknown = next((i for i, piece in enumerate(pieces) if piece.size is None), None)
    known = math.prod(sizes)
    if unknown is not None and known and size % known == 0:
        sizes[unknown] = size // known
        known = math.prod(sizes)
    return tuple(sizes) if known == size else None


def _spell(piece: Piece) -> str:
    return piece.name if piece.size is None else f"{piece.name}={piece.size}"


def _size_error(problem: str, text: str, span: Span, facts: str) -> AxisSizeError:
    return explained(flaw(AxisSizeError, problem, text, span), "rearrange", f"array has: {facts}")


def regrouping(text: str, names: Names, bindings: Bindings) -> Regrouping:
    """Plan an expression of rearrange for an array with these names.

    Raises:
        PatternError: if the expression is invalid, or does not fit the number of axes.
        AxisNotFoundError: if an axis is missing, or would be dropped.
        AxisClashError: if a name would refer to two axes.
    """
    expression = pattern.parse_expression(text, False)
    pattern.check_used(expression, bindings)
    if not expression.operands:
        hint = f'name the axes on the left, or write "{{}} {text.strip()}" to find them by name'
        raise flaw(PatternError, "the left side is empty", text, (0, text.index("->")), hint)
    table = dict(bindings)
    left = _bind_left(expression, names, table)

    # A keyword of the left side gives a size there; on the right it gives only a name.
    on_the_left = {term.name for term in expression.operands[0].terms} | set(left.where)
    free = {key: size for key, (_, size) in table.items() if key not in on_the_left}
    targets = tuple(_make_targets(expression, left, table, free))
    plan = Regrouping(left.sources, targets, left.sized)
    _check_complete(expression, left, plan.order)

    # This check is last: an axis that appears twice is clearer to report than two axes of one name.
    seen: set[str] = set()
    for target in targets:
        if target.name in seen:
            problem = f"axis {target.name!r} would appear twice"
            raise flaw(AxisClashError, problem, text, target.span)
        seen.add(target.name)

    # Keywords on the right check the size of an axis that is not merged.
    named = [
        term.label for term in pattern.flatten_terms(expression.result.terms) if term.label in free
    ]
    checked = tuple((name_for(table, key), free[key]) for key in named)
    return plan._replace(checked=(*left.sized, *checked))


class Left(NamedTuple):
    """The left side of an expression, bound to the names of an array.

    Attributes:
        names: the axes.
        sources: what becomes of each.
        where: the number of the piece for each name of the left side.
        rest: the pieces without a name, each a complete axis.
        sized: sizes of axes to check.
    """

    names: Names
    sources: tuple[Source, ...]
    where: dict[str, int]
    rest: tuple[int, ...]
    sized: Pairs

    @property
    def flat(self) -> Names:
        """The names of all pieces."""
        return tuple(itertools.chain.from_iterable(source.names for source in self.sources))


def _bind_left(expression: Expression, names: Names, table: Mapping[str, Bound]) -> Left:
    (side,), text = expression.operands, expression.text
    parts = itertools.chain.from_iterable(term.parts or () for term in side.terms)
    fresh = {part.name for part in parts}
    # A keyword for a piece does not apply to an axis of the same name that is split.
    whole = {key: value for key, value in table.items() if key not in fresh}
    held = dict(_match_axes(expression, names, whole))

    # Pieces are numbered from left to right over all axes of the array, in the order of the array.
    sources: list[Source] = []
    where: dict[str, int] = {}
    rest: list[int] = []
    count = 0
    for name in names:
        term = held.get(name)
        if term is None:
            rest.append(count)
            pieces: tuple[Piece, ...] = (Piece(name, None),)
        elif term.parts is None:
            where[term.label] = count
            pieces = (Piece(name, None),)
        else:
            where |= {part.label: count + i for i, part in enumerate(term.parts)}
            pieces = _make_pieces(text, term.parts, table)
        sources.append(Source(pieces, (term or side).span))
        count += len(pieces)
    sized = [(name, whole[term.label][1]) for name, term in held.items() if term.label in whole]
    return Left(names, tuple(sources), where, tuple(rest), tuple(sized))


def _match_axes(
    expression: Expression, names: Names, table: Mapping[str, Bound]
) -> Iterator[tuple[str, Term]]:
    """Yield each axis that the left side names, with its term."""
    (side,), text = expression.operands, expression.text
    # Braces find axes by name; a list without them matches by position, as in einops.
    for term in side.terms:
        if term.parts is not None and pattern.has_dots(term.parts):
            raise flaw(PatternError, "... cannot be split", text, term.span)
        # In braces, order means nothing, so that an axis needs a name to be found.
        if term.name is None and not side.ordered:
            hint = f"write the name of the axis: (name: {term.inside(text)})"
            raise flaw(PatternError, "the axis to split has no name", text, term.span, hint)
    if not side.ordered:
        for term, name in pattern.bind_by_name(text, side.terms, names, table):
            yield name, term
        return
    if not pattern.has_dots(side.terms):
        for term in expression.result.terms:
            if pattern.has_dots((term,)):
                raise flaw(PatternError, "... is only on the right", text, term.span)
    for term, axes in pattern.bind_by_position(text, side, names, "the array"):
        if term.name != DOTS:
            _check_word(text, term, axes[0], names)
            pattern.check_keyword(text, term, axes[0], table)
            yield axes[0], term


def _check_word(text: str, term: Term, axis: str, names: Names) -> None:
    """Raise PatternError for a word that is the name of another axis: the user meant that axis."""
    if term.name in names and term.name != axis:
        meaning = f"stands for {axis!r} by its position"
        problem = f"{term.name!r} is the name of another axis, but {meaning}"
        hint = "braces find axes by name, in any order: {batch pos embed}"
        raise flaw(PatternError, problem, text, term.span, hint)


def _make_pieces(text: str, parts: Sequence[Term], table: Mapping[str, Bound]) -> tuple[Piece, ...]:
    """Name the pieces of a split axis; a keyword gives a size, a name or both."""
    pieces: list[Piece] = []
    unknown: list[Term] = []
    for part in parts:
        _, size = table.get(part.label, UNBOUND)
        pieces.append(Piece(name_for(table, part.label), size))
        if size is None:
            unknown.append(part)
    if len(unknown) > 1:
        # The size of one piece may be left out: it follows from that of the axis.
        problem = f"the sizes of {' and '.join(repr(part.name) for part in unknown)} are not known"
        span = (unknown[0].start, unknown[-1].end)
        hint = f"give all but one by keyword: {unknown[0].name}=4"
        raise flaw(PatternError, problem, text, span, hint)
    return tuple(pieces)


def _make_targets(
    expression: Expression,
    left: Left,
    table: Mapping[str, Bound],
    sizes: Mapping[str, int | None],
) -> Iterator[Target]:
    """Yield each axis of the result; a merged one has the size that its keyword gives."""
    text, terms, flat = expression.text, expression.result.terms, left.flat
    single: dict[Term, int] = {}
    for term in pattern.flatten_terms(terms):
        if term.name != DOTS:
            single[term] = _find_piece(expression, left, table, term)
    # The dots stand for all pieces that no other term of the result names.
    rest = [piece for piece in left.rest if piece not in single.values()]

    def pieces_of(term: Term) -> list[int]:
        return rest if term.name == DOTS else [single[term]]

    for term in terms:
        if term.parts is None:
            for piece in pieces_of(term):
                yield Target(flat[piece], (piece,), None, term.span)
            continue
        if term.name is None:
            hint = f"write (name: {term.inside(text)})"
            raise flaw(PatternError, "a merged axis needs a name", text, term.span, hint)
        # Dots inside of parentheses merge all remaining axes.
        pieces = tuple(itertools.chain.from_iterable(map(pieces_of, term.parts)))
        if not pieces:
            problem = "no axes to merge: ... matches none"
            raise flaw(AxisNotFoundError, problem, text, term.span)
        yield Target(name_for(table, term.name), pieces, sizes.get(term.name), term.span)


def _find_piece(expression: Expression, left: Left, table: Mapping[str, Bound], term: Term) -> int:
    """Return the piece for a name on the right: a name of the left side or, if that has braces, an axis."""
    name, text = term.label, expression.text
    if name in left.where:
        return left.where[name]
    # A list of positions has bound all axes to words, so that other names mean nothing.
    if expression.operands[0].ordered:
        hint = suggestion(name, left.where)
        raise flaw(PatternError, f"{name!r} is not on the left", text, term.span, hint)
    flat = left.flat
    axis = name_for(table, name)
    own = {flat[piece]: piece for piece in left.rest}
    if axis in own:
        return own[axis]
    # The name is that of an axis, which a word of the left side has bound or which is split.
    if axis in left.names:
        keys = [repr(key) for key, piece in left.where.items() if flat[piece] == axis]
        problem = f"axis {axis!r} is {(*keys, 'split')[0]} on the left"
        raise flaw(AxisClashError, problem, text, term.span)
    hint = suggestion(axis, (*own, *left.where))
    raise flaw(AxisNotFoundError, f"no axis named {axis!r}", text, term.span, hint)


def _check_complete(expression: Expression, left: Left, order: Sequence[int]) -> None:
    """Raise an error if the result lacks a piece, or has one twice."""
    text, result = expression.text, expression.result
    # `rearrange` drops nothing: an axis that is left out was forgotten.
    terms = {term.name: term for term in pattern.flatten_terms(expression.operands[0].terms)}
    flat = left.flat
    for name, piece in left.where.items():
        if piece not in order:
            hint = f'rearrange keeps all axes; x.sum("{flat[piece]}") removes one'
            raise flaw(PatternError, f"{name!r} is not on the right", text, terms[name].span, hint)
    for piece, name in enumerate(flat):
        if order.count(piece) > 1:
            raise flaw(AxisClashError, f"axis {name!r} appears twice", text, result.span)
    lacking = [flat[piece] for piece in left.rest if piece not in order]
    if lacking:
        hint = "name all axes, or write ... for the others"
        problem = f"the result leaves out {', '.join(lacking)}"
        raise flaw(AxisNotFoundError, problem, text, result.span, hint)
