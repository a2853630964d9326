"""Internal. The lessons of a search on all meshes together, and its remaining budget.

`search` asks both before it counts a choice. The module must not know how choices are made.
"""

import itertools
import math
from collections.abc import Callable, Set
from typing import TypeAlias

from .choice import Choice

# Bytes that do not fit, seconds, bytes sent, bytes at the peak: the first number that differs decides.
Score: TypeAlias = tuple[float, ...]
Part: TypeAlias = tuple[str, str, str]


class Lessons:
    """Lessons from choices on any mesh: impossible entries, pairs that cannot share, and features of good choices."""

    def __init__(self) -> None:
        self._good: set[frozenset[str]] = set()
        self._failures: list[Set[frozenset[str]]] = []
        self._bad: set[frozenset[str]] = set()
        self._scores: list[tuple[Score, Set[Part]]] = []

    def learn(self, choice: Choice, score: Score | None) -> None:
        """Learn from the score of a choice; the score is None if the choice is not legal.

        If a choice is not legal, and all but one of its possible reasons occur in legal choices, the remaining one is
        to blame.
        """
        reasons = _find_reasons(choice)
        if score is not None:
            self._scores.append((score, _list_parts(choice)))
            self._good |= reasons | _list_parts_of_entries(choice)
        else:
            self._failures.append(reasons)
        # An entry that works once is not to blame, even if it seemed so before, and may leave one other reason.
        self._bad = set().union(*map(self._blame, self._failures))

    def _blame(self, reasons: Set[frozenset[str]]) -> Set[frozenset[str]]:
        """Return the one reason of a failure that no legal choice has; empty if there are several, or none."""
        unknown = reasons - self._good
        # A pair that shares a mesh axis is a better explanation than a single mapped name.
        several = {reason for reason in unknown if len(reason) > 2}
        blamed = several or unknown
        return blamed if len(blamed) == 1 else set()

    def make_forecast(self) -> Callable[[Choice], float]:
        """Make a function that estimates a choice from the choices that share parts with it; the lower, the better."""
        # Places instead of scores, whose unit does not matter then. Equal scores have equal places.
        places = {
            score: at for at, score in enumerate(sorted({score for score, _ in self._scores}))
        }
        mean = sum(places[score] for score, _ in self._scores) / max(1, len(self._scores))
        seen: dict[Part, list[float]] = {}
        for score, parts in self._scores:
            for part in parts:
                seen.setdefault(part, []).append((places[score] - mean) / len(places))
        # A part that was seen once may be good by chance, so it counts half.
        effects = {part: sum(own) / (len(own) + 1) for part, own in seen.items()}

        def expect(choice: Choice) -> float:
            found = (effects.get(part, 0.0) for part in _list_parts(choice))
            # Rounded, so the order of the sum does not matter.
            return round(math.fsum(found), 9)

        return expect

    def forbid(self, choice: Choice) -> bool:
        """Return whether a choice has a part that is known to fail."""
        return bool(_find_reasons(choice) & self._bad)


def _list_parts(choice: Choice) -> Set[Part]:
    """List the parts of a choice: for each mesh axis of an entry, the role, the axis and the mesh axis."""
    both = ("stored", choice.stored), ("computed", choice.computed)
    return {
        (role, name, axis) for role, entries in both for name, entry in entries for axis in entry
    }


def _find_reasons(choice: Choice) -> Set[frozenset[str]]:
    """Return possible reasons for a failure: single entries, and pairs of entries on one mesh axis."""
    # A pipeline makes other mappings legal, and so does another number of microbatches.
    how = f"{choice.microbatches} microbatches"
    # Axes that yield share mesh axes with all others.
    found = {frozenset((f"{name} if free", how)) for name in choice.yielding}
    computed = [pair for pair in choice.computed if pair[0] not in choice.yielding]
    found |= {frozenset((f"{name} on {entry}", how)) for name, entry in computed}
    for (one, first), (other, second) in itertools.combinations(computed, 2):
        if set(first) & set(second):
            found.add(frozenset((one, other, how)))
    return found


def _list_parts_of_entries(choice: Choice) -> Set[frozenset[str]]:
    """Return the entries with some of the mesh axes of each entry: what many devices divide, fewer of them divide."""
    how = f"{choice.microbatches} microbatches"
    return {
        frozenset((f"{name} on {part}", how))
        for name, entry in choice.computed
        for count in range(1, len(entry))
        for part in itertools.combinations(entry, count)
    }


class Budget:
    """The number of choices that may still be counted, on all meshes together."""

    def __init__(self, limit: int) -> None:
        self.left = limit
        self.ran_out = False

    def take(self, end: int = 0) -> bool:
        """Take one from the budget if more than `end` are left; return whether one was taken."""
        if self.left <= end:
            self.ran_out = True
            return False
        self.left -= 1
        return True
