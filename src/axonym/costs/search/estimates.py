"""Internal. Estimates that spare a search most of its traces: a mapping that is far from the best is never traced.

An estimate reads a template (`traced.template`), which is traced once for all mappings. The first good mapping of each
kind is traced as well, and shows how far the estimates of its kind are off on its mesh.
"""

import dataclasses
import math
from collections.abc import Hashable, Mapping, Sequence, Set
from typing import NamedTuple

from ... import Mappings
from ...engine import AxisMapping, MeshLike
from ...errors import AxonymError, ShardingError, message
from ...report import abstract_mesh
from ..compiled.devices import find_target
from ..report.cost import Cost
from ..shared.rows import TIMES
from ..traced.template import Template
from .choice import Choice
from .step import Step
from .verifier import NEAR, rank

# Peaks are estimated less well than times, since they depend on single arrays.
PEAK = 1.5
# Estimates that are off by less than this factor are off by the same one for all mappings of their kind.
CLOSE = 1.1
# Estimates that differ by this factor or more say nothing about each other.
NEARBY = 2.0


class _Traced(NamedTuple):
    """A choice that was traced after it was estimated.

    Attributes:
        features: what it may have in common with others.
        sizes: the sizes of its mesh.
        seconds: its estimate.
        factor: how many times as long as its estimate it takes.
    """

    features: Set[Hashable]
    sizes: Mapping[str, int]
    seconds: float
    factor: float


