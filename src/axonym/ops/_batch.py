"""The engine that maps a positional function of a few axes over all others, by name.

The axes that the function works on are its *core* axes, named by the caller. All other axes are *batch* axes: they are
matched by name, and the function is applied for each of their positions. An operation of this kind is one call of
`batched`; for a function with an `axis` argument and one operand, `_lift.along` is simpler.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial, reduce
from typing import TYPE_CHECKING, Any, overload

import jax
import jax.numpy as jnp

from .. import _constraints, plans
from ..axis import AxisSelection, selection, selectors
from ..core import shape_of, wrap
from ..errors import AxisError, AxisNotFoundError, OperandError, message, suggestion
from ..plans import Names
from . import _lift

if TYPE_CHECKING:
    from ..array import NamedArray

Function = Callable[..., Any]


@overload
def batched(
    fn: Function,
    operands: Sequence[Any],
    core: Sequence[AxisSelection],
    out: Names,
    *,
    each: bool = False,
    outer: bool = False,
    in_place: bool = False,
    **options: Any,
) -> "NamedArray": ...
@overload
def batched(
    fn: Function,
    operands: Sequence[Any],
    core: Sequence[AxisSelection],
    out: tuple[Names, ...],
    *,
    each: bool = False,
    outer: bool = False,
    in_place: bool = False,
    **options: Any,
) -> Any: ...
def batched(
    fn: Function,
    operands: Sequence[Any],
    core: Sequence[AxisSelection],
    out: Names | tuple[Names, ...],
    *,
    each: bool = False,
    outer: bool = False,
    in_place: bool = False,
    **options: Any,
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
        options: keyword arguments of `fn`, static and hashable.

    Raises:
        AxisNotFoundError: if a core axis is missing.
        AxisSizeError: if a name has two sizes.
        AxisClashError: if a name of `out` is that of a batch axis.
        BroadcastError: if no operand contains the batch axes of all others, unless `outer`.
        OperandError: if no operand has names, or one has the wrong type.
    """
    like, named, arrays = _lift.parted(fn, operands)
    chosen = tuple([axes if axes.__class__ in (str, tuple) else hashable(axes, _lift.title(fn)) for axes in core])
    several = bool(out) and isinstance(out[0], tuple)
    flags = (several, each, outer, in_place)
    try:
        kernel = _kernel(fn, named, chosen, out, flags, _lift.static(fn, options) if options else ())
    except (AxisError, TypeError) as flaw:
        for axes in chosen:
            selection(axes, _lift.title(fn))  # an axis that cannot be hashed is invalid, and raises its own error
        if isinstance(flaw, TypeError):
            raise
        _lift.fail(_lift.title(fn), flaw, *operands)
    results = _lift.run(kernel.call, *arrays)
    if several:
        return tuple(wrap(like, result, names) for result, names in zip(results, kernel.names, strict=True))
    return wrap(like, results, kernel.names[0])


def hashable(axes: AxisSelection, function: str) -> AxisSelection:
    """Convert a selection to a hashable form that can be iterated more than once."""
    if axes.__class__ in (str, tuple):
        return axes
    return selectors(selection(axes, function))


@lru_cache(plans.CACHE)
def _kernel(
    fn: Function,
    named: tuple[Names | None, ...],
    chosen: tuple[AxisSelection, ...],
    out: Any,
    flags: tuple[bool, bool, bool, bool],
    options: _lift.Options,
) -> Any:
    several, each, outer, in_place = flags
    function = _lift.title(fn)
    outs: tuple[Names, ...] = out if several else (out,)
    core = tuple(selection(axes, function) for axes in chosen)
    cores = tuple(tuple(name for name, _ in pairs) for pairs in core)
    # A plain array with as many dimensions as core axes has just these.
    known = tuple(own if names is None else names for names, own in zip(named, cores, strict=True))
    _require(named, cores)
    batches = tuple(plans.without(names, own) for names, own in zip(known, cores, strict=True))
    batch: Names = reduce(plans.union, batches, ()) if outer else plans.broadcast(batches)
    for own in outs:
        plans.distinct((*batch, *own), "in the result, ")
    targets = [(*batch, *own) for own in outs]
    if in_place:
        targets = [_in_place(known[0], cores[0], own, batch) for own in outs]
    positional = partial(fn, **_lift.keywords_of(options))

    def body(*arrays: Any) -> Any:
        for names, own, pairs, array in zip(named, cores, core, arrays, strict=True):
            if names is None and jnp.ndim(array) != len(own):
                problem = f"a plain array of shape {jnp.shape(array)} does not match axes: {', '.join(own) or 'none'}"
                raise OperandError(message(function, problem, hint=_lift.NAME_IT))
            if names is not None:
                _lift.check_given(function, pairs, names, shape_of(function, array, names))
        _lift.check_sizes(function, known, arrays)
        ordered = [_present(batch, has) for has in batches]
        lined = [
            _lift.lined_up(jnp.asarray(array), names, (*has, *own))
            for array, names, has, own in zip(arrays, known, ordered, cores, strict=True)
        ]
        call = (_mapped if each else _broadcasting)(positional, cores, ordered, batch)
        results = _laid_out(call, lined, cores, ordered, batch, outs, several)
        moved = tuple(
            _lift.lined_up(result, (*batch, *out), target)
            for result, out, target in zip(results if several else (results,), outs, targets, strict=True)
        )
        return moved if several else moved[0]

    return _lift.Kernel(tuple(targets), body)  # type: ignore[arg-type]  # here, the names of each result


