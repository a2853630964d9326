"""Internal. The bytes that devices in a ring send, and the time that they take.

`events` gets times here, and `rows` the bytes that are sent. Benchmarks use the same formulas. The module knows links;
it must not know programs.
"""

from collections.abc import Container, Iterable
from typing import TypeAlias

from .targets import Link, Target

# Source and target of each message of a permute.
Pairs: TypeAlias = frozenset[tuple[int, int]]

# Steps of a ring of n devices, as multiples of n - 1.
STEPS = {"all-gather": 1, "all-reduce": 2, "reduce-scatter": 1, "all-to-all": 1}


def count_wire_bytes(kind: str, nbytes: float, group: int) -> float:
    """Return the bytes that one device sends for one collective, if the devices form a ring.

    With n devices in a group and b bytes of operands on each: all-gather b (n - 1), because its operand is one shard;
    reduce-scatter and all-to-all b (n - 1) / n; all-reduce twice that (a reduce-scatter, then an all-gather);
    collective-permute b.
    """
    factors = {
        "all-gather": group - 1,
        "all-reduce": 2 * (group - 1) / group,
        "reduce-scatter": (group - 1) / group,
        "all-to-all": (group - 1) / group,
    }
    return factors.get(kind, 1.0) * nbytes


def estimate_latency(kind: str, group: int, mesh_axes: tuple[str, ...], target: Target) -> float:
    """Return how long the steps of a ring take, apart from the bytes."""
    # A permute is one step.
    steps = STEPS[kind] * (group - 1) if kind in STEPS else 1
    return steps * _find_link(mesh_axes, target).latency


def estimate_seconds(
    kind: str,
    nbytes: float,
    group: int,
    mesh_axes: tuple[str, ...],
    target: Target,
    *,
    is_one_way: bool = False,
) -> float:
    """Return how long a collective takes on a target: the steps of a ring, and the bytes that a device sends.

    Args:
        kind: the kind of the collective.
        nbytes: bytes of the operand on one device.
        group: the number of devices that take part with each other.
        mesh_axes: the mesh axes along which they do.
        target: the device that the time is for.
        is_one_way: whether a device sends to one neighbour alone at a time.
    """
    link = _find_link(mesh_axes, target)
    bandwidth = link.one_way if is_one_way and link.one_way is not None else link.bandwidth
    # A step sends after its latency, so latency and bytes add up.
    sending = count_wire_bytes(kind, nbytes, group) / bandwidth
    return estimate_latency(kind, group, mesh_axes, target) + sending


def is_sent_one_way(pairs: Iterable[tuple[int, int]], ways: int, others: Container[Pairs]) -> bool:
    """Return whether a permute sends to one neighbour, and no other permute sends the other way meanwhile.

    If two devices swap arrays, each also sends to one neighbour alone.

    Args:
        pairs: source and target of each message; empty for a collective that is no permute.
        ways: the number of devices in the ring. With two devices, each has one neighbour anyway.
        others: the permutes that are under way at the same time.
    """
    back = reverse(pairs)
    if ways <= 2 or not back:
        return False
    return back == frozenset(pairs) or back not in others


def reverse(pairs: Iterable[tuple[int, int]]) -> Pairs:
    """Return the pairs of the permute that sends the other way."""
    return frozenset((target, source) for source, target in pairs)


def strip_counts(mesh_axes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of mesh axes; a partly used axis is written `data:2`, and is `data` here."""
    return tuple(axis.partition(":")[0] for axis in mesh_axes)


def _find_link(mesh_axes: tuple[str, ...], target: Target) -> Link:
    return target.link_of(strip_counts(mesh_axes))
