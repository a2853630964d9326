"""Internal. The named axis of each collective in a traced function, and the names of dimensions.

The reader calls it. It knows names and moves; it must not know equations.
"""

import functools
from collections.abc import Callable, Mapping, Sequence

from ...engine import Entry
from ..shared.names import NameTable, narrow
from ..shared.ring import strip_counts
from .moves import Move


def find_reasons(move: Move, named: NameTable, layer: str, *, is_update: bool) -> tuple[str, ...]:
    """Return the named axes that make a collective necessary; empty if they are not known.

    Args:
        move: the collective.
        named: the facts about the program that come from names.
        layer: the layer of the collective.
        is_update: whether it belongs to an optimiser.
    """
    rest = list(strip_counts(move.mesh_axes))
    found: list[str] = []
    # Types name mesh axes exactly, so each one is explained separately, and a name may also explain others.
    while rest:
        name = _find_reason(move, rest[:1], named, layer, is_update=is_update)
        if name is None:
            return ()
        found.append(name)
        # The mesh axes of this name are explained, and the others remain.
        own = {*named.computed.get(name, ()), *named.stored.get(name, ())}
        rest = [axis for axis in rest if axis not in own]
    return tuple(found)


def _find_reason(
    move: Move, mesh_axes: Sequence[str], named: NameTable, layer: str, *, is_update: bool
) -> str | None:
    computed = named.find_on(named.computed, mesh_axes)
    stored = named.find_on(named.stored, mesh_axes)
    # Activations sum over axes of the computation; gathers and optimisers follow the stored layout.
    is_sum = move.kind in ("all-reduce", "reduce-scatter")
    first = computed if is_sum and not is_update else stored
    # The surest sign comes first: a size that only one axis has.
    preferences: tuple[Callable[[str], bool], ...] = (
        lambda name: _has_size(move.sizes, named.sizes.get(name, ())),
        lambda name: _has_divisor(move.sizes, named.sizes.get(name, ())),
        lambda name: name in first,
        lambda name: named.is_in(name, layer),
    )
    if is_sum:
        may_be = functools.partial(named.is_possible_in, layer=layer)
        # A sum has lost the dimension that it sums over, so its layout says more than sizes.
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
    """Return possible names of dimensions, by their sizes and mesh axes; `|` joins several names of one dimension.

    Args:
        shape: the dimensions.
        entries: the mesh axes of each dimension.
        named: what names are known.
    """
    return tuple(
        "|".join(_list_names(size, entry, named)) or "?"
        for size, entry in zip(shape, entries, strict=True)
    )


def _list_names(size: int, entry: Entry, named: NameTable) -> list[str]:
    # The layout decides between axes of the same size; without a match, all of them may be meant.
    fitting = [name for name, sizes in named.sizes.items() if size in sizes]
    laid_out: Mapping[str, Entry] = named.computed
    same = [name for name in fitting if laid_out.get(name, ()) == tuple(entry)]
    return same or fitting
