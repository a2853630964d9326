"""Internal. Which part of a collective overlaps with computation, by an assumption or by a window of a schedule.

The reader of traced programs has no schedule and assumes overlap within a layer. The reader of compiled programs finds
windows, and assumes nothing if the program was compiled for the target.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .rows import Collective, Work


class Window(NamedTuple):
    """What a device computes between the start and the end of a collective.

    Attributes:
        seconds: of one run.
        layers: those that it works for, the longest first.
    """

    seconds: float
    layers: tuple[str, ...]


def assume_overlap(
    communication: Iterable[Collective], work: Iterable[Work]
) -> tuple[Collective, ...]:
    """Say what hides collectives if within each layer, computing, reading and sending overlap."""
    layers = {(one.layer, one.phase): one for one in work}
    found: list[Collective] = []
    for one in communication:
        own = layers[one.layer, one.phase]
        longest = max(own.computing, own.moving)
        share, by = 0.0, "computing"
        if own.sending:
            share = min(1.0, longest / own.sending)
        if own.moving > own.computing:
            by = "memory"
        found.append(_apply_share(one, share, (by,)))
    return tuple(found)


def apply_window(rows: Sequence[Collective], window: Window | None) -> list[Collective]:
    """Say what hides the arrays of one collective in the schedule of a program; nothing, if there is no window."""
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
