"""Search for the mappings of a function: from what experts begin with, one axis after the other moves."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Literal, NamedTuple, TypeAlias

from ..mesh.assignment import Entry, Mappings

Role: TypeAlias = Literal["stored", "computed", "both"]
# Bytes that do not fit, seconds, bytes sent, bytes at the peak: the first that differ decide.
Score: TypeAlias = tuple[float, ...]
Entries: TypeAlias = tuple[tuple[str, Entry], ...]
# So many sets of axes are tried as those that devices divide the layers by.
GROUPS = 4


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
        arrays: for the axes of each kind of parameter, how many elements there are.
    """

    mesh: Mapping[str, int]
    parameters: Mapping[str, frozenset[int]]
    data: Mapping[str, frozenset[int]]
    fixed: Choice
    arrays: Mapping[tuple[str, ...], int] = dataclasses.field(default_factory=dict)

    @property
    def mesh_axes(self) -> Entry:
        """The mesh axes of several devices."""
        return tuple(name for name, size in self.mesh.items() if size > 1)

    @property
    def _narrow_first(self) -> list[str]:
        """The mesh axes, that of the fewest devices first, which are the most likely to divide layers."""
        return sorted(self.mesh_axes, key=lambda name: self.mesh[name])

    def divides(self, name: str, entry: Entry) -> bool:
        """Return whether mesh axes divide all sizes of an axis."""
        sizes = self.parameters.get(name, frozenset()) | self.data.get(name, frozenset())
        ways = math.prod(self.mesh[axis] for axis in entry)
        return all(size % ways == 0 for size in sizes)

    def entries_of(self, name: str) -> Iterator[Entry]:
        """Yield the mesh axes that divide all sizes of an axis: none, one, several in their order."""
        for count in range(len(self.mesh_axes) + 1):
            for entry in itertools.combinations(self.mesh_axes, count):
                if self.divides(name, entry):
                    yield entry

    def widest(self, name: str, among: Entry) -> Entry:
        """Return as many of some mesh axes as divide an axis."""
        found: Entry = ()
        for entry in self.entries_of(name):
            if set(entry) <= set(among):
                found = entry
        return found

    def moves(self) -> list[Move]:
        """List all moves: axes of data first, then those of parameters that divide most of them."""
        found: list[Move] = []
        pinned = {"stored": dict(self.fixed.stored), "computed": dict(self.fixed.computed)}
        for name in dict.fromkeys((*self.data, *self._by_elements())):
            roles: list[Role] = []
            if name not in pinned["computed"]:
                roles.append("computed")
            if name in self.parameters and name not in pinned["stored"]:
                roles.append("stored")
            if len(roles) == 2:
                roles.append("both")
            for entry in self.entries_of(name):
                for role in roles:
                    found.append(Move(name, entry, role, evicts=False))
                    if entry:
                        found.append(Move(name, entry, role, evicts=True))
        return found

    def starts(self) -> list[Choice]:
        """List what experts begin with, and what is there to be better than.

        That is: nothing mapped; an axis of data on all mesh axes; with parameters stored so, too, or along one mesh
        axis alone; and along one mesh axis what divides the layers, with the data and the rest of what is stored along
        the others.
        """
        found = [self.fixed]
        for name in self.data:
            if most := self.widest(name, self.mesh_axes):
                found += self._divided(Move(name, most, "computed", evicts=True))
        for axis in self._narrow_first:
            for group in self.groups(axis):
                found += self._grouped(group, axis)
        return list(dict.fromkeys(map(self._kept, found)))

    def _divided(self, data: Move) -> Iterator[Choice]:
        """Yield choices with data along mesh axes, and parameters stored along some of them."""
        divided = data.applied(self.fixed)
        yield divided
        for entry in (data.entry, *((axis,) for axis in data.entry)):
            for name in self._by_elements():
                if own := self.widest(name, entry):
                    yield Move(name, own, "stored", evicts=True).applied(divided)
                    break
        # What needs no rows of its own, such as experts, shares the mesh axes of the rows.
        for name in self._by_elements():
            for axis in self._narrow_first:
                if name not in self.data and self.divides(name, (axis,)):
                    yield from self._with_rest(Move(name, (axis,), "both", False).applied(divided))

    def _grouped(self, group: Sequence[str], axis: str) -> Iterator[Choice]:
        """Yield choices with some axes of the layers along one mesh axis, and data along the others."""
        base = self.fixed
        for name in group:
            base = Move(name, (axis,), "both", evicts=False).applied(base)
        rest = tuple(other for other in self.mesh_axes if other != axis)
        if not rest:
            yield base
        for name in self.data:
            if most := self.widest(name, rest):
                yield from self._with_rest(Move(name, most, "computed", evicts=False).applied(base))

    def _with_rest(self, choice: Choice) -> Iterator[Choice]:
        """Yield a choice, and it with parameters stored along the mesh axes that are free there."""
        yield choice
        taken = {axis for _, entry in choice.stored for axis in entry}
        free = tuple(axis for axis in self.mesh_axes if axis not in taken)
        for name in self._by_elements():
            most = self.widest(name, free)
            if name not in dict(choice.stored) and most:
                yield Move(name, most, "stored", evicts=False).applied(choice)
                return

    def groups(self, axis: str) -> list[tuple[str, ...]]:
        """List sets of axes, no two of which one parameter has, that divide most of the elements."""
        names: list[str] = []
        for name in self._by_elements():
            if name not in self.data and self.divides(name, (axis,)):
                names.append(name)
        found = sorted(_apart(names, list(self.arrays)), key=lambda one: self._gain(one))
        return found[:GROUPS]

    def _gain(self, names: Sequence[str]) -> tuple[int, int]:
        # In percent, so that norms do not count; of several that divide as much, those that name more differ less
        # from layer to layer.
        total = sum(self.arrays.values()) or 1
        divided = sum(count for own, count in self.arrays.items() if set(names) & set(own))
        return -round(100 * divided / total), -len(names)

    def _by_elements(self) -> list[str]:
        """Return the axes of parameters, that of most elements first."""

        def elements(name: str) -> int:
            return sum(count for own, count in self.arrays.items() if name in own)

        return sorted(self.parameters, key=elements, reverse=True)

    def is_one(self, choice: Choice) -> bool:
        """Return whether a choice takes all mesh axes for one."""
        several = {entry for _, entry in (*choice.stored, *choice.computed)}
        return len(self.mesh_axes) > 1 and several <= {self.mesh_axes}

    def clashes(self, choice: Choice) -> bool:
        """Return whether two axes of a parameter would be stored along one mesh axis."""
        stored = dict(choice.stored)
        for names in self.arrays:
            used = [axis for name in names for axis in stored.get(name, ())]
            if len(used) > len(set(used)):
                return True
        return False

    def keeps(self, choice: Choice) -> bool:
        """Return whether a choice has all that is fixed."""
        return self._kept(choice) == choice

    def _kept(self, choice: Choice) -> Choice:
        """Put back what is fixed."""
        stored = {**dict(choice.stored), **dict(self.fixed.stored)}
        computed = {**dict(choice.computed), **dict(self.fixed.computed)}
        return Choice(tuple(sorted(stored.items())), tuple(sorted(computed.items())))


