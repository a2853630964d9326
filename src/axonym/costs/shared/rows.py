"""The rows of a report: collectives, work, memory and time.

Both readers make them from a program, and the report sums and prints them. They know neither programs nor mappings.
"""

import dataclasses
from typing import Literal, TypeAlias

from .ring import count_wire_bytes

__all__ = ["Collective", "Kept", "Memory", "Time", "Work"]

Phase: TypeAlias = Literal["forward", "backward", "recomputed", "other"]
UNATTRIBUTED = "unattributed"
OUTSIDE = "outside of layers"


@dataclasses.dataclass(frozen=True)
class Collective:
    """What devices send each other at one place of a program.

    Attributes:
        kind: `all-gather`, `all-reduce`, `reduce-scatter`, `all-to-all`, `ragged-all-to-all` or `collective-permute`.
        mesh_axes: the mesh axes along which devices take part; one of which a part does is written `data:2`.
        axes: the named axis that makes it necessary: summed over, gathered, or moved. Several, where a dimension of the
            array has several; none, if that is not known.
        layer: the path of the layer, such as `blocks.attention.out`; empty outside of layers.
        phase: `forward`, `backward`, `recomputed` for the backward pass, or `other`, such as the optimiser.
        count: how often it runs; loops count.
        group: the number of devices that take part with each other.
        nbytes: bytes of its operand on one device.
        shape: the dimensions of that operand.
        dtype: its dtype.
        seconds: of all runs together, on the target.
        hidden: the part of these in which the device computes or reads something else. In the program of the compiler
            for the target, what it computes between the start and the end of the collective; otherwise what the
            layer computes in the same phase, as is assumed.
        hidden_by: what that is: layers, or `computing` or `memory` of its own layer, whichever takes longer.
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
        """Seconds that nothing hides."""
        return self.seconds - self.hidden

    @property
    def sent(self) -> int:
        """Bytes that one device sends in all runs together, if the devices form a ring."""
        return round(self.count * count_wire_bytes(self.kind, self.nbytes, self.group))

    @property
    def axis(self) -> str:
        """The named axis as text."""
        return ", ".join(self.axes) or UNATTRIBUTED


@dataclasses.dataclass(frozen=True)
class Kept:
    """What the forward pass keeps for the backward pass, in one layer.

    Attributes:
        layer: the path of the layer.
        names: the axes of the array.
        shape: its dimensions on one device.
        dtype: its dtype.
        count: how many of them are kept, such as one for each block.
        nbytes: bytes of all of them on one device.
    """

    layer: str
    names: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    count: int
    nbytes: int


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes that one device holds.

    Attributes:
        parameters: arguments that are parameters: named arrays that are laid out as such, and all of a model.
        optimizer: the state of an optimiser.
        data: all other arguments.
        results: what the program returns.
        donated: the part of the results that takes the place of arguments.
        temporary: what the program needs beside them, at its peak.
        kept: the part of that which the backward pass needs, where it is known.
    """

    parameters: int
    optimizer: int
    data: int
    results: int
    donated: int
    temporary: int
    kept: tuple[Kept, ...] = ()

    @property
    def arguments(self) -> int:
        """Bytes of all arguments."""
        return self.parameters + self.optimizer + self.data

    @property
    def peak(self) -> int:
        """Bytes at the peak: arguments, what the program needs beside them, and results that take new memory."""
        return self.arguments + self.temporary + self.results - self.donated


@dataclasses.dataclass(frozen=True)
class Work:
    """What one device computes, reads and sends in one layer.

    Attributes:
        layer: the path of the layer; empty outside of layers.
        phase: as that of a `Collective`.
        flops: operations of products and convolutions; a multiplication and an addition count as two.
        nbytes: bytes that are read from memory and written to it.
        computing: seconds of the operations at the peak of the target.
        moving: seconds of reading and writing.
        sending: seconds of the collectives.
    """

    layer: str
    phase: Phase
    flops: float
    nbytes: float
    computing: float
    moving: float
    sending: float

    @property
    def seconds(self) -> float:
        """How long it takes, if computing, reading and sending overlap."""
        return max(self.computing, self.moving, self.sending)

    @property
    def bound(self) -> str:
        """What takes longest: `compute`, `memory` or `links`."""
        if self.sending > max(self.computing, self.moving):
            return "links"
        if self.moving > self.computing:
            return "memory"
        return "compute"


@dataclasses.dataclass(frozen=True)
class Time:
    """An estimate of how long one run takes.

    Attributes:
        seconds: if within each layer, computing, reading and sending overlap, and layers follow each other.
        serial: if nothing waits for a link, and nothing overlaps with it.
        scheduled: by the schedule of the program, if it is one of the compiler for the target: operations follow each
            other, and what they hide overlaps. Otherwise the same as `seconds`.
        computing: seconds of the operations alone, at the peak of the target.
        moving: seconds of reading and writing memory alone.
        sending: seconds of the collectives alone.
        bubble: the part of that in which a stage of a pipeline waits.
        utilisation: the share of the peak that the model gets: operations of the forward and backward pass, without
            those that are computed a second time, over what the devices could do in `seconds`.
    """

    seconds: float
    serial: float
    scheduled: float
    computing: float
    moving: float
    sending: float
    bubble: float
    utilisation: float
