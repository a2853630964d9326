"""Internal. Events of a program: operations that compute and move memory, and collectives that send.

Both readers emit these two types; `roofline` and `overlap` turn them into rows of a report. An event does not know
which kind of program it comes from.
"""

from collections.abc import Mapping
from typing import NamedTuple

from .network import find_levels
from .places import Place
from .ring import estimate_latency, estimate_sending
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
        distance: how many places further along the group the messages of a permute go.
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
    distance: int = 1

    def estimate(self, target: Target, mesh: Mapping[str, int]) -> Collective:
        """Return the row of a report, with the time on a target and a mesh of these sizes."""
        levels = find_levels(self.mesh_axes, self.group, mesh, target)
        sending = estimate_sending(
            self.kind, self.nbytes, levels, is_one_way=self.is_one_way, distance=self.distance
        )
        # XLA makes a collective of its own for slices and one for each slice of TPUs, one after another. NCCL sends
        # pieces of an array through all networks at once.
        seconds = max(sending) if target.torus is None else sum(sending)
        # Arrays that are sent together wait for the first byte once.
        seconds += estimate_latency(self.kind, levels, self.distance) / self.together
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
