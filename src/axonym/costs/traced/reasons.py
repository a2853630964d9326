"""Internal. The named axis of each collective of a traced function, and the names of dimensions.

The reader calls it. It knows names and moves; it must not know equations.
"""

import functools
from collections.abc import Callable, Mapping, Sequence

from ...engine import Entry
from ..shared.names import NameTable, narrow
from .moves import Move


def find_reasons(move: Move, named: NameTable, layer: str, *, is_update: bool) -> tuple[str, ...]:
    """Return the named axis that makes a collective necessary, or several that do; none if that is not known.

    Args:
        move: the collective.
        named: what names are known.
        layer: where it is.
        is_update: whether it is one of an optimiser.
    """
    rest = list(move.mesh_axes)
    found: list[str] = []
    while rest:
        name = _find_reason(move, rest[:1], named, layer, is_update=is_update)
        if name is None:
            return ()
        found.append(name)
        own = {*named.computed.get(name, ()), *named.stored.get(name, ())}
        rest = [axis for axis in rest if axis not in own]
    return tuple(found)


def _find_reason(
    move: Move, mesh_axes: Sequence[str], named: NameTable, layer: str, *, is_update: bool
) -> str | None:
    computed = named.find_on(named.computed, mesh_axes)
    stored = named.find_on(named.stored, mesh_axes)
    is_sum = move.kind in ("all-reduce", "reduce-scatter")
    first = computed if is_sum and not is_update else stored
    preferences: tuple[Callable[[str], bool], ...] = (
        lambda name: _has_size(move.sizes, named.sizes.get(name, ())),
        lambda name: _has_divisor(move.sizes, named.sizes.get(name, ())),
        lambda name: name in first,
        lambda name: named.is_in(name, layer),
    )
    if is_sum:
        may_be = functools.partial(named.is_possible_in, layer=layer)
        preferences = (preferences[2], *preferences, may_be)
    candidates = narrow((*computed, *stored), preferences)
    return candidates[0] if len(candidates) == 1 else None


def _has_size(sizes: Sequence[int], own: "frozenset[int] | tuple[()]") -> bool:
    return bool(set(sizes).intersection(own))


def _has_divisor(sizes: Sequence[int], own: "frozenset[int] | tuple[()]") -> bool:
    for size in sizes:
        for part in own:
            if part > 1 and size % part == 0:
                return True
    return False


def name_dimensions(
    shape: Sequence[int], entries: Sequence[Entry], named: NameTable
) -> tuple[str, ...]:
    """Return the names that dimensions may have, by their sizes and mesh axes; those of several are joined by `|`.

    Args:
        shape: the dimensions.
        entries: the mesh axes of each.
        named: what names are known.
    """
    return tuple(
        "|".join(_list_names(size, entry, named)) or "?"
        for size, entry in zip(shape, entries, strict=True)
    )


def _list_names(size: int, entry: Entry, named: NameTable) -> list[str]:
    fitting = [name for name, sizes in named.sizes.items() if size in sizes]
    laid_out: Mapping[str, Entry] = named.computed
    same = [name for name in fitting if laid_out.get(name, ()) == tuple(entry)]
    return same or fitting
