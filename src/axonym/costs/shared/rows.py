"""The rows of a report: collectives, work, memory and time.

Both readers make them from a program, and the report sums and prints them. They know neither programs nor mappings.
"""

import dataclasses
from typing import Literal, TypeAlias

from .ring import count_wire_bytes
from .targets import Efficiency

__all__ = ["Collective", "Kept", "Memory", "Time", "Work"]

Phase: TypeAlias = Literal["forward", "backward", "recomputed", "other"]
UNATTRIBUTED = "unattributed"
OUTSIDE = "outside of layers"


@dataclasses.dataclass(frozen=True)
class Collective:
    """A collective at one place of a program, for all its runs together.

    Attributes:
        kind: `all-gather`, `all-reduce`, `reduce-scatter`, `all-to-all`, `ragged-all-to-all` or `collective-permute`.
        mesh_axes: the mesh axes along which devices take part; a partly used axis is written `data:2`.
        axes: the named axis that makes the collective necessary, because it is summed over, gathered or moved. The
            tuple has several axes if they share a dimension of the array; it is empty if the axis is not known.
        layer: the path of the layer, such as `blocks.attention.out`; empty outside of layers.
        phase: `forward`, `backward`, `recomputed` (for the backward pass), or `other`, such as the optimiser.
        count: the number of runs, including iterations of loops.
        group: the number of devices in one group.
        nbytes: bytes of its operand on one device, in one run.
        shape: the dimensions of that operand.
        dtype: its dtype, as XLA writes it.
        seconds: the time of all runs together on the target, in seconds.
        hidden: the part of these seconds that overlaps with computing or memory access. In a program of the target's
            own compiler, this is the work between the start and the end of the collective; otherwise, the work of the
            same layer and phase is assumed to overlap.
        hidden_by: the layers that are computed meanwhile; or `computing` or `memory`, whichever takes longer in its own
            layer.

    Examples:
        >>> from axonym.costs.report import Collective
        >>> row = Collective("all-gather", ("data",), ("embed",), "up", "forward", 6, 4, 1024, (16, 16), "f32", 2e-5)
        >>> row.axis, row.sent, row.exposed
        ('embed', 18432, 2e-05)
    """

    kind: str
    mesh_axes: tuple[str, ...]
    axes: tuple[str, ...]
    layer: str
    phase: Phase
    count: int
    group: int
    nbytes: int
    shape: tuple[int, ...]
    dtype: str
    seconds: float
    hidden: float = 0.0
    hidden_by: tuple[str, ...] = ()

    @property
    def exposed(self) -> float:
        """Seconds in which the device only waits for the collective."""
        return self.seconds - self.hidden

    @property
    def sent(self) -> int:
        """Bytes that one device sends in all runs together, assuming that the devices form a ring."""
        return round(self.count * count_wire_bytes(self.kind, self.nbytes, self.group))

    @property
    def axis(self) -> str:
        """The named axes as text; `unattributed` if they are not known."""
        return ", ".join(self.axes) or UNATTRIBUTED


