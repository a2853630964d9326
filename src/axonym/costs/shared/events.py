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

# These compute more than they read, by functions of libraries or of the user.
_UNCOUNTED = (
    "cholesky",
    "eig",
    "eigh",
    "ffi_call",
    "fft",
    "householder_product",
    "io_callback",
    "lu",
    "pure_callback",
    "qr",
    "geqrf",
    "schur",
    "svd",
    "triangular_solve",
    "tridiagonal",
    "tridiagonal_solve",
)


class Amount(NamedTuple):
    """The operations and bytes of all runs of one operation.

    Attributes:
        source: the operation in the traced function that it belongs to.
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
    """One array that devices send at one place of a program.

    Attributes:
        kind: the same as in `Collective`.
        mesh_axes: the mesh axes along which devices take part.
        axes: the named axes that make the collective necessary.
        place: the layer and the phase.
        runs: how often it runs.
        group: the number of devices in one group.
        nbytes: bytes of the operand on one device, in one run.
        shape: the dimensions of that operand.
        dtype: its dtype, as XLA writes it.
        is_one_way: whether a device sends to only one neighbour at a time.
        together: how many arrays one collective sends; they share its latency.
        distance: how many positions along the group the messages of a permute move.
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
        """Return the row of a report, with the time on a target for a mesh of these sizes."""
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


def write_uncounted(name: str) -> str:
    """Return a note about an operation that does not count, by its name in JAX; an empty text for others."""
    return f"operations of {name} are not counted" if name in _UNCOUNTED else ""
