"""The layout of what a loop carries from step to step.

On Explicit mesh axes, a carry must have one layout before all steps. JAX compares its types before and after a step,
but takes a type without a mesh for equal to any other, and gradients of such a loop fail. A carry that a step lays out
anew could also be moved back after each step, at the cost of as many moves.

So the layout is found before the loop: a trace in which it changes is given up, and begun again with a carry that has
the new layout. Where it does not change, this costs nothing.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

import jax
from jax.sharding import NamedSharding

from ..layout import explicit, partition
from ..layout.layout import Layout

R = TypeVar("R")
Arrays = Sequence[jax.Array]
Keeper = Callable[[Arrays, Arrays], list[jax.Array]]

# Entries of a carry that take each other's place pass a layout on by one entry in each trace, and two that change
# theirs at each step never settle.
_TRACES = 3


class _LayoutChange(Exception):  # noqa: N818  (a signal, which `settled` catches, and not an error)
    """Gives up the trace of a loop whose step changes the layout of the carry.

    Attributes:
        shardings: for each array the layout that it shall have from the start; None if it has it.
    """

    def __init__(self, shardings: Sequence[NamedSharding | None]) -> None:
        super().__init__()
        self.shardings = shardings


def settled(loop: Callable[[Arrays, Keeper], R], start: Arrays) -> R:
    """Run a loop from a carry that has the layout that a step gives it.

    Args:
        loop: a function of the carry and of a function `keep(before, after)`, which it calls with the arrays of the
            carry before and after a step. It returns those after the step with the layouts of those before.
        start: the arrays of the initial carry.
    """
    config: Any = jax.config  # its stubs leave the options out
    traces = _TRACES
    if config.jax_disable_jit:  # steps would run twice
        traces = 0
    for _ in range(traces):
        try:
            return loop(start, _kept_or_given_up)
        except _LayoutChange as change:
            start = list(map(_moved, start, change.shardings))
    return loop(start, _kept)


def _kept(before: Arrays, after: Arrays) -> list[jax.Array]:
    return list(map(explicit.laid_out_like, after, before))


def _kept_or_given_up(before: Arrays, after: Arrays) -> list[jax.Array]:
    shardings = list(map(_new_layout, before, after))
    if any(sharding is not None for sharding in shardings):
        _give_up(shardings)
    return _kept(before, after)


def _give_up(shardings: Sequence[NamedSharding | None]) -> NoReturn:
    raise _LayoutChange(shardings)


def _new_layout(before: jax.Array, after: jax.Array) -> NamedSharding | None:
    """Return the layout that an entry of the carry shall have if a step changes it.

    It is that after the step. A dimension that the step leaves whole stays split as before: a split that the caller
    asked for is not undone for all steps because one of them needs the whole.
    """
    if not explicit.has_explicit_axes(after):
        return None
    then = explicit.read_layout(after)
    used = set(itertools.chain(*then))
    wanted, first = list(then), None
    if explicit.has_explicit_axes(before):
        first = explicit.read_layout(before)
        unused = [partition.without(entry, used) for entry in first]
        wanted = [entry or kept for entry, kept in zip(then, unused, strict=True)]
    if first == tuple(wanted):
        return None
    return NamedSharding(jax.typeof(after).sharding.mesh, Layout(wanted).spec)


def _moved(array: jax.Array, sharding: NamedSharding | None) -> jax.Array:
    if sharding is None:
        return array
    moved: jax.Array = jax.reshard(array, sharding)
    return moved