@dataclasses.dataclass(frozen=True)
class Kept:
    """Arrays that the forward pass keeps for the backward pass, in one layer.

    Attributes:
        layer: the path of the layer.
        names: the axes of the array.
        shape: its dimensions on one device.
        dtype: its dtype.
        count: the number of such arrays, such as one for each block.
        nbytes: bytes of all of them on one device.
        is_on_host: whether the host holds them.

    Examples:
        >>> layer = axn.nn.Linear.init(axn.Axis("embed", 8), axn.Axis("mlp", 16), key=jax.random.key(0))
        >>> step = jax.grad(lambda layer, x: axn.sin(layer(x)).sum().scalar())
        >>> x = axn.zeros({"batch": 64, "embed": 8})
        >>> report = axn.cost(step, {"batch": "data"}, {"data": 8}, layer, x, depth="traced")
        >>> [(kept.layer, kept.names, kept.shape, kept.nbytes) for kept in report.memory.kept]
        [('Linear', ('batch', 'mlp'), (8, 16), 512)]
    """

    layer: str
    names: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    count: int
    nbytes: int
    is_on_host: bool = False


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes that one device holds; arrays on the host count only as `host`.

    Attributes:
        parameters: bytes of parameters: arrays of a model, and named arrays that are sharded like them.
        optimizer: bytes of the state of an optimiser.
        data: bytes of all other arguments.
        results: bytes that the program returns.
        donated: bytes of results that reuse the memory of arguments.
        temporary: bytes that the program needs at its peak, in addition to arguments and results.
        kept: the arrays that the backward pass needs, including arrays on the host; empty for a compiled program.
        host: bytes that the host holds for one device, at their peak.

    Examples:
        >>> from axonym.costs.report import Memory
        >>> memory = Memory(parameters=400, optimizer=800, data=10, results=1200, donated=1200, temporary=90)
        >>> memory.arguments, memory.peak
        (1210, 1300)
    """

    parameters: int
    optimizer: int
    data: int
    results: int
    donated: int
    temporary: int
    kept: tuple[Kept, ...] = ()
    host: int = 0

    @property
    def arguments(self) -> int:
        """Bytes of all arguments."""
        return self.parameters + self.optimizer + self.data

    @property
    def peak(self) -> int:
        """Bytes at the peak: arguments, temporary arrays, and results that take new memory."""
        return self.arguments + self.temporary + self.results - self.donated


@dataclasses.dataclass(frozen=True)
class Work:
    """The work of one device in one layer: it computes, reads and sends.

    Attributes:
        layer: the path of the layer; empty outside of layers.
        phase: the phase, as in `Collective`.
        flops: operations of products and convolutions; a multiplication and an addition count as two.
        nbytes: bytes that are read from memory and written to it.
        computing: seconds of the operations at the peak of the target.
        moving: seconds of reading and writing.
        sending: seconds of the collectives.
        copying: seconds of copies to the host and from it.
        attending: seconds of attention, a part of `computing`.

    Examples:
        >>> from axonym.costs.report import Work
        >>> row = Work("up", "forward", flops=1e9, nbytes=1e6, computing=2e-3, moving=1e-3, sending=3e-3)
        >>> row.bound, row.seconds
        ('links', 0.003)
    """

    layer: str
    phase: Phase
    flops: float
    nbytes: float
    computing: float
    moving: float
    sending: float
    copying: float = 0.0
    attending: float = 0.0

    def slow_down(self, efficiency: Efficiency) -> "Work":
        """Return the same work for a device that reaches only these shares of its peaks.

        Examples:
            >>> from axonym.costs.report import Work
            >>> row = Work("up", "forward", flops=1e9, nbytes=1e6, computing=2e-3, moving=1e-3, sending=3e-3)
            >>> row.slow_down(axn.partitioning.Efficiency(0.5, 0.5, 1.0, 0.8)).computing
            0.004
        """
        attending = self.attending / efficiency.attention
        return dataclasses.replace(
            self,
            computing=(self.computing - self.attending) / efficiency.products + attending,
            moving=self.moving / efficiency.memory,
            sending=self.sending / efficiency.links,
            copying=self.copying / efficiency.links,
            attending=attending,
        )

    @property
    def half(self) -> str:
        """The half of the step in which it runs: recomputation runs in the backward pass."""
        return "backward" if self.phase == "recomputed" else self.phase

    @property
    def seconds(self) -> float:
        """The seconds of the layer if computing, memory access and sending overlap; copies are not included."""
        return max(self.computing, self.moving, self.sending)

    @property
    def bound(self) -> str:
        """The resource that takes longest: `compute`, `memory` or `links`."""
        if self.sending > max(self.computing, self.moving):
            return "links"
        if self.moving > self.computing:
            return "memory"
        return "compute"


# The parts of the work of a layer that add up.
TIMES = ("computing", "moving", "sending", "copying", "attending")
MIXED = ("flops", "nbytes", *TIMES)


@dataclasses.dataclass(frozen=True)
class Time:
    """An estimate of how long one run takes.

    Attributes:
        seconds: the bound: the time at the peaks of the target if computing, reading and sending overlap within each
            layer and pass, and layers follow each other.
        serial: the time if nothing overlaps with sending.
        scheduled: the time by the schedule of the program, if the target's own compiler made it: operations follow each
            other, and collectives overlap with them. Otherwise the same as `seconds`.
        computing: seconds of the operations alone, at the peak of the target.
        moving: seconds of reading and writing memory alone.
        sending: seconds of the collectives alone.
        bubble: the share of the time in which a stage of a pipeline waits.
        utilisation: the share of the peak that the model uses: operations of the forward and backward pass, without
            recomputation, divided by the operations that the device could do in `seconds`.
        copying: seconds of the copies to the host and from it alone.
        copied: seconds of these copies that do not overlap: copies may overlap with all layers of the forward pass, or
            of the backward pass, or with the rest of the step.
        expected: the expected time, if the device reaches only the shares of its peaks in `efficiency` of the target;
            None if the target has no such shares.

    Examples:
        >>> x = axn.zeros({"batch": 64})
        >>> time = axn.cost(lambda x: x.sum(), {"batch": "data"}, {"data": 8}, x, depth="traced").time
        >>> time.sending > time.moving > time.computing
        True
    """

    seconds: float
    serial: float
    scheduled: float
    computing: float
    moving: float
    sending: float
    bubble: float
    utilisation: float
    copying: float = 0.0
    copied: float = 0.0
    expected: float | None = None

    @property
    def compared(self) -> float:
        """The time that ranks mappings: the expected time if the target has shares, otherwise the scheduled time.

        Examples:
            >>> x = axn.zeros({"batch": 64})
            >>> time = axn.cost(lambda x: x.sum(), {"batch": "data"}, {"data": 8}, x, depth="traced").time
            >>> time.expected is None and time.compared == time.scheduled
            True
        """
        return self.scheduled if self.expected is None else self.expected
