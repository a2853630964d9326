"""Internal. The bytes that devices send for a collective, and the time for sending them.

`events` gets the times from here, and `rows` gets the bytes. Benchmarks use the same formulas. The module knows
networks; it must not know programs.
"""

import math
from collections.abc import Container, Iterable, Sequence
from typing import TypeAlias

from .network import Level

# Source and target of each message of a permute.
Pairs: TypeAlias = frozenset[tuple[int, int]]


def count_wire_bytes(kind: str, nbytes: float, group: int) -> float:
    """Return the bytes that one device sends for one collective, if the devices form a ring.

    With n devices in a group and b bytes of operands on each: an all-gather sends b (n - 1), because its operand is one
    shard; reduce-scatter and all-to-all send b (n - 1) / n; an all-reduce sends 2 b (n - 1) / n (a reduce-scatter, then
    an all-gather); a collective-permute sends b.
    """
    factors = {
        "all-gather": group - 1,
        "all-reduce": 2 * (group - 1) / group,
        "reduce-scatter": (group - 1) / group,
        "all-to-all": (group - 1) / group,
    }
    return factors.get(kind, 1.0) * nbytes


def estimate_latency(kind: str, levels: Sequence[Level], distance: int = 1) -> float:
    """Return the time of the first byte to the farthest device, and back for an all-reduce.

    Args:
        kind: the kind of the collective.
        levels: the networks that the devices use, the innermost one first.
        distance: how many positions along the group the messages of a permute move.
    """
    if kind.startswith("collective-"):
        return _count_links(levels[-1], distance) * levels[-1].latency
    times = 2 if kind == "all-reduce" else 1
    return times * sum(level.hops * level.latency for level in levels)


def estimate_sending(
    kind: str,
    nbytes: float,
    levels: Sequence[Level],
    *,
    is_one_way: bool = False,
    distance: int = 1,
) -> list[float]:
    """Return the time of sending on each network, without the latency.

    A sum over several groups of devices is a reduce-scatter inside of each group, an all-reduce of the parts between
    groups, and an all-gather inside. An all-gather is one between groups, then one inside of each group. So the slowest
    network, which is the last one, carries the fewest bytes.

    Args:
        kind: the kind of the collective.
        nbytes: bytes of the operand on one device.
        levels: the networks that the devices use, the innermost one first.
        is_one_way: whether a device sends to only one neighbour at a time.
        distance: how many positions along the group the messages of a permute move.
    """
    if kind in ("all-to-all", "ragged-all-to-all"):
        return [nbytes * level.spread for level in levels]
    # A permute or a broadcast sends each array once.
    if kind.startswith("collective-"):
        level = levels[-1]
        # Two devices have one link, which both permutes use.
        rate = level.one_way if is_one_way or level.devices == 2 else level.both_ways
        return [nbytes * _count_links(level, distance) / rate]
    found: list[float] = []
    outside = math.prod(level.devices for level in levels)
    for level in levels:
        outside //= level.devices
        own = nbytes
        if kind == "all-gather":
            own *= outside
        else:
            nbytes /= level.devices
        found.append(count_wire_bytes(kind, own, level.devices) / level.bandwidth)
    return found


def _count_links(level: Level, distance: int) -> int:
    """Return the number of links that a message crosses: the links between neighbours, or one to the switch."""
    return 1 if level.one_way == level.both_ways else max(1, min(distance, level.hops))


def is_sent_one_way(pairs: Iterable[tuple[int, int]], ways: int, others: Container[Pairs]) -> bool:
    """Return whether a permute sends to one neighbour, and no concurrent permute sends in the other direction.

    If two devices swap arrays, each also sends to only one neighbour.

    Args:
        pairs: source and target of each message; empty for a collective that is no permute.
        ways: the number of devices in the ring. In a ring of two devices, each has only one neighbour.
        others: the permutes that are under way at the same time.
    """
    back = reverse(pairs)
    if ways <= 2 or not back:
        return False
    return back == frozenset(pairs) or back not in others


def find_distance(pairs: Iterable[tuple[int, int]], ways: int) -> int:
    """Return the largest distance of the messages of a permute on a ring of so many devices."""
    return max((min((b - a) % ways, (a - b) % ways) for a, b in pairs), default=1)


def reverse(pairs: Iterable[tuple[int, int]]) -> Pairs:
    """Return the pairs of the permute that sends in the other direction."""
    return frozenset((target, source) for source, target in pairs)


def strip_counts(mesh_axes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of mesh axes; a partly used axis, written `data:2`, becomes `data`."""
    return tuple(axis.partition(":")[0] for axis in mesh_axes)
