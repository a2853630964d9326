"""Internal. The cost of the choices of a search on one mesh.

`axn.plan` makes one `Counter` for each mesh, and `search` asks it for scores. It fits mappings to the mesh, and decides
which of them are traced and which are estimated.
"""

import copy
import dataclasses
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress

from ... import Mappings, ResourceMapping
from ...engine import Tree, normalized
from ...errors import AxonymError, OperandError, message, suggestion
from ...report import Fit, abstract_mesh, find_partners, fit_sizes
from ..report.cost import Cost
from .axes import MICROBATCHES, Axes
from .choice import Choice, Give
from .estimates import Estimates
from .lessons import Budget, OutOfBudgetError
from .result import Candidate
from .search import Search
from .step import Step, collect_sizes, find_base, find_divisors, find_state_patterns
from .tally import Tally
from .verifier import rank


class Counter:
    """Counts the cost of choices on one mesh.

    Attributes:
        mesh: the axes of the mesh with their sizes.
        candidates: the candidates by choice, for legal choices.
        is_counted: whether the progress counts the choices, and estimates learn from them.
    """

    def __init__(
        self,
        step: Step,
        mesh: dict[str, int],
        tally: Tally,
        estimates: Estimates,
        budget: Budget,
    ) -> None:
        self._step, self._tally, self._estimates = step, tally, estimates
        self._budget = budget
        self.mesh = mesh
        self._names: tuple[tuple[str, ...], ...] = ()
        self._sizes: dict[str, int] = {}
        self.is_counted = True
        self._parameters: tuple[str, ...] = ()
        self._states: tuple[str, ...] = ()
        self._indexed: frozenset[str] = frozenset()
        self.candidates: dict[Choice, Candidate] = {}
        self._estimated: dict[Choice, Cost] = {}

    def count_in(self, search: Search, choice: Choice) -> Cost | None:
        """Return the cost of a choice; None if it is not legal, or the budget is spent."""
        search.look_at(choice)
        found = self.candidates.get(choice)
        return None if found is None else found.cost

    def move_to(self, mesh: dict[str, int]) -> "Counter":
        """Return a counter for another mesh."""
        other = copy.copy(self)
        other.mesh, other.candidates, other._estimated = mesh, {}, {}
        return other

    def find_axes(self, fixed: ResourceMapping | Mappings | None) -> Axes:
        """Return the axes that can be mapped: the axes of the arguments.

        Raises:
            ShardingError: if the fixed entries do not fit.
            OperandError: if the arguments do not have the axes of a pipeline.
        """
        pinned = fixed
        if not isinstance(pinned, Mappings):
            pinned = Mappings({}, pinned or {})
        piped = self._step.piped
        microbatches = None
        if piped is not None and (entry := pinned.compute.get(piped[0])):
            microbatches = MICROBATCHES[0] * math.prod(self.mesh.get(axis, 1) for axis in entry)
        given = (0,) * len(self._step.choices)
        # Mistakes in the function or in the fixed entries are raised here; later, they would be choices that lose.
        report = self._step.cost(
            pinned, self.mesh, self._step.choose(given), microbatches, "traced"
        )
        parameters, data = _collect_sizes(report, "parameters"), _collect_sizes(report, "data")
        if piped is not None:
            _check_piped(piped, parameters, data)
        self._parameters, self._states = tuple(parameters), find_state_patterns(report)
        # A cache has layers and heads, as parameters do, and places for more positions than there are tokens.
        self._indexed = frozenset(
            name for name, own in data.items() if name in parameters or len(own) > 1
        )
        arrays = _count_elements(report)
        self._names = tuple(arrays)
        names = (*parameters, *data)
        sizes = {
            own: parameters.get(own, frozenset()) | data.get(own, frozenset()) for own in names
        }
        self._sizes = find_divisors(sizes)
        layers: dict[Give, int] = {}
        if piped is not None:
            for gift, counts in self._step.iterate_gifts():
                layers[gift] = counts.get(piped[0], 1)
        own = _sort_entries(pinned.parameters), _sort_entries(pinned.compute)
        return Axes(
            self.mesh,
            parameters,
            data,
            Choice(
                *own,
                microbatches=microbatches,
                given=given,
                yielding=tuple(sorted(pinned.compute.yielding)),
            ),
            arrays,
            piped,
            self._step.count_values(),
            bool(self._states),
            layers,
        )

    def score(self, choice: Choice) -> tuple[float, ...] | None:
        """Return the numbers that rank a choice; None if it is not legal."""
        chosen = self._step.choose(choice.given)
        counted = self._count(choice, chosen)
        if counted is None:
            return None
        fitted, report, is_estimated = counted
        found = Candidate(
            tuple(fitted.mesh.shape.items()),
            fitted.mappings,
            report,
            choices=chosen,
            microbatches=choice.microbatches,
            split=fitted.split,
            is_estimated=is_estimated,
        )
        self._note(report.time.compared if found.fits else math.inf)
        self.candidates[choice] = found
        return rank_candidate(found)

    def correct(self) -> None:
        """Correct the times of candidates that are only estimated, after others were traced."""
        for choice, estimate in self._estimated.items():
            one = self.candidates[choice]
            mesh = abstract_mesh(dict(one.mesh), "plan")
            cost = self._estimates.correct(choice, mesh, estimate)
            self.candidates[choice] = dataclasses.replace(one, cost=cost)

    def trace(self, choice: Choice) -> None:
        """Trace a candidate that was only estimated, which may turn out not to be legal."""
        one, estimate = self.candidates.pop(choice), self._estimated.pop(choice)
        step = self._step.link_parts(one.split)
        with suppress(AxonymError, ValueError):
            cost = step.count(one.mappings, dict(one.mesh), one.choices, one.microbatches)
            self.candidates[choice] = dataclasses.replace(one, cost=cost, is_estimated=False)
            self._estimates.learn(choice, abstract_mesh(dict(one.mesh), "plan"), cost, estimate)

    def _count(self, choice: Choice, chosen: Mapping[str, Tree]) -> tuple[Fit, Cost, bool] | None:
        """Return the first fit of a choice that is legal, its cost, and whether it is estimated; None if no fit is."""
        illegal = suppress(AxonymError, ValueError)
        with illegal:
            for fitted in self._iterate_fits(choice):
                with illegal:
                    return fitted, *self._find_cost(choice, chosen, fitted)
        return None

    def _find_cost(
        self, choice: Choice, chosen: Mapping[str, Tree], fitted: Fit
    ) -> tuple[Cost, bool]:
        """Return the cost of a choice, and whether it is estimated.

        Raises:
            AxonymError: if the choice is not legal.
            OutOfBudgetError: if it must be traced, and no trace is left.
        """
        step, mappings, mesh = self._step.link_parts(fitted.split), fitted.mappings, fitted.mesh
        called = mappings, dict(mesh.shape), chosen, choice.microbatches
        if not self.is_counted:
            return step.count(*called), False
        estimates, own = self._estimates, (self._parameters, self._indexed)
        estimate = estimates.estimate(step, choice, mappings, mesh, *own)
        is_enough = estimate is not None and estimates.is_enough(choice, mesh, estimate)
        if not is_enough and not self._budget.take_trace():
            if estimate is None or estimates.is_strange(choice):
                raise OutOfBudgetError
            is_enough = True
        if estimate is not None and is_enough:
            self._estimated[choice] = estimate
            return estimates.correct(choice, mesh, estimate), True
        cost = step.count(*called)
        estimates.learn(choice, mesh, cost, estimate)
        return cost, False

    def _iterate_fits(self, choice: Choice) -> Iterator[Fit]:
        """Yield the mappings of a choice, and this mesh, or one with some axes split so that they divide all sizes."""
        mappings = choice.make_mappings(self._parameters, self._states)
        mesh = abstract_mesh(self.mesh, "plan")
        sizes = self._sizes
        if self._step.is_builder:
            sizes = {**sizes, **self._step.find_sizes(choice.given)}
        partners = find_partners(self._names, mappings)
        found = fit_sizes(mappings, mesh, sizes, partners)
        yield found
        # A partner may share its mesh axes with another axis of an array, so the simpler fit is next.
        if found.split and partners:
            yield fit_sizes(mappings, mesh, sizes, {})

    def _note(self, seconds: float) -> None:
        if self.is_counted:
            self._tally.add("counting", 1, seconds)


