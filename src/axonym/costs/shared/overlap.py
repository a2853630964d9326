"""Internal. The part of a collective that overlaps with computation, by an assumption or by a window of a schedule.

The reader of traced programs has no schedule and assumes overlap within a layer. The reader of compiled programs finds
windows, and assumes nothing if the program was compiled for the target.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .rows import MIXED, Collective, Work


class Window(NamedTuple):
    """The computation of a device between the start and the end of a collective.

    Attributes:
        seconds: how long it computes, in one run.
        layers: the layers that it computes, the longest first.
    """

    seconds: float
    layers: tuple[str, ...]


def join_recomputed(several: Iterable[Work]) -> list[Work]:
    """Return the work of layers; recomputed work is part of the backward pass, because compilers run both together."""
    found: dict[tuple[str, str], Work] = {}
    for one in several:
        known = found.get((one.layer, one.half))
        if known is not None:
            sums = {name: getattr(known, name) + getattr(one, name) for name in MIXED}
            one = dataclasses.replace(one, **sums)
        found[one.layer, one.half] = one
    return list(found.values())


def assume_overlap(
    communication: Iterable[Collective], work: Iterable[Work]
) -> tuple[Collective, ...]:
    """Return the collectives with their overlap, if computing, reading and sending overlap within each layer."""
    rows = list(work)
    layers = {(one.layer, one.half): one for one in join_recomputed(rows)}
    halves = {one.phase: one.half for one in rows}
    found: list[Collective] = []
    for one in communication:
        own = layers[one.layer, halves[one.phase]]
        # All collectives of a layer share what it computes.
        longest = max(own.computing, own.moving)
        share = min(1.0, longest / own.sending) if own.sending else 0.0
        by = "memory" if own.moving > own.computing else "computing"
        found.append(_apply_share(one, share, (by,)))
    return tuple(found)


def apply_window(rows: Sequence[Collective], window: Window | None) -> list[Collective]:
    """Return the arrays of one collective with their overlap; without a window, nothing overlaps."""
    # One run of the collective sends all of its arrays in the window.
    each = 0.0
    for one in rows:
        each += one.seconds / max(one.count, 1)
    if window is None or not each:
        return list(rows)
    return [_apply_share(one, min(1.0, window.seconds / each), window.layers) for one in rows]


def _apply_share(one: Collective, share: float, by: tuple[str, ...]) -> Collective:
    if not share or not one.seconds:
        return one
    return dataclasses.replace(one, hidden=share * one.seconds, hidden_by=by)
