"""Internal. Estimates that spare a search most of its traces: a mapping that is far from the best is never traced.

An estimate reads a template (`traced.template`), which is traced once for all mappings. Mappings that may be good are
traced as well, so that the search learns where estimates hold.
"""

import collections
import math
from collections.abc import Hashable, Sequence, Set
from contextlib import suppress

from ... import Mappings
from ...engine import MeshLike
from ...errors import AxonymError
from ...report import abstract_mesh
from ..compiled.devices import find_target
from ..report.cost import Cost
from ..traced.template import Template
from .choice import Choice
from .step import Step
from .verifier import NEAR, rank

# Mappings that are so much slower than the best one tell nothing about good ones.
GOOD = 1.2
# Peaks are estimated less well than times, since they depend on single arrays.
PEAK = 1.5
# How many times as long as a trace the first estimate may take. Good mappings are usually estimated much better.
UNKNOWN = 1.5


class Estimates:
    """The estimates of a search on all meshes together: how far they are off, and the best traced cost so far."""

    def __init__(self) -> None:
        self._templates: dict[Hashable, Template | None] = {}
        self._asked: set[Hashable] = set()
        self._decisive: set[str] = set()
        self._best: tuple[float, ...] = (math.inf, math.inf)
        # For each feature of traced choices, how many times as long as the trace the estimate was, at most.
        self._factors: dict[Hashable, float] = {}
        self._compared = 0
        self._seen: collections.Counter[Hashable] = collections.Counter()

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
            The estimate. It is None if the step is a pipeline or depends on the mesh, if the mapping does not fit, or
            if the values of arguments are new.
        """
        compute = mappings.compute
        if choice.microbatches is not None or compute.fallbacks or compute.uneven:
            return None
        states = tuple(path for path, _ in mappings.overrides)
        self._decisive |= step.decisive
        unmapped = frozenset((indexed | step.decisive) - dict(choice.computed).keys())
        yielding = frozenset(step.decisive & {*choice.yielding})
        key = choice.given, states, unmapped, yielding
        if key not in self._asked:
            # A template takes as long as a trace, so it is made for the second choice.
            self._asked.add(key)
            return None
        if key not in self._templates:
            self._templates[key] = step.make_template(
                choice.given, parameters, states, unmapped, yielding
            )
        template = self._templates[key]
        if template is None:
            return None
        with suppress(AxonymError, ValueError):
            target = find_target(step.target, "plan")
            return template.estimate(mappings, abstract_mesh(mesh, "plan"), target)
        return None

    def is_beaten(self, choice: Choice, mesh: MeshLike, estimate: Cost) -> bool:
        """Return whether a choice is not worth a trace: it loses even if its estimate is as far off as others were."""
        over, seconds, *_ = self._best
        factor = max(map(self._find_factor, _find_features(choice, mesh)))
        if over or math.isinf(factor):
            return False
        is_large = estimate.memory.peak > PEAK * estimate.target.memory
        # A mapping that saves less is as fast. `axn.plan` traces it later if it needs less memory.
        return is_large or rank(estimate)[1] > (1 - NEAR) * factor * seconds

    def _find_factor(self, feature: tuple[Hashable, ...]) -> float:
        """Return how many times as long as a trace an estimate with a feature may take."""
        if feature in self._factors:
            return self._factors[feature]
        # A template does not know the programs for such an axis.
        if not {*feature}.isdisjoint(self._decisive):
            return math.inf
        # The more estimates were right, the more a new one is trusted.
        trusted = 1 + (UNKNOWN - 1) / (1 + self._compared)
        return max([trusted, *self._factors.values()])

    def learn(self, choice: Choice, mesh: MeshLike, cost: Cost, estimate: Cost | None) -> None:
        """Learn from a traced cost, and from its estimate if there is one."""
        self._best = min(self._best, rank(cost))
        if estimate is None:
            return
        self._compared += 1
        seconds, factor = rank(cost)[1], 1.0
        # An estimate of a slow mapping may be as far off as it likes.
        if seconds <= GOOD * self._best[1]:
            factor = max(1.0, rank(estimate)[1] / seconds if seconds else math.inf)
        features = _find_features(choice, mesh)
        # The features that occurred least often are to blame, such as a new one.
        rarest = min(self._seen[own] for own in features)
        for own in features:
            blamed = factor if self._seen[own] == rarest else 1.0
            self._factors[own] = max(blamed, self._factors.get(own, 1.0))
        self._seen.update(features)


def _find_features(choice: Choice, mesh: MeshLike) -> frozenset[tuple[Hashable, ...]]:
    """Return what an estimate of a choice depends on: the mesh, the mapped axes, and the other choices."""
    stored = (("stored", name) for name, _ in choice.stored)
    computed = (("computed", name, name in choice.yielding) for name, _ in choice.computed)
    kept = (("kept", name) for name, _ in choice.kept or ())
    return frozenset((tuple(mesh.shape.items()), choice.given, *stored, *computed, *kept))