def _require(named: Sequence[Names | None], cores: Sequence[Names]) -> None:
    """Raise AxisNotFoundError, which names the operand, unless each operand has its core axes."""
    for i, (names, own) in enumerate(zip(named, cores, strict=True), start=1):
        for name in own:
            if names is None or name in names:
                continue
            asked = [has for has, core in zip(named, cores, strict=True) if has is not None and name in core]
            alone = len(asked) == 1 and sum(has is not None for has in named) > 1
            if alone or any(name in has for has in asked):
                raise AxisNotFoundError(f"operand {i} has no axis named {name!r}", suggestion(name, names))
            plans.require(names, (name,))


def _present(batch: Names, has: Names) -> Names:
    return tuple(name for name in batch if name in has)


def _in_place(names: Names, core: Names, out: Names, batch: Names) -> Names:
    """Insert the names of a result at the positions of the core axes of an operand."""
    if len(core) != len(out) or set(batch) != set(plans.without(names, core)):
        return (*batch, *out)
    table = dict(zip(core, out, strict=True))
    return tuple(table.get(name, name) for name in names)


def _broadcasting(fn: Function, cores: Sequence[Names], batches: Sequence[Names], batch: Names) -> Function:
    """Call a function that broadcasts over leading dimensions itself."""

    def call(*arrays: jax.Array) -> Any:
        lined = []
        for array, own, has in zip(arrays, cores, batches, strict=True):
            # Positional broadcasting adds missing leading dimensions, but not after anonymous ones.
            anonymous = array.ndim - len(has) - len(own)
            first = 0 if anonymous or not any(cores) else min(map(batch.index, has), default=len(batch))
            lined.append(_lift.lined_up(array, (*has, *own), (*batch[first:], *own)))
        return fn(*lined)

    return call


def _mapped(fn: Function, cores: Sequence[Names], batches: Sequence[Names], batch: Names) -> Function:
    """Map a function over batch dimensions, of which anonymous ones are outermost."""

    def call(*arrays: jax.Array) -> Any:
        anonymous = [a.ndim - len(has) - len(own) for a, has, own in zip(arrays, batches, cores, strict=True)]
        most = max(anonymous)
        levels = [tuple(0 if count >= most - i else None for count in anonymous) for i in range(most)]
        levels += [tuple(0 if name in has else None for has in batches) for name in batch]
        mapped = fn
        for dims in reversed(levels):
            mapped = jax.vmap(mapped, in_axes=dims)
        return mapped(*arrays)

    return call


def _laid_out(
    call: Function,
    arrays: Sequence[jax.Array],
    cores: Sequence[Names],
    batches: Sequence[Names],
    batch: Names,
    outs: tuple[Names, ...],
    several: bool,
) -> Any:
    """On a mesh with Explicit axes, gather the core dimensions and lay out the batch dimensions alike."""
    if not any(map(_constraints.has_explicit_axes, arrays)):
        return call(*arrays)
    arrays = _constraints.on_one_mesh(arrays)
    entries = [_constraints.entries_of(array) for array in arrays]
    counts = [a.ndim - len(has) - len(own) for a, has, own in zip(arrays, batches, cores, strict=True)]
    most = max(counts)
    lead = entries[counts.index(most)][:most]
    offers = [
        (has, own[n : n + len(has)] or ((),) * len(has)) for own, has, n in zip(entries, batches, counts, strict=True)
    ]
    table = _constraints.settle((*range(most), *batch), [(tuple(range(most)), lead or ((),) * most), *offers])
    moved = []
    for array, own, has, core, count in zip(arrays, entries, batches, cores, counts, strict=True):
        wanted = [table[label] for label in (*range(most - count, most), *has)]
        moved.append(_constraints.relayout(array, [*wanted, *((),) * len(core)], (*has, *core)) if own else array)
    shared = [table[label] for label in (*range(most), *batch)]
    results = tuple([*shared, *((),) * len(out)] for out in outs)
    return _lift.local(call, moved, results if several else results[0])
