"""Internal. The engine that maps a positional function of a few axes over all others, by name.

The axes that the function works on are its *core* axes, named by the caller. All other axes are *batch* axes: they are
matched by name, and the function is applied for each of their positions. An operation of this kind is one call of
`apply_batched`; for a function with an `axis` argument and one operand, `along.along` is simpler.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence, Set
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import jax
import jax.numpy as jnp

from ..axis import AxisSelection, Pairs, names_in, selection, selectors
from ..base.kinds import Payload
from ..errors import AxisNotFoundError, OperandError, message, suggestion
from ..layout import explicit
from ..layout.assignment import Entry
from ..layout.partition import without
from ..names import plans
from ..names.plans import Names
from . import auto, checks, kernels, pointwise
from .core import shape_of, wrap
from .nonempty import explain_empty
from .renaming import share_by_renaming

if TYPE_CHECKING:
    from ..array import NamedArray

Function = Callable[..., Any]


@overload
def apply_batched(
    fn: Function,
    operands: Sequence[Payload],
    core: Sequence[AxisSelection],
    out: Names,
    *,
    each: bool = False,
    outer: bool = False,
    in_place: bool = False,
    whole: bool = False,
    **options: Any,
) -> "NamedArray": ...
@overload
def apply_batched(
    fn: Function,
    operands: Sequence[Payload],
    core: Sequence[AxisSelection],
    out: tuple[Names, ...],
    *,
    each: bool = False,
    outer: bool = False,
    in_place: bool = False,
    whole: bool = False,
    **options: Any,
) -> Any: ...
def apply_batched(
    fn: Function,
    operands: Sequence[Payload],
    core: Sequence[AxisSelection],
    out: Names | tuple[Names, ...],
    *,
    each: bool = False,
    outer: bool = False,
    in_place: bool = False,
    whole: bool = False,
    **options: object,
) -> "NamedArray | tuple[NamedArray, ...]":
    """Apply a positional function to the core axes of its operands, for each position of their batch axes.

    The result has the batch axes, in the order of the operand that contains all others, and then those of `out`.

    Args:
        fn: the function. It gets arrays with their batch dimensions aligned, so that they broadcast, and then their
            core dimensions in the order of `core`.
        operands: named arrays, scalars, and plain arrays that have only core dimensions.
        core: for each operand the axes that the function works on.
        out: the names of the trailing dimensions of the result; a tuple of such tuples if `fn` returns a tuple.
        each: map the function, which has no batch dimensions, by `jax.vmap`.
        outer: no operand needs to contain the batch axes of all others, as in a contraction: those that the first one
            lacks follow its own.
        in_place: the axes of `out` replace the core axes of the first operand in place.
        whole: on Explicit mesh axes, core axes are gathered first. Otherwise the compiler decides what devices send,
            and a core axis that the result also has stays split if its new size divides.
        options: keyword arguments of `fn`, static and hashable.

    Raises:
        AxisNotFoundError: if a core axis is missing.
        AxisSizeError: if a name has two sizes.
        AxisClashError: if a name of `out` is that of a batch axis.
        BroadcastError: if no operand contains the batch axes of all others, unless `outer`.
        OperandError: if no operand has names, or one has the wrong type.
    """
    like, named, arrays = pointwise.separate_operands(fn, operands)
    # A loop without calls in the usual case, since every eager operation of this kind pays for it.
    chosen: list[AxisSelection] = []
    for axes in core:
        is_hashable = axes.__class__ in (str, tuple)
        chosen.append(axes if is_hashable else hashable(axes, checks.title(fn)))
    several = bool(out) and isinstance(out[0], tuple)
    mode = Mode(several, each, outer, in_place, whole)
    settings = kernels.static(fn, options)
    try:
        kernel: Any = checks.run_plan(
            fn, operands, _make_kernel, fn, named, tuple(chosen), out, mode, settings
        )
    except TypeError:
        # An axis that cannot be hashed is invalid, and raises its own error.
        for axes in chosen:
            selection(axes, checks.title(fn))
        raise
    results = kernels.run(kernel.call, *arrays)
    if several:
        named_results = zip(results, kernel.names, strict=True)
        return tuple(wrap(like, result, names) for result, names in named_results)
    return wrap(like, results, kernel.names[0])


def hashable(axes: AxisSelection, function: str) -> AxisSelection:
    """Convert a selection to a hashable form that can be iterated more than once."""
    if axes.__class__ in (str, tuple):
        return axes
    return selectors(selection(axes, function))


# A tuple: it is part of the key of a kernel, and tuples are hashed in C.
class Mode(NamedTuple):
    """How a function is mapped: whether it has several results, and the options of `apply_batched`."""

    several: bool
    each: bool
    outer: bool
    in_place: bool
    whole: bool


class _Operand(NamedTuple):
    """An operand.

    Attributes:
        names: its names; a plain array with as many dimensions as core axes has just these.
        is_plain: whether it is a plain array or a scalar.
        given: its core axes, with sizes to check.
        core: the names of the core axes.
        batch: all other names, in the order of the result.
    """

    names: Names
    is_plain: bool
    given: Pairs
    core: Names
    batch: Names = ()

    @property
    def rest(self) -> Names:
        """The names that are not core axes."""
        return plans.without(self.names, self.core)

    @property
    def call_order(self) -> Names:
        """The names in the order in which the function gets them."""
        return (*self.batch, *self.core)

    def anonymous(self, array: jax.Array) -> int:
        """Count the anonymous dimensions."""
        return array.ndim - len(self.names)

    def check(self, function: str, array: Payload) -> None:
        """Check an array that has these names."""
        if not self.is_plain:
            shape = shape_of(function, array, self.names)
            checks.check_given(function, self.given, self.names, shape)
        elif jnp.ndim(array) != len(self.core):
            axes = ", ".join(self.core) or "none"
            problem = f"a plain array of shape {jnp.shape(array)} does not match axes: {axes}"
            raise OperandError(message(function, problem, hint=checks.NAME_IT))


def _make_operands(
    function: str, named: Sequence[Names | None], chosen: Sequence[AxisSelection]
) -> Iterator[_Operand]:
    for names, axes in zip(named, chosen, strict=True):
        given = selection(axes, function)
        core = names_in(given)
        if names is None:
            yield _Operand(core, True, given, core)
        else:
            yield _Operand(names, False, given, core)


@share_by_renaming("named", "chosen", "out")
def _make_kernel(
    fn: Function,
    named: tuple[Names | None, ...],
    chosen: tuple[AxisSelection, ...],
    out: Any,
    mode: Mode,
    options: kernels.Options,
) -> kernels.Kernel:
    function = checks.title(fn)
    outs: tuple[Names, ...] = out if mode.several else (out,)
    operands = list(_make_operands(function, named, chosen))
    _require_cores(operands)
    batches = tuple(operand.rest for operand in operands)
    batch = plans.unite(batches) if mode.outer else plans.broadcast(batches)
    # Each operand has its batch axes in the order of the result, so that aligning them is one transpose.
    operands = [own._replace(batch=plans.intersect(batch, own.rest)) for own in operands]

    targets: list[Names] = []
    for own in outs:
        plans.distinct((*batch, *own), "in the result, ")
        targets.append(_place_names(operands[0], own, batch) if mode.in_place else (*batch, *own))
    positional = partial(fn, **kernels.keywords_of(options))
    map_over = _map_by_vmap if mode.each else _broadcast
    known = [operand.names for operand in operands]

    def body(*arrays: Payload) -> Any:
        for operand, array in zip(operands, arrays, strict=True):
            operand.check(function, array)
        # Sizes are checked here, while a kernel is traced for shapes; it was made from names alone.
        checks.check_sizes(function, known, arrays)
        lined = [
            kernels.line_up(jnp.asarray(array), operand.names, operand.call_order)
            for operand, array in zip(operands, arrays, strict=True)
        ]
        call = map_over(positional, operands, batch)
        if mode.each:  # `jax.vmap` repeats nothing
            lined, _ = kernels.repeat_anonymous(function, known, lined)
        cores = [
            (own.call_order, x.shape, own.core) for own, x in zip(operands, lined, strict=True)
        ]
        with explain_empty(function, cores):
            results = _call_on_mesh(call, lined, operands, batch, outs, mode)
        if not mode.several:
            return kernels.line_up(results, (*batch, *outs[0]), targets[0])
        return tuple(
            kernels.line_up(result, (*batch, *own), target)
            for result, own, target in zip(results, outs, targets, strict=True)
        )

    return kernels.Kernel(tuple(targets), body)  # type: ignore[arg-type]  # here, the names of each result


def _require_cores(operands: Sequence[_Operand]) -> None:
    """Raise AxisNotFoundError, which names the operand, unless each operand has its core axes."""
    # If several operands miss one axis, the axis is wrong, not the operand: the error of `plans` lists all operands.
    named = [operand for operand in operands if not operand.is_plain]
    for i, operand in enumerate(operands, start=1):
        for name in plans.without(operand.core, operand.names):
            asked = [other for other in named if name in other.core]
            is_only_one = len(asked) == 1 and len(named) > 1
            if is_only_one or any(name in other.names for other in asked):
                hint = suggestion(name, operand.names)
                raise AxisNotFoundError(f"operand {i} has no axis named {name!r}", hint)
            plans.require(operand.names, (name,))


def _place_names(operand: _Operand, out: Names, batch: Names) -> Names:
    """Insert the names of a result at the positions of the core axes of an operand."""
    if len(operand.core) != len(out) or set(batch) != set(operand.rest):
        return (*batch, *out)
    # Batch axes keep their places too, so that the result needs no transpose.
    table = dict(zip(operand.core, out, strict=True))
    return tuple(table.get(name, name) for name in operand.names)


def _broadcast(fn: Function, operands: Sequence[_Operand], batch: Names) -> Function:
    """Call a function that broadcasts over leading dimensions itself."""
    has_cores = any(operand.core for operand in operands)

    def call(*arrays: jax.Array) -> Any:
        lined: list[jax.Array] = []
        for array, own in zip(arrays, operands, strict=True):
            # Positional broadcasting adds missing leading dimensions, but not after anonymous ones.
            first = 0
            if has_cores and not own.anonymous(array):
                first = min(map(batch.index, own.batch), default=len(batch))
            # By number: a core axis may have the name of another operand's batch axis.
            core = range(len(own.core))
            source, target = (*own.batch, *core), (*batch[first:], *core)
            lined.append(kernels.line_up(array, source, target))
        return fn(*lined)

    return call


def _map_by_vmap(fn: Function, operands: Sequence[_Operand], batch: Names) -> Function:
    """Map a function over batch dimensions; anonymous ones are outermost."""

    def call(*arrays: jax.Array) -> Any:
        pairs = zip(operands, arrays, strict=True)
        anonymous = [operand.anonymous(array) for operand, array in pairs]
        # The last map is the outermost: anonymous dimensions lead in arrays.
        mapped = fn
        for name in reversed(batch):
            mapped = _map_where(mapped, [name in operand.batch for operand in operands])
        for number in range(1, max(anonymous) + 1):
            mapped = _map_where(mapped, [count >= number for count in anonymous])
        return mapped(*arrays)

    return call


def _map_where(fn: Function, has: Sequence[bool]) -> Function:
    """Map over the first dimension of the operands that have the mapped axis."""
    return jax.vmap(fn, in_axes=tuple(0 if each else None for each in has))


def _call_on_mesh(
    call: Function,
    arrays: Sequence[jax.Array],
    operands: Sequence[_Operand],
    batch: Names,
    outs: tuple[Names, ...],
    mode: Mode,
) -> Any:
    """On a mesh with Explicit axes, shard the batch dimensions of operands alike, and type the results."""
    if not any(map(explicit.has_explicit_axes, arrays)):
        return call(*arrays)
    # Anonymous dimensions are labelled by numbers, as they are broadcast: the last one is the same for all.
    counts = [operand.anonymous(array) for operand, array in zip(operands, arrays, strict=True)]
    # Core dimensions have no label: operands need not agree on how these are split.
    labels: list[plans.Labels] = [
        (*range(-count, 0), *operand.batch, *[None] * len(operand.core))
        for operand, count in zip(operands, counts, strict=True)
    ]
    most = max(counts)
    shared: plans.Labels = (*range(-most, 0), *batch)
    widest = counts.index(most)
    moved, table = explicit.agree(shared, labels, arrays, first=widest, others_whole=mode.whole)
    lead = plans.values_at(table, shared)
    offered = _offer_core_entries(operands, moved, set(itertools.chain(*lead)))
    results = [[*lead, *(offered.get(name, ()) for name in own)] for own in outs]
    if any(offered.get(name) for name in itertools.chain(*outs)):
        results = auto.keep_dividing(call, moved, results)
    return auto.local(call, moved, tuple(results) if mode.several else results[0])


def _offer_core_entries(
    operands: Sequence[_Operand], arrays: Sequence[jax.Array], used: Set[str]
) -> dict[str, Entry]:
    """Return the mesh axes of each core dimension in the first operand that has it, except mesh axes in use."""
    offered: dict[str, Entry] = {}
    # No two dimensions of a result may be split over one mesh axis.
    taken = set(used)
    for operand, array in zip(operands, arrays, strict=True):
        count = len(operand.core)
        entries = explicit.get_layout(array)
        for name, entry in zip(operand.core, entries[len(entries) - count :], strict=True):
            if name not in offered:
                offered[name] = without(entry, taken)
                taken.update(entry)
    return offered
