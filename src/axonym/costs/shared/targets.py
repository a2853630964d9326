"""Targets: the operations, memory and links of devices, from data sheets."""

import dataclasses
import itertools
import re
from collections.abc import Mapping
from typing import Literal, TypeAlias

from ...errors import ArgumentError, OperandError, message

__all__ = ["TARGETS", "Domain", "Efficiency", "Link", "Target", "Torus"]

Platform: TypeAlias = Literal["tpu", "cuda", "cpu"]


@dataclasses.dataclass(frozen=True)
class Link:
    """The connection of a device with others: along one axis of a torus, or through a switch.

    Attributes:
        bandwidth: bytes per second that one device sends along it, in both directions together.
        latency: seconds until the first byte arrives at the next device, or at a device behind the switch.
        one_way: bytes per second to one neighbour of a ring; None if one direction may use the full bandwidth, as
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
class Torus:
    """Devices that are connected with their neighbours along two or three axes.

    Attributes:
        axes: the number of axes.
        wraps: an axis is a ring if its length is a multiple of this. Otherwise, it is a line.
        longest: the length of an axis of the largest slice; other slices are parts of this one. None if optical
            switches join cubes to slices of any shape; then either all axes are rings, or none is.

    Raises:
        ArgumentError: if a number is not positive.

    Examples:
        >>> axn.partitioning.TARGETS["v5e"].torus, axn.partitioning.TARGETS["v5p"].torus
        (Torus(axes=2, wraps=16, longest=16), Torus(axes=3, wraps=4, longest=None))
    """

    axes: int
    wraps: int
    longest: int | None = None

    def __post_init__(self) -> None:
        _check_positive("Torus", axes=self.axes, wraps=self.wraps)
        if self.longest is not None:
            _check_positive("Torus", longest=self.longest)


@dataclasses.dataclass(frozen=True)
class Domain:
    """Devices that a fast network connects, such as a slice of TPUs or an NVLink domain.

    Attributes:
        devices: the largest number of devices in one domain. All domains of a mesh have equally many.
        link: the connection of each device with other domains.

    Raises:
        ArgumentError: if the number is not positive.

    Examples:
        >>> axn.partitioning.TARGETS["h100"].domains[0].devices
        8
    """

    devices: int
    link: Link

    def __post_init__(self) -> None:
        _check_positive("Domain", devices=self.devices)


@dataclasses.dataclass(frozen=True)
class Efficiency:
    """The shares of its peaks that a device reaches in programs of many layers.

    Attributes:
        products: the share of the peak operations per second in products and convolutions.
        attention: that in attention.
        links: the share of the bandwidth of links, including the link to the host.
        memory: the share of the bandwidth of memory.

    Raises:
        ArgumentError: if a share is not positive.

    Examples:
        >>> axn.partitioning.TARGETS["v5p"].efficiency is not None
        True
        >>> axn.partitioning.TARGETS["cpu"].efficiency is None
        True
    """

    products: float
    attention: float
    links: float
    memory: float

    def __post_init__(self) -> None:
        _check_positive("Efficiency", **vars(self))


@dataclasses.dataclass(frozen=True)
class Target:
    """A kind of device with its links.

    Mesh axes are placed as `jax.make_mesh` places them: neighbours along the last mesh axes are in the same domain, and
    on a torus, the last mesh axis chooses first.

    Attributes:
        name: its name in reports.
        flops: operations per second by dtype, such as `{"bfloat16": 197e12}`. A multiplication and an addition count as
            two. `float32` is for JAX's default precision, and `float32_highest` for `jax.lax.Precision.HIGHEST`; a TPU
            takes six passes in bfloat16 for it, and three for `HIGH`. An unlisted dtype has the rate of a listed one of
            the same kind that is as wide or wider, such as bfloat16 for float8. If there is none, it has the slowest
            rate, and the report says so.
        memory: bytes of one device.
        memory_bandwidth: bytes per second between memory and compute units.
        link: the connection of devices: along each axis of the torus, or through a switch.
        links: the connections along mesh axes with links of another kind, such as between slices. These networks
            connect groups of devices that the other mesh axes connect.
        platform: the platform whose compiler knows the device: `tpu`, `cuda` or `cpu`.
        host_bandwidth: bytes per second between a device and the memory of its host, in one direction.
        torus: the torus that `link` belongs to; None for a switch.
        domains: the outer networks around the network of `link`, the fastest one first.
        efficiency: the shares of these peaks that programs reach, which give the expected time of a cost; None if they
            are not known. `axn.partitioning.calibrate` measures them.

    Raises:
        OperandError: if `flops` is empty; if a domain is not larger than the one before.
        ArgumentError: if a number is not positive.

    Examples:
        >>> slow = axn.partitioning.Link(bandwidth=25e9, latency=10e-6)
        >>> by_name = axn.partitioning.TARGETS["v5p"].linked(slices=slow)
        >>> by_size = axn.partitioning.TARGETS["v5p"].resize_domains(256)
        >>> by_name.links["slices"].bandwidth, by_size.domains[0].devices
        (25000000000.0, 256)
    """

    name: str
    flops: Mapping[str, float]
    memory: int
    memory_bandwidth: float
    link: Link
    links: Mapping[str, Link] = dataclasses.field(default_factory=dict)
    platform: Platform = "cpu"
    host_bandwidth: float = 15e9
    torus: Torus | None = None
    domains: tuple[Domain, ...] = ()
    efficiency: Efficiency | None = None

    def __post_init__(self) -> None:
        if not self.flops:
            problem = "a target needs operations per second of at least one dtype"
            raise OperandError(message("Target", problem, hint='write {"bfloat16": 197e12}'))
        sizes = [domain.devices for domain in self.domains]
        if any(one >= other for one, other in itertools.pairwise(sizes)):
            problem = f"domains must grow from the first to the last one, not be of {sizes} devices"
            raise OperandError(message("Target", problem))
        numbers = {name: getattr(self, name) for name in ("memory", *_BANDWIDTHS)}
        _check_positive("Target", **numbers)
        _check_positive("Target", **self.flops)

    def flops_of(self, dtype: str) -> float:
        """Return the operations per second with operands of a dtype, or in a precision such as `float32_high`."""
        if dtype in PASSES and dtype not in self.flops:
            if self.platform == "tpu":
                return self.flops_of("bfloat16") / PASSES[dtype]
            dtype = "float32"
        known = self.find_rate(dtype)
        return min(self.flops.values()) if known is None else self.flops[known]

    def find_rate(self, dtype: str) -> str | None:
        """Return the listed dtype whose rate a dtype has; None if no listed one of its kind is as wide."""
        if dtype in self.flops:
            return dtype
        kind, width = _read_width(dtype)
        listed = {one: _read_width(one) for one in self.flops if one not in PASSES}
        wider = {one: own for one, own in listed.items() if own[0] == kind and own[1] >= width}
        return min(wider, key=wider.__getitem__) if wider else None

    @property
    def peak(self) -> float:
        """The operations per second in the dtype for training: bfloat16 if it is listed."""
        return self.flops.get("bfloat16") or max(self.flops.values())

    def linked(self, **links: Link) -> "Target":
        """Return the target with other links along some mesh axes."""
        return dataclasses.replace(self, links={**self.links, **links})

    def resize_domains(self, devices: int) -> "Target":
        """Return the target with this number of devices in each outermost domain, such as a slice.

        Raises:
            OperandError: if the target has no domains.
        """
        if not self.domains:
            problem = f"{self.name} has no domains, so it does not say how slices are connected"
            hint = "describe that by Target(..., domains=(Domain(devices, link),))"
            raise OperandError(message("resize_domains", problem, hint=hint))
        # Smaller networks than the new domain stay inside of it.
        inner = tuple(one for one in self.domains[:-1] if one.devices < devices)
        outer = dataclasses.replace(self.domains[-1], devices=devices)
        return dataclasses.replace(self, domains=(*inner, outer))


# Precisions of a product of float32 numbers, each with its passes in bfloat16 on a TPU.
PASSES = {"float32_high": 3, "float32_highest": 6}
_WIDTH = re.compile(r"(int|float)(\d+)")


def _read_width(dtype: str) -> tuple[str, int]:
    """Return the kind of a dtype and its bits."""
    found = _WIDTH.search(dtype)
    return ("", 0) if found is None else (found[1], int(found[2]))


_BANDWIDTHS = ("memory_bandwidth", "host_bandwidth")


def _check_positive(function: str, **numbers: float) -> None:
    for name, number in numbers.items():
        if not number > 0:
            problem = f"{name} must be positive, not {number!r}"
            raise ArgumentError(message(function, problem))


# TPUs: cloud.google.com/tpu/docs/v4, v5e, v5p, v6e and tpu7x, tables "system architecture". Along an axis of the torus,
# a chip has two ports, so it sends the bidirectional bandwidth of a chip, divided by the number of ports: 400 GB/s of 4
# (v5e), 1200 of 6 (v5p), 800 of 4 (v6e). For v4, and for which axes are rings: Austin et al., "How to Scale Your Model"
# (2025), part 2; a hop takes about a microsecond there. Between slices, a chip sends 50 Gbit/s (v5p), 100 (v6e), or its
# part of the host's 25 GB/s (v4: 4 chips, v5e: 8). The latency of that network is a round number. With JAX's default
# precision, float32 products take one pass in bfloat16. PCI Express to the host has 15 GB/s for each chip, and 32 for a
# v6e (part 2).
#
# JAX shows each chip of v7x as two devices, which share its ports; a device has half of the numbers of a chip. The
# faster connection of the two is not modelled.
_V5P_LINK = Link(200e9, 1e-6, one_way=100e9)


# GPUs: the data sheets of NVIDIA, without sparsity; float32 is TF32, and float32_highest is FP32. NVLink sends 300
# (A100), 450 (H100) and 900 GB/s (Blackwell) each way. Beyond it, each GPU has a port of InfiniBand: 200 Gbit/s in the
# reference architecture of the DGX SuperPOD with A100, 400 with the others. To the host, PCI Express has 32 GB/s each
# way (A100) or 64, and a Grace CPU has 225 for each of its two GPUs. Latencies are round numbers. "h100-96gb" has
# HBM2e: torchtitan publishes measurements on it, in benchmarks/llama3_h100_202412_torchtitan.md.
#
# Shares of peaks: products are fitted on the rows of benchmarks/published.py that say so. The share depends on compiler
# versions, and the share of the H100 on a limit of 500 W, so other H100s have none. No row tells attention on a TPU
# apart from products; on the H100, it has the 600 TFLOP/s of cuDNN in Shah et al. (2024), FlashAttention-3, for heads
# of 128. Links: Austin et al., parts 3 and 12, measure 95 % of 45 GB/s, of which the data sheet of a v5e says 50, and
# 370 of 450 GB/s on NVLink. The share of memory is a round number.


def _make_shares(products: float) -> Efficiency:
    """Return the shares of the peaks that a TPU reaches."""
    return Efficiency(products, products, links=0.86, memory=0.9)


_HOPPER = {
    "bfloat16": 989e12,
    "float16": 989e12,
    "float32": 494e12,
    "float32_highest": 67e12,
    "float64": 67e12,
    "float8_e4m3fn": 1979e12,
    "float8_e5m2": 1979e12,
    "int8": 1979e12,
}
_INFINIBAND = Link(50e9, 5e-6)
_H100 = Target(
    "h100",
    _HOPPER,
    memory=80 * 10**9,
    memory_bandwidth=3350e9,
    link=Link(450e9, 3e-6),
    platform="cuda",
    host_bandwidth=64e9,
    domains=(Domain(8, _INFINIBAND),),
)
_B200 = Target(
    "b200",
    {
        "bfloat16": 2250e12,
        "float16": 2250e12,
        "float32": 1125e12,
        "float32_highest": 75e12,
        "float64": 37e12,
        "float4_e2m1fn": 9000e12,
        "float8_e4m3fn": 4500e12,
        "float8_e5m2": 4500e12,
        "int8": 4500e12,
    },
    memory=180 * 10**9,
    memory_bandwidth=7700e9,
    link=Link(900e9, 3e-6),
    platform="cuda",
    host_bandwidth=64e9,
    domains=(Domain(8, _INFINIBAND),),
)
_TARGETS = (
    Target(
        "v4",
        {"bfloat16": 275e12, "float32": 275e12, "int8": 275e12},
        memory=32 * 2**30,
        memory_bandwidth=1228e9,
        link=Link(90e9, 1e-6, one_way=45e9),
        platform="tpu",
        torus=Torus(3, 4),
        domains=(Domain(4096, Link(6.25e9, 1e-5)),),
    ),
    Target(
        "v5e",
        {"bfloat16": 197e12, "float32": 197e12, "int8": 393e12},
        memory=16 * 2**30,
        memory_bandwidth=819e9,
        link=Link(100e9, 1e-6, one_way=50e9),
        platform="tpu",
        torus=Torus(2, 16, longest=16),
        domains=(Domain(256, Link(3.125e9, 1e-5)),),
        efficiency=_make_shares(0.86),
    ),
    Target(
        "v5p",
        {"bfloat16": 459e12, "float32": 459e12, "int8": 918e12},
        memory=95 * 2**30,
        memory_bandwidth=2765e9,
        link=_V5P_LINK,
        platform="tpu",
        torus=Torus(3, 4),
        domains=(Domain(8960, Link(6.25e9, 1e-5)),),
        efficiency=_make_shares(0.77),
    ),
    Target(
        "v6e",
        {"bfloat16": 918e12, "float32": 918e12, "int8": 1836e12},
        memory=32 * 2**30,
        memory_bandwidth=1600e9,
        link=_V5P_LINK,
        platform="tpu",
        host_bandwidth=32e9,
        torus=Torus(2, 16, longest=16),
        domains=(Domain(256, Link(12.5e9, 1e-5)),),
        efficiency=_make_shares(0.57),
    ),
    Target(
        "v7x",
        {
            "bfloat16": 1153.5e12,
            "float32": 1153.5e12,
            "float8_e4m3fn": 2307e12,
            "float8_e5m2": 2307e12,
        },
        memory=96 * 2**30,
        memory_bandwidth=3690e9,
        link=Link(100e9, 1e-6, one_way=50e9),
        platform="tpu",
        torus=Torus(3, 4),
        domains=(Domain(2 * 9216, Link(6.25e9, 1e-5)),),
    ),
    Target(
        "a100",
        {
            "bfloat16": 312e12,
            "float16": 312e12,
            "float32": 156e12,
            "float32_highest": 19.5e12,
            "float64": 19.5e12,
            "int8": 624e12,
        },
        memory=80 * 10**9,
        memory_bandwidth=2039e9,
        link=Link(300e9, 3e-6),
        platform="cuda",
        host_bandwidth=32e9,
        domains=(Domain(8, Link(25e9, 5e-6)),),
    ),
    _H100,
    dataclasses.replace(
        _H100,
        name="h100-96gb",
        memory=96 * 10**9,
        memory_bandwidth=2400e9,
        efficiency=Efficiency(products=0.41, attention=0.61, links=0.82, memory=0.9),
    ),
    dataclasses.replace(_H100, name="h200", memory=141 * 10**9, memory_bandwidth=4800e9),
    _B200,
    dataclasses.replace(
        _B200,
        name="gb200",
        flops={
            **{name: rate * 2500 / 2250 for name, rate in _B200.flops.items()},
            "float32_highest": 80e12,
            "float64": 40e12,
        },
        memory=186 * 10**9,
        memory_bandwidth=8000e9,
        host_bandwidth=225e9,
        domains=(Domain(72, _INFINIBAND),),
    ),
    # Round numbers: a simulated device says nothing about time.
    Target(
        "cpu",
        {"float32": 1e11, "bfloat16": 1e11},
        memory=16 * 2**30,
        memory_bandwidth=20e9,
        link=Link(10e9, 1e-6),
    ),
)
TARGETS: Mapping[str, Target] = {target.name: target for target in _TARGETS}
