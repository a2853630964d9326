"""Find the mapping of a function that takes the least time and fits."""

import dataclasses
import functools
import gc
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from jax.sharding import AbstractMesh, Mesh

from .. import AxisSelector, Mappings, ResourceMapping
from ..engine import MeshLike, Tree, type_text, without
from ..errors import OperandError, message
from ..report import abstract_mesh, divide_mesh
from .search.meshes import (
    INNER,
    check_limit,
    count_in_slice,
    iterate_finer,
    iterate_groups,
    iterate_meshes,
    share_starts,
)
from .shared.targets import Target

if TYPE_CHECKING:
    from .report.cost import Cost
    from .search.axes import Axes
    from .search.choice import Choice
    from .search.counter import Counter
    from .search.layers import EachLayer
    from .search.lessons import Budget
    from .search.progress import Progress
    from .search.result import Candidate, Plan
    from .search.search import Search
    from .search.step import Step
    from .search.tally import Tally
    from .search.verifier import Verifier

__all__ = ["plan"]

# The number of best starts from which the search moves on.
CLIMBED = 2
# The number of best starts with which other values of arguments are tried.
GIVEN = 2
# For each mapping that a search may trace, it looks at this many, since an estimate takes a tenth of the time. From the
# second number on, it looks at as many as it may trace.
CHEAP = 10
WIDE = 200
# The number of starts that include the choices of published rules.
STARTS = 12
# Other meshes begin with as many good choices.
PROVEN = 2
# This part of the budget is for meshes with one axis more, and this one for decisions layer by layer.
FINER = 0.125
DECIDING = 0.25
# With fewer mappings, finer meshes are left out.
LEAST = 4
# An estimate is at most 1 % above the traced time, and mappings within another 1 % are close.
HIGH = 0.02
# Python collects all objects after this many collections of newer ones: some 500 mappings of a small model.
RARELY = 1000


