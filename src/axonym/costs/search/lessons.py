"""Internal. What a search has learned on all meshes together, and what it may still spend.

`search` asks both before it counts a choice. The module must not know how choices are made.
"""

import itertools
from collections.abc import Set

from .choice import Choice


class Lessons:
    """Lessons from choices that are not legal, on any mesh: entries that cannot be, and pairs that cannot share."""

    def __init__(self) -> None:
        self._good: set[frozenset[str]] = set()
        self._bad: set[frozenset[str]] = set()

    def learn(self, choice: Choice, *, is_legal: bool) -> None:
        """Learn from a choice. If it is not legal and has one reason that no legal choice has, that one is to blame."""
        reasons = _find_reasons(choice)
        if is_legal:
            # An entry that works once is not to blame, even if it seemed so before.
            self._good |= reasons
            self._bad -= reasons
            return
        unknown = reasons - self._good
        # A pair that shares a mesh axis is a better explanation than one mapped name.
        several = {reason for reason in unknown if len(reason) > 2}
        blamed = several or unknown
        if len(blamed) == 1:
            self._bad |= blamed

    def forbid(self, choice: Choice) -> bool:
        """Return whether a choice has a reason that was to blame before."""
        return bool(_find_reasons(choice) & self._bad)


def _find_reasons(choice: Choice) -> Set[frozenset[str]]:
    """Return possible reasons for a failure: entries, since others may divide the axis, and pairs on one mesh axis."""
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


class Budget:
    """The number of choices that may still be counted, on all meshes together."""

    def __init__(self, limit: int) -> None:
        self.left = limit
        self.ran_out = False

    def take(self, end: int = 0) -> bool:
        """Take one, if more than `end` are left; return whether there was one."""
        if self.left <= end:
            self.ran_out = True
            return False
        self.left -= 1
        return True
