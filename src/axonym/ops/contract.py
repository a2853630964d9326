"""Contractions: sums of products over named axes, from a list of axes (`dot`) or an expression (`einsum`)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from types import EllipsisType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from .. import _constraints, layout, plans
from ..axis import Axis, AxisSelection, AxisSelector, Pairs, selection, selector
from ..core import Core, wrap
from ..errors import AxisClashError, AxisError, AxisNotFoundError, OperandError, PatternError, message, suggestion
from ..plans import Names
from . import _lift, _pattern
from ._pattern import DOTS, Bindings, Bound, Expression, Term, flaw

if TYPE_CHECKING:
    from ..array import NamedArray

__all__ = ["dot", "einsum"]

Labels = tuple[str | int, ...]
DotGeneral: TypeAlias = Callable[..., Any]
PartialOrder: TypeAlias = Sequence[AxisSelector | EllipsisType]


def dot(
    *arrays: "NamedArray",
    axis: AxisSelection | None,
    out_axes: AxisSelector | PartialOrder | None = None,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
    dot_general: DotGeneral = lax.dot_general,
) -> "NamedArray":
    """Multiply arrays by name and sum over `axis`; other axes that several arrays share are matched.

    The result is laid out by the current axis mapping.

    Args:
        arrays: one or more arrays.
        axis: the axes to sum over; at least two arrays must have each of them (unless there is only one array). None
            means all axes, () none.
        out_axes: the order of the result's axes; `...` stands for those not mentioned. The default is the order in
            which they first appear.
        precision: as in `jax.numpy.einsum`.
        preferred_element_type: the dtype to accumulate in and return.
        dot_general: the function that multiplies two arrays, such as a quantised product, with the arguments of
            `jax.lax.dot_general`, from `precision` on by keyword. More arrays are multiplied pair by pair from the
            left.

    Raises:
        AxisNotFoundError: if an axis to sum over is missing.
        AxisSizeError: if a name has two sizes.

    Example:
        >>> Batch, Embed, Mlp = axn.make_axes(batch=2, embed=3, mlp=4)
        >>> axn.dot(axn.ones((Batch, Embed)), axn.ones((Embed, Mlp)), axis=Embed).axes
        (Axis(name='batch', size=2), Axis(name='mlp', size=4))
    """
    given = axis if axis.__class__ is str else _lift.keyed(axis, dot)
    dtype: Any = preferred_element_type
    order = None if out_axes is None else _entries(out_axes)
    try:
        if len(arrays) == 2:  # the usual case, written out because a comprehension costs a call
            ((a,), left), ((b,), right) = arrays[0].node, arrays[1].node
            operands: tuple[Names, ...] = (left, right)
            payloads: tuple[jax.Array, ...] = (a, b)
        else:
            operands, payloads = tuple(x.node[1] for x in arrays), tuple(x.node[0][0] for x in arrays)
        if dot_general is not lax.dot_general:  # not cached, as it may hold arrays
            custom = _dot(operands, given, order, precision, dtype, dot_general)
            return wrap(arrays[0], custom.body(*payloads), custom.names)
        key = (operands, given, order, precision, dtype)
        kernel = _dots.get(key) or plans.keep(_dots, key, _dot(*key))
    except AxisError as flaw:
        _lift.fail("dot", flaw, *arrays)
    except AttributeError:
        raise _lift.unnamed("dot", next((x for x in arrays if not isinstance(x, Core)), None)) from None
    return wrap(arrays[0], kernel.call(*payloads), kernel.names)


def einsum(
    equation: str,
    /,
    *arrays: "NamedArray",
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
    dot_general: DotGeneral = lax.dot_general,
    **axis_aliases: AxisSelector,
) -> "NamedArray":
    """Contract arrays by an expression; axes keep their names.

    There are three forms, all with spaces between names:

    * `"b s e, e m -> b s m"`: letters bind by position, and a letter must stand for the same axis everywhere.
      `...` stands for all axes without a letter;
    * `"{embed mlp}, {mlp} -> mlp"`: names bind by name. Axes named only on the left are summed over; axes not
      mentioned come first, or where `...` is on the right. `...` only on the left sums over them;
    * `"-> batch mlp"`: the axes of the result; all others are summed over.

    The result is laid out by the current axis mapping.

    Args:
        equation: the expression.
        arrays: its operands.
        precision: as in `jax.numpy.einsum`.
        preferred_element_type: the dtype to accumulate in and return.
        dot_general: as in `dot`.
        axis_aliases: the axis, or its name, that a name in the expression stands for.

    Raises:
        PatternError: if the expression is invalid, or does not fit the number of arrays or their axes.
        AxisNotFoundError: if an axis is missing.
        AxisClashError: if a letter stands for two axes, or two letters for one.
        AxisSizeError: if a name has two sizes.

    Example:
        >>> Batch, Embed, Mlp = axn.make_axes(batch=2, embed=3, mlp=4)
        >>> axn.einsum("b e, e m -> m b", axn.ones((Batch, Embed)), axn.ones((Embed, Mlp))).axes
        (Axis(name='mlp', size=4), Axis(name='batch', size=2))
    """
    if not isinstance(equation, str):
        hint = 'the expression comes first: einsum("b e, e m -> b m", x, w)'
        raise OperandError(message("einsum", f"the expression is a {type(equation).__name__}, not a str", hint=hint))
    for x in arrays:
        if not isinstance(x, Core):
            raise _lift.unnamed("einsum", x)
    dtype: Any = preferred_element_type
    aliases = _pattern.bind("einsum", axis_aliases, sizes=False) if axis_aliases else ()
    operands, payloads = tuple(x.node[1] for x in arrays), tuple(x.node[0][0] for x in arrays)
    try:
        if dot_general is not lax.dot_general:  # as in dot
            custom = _einsum.__wrapped__(equation, operands, aliases, precision, dtype, dot_general)
            return wrap(arrays[0], custom.body(*payloads), custom.names)
        kernel = _einsum(equation, operands, aliases, precision, dtype)
    except AxisError as flawed:
        _lift.fail("einsum", flawed, *arrays)
    return wrap(arrays[0], kernel.call(*payloads), kernel.names)


def _dot(
    operands: tuple[Names, ...],
    axis: Any,
    order: Any,
    precision: Any,
    dtype: Any,
    dot_general: DotGeneral = lax.dot_general,
) -> _lift.Kernel:
    """Make the kernel of a contraction."""
    given = axis if axis is None or isinstance(axis, tuple) else selection(axis, "dot")
    union: Names = ()
    for names in operands:
        union = plans.union(union, names)
    contracted = union if given is None else tuple(name for name, _ in given)
    plans.require(union, contracted)
    if given is not None and len(operands) > 1:
        for name in contracted:
            holders = [names for names in operands if name in names]
            if len(holders) == 1:
                raise AxisNotFoundError(
                    f"axis {name!r} is to be summed over, but only operand {operands.index(holders[0]) + 1} has it",
                    f'if it is meant, sum that operand first: x.sum("{name}")',
                )
    out = plans.without(union, contracted)
    if order is not None:
        out = plans.complete(out, tuple(e if e is ... else e[0] for e in order))
        given = (*(given or ()), *(e for e in order if e is not ... and e[1] is not None))

    return _kernel("dot", operands, contracted, out, given or (), (precision, dtype, dot_general))


def _entries(out_axes: AxisSelector | PartialOrder) -> tuple[Any, ...]:
    """Normalise an order of axes: names with the sizes that were given, and `...`."""
    entries = (out_axes,) if isinstance(out_axes, str | Axis) else out_axes
    return tuple(e if e is ... else selector(e, "dot") for e in entries)


_dots: dict[Any, _lift.Kernel] = {}


def _kernel(
    function: str,
    operands: tuple[Names, ...],
    contracted: Names,
    out: Names,
    given: Pairs,
    options: tuple[Any, Any, DotGeneral],
) -> _lift.Kernel:
    """Make the kernel of a contraction: the axes to sum over, those of the result, sizes to check, and options."""

    def body(*arrays: Any) -> Any:
        sizes = _lift.check_sizes(function, operands, arrays)
        for names, array in zip(operands, arrays, strict=True) if given else ():
            own = tuple((name, size) for name, size in given if name in names)
            _lift.check_given(function, own, names, array.shape)
        _constraints.check_result(out, sizes)
        labels = [(*range(len(names) - a.ndim, 0), *names) for a, names in zip(arrays, operands, strict=True)]
        anonymous = range(min(len(names) - a.ndim for a, names in zip(arrays, operands, strict=True)), 0)
        result = _product(arrays, labels, contracted, (*anonymous, *out), *options)
        return _constraints.lay_out(result, out)

    return _lift.Kernel(out, body)


def _product(
    arrays: Sequence[jax.Array],
    labels: Sequence[Labels],
    contracted: Names,
    out: Labels,
    precision: Any,
    dtype: Any,
    dot_general: DotGeneral,
) -> jax.Array:
    """Contract arrays with labelled dimensions; on a mesh with Explicit axes, set the layout of the result."""
    sharding = None
    entries: list[layout.Entry] = []
    if any(map(_constraints.has_explicit_axes, arrays)):
        arrays, entries = _explicit(_constraints.on_one_mesh(arrays), labels, contracted, out)
        sharding = _constraints.sharding_from(arrays[0], entries)
    if dot_general is not lax.dot_general and len(arrays) > 1:
        held, rebuilt = _opened(dot_general)

        def multiplied(*inputs: jax.Array) -> jax.Array:
            own = rebuilt(inputs[len(arrays) :])
            multiply = partial(own, precision=precision, preferred_element_type=dtype)
            return _by_pairs(multiply, dtype, labels, contracted, out, *inputs[: len(arrays)])

        product: jax.Array = _lift.local(multiplied, [*arrays, *held], entries)
        return product
    if len(arrays) != 2 or not all(label in labels[0] and label in labels[1] for label in contracted):
        if sharding is not None and _is_bool(arrays, dtype):
            arrays, labels = _bools_reduced(arrays, labels, contracted)
        equation = plans.letters(labels, out)
        # JAX's einsum multiplies two integers before a third operand of bfloat16, whose dtype cannot hold the result.
        arrays = _one_dtype(*arrays)
        return jnp.einsum(equation, *arrays, precision=precision, preferred_element_type=dtype, out_sharding=sharding)
    plan = plans.contraction(labels[0], labels[1], contracted, out)
    left, right = _one_dtype(*arrays)
    if sharding is not None and plan.order is not None:
        sharding = _constraints.sharding_from(left, [entries[plan.order.index(at)] for at in range(len(entries))])
    result = lax.dot_general(
        left, right, (plan.contract, plan.batch), precision, preferred_element_type=dtype, out_sharding=sharding
    )
    return result if plan.order is None else lax.transpose(result, plan.order)


def _is_bool(arrays: Sequence[jax.Array], dtype: Any) -> bool:
    return jnp.dtype(dtype or jnp.result_type(*arrays)) == jnp.dtype(bool)


def _bools_reduced(
    arrays: Sequence[jax.Array], labels: Sequence[Labels], contracted: Names
) -> tuple[list[jax.Array], list[Labels]]:
    """Sum bools, which is `any`, over axes that no other array has: JAX cannot do this with an explicit sharding."""
    reduced, remaining = [], []
    for i, (array, own) in enumerate(zip(arrays, labels, strict=True)):
        others = {label for j, other in enumerate(labels) if j != i for label in other}
        alone = tuple(label for label in own if label in contracted and label not in others)
        if alone:
            array = array.any(tuple(map(own.index, alone)))
            own = tuple(label for label in own if label not in alone)
        reduced.append(array)
        remaining.append(own)
    return reduced, remaining


def _one_dtype(*arrays: jax.Array) -> Sequence[jax.Array]:
    first = arrays[0].dtype
    if all(array.dtype == first for array in arrays):
        return arrays
    common = jnp.result_type(*arrays)
    return [array.astype(common) for array in arrays]


def _opened(dot_general: DotGeneral) -> tuple[list[jax.Array], Callable[[Sequence[jax.Array]], DotGeneral]]:
    """Take the arrays out of `dot_general`: as constants, they would keep their Explicit types where others do not."""
    leaves, tree = jax.tree.flatten(dot_general)
    at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]

    def rebuilt(held: Sequence[jax.Array]) -> DotGeneral:
        filled = dict(zip(at, held, strict=True))
        own: DotGeneral = jax.tree.unflatten(tree, [filled.get(i, leaf) for i, leaf in enumerate(leaves)])
        return own

    return [leaves[i] for i in at], rebuilt


def _by_pairs(
    multiply: DotGeneral, dtype: Any, labels: Sequence[Labels], contracted: Names, out: Labels, *arrays: jax.Array
) -> jax.Array:
    """Contract arrays from the left; sum over each axis as soon as no later array has it."""
    operands = []
    for i, (array, own) in enumerate(zip(arrays, labels, strict=True)):
        others = {label for j, other in enumerate(labels) if j != i for label in other}
        alone = tuple(label for label in own if label in contracted and label not in others)
        array = array.sum(tuple(map(own.index, alone)), dtype=dtype or array.dtype) if alone else array
        operands.append((array, tuple(label for label in own if label not in alone)))
    (left, have), *rest = operands
    for i, (right, own) in enumerate(rest, start=2):
        later = {label for _, other in operands[i:] for label in other}
        summed = tuple(x for x in contracted if x in have and x in own and x not in later)
        shared = tuple(x for x in have if x in own and x not in summed)
        free = tuple(x for x in (*have, *own) if x not in summed and x not in shared)
        target = out if i == len(operands) else (*shared, *free)
        plan = plans.contraction(have, own, summed, target)
        left, have = multiply(*_one_dtype(left, right), (plan.contract, plan.batch)), target
        left = left if plan.order is None else lax.transpose(left, plan.order)
    return left


def _explicit(
    arrays: Sequence[jax.Array], labels: Sequence[Labels], contracted: Names, out: Labels
) -> tuple[list[jax.Array], list[layout.Entry]]:
    """Choose one layout per label, reshard the operands to it, and return the mesh axes of the result.

    The mapping applies to results; contracted axes keep the layout of the operands, on mesh axes that they need for
    nothing else. If an operand has a contracted axis on the mesh axes of an axis of the result, it is not resharded:
    the partial sums are scattered.
    """
    operands = [(own, _constraints.entries_of(array)) for array, own in zip(arrays, labels, strict=True)]
    sizes = dict(pair for array, own in zip(arrays, labels, strict=True) for pair in zip(own, array.shape, strict=True))
    names = tuple(label for label in out if isinstance(label, str))
    table = _constraints.settle(out, operands, _constraints.decided(names, sizes))
    summed = _constraints.settle(contracted, operands)
    wanted = []
    for own, has in operands:
        held = {axis for label, now in zip(own, has, strict=True) for axis in now if axis in summed.get(label, ())}
        alone = {label for label in own if len(arrays) == 2 and sum(label in other for other in labels) == 1}
        entries = {label: table[label] for label in own if label in table}
        for label in alone & entries.keys():
            entries[label] = tuple(axis for axis in entries[label] if axis not in held)
        wanted.append(entries)
        taken = {axis for entry in entries.values() for axis in entry}
        for label in contracted:
            if label in own:
                summed[label] = tuple(axis for axis in summed[label] if axis not in taken)
    moved = [
        _constraints.relayout(array, [{**summed, **entries}[label] for label in own], own)
        for array, own, entries in zip(arrays, labels, wanted, strict=True)
    ]
    return moved, [table[label] for label in out]


@lru_cache(plans.CACHE)
def _einsum(
    equation: str,
    operands: tuple[Names, ...],
    aliases: Bindings,
    precision: Any,
    dtype: Any,
    dot_general: DotGeneral = lax.dot_general,
) -> _lift.Kernel:
    """Make the kernel of an expression."""
    contracted, out, given = _read(equation, operands, aliases)
    return _kernel("einsum", operands, contracted, out, given, (precision, dtype, dot_general))


class _Einsum(NamedTuple):
    """The axes that are summed over, those of the result, and sizes to check."""

    contracted: Names
    out: Names
    given: tuple[tuple[str, int], ...]


def _read(text: str, operands: tuple[Names, ...], aliases: Bindings) -> _Einsum:
    """Plan an einsum over operands with these names."""
    expression = _pattern.read(text, True)
    _pattern.all_used(expression, aliases)
    table = dict(aliases)
    sides, result = expression.operands, expression.result.terms
    if not operands:
        raise flaw(PatternError, "no arrays given", text, None)
    if sides and len(sides) != len(operands):
        count = f"{len(sides)} operand{'s' * (len(sides) != 1)}"
        problem = f"the expression has {count}, but {len(operands)} were given"
        raise flaw(PatternError, problem, text, (sides[0].start, sides[-1].end))
    union = tuple(dict.fromkeys(name for names in operands for name in names))
    ordered = bool(sides) and all(side.ordered for side in sides)
    bound = _ordered(expression, operands, table) if ordered else {}
    named = set(bound.values()) if ordered else set(_named(expression, operands, table))
    if ordered:
        wanted = tuple(_wanted(expression, bound))
    else:
        wanted = tuple(name for _, name in _pattern.by_name(text, result, union, table))
    rest = tuple(name for name in union if name not in wanted and name not in named)
    out = wanted
    if _pattern.has_dots(result):
        at = [term.name for term in result].index(DOTS)
        out = (*wanted[:at], *rest, *wanted[at:])
    elif sides and not any(_pattern.has_dots(side.terms) for side in sides):
        out = (*rest, *wanted)
    given = tuple((bound.get(key, name or key), size) for key, (name, size) in aliases if size is not None)
    return _Einsum(tuple(name for name in union if name not in out), out, given)


def _named(expression: Expression, operands: tuple[Names, ...], table: Mapping[str, Bound]) -> Iterator[str]:
    """Look up the axes named by operands in braces."""
    for side, names in zip(expression.operands, operands, strict=bool(expression.operands)):
        if side.ordered and [term.name for term in side.terms] != [DOTS]:
            hint = "use braces for all operands: their axes are then found by name"
            at = (side.start, side.end)
            raise flaw(PatternError, "only some operands are in braces", expression.text, at, hint)
        yield from (name for _, name in _pattern.by_name(expression.text, side.terms, names, table))


def _ordered(expression: Expression, operands: tuple[Names, ...], table: Mapping[str, Bound]) -> dict[str, str]:
    """Bind the letters of ordered operands, each to one axis in all of them."""
    text = expression.text
    bound: dict[str, str] = {}
    dotted: dict[str, Term] = {}
    for number, (side, names) in enumerate(zip(expression.operands, operands, strict=True), start=1):
        for term, axes in _pattern.by_position(text, side, names, f"operand {number}"):
            if term.name is None or term.name == DOTS:
                dotted.update(dict.fromkeys(axes, term))
            else:
                _pattern.agree(text, term, axes[0], table)
                _bind(text, term, term.name, axes[0], number, bound)
    for letter, name in bound.items():
        if name in dotted:
            problem = f"axis {name!r} is {letter!r} in one operand and covered by ... in another"
            at = (dotted[name].start, dotted[name].end)
            raise flaw(AxisClashError, problem, text, at, f"write {letter!r} in both")
    left = [side for side in expression.operands if _pattern.has_dots(side.terms)]
    if bool(left) != _pattern.has_dots(expression.result.terms):
        problem = f"... is only on the {'left' if left else 'right'}"
        term = next(t for side in left or [expression.result] for t in side.terms if t.name == DOTS)
        hint = "write ... on both sides, or give letters to the axes to sum over" if left else None
        raise flaw(PatternError, problem, text, (term.start, term.end), hint)
    return bound


def _bind(text: str, term: Term, letter: str, name: str, number: int, bound: dict[str, str]) -> None:
    """Bind a letter to an axis, which no other letter may stand for."""
    at = (term.start, term.end)
    if bound.setdefault(letter, name) != name:
        problem = f"{letter!r} stands for axis {bound[letter]!r}, but operand {number} has {name!r} there"
        hint = f'use another letter, or rename the axis: x.rename({{"{name}": "{bound[letter]}"}})'
        raise flaw(AxisClashError, problem, text, at, hint)
    for other, axis in bound.items():
        if axis == name and other != letter:
            hint = f"use one letter, or rename the axis of operand {number}"
            raise flaw(AxisClashError, f"{other!r} and {letter!r} both stand for axis {name!r}", text, at, hint)


def _wanted(expression: Expression, bound: Mapping[str, str]) -> Iterator[str]:
    """Look up the axes of an ordered result."""
    for term in expression.result.terms:
        if term.name is not None and term.name != DOTS:
            if term.name not in bound:
                hint = suggestion(term.name, bound)
                at = (term.start, term.end)
                raise flaw(PatternError, f"{term.name!r} is not on the left", expression.text, at, hint)
            yield bound[term.name]
