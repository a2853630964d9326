"""Internal. The networks that connect a group of devices: axes of a torus, domains behind switches, or both.

`ring` uses the levels from here to find the cost of a collective. Mesh axes are placed as `jax.make_mesh` places them:
within a domain, devices along the last mesh axes are neighbours. The module must not know collectives.
"""

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from .targets import Link, Target, Torus


class Level(NamedTuple):
    """The part of a network that a group of devices uses.

    Attributes:
        devices: the number of devices, or of groups with faster networks, that it connects.
        bandwidth: bytes per second that one device sends into it.
        both_ways: bytes per second that one device sends to its two neighbours along the group.
        one_way: bytes per second that it sends to one of them. Behind a switch, this is the full bandwidth.
        spread: seconds of an all-to-all for each byte of the array: until each device has sent a part to each other
            device.
        hops: the number of links on the way to the farthest device.
        latency: seconds for each link.
    """

    devices: int
    bandwidth: float
    both_ways: float
    one_way: float
    spread: float
    hops: int
    latency: float


class _Part(NamedTuple):
    """The part of an axis of a torus that devices use.

    Attributes:
        axis: the number of the axis.
        devices: the number of devices along it.
        stride: the distance between two of them.
    """

    axis: int
    devices: int
    stride: int


# The shape of a slice, and the parts of its axes that each mesh axis takes.
_Placed: TypeAlias = tuple[tuple[int, ...], tuple[tuple[_Part, ...], ...]]


def find_levels(
    mesh_axes: Sequence[str], group: int, mesh: Mapping[str, int], target: Target
) -> list[Level]:
    """Return the networks that a group of devices uses, the innermost one first.

    Args:
        mesh_axes: the mesh axes along which the devices differ; `data:2` for two devices of a longer axis.
        group: the number of devices.
        mesh: the sizes of all mesh axes.
        target: the devices with their links.
    """
    counts: dict[str, int] = {}
    for axis in mesh_axes:
        name, _, count = axis.partition(":")
        counts[name] = int(count or mesh.get(name, group))
    # A group along no known mesh axis is assumed to consist of neighbours.
    if not counts or not counts.keys() <= mesh.keys():
        counts, mesh = {"": group}, {"": group}
    # A mesh axis with a link of its own is a network around all others.
    # Mesh axes of size 1, which meshes of some code bases have many of, connect nothing.
    rest = {name: size for name, size in mesh.items() if size > 1 and name not in target.links}
    found = _find_inner_levels(counts, rest, target)
    around = [name for name in counts if name in target.links]
    for name in sorted(around, key=lambda name: -target.links[name].bandwidth):
        found.append(_make_level(target.links[name], counts[name]))
    # A group of one device sends nothing, but has a link.
    return [level for level in found if level.devices > 1] or found[:1]


