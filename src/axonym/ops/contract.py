"""Contractions: sums of products over named axes, from a list of axes (`dot`) or an expression (`einsum`)."""

from collections import Counter
from collections.abc import Callable, Sequence, Set
from functools import lru_cache, partial
from itertools import chain
from types import EllipsisType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import PrecisionLike
from jax.typing import DTypeLike

from ..axis import Axis, AxisSelection, AxisSelector, Pairs, names_in, selector
from ..base.calls import explain_calls
from ..engine import auto, checks, kernels
from ..engine.batched import apply_batched
from ..engine.core import Core, Operand, wrap
from ..engine.renaming import share_by_renaming
from ..errors import (
    AxisNotFoundError,
    OperandError,
    message,
    suggestion,
)
from ..faults import batched_products
from ..layout import assignment, constraints, explicit
from ..names import pattern, plans, subscripts
from ..names.pattern import Bindings
from ..names.plans import Names

if TYPE_CHECKING:
    from ..array import NamedArray

__all__ = [
    "dot",
    "einsum",
    "outer",
]

Labels = tuple[str | int, ...]
DotGeneral: TypeAlias = Callable[..., Any]
PartialOrder: TypeAlias = Sequence[AxisSelector | EllipsisType]
Order: TypeAlias = tuple[tuple[str | EllipsisType, ...], Pairs]
"""Names and `...`, and the sizes that were given."""


class _Options(NamedTuple):
    """How to multiply."""

    precision: PrecisionLike = None
    dtype: DTypeLike | None = None
    dot_general: DotGeneral = lax.dot_general


def dot(
    *arrays: "NamedArray",
    axis: AxisSelection | None,
    out_axes: AxisSelector | PartialOrder | None = None,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    dot_general: DotGeneral = lax.dot_general,
) -> "NamedArray":
    """Multiply arrays by name and sum over `axis`; other axes that several arrays share are matched.

    The current axis mapping shards the result. Unlike in `jnp.dot`, the call names the axes to sum over, so their order
    in storage does not matter.

    Args:
        arrays: one or more arrays.
        axis: the axes to sum over; at least two arrays must have each of them (unless there is only one array). None
            means all axes, () no axis.
        out_axes: the order of the result's axes; `...` stands for those not mentioned. The default is the order in
            which they first appear.
        precision: as in `jax.numpy.einsum`.
        preferred_element_type: the dtype to accumulate in and return.
        dot_general: the function that multiplies two arrays, such as a quantised product, with the arguments of
            `jax.lax.dot_general`, from `precision` on by keyword. It gets two arrays of one dtype, but numbers of
            8 bits and fewer as they are. More arrays are multiplied pair by pair from the left.

    Returns:
        All axes of the arrays except `axis`.

    Raises:
        AxisNotFoundError: if an axis to sum over is missing.
        AxisSizeError: if a name has two sizes.

    Examples:
        >>> Batch, Embed, Mlp = axn.make_axes(batch=2, embed=3, mlp=4)
        >>> axn.dot(axn.ones((Batch, Embed)), axn.ones((Embed, Mlp)), axis=Embed).axes
        (Axis(name='batch', size=2), Axis(name='mlp', size=4))
    """
    given = checks.make_axis_key(axis, dot)
    dtype: Any = preferred_element_type
    order = None if out_axes is None else _read_order(out_axes)
    # The usual case, written out because a comprehension costs a call.
    if len(arrays) == 2 and isinstance(arrays[0], Core) and isinstance(arrays[1], Core):
        ((a,), left), ((b,), right) = arrays[0].node, arrays[1].node
        operands: tuple[Names, ...] = (left, right)
        payloads: tuple[jax.Array, ...] = (a, b)
    else:
        for x in arrays:
            if not isinstance(x, Core):
                raise checks.no_names("dot", x)
        operands = tuple(x.node[1] for x in arrays)
        payloads = tuple(x.node[0][0] for x in arrays)

    key = (operands, given, order, precision, dtype)
    if dot_general is not lax.dot_general:  # not cached, as it may hold arrays
        custom = checks.run_plan("dot", arrays, _make_dot, *key, dot_general)
        return wrap(arrays[0], custom.body(*payloads), custom.names)
    # A dict instead of `lru_cache`, whose hits cost more: this is most of the work before an eager product.
    kernel = _dots.get(key) or plans.keep(
        _dots, key, checks.run_plan("dot", arrays, _make_dot, *key)
    )
    made: NamedArray = kernels.new(type(arrays[0]))  # `wrap`, inlined to save a call
    made.node = ((kernel.call(*payloads),), kernel.names)
    return made


