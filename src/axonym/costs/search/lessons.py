"""Internal. The lessons of a search on all meshes together, and its remaining budget.

`search` asks both before it counts a choice. The module must not know how choices are made.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Set
from typing import TypeAlias

import numpy as np

from ...engine import Entry
from .choice import Choice

# Bytes that do not fit, seconds, bytes sent, bytes at the peak: the first number that differs decides.
Score: TypeAlias = tuple[float, ...]
Part: TypeAlias = tuple[str, str, str]
# How much the effects of parts are drawn to zero, in choices that have the part.
DRAWN = 0.5
# Choices that take longer than the best one by this factor are equally bad.
MOST = math.log(4)


class Lessons:
    """Lessons from choices on any mesh: impossible entries, pairs that cannot share, and features of good choices."""

    def __init__(self) -> None:
        self._good: set[frozenset[str]] = set()
        self._failures: list[Set[frozenset[str]]] = []
        self._bad: set[frozenset[str]] = set()
        self._scores: list[tuple[Score | None, Set[Part]]] = []

    def learn(self, choice: Choice, score: Score | None, mesh: Mapping[str, int]) -> None:
        """Learn from the score of a choice on a mesh; the score is None if the choice is not legal.

        If a choice is not legal, and all but one of its possible reasons occur in legal choices, the remaining one is
        to blame.
        """
        reasons = _find_reasons(choice, mesh)
        # A choice without parts says nothing about which part is good, and it may be far away from all others.
        if parts := _list_parts(choice):
            self._scores.append((score, parts))
        if score is not None:
            self._good |= reasons | _list_parts_of_entries(choice, mesh)
        else:
            self._failures.append(reasons)
        # An entry that works once is not to blame, even if it seemed so before, and may leave one other reason.
        self._bad = set().union(*map(self._blame, self._failures))

    def _blame(self, reasons: Set[frozenset[str]]) -> Set[frozenset[str]]:
        """Return the one reason of a failure that no legal choice has; empty if there are several, or none."""
        unknown = reasons - self._good
        return unknown if len(unknown) == 1 else set()

    def make_forecast(self) -> Callable[[Choice], float]:
        """Make a function that estimates a choice from the choices that share parts with it; the lower, the better."""
        if not self._scores:
            return lambda choice: 0.0
        parts = sorted({part for _, own in self._scores for part in own})
        has = np.array([[part in own for part in parts] for _, own in self._scores], float)
        best = min((score for score, _ in self._scores if score is not None), default=())
        place = np.array([_compare(score, best) for score, _ in self._scores])
        # Least squares, because parts occur together. A part that was seen once may be good by chance, so effects are
        # drawn to zero.
        has, place = has - has.mean(0), place - place.mean()
        found = np.linalg.solve(has.T @ has + DRAWN * np.eye(len(parts)), has.T @ place)
        effects = dict(zip(parts, found.tolist(), strict=True))

        def expect(choice: Choice) -> float:
            found = (effects.get(part, 0.0) for part in _list_parts(choice))
            # Rounded, so the order of the sum does not matter.
            return round(math.fsum(found), 6)

        return expect

    def forbid(self, choice: Choice, mesh: Mapping[str, int]) -> bool:
        """Return whether a choice on a mesh has a part that is known to fail."""
        return bool(_find_reasons(choice, mesh) & self._bad)


def _compare(score: Score | None, best: Score) -> float:
    """Return how much larger a score is than the best one, in the number that decides between most choices.

    It is the logarithm of their ratio, up to a bound that also choices have that are not legal or do not fit.
    """
    if score is None:
        return MOST
    # If the best choice fits, seconds decide.
    for own, least in zip(score, best, strict=True):
        if least > 0:
            return min(MOST, math.log(own / least))
        if own > 0:
            return MOST
    return 0.0


def _list_parts(choice: Choice) -> Set[Part]:
    """List the parts of a choice: for each mesh axis of an entry, the role with the axis, the mesh axis, and both."""
    both = ("stored", choice.stored), ("computed", choice.computed)
    return {
        (role, *part)
        for role, entries in both
        for name, entry in entries
        for axis in entry
        for part in ((name, axis), (name, ""), ("", axis))
    }


def _find_reasons(choice: Choice, mesh: Mapping[str, int]) -> Set[frozenset[str]]:
    """Return possible reasons for a failure: single entries, and pairs of entries on one mesh axis."""
    # A pipeline makes other mappings legal, and so does another number of microbatches.
    how = f"{choice.microbatches} microbatches"
    found = {
        frozenset((f"{name} kept {_write(entry, mesh)}", how)) for name, entry in choice.kept or ()
    }
    # Axes that yield share mesh axes with all others.
    found |= {frozenset((f"{name} if free", how)) for name in choice.yielding}
    computed = [pair for pair in choice.computed if pair[0] not in choice.yielding]
    found |= {frozenset((f"{name} {_write(entry, mesh)}", how)) for name, entry in computed}
    for (one, first), (other, second) in itertools.combinations(computed, 2):
        if set(first) & set(second):
            found.add(frozenset((one, other, how)))
    return found


def _list_parts_of_entries(choice: Choice, mesh: Mapping[str, int]) -> Set[frozenset[str]]:
    """Return the entries with some of the mesh axes of each entry: what many devices divide, fewer of them divide."""
    how = f"{choice.microbatches} microbatches"
    return {
        frozenset((f"{name} {_write(part, mesh)}", how))
        for name, entry in choice.computed
        for count in range(1, len(entry))
        for part in itertools.combinations(entry, count)
    }


def _write(entry: Entry, mesh: Mapping[str, int]) -> str:
    """Name an entry with the sizes of its mesh axes: on another mesh, they may divide what they do not divide here."""
    return "on " + ", ".join(f"{axis}={mesh[axis]}" for axis in entry)


class OutOfBudgetError(Exception):
    """A choice would have to be traced, and no more traces are left."""


class Budget:
    """The number of choices that may still be counted, and how many of them may be traced, on all meshes together.

    Args:
        limit: the number of choices.
        traces: the number of traces; by default, all choices may be traced.
    """

    def __init__(self, limit: int, traces: int | None = None) -> None:
        self.left = limit
        self.traces = limit if traces is None else traces
        self._limits = limit, self.traces
        self._end = 0
        self.ran_out = False

    def take(self, end: int = 0) -> bool:
        """Take one from the budget if at least one is left beyond `end`; return whether one was taken."""
        self._end = end
        if self.left - end < 1:
            self.ran_out = True
            return False
        self.left -= 1
        return True

    def take_trace(self) -> bool:
        """Take a trace for the choice that was taken, if one is left; return whether one was taken.

        A part is kept for the choices at the `end`. Early choices need most traces, so its share is smaller.
        """
        limit, traces = self._limits
        if self.traces - traces * (self._end / limit) ** 2 < 1:
            self.ran_out = True
            return False
        self.traces -= 1
        return True

    def hold(self, share: float) -> tuple[int, int]:
        """Take a share of all that is left, and return it."""
        held = round(share * self.left), round(share * self.traces)
        self.give(held, -1)
        return held

    def give(self, held: tuple[int, int], sign: int = 1) -> None:
        """Give back what was held."""
        self.left += sign * held[0]
        self.traces += sign * held[1]