def plan(
    fn: Tree,
    mesh: MeshLike | Mapping[str, int] | int,
    *args: Tree,
    target: Target | str = "cpu",
    fixed: ResourceMapping | Mappings | None = None,
    limit: int = 200,
    verify: int = 3,
    progress: "Callable[[Progress], object] | None" = None,
    pipelined: tuple[AxisSelector, AxisSelector] | None = None,
    choices: Mapping[str, Sequence[Tree]] | None = None,
    slices: int = 1,
    measure: int = 0,
    **kwargs: Tree,
) -> "Plan":
    """Find the mappings of a training step that take the least time and fit, by `axn.cost` in its traced depth.

    Among mappings whose times differ by at most 1 %, the one that needs least memory is the best. The best few mappings
    are then compiled for the target, and the compiled costs decide between them. If programs for the target cannot be
    compiled here, the plan says why. Most mappings are only estimated from another trace.

    The search begins with mappings that experts write. Some put an axis of data on all mesh axes, with parameters
    sharded along all or one of them, or replicated. Some put axes of the layers, such as heads, the width of a
    perceptron or experts, on one or all mesh axes, and data on the others; between the layers, other data axes, such as
    positions, may be sharded (`if_free`). Some map two axes of data, and one maps nothing. From the best two of these,
    the search exchanges mesh axes, such as that of the layers and that of data, and then moves one axis after another
    to other mesh axes, for the parameters, the computation or both, as long as a change helps. If you give a number of
    devices, it then divides a mesh axis of the best mapping, and moves something to the new mesh axis `inner`. The
    search learns from mappings that are not legal, and from good mappings on other meshes. It is deterministic, and
    does not depend on the names of axes; it does not prove that its result is the best of all.

    Mesh axes need not divide sizes: as in `axn.partitioning.fit_mapping`, a mesh axis that is too long for an axis is
    split in two. One part divides the axis. Along the other part, the array is replicated, or a free axis beside it is
    divided, such as the groups of queries that share a key head. `split` of the plan says which mesh axes were split,
    and `mesh` has their parts.

    For choices of type `EachLayer`, the plan decides how many layers have which value, such as to recompute, keep or
    offload activations. It takes the counted mappings in the order of their least possible time with any decision, and
    stops when no other mapping can be faster. `gap` compares the best time with a lower bound for any mapping: the time
    in which the devices only share the operations of the step.

    Args:
        fn: the complete step: forward, backward and optimiser. The forward pass alone favours other mappings. Without
            `args`, a function that builds the step: it takes the chosen values, and returns the step and its arguments,
            which may also depend on the values.
        mesh: a mesh, as in `axn.cost`; or a number of devices. For a number, meshes with the axes `data` and `model`
            are compared. If nothing is fixed, `model` is not longer than `data`. If all links are alike, a part of a
            mesh axis may become `inner`, such as the groups that shard parameters, which are whole in each group.
        args: arguments, as in `axn.cost`.
        target: the device for which times and memory are estimated, as in `axn.cost`.
        fixed: entries that stay: a mapping of the computation, or `Mappings` to fix entries of parameters, too.
        limit: the largest number of mappings that the search traces, on all meshes together. Then the plan traces the
            best ones, until all that it shows are traced. A compiled one counts as 10. Estimates take a tenth of the
            time, so if `limit` is below 200, the search looks at ten times as many legal ones, but at no more than 200.
        verify: the number of the best mappings that are compiled. If none of them fits, the next ones are compiled
            until one does.
        progress: a function that gets a `Progress` after each mapping. By default, a terminal shows a bar.
        pipelined: the axis of layers that may become stages of a pipeline, and the axis that is cut into microbatches.
            The plan enters `axn.pipelined` itself. Without it, no pipeline is tried.
        choices: further keyword arguments of the function, each with the values to compare, such as numbers of
            microbatches, or `axn.partitioning.EachLayer` for checkpoint policies. The search begins with the first
            value. If values change the size of an axis of data, such as the batch, times per example are compared.
        slices: the number of TPU slices, or of NVLink domains, that the devices are in. If `mesh` is a number, slices
            become the first mesh axis, `slice`, as in `axn.partitioning.make_hybrid_mesh`.
        measure: the number of the best mappings to run on the devices of this machine, which must match the target. The
            fastest one is then the best. Only the shapes of arguments matter: their values are made up.
        kwargs: keyword arguments.

    Returns:
        The plan, which prints as a table. It has the best `mappings`, `mesh`, `microbatches` and `choices`, and the
        costs of the others.

    Raises:
        ShardingError: if the fixed entries do not fit.
        OperandError: if `fn` cannot be called, or gets no arguments and builds no step; for an unknown target; for
            choices without values; for a `pipelined` that names no two axes of the arguments; if the target does not
            say how slices are connected; if this machine has too few devices of the target for measuring.
        ArgumentError: if `limit` or the number of devices is not positive, or `verify` or `measure` is negative; if
            slices do not divide the devices.

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
    # Imported here, so that a program that asks for no plan does not wait for the search.
    from .compiled.devices import find_target
    from .search.lessons import Budget
    from .search.measuring import check_devices, measure_best
    from .search.result import Plan
    from .search.step import Step, parse_pipeline
    from .search.tally import Tally
    from .search.verifier import PRICE

    if not callable(fn):
        raise OperandError(message("plan", f"it takes a function or a module, not {type_text(fn)}"))
    known = find_target(target, "plan")
    if slices != 1:
        known = target = known.resize_domains(count_in_slice(mesh, slices))
    check_devices(measure, mesh, known)
    step = Step(fn, args, kwargs, target, choices or {}, parse_pipeline(pipelined))
    # If all links are alike, meshes with swapped sizes are the same.
    is_symmetric = not fixed and not known.links
    meshes = list(iterate_meshes(mesh, is_symmetric=is_symmetric, slices=slices))
    check_limit(limit, len(meshes))
    # Only a mesh of the caller may have devices.
    first = meshes[0] if isinstance(mesh, int) else mesh
    verifier = _make_verifier(first, target, limit, verify)
    traces = max(len(meshes), limit - verifier.reserve)
    budget = Budget(max(traces, min(WIDE, CHEAP * limit)), traces)
    tally = Tally(progress, budget.left + verifier.reserve)
    # A target may have links for mesh axes by name; a new mesh axis would have none.
    divides = isinstance(mesh, int) and not known.links
    counters = _make_counters(step, meshes, tally, budget)
    with _collect_rarely():
        searches = _search(counters, fixed, budget, step.find_stacks(), divides=divides)
        ranked = _settle(searches, budget)
    tried = sum(len(search.scores) for _, search in searches)

    def compile_candidate(one: "Candidate") -> "Cost":
        tally.add("compiling", PRICE, math.inf)
        divided = step.link_parts(one.split)
        return divided.cost(
            one.mappings, _find_mesh(mesh, one), one.choices, one.microbatches, "compiled"
        )

    verified, text = verifier.run(ranked, traces - budget.traces, compile_candidate)
    best, *others = measure_best(
        verified,
        measure,
        lambda one: step.measure(
            one.mappings, _find_mesh(mesh, one), one.choices, one.microbatches
        ),
    )
    tally.close()
    # A choice without a candidate was not legal.
    numbers = len(ranked), tried - len(ranked), not budget.ran_out
    return Plan(best, tuple(others), *numbers, text, _find_bound(step, searches, best))


def _make_counters(
    step: "Step", meshes: Sequence[dict[str, int]], tally: "Tally", budget: "Budget"
) -> "list[Counter]":
    """Make a counter for each mesh. They share their estimates, since the devices are the same."""
    from .search.counter import Counter
    from .search.estimates import Estimates

    estimates = Estimates()
    return [Counter(step, sizes, tally, estimates, budget) for sizes in meshes]


def _settle(searches: "Sequence[tuple[Counter, Search]]", budget: "Budget") -> "list[Candidate]":
    """Trace the best candidates that are only estimated; return the candidates of all meshes, the best one first."""
    from .search.counter import rank_candidate
    from .search.result import SHOWN
    from .search.step import find_pace
    from .search.verifier import sort_near

    while True:
        owners: dict[int, tuple[Counter, Choice]] = {}
        found: list[Candidate] = []
        for counting, _ in searches:
            found += counting.candidates.values()
            owners |= {id(one): (counting, choice) for choice, one in counting.candidates.items()}
        # Among equals, the first mesh wins.
        ranked = sort_near(sorted(found, key=rank_candidate))
        # Shown ones, and, while traces are left, those that may be as fast as the best one with less memory.
        best = ranked[0]
        limit = (1 + HIGH) * find_pace(best.cost)
        for at, one in enumerate(ranked):
            is_saving = (
                one.cost.memory.peak < best.cost.memory.peak and find_pace(one.cost) <= limit
            )
            if one.is_estimated and (at <= SHOWN or (is_saving and budget.take_trace())):
                owner, choice = owners[id(one)]
                owner.trace(choice)
                for counting, _ in searches:
                    counting.correct()
                break
        else:
            return ranked


def _find_mesh(
    mesh: MeshLike | Mapping[str, int] | int, one: "Candidate"
) -> MeshLike | Mapping[str, int]:
    """Return the mesh of a candidate, with devices if the given mesh has devices."""
    if isinstance(mesh, Mesh | AbstractMesh):
        return divide_mesh(mesh, one.split)
    return dict(one.mesh)


def _search(
    counters: "Sequence[Counter]",
    fixed: ResourceMapping | Mappings | None,
    budget: "Budget",
    stacks: "Mapping[int, EachLayer]",
    *,
    divides: bool,
) -> "list[tuple[Counter, Search]]":
    """Search on all meshes, then on finer meshes if mesh axes may be divided, and then decide layer by layer."""
    held = budget.hold(DECIDING if stacks else 0)
    finer = round(FINER * divides * budget.left)
    if finer < LEAST:
        divides, finer = False, 0
    searches = _begin(counters, fixed, budget)
    _climb(searches, budget, finer)
    if divides:
        searches += _group(searches, budget)
        searches += _divide(searches, budget)
    _climb_on(searches, budget)
    budget.give(held)
    _decide(stacks, searches)
    return searches


@contextmanager
def _collect_rarely() -> Generator[None]:
    """Make Python's full garbage collections rare, inside a `with` block.

    JAX keeps traces in its caches, so full collections visit the same live objects again and again, which takes a sixth
    of the time of a search.
    """
    young, middle, old = gc.get_threshold()
    gc.set_threshold(young, middle, max(old, RARELY))
    try:
        yield
    finally:
        gc.set_threshold(young, middle, old)


def _begin(
    counters: "Sequence[Counter]", fixed: ResourceMapping | Mappings | None, budget: "Budget"
) -> "list[tuple[Counter, Search]]":
    """Count the choices that experts begin with, on all meshes."""
    from .search.lessons import Lessons
    from .search.search import Search

    # The searches on all meshes share their budget and their lessons.
    share, lessons = budget.left, Lessons()
    found: list[tuple[Counter, Search]] = []
    ranked: tuple[Mapping[str, frozenset[int]], Mapping[str, float]] = {}, {}
    for counting in counters:
        axes = counting.find_axes(fixed)
        if not found:
            ranked = _rank_data(counting, axes)
        axes = dataclasses.replace(axes, data=ranked[0], paces=ranked[1])
        found.append((counting, Search(axes, counting.score, budget, lessons)))
    # The starts use half of the budget, to leave the rest for changes; they use more of a small budget.
    starts = max(share // 2, min(3 * share // 4, STARTS))
    for at, several in share_starts(starts, len(found)).items():
        proven = found[len(found) // 2][1].list_best()[:PROVEN]
        whole = found[0][1].is_replicated
        found[at][1].begin(several, is_first=not at, proven=proven, is_replicated=whole)
    return found


def _rank_data(
    counting: "Counter", axes: "Axes"
) -> tuple[Mapping[str, frozenset[int]], Mapping[str, float]]:
    """Rank the axes of data by a search on two devices, because two devices can divide almost any axis.

    Returns:
        The axes with their sizes, and their times.
    """
    from .search.lessons import Budget
    from .search.search import Search

    longest = max(axes.mesh, key=lambda axis: axes.mesh[axis], default="")
    mesh = {axis: 2 if axis == longest else 1 for axis in axes.mesh}
    small = counting.move_to(mesh)
    # These mappings are not compared with others, so they do not count.
    small.is_counted = False
    search = Search(dataclasses.replace(axes, mesh=mesh), small.score, Budget(len(axes.data)))
    return search.rank_data(), search.find_paces()


def _make_verifier(mesh: object, target: Target | str, limit: int, wanted: int) -> "Verifier":
    """Make the verifier, which knows whether programs for the target can be compiled here."""
    from .compiled.devices import find_obstacle, find_target
    from .search.verifier import Verifier

    why = "verify=0"
    if wanted:
        why = find_obstacle(mesh, abstract_mesh(mesh, "plan"), find_target(target))
    return Verifier(wanted, limit, why)


def _climb(searches: "Sequence[tuple[Counter, Search]]", budget: "Budget", reserved: int) -> None:
    """Search from the best starts on all meshes, with a pipeline and without.

    Args:
        searches: the searches on all meshes.
        budget: the number of choices that may be counted.
        reserved: the number of choices that are left for later.
    """
    # The values of keyword arguments may change which start is the best.
    for at, choice in _find_best(searches, GIVEN):
        searches[at][1].give(choice)
    starts = _find_best(searches, 1)
    if len(starts) == 1:
        starts = _find_best(searches, CLIMBED)
    shortest = min(range(len(searches)), key=lambda at: searches[at][1].shortest)
    for number, (at, choice) in enumerate(starts):
        if searches[at][1].is_alone(choice):
            # It is the same on all meshes, and differs in what comes next.
            at = shortest
            searches[at][1].look_at(choice)
        # The first of two starts has two thirds of the rest: it is more often the better one.
        left, others = max(0, budget.left - reserved), len(starts) - number - 1
        searches[at][1].climb(choice, left - left // (others + 2) if others else left)


def _climb_on(searches: "Sequence[tuple[Counter, Search]]", budget: "Budget") -> None:
    """Spend the rest of the budget on changes of further good choices, the best one first."""
    while budget.left >= 1:
        found = [
            (search.look_up(choice), at, choice)
            for at, (_, search) in enumerate(searches)
            for choice in search.list_best()
            if choice not in search.climbed
        ]
        if not found:
            return
        _, at, choice = min(found, key=lambda one: one[:2])
        searches[at][1].climb(choice, budget.left)


def _group(
    searches: "Sequence[tuple[Counter, Search]]", budget: "Budget"
) -> "list[tuple[Counter, Search]]":
    """Shard the parameters of the best choice only among neighbours along a mesh axis, for groups of all sizes."""
    at, choice = _find_best(searches, 1)[0]
    counting, search = searches[at]
    found: list[tuple[Counter, Search]] = []
    for axis in without(counting.mesh, search.fixed_axes):
        divided = choice.divide(axis, INNER)
        for sizes in iterate_groups(counting.mesh, axis):
            grouped = divided.shard_groups(axis, INNER, tuple(sizes))
            if grouped != divided:
                own = counting.move_to(sizes)
                inside = search.move_to(sizes, own.score)
                inside.look_at(grouped)
                found.append((own, inside))
    return found


def _divide(
    searches: "Sequence[tuple[Counter, Search]]", budget: "Budget"
) -> "list[tuple[Counter, Search]]":
    """Divide a mesh axis of the best choices into two, and move something to the new one."""
    found: list[tuple[Counter, Search]] = []
    # A mesh of one axis gives a mesh of two, which was searched before.
    flat = [one for one in searches if min(one[0].mesh.values()) > 1]
    starts = _find_best(flat, 1)
    for number, (at, choice) in enumerate(starts):
        counting, search = flat[at]
        meshes = list(iterate_finer(counting.mesh, search.fixed_axes))
        end = budget.left - budget.left // (len(starts) - number)
        for tried, (axis, sizes) in enumerate(meshes):
            own = counting.move_to(sizes)
            divided = search.move_to(sizes, own.score)
            limit = (budget.left - end) // (len(meshes) - tried)
            divided.divide(search, choice, axis, INNER, limit)
            found.append((own, divided))
    return found


def _decide(
    stacks: "Mapping[int, EachLayer]", searches: "Sequence[tuple[Counter, Search]]"
) -> None:
    """Decide layer by layer, for all choices that were counted."""
    from .search.decisions import Decisions

    if not stacks:
        return
    decisions = Decisions(stacks)
    for counting, search in searches:
        known = {choice: one.cost for choice, one in counting.candidates.items()}
        decisions.add(known, functools.partial(counting.count_in, search))
    decisions.run()


def _find_bound(
    step: "Step", searches: "Sequence[tuple[Counter, Search]]", best: "Candidate"
) -> float:
    """Return a lower bound of the seconds of all mappings, for any of the counted choices."""
    from .search.step import count_examples

    # Decisions about layers change what is recomputed, which does not count.
    stacks = step.find_stacks()
    givens: dict[tuple[int, ...], None] = {}
    for counting, _ in searches:
        for choice in counting.candidates:
            own = [0 if at in stacks else number for at, number in enumerate(choice.given)]
            givens[tuple(own)] = None
    devices = math.prod(size for _, size in best.mesh)
    chosen = [step.choose(given) for given in givens]
    with _collect_rarely():
        return step.find_bound(devices, chosen, count_examples(best.cost))


def _find_best(
    searches: "Sequence[tuple[Counter, Search]]", count: int
) -> "list[tuple[int, Choice]]":
    """Return the best choices so far, each with the number of its search.

    Args:
        searches: the searches on all meshes.
        count: the number of choices with a pipeline, and also of choices without one.
    """
    found: list[tuple[tuple[float, ...], int, Choice]] = []
    for at, (_, search) in enumerate(searches):
        found += [(search.look_up(choice), at, choice) for choice in search.list_best()]
    found.sort(key=lambda one: one[:2])
    alone = [one for one in found if one[2].microbatches is None]
    piped = [one for one in found if one[2].microbatches is not None]
    kept = sorted((*alone[:count], *piped[:count]), key=lambda one: one[:2])
    return [one[1:] for one in kept]