def _apart(names: Sequence[str], arrays: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return the largest sets of axes, no two of which one array has."""
    found: list[tuple[str, ...]] = []

    def meets(name: str, group: Iterable[str]) -> bool:
        return any(name in own and other in own for own in arrays for other in group)

    def extend(group: tuple[str, ...], rest: Sequence[str]) -> None:
        for at, name in enumerate(rest):
            if not meets(name, group):
                extend((*group, name), rest[at + 1 :])
        others = [name for name in names if name not in group]
        if group and all(meets(name, group) for name in others):
            found.append(group)

    extend((), names)
    return found


class Lessons:
    """What was learnt from choices that are not legal, on any mesh: names that cannot be mapped, alone or together."""

    def __init__(self) -> None:
        self._good: set[frozenset[str]] = set()
        self._bad: set[frozenset[str]] = set()

    def learn(self, choice: Choice, *, is_legal: bool) -> None:
        """Remember a choice; if it is not legal, what no legal choice has is to blame, if that is one thing."""
        reasons = _reasons(choice)
        if is_legal:
            self._good |= reasons
            self._bad -= reasons
            return
        unknown = reasons - self._good
        # That two share a mesh axis says more than that one of them is mapped.
        several = {reason for reason in unknown if len(reason) > 1}
        blamed = several or unknown
        if len(blamed) == 1:
            self._bad |= blamed

    def forbid(self, choice: Choice) -> bool:
        """Return whether a choice has what is to blame elsewhere."""
        return bool(_reasons(choice) & self._bad)


def _reasons(choice: Choice) -> Set[frozenset[str]]:
    """Return the names that the computation maps, and the pairs of those along one mesh axis."""
    found = {frozenset((name,)) for name, _ in choice.computed}
    for (one, first), (other, second) in itertools.combinations(choice.computed, 2):
        if set(first) & set(second):
            found.add(frozenset((one, other)))
    return found


def _idle(before: Choice, after: Choice) -> int:
    """Return how many mesh axes divide nothing of the computation any more."""

    def used(choice: Choice) -> set[str]:
        return {axis for _, entry in choice.computed for axis in entry}

    return len(used(before) - used(after))


class Budget:
    """How many choices may still be counted, on all meshes together."""

    def __init__(self, limit: int) -> None:
        self.left = limit
        self.ran_out = False

    def take(self) -> bool:
        """Use one up, if there is one."""
        self.ran_out = self.ran_out or self.left == 0
        self.left = max(0, self.left - 1)
        return not self.ran_out


class Search:
    """Look for the choice with the lowest score on a mesh, and remember all scores.

    Args:
        axes: what can be mapped.
        score: counts a choice; None, if it is not legal.
        budget: how many choices may be counted.
        lessons: what is known of choices on other meshes.
    """

    def __init__(
        self,
        axes: Axes,
        score: Callable[[Choice], Score | None],
        budget: Budget,
        lessons: Lessons | None = None,
    ) -> None:
        self._axes = axes
        self._score = score
        self._budget = budget
        self._lessons = lessons or Lessons()
        self.scores: dict[Choice, Score | None] = {}

    def begin(self, limit: int, *, is_first: bool = True) -> None:
        """Look at where to begin.

        Args:
            limit: of how many choices.
            is_first: otherwise, what is the same as on another mesh is left out.
        """
        end = len(self.scores) + limit
        for start in self._axes.starts():
            if len(self.scores) >= end:
                return
            if is_first or not self._axes.is_one(start):
                self._look(start)

    def best(self) -> list[Choice]:
        """Return the legal choices that were looked at, the best one first."""
        legal = [choice for choice, score in self.scores.items() if score is not None]
        return sorted(legal, key=self.known)

    def climb(self, best: Choice) -> None:
        """Make moves as long as one of them helps."""
        moves = self._axes.moves()
        while True:
            better = self._better(best, moves)
            if better is None:
                return
            best = better

    def _better(self, best: Choice, moves: Iterable[Move]) -> Choice | None:
        """Return the first choice, one move away, that is better; None, if there is none."""
        others = [move.applied(best) for move in moves]
        # What leaves devices with equal work is rarely better, and what is stored costs least to change.
        others.sort(key=lambda other: (_idle(best, other), other.computed != best.computed))
        for other in dict.fromkeys(others):
            if not self._axes.keeps(other):
                continue
            found = self._look(other)
            if found is not None and found < self.known(best):
                return other
        return None

    def known(self, choice: Choice) -> Score:
        """Return the score of a legal choice that was looked at."""
        return self.scores[choice] or ()

    def _look(self, choice: Choice) -> Score | None:
        if choice in self.scores:
            return self.scores[choice]
        if self._axes.clashes(choice) or self._lessons.forbid(choice):
            return None
        if not self._budget.take():
            return None
        found = self.scores[choice] = self._score(choice)
        self._lessons.learn(choice, is_legal=found is not None)
        return found
