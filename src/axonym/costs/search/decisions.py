"""Internal. Decisions layer by layer, found from the costs of steps in which all layers are alike.

If some layers recompute and others keep activations, the step costs a weighted mean of two steps: one in which all
layers recompute, and one in which all keep. A dynamic program combines the decisions of several stacks, and traces
confirm the result. Mappings are taken in the order of their least possible time with any decision, until this time is
above the best time found. So the result is the best among the mappings that a search has counted.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from ..report.cost import Cost
from ..shared.rows import MIXED, Phase, Work
from .choice import Choice, Give
from .layers import EachLayer
from .step import count_examples, find_pace


class Mix(NamedTuple):
    """Decisions for all stacks, with an estimate of their cost.

    Attributes:
        seconds: the time.
        nbytes: the memory at the peak.
        given: for each stack, the number of its item.
    """

    seconds: float
    nbytes: float
    given: tuple[int, ...] = ()


def list_mixes(
    stacks: Sequence[Sequence[tuple[float, ...]]], costs: Sequence[Sequence[Cost | None]]
) -> list[Mix]:
    """List the decisions that are optimal in time and memory (the Pareto front), the fastest first.

    Args:
        stacks: for each stack and each item, the share of the layers that have each value.
        costs: for each stack and each value, the cost of the step in which the layers of this stack have this value,
            and layers of other stacks have their first value; None if the step is not legal.
    """
    front = [Mix(0.0, 0.0)]
    for shares, alike in zip(stacks, costs, strict=True):
        found: list[Mix] = []
        for number, own in enumerate(shares):
            pairs = [pair for pair in zip(own, alike, strict=True) if pair[0]]
            parts = [(share, cost) for share, cost in pairs if cost is not None]
            if len(parts) == len(pairs):
                one = mix(parts)
                found += [
                    Mix(one.seconds + more.seconds, one.nbytes + more.nbytes, (*more.given, number))
                    for more in front
                ]
        front = _drop_beaten(found)
    # The step itself is in the cost of each stack, and counts once.
    start = [alike[0] for alike in costs]
    again = [mix([(1.0, cost)]) for cost in start[1:] if cost is not None]
    seconds = sum(one.seconds for one in again)
    nbytes = sum(one.nbytes for one in again)
    return [Mix(one.seconds - seconds, one.nbytes - nbytes, one.given) for one in front]


def mix(parts: Sequence[tuple[float, Cost]]) -> Mix:
    """Estimate a step in which layers have different values, from steps in which all layers have the same value.

    Args:
        parts: the shares of the layers, each with the cost of its step.
    """
    rows: dict[tuple[str, Phase], Work] = {}
    for share, cost in parts:
        for row in cost.work:
            # Layers hide what others send, so the parts of times are averaged, not the times.
            empty = Work(row.layer, row.phase, 0.0, 0.0, 0.0, 0.0, 0.0)
            before = rows.get((row.layer, row.phase), empty)
            rows[row.layer, row.phase] = dataclasses.replace(
                before,
                **{name: getattr(before, name) + share * getattr(row, name) for name in MIXED},
            )
    seconds = _estimate(parts[0][1], rows.values())
    return Mix(seconds, sum(share * cost.memory.peak for share, cost in parts))


def _estimate(cost: Cost, work: Iterable[Work]) -> float:
    """Return the time of a step with other work, as used to compare mappings."""
    time = dataclasses.replace(cost, work=tuple(work)).time
    return time.seconds if time.expected is None else time.expected


def _drop_beaten(mixes: Iterable[Mix]) -> list[Mix]:
    """Return the mixes that need less memory than all faster ones, the fastest first."""
    kept: list[Mix] = []
    for one in sorted(mixes):
        if not kept or one.nbytes < kept[-1].nbytes:
            kept.append(one)
    return kept


@dataclasses.dataclass
class Family:
    """Choices of one search that differ only in decisions about layers.

    Attributes:
        choice: the choice in which all layers have the first value.
        count: counts a choice; it returns None if the choice is not legal, or the budget is spent.
        known: the costs of the counted choices, by choice.
    """

    choice: Choice
    count: Callable[[Choice], Cost | None]
    known: dict[Choice, Cost] = dataclasses.field(default_factory=dict)

    @property
    def least_seconds(self) -> float:
        """A lower bound of the time per example: nothing is recomputed or copied."""
        return min(map(_find_least_seconds, self.known.values()))

    @property
    def least_bytes(self) -> int:
        """A lower bound of the memory: nothing is kept."""
        return min(map(_find_least_bytes, self.known.values()))

    def find(self, choice: Choice) -> Cost | None:
        """Return the cost of a choice, counted once."""
        if choice not in self.known:
            cost = self.count(choice)
            if cost is None:
                return None
            self.known[choice] = cost
        return self.known[choice]


def _find_least_seconds(cost: Cost) -> float:
    once = [row for row in cost.work if row.phase != "recomputed"]
    seconds = _estimate(cost, [dataclasses.replace(row, copying=0.0) for row in once])
    return seconds / count_examples(cost)


def _find_least_bytes(cost: Cost) -> int:
    kept = sum(row.nbytes for row in cost.memory.kept if not row.is_on_host)
    return cost.memory.peak - kept


class Decisions:
    """Decide layer by layer, for the choices that searches have counted.

    Args:
        stacks: the values of each stack, by the position of its keyword argument among all.
    """

    def __init__(self, stacks: Mapping[int, EachLayer]) -> None:
        self._stacks = stacks
        self._families: list[Family] = []

    def add(self, counted: Mapping[Choice, Cost], count: Callable[[Choice], Cost | None]) -> None:
        """Add the choices of a search.

        Args:
            counted: their costs.
            count: counts another choice; see `Family`.
        """
        found: dict[Choice, Family] = {}
        for choice, cost in counted.items():
            base = self._give(choice, (0,) * len(self._stacks))
            found.setdefault(base, Family(base, count)).known[choice] = cost
        self._families += found.values()

    def run(self) -> None:
        """Count the decisions that may be the best, until no other one can be better."""
        if not self._families:
            return
        fitting = [one for one in self._families if one.least_bytes <= _find_capacity(one)]
        if not fitting:
            # Nothing fits, so the best one is the one that lacks least memory.
            self._solve(min(self._families, key=lambda one: one.least_bytes))
        solved: list[Mapping[str, float]] = []
        for family in sorted(fitting, key=lambda one: one.least_seconds):
            known = (cost for one in self._families for cost in one.known.values())
            if family.least_seconds >= _find_fastest(known):
                return
            # Mappings that differ only in name, such as in where parameters are, have the same numbers.
            start = family.find(family.choice)
            if start is not None and start.totals not in solved:
                self._solve(family)
                solved.append(start.totals)

    def _solve(self, family: Family) -> None:
        """Count the best decisions of a family: the fastest ones that fit."""
        start = family.find(family.choice)
        if start is None:
            return
        costs: list[list[Cost | None]] = []
        for place, stack in self._stacks.items():
            gifts = [Give(place, number) for number in range(len(stack.values))]
            costs.append([family.find(gift.apply(family.choice)) for gift in gifts])
        shares = [stack.shares for stack in self._stacks.values()]
        self._confirm(family, list_mixes(shares, costs), start.target.memory)

    def _confirm(self, family: Family, mixes: Sequence[Mix], capacity: int) -> None:
        """Count mixes until the fastest one that fits is known, starting from the one that fits by the estimate."""
        # The fastest mix needs most memory, so the mixes that fit are the last ones.
        fitting = (at for at, one in enumerate(mixes) if one.nbytes <= capacity)
        at = next(fitting, len(mixes) - 1)
        if self._fits(family, mixes[at], capacity):
            while at and self._fits(family, mixes[at - 1], capacity):
                at -= 1
            return
        while at + 1 < len(mixes) and not self._fits(family, mixes[at + 1], capacity):
            at += 1

    def _fits(self, family: Family, mix: Mix, capacity: int) -> bool:
        cost = family.find(self._give(family.choice, mix.given))
        return cost is not None and cost.memory.peak <= capacity

    def _give(self, choice: Choice, given: Sequence[int]) -> Choice:
        for place, number in zip(self._stacks, given, strict=True):
            choice = Give(place, number).apply(choice)
        return choice


def _find_capacity(family: Family) -> int:
    return next(iter(family.known.values())).target.memory


def _find_fastest(costs: Iterable[Cost]) -> float:
    """Return the time per example of the fastest step that fits; infinite if no step fits."""
    fitting = [find_pace(cost) for cost in costs if cost.memory.peak <= cost.target.memory]
    return min(fitting, default=math.inf)
