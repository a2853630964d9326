"""Internal. Try to prove a claim with the package `proof`, before or instead of testing it.

A tested claim holds for the given arrays; a proven claim holds for all arrays of their shapes. A proof computes
nothing, so arguments may be abstract, such as a model of 70 billion parameters.
"""

import functools
from typing import cast, get_args

import jax

from ..errors import ArgumentError, message
from .program import Program
from .proof.claims import Claim, Kind, Traced, Verdict, check, trace

KINDS: tuple[str, ...] = get_args(Kind)
"""The claims that can be proven."""


class Proofs:
    """The proofs about a function: it is traced once for all claims, and once more for its gradients."""

    def __init__(self, program: Program) -> None:
        self._program = program

    @functools.cached_property
    def _values(self) -> Traced:
        return trace(self._program)

    @functools.cached_property
    def _gradients(self) -> Traced:
        return trace(self._program, is_gradient=True)

    def find_verdict(self, kind: str, axis: str, out: str | None = None) -> Verdict:
        """Prove a claim about the values of the function, and then about its gradients."""
        # Results without positions, such as a mean, are left aside, as when a claim is tried. A permutation must not
        # change them.
        outs = () if out is None else (out,)
        claim = Claim(cast("Kind", kind), axis, outs, has_totals=kind != "equivariant")
        return check(self._values, claim) and check(self._gradients, claim)


def is_proven_alone(kind: str, program: Program, axis: str, out: str | None = None) -> bool:
    """Return whether arguments are abstract, so that a claim can be proven but not tested.

    Raises:
        ArgumentError: if they are abstract, and the claim is not proven.
    """
    if not any(isinstance(array, jax.ShapeDtypeStruct) for array in program.arrays):
        return False
    verdict = Proofs(program).find_verdict(kind, axis, out)
    if not verdict:
        hint = "it may still be true: give arrays, and it is tried"
        raise ArgumentError(message(program.function, f"axis {axis!r}: {verdict}", hint=hint))
    return True
