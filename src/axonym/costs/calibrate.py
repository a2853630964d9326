"""Measure what share of a device's peaks products, attention, collectives and copies reach."""

import dataclasses
import statistics
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

# The face of the package: it has the attention that models run, too.
import axonym as axn

from ..engine import MeshLike
from .shared.network import find_levels
from .shared.ring import estimate_latency
from .shared.targets import TARGETS, Efficiency, Link, Target

__all__ = ["calibrate"]

# Parts of the names of kinds of devices, the more special ones first.
_KINDS = {
    "TPU v4": "v4",
    "TPU v5 lite": "v5e",
    "TPU v5": "v5p",
    "TPU v6": "v6e",
    "TPU7": "v7x",
    "GB200": "gb200",
    "B200": "b200",
    "H200": "h200",
    "H100": "h100",
    "A100": "a100",
}
# All devices divide this axis of the arguments.
ROWS = "rows"


def calibrate(mesh: MeshLike | Mapping[str, int]) -> Target:
    """Measure the speed that the devices of a mesh reach, and return a target for them.

    All devices run products, attention, copies in memory, and collectives along all mesh axes, each in a few sizes.
    This takes about a minute. The median of each kind is a share of `efficiency`. A device in
    `axonym.partitioning.TARGETS` keeps the peaks of its data sheet; for another device, such as a CPU, the fastest
    programs give the peaks.

    Args:
        mesh: a mesh, or the sizes of one for the devices of this machine.

    Returns:
        The target, for `axn.cost` and `axn.plan`.

    Raises:
        OperandError: if this machine has too few devices.

    Examples:
        >>> own = axn.partitioning.calibrate({"data": 8})  # doctest: +SKIP
        >>> axn.cost(step, {"batch": "data"}, {"data": 8}, model, x, target=own).time.expected  # doctest: +SKIP
        0.0123
    """
    # Imported here, so that a program that only names this function does not load the readers.
    from .compiled.running import find_devices

    devices = find_devices(mesh, "calibrate")
    known = _find_known(devices)
    bench = _Bench(devices, known or TARGETS["cpu"])
    dtypes = ("float32", "bfloat16") if known is None else ("bfloat16",)
    products = {
        dtype: [bench.measure(_multiply, *bench.list_factors(n, dtype)) for n in (1, 2, 4)]
        for dtype in dtypes
    }
    first = products[dtypes[0]]
    attention = [bench.measure(_attend, *bench.list_heads(n, dtypes[0])) for n in (1, 2, 4)]
    copies = [bench.measure(_copy, bench.make_rows(n), of="moving") for n in (1, 2, 4)]
    links, latency = bench.measure_links()
    medians = [statistics.median(one) for one in (first, attention, links, copies)]
    if known is not None:
        return dataclasses.replace(known, efficiency=Efficiency(*medians))
    # The peaks of an unknown device are the best measured rates; attention is a share of the peak of products.
    peaks = max(first), max(first), max(links), max(copies)
    shares = [median / peak for median, peak in zip(medians, peaks, strict=True)]
    return dataclasses.replace(
        bench.target,
        name=f"{devices.devices.flat[0].device_kind}, measured",
        flops={
            dtype: max(found) * bench.target.flops_of(dtype) for dtype, found in products.items()
        },
        memory_bandwidth=max(copies) * bench.target.memory_bandwidth,
        link=Link(max(links) * bench.target.link.bandwidth, latency),
        efficiency=Efficiency(*shares),
    )


def _find_known(devices: Mesh) -> Target | None:
    """Return the target of the table that describes the devices; None if the table has no such target."""
    kind = devices.devices.flat[0].device_kind
    return next((TARGETS[name] for part, name in _KINDS.items() if part in kind), None)


