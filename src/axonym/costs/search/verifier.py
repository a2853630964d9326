"""Internal. The verification of the best mappings, by programs that are compiled for the target.

`axn.plan` runs it after the search. It knows candidates and costs; it must not know how they were found.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax

from ...errors import ArgumentError, AxonymError, message
from ..report.cost import Cost
from .result import Candidate
from .step import find_pace

# A compiled mapping counts as this many. On two busy cores, compiling for a v5e took 6 times as long as tracing for 4
# small layers, and 49 to 149 times for GPT-2 124M.
PRICE = 10
# An estimate cannot distinguish times that differ by less than this.
NEAR = 0.01


class Verified(NamedTuple):
    """The result of compiling candidates.

    Attributes:
        candidates: all candidates, the best one first.
        text: a text that says which mappings were compiled, and why no more were.
    """

    candidates: tuple[Candidate, ...]
    text: str


@dataclasses.dataclass(frozen=True)
class Verifier:
    """Compile the best mappings, within a budget.

    Attributes:
        wanted: the number of mappings to compile.
        limit: the number of mappings that may be counted in all; a compiled one counts as several.
        obstacle: the reason why nothing can be compiled; empty if it can.
    """

    wanted: int
    limit: int
    obstacle: str

    def __post_init__(self) -> None:
        if self.wanted < 0:
            problem = f"verify must not be negative, not {self.wanted}"
            raise ArgumentError(message("plan", problem, hint="verify=0 compiles nothing"))

    @property
    def reserve(self) -> int:
        """The part of the limit that the search leaves for compiling; never more than half."""
        return 0 if self.obstacle else min(self.wanted, self.limit // (2 * PRICE)) * PRICE

    def run(
        self, ranked: Sequence[Candidate], counted: int, cost_of: Callable[[Candidate], Cost]
    ) -> Verified:
        """Compile the best candidates, and return all in their new order.

        If none of these fits by the compiler, further candidates that fit by their traced cost are compiled, until one
        fits. A candidate that is the same on another mesh is not compiled again.

        Args:
            ranked: the candidates, the best one by its traced cost first.
            counted: the part of the limit that is already used.
            cost_of: compiles a candidate.
        """
        if self.obstacle:
            return Verified(tuple(ranked), f"not verified by a compiler: {self.obstacle}")
        affordable = max(0, self.limit - counted) // PRICE
        done: list[Candidate] = []
        rest: list[Candidate] = []
        for one in ranked:
            # A candidate that does not fit, or equals a compiled one, would teach nothing.
            is_enough = len(done) >= self.wanted and _is_settled(one, done)
            if is_enough or len(done) >= affordable or any(_is_twin(one, own) for own in done):
                rest.append(one)
            else:
                done.append(_compile(one, cost_of))
        # Compiled costs change the order, also among candidates that were not compiled.
        ordered = tuple(sort_near(sorted((*done, *rest), key=_rank_verified)))
        lines = [_write_outcome(ranked[0], ordered[0], done)]
        if affordable < self.wanted and len(done) == affordable < len(ranked):
            lines.append(
                f"limit={self.limit} leaves {len(done)} of verify={self.wanted}:"
                f" a compiled mapping counts as {PRICE}"
            )
        return Verified(ordered, "\n".join(lines))


def rank(cost: Cost) -> tuple[float, ...]:
    """Return the numbers that rank candidates: bytes beyond the memory, seconds per example, bytes sent, peak bytes."""
    memory, totals = cost.memory.peak, cost.totals
    over = max(0, memory - cost.target.memory)
    return over, find_pace(cost), totals["bytes sent"], memory


def sort_near(ordered: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates, where those close to the first one are sorted by memory, the smallest first.

    Close candidates fit and take about as long as the first one. If the first one does not fit, close candidates need
    about as much memory, and the fastest of them comes first.

    Args:
        ordered: candidates; the first one takes the least time, or lacks the least memory.
    """
    first = ordered[0]
    near: list[Candidate] = []
    rest: list[Candidate] = []
    for one in ordered:
        # Only candidates of the same kind compare: compiled, traced, or too large.
        if _find_group(one) == _find_group(first) and _measure(one, first) <= (1 + NEAR) * _measure(
            first, first
        ):
            near.append(one)
        else:
            rest.append(one)
    near.sort(key=lambda one: _break_tie(one, first))
    return [*near, *rest]


def _measure(one: Candidate, first: Candidate) -> float:
    """Return the number that must be close: the time, or the memory if the first one does not fit."""
    return find_pace(_find_cost(one)) if first.fits else _find_cost(one).memory.peak


def _break_tie(one: Candidate, first: Candidate) -> tuple[float, float]:
    """Return the numbers that rank close candidates."""
    cost = _find_cost(one)
    if first.fits:
        return cost.memory.peak, cost.totals["bytes sent"]
    return find_pace(cost), cost.memory.peak


def _find_cost(one: Candidate) -> Cost:
    return one.compiled or one.cost


def _compile(one: Candidate, cost_of: Callable[[Candidate], Cost]) -> Candidate:
    """Return a candidate with its compiled cost, or with the error of the compiler."""
    try:
        return dataclasses.replace(one, compiled=cost_of(one))
    except (AxonymError, ValueError, jax.errors.JaxRuntimeError) as error:
        return dataclasses.replace(one, refusal=_write_refusal(error))


def _is_settled(one: Candidate, done: Sequence[Candidate]) -> bool:
    """Return whether to stop: a candidate fits by the compiler, or this one does not fit by its traced cost."""
    return not one.fits or any(own.fits for own in done)


def _is_twin(one: Candidate, other: Candidate) -> bool:
    """Return whether two candidates are the same on meshes of different sizes."""
    if one.mesh == other.mesh or rank(one.cost) != rank(other.cost):
        return False
    return one.cost.totals == other.cost.totals and one.cost.by_axis == other.cost.by_axis


def _write_refusal(error: Exception) -> str:
    """Return the first lines of an error, without its hints."""
    lines = [
        line.strip() for line in str(error).splitlines()[:2] if not line.strip().startswith("hint:")
    ]
    return ": ".join(lines)


def _rank_verified(one: Candidate) -> tuple[float, ...]:
    """Return the sort key of a candidate: compiled ones that fit, then traced ones that fit, then the others."""
    return _find_group(one), *rank(_find_cost(one))


def _find_group(one: Candidate) -> int:
    return int(one.compiled is None) if one.fits else 2


def _write_outcome(first: Candidate, best: Candidate, done: Sequence[Candidate]) -> str:
    """Write which mappings were compiled, and how that changed the order."""
    if not done:
        return "not verified by a compiler"
    # Usually one kind of device, named once.
    compilers = {one.compiled.compiler: None for one in done if one.compiled is not None}
    count = "1 mapping compiled" if len(done) == 1 else f"{len(done)} mappings compiled"
    if compilers:
        count += f" for {', '.join(compilers)}"
    if best.compiled is None and not best.refusal:
        return f"{count}, none of which fits; the best one is not verified by a compiler"
    if best.mappings is first.mappings:
        return f"{count}; the best one is the best by its traced cost, too"
    return f"{count}; their order changes: the best one is not the best by its traced cost"
