"""Search for the mappings of a function: from a start, one axis after the other moves to other mesh axes."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

from ..mesh.assignment import Entry, Mappings

Role: TypeAlias = Literal["stored", "computed", "both"]
# Bytes that do not fit, seconds, bytes sent, bytes at the peak: the first that differ decide.
Score: TypeAlias = tuple[float, ...]
Entries: TypeAlias = tuple[tuple[str, Entry], ...]


@dataclasses.dataclass(frozen=True)
class Choice:
    """Mesh axes of named axes, sorted by name; those on none are left out.

    Attributes:
        stored: for parameters, gradients and the state of the optimiser.
        computed: for activations and data.
    """

    stored: Entries = ()
    computed: Entries = ()

    def mappings(self, parameters: Sequence[str]) -> Mappings:
        """Return the mappings; `parameters` are the names of axes that parameters have."""
        stored, computed = dict(self.stored), dict(self.computed)
        listed: dict[str, Entry] = {}
        for name in parameters:
            # An array with an axis that the computation alone lists would be taken for data.
            if name in stored or name in computed:
                listed[name] = stored.get(name, ())
        return Mappings(listed, computed)


class Move(NamedTuple):
    """What may change: an axis, its new mesh axes, and where; others may have to leave these mesh axes."""

    name: str
    entry: Entry
    role: Role
    evicts: bool

    def applied(self, choice: Choice) -> Choice:
        """Return a choice with the move made."""
        stored, computed = choice.stored, choice.computed
        if self.role in ("stored", "both"):
            stored = self._changed(stored)
        if self.role in ("computed", "both"):
            computed = self._changed(computed)
        return Choice(stored, computed)

    def _changed(self, entries: Entries) -> Entries:
        found: dict[str, Entry] = {self.name: self.entry}
        for name, entry in entries:
            if name == self.name:
                continue
            if self.evicts:
                entry = tuple(axis for axis in entry if axis not in self.entry)
            found[name] = entry
        return tuple(sorted((name, entry) for name, entry in found.items() if entry))


@dataclasses.dataclass(frozen=True)
class Axes:
    """What can be mapped.

    Attributes:
        mesh: the axes of the mesh with their sizes.
        parameters: for each axis of parameters, the sizes that it has.
        data: for each axis of data.
        fixed: what stays as it is.
    """

    mesh: Mapping[str, int]
    parameters: Mapping[str, frozenset[int]]
    data: Mapping[str, frozenset[int]]
    fixed: Choice

    def entries_of(self, sizes: frozenset[int]) -> Iterator[Entry]:
        """Yield the mesh axes that divide all sizes of an axis: none, one, several in their order."""
        names = [name for name, size in self.mesh.items() if size > 1]
        for count in range(len(names) + 1):
            for entry in itertools.combinations(names, count):
                ways = math.prod(self.mesh[name] for name in entry)
                if all(size % ways == 0 for size in sizes):
                    yield entry

    def moves(self) -> list[Move]:
        """List all moves."""
        found: list[Move] = []
        pinned = {"stored": dict(self.fixed.stored), "computed": dict(self.fixed.computed)}
        for name in dict.fromkeys((*self.data, *self.parameters)):
            roles: list[Role] = []
            if name not in pinned["computed"]:
                roles.append("computed")
            if name in self.parameters and name not in pinned["stored"]:
                roles.append("stored")
            if len(roles) == 2:
                roles.append("both")
            sizes = self.parameters.get(name, frozenset()) | self.data.get(name, frozenset())
            for entry in self.entries_of(sizes):
                for role in roles:
                    found.append(Move(name, entry, role, evicts=False))
                    if entry:
                        found.append(Move(name, entry, role, evicts=True))
        return found

    def starts(self) -> list[Choice]:
        """List where to begin: nothing mapped, an axis of data on as many mesh axes as divide, parameters too."""
        found = [self.fixed]
        for name, sizes in self.data.items():
            *_, most = self.entries_of(sizes)
            along = Move(name, most, "computed", evicts=True)
            if not most or name in dict(self.fixed.computed):
                continue
            divided = self._kept(along.applied(self.fixed))
            found.append(divided)
            for other, own in self.parameters.items():
                *_, widest = self.entries_of(own)
                if widest and other not in dict(self.fixed.stored):
                    stored = Move(other, widest, "stored", evicts=True)
                    found.append(self._kept(stored.applied(divided)))
        return list(dict.fromkeys(found))

    def keeps(self, choice: Choice) -> bool:
        """Return whether a choice has all that is fixed."""
        return self._kept(choice) == choice

    def _kept(self, choice: Choice) -> Choice:
        """Put back what is fixed."""
        stored = {**dict(choice.stored), **dict(self.fixed.stored)}
        computed = {**dict(choice.computed), **dict(self.fixed.computed)}
        return Choice(tuple(sorted(stored.items())), tuple(sorted(computed.items())))


class Search:
    """Look for the choice with the lowest score, and remember all scores.

    Args:
        axes: what can be mapped.
        score: counts a choice; None, if it is not legal.
        limit: how many choices may be counted.
    """

    def __init__(self, axes: Axes, score: Callable[[Choice], Score | None], limit: int) -> None:
        self._axes = axes
        self._score = score
        self._limit = limit
        self.scores: dict[Choice, Score | None] = {}

    @property
    def is_over(self) -> bool:
        """Whether no more choices may be counted."""
        return len(self.scores) >= self._limit

    def run(self) -> list[Choice]:
        """Return the legal choices that were looked at, the best one first."""
        starts = [one for one in self._axes.starts() if self._look(one) is not None]
        for start in sorted(starts, key=self._known)[:2]:
            self._climb(start)
        legal = [choice for choice, score in self.scores.items() if score is not None]
        return sorted(legal, key=self._known)

    def _climb(self, best: Choice) -> None:
        """Make moves as long as one of them helps."""
        moves = self._axes.moves()
        since = 0
        for move in itertools.cycle(moves):
            if since == len(moves) or self.is_over:
                return
            since += 1
            other = move.applied(best)
            if not self._axes.keeps(other):
                continue
            found = self._look(other)
            if found is not None and found < self._known(best):
                best, since = other, 0

    def _look(self, choice: Choice) -> Score | None:
        if choice not in self.scores:
            if self.is_over:
                return None
            self.scores[choice] = self._score(choice)
        return self.scores[choice]

    def _known(self, choice: Choice) -> Score:
        return self.scores[choice] or ()
