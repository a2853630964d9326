"""Internal. The computation that overlaps with communication, by the order of instructions in a compiled program.

The reader calls it for programs of the target's own compiler, whose order is the schedule. The text does not say how
long an instruction takes; the roofline of the target gives an estimate.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

from ..shared.overlap import Window
from ..shared.places import Place
from ..shared.ring import Pairs
from ..shared.rows import OUTSIDE
from ..shared.targets import Target
from .program import KINDS, Instruction, Program, Transfer, find_called
from .work import count_amount

# A computation, and an instruction in it.
Key: TypeAlias = tuple[str, str]
# These run computations whose instructions take time by themselves.
_RUNNING = ("call", "conditional", "while")


class _Span(NamedTuple):
    """The instructions of a computation that run during a transfer, by the positions of the first and the last one."""

    computation: str
    first: int
    last: int


def find_windows(
    program: Program, place_of: Callable[[str], Place], target: Target
) -> Mapping[Key, Window]:
    """Return the computation of a device while collectives are under way.

    The compilers for TPU and GPU split a collective into a start and an end; the compiler for TPU also lets fusions
    continue it while they compute something else. If several collectives are under way, they share the computation.

    Args:
        program: the program, whose instructions are in the order in which they run.
        place_of: returns the place of an operation.
        target: the device for which times are estimated.

    Returns:
        The window of each collective that does not block.
    """
    spans = [*_find_pairs(program), *_find_chains(program)]
    # The number of collectives that are under way during each instruction.
    sharing: dict[tuple[str, int], int] = {}
    for span, _ in spans:
        for place in range(span.first, span.last + 1):
            at = span.computation, place
            sharing[at] = sharing.get(at, 0) + 1
    found: dict[Key, Window] = {}
    for span, keys in spans:
        ops = list(program.computations[span.computation].values())
        layers: dict[str, float] = {}
        for place in range(span.first, span.last + 1):
            op = ops[place]
            seconds = _estimate_seconds(program, span.computation, op, target)
            if seconds:
                layer = place_of(op.source).layer or OUTSIDE
                seconds /= sharing[span.computation, place]
                layers[layer] = layers.get(layer, 0.0) + seconds
        order = tuple(sorted(layers, key=lambda layer: -layers[layer]))
        for key in keys:
            found[key] = Window(sum(layers.values()), order)
    return found


def estimate_operations(program: Program, target: Target) -> float:
    """Return the time for all operations of a program in sequence, without collectives."""
    total = 0.0
    for op in program.computations[program.entry].values():
        total += _estimate_seconds(program, program.entry, op, target)
    return total


def find_concurrent(program: Program, transfers: Iterable[Transfer]) -> Mapping[Key, set[Pairs]]:
    """Return, for each permute, all permutes that are under way at the same time, including itself.

    A permute that the compiler did not split counts as under way while its computation runs.
    """
    spans: dict[Key, _Span] = {}
    for span, keys in _find_pairs(program):
        spans.update(dict.fromkeys(keys, span))
    permutes: list[tuple[Key, _Span, Pairs]] = []
    for transfer in transfers:
        if transfer.kind != "collective-permute":
            continue
        key = transfer.computation, transfer.instruction.name
        whole = _Span(transfer.computation, 0, len(program.computations[transfer.computation]))
        permutes.append((key, spans.get(key, whole), transfer.pairs))
    # Permutes are few, so each is compared with each.
    found: dict[Key, set[Pairs]] = {}
    for key, span, _ in permutes:
        found[key] = set()
        for _, other, pairs in permutes:
            if _has_common_time(span, other):
                found[key].add(pairs)
    return found


def _has_common_time(one: _Span, other: _Span) -> bool:
    """Return whether two spans overlap; their starts and ends count as parts of them."""
    is_same = one.computation == other.computation
    return is_same and max(one.first, other.first) <= min(one.last, other.last) + 1


def _find_pairs(program: Program) -> list[tuple[_Span, list[Key]]]:
    """List the spans between `-start` and `-done` of a collective, with the collectives that they contain."""
    found: list[tuple[_Span, list[Key]]] = []
    for computation, ops in program.computations.items():
        places = {name: place for place, name in enumerate(ops)}
        for name, op in ops.items():
            if not op.opcode.endswith("-done") or not op.operands or not program.runs[computation]:
                continue
            start = _find_start(op, ops)
            kind = start.opcode.removesuffix("-start")
            keys: list[Key] = []
            if kind in KINDS:
                keys.append((computation, start.name))
            elif kind == "async":
                # An asynchronous call may contain several collectives.
                for called in find_called(start):
                    keys += _find_collectives(program, called)
            if keys:
                span = _Span(computation, places[start.name] + 1, places[name] - 1)
                found.append((span, keys))
    return found


def _find_start(done: Instruction, ops: Mapping[str, Instruction]) -> Instruction:
    """Return the start instruction that an end instruction belongs to."""
    start = ops[done.operands[0]]
    # An asynchronous operation may have updates between its start and its end.
    while start.opcode.endswith("-update"):
        start = ops[start.operands[0]]
    return start


def _find_collectives(program: Program, computation: str) -> list[Key]:
    return [
        (computation, op.name)
        for op in program.computations[computation].values()
        if op.opcode in KINDS
    ]


def _find_chains(program: Program) -> list[tuple[_Span, list[Key]]]:
    """List the spans from the first to the last fusion that takes part in the same collective."""
    places: dict[tuple[str, str], list[tuple[str, int]]] = {}
    members: dict[tuple[str, str], list[Key]] = {}
    for computation in program.fused:
        for op in program.computations[computation].values():
            channel = re.search(r"channel_id=(\d+)", op.line)
            chain = re.search(r'chain_id="(\d+)"', op.line)
            if op.opcode not in KINDS or chain is None or channel is None:
                continue
            key = channel[1], chain[1]
            members.setdefault(key, []).append((computation, op.name))
            places.setdefault(key, []).append(_find_caller(program, computation))
    found: list[tuple[_Span, list[Key]]] = []
    for key, where in places.items():
        (computation, _), *_ = where
        # A chain may reach into another computation; the part in the first one counts.
        own = [place for at, place in where if at == computation]
        found.append((_Span(computation, min(own), max(own)), members[key]))
    return found


def _find_caller(program: Program, computation: str) -> tuple[str, int]:
    """Return the computation and the place of the instruction that runs a fusion."""
    # A fusion may be inside of another fusion.
    here, op = program.callers[computation][0]
    while here in program.fused:
        here, op = program.callers[here][0]
    return here, list(program.computations[here]).index(op.name)


def _estimate_seconds(program: Program, computation: str, op: Instruction, target: Target) -> float:
    """Return the time of one run of an instruction: for its operations or its memory accesses, whichever is longer.

    Collectives do neither. An operation that is only started, such as a copy, runs in parallel to the following ones.
    """
    if op.opcode in KINDS or op.opcode.endswith("-start"):
        return 0.0
    inner = find_called(op)
    if op.opcode in _RUNNING:
        total = 0.0
        for called in inner:
            # A loop runs its body several times for each run of its own.
            runs = program.runs[called] / program.runs[computation]
            for own in program.computations[called].values():
                total += runs * _estimate_seconds(program, called, own, target)
        return total
    # Reading overlaps with computing, so the longer one counts.
    moving = count_amount(program, computation, op).nbytes / target.memory_bandwidth
    return max(_estimate_computing(program, computation, op, target), moving)


def _estimate_computing(
    program: Program, computation: str, op: Instruction, target: Target
) -> float:
    """Return the time for the operations of one run of an instruction, including those inside of a fusion."""
    own = count_amount(program, computation, op)
    seconds = own.flops / target.flops_of(own.dtype) if own.flops else 0.0
    if op.opcode == "fusion":
        for called in find_called(op):
            for inner in program.computations[called].values():
                seconds += _estimate_computing(program, called, inner, target)
    return seconds