def _find_inner_levels(
    counts: Mapping[str, int], mesh: Mapping[str, int], target: Target
) -> list[Level]:
    """Return the network levels for mesh axes without separate links: a torus or a switch, and domains around it."""
    # As many devices in each domain, and neighbours along the last mesh axes in the same one.
    blocks = [math.prod(mesh.values())]
    for domain in reversed(target.domains):
        blocks.insert(0, _find_divisor(blocks[0], domain.devices))
    inside = [_count_inside(mesh, block) for block in blocks]
    first = {name: math.gcd(counts.get(name, 1), inside[0][name]) for name in mesh}
    found = [_find_first_level(first, inside[0], target)]
    for domain, (before, after) in zip(target.domains, itertools.pairwise(inside), strict=True):
        devices = 1
        for name, count in counts.items():
            if name in mesh:
                # Of an axis that is partly used, the devices inside come first.
                before_it, after_it = min(count, before[name]), min(count, after[name])
                devices *= -(-after_it // before_it)
        found.append(_make_level(domain.link, devices))
    return found


def _find_divisor(count: int, limit: int) -> int:
    """Return the largest divisor of a number, up to a limit."""
    return max(one for one in range(1, min(count, limit) + 1) if count % one == 0)


def _count_inside(mesh: Mapping[str, int], block: int) -> dict[str, int]:
    """Return, for each mesh axis, the number of devices in one block of neighbours."""
    found: dict[str, int] = {}
    stride = 1
    for name in reversed(list(mesh)):
        found[name] = math.gcd(mesh[name], max(1, block // stride))
        stride *= mesh[name]
    return {name: found[name] for name in mesh}


def _make_level(link: Link, devices: int) -> Level:
    """Return the network of devices behind a switch, or of a ring if the link has two neighbours."""
    if link.one_way is not None:
        return _join_parts(link, [(devices, 1, True)])
    # Each step of a tree doubles the number of devices that have the array.
    hops = math.ceil(math.log2(devices)) if devices > 1 else 0
    spread = (devices - 1) / devices / link.bandwidth
    rate = link.bandwidth
    return Level(devices, rate, rate, rate, spread, hops, link.latency)


def _join_parts(link: Link, parts: Sequence[tuple[int, int, bool]]) -> Level:
    """Return the network of several axes of a torus, which all send at the same time.

    Args:
        link: the connection along one axis.
        parts: for each axis, the number of devices, the distance between two of them, and whether they form a ring.
    """
    one_way = link.one_way or link.bandwidth / 2
    devices, bandwidth, spread, hops = 1, 0.0, 0.0, 0
    for count, stride, is_ring in parts:
        # At the ends of a line, a device sends in only one direction. Groups with gaps share the links between them.
        rate = (link.bandwidth if is_ring else one_way) / stride
        devices *= count
        bandwidth += rate
        hops += stride * (count // 2 if is_ring else count - 1)
        # Half of each shard crosses the middle of the axis, which is the bottleneck of an all-to-all.
        spread = max(spread, count / (4 * rate))
    return Level(devices, bandwidth, 2 * one_way, one_way, spread, hops, link.latency)


def _find_first_level(counts: Mapping[str, int], mesh: Mapping[str, int], target: Target) -> Level:
    """Return the innermost network that a group uses.

    Args:
        counts: the devices of the group along each mesh axis.
        mesh: the devices along each mesh axis that this network connects.
        target: the devices with their links.
    """
    if target.torus is None:
        return _make_level(target.link, math.prod(counts.values()))
    shape, placed = _place(target.torus, target.link, tuple(mesh.values()))
    # Mesh axes that share an axis of the torus take neighbouring parts of it.
    joined: dict[int, tuple[int, int]] = {}
    for count, size, parts in zip(counts.values(), mesh.values(), placed, strict=True):
        left = count
        for part in reversed(parts):
            own = part.devices if count == size else math.gcd(part.devices, left)
            left //= own
            if own > 1:
                devices, stride = joined.get(part.axis, (1, part.stride))
                joined[part.axis] = devices * own, min(stride, part.stride)
    found = [
        (devices, stride, _is_ring(target.torus, shape, axis, devices * stride))
        for axis, (devices, stride) in joined.items()
    ]
    return _join_parts(target.link, found or [(1, 1, True)])


@functools.lru_cache(maxsize=1024)
def _place(torus: Torus, link: Link, sizes: tuple[int, ...]) -> _Placed:
    """Return the shape of a slice, and the parts of its axes that each mesh axis uses.

    A slice of a fixed pod is as square as possible. If switches join cubes, the slice has the shape that gives mesh
    axes the most bandwidth. In `jax.make_mesh`, the last mesh axis chooses first; here, the mesh axes choose in the
    order that gives the most bandwidth, since a mesh can be transposed.
    """
    count = math.prod(sizes)
    shapes = list(_iterate_shapes(count, torus.axes, torus.longest or count))
    # A number that fits no pod gets a slice that does not exist, rather than none.
    shapes = shapes or list(_iterate_shapes(count, torus.axes, count))
    if torus.longest is not None:
        shapes = [min(shapes, key=sum)]

    def rank(one: _Placed) -> tuple[float, int, list[tuple[int, float]]]:
        shape, axes = one
        rates: list[float] = []
        for parts in axes:
            rings = [
                (own, stride, _is_ring(torus, shape, axis, own * stride))
                for axis, own, stride in parts
            ]
            # Among shapes that are about equally good, complete axes are preferred: JAX and people do not split axes.
            split = sum(part.devices < shape[part.axis] for part in parts)
            rates.append(_join_parts(link, rings).bandwidth * 0.9**split)
        # In the end, the shorter mesh axis gets more.
        shared = sorted((size, -rate) for size, rate in zip(sizes, rates, strict=True))
        return -math.prod(rates), sum(shape), shared

    # Mesh axes of equal sizes may swap their places, so one order of them is enough.
    orders = {
        tuple(sizes[i] for i in own): own
        for own in reversed(list(itertools.permutations(range(len(sizes)))))
    }
    return min(
        ((shape, _assign(shape, sizes, own)) for shape in shapes for own in orders.values()),
        key=rank,
    )


def _iterate_shapes(count: int, axes: int, longest: int) -> Iterator[tuple[int, ...]]:
    """Yield the shapes of a torus with this number of devices, the shortest axis first."""
    if axes == 1:
        if count <= longest:
            yield (count,)
        return
    for first in range(1, round(count ** (1 / axes)) + 1):
        if count % first == 0:
            for rest in _iterate_shapes(count // first, axes - 1, longest):
                if first <= rest[0]:
                    yield (first, *rest)


def _assign(
    shape: Sequence[int], sizes: Sequence[int], order: Sequence[int]
) -> tuple[tuple[_Part, ...], ...]:
    """Assign mesh axes to axes of a torus by the preferences of `jax.make_mesh`.

    It prefers complete axes to parts of them, and more axes to fewer.

    Args:
        shape: the lengths of the axes of the torus.
        sizes: the sizes of the mesh axes.
        order: the numbers of the mesh axes; the last one chooses first.
    """
    left = list(shape)
    found: list[tuple[_Part, ...]] = [()] * len(sizes)
    for number in reversed(order):
        # Complete axes of the torus have links that wrap around; a part of an axis has none.
        def rank(factors: tuple[int, ...], left: Sequence[int] = tuple(left)) -> tuple[object, ...]:
            whole = [one for one, full in zip(factors, shape, strict=True) if one == full]
            several = sum(one > 1 for one in whole)
            taken = [one for i, one in enumerate(factors) if left[i] < shape[i]]
            return math.prod(whole), several, math.prod(taken), factors

        best = max(_iterate_factors(sizes[number], left), key=rank)
        found[number] = tuple(
            _Part(axis, own, shape[axis] // left[axis]) for axis, own in enumerate(best) if own > 1
        )
        left = [rest // own for rest, own in zip(left, best, strict=True)]
    return tuple(found)


def _iterate_factors(size: int, left: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield the ways to build a mesh axis from parts of torus axes, as the numbers of devices along each."""
    options = [
        [one for one in range(1, rest + 1) if math.gcd(rest, size) % one == 0] for rest in left
    ]
    for factors in itertools.product(*options):
        if math.prod(factors) == size:
            yield factors


def _is_ring(torus: Torus, shape: Sequence[int], axis: int, reach: int) -> bool:
    """Return whether devices along an axis form a ring: they use the complete axis, and it wraps around."""
    # Optical switches join the ends of all axes of complete cubes, or of none.
    joined = shape if torus.longest is None else (shape[axis],)
    return reach == shape[axis] and all(size % torus.wraps == 0 for size in joined)
