"""The cost of a program that a compiler has made for the mesh."""

from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import AbstractMesh

from ... import Mappings, ResourceMapping
from ...engine import Ledger, Tree
from ...errors import OperandError, message
from ...report import ArrayLayout, unwrapped
from ..report.cost import Cost
from ..shared.arguments import arguments_of
from ..shared.overlap import assume_overlap
from ..shared.roofline import counted_by_place, work_of
from ..shared.rows import OUTSIDE, Memory
from ..shared.targets import Target
from .attribution import Attribution
from .devices import is_of, mesh_of_devices
from .program import Program, instructions, trip_count
from .schedule import seconds_of_operations
from .work import amounts

# How many elements share a byte of an array.
_SHARING = {"int4": 2, "uint4": 2, "float4_e2m1fn": 2, "int2": 4, "uint2": 4}


def compiled_cost(
    fn: Tree,
    mapping: ResourceMapping | Mappings | None,
    mesh: object,
    abstract: AbstractMesh,
    target: Target,
    args: tuple[Tree, ...],
    kwargs: dict[str, Tree],
) -> Cost:
    """Compile a function for a mesh, and read the program; see `axn.cost`."""
    devices = mesh_of_devices(mesh, abstract, target)
    call = unwrapped(fn, args, kwargs)
    given = arguments_of(fn, mapping, devices, args, kwargs)
    ledger = Ledger()
    with given.enter(devices, ledger):
        made = compiled(given.fn.lower(*given.args, **given.kwargs), target)
    kinds, named = given.describe(ledger, abstract)
    # The length of a loop that nobody knows is taken to be one.
    program = Program(made.as_text() or "", unknown_trip_count=1)
    attribution = Attribution(program, named, target)
    communication = attribution.collectives()
    counted = counted_by_place(amounts(program), attribution.places.find, target)
    work = work_of(counted, communication, target)
    device = devices.devices.flat[0]
    operations: float | None = None
    if is_of(device, target):
        operations = seconds_of_operations(program, target)
    else:  # whose schedule says nothing about the target
        communication = assume_overlap(communication, work)
    return Cost(
        given.write_title(call.name),
        "compiled",
        str(device.device_kind),
        target,
        tuple(abstract.shape.items()),
        kinds,
        communication,
        _memory(kinds, made.memory_analysis()),
        work,
        ledger.waiting,
        _notes(program, attribution),
        operations=operations,
    )


def compiled(lowered: jax.stages.Lowered, target: Target) -> jax.stages.Compiled:
    """Compile a program.

    Raises:
        OperandError: if it needs more memory than the devices have that it is compiled for.
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


def _notes(program: Program, attribution: Attribution) -> tuple[str, ...]:
    """Say which loops count as one run."""
    places: dict[str, str] = {}
    for computation, op in instructions(program):
        if op.opcode != "while":
            continue
        if trip_count(op, computation, program.computations) is None:
            places[op.name] = attribution.places.find(op.source).layer or OUTSIDE
    if not places:
        return ()
    where = ", ".join(dict.fromkeys(places.values()))
    return (f"loops whose length the program does not say count as one iteration: {where}",)


def _memory(kinds: Mapping[str, tuple[ArrayLayout, ...]], analysis: Any) -> Memory:
    """Read what a device holds from what the compiler says."""
    held: dict[str, int] = {}
    for kind, rows in kinds.items():
        held[kind] = sum(map(_held, rows))
    # The program may not take all arguments, which are there all the same, and its own layouts may have padding.
    taken = analysis.argument_size_in_bytes - held["parameters"] - held["optimizer"]
    data = max(held["data"], taken)
    return Memory(
        held["parameters"],
        held["optimizer"],
        data,
        analysis.output_size_in_bytes,
        analysis.alias_size_in_bytes,
        analysis.temp_size_in_bytes,
    )


def _held(row: ArrayLayout) -> int:
    """Return the bytes of an argument on one device, in which a compiler packs what is narrower than a byte."""
    return -(-(row.nbytes_per_device or 0) // _SHARING.get(row.dtype or "", 1))
