"""How long a device computes, reads and sends in each layer, from what was counted there."""

from collections.abc import Iterable, Mapping

from .report import Collective, Phase, Work
from .targets import Target


def work_of(
    counted: Mapping[tuple[str, Phase], tuple[float, float, float]],
    communication: Iterable[Collective],
    target: Target,
) -> tuple[Work, ...]:
    """Make the rows of work from what was counted, and from the collectives.

    Args:
        counted: for each layer and phase: operations, seconds of these at the peak, bytes that are read and written.
        communication: the collectives.
        target: what the times are for.
    """
    sending: dict[tuple[str, Phase], float] = {}
    for one in communication:
        place = (one.layer, one.phase)
        sending[place] = sending.get(place, 0.0) + one.seconds
    rows: list[Work] = []
    for layer, phase in dict.fromkeys((*counted, *sending)):
        flops, computing, nbytes = counted.get((layer, phase), (0.0, 0.0, 0.0))
        moving = nbytes / target.memory_bandwidth
        sent = sending.get((layer, phase), 0.0)
        rows.append(Work(layer, phase, flops, nbytes, computing, moving, sent))
    return tuple(rows)
