"""Internal. The layout of the values that a loop carries from step to step; `loop` and `associative_scan` call it.

On Explicit mesh axes, a carry must have one layout before all steps. JAX compares its types before and after a step,
but takes a type without a mesh for equal to any other, and gradients of such a loop fail. A carry that a step reshards
could also be moved back after each step, at the cost of as many moves.

So the layout is found before the loop. If a trace changes it, the trace is given up and begun again with a carry that
has the new layout. A loop that does not change it pays nothing.
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


class _LayoutChange(Exception):  # noqa: N818  (a signal, which `settle_carry` catches, and not an error)
    """Gives up the trace of a loop whose step changes the layout of the carry.

    Attributes:
        shardings: for each array the layout that it shall have from the start; None if it has it.
    """

    def __init__(self, shardings: Sequence[NamedSharding | None]) -> None:
        super().__init__()
        self.shardings = shardings


def settle_carry(loop: Callable[[Arrays, Keeper], R], start: Arrays) -> R:
    """Run a loop from a carry that has the layout that a step gives it.

    Args:
        loop: a function of the carry and of a function `keep(before, after)`, which it calls with the arrays of the
            carry before and after a step. It returns those after the step with the layouts of those before.
        start: the arrays of the initial carry.
    """
    config: Any = jax.config  # its stubs leave the options out
    # Without jit, a step that is traced again is a step that runs again, with its prints and side effects.
    traces = 0 if config.jax_disable_jit else _TRACES
    for _ in range(traces):
        try:
            return loop(start, _keep_or_give_up)
        except _LayoutChange as change:
            start = list(map(_reshard, start, change.shardings))
    # The layout still changes: the last trace moves the carry back after each step, which is slow and correct.
    return loop(start, _keep)


def _keep(before: Arrays, after: Arrays) -> list[jax.Array]:
    return list(map(explicit.reshard_like, after, before))


def _keep_or_give_up(before: Arrays, after: Arrays) -> list[jax.Array]:
    shardings = list(map(_new_layout, before, after))
    if any(sharding is not None for sharding in shardings):
        _give_up(shardings)
    return _keep(before, after)


def _give_up(shardings: Sequence[NamedSharding | None]) -> NoReturn:
    raise _LayoutChange(shardings)


def _new_layout(before: jax.Array, after: jax.Array) -> NamedSharding | None:
    """Return the layout that an entry of the carry shall have if a step changes it.

    It is the layout after the step. A dimension that the step gathers stays split as before: a split that the caller
    asked for is not undone for all steps because one of them needs the whole dimension.
    """
    if not explicit.has_explicit_axes(after):
        return None
    then = explicit.get_layout(after)
    # One mesh axis cannot split two dimensions, so the layout before may claim only what the step left free.
    used = set(itertools.chain(*then))
    wanted, first = list(then), None
    if explicit.has_explicit_axes(before):
        first = explicit.get_layout(before)
        unused = [partition.without(entry, used) for entry in first]
        wanted = [entry or kept for entry, kept in zip(then, unused, strict=True)]
    if first == tuple(wanted):
        return None
    return NamedSharding(jax.typeof(after).sharding.mesh, Layout(wanted).spec)


def _reshard(array: jax.Array, sharding: NamedSharding | None) -> jax.Array:
    return array if sharding is None else jax.reshard(array, sharding)
