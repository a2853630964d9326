"""Internal. The search for mappings: it begins with mappings that experts write, and then moves one axis after another.

`axn.plan` runs one `Search` for each mesh. `Axes` says which axes may be mapped, and `Lessons` which choices are known
to fail. It must not know how a choice is scored.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress

from .axes import Axes
from .choice import Change, Choice
from .lessons import Budget, Lessons, OutOfBudgetError, Score


def _count_idle(before: Choice, after: Choice) -> int:
    """Return the number of mesh axes that no longer divide the computation."""

    def collect_used(choice: Choice) -> set[str]:
        return {axis for _, entry in choice.computed for axis in entry}

    return len(collect_used(before) - collect_used(after))


class Search:
    """Look for the choice with the lowest score on a mesh, and remember all scores.

    Args:
        axes: the axes that can be mapped.
        score: counts a choice; it returns None if the choice is not legal.
        budget: the number of choices that may be counted.
        lessons: lessons from other meshes.

    Attributes:
        scores: the scores of all choices so far; None if one is not legal.
        climbed: the choices of which all changes were counted, or a better one was found.
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
        self.climbed: set[Choice] = set()

    def begin(
        self,
        limit: int,
        *,
        is_first: bool = True,
        proven: Sequence[Choice] = (),
        is_replicated: bool = False,
    ) -> None:
        """Count the choices that experts begin with.

        Args:
            limit: the number of choices.
            is_first: whether this is the first mesh. Choices that use all mesh axes as one are the same on other
                meshes.
            proven: choices that are good on a mesh with the same axes; they come first.
            is_replicated: whether parameters are better replicated on another mesh.
        """
        self._axes = dataclasses.replace(self._axes, is_replicated=is_replicated)
        starts = self._axes.list_starts()
        if not is_first:
            starts = [start for start in (*proven, *starts) if not self._axes.is_one(start)]
        whole, between = self._axes.list_whole()[:1], self._axes.list_between()
        end = max(0, self._budget.left - limit)
        listed = 0 if is_first else limit // 2
        while starts and self._budget.left - end >= 1:
            # At the end, when all rules have had a turn, choices like the good ones on other meshes come first.
            at = 0
            if self._budget.left - end <= listed:
                expect = self._lessons.make_forecast()
                at = min(range(len(starts)), key=lambda own: expect(starts[own]))
            self.look_at(starts.pop(at), end)
            # If parameters, or data between the layers, are better whole once, the next starts have them so first.
            learned = dataclasses.replace(
                self._axes,
                is_replicated=self._axes.is_replicated or any(map(self._is_whole_better, whole)),
                is_whole_between=any(map(self._is_whole_better, between)),
            )
            if learned != self._axes:
                self._axes = learned
                starts = [one for one in self._axes.list_starts() if one in {*starts}]

    @property
    def is_replicated(self) -> bool:
        """Whether starts with replicated parameters come first."""
        return self._axes.is_replicated

    def _is_whole_better(self, pair: tuple[Choice, Choice]) -> bool:
        sharded, whole = (self.scores.get(one) for one in pair)
        return sharded is not None and whole is not None and whole < sharded

    def rank_data(self) -> dict[str, frozenset[int]]:
        """Return the axes of data, the best one to divide first, whatever the order of axes in arrays."""
        data, divided = self._axes.data, self._axes.list_divided()
        # Axes that also divide layers come last. A single axis needs no comparison.
        rows = [name for name in data if name not in self._axes.parameters]

        def rank(name: str) -> tuple[bool, Score, int]:
            found: Score | None = None
            if name in rows and name in divided and len(rows) > 1:
                found = self.look_at(divided[name])
            return name not in rows, found or (math.inf,), min(data[name])

        return {name: data[name] for name in sorted(data, key=rank)}

    def find_paces(self) -> dict[str, float]:
        """Return the times of the steps that `rank_data` compared, by the axis of data that is divided."""
        scores = {name: self.scores.get(one) for name, one in self._axes.list_divided().items()}
        return {name: score[1] for name, score in scores.items() if score is not None}

    def list_best(self) -> list[Choice]:
        """Return the legal choices so far, the best one first."""
        legal = [choice for choice, score in self.scores.items() if score is not None]
        return sorted(legal, key=self.look_up)

    def give(self, choice: Choice) -> None:
        """Score a choice with other values of keyword arguments."""
        for gift in self._axes.list_gifts():
            self.look_at(gift.apply(choice))

    def climb(self, best: Choice, limit: int) -> None:
        """Make changes as long as one of them helps.

        Args:
            best: the choice to begin with.
            limit: the number of choices that may be counted.
        """
        end = max(0, self._budget.left - limit)
        # First which mesh axis has which role: this changes all entries together, so no other change leads there.
        for changes in (self._axes.list_swaps(), self._axes.list_moves()):
            better: Choice | None = best
            while better is not None:
                best = better
                better = self._find_better(best, changes, end)
                # If the budget ends here, other changes are left for later.
                if better is not None or self._budget.left - end >= 1:
                    self.climbed.add(best)

    def _find_better(self, best: Choice, moves: Iterable[Change], end: int) -> Choice | None:
        """Return the first better choice that is one change away; None if there is none."""
        others = [move.apply(best) for move in moves]
        # If no mapping is worth its communication, the fewest devices cost least.
        alone = self._axes.list_alone() if self.is_alone(best) else []
        expect = self._lessons.make_forecast()
        # A choice that repeats work on devices is rarely better, and stored entries are cheap to change.
        others.sort(
            key=lambda other: (
                _count_idle(best, other),
                self._axes.count_shared(other),
                self._axes.count_apart(best, other),
                expect(other),
                other.computed != best.computed,
            )
        )
        for other in dict.fromkeys((*alone, *others)):
            if not self._axes.is_allowed(other):
                continue
            found = self.look_at(other, end)
            if found is not None and found < self.look_up(best):
                return other
        return None

    def is_alone(self, choice: Choice) -> bool:
        """Return whether a choice maps nothing that is not fixed."""
        return dataclasses.replace(choice, given=()) == dataclasses.replace(
            self._axes.fixed, given=()
        )

    @property
    def shortest(self) -> int:
        """The devices along the shortest mesh axis that has several."""
        return min((self._axes.mesh[axis] for axis in self._axes.mesh_axes), default=1)

    @property
    def fixed_axes(self) -> Set[str]:
        """The mesh axes of the fixed entries."""
        fixed = self._axes.fixed
        return {axis for _, entry in (*fixed.stored, *fixed.computed) for axis in entry}

    def move_to(self, mesh: Mapping[str, int], score: Callable[[Choice], Score | None]) -> "Search":
        """Return the same search on another mesh."""
        axes = dataclasses.replace(self._axes, mesh=mesh)
        return Search(axes, score, self._budget, self._lessons)

    def divide(self, before: "Search", choice: Choice, axis: str, inner: str, limit: int) -> None:
        """Begin with a choice from a coarser mesh, and move something to the new mesh axis.

        Args:
            before: the search on the coarser mesh.
            choice: its choice.
            axis: the mesh axis that was divided.
            inner: the new mesh axis, which is a part of it.
            limit: the number of choices that may be counted.
        """
        end = max(0, self._budget.left - limit)
        for other in self._axes.move_along(choice.divide(axis, inner), inner):
            self.look_at(other, end)
        # Only a mesh that already beats the coarser one is worth a climb.
        best = self.list_best()
        if best and self.look_up(best[0]) < before.look_up(choice):
            self.climb(best[0], max(0, self._budget.left - end))

    def look_up(self, choice: Choice) -> Score:
        """Return the score of a legal choice that was counted before."""
        return self.scores[choice] or ()

    def look_at(self, choice: Choice, end: int = 0) -> Score | None:
        """Return the score of a choice, counted only once; None if it is not legal, or at most `end` are left."""
        # A choice that cannot be legal costs nothing of the budget.
        if choice in self.scores:
            return self.scores[choice]
        if self._axes.has_clash(choice) or self._lessons.forbid(choice, self._axes.mesh):
            return None
        if not self._budget.take(end):
            return None
        with suppress(OutOfBudgetError):
            self.scores[choice] = self._score(choice)
            if self.scores[choice] is None:
                # It says nothing about others, and must not keep a later rule from being tried.
                self._budget.give((1, 0))
            self._lessons.learn(choice, self.scores[choice], self._axes.mesh)
        return self.scores.get(choice)
