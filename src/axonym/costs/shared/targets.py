"""Targets: the operations, memory and links of devices, as the data sheets say."""

import dataclasses
from collections.abc import Mapping
from typing import Literal, TypeAlias

from ...errors import ArgumentError, OperandError, message

__all__ = ["TARGETS", "Link", "Target"]

Platform: TypeAlias = Literal["tpu", "cuda", "cpu"]


@dataclasses.dataclass(frozen=True)
class Link:
    """The connection of the devices along one mesh axis.

    Attributes:
        bandwidth: bytes per second that one device sends along it, in both directions together.
        latency: seconds until the first byte of one step of a ring arrives.
        one_way: bytes per second to one neighbour of a ring; None if one direction may use the whole bandwidth, as
            behind a switch.

    Raises:
        ArgumentError: if a bandwidth is not positive.

    Examples:
        >>> axn.partitioning.Link(bandwidth=25e9, latency=10e-6)
        Link(bandwidth=25000000000.0, latency=1e-05, one_way=None)
    """

    bandwidth: float
    latency: float = 0.0
    one_way: float | None = None

    def __post_init__(self) -> None:
        _check_positive("Link", bandwidth=self.bandwidth)
        if self.one_way is not None:
            _check_positive("Link", one_way=self.one_way)


@dataclasses.dataclass(frozen=True)
class Target:
    """A kind of device with its links.

    Attributes:
        name: its name in reports.
        flops: operations per second by dtype, such as `{"bfloat16": 197e12}`. A multiplication and an addition count as
            two. A dtype that is not listed counts as the slowest one.
        memory: bytes of one device.
        memory_bandwidth: bytes per second between memory and the units that compute.
        link: the connection of devices along a mesh axis.
        links: the connections along mesh axes that differ, such as one between hosts.
        platform: the platform whose compiler knows the device: `tpu`, `cuda` or `cpu`.
        host_bandwidth: bytes per second between a device and the memory of its host, in one direction.

    Raises:
        OperandError: if `flops` is empty.
        ArgumentError: if a number is not positive.

    Examples:
        >>> slow = axn.partitioning.Link(bandwidth=25e9, latency=10e-6)
        >>> target = axn.partitioning.TARGETS["h100"].linked(data=slow)
        >>> target.link_of(("model",)).bandwidth, target.link_of(("data", "model")).bandwidth
        (450000000000.0, 25000000000.0)
    """

    name: str
    flops: Mapping[str, float]
    memory: int
    memory_bandwidth: float
    link: Link
    links: Mapping[str, Link] = dataclasses.field(default_factory=dict)
    platform: Platform = "cpu"
    host_bandwidth: float = 15e9

    def __post_init__(self) -> None:
        if not self.flops:
            problem = "a target needs operations per second of at least one dtype"
            raise OperandError(message("Target", problem, hint='write {"bfloat16": 197e12}'))
        numbers = {name: getattr(self, name) for name in ("memory", *_BANDWIDTHS)}
        _check_positive("Target", **numbers)
        _check_positive("Target", **self.flops)

    def flops_of(self, dtype: str) -> float:
        """Return the operations per second with operands of a dtype."""
        return self.flops.get(dtype) or min(self.flops.values())

    @property
    def peak(self) -> float:
        """The operations per second in the dtype that models are trained in, bfloat16 where it is listed."""
        return self.flops.get("bfloat16") or max(self.flops.values())

    def link_of(self, mesh_axes: tuple[str, ...]) -> Link:
        """Return the slowest link among those along some mesh axes."""
        found = [self.links.get(axis, self.link) for axis in mesh_axes]
        return min(found, key=lambda link: link.bandwidth, default=self.link)

    def linked(self, **links: Link) -> "Target":
        """Return the target with other links along some mesh axes."""
        return dataclasses.replace(self, links={**self.links, **links})


_BANDWIDTHS = ("memory_bandwidth", "host_bandwidth")


def _check_positive(function: str, **numbers: float) -> None:
    for name, number in numbers.items():
        if not number > 0:
            problem = f"{name} must be positive, not {number!r}"
            raise ArgumentError(message(function, problem))


# TPUs: cloud.google.com/tpu/docs/v5e, v5p and v6e, tables "system architecture". A ring along one axis of the torus has
# two of the ports of a chip, so it sends the bidirectional bandwidth of a chip, divided by the number of its ports: 400
# of 4 (v5e), 1200 of 6 (v5p) and 800 GB/s of 4 (v6e). To one neighbour, one port sends. A hop takes about a
# microsecond: Austin et al., "How to Scale Your Model" (2025), part 2. Products of float32 take one pass in bfloat16
# there, by the default precision of JAX. PCI Express to the host has 15 GB/s for each chip, and 32 for a v6e (part 2).
#
# H100 SXM: the data sheet of NVIDIA, without sparsity; float32 is TF32, and NVLink has 900 GB/s in both directions, PCI
# Express 128. Its latency, and all numbers of "cpu", are round ones: a simulated device says nothing about time.
TARGETS: Mapping[str, Target] = {
    "v5e": Target(
        "v5e",
        {"bfloat16": 197e12, "float32": 197e12, "int8": 393e12},
        memory=16 * 2**30,
        memory_bandwidth=819e9,
        link=Link(100e9, 1e-6, one_way=50e9),
        platform="tpu",
    ),
    "v5p": Target(
        "v5p",
        {"bfloat16": 459e12, "float32": 459e12, "int8": 918e12},
        memory=95 * 2**30,
        memory_bandwidth=2765e9,
        link=Link(200e9, 1e-6, one_way=100e9),
        platform="tpu",
    ),
    "v6e": Target(
        "v6e",
        {"bfloat16": 918e12, "float32": 918e12, "int8": 1836e12},
        memory=32 * 2**30,
        memory_bandwidth=1600e9,
        link=Link(200e9, 1e-6, one_way=100e9),
        platform="tpu",
        host_bandwidth=32e9,
    ),
    "h100": Target(
        "h100",
        {
            "bfloat16": 989e12,
            "float16": 989e12,
            "float32": 494e12,
            "float8_e4m3fn": 1979e12,
            "float8_e5m2": 1979e12,
            "int8": 1979e12,
        },
        memory=80 * 10**9,
        memory_bandwidth=3350e9,
        link=Link(450e9, 3e-6),
        platform="cuda",
        host_bandwidth=64e9,
    ),
    "cpu": Target(
        "cpu",
        {"float32": 1e11, "bfloat16": 1e11},
        memory=16 * 2**30,
        memory_bandwidth=20e9,
        link=Link(10e9, 1e-6),
    ),
}
