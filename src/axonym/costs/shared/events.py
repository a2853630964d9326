"""Internal. Events of a program: operations that compute and move memory, and collectives that send.

Both readers emit these two types; `roofline` and `overlap` turn them into rows of a report. An event does not know
which kind of program it comes from.
"""

from typing import NamedTuple

from .places import Place
from .ring import estimate_latency, estimate_seconds
from .rows import Collective
from .targets import Target


class Amount(NamedTuple):
    """What all runs of one operation compute, read and write.

    Attributes:
        source: the operation of the function that it belongs to.
        flops: operations; a multiplication and an addition count as two.
        dtype: that of the operands.
        nbytes: bytes that are read and written.
        copied: bytes that are copied to the host or from it.
    """

    source: str
    flops: float
    dtype: str
    nbytes: float
    copied: float = 0.0


class Sending(NamedTuple):
    """One array that devices send each other at one place of a program.

    Attributes:
        kind: as that of a `Collective`, and so are the following ones.
        mesh_axes: along which devices take part.
        axes: the named axes that make it necessary.
        place: the layer and the phase.
        runs: how often it runs.
        group: the number of devices that take part with each other.
        nbytes: bytes of the operand on one device, in one run.
        shape: the dimensions of that operand.
        dtype: its dtype, as XLA writes it.
        is_one_way: whether a device sends to one neighbour, and nothing to the other one meanwhile.
        together: how many arrays one collective sends; they share its latency.
    """

    kind: str
    mesh_axes: tuple[str, ...]
    axes: tuple[str, ...]
    place: Place
    runs: int
    group: int
    nbytes: int
    shape: tuple[int, ...]
    dtype: str
    is_one_way: bool = False
    together: int = 1

    def estimate(self, target: Target) -> Collective:
        """Return the row of a report, with the time on a target."""
        ring = self.kind, self.group, self.mesh_axes, target
        seconds = estimate_seconds(
            self.kind, self.nbytes, self.group, self.mesh_axes, target, is_one_way=self.is_one_way
        )
        # Arrays that are sent together wait for the steps of the ring once.
        seconds -= estimate_latency(*ring) * (self.together - 1) / self.together
        return Collective(
            self.kind,
            self.mesh_axes,
            self.axes,
            self.place.layer,
            self.place.phase,
            self.runs,
            self.group,
            self.nbytes,
            self.shape,
            self.dtype,
            seconds * self.runs,
        )
