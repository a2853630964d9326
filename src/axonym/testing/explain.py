"""Internal. How the error of a claim is built: its lines, its fields, and the usual causes."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import message
from .differences import differences
from .failure import ClaimError
from .program import Place
from .tolerances import tolerance

CAUSES: Mapping[str, tuple[str, ...]] = {
    "independent": (
        "a norm, a softmax or a sum over the wrong axis",
        "experts with a capacity that all examples share: MixtureOfExperts(tokens=...)",
    ),
    "draws": (
        "one random key for all examples, such as in a vmap",
        "dropout with broadcast_axes",
    ),
    "causal": (
        "a mean, a norm or a softmax over positions",
        "a mask whose window ends one position late, or with its two names exchanged",
        'a convolution with padding="SAME"',
    ),
    "cache": (
        "positions of the cache that are counted from one, or before the token is stored",
        "a mask or a window that counts from the start of a chunk",
    ),
    "ignores": (
        "a sum or a mean without where=",
        "a router or its losses without where=",
        "positions that count padding",
    ),
    "symmetric": (
        "heads or experts that are repeated, split or merged in another order",
        "something that belongs to a number of the axis, such as a bias by position",
    ),
    "mean_over": (
        "a sum where a mean is meant, or a mean over padding",
        "a mean of means over groups of different sizes",
    ),
    "layouts": (
        "a psum that is missing, or done twice",
        "a mean over local parts of different sizes",
        "random numbers drawn on each device by one key",
    ),
    "storage": (
        "an optimiser that takes stacked layers, or merged heads, for one matrix: axn.optim.per_matrix",
        "axes that are addressed by their place, or split in another order than they were merged",
    ),
    "under": (
        "a condition on shapes, dtypes or tracers",
        "a sum or a norm in a narrow dtype",
    ),
}


def fail(
    claim: str,
    problem: str,
    *facts: str,
    axis: str | None,
    causes: str,
    source: Mapping[str, int] = {},
    target: Mapping[str, int] = {},
    effect: float,
    place: "tuple[str, str, str] | None" = None,
    parameter: str | None = None,
    factor: float | None = None,
) -> ClaimError:
    """Build the error of a claim.

    Args:
        claim: the name of the claim.
        problem: what was found.
        facts: further lines.
        axis: the axis.
        causes: the key of the usual causes.
        source: see `ClaimError`.
        target: see `ClaimError`.
        effect: see `ClaimError`.
        place: the layer, the operation and the line of the source where it first appears.
        parameter: see `ClaimError`.
        factor: see `ClaimError`.
    """
    lines = [*facts, f"effect: {write_share(effect)}"]
    if place is not None:
        layer, operation, line = place
        where = f"layer {layer}" if layer else "outside of layers"
        parts = where, operation and f"operation {operation}", line
        lines.append(f"first appears: {', '.join(filter(None, parts))}")
    usual = "; ".join(CAUSES[causes])
    error = ClaimError(message(f"assert_{claim}", problem, *lines, hint=f"usual causes: {usual}"))
    error.claim, error.axis, error.source, error.target = claim, axis, source, target
    error.effect, error.parameter, error.factor = effect, parameter, factor
    error.layer = None if place is None else place[0]
    error.operation = None if place is None else place[1] or None
    return error


def write_share(effect: float) -> str:
    """Write how large an effect is."""
    if effect == float("inf"):
        return "NaN or infinity in one of both"
    return f"{effect:.2g} of the largest number"


def write_place(at: Mapping[str, int]) -> str:
    """Write coordinates by name: `batch=0, pos=3`."""
    return ", ".join(f"{name}={i}" for name, i in at.items())


def first_place(place: Place, change: np.ndarray[Any, Any]) -> Mapping[str, int]:
    """Return the coordinates, by name, of the first change."""
    first = np.argwhere(change)[0][change.ndim - len(place.names) :]
    return {name: int(i) for name, i in zip(place.names, first, strict=True)}


def find_factor(x: Any, y: Any) -> float | None:
    """Return the factor between two arrays; None if no single factor explains the difference."""
    one, other = np.asarray(x, np.float64), np.asarray(y, np.float64)
    largest = np.unravel_index(np.abs(one).argmax(), one.shape) if one.size else ()
    if not one.size or not one[largest] or not np.isfinite(other[largest] / one[largest]):
        return None
    factor = float(other[largest] / one[largest])
    is_one = differences((one * factor).astype(x.dtype), y, is_same_program=False).any()
    return None if is_one else factor


def find_clear(change: np.ndarray[Any, Any]) -> float:
    """Return the least effect that counts: a tenth of the largest one, or a multiple of rounding if that is less."""
    return min(float(change.max()) / 10, 50 * tolerance(np.float32, is_same_program=True))