def einsum(
    equation: str,
    /,
    *arrays: "NamedArray",
    precision: PrecisionLike = None,
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

    The current axis mapping shards the result.

    Args:
        equation: the expression.
        arrays: its operands.
        precision: as in `jax.numpy.einsum`.
        preferred_element_type: the dtype to accumulate in and return.
        dot_general: as in `dot`.
        axis_aliases: the axis, or its name, that a name in the expression stands for.

    Returns:
        The axes that the right side of the expression gives, in its order.

    Raises:
        PatternError: if the expression is invalid, or does not fit the number of arrays or their axes.
        AxisNotFoundError: if an axis is missing.
        AxisClashError: if a letter stands for two axes, or two letters for one.
        AxisSizeError: if a name has two sizes.

    Examples:
        >>> Batch, Embed, Mlp = axn.make_axes(batch=2, embed=3, mlp=4)
        >>> axn.einsum("b e, e m -> m b", axn.ones((Batch, Embed)), axn.ones((Embed, Mlp))).axes
        (Axis(name='mlp', size=4), Axis(name='batch', size=2))
    """
    if not isinstance(equation, str):
        hint = 'the expression comes first: einsum("b e, e m -> b m", x, w)'
        problem = f"the expression is a {type(equation).__name__}, not a str"
        raise OperandError(message("einsum", problem, hint=hint))
    for x in arrays:
        if not isinstance(x, Core):
            raise checks.no_names("einsum", x)
    dtype: object = preferred_element_type
    aliases: pattern.Bindings = (
        pattern.bind("einsum", axis_aliases, sizes=False) if axis_aliases else ()
    )
    operands = tuple(x.node[1] for x in arrays)
    payloads = [x.node[0][0] for x in arrays]

    key = (equation, operands, aliases, precision, dtype)
    if dot_general is not lax.dot_general:  # as in dot
        # `__wrapped__` is the function without its cache, which would hold the arrays too.
        custom = checks.run_plan("einsum", arrays, _make_einsum.__wrapped__, *key, dot_general)
        return wrap(arrays[0], custom.body(*payloads), custom.names)
    kernel = checks.run_plan("einsum", arrays, _make_einsum, *key)
    return wrap(arrays[0], kernel.call(*payloads), kernel.names)


def _make_dot(
    operands: tuple[Names, ...],
    axis: str | Pairs | None,
    order: Order | None,
    precision: PrecisionLike,
    dtype: DTypeLike | None,
    dot_general: DotGeneral = lax.dot_general,
) -> kernels.Kernel:
    """Make the kernel of a contraction."""
    union = plans.unite(operands)
    given = checks.resolve_axis(axis, "dot", union)
    contracted = names_in(given)
    plans.require(union, contracted)
    # An axis that only one operand has is more often a typo than a sum; None asks for all axes, whoever has them.
    if axis is not None and len(operands) > 1:
        _require_two(operands, contracted)

    out = plans.without(union, contracted)
    if order is not None:
        entries, sizes = order
        out = plans.complete(out, entries)
        given = (*given, *sizes)
    options = _Options(precision, dtype, dot_general)
    return _choose_maker(options)("dot", operands, contracted, out, given, options)


def _require_two(operands: Sequence[Names], contracted: Names) -> None:
    """Raise AxisNotFoundError if only one operand has an axis to sum over."""
    for name in contracted:
        holders = [i for i, names in enumerate(operands, start=1) if name in names]
        if len(holders) == 1:
            problem = f"axis {name!r} is to be summed over, but only operand {holders[0]} has it"
            hint = f'if it is meant, sum that operand first: x.sum("{name}")'
            own = operands[holders[0] - 1]
            others = [other for other in chain(*operands) if other not in own]
            near = suggestion(name, others)
            if near:
                hint = f"{near} Or, {hint}"
            raise AxisNotFoundError(problem, hint)


def _read_order(out_axes: AxisSelector | PartialOrder) -> Order:
    """Normalise an order of axes."""
    entries: list[str | EllipsisType] = []
    sizes: list[tuple[str, int | None]] = []
    if isinstance(out_axes, str | Axis):
        out_axes = (out_axes,)
    for entry in out_axes:
        if isinstance(entry, EllipsisType):
            entries.append(entry)
            continue
        name, size = selector(entry, "dot")
        entries.append(name)
        if size is not None:
            sizes.append((name, size))
    return tuple(entries), tuple(sizes)


_dots: dict[Any, kernels.Kernel] = {}


def _make_contraction(
    function: str,
    operands: tuple[Names, ...],
    contracted: Names,
    out: Names,
    given: Pairs,
    options: _Options,
) -> kernels.Kernel:
    """Make the kernel of a contraction: the axes to sum over, those of the result, sizes to check, and options."""

    def body(*arrays: jax.Array) -> jax.Array:
        sizes = checks.check_sizes(function, operands, arrays)
        for names, array in zip(operands, arrays, strict=True):
            own = tuple((name, size) for name, size in given if name in names)
            checks.check_given(function, own, names, array.shape)
        repeated, anonymous = kernels.repeat_anonymous(function, operands, arrays)
        labels = [
            plans.labels(names, array.ndim) for names, array in zip(operands, repeated, strict=True)
        ]
        # Before the product is computed, which a size that does not divide would make vain.
        constraints.check_result(out, sizes)
        target = plans.labels(out, len(anonymous) + len(out))
        result = _contract(repeated, labels, contracted, target, options)
        return constraints.shard_result(result, out)

    return kernels.Kernel(out, body)


# Operands that differ only in their names share a kernel, and so a compiled program.
_find_contraction = share_by_renaming("operands", "contracted", "out", "given")(_make_contraction)


def _choose_maker(options: _Options) -> Callable[..., kernels.Kernel]:
    """Return the maker of a kernel. The maker memoises no kernel with a user's product, which may hold arrays."""
    return _find_contraction if options.dot_general is lax.dot_general else _make_contraction


def _contract(
    arrays: Sequence[jax.Array],
    labels: Sequence[Labels],
    contracted: Names,
    out: Labels,
    options: _Options,
) -> jax.Array:
    """Contract arrays with labelled dimensions; on a mesh with Explicit axes, set the layout of the result."""
    entries: list[assignment.Entry] | None = None
    if any(map(explicit.has_explicit_axes, arrays)):
        arrays, entries = _reshard_operands(
            explicit.move_to_one_mesh(arrays), labels, contracted, out
        )
    elif contracted:
        # The compiler decides on Auto axes, but gets one arrangement wrong.
        counts = Counter(chain.from_iterable(labels))
        batch = {label for label in out if isinstance(label, str) and counts[label] > 1}
        lay_out = partial(batched_products.shard_batch, batch=batch)
        arrays = list(map(lay_out, arrays, labels))

    # One array alone is only summed: there is nothing to multiply.
    if options.dot_general is not lax.dot_general and len(arrays) > 1:
        return _contract_by(arrays, labels, contracted, out, options, entries or [])
    # The usual case needs no einsum, which would read letters and search for an order of products at each trace.
    if len(arrays) == 2 and set(contracted) <= set(labels[0]) & set(labels[1]):
        return _contract_two(arrays, labels, contracted, out, options, entries)

    sharding = None
    if entries is not None:
        sharding = explicit.make_sharding(arrays[0], entries)
        if _is_bool(arrays, options.dtype):
            # Sums of bools are `any`, for which JAX takes no sharding.
            arrays, labels = _reduce_lone_axes(jnp.any, arrays, labels, contracted)
    # JAX's einsum multiplies two integers before a third operand of bfloat16, whose dtype cannot hold the result.
    return jnp.einsum(
        plans.letters(labels, out),
        *_promote(*arrays),
        precision=options.precision,
        preferred_element_type=options.dtype,
        out_sharding=sharding,
    )


def _contract_two(
    arrays: Sequence[jax.Array],
    labels: Sequence[Labels],
    contracted: Names,
    out: Labels,
    options: _Options,
    entries: Sequence[assignment.Entry] | None,
) -> jax.Array:
    """Contract two arrays that both have all axes to sum over."""
    # `dot_general` orders its result as batch axes, then those of the left, then those of the right operand.
    plan = plans.contraction(labels[0], labels[1], contracted, out)
    left, right = _promote(*arrays)
    sharding = None
    if entries is not None:
        if plan.order is not None:  # the product has its dimensions in another order
            entries = [entries[plan.order.index(at)] for at in range(len(entries))]
        sharding = explicit.make_sharding(left, entries)

    numbers = (plan.contract, plan.batch)
    result = lax.dot_general(
        left, right, numbers, options.precision, options.dtype, out_sharding=sharding
    )
    return result if plan.order is None else lax.transpose(result, plan.order)


def _contract_by(
    arrays: Sequence[jax.Array],
    labels: Sequence[Labels],
    contracted: Names,
    out: Labels,
    options: _Options,
    entries: list[assignment.Entry],
) -> jax.Array:
    """Contract arrays by a function of the caller, which may hold arrays too."""
    # Within `auto.local`, arrays of a closure would keep their Explicit types, so they come in as arguments.
    held, rebuild = _take_arrays_out(options.dot_general)
    count = len(arrays)

    def multiply_all(*inputs: jax.Array) -> jax.Array:
        own = rebuild(inputs[count:])
        multiply = partial(own, precision=options.precision, preferred_element_type=options.dtype)
        return _contract_pairs(multiply, options.dtype, labels, contracted, out, *inputs[:count])

    product: jax.Array = auto.local(multiply_all, [*arrays, *held], entries)
    return product


def _is_bool(arrays: Sequence[jax.Array], dtype: DTypeLike | None) -> bool:
    return jnp.dtype(dtype or jnp.result_type(*arrays)) == jnp.dtype(bool)


def _reduce_lone_axes(
    reduction: Callable[[jax.Array, tuple[int, ...]], jax.Array],
    arrays: Sequence[jax.Array],
    labels: Sequence[Labels],
    contracted: Names,
) -> tuple[list[jax.Array], list[Labels]]:
    """Reduce each array over the axes to sum over that no other array has."""
    counts = Counter(chain.from_iterable(labels))
    reduced: list[jax.Array] = []
    remaining: list[Labels] = []
    for array, own in zip(arrays, labels, strict=True):
        # An axis that occurs once in all labels has nothing to be matched with.
        alone = [label for label in plans.intersect(own, contracted) if counts[label] == 1]
        if alone:
            array = reduction(array, tuple(map(own.index, alone)))
        reduced.append(array)
        remaining.append(plans.without(own, tuple(alone)))
    return reduced, remaining


def _promote(*arrays: jax.Array) -> Sequence[jax.Array]:
    first = arrays[0].dtype
    if all(array.dtype == first for array in arrays):
        return arrays
    common = jnp.result_type(*arrays)
    return [array.astype(common) for array in arrays]


def _take_arrays_out(
    dot_general: DotGeneral,
) -> tuple[list[jax.Array], Callable[[Sequence[jax.Array]], DotGeneral]]:
    """Take the arrays out of `dot_general`; return them, and the function that puts them back."""
    arrays, rest = eqx.partition(dot_general, lambda leaf: isinstance(leaf, jax.Array))
    held, tree = jax.tree.flatten(arrays)

    def rebuild(held: Sequence[jax.Array]) -> DotGeneral:
        own: DotGeneral = eqx.combine(jax.tree.unflatten(tree, held), rest)
        return own

    return held, rebuild


def _contract_pairs(
    multiply: DotGeneral,
    dtype: DTypeLike | None,
    labels: Sequence[Labels],
    contracted: Names,
    out: Labels,
    *arrays: jax.Array,
) -> jax.Array:
    """Contract arrays from the left; sum over each axis as soon as no later array has it."""

    def sum_over(array: jax.Array, at: tuple[int, ...]) -> jax.Array:
        return array.sum(at, dtype=dtype or array.dtype)

    # `dot_general` sums only over axes of both operands.
    operands, remaining = _reduce_lone_axes(sum_over, arrays, labels, contracted)
    left, have = operands[0], remaining[0]
    for i, (right, own) in enumerate(zip(operands[1:], remaining[1:], strict=True), start=2):
        later = tuple(chain.from_iterable(remaining[i:]))
        both = plans.intersect(have, own)
        summed = plans.without(plans.intersect(contracted, both), later)
        shared = plans.without(both, summed)
        free = plans.without(plans.union(have, own), both)
        # Before the last product the order is free; this one spares a transposition.
        target = (*shared, *free) if i < len(operands) else out

        plan = plans.contraction(have, own, summed, target)
        # Numbers of 8 bits and fewer mean something only with their scales, which the product knows.
        if all(x.dtype.itemsize > 1 or x.dtype == bool for x in (left, right)):
            left, right = _promote(left, right)
        left, have = multiply(left, right, (plan.contract, plan.batch)), target
        if plan.order is not None:
            left = lax.transpose(left, plan.order)
    return left


def _reshard_operands(
    arrays: Sequence[jax.Array], labels: Sequence[Labels], contracted: Names, out: Labels
) -> tuple[list[jax.Array], list[assignment.Entry]]:
    """Choose one layout per label, reshard the operands to it, and return the mesh axes of the result.

    The mapping applies to results; contracted axes keep the layout of the operands, on mesh axes that nothing else
    needs. If an operand has a contracted axis on the mesh axes of an axis of the result, it is not resharded: the
    partial sums are scattered.
    """
    operands = list(zip(labels, map(explicit.get_layout, arrays), strict=True))
    sizes: dict[str | int, int] = {}
    for array, own in zip(arrays, labels, strict=True):
        sizes.update(zip(own, array.shape, strict=True))
    decided = constraints.decide_layout(tuple(x for x in out if isinstance(x, str)), sizes)
    table = explicit.choose(out, labels, arrays, decided)
    summed: dict[str | int, assignment.Entry] = {**explicit.choose(contracted, labels, arrays)}
    counts = Counter(chain.from_iterable(labels))

    wanted: list[dict[str | int, assignment.Entry]] = []
    for own, has in operands:
        held: set[str] = set()
        for label, entry in zip(own, has, strict=True):
            held |= set(entry) & set(summed.get(label, ()))
        entries = {label: table[label] for label in own if label in table}
        for label in entries:
            # An axis of one operand gives way to its contracted one: `dot_general` then scatters partial sums.
            if len(arrays) == 2 and counts[label] == 1:
                entries[label] = _drop_axes(entries[label], held)
        wanted.append(entries)

        # A mesh axis shards one dimension of an array, so that the rest of the sum moves elsewhere.
        taken = set(chain.from_iterable(entries.values()))
        for label in plans.intersect(contracted, own):
            summed[label] = _drop_axes(summed[label], taken)

    moved = [
        explicit.reshard(array, plans.values_at({**summed, **entries}, own), own)
        for array, own, entries in zip(arrays, labels, wanted, strict=True)
    ]
    return moved, list(plans.values_at(table, out))


def _drop_axes(entry: assignment.Entry, axes: Set[str]) -> assignment.Entry:
    return tuple(axis for axis in entry if axis not in axes)


@lru_cache(plans.CACHE)
def _make_einsum(
    equation: str,
    operands: tuple[Names, ...],
    aliases: Bindings,
    precision: PrecisionLike,
    dtype: DTypeLike | None,
    dot_general: DotGeneral = lax.dot_general,
) -> kernels.Kernel:
    """Make the kernel of an expression."""
    contracted, out, given = subscripts.plan_einsum(equation, operands, aliases)
    options = _Options(precision, dtype, dot_general)
    return _choose_maker(options)("einsum", operands, contracted, out, given, options)


def outer(x: Operand, y: Operand) -> "NamedArray":
    """Multiply each element of `x` by each of `y`; axes that both have are matched.

    `jnp.outer` flattens its operands first; here operands keep their axes.

    Args:
        x: any axes, or a scalar.
        y: any axes, or a scalar.

    Returns:
        The axes of both, those of `x` first.

    Raises:
        AxisSizeError: if a name has two sizes.

    Examples:
        >>> axn.linalg.outer(axn.named([1, 2], "i"), axn.named([3, 4], "j"))
        NamedArray(int32[i=2, j=2])
        [[3 4]
         [6 8]]
    """
    return apply_batched(_outer, [x, y], [(), ()], (), outer=True)


def _outer(x: jax.Array, y: jax.Array) -> jax.Array:
    return x * y


explain_calls(globals(), __all__)
