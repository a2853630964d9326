"""Internal. Compile a function for a mesh, and make a report of the program.

`axn.cost` calls `compile_cost`. The module joins the others of this room; it must not read the text of a program
itself.
"""

from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import AbstractMesh

from ... import Mappings, ResourceMapping
from ...engine import Ledger, Machine, Tree, find_kernel_call
from ...errors import OperandError, message
from ...report import ArrayLayout, unwrapped
from ..report.cost import Cost
from ..shared.arguments import lay_out_arguments
from ..shared.dtypes import pack_bytes
from ..shared.events import write_uncounted
from ..shared.overlap import assume_overlap
from ..shared.roofline import list_unrated, make_work, sum_by_place
from ..shared.rows import OUTSIDE, Memory
from ..shared.targets import Target
from .attribution import Attribution
from .devices import has_compiler_of, make_device_mesh
from .program import Program, count_iterations, iterate_instructions
from .schedule import estimate_operations
from .work import iterate_amounts

# Instructions that call a library, or stand for a call.
_LIBRARY = ("cholesky", "custom-call", "fft", "triangular-solve")


def compile_cost(
    fn: Tree,
    mapping: ResourceMapping | Mappings | None,
    mesh: object,
    abstract: AbstractMesh,
    target: Target,
    args: tuple[Tree, ...],
    kwargs: dict[str, Tree],
) -> Cost:
    """Compile a function for a mesh, and count the costs of the program.

    The arguments are the same as in `axn.cost`; `abstract` is the mesh without its devices.

    Raises:
        OperandError: if there are too few devices; if the program does not fit into their memory.
    """
    devices = make_device_mesh(mesh, abstract, target)
    call = unwrapped(fn, args, kwargs)
    given = lay_out_arguments(fn, mapping, devices, args, kwargs)
    ledger = Ledger()
    device = devices.devices.flat[0]
    machine = Machine(target.platform, has_compiler_of(device, target))
    with given.enter(devices, ledger, machine):
        made = compile_program(given.fn.lower(*given.args, **given.kwargs), target)
    kinds, named = given.describe(ledger, abstract)
    # A loop of unknown length counts as one iteration, and a note says so.
    program = Program(made.as_text() or "", unknown_trip_count=1)
    attribution = Attribution(program, named, target)
    communication = attribution.find_collectives()
    amounts = list(iterate_amounts(program))
    places = attribution.places
    counted = sum_by_place(amounts, places.find, target)
    work = make_work(counted, communication, target)
    operations: float | None = None
    if machine.has_compiler:
        operations = estimate_operations(program, target)
    else:
        # The schedule of another compiler says nothing about the target.
        communication = assume_overlap(communication, work)
    return Cost(
        given.write_title(call.name),
        "compiled",
        str(device.device_kind),
        target,
        tuple(abstract.shape.items()),
        kinds,
        communication,
        _count_memory(kinds, made.memory_analysis()),
        work,
        ledger.waiting,
        (*_write_notes(program, attribution), *list_unrated(amounts, target)),
        operations=operations,
        attention=places.list_choices(amount.source for amount in amounts),
    )


def compile_program(lowered: jax.stages.Lowered, target: Target) -> jax.stages.Compiled:
    """Compile a program.

    Raises:
        OperandError: if it needs more memory than its devices have.
    """
    try:
        return lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        text = str(error)
        if "RESOURCE_EXHAUSTED" not in text:
            raise
        problem = f"the program does not fit into the memory of {target.name}"
        fact = text.splitlines()[0]
        hint = (
            "pass a mesh of simulated devices of this machine: then the report says what to change"
        )
        raise OperandError(message("cost", problem, fact, hint=hint)) from error


def _write_notes(program: Program, attribution: Attribution) -> tuple[str, ...]:
    """List what the numbers leave out or count too often, each kind with its layers."""
    found: dict[str, dict[str, None]] = {}
    for computation, op in iterate_instructions(program):
        text = ""
        if op.opcode == "while":
            if count_iterations(op, computation, program.computations) is None:
                text = "loops whose length the program does not say count as one iteration"
        elif op.opcode == "conditional" and op.source.endswith("cond"):
            text = "all branches of a condition count, of which one runs"
        elif op.opcode in _LIBRARY and find_kernel_call(op.source) is None:
            text = write_uncounted(op.source.rpartition("/")[2])
        if text:
            found.setdefault(text, {})[attribution.places.find(op.source).layer or OUTSIDE] = None
    return tuple(f"{text}: {', '.join(layers)}" for text, layers in found.items())


def _count_memory(kinds: Mapping[str, tuple[ArrayLayout, ...]], analysis: Any) -> Memory:
    """Return the bytes that a device holds, from the analysis of the compiler."""
    held = {
        kind: sum(pack_bytes(row.held, row.dtype or "") for row in rows)
        for kind, rows in kinds.items()
    }
    on_host = (
        analysis.host_argument_size_in_bytes
        + analysis.host_temp_size_in_bytes
        + analysis.host_output_size_in_bytes
        - analysis.host_alias_size_in_bytes
    )
    # Arguments that the program does not need are in memory nevertheless; layouts of its own may have padding.
    taken = analysis.argument_size_in_bytes - held["parameters"] - held["optimizer"]
    data = max(held["data"], taken)
    return Memory(
        held["parameters"],
        held["optimizer"],
        data,
        analysis.output_size_in_bytes,
        analysis.alias_size_in_bytes,
        analysis.temp_size_in_bytes,
        host=on_host,
    )