class _Bench:
    """Runs programs on all devices of a mesh, and compares them with their cost at the peaks of a target."""

    def __init__(self, devices: Mesh, target: Target) -> None:
        self._devices = devices
        self._axes = tuple(devices.axis_names)
        # Simulated devices have a core or less.
        self._is_small = target.platform == "cpu"
        self.target = target

    def measure(
        self, fn: Callable[..., Any], *args: axn.NamedArray, of: str = "computing"
    ) -> float:
        """Return the share of a resource's peak that a function reaches."""
        expected, seconds = self._time(fn, args, of)
        return expected / seconds

    def measure_links(self) -> tuple[list[float], float]:
        """Return the shares of link bandwidth that collectives reach, and the latency of a link.

        A target of the table keeps its own latency.
        """
        shares: list[float] = []
        latencies: list[float] = []
        levels = find_levels(self._axes, self._devices.size, dict(self._devices.shape), self.target)
        for kind, fn in (("all-gather", axn.named_jit(_gather)), ("all-reduce", _sum)):
            waiting = estimate_latency(kind, levels)
            small, large = (
                self._time(fn, (self.make_rows(size),), "sending") for size in (1 / 64, 1)
            )
            # The extra time of a larger array is due to its bytes.
            sending = (large[0] - small[0]) / max(large[1] - small[1], 1e-9)
            shares.append(min(sending, large[0] / large[1] * 4))
            rest = small[1] - (small[0] - waiting) / sending
            latencies.append(max(0.0, rest) / max(waiting, 1e-9) * self.target.link.latency)
        return shares, statistics.median(latencies)

    def list_factors(self, size: int, dtype: str) -> tuple[axn.NamedArray, axn.NamedArray]:
        """Return the operands of a product of square matrices on each device."""
        width = size * (128 if self._is_small else 2048)
        return (
            self._describe({ROWS: width * self._devices.size, "width": width}, dtype),
            self._describe({"width": width, "columns": width}, dtype),
        )

    def list_heads(self, size: int, dtype: str) -> tuple[axn.NamedArray, ...]:
        """Return queries, keys and values of some heads on each device."""
        positions, features = (64, 32) if self._is_small else (2048, 128)
        own = {ROWS: self._devices.size, "heads": 4}
        shapes = [{**own, name: size * positions, "features": features} for name in ("q", "k", "k")]
        return tuple(self._describe(shape, dtype) for shape in shapes)

    def make_rows(self, size: float) -> axn.NamedArray:
        """Return an array with one row on each device."""
        width = round(size * 2 ** (20 if self._is_small else 27))
        return self._describe({ROWS: self._devices.size, "width": width}, "float32")

    def _describe(self, shape: Mapping[str, int], dtype: str) -> axn.NamedArray:
        return axn.NamedArray(
            jax.ShapeDtypeStruct(tuple(shape.values()), jnp.dtype(dtype)), tuple(shape)
        )

    def _time(
        self, fn: Callable[..., Any], args: tuple[axn.NamedArray, ...], of: str
    ) -> tuple[float, float]:
        """Return the seconds for one resource at its peak, and the measured seconds."""
        from .compiled.running import measure_run
        from .cost import cost

        mapping = {ROWS: self._axes}
        sizes = dict(self._devices.shape)
        found = cost(fn, mapping, sizes, *args, target=self.target, depth="traced")
        seconds = measure_run(fn, mapping, self._devices, args, {}, function="calibrate")
        return getattr(found.time, of), seconds


def _multiply(x: axn.NamedArray, w: axn.NamedArray) -> axn.NamedArray:
    return axn.dot(x, w, axis="width")


def _attend(q: axn.NamedArray, k: axn.NamedArray, v: axn.NamedArray) -> Any:
    def loss(*given: axn.NamedArray) -> jax.Array:
        found = axn.nn.dot_product_attention("q", "k", "features", *given)
        return found.sum().scalar().astype(jnp.float32)

    return jax.grad(loss, argnums=(0, 1, 2))(q, k, v)


def _copy(x: axn.NamedArray) -> axn.NamedArray:
    return x + 1


def _gather(x: axn.NamedArray) -> axn.NamedArray:
    return axn.shard(x, {ROWS: None})


def _sum(x: axn.NamedArray) -> axn.NamedArray:
    return x.sum(ROWS)
