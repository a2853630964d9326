"""Internal. Trace a function for Explicit mesh axes, and make a report from the types of its arrays.

`axn.cost` calls `trace_cost`. On Explicit mesh axes, types contain the layouts of arrays, so neither a compiler nor
devices are needed. The module joins the others of this room.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
from jax.sharding import AbstractMesh

from ... import Mappings, ResourceMapping
from ...engine import Ledger, Machine, Tree, make_mesh
from ...errors import ShardingError, message
from ...report import ArrayLayout, unwrapped
from ..report.cost import Cost
from ..shared.arguments import Arguments, lay_out_arguments
from ..shared.dtypes import pack_bytes
from ..shared.events import Sending
from ..shared.names import NameTable
from ..shared.network import find_levels
from ..shared.overlap import assume_overlap
from ..shared.places import Place, Places
from ..shared.ring import Pairs, find_distance, is_sent_one_way
from ..shared.roofline import list_unrated, make_work, sum_by_place
from ..shared.rows import OUTSIDE, Collective, Kept, Memory
from ..shared.targets import Target
from .compilers import find_compiler
from .equations import Program, Variable, abbreviate, divide_shape
from .memory import Residual, find_peak, list_residuals, pair_donated
from .moves import count_group
from .reasons import find_reasons, name_dimensions
from .walk import Walk


class Trace(NamedTuple):
    """A traced function.

    Attributes:
        program: its equations.
        donated: which of its arguments are donated.
        ledger: the arrays that were sharded while it was traced.
    """

    program: Program
    donated: Sequence[bool]
    ledger: Ledger


def trace_cost(
    fn: Tree,
    mapping: ResourceMapping | Mappings | None,
    abstract: AbstractMesh,
    target: Target,
    args: tuple[Tree, ...],
    kwargs: dict[str, Tree],
    *,
    ledger: Ledger | None = None,
    is_explained: bool = True,
    is_ideal: bool = False,
) -> Cost:
    """Trace a function for a mesh that needs no devices, and count the costs of its equations.

    The arguments are the same as in `axn.cost`; `ledger` records the trace. With `is_explained`, a function that cannot
    be traced is also traced for Auto mesh axes, to find the reason. With `is_ideal`, no compiler throws products away;
    see `find_compiler`.

    Raises:
        ShardingError: if the function can be traced on Auto mesh axes alone.
    """
    call = unwrapped(fn, args, kwargs)
    explicit = make_mesh(dict(abstract.shape), "Explicit")
    auto = make_mesh(dict(abstract.shape), "Auto")
    given = lay_out_arguments(fn, mapping, explicit, args, kwargs)
    machine = Machine(target.platform, is_typed=True)
    try:
        traced = trace_program(given, explicit, ledger or Ledger(), machine)
    except Exception as error:
        if not is_explained:
            raise _make_error(call.name, error) from error
        given = lay_out_arguments(fn, mapping, auto, args, kwargs)
        # A function that also fails on Auto mesh axes has another mistake, which is raised here.
        trace_program(given, auto, Ledger(), machine)
        raise _make_error(call.name, error) from error
    return read_trace(traced, call.name, given, abstract, target, is_ideal=is_ideal)


def read_trace(
    traced: Trace,
    function: str,
    given: Arguments,
    abstract: AbstractMesh,
    target: Target,
    *,
    is_ideal: bool = False,
) -> Cost:
    """Count the costs of a traced function.

    Args:
        traced: the program.
        function: the name of the function.
        given: the arguments.
        abstract: the mesh.
        target: the device.
        is_ideal: as in `trace_cost`.
    """
    kinds, named = given.describe(traced.ledger, abstract)
    is_auto = not abstract.explicit_axes
    sizes = dict(abstract.shape)
    compiler = find_compiler(target.platform, is_ideal=is_ideal)
    walk = Walk(sizes, compiler=compiler, is_auto=is_auto)
    program = traced.program
    # The types of the arguments have their layouts.
    inputs = list(map(walk.find_value, program.invars))
    name = f"jit({function})"
    walk.run(program, inputs, name)
    # Whether there is a gradient is known only after the walk.
    sources = [work.source for work in walk.done] + [move.source for move in walk.sent]
    places = Places(sources)
    communication = _list_collectives(walk, places, named, target)
    counted = sum_by_place(walk.done, places.find, target)
    work = make_work(counted, communication, target)
    kept = [_make_kept(one, walk, named) for one in list_residuals(program, places.find, name)]
    return Cost(
        given.write_title(function),
        "traced",
        "",
        target,
        tuple(abstract.shape.items()),
        kinds,
        assume_overlap(communication, work),
        _count_memory(traced, walk, kinds, kept),
        work,
        traced.ledger.waiting,
        (*_write_notes(walk, places), *list_unrated(walk.done, target)),
        attention=places.list_choices(sources),
    )


def _count_memory(
    traced: Trace, walk: Walk, kinds: Mapping[str, tuple[ArrayLayout, ...]], kept: list[Kept]
) -> Memory:
    """Count the bytes that a device holds."""
    program = traced.program
    held = {
        kind: sum(pack_bytes(row.held, row.dtype or "") for row in arrays)
        for kind, arrays in kinds.items()
    }
    pairs = pair_donated(program.invars, traced.donated, program.outvars, walk)

    def count(of: Callable[[Variable], int]) -> tuple[int, int, int]:
        on_host = of == walk.count_host_bytes
        return (
            sum(map(of, program.outvars)),
            sum(of(result) for _, result in pairs),
            find_peak(program, walk, is_whole=True, on_host=on_host, replaced=pairs),
        )

    on_host = 0
    # Most programs keep nothing there, and another pass takes as long as the first one.
    if walk.uses_host:
        results, replaced, temporary = count(walk.count_host_bytes)
        on_host = sum(map(walk.count_host_bytes, program.invars)) + results - replaced + temporary
    return Memory(
        held["parameters"],
        held["optimizer"],
        held["data"],
        *count(walk.count_bytes),
        tuple(sorted((one for one in kept if one.nbytes), key=lambda one: -one.nbytes)),
        on_host,
    )


def _write_notes(walk: Walk, places: Places) -> tuple[str, ...]:
    """List the work that the numbers leave out, each kind with its layers."""
    found: dict[str, dict[str, None]] = {}
    for text, source in walk.unknown:
        found.setdefault(text, {})[places.find(source).layer or OUTSIDE] = None
    return tuple(f"{text}: {', '.join(layers)}" for text, layers in found.items())


def trace_program(given: Arguments, mesh: AbstractMesh, ledger: Ledger, machine: Machine) -> Trace:
    """Trace a function for a mesh."""
    # A mesh of the caller would stay current together with this one, so the empty mesh clears it first.
    with jax.sharding.use_abstract_mesh(AbstractMesh((), ())), given.enter(mesh, ledger, machine):
        traced = given.fn.trace(*given.args, **given.kwargs)
    donated = [info.donated for info in jax.tree.leaves(traced.args_info)]
    return Trace(traced.jaxpr.jaxpr, donated, ledger)


def _make_error(name: str, error: Exception) -> ShardingError:
    problem = (
        f"{name} can be traced on Auto mesh axes, but not on Explicit ones, whose types it needs"
    )
    first = str(error).strip().partition("\n")[0]
    hint = 'write depth="compiled", which needs devices, perhaps simulated ones'
    return ShardingError(message("cost", problem, f"{type(error).__name__}: {first}", hint=hint))


def _list_collectives(
    walk: Walk, places: Places, named: NameTable, target: Target
) -> tuple[Collective, ...]:
    # The permutes of a layer are taken to run at the same time. Other collectives have no pairs.
    permutes: dict[tuple[Place, int], set[Pairs]] = {}
    for one in walk.sent:
        permutes.setdefault((places.find(one.source), one.runs), set()).add(one.pairs)
    found: list[Collective] = []
    for one in walk.sent:
        move = one.move
        place = places.find(one.source)
        devices = count_group(move, dict(named.mesh))
        beside = permutes[place, one.runs]
        is_one_way = is_sent_one_way(one.pairs, devices, beside)
        nbytes, kind, runs = (
            pack_bytes(move.elements * one.itemsize, one.dtype),
            move.kind,
            one.runs,
        )
        levels = find_levels(move.mesh_axes, devices, dict(named.mesh), target)
        # A ring through several slices would wait for the slowest link in each step; in a ring of so many devices that
        # a part takes less time than a hop, each step would wait for the hop.
        least = levels[0].both_ways * levels[0].latency
        if one.is_windowed and len(levels) == 1 and nbytes >= devices * least:
            # The parts go around in both directions, with one more message each way than a ring needs.
            kind, nbytes, runs = "collective-permute", nbytes // devices, runs * (devices + 1)
        is_update = place.phase == "other" and places.has_gradient
        axes = find_reasons(move, named, place.layer, is_update=is_update)
        dtype = abbreviate(one.dtype)
        event = Sending(
            kind,
            move.mesh_axes,
            axes,
            place,
            runs,
            devices,
            nbytes,
            move.shape,
            dtype,
            is_one_way,
            distance=find_distance(one.pairs, devices),
        )
        found.append(event.estimate(target, dict(named.mesh)))
    return tuple(found)


def _make_kept(one: Residual, walk: Walk, named: NameTable) -> Kept:
    value = walk.find_value(one.variable)
    entries: Sequence[tuple[str, ...]] = value.entries
    shape = value.shape
    # A loop stacks residuals along its first dimension, which has no name.
    if one.several > 1:
        shape, entries = shape[1:], entries[1:]
    return Kept(
        one.layer,
        name_dimensions(shape, entries, named),
        divide_shape(shape, entries, dict(named.mesh)),
        value.dtype,
        one.several,
        walk.count_bytes(one.variable) or walk.count_host_bytes(one.variable),
        value.is_on_host,
    )