class Estimates:
    """The estimates of a search on all meshes together: how far they are off, and the best cost so far."""

    def __init__(self) -> None:
        self._templates: dict[Hashable, Template | None] = {}
        self._asked: set[Hashable] = set()
        self._decisive: set[str] = set()
        self._best: tuple[float, ...] = (math.inf, math.inf)
        # For each kind of choices, the traced ones.
        self._traced: dict[Hashable, list[_Traced]] = {}
        # Those of all kinds that divide no decisive axis.
        self._usual: list[_Traced] = []

    def estimate(
        self,
        step: Step,
        choice: Choice,
        mappings: Mappings,
        mesh: MeshLike,
        parameters: Sequence[str],
        indexed: Set[str] = frozenset(),
    ) -> Cost | None:
        """Return an estimate of the cost of a choice.

        Args:
            step: the step.
            choice: the choice.
            mappings: its mappings.
            mesh: their mesh.
            parameters: the names of the axes of parameters.
            indexed: axes of data along which the step may read or write single places. If they are not mapped, the
                template must not have mesh axes for them: a write into a part of a cache goes other ways.

        Returns:
            The estimate. It is None if the step is a pipeline or depends on the mesh, or if the values of arguments are
            new.

        Raises:
            ShardingError: if the mapping does not fit, which a trace would find, too.
        """
        compute = mappings.compute
        if choice.microbatches is not None or compute.fallbacks or compute.uneven:
            return None
        states = tuple(path for path, _ in mappings.overrides)
        self._decisive |= step.decisive
        unmapped = frozenset((indexed | step.decisive) - dict(choice.computed).keys())
        yielding = frozenset(step.decisive & {*choice.yielding})
        key = choice.given, states, unmapped, yielding
        if choice.given not in self._asked:
            # A template takes as long as a trace, so it is made for the second choice with these values.
            self._asked.add(choice.given)
            return None
        if key not in self._templates:
            self._templates[key] = step.make_template(
                choice.given, parameters, states, unmapped, yielding
            )
        template = self._templates[key]
        if template is None:
            if states and self._templates.get((choice.given, (), unmapped, yielding)) is not None:
                raise ShardingError(
                    message("plan", "the state of the optimizer cannot be kept in another layout")
                )
            return None
        target, abstract = find_target(step.target, "plan"), abstract_mesh(mesh, "plan")

        def read(compute: AxisMapping) -> Cost | None:
            try:
                own = dataclasses.replace(mappings, compute=compute)
                return template.estimate(own, abstract, target)
            except ShardingError:
                raise
            # Only a trace says whether anything else is a mistake.
            except (AxonymError, NotImplementedError, ValueError):
                return None

        try:
            return read(compute)
        except ShardingError:
            # The programs for decisive axes may be others, so they must not be the reason.
            decisive = step.decisive & compute.keys()
            if not decisive:
                raise
            read(compute.updated(AxisMapping(tuple((name, ()) for name in decisive))))
        return None

    def is_enough(self, choice: Choice, mesh: MeshLike, estimate: Cost) -> bool:
        """Return whether an estimate spares a trace: the choice loses, or a traced one shows how long it takes."""
        over, seconds, *_ = self._best
        if not over and estimate.memory.peak > PEAK * estimate.target.memory:
            return True
        if self.is_strange(choice):
            return False
        if over:
            # As long as nothing fits, the least memory decides.
            return estimate.memory.peak > (1 + NEAR) * (estimate.target.memory + over)
        found = rank(self.correct(choice, mesh, estimate))
        # A mapping that saves less is as fast. `axn.plan` traces it later if it needs less memory.
        if found[1] > (1 - NEAR) * seconds:
            return True
        factor, is_sure = self._find_factor(choice, mesh, estimate)
        # Estimates that are far off say little about each other, so the best ones are traced.
        is_sure = is_sure and 1 / CLOSE < factor < CLOSE
        if is_sure:
            self._best = min(self._best, found)
        return is_sure

    def is_strange(self, choice: Choice) -> bool:
        """Return whether a template may have other programs for a choice, and no trace shows how much they matter."""
        is_decisive = not self._decisive.isdisjoint(dict(choice.computed))
        return is_decisive and self._find_kind(choice) not in self._traced

    def correct(self, choice: Choice, mesh: MeshLike, estimate: Cost) -> Cost:
        """Return an estimate with the times that a trace would probably find."""
        factor, _ = self._find_factor(choice, mesh, estimate)
        if factor == 1:
            return estimate
        work = (
            dataclasses.replace(row, **{name: factor * getattr(row, name) for name in TIMES})
            for row in estimate.work
        )
        return dataclasses.replace(estimate, work=tuple(work))

    def _find_factor(self, choice: Choice, mesh: MeshLike, estimate: Cost) -> tuple[float, bool]:
        """Return how many times as long as its estimate a choice takes, and whether a traced one of its kind shows it.

        The traced one that is most alike shows it; among equals, the first one. One on another mesh, or one that takes
        far longer or far less time, may only make an estimate shorter: then the choice seems to be the best, and is
        traced as well.
        """
        own, seconds = _list_features(choice, mesh), rank(estimate)[1]
        kind = self._traced.get(self._find_kind(choice))
        known = self._usual if kind is None else kind
        near = [
            one
            for one in known
            if one.sizes == mesh.shape and 1 / NEARBY < one.seconds / (seconds or math.inf) < NEARBY
        ]
        if not known:
            return 1.0, False
        factor = max(near or known, key=lambda one: len(one.features & own)).factor
        return (factor, kind is not None) if near else (min(1.0, factor), False)

    def learn(self, choice: Choice, mesh: MeshLike, cost: Cost, estimate: Cost | None) -> None:
        """Learn from a traced cost, and from its estimate if there is one."""
        self._best = min(self._best, rank(cost))
        if estimate is not None and (seconds := rank(estimate)[1]):
            own, factor = _list_features(choice, mesh), rank(cost)[1] / seconds
            found = _Traced(own, mesh.shape, seconds, factor)
            self._traced.setdefault(self._find_kind(choice), []).append(found)
            if self._decisive.isdisjoint(dict(choice.computed)):
                self._usual.append(found)

    def _find_kind(self, choice: Choice) -> Hashable:
        """Return what decides how good an estimate is: the axes that the computation divides, and other choices."""
        names = tuple((name, name in choice.yielding) for name, _ in choice.computed)
        decisive = tuple(one for one in names if one[0] in self._decisive)
        kept = None if choice.kept is None else tuple(name for name, _ in choice.kept)
        return decisive or names, kept, choice.given


def _list_features(choice: Choice, mesh: MeshLike) -> frozenset[Hashable]:
    """List what choices of one kind may have in common."""
    kept = choice.kept or ()
    sizes = tuple(mesh.shape.items())
    return frozenset({*choice.computed, *choice.stored, *kept, *sizes})
