"""Internal. The layout of the values that a loop carries from step to step; `loop` and `associative_scan` call this.

On Explicit mesh axes, a carry must have the same layout before each step. JAX compares the types of the carry before
and after a step, but treats a type without a mesh as equal to any other. Gradients of such a loop then fail. If a step
reshards the carry, it could be moved back after each step, but that costs a move per step.

So the layout is found before the loop. If the traced step changes the layout, the loop is traced again with a carry in
the new layout. A loop that keeps the layout is traced only once.
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

# If entries of a carry trade places, each trace passes a layout on by one entry only, and layouts that change at each
# step never settle.
_TRACES = 3


class _LayoutChange(Exception):  # noqa: N818  (a signal, which `settle_carry` catches, and not an error)
    """The signal to give up the trace of a loop: its step changes the layout of the carry.

    Attributes:
        shardings: the layout that each array must have from the start; None for arrays that already have it.
    """

    def __init__(self, shardings: Sequence[NamedSharding | None]) -> None:
        super().__init__()
        self.shardings = shardings


def settle_carry(loop: Callable[[Arrays, Keeper], R], start: Arrays) -> R:
    """Run a loop whose first carry already has the layout of the carry after a step.

    Args:
        loop: a function of the carry and of a function `keep(before, after)`, which it calls with the arrays of the
            carry before and after a step. `keep` returns the arrays after the step in the layouts of the arrays before
            it.
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
    """Return the new layout of an entry of the carry if a step changes its layout, else None.

    The new layout is that after the step, with one exception. A dimension that the step gathers stays split as before:
    the caller asked for the split, and it should not be lost because one operation gathers.
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
