"""Internal. How long a device computes, reads and sends in each layer: the roofline of its events.

Both readers call `sum_by_place` and `make_work` at their end. The module must not know which reader calls it.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from .events import Amount
from .places import Place
from .rows import Collective, Phase, Work
from .targets import Target

# For each layer and phase: operations, their seconds at the peak, and bytes that are read and written.
Counted: TypeAlias = Mapping[tuple[str, Phase], tuple[float, float, float]]


def sum_by_place(
    amounts: Iterable[Amount], place_of: Callable[[str], Place], target: Target
) -> Counted:
    """Sum up what is computed, read and written, by layer and phase.

    Args:
        amounts: the operations of a program.
        place_of: returns the place of an operation.
        target: the device that seconds are for.
    """
    counted: dict[tuple[str, Phase], tuple[float, float, float]] = {}
    for amount in amounts:
        place = place_of(amount.source)
        flops, computing, nbytes = counted.get(place, (0.0, 0.0, 0.0))
        if amount.flops:
            computing += amount.flops / target.flops_of(amount.dtype)
        counted[place] = flops + amount.flops, computing, nbytes + amount.nbytes
    return counted


def make_work(
    counted: Counted,
    communication: Iterable[Collective],
    target: Target,
) -> tuple[Work, ...]:
    """Make the rows of work from the sums of operations and from the collectives.

    Args:
        counted: the sums of operations, by layer and phase.
        communication: the collectives.
        target: the device that times are for.
    """
    sending: dict[tuple[str, Phase], float] = {}
    for one in communication:
        place = (one.layer, one.phase)
        sending[place] = sending.get(place, 0.0) + one.seconds
    # A layer that only sends has a row, too.
    rows: list[Work] = []
    for layer, phase in dict.fromkeys((*counted, *sending)):
        flops, computing, nbytes = counted.get((layer, phase), (0.0, 0.0, 0.0))
        moving = nbytes / target.memory_bandwidth
        sent = sending.get((layer, phase), 0.0)
        rows.append(Work(layer, phase, flops, nbytes, computing, moving, sent))
    return tuple(rows)
