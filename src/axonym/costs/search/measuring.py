"""Internal. Runs of the best mappings on the devices of this machine.

`axn.plan` calls it after the verifier. It knows candidates; it must not know how they were found.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import jax
from jax.sharding import Mesh

from ...engine import MeshLike
from ...errors import ArgumentError, OperandError, message
from ..compiled.devices import has_compiler_of
from ..shared.targets import Target
from .result import Candidate
from .step import count_examples


def check_devices(wanted: int, mesh: MeshLike | Mapping[str, int] | int, target: Target) -> None:
    """Check that mappings can be measured here, before a search.

    Raises:
        ArgumentError: if the number of mappings is negative.
        OperandError: if the devices are not those of the target.
    """
    if wanted < 0:
        problem = f"measure must not be negative, not {wanted}"
        raise ArgumentError(message("plan", problem, hint="measure=0 runs nothing"))
    device = mesh.devices.flat[0] if isinstance(mesh, Mesh) else jax.devices()[0]
    if wanted and not has_compiler_of(device, target):
        problem = (
            f"measure={wanted} needs devices of {target.name}, and these are {device.platform}"
        )
        raise OperandError(message("plan", problem, hint="plan for the machine that runs"))


def measure_best(
    ordered: Sequence[Candidate], wanted: int, measure: Callable[[Candidate], float]
) -> tuple[Candidate, ...]:
    """Run the best candidates that fit; return all candidates, where those that ran come first, sorted by time.

    A candidate whose run fails, for example because it needs more memory than was counted, comes after these.

    Args:
        ordered: the candidates, the best one first.
        wanted: the number of candidates to run.
        measure: returns the seconds of one run.
    """
    tried = [one for one in ordered if one.fits][:wanted]
    found: dict[int, float] = {}
    for one in tried:
        try:
            found[id(one)] = measure(one)
        except jax.errors.JaxRuntimeError:
            continue
    measured = [
        dataclasses.replace(one, cost=dataclasses.replace(one.cost, measured=found.get(id(one))))
        for one in ordered
    ]

    def rank(one: Candidate) -> float:
        return (one.cost.measured or math.inf) / count_examples(one.cost)

    return tuple(sorted(measured, key=rank))
