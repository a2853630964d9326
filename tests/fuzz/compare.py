"""Compare what was computed with the reference, within what rounding can explain."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tests.fuzz.generate import reference
from tests.fuzz.program import Program
from tests.fuzz.reference import REFERENCE
from tests.fuzz.table import RejectedError, Table, blurring, precision

__all__ = ["Result", "difference", "slope_difference", "weights_of"]

_RUNS, _CAREFUL_RUNS = 3, 60
# How much farther than the blurred references an answer may be.
_SLACK = 12.0


class Result(NamedTuple):
    """An array that was computed: its names, its dtype and its values on the host."""

    names: tuple[str, ...]
    dtype: str
    values: np.ndarray


def difference(program: Program, results: Sequence[Result], expected: Sequence[Table] | None = None) -> str | None:
    """Return what differs from the reference, or None; what looks different is looked at again, more carefully."""
    expected = reference(program) if expected is None else expected
    for out, result, table in zip(program.outs, results, expected, strict=True):
        if (result.names, result.values.shape, result.dtype) != (table.names, table.values.shape, table.dtype):
            found = f"{result.dtype}{dict(zip(result.names, result.values.shape, strict=False))}"
            return f"form: {out} is {found} and should be {table.dtype}{table.shape}"
    if _far(program, results, expected, _RUNS, 3.0):
        return _far(program, results, expected, _CAREFUL_RUNS, 6.0)
    return None


def _far(
    program: Program, results: Sequence[Result], expected: Sequence[Table], runs: int, strength: float
) -> str | None:
    blurred = []
    try:
        for run in range(runs):
            with blurring(run, strength):
                blurred.append(reference(program))
    except (RejectedError, ArithmeticError, ValueError, IndexError):
        return None  # a number next to a jump decides about what is defined
    for i, (out, result, table) in enumerate(zip(program.outs, results, expected, strict=True)):
        spread = [each[i].values for each in blurred]
        wrong = _outside(result, table, spread)
        if wrong.any():
            at = tuple(map(int, np.argwhere(wrong)[0]))
            have, want = result.values[at], table.values[at]
            return f"values: {out} differs in {wrong.sum()} of {wrong.size} elements, at {at}: {have}, should be {want}"
    return None


def _outside(result: Result, table: Table, blurred: Sequence[np.ndarray]) -> np.ndarray:
    """Return which elements are farther from the reference than rounding can explain."""
    have, want = result.values, table.values
    if table.kind in ("bool", "int"):
        certain = np.all([each == want for each in blurred], 0)
        return (have != want) & certain
    eps, tiny = precision(table.dtype)
    with np.errstate(all="ignore"):
        spread = np.max([np.abs(each - want) for each in blurred], 0)
        spread = np.where(np.isfinite(spread), spread, np.inf)
        room = _SLACK * spread + 16 * eps * np.abs(want) + 64 * tiny
        close = np.abs(have - want) <= room
    close |= (have == want) | (np.isnan(have) & np.isnan(want))
    certain = np.all([(np.isnan(each) == np.isnan(want)) & (np.isinf(each) == np.isinf(want)) for each in blurred], 0)
    # The largest half-precision numbers round to infinity, the smallest to zero.
    return ~close & certain & (np.isfinite(want) | np.isnan(want) | ~(np.abs(have) > 1e38))


def weights_of(program: Program, expected: Sequence[Table]) -> list[np.ndarray | None]:
    """Return the weights of the results in the sum that is differentiated; None for those that have no slope."""
    rng = np.random.default_rng(program.seed)
    drawn = [rng.normal(size=table.values.shape) for table in expected]
    return [w if table.kind in ("float", "complex") else None for w, table in zip(drawn, expected, strict=True)]


def _loss(program: Program, values: Sequence[np.ndarray], weights: Sequence[np.ndarray | None]) -> float:
    tables = [Table(v, g.names, g.dtype) for v, g in zip(values, program.inputs.values(), strict=True)]
    with np.errstate(all="ignore"):
        outs = program.function()(REFERENCE, *tables)
    return float(sum((np.real(out.values) * w).sum() for out, w in zip(outs, weights, strict=True) if w is not None))


def slope_difference(program: Program, gradients: Sequence[np.ndarray | None], weights: Any) -> str | None:
    """Compare gradients with finite differences along a random direction; None too where there is a kink."""
    rng = np.random.default_rng([program.seed, 1])
    given = list(program.inputs.values())
    values = [each.values for each in given]
    ways = [rng.normal(size=v.shape) if g is not None else 0 for v, g in zip(values, gradients, strict=True)]

    def at(step: float) -> float:
        return _loss(program, [v + step * way if g is not None else v
                               for v, way, g in zip(values, ways, gradients, strict=True)], weights)  # fmt: skip

    slopes = []
    try:
        for step in (1e-4, 1e-5, 3e-6):
            before, here, after = at(-step), at(0), at(step)
            slopes += [(after - here) / step, (here - before) / step]
    except (RejectedError, ArithmeticError, ValueError, IndexError):
        return None
    slope = (slopes[2] + slopes[3]) / 2
    parts = [g * way for g, way in zip(gradients, ways, strict=True) if g is not None]
    total = float(sum(part.sum() for part in parts))
    size = float(sum(np.abs(part).sum() for part in parts))
    room = 1e-3 * (1 + abs(slope))
    if not all(np.isfinite(slopes)) or max(slopes) - min(slopes) > 20 * room:
        return None
    if not abs(total - slope) <= 3 * room + (max(slopes) - min(slopes)) + 2e-4 * min(size, 1e4 * (1 + abs(slope))):
        return f"gradient: along the direction it is {total}, and should be {slope} (parts sum to {size})"
    return None
