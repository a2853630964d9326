"""Find the mapping of a function that takes the least time and fits."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ..errors import ArgumentError, AxonymError, OperandError, message
from ..kinds import Tree, type_text
from ..mesh.assignment import Mappings, MeshLike, ResourceMapping, normalized
from .targets import Target

if TYPE_CHECKING:
    from .planned import Candidate, Plan
    from .progress import Progress
    from .report import Cost
    from .search import Axes, Choice, Search
    from .tally import Tally
    from .verify import Verifier

__all__ = ["plan"]

# Tensor parallelism over more devices is rarely faster.
MOST_MODEL = 16
# From so many of the best starts, the search moves on.
CLIMBED = 2


def plan(
    fn: Tree,
    mesh: MeshLike | Mapping[str, int] | int,
    *args: Tree,
    target: Target | str = "cpu",
    fixed: ResourceMapping | Mappings | None = None,
    limit: int = 200,
    verify: int = 3,
    progress: "Callable[[Progress], object] | None" = None,
    **kwargs: Tree,
) -> "Plan":
    """Find the mappings of a training step that take the least time and fit, by `axn.cost` in its traced depth.

    The best few are then compiled for the target, and the best of these by the compiler wins. Where programs for the
    target cannot be compiled, the plan says why.

    The search begins with what experts write: nothing mapped; each axis of data on all mesh axes, with parameters
    stored so, too, or along one of them; and along one mesh axis what divides the layers, such as heads and the width
    of a perceptron, or experts, with the data along the others. From the best two of these, it moves one axis after
    the other to other mesh axes, for the parameters, the computation or both, as long as that helps. What is not legal
    teaches it what not to try again. It is deterministic, and no proof that nothing is better.

    Args:
        fn: the whole step: forward, backward and optimiser; the forward pass alone favours other mappings.
        mesh: as in `axn.cost`; or a number of devices, for which meshes of the axes `data` and `model` are compared. If
            all links are alike and nothing is fixed, `model` is not the longer one of the two.
        args: arguments, as in `axn.cost`.
        target: the device that times and memory are for, as in `axn.cost`.
        fixed: entries that stay: those of the computation, or `Mappings`, also of the parameters.
        limit: how many mappings are counted at most, on all meshes together; a compiled one counts as 10.
        verify: how many of the best are compiled. If none of them fits, those that follow are, until one does.
        progress: is called with a `Progress` after each mapping; by default, a terminal shows a bar.
        kwargs: keyword arguments.

    Returns:
        The plan, which prints as a table: `mappings`, `mesh`, and what the others cost.

    Raises:
        ShardingError: if what is fixed does not fit.
        OperandError: for what cannot be called; for an unknown target.
        ArgumentError: if `limit` or the number of devices is not positive, or `verify` is negative.

    Examples:
        >>> Batch, Embed, Mlp = axn.make_axes(batch=4096, embed=32, mlp=128)
        >>> up, down = axn.ones((Embed, Mlp)), axn.ones((Mlp, Embed))
        >>> def loss(params, x):
        ...     return (axn.dot(axn.dot(x, params[0], axis="embed"), params[1], axis="mlp") ** 2).mean().scalar()
        >>> step = jax.value_and_grad(loss)
        >>> found = axn.plan(step, {"data": 8}, (up, down), axn.ones((Batch, Embed)))
        >>> found.mappings.compute
        AxisMapping(entries=(('batch', ('data',)),))
    """
    # Here, so that who asks for no plan does not wait for it.
    from .cost import cost
    from .devices import known_target
    from .planned import Plan
    from .search import Budget, Lessons, Search
    from .tally import Tally
    from .verify import PRICE

    if not callable(fn):
        raise OperandError(message("plan", f"it takes a function or a module, not {type_text(fn)}"))
    known = known_target(target)
    # With mesh axes of one kind, it does not matter which of them has how many devices.
    meshes = list(_meshes(mesh, is_symmetric=not fixed and not known.links))
    if limit < len(meshes):
        problem = f"limit={limit} mappings cannot be counted on {len(meshes)} meshes"
        raise ArgumentError(message("plan", problem, hint="use a larger limit"))
    first: MeshLike | Mapping[str, int] = meshes[0]
    if not isinstance(mesh, int):
        first = mesh
    verifier = _verifier(first, target, limit, verify)
    tally = Tally(progress, limit)
    share = max(len(meshes), limit - verifier.reserved)
    budget, lessons = Budget(share), Lessons()
    searches: list[tuple[_Counting, Search]] = []
    for sizes in meshes:
        counting = _Counting(fn, sizes, args, kwargs, target, tally)
        search = Search(counting.axes(fixed), counting.score, budget, lessons)
        # At least half is left for the moves.
        search.begin(max(1, share // (2 * len(meshes))), is_first=not searches)
        searches.append((counting, search))
    _climb(searches)
    candidates: list[Candidate] = []
    for counting, search in searches:
        candidates += [counting.candidates[choice] for choice in search.best()]
    counted = sum(len(search.scores) for _, search in searches)

    def cost_of(one: "Candidate") -> "Cost":
        """Compile a candidate, for the devices of the mesh if it has some."""
        where = first
        if isinstance(mesh, int):
            where = dict(one.mesh)
        tally.add("compiling", PRICE, math.inf)
        return cost(fn, one.mappings, where, *args, target=target, **kwargs)

    (best, *others), text = verifier.run(sorted(candidates, key=_rank), counted, cost_of)
    tally.close()
    illegal = counted - len(candidates)
    return Plan(best, tuple(others), counted, illegal, not budget.ran_out, text)


def _verifier(mesh: object, target: Target | str, limit: int, wanted: int) -> "Verifier":
    """Find out whether programs for the target can be compiled here."""
    from ..report.target import abstract_mesh
    from .devices import known_target, obstacle
    from .verify import Verifier

    why = "verify=0"
    if wanted:
        why = obstacle(mesh, abstract_mesh(mesh, "plan"), known_target(target))
    return Verifier(wanted, limit, why)


def _climb(searches: "Sequence[tuple[_Counting, Search]]") -> None:
    """Move on from the best starts, on whichever meshes they are."""
    found: list[tuple[tuple[float, ...], int, Choice]] = []
    for at, (_, search) in enumerate(searches):
        found += [(search.known(choice), at, choice) for choice in search.best()]
    found.sort(key=lambda one: one[:2])
    for _, at, choice in found[:CLIMBED]:
        searches[at][1].climb(choice)


def _meshes(mesh: object, *, is_symmetric: bool) -> Iterator[dict[str, int]]:
    """Yield the sizes of a mesh, or those of several with so many devices."""
    from ..report.target import abstract_mesh

    if not isinstance(mesh, int) or isinstance(mesh, bool):
        yield dict(abstract_mesh(mesh, "plan").shape)
        return
    if mesh < 1:
        raise ArgumentError(message("plan", f"the number of devices must be positive, not {mesh}"))
    for model in range(1, min(mesh, MOST_MODEL) + 1):
        if mesh % model == 0 and not (is_symmetric and model * model > mesh):
            yield {"data": mesh // model, "model": model}


class _Counting:
    """Count what mappings cost on one mesh.

    Attributes:
        candidates: those that are legal.
    """

    def __init__(
        self,
        fn: Tree,
        mesh: dict[str, int],
        args: tuple[Tree, ...],
        kwargs: dict[str, Tree],
        target: Target | str,
        tally: "Tally",
    ) -> None:
        self._fn, self._mesh, self._target, self._tally = fn, mesh, target, tally
        self._args, self._kwargs = args, kwargs
        self._parameters: tuple[str, ...] = ()
        self.candidates: dict[Choice, Candidate] = {}

    def axes(self, fixed: ResourceMapping | Mappings | None) -> "Axes":
        """Return what can be mapped: the axes of the arguments.

        Raises:
            ShardingError: if what is fixed does not fit.
        """
        from .search import Axes, Choice

        pinned = fixed
        if not isinstance(pinned, Mappings):
            pinned = Mappings({}, pinned or {})
        # Mistakes of the function and of what is fixed are errors here, not choices that lose.
        report = self._cost(pinned)
        parameters = _sizes(report, "parameters")
        self._parameters = tuple(parameters)
        choice = Choice(_sorted(pinned.parameters), _sorted(pinned.compute))
        return Axes(self._mesh, parameters, _sizes(report, "data"), choice, _elements(report))

    def score(self, choice: "Choice") -> tuple[float, ...] | None:
        """Count a choice; None, if it is not legal."""
        from .planned import Candidate

        mappings = choice.mappings(self._parameters)
        try:
            report = self._cost(mappings)
        except (AxonymError, ValueError):
            self._tally.add("counting", 1, math.inf)
            return None
        found = Candidate(tuple(self._mesh.items()), mappings, report)
        seconds = math.inf
        if found.fits:
            seconds = report.time.seconds
        self._tally.add("counting", 1, seconds)
        self.candidates[choice] = found
        return _rank(found)

    def _cost(self, mappings: Mappings) -> "Cost":
        from .cost import cost

        given = (self._fn, mappings, self._mesh, *self._args)
        return cost(*given, target=self._target, depth="traced", **self._kwargs)


def _rank(one: "Candidate") -> tuple[float, ...]:
    from .verify import rank

    return rank(one.cost)


def _sizes(report: "Cost", kind: str) -> dict[str, frozenset[int]]:
    """Return the sizes of each axis of some arguments; derived axes go with their bases."""
    found: dict[str, frozenset[int]] = {}
    for row in report.arguments.get(kind, ()):
        shape = row.shape[len(row.shape) - len(row.names) :]
        for name, size in zip(map(_base, row.names), shape, strict=True):
            found[name] = found.get(name, frozenset()) | {size}
    return found


def _elements(report: "Cost") -> dict[tuple[str, ...], int]:
    """Return how many elements parameters with the same axes have."""
    found: dict[tuple[str, ...], int] = {}
    for row in report.arguments.get("parameters", ()):
        names = tuple(dict.fromkeys(map(_base, row.names)))
        found[names] = found.get(names, 0) + math.prod(row.shape)
    return found


def _base(name: str) -> str:
    return name.partition(".")[0]


def _sorted(mapping: ResourceMapping) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple(sorted((name, entry) for name, entry in normalized(mapping).entries if entry))
