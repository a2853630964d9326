"""Internal. The time for computing, memory access and sending in each layer: the roofline of a device's events.

Both readers call `sum_by_place` and `make_work` at the end. The module must not know which reader calls it.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

from ...engine import find_choice
from .events import Amount
from .places import Place
from .rows import Collective, Phase, Work
from .targets import PASSES, Target


class Sums(NamedTuple):
    """The work of a device in a layer and phase.

    Attributes:
        flops: operations.
        computing: the seconds of the operations at the peak.
        nbytes: bytes that are read and written.
        copied: bytes that are copied to the host or from it.
        attending: the seconds of attention, a part of `computing`.
    """

    flops: float = 0.0
    computing: float = 0.0
    nbytes: float = 0.0
    copied: float = 0.0
    attending: float = 0.0


Counted: TypeAlias = Mapping[tuple[str, Phase], Sums]


def sum_by_place(
    amounts: Iterable[Amount], place_of: Callable[[str], Place], target: Target
) -> Counted:
    """Sum up operations and bytes by layer and phase.

    Args:
        amounts: the operations of a program.
        place_of: returns the place of an operation.
        target: the device for which seconds are estimated.
    """
    counted: dict[tuple[str, Phase], Sums] = {}
    for amount in amounts:
        place = place_of(amount.source)
        sums = counted.get(place, Sums())
        seconds = amount.flops / target.flops_of(amount.dtype) if amount.flops else 0.0
        counted[place] = Sums(
            sums.flops + amount.flops,
            sums.computing + seconds,
            sums.nbytes + amount.nbytes,
            sums.copied + amount.copied,
            sums.attending + (seconds if find_choice(amount.source) else 0.0),
        )
    return counted


def list_unrated(amounts: Iterable[Amount], target: Target) -> tuple[str, ...]:
    """List the dtypes of products for which a target has no rate, as a note; empty if it has all."""
    dtypes = dict.fromkeys(amount.dtype for amount in amounts if amount.flops and amount.dtype)
    found = [one for one in dtypes if one not in PASSES and target.find_rate(one) is None]
    text = "products in {} count at the slowest rate of {}, which lists none for them"
    return (text.format(", ".join(found), target.name),) if found else ()


def make_work(
    counted: Counted,
    communication: Iterable[Collective],
    target: Target,
) -> tuple[Work, ...]:
    """Make the rows of work from the sums of operations and from the collectives.

    Args:
        counted: the sums of operations, by layer and phase.
        communication: the collectives.
        target: the device for which times are estimated.
    """
    sending: dict[tuple[str, Phase], float] = {}
    for one in communication:
        place = (one.layer, one.phase)
        sending[place] = sending.get(place, 0.0) + one.seconds
    # A layer that only sends has a row, too.
    rows: list[Work] = []
    for layer, phase in dict.fromkeys((*counted, *sending)):
        flops, computing, nbytes, copied, attending = counted.get((layer, phase), Sums())
        moving = nbytes / target.memory_bandwidth
        copying = copied / target.host_bandwidth
        sent = sending.get((layer, phase), 0.0)
        rows.append(Work(layer, phase, flops, nbytes, computing, moving, sent, copying, attending))
    return tuple(rows)