def _check_piped(
    piped: tuple[str, str], parameters: Mapping[str, object], data: Mapping[str, object]
) -> None:
    """Check that the arguments have the axes of a pipeline.

    Raises:
        OperandError: if they do not.
    """
    for name, kind, there in (
        (piped[0], "parameters", parameters),
        (piped[1], "data", data),
    ):
        if name not in there:
            problem = f"pipelined={piped!r}, and no {kind} have an axis {name!r}"
            facts = f"axes of {kind}: {', '.join(there)}"
            raise OperandError(message("plan", problem, facts, hint=suggestion(name, there)))


def rank_candidate(one: Candidate) -> tuple[float, ...]:
    """Return the numbers that rank mappings; among mappings that cost the same, the shortest one wins."""
    entries = [*one.mappings.parameters.values(), *one.mappings.compute.values()]
    return *rank(one.cost), sum(map(len, entries)), len(one.mappings.overrides)


def _collect_sizes(report: Cost, kind: str) -> dict[str, frozenset[int]]:
    """Return the sizes of each axis of one kind of arguments."""
    return collect_sizes(report.arguments.get(kind, ()))


def _count_elements(report: Cost) -> dict[tuple[str, ...], int]:
    """Return, for each set of axes, the number of elements of the parameters that have these axes."""
    found: dict[tuple[str, ...], int] = {}
    for row in report.arguments.get("parameters", ()):
        names = tuple(dict.fromkeys(map(find_base, row.names)))
        found[names] = found.get(names, 0) + math.prod(row.shape)
    return found


def _sort_entries(mapping: ResourceMapping) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple(sorted((name, entry) for name, entry in normalized(mapping).entries if entry))
