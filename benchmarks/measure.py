"""Measure fairly: interleaved timings, and what a compiled program computes, reads and sends.

Nothing here knows about a model or a library, so that every benchmark counts in the same way.
"""

from __future__ import annotations

import gc
import math
import random
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "collective-permute", "all-to-all")


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds per call of one candidate, one number per round."""

    rounds: tuple[float, ...]

    @property
    def minimum(self) -> float:
        return min(self.rounds)

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)


def interleaved(
    candidates: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    calls: int,
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Time every candidate once per round, in random order, and return the seconds per call.

    A machine that others use is slow for seconds at a time. Candidates that take turns within a round meet
    the same weather, so that ratios hold where times do not. Each candidate runs once beforehand, to compile.

    Args:
        candidates: functions without arguments, by label. A function that donates its state must return
            something that stays alive (its loss, say): all results of a measurement are waited for together.
        rounds: number of measurements per candidate.
        calls: calls per measurement; raise it until a measurement takes about a millisecond.
        seed: fixes the random orders.
        clock: what is read; `time.process_time` counts what a process computes, on all its threads, and not how long it
            waits for others.
    """
    if rounds < 1 or calls < 1:
        raise ValueError(f"rounds and calls must be at least 1, got rounds={rounds} and calls={calls}")
    for call in candidates.values():
        jax.block_until_ready(call())
    shuffle = random.Random(seed).shuffle
    order = list(candidates)
    seconds: dict[str, list[float]] = {label: [] for label in order}
    collecting = gc.isenabled()
    # A collection inside a measurement would charge one candidate for the garbage of all.
    gc.disable()
    gc.collect()
    # The collections in between would otherwise look through all of JAX each time, for longer than a measurement.
    gc.freeze()
    try:
        for _ in range(rounds):
            shuffle(order)
            for label in order:
                call = candidates[label]
                gc.collect()
                start = clock()
                results = [call() for _ in range(calls)]
                spent = clock() - start
                # To take results apart is no part of the calls; to free them is.
                arrays = jax.tree.leaves(results)
                start = clock()
                # Every result is kept and waited for: independent calls may finish out of order.
                jax.block_until_ready(arrays)
                results.clear()
                seconds[label].append((spent + clock() - start) / calls)
    finally:
        gc.unfreeze()
        if collecting:
            gc.enable()
    return {label: Timing(tuple(seconds[label])) for label in candidates}


def ratio_of_minima(a: Timing, b: Timing) -> float:
    """Return how many times as long `a` takes as `b`, each at its fastest."""
    return a.minimum / b.minimum


def median_ratio(a: Timing, b: Timing) -> float:
    """Return the median over rounds of `a`'s time divided by `b`'s time in the same round."""
    return statistics.median(x / y for x, y in zip(a.rounds, b.rounds, strict=True))


class Cost(NamedTuple):
    """What XLA estimates for one device and one execution."""

    flops: float
    bytes: float


def flops_bytes(compiled: jax.stages.Compiled) -> Cost:
    """Return the FLOPs and the bytes accessed that XLA's cost analysis reports.

    XLA counts the body of a loop once, whatever its trip count: compare scanned programs only with scanned
    programs, or unroll the layers.
    """
    analysis = compiled.cost_analysis()
    if not analysis:
        raise ValueError("this backend's compiler gives no cost analysis; compile for the CPU instead")
    return Cost(float(analysis["flops"]), float(analysis["bytes accessed"]))


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective operation of a compiled program.

    Attributes:
        kind: one of `KINDS`.
        bytes: size of its operands on one device, for one execution.
        count: number of executions in one run of the program, trip counts of loops included.
        name: the operation of the source that it belongs to (`op_name` in XLA's metadata), or else its name
            in the HLO.
        group: number of devices that communicate with each other.
    """

    kind: str
    bytes: int
    count: int
    name: str
    group: int


@dataclass(frozen=True, slots=True)
class Total:
    """All executions of one kind of collective: operands and ring traffic of one device, in 10^6 bytes."""

    count: int
    megabytes: float
    wire_megabytes: float


class _Instruction(NamedTuple):
    name: str
    type: str
    opcode: str
    operands: tuple[str, ...]
    line: str


_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.+?) ([a-z][\w\-]*)\((.*)$")
_CALLED = re.compile(r"\b(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_TRIP_COUNT = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_ARRAY = re.compile(r"\b([a-z]+)(\d*)\w*\[([\d,]*)\]")


def collectives(compiled: jax.stages.Compiled | str, *, unknown_trip_count: int | None = None) -> list[Collective]:
    """List the collectives of a compiled program, or of its HLO text, with the number of times each one runs.

    Every branch of a conditional counts as if it ran. Tested on the programs of XLA's compilers for CPU and TPU. The
    latter repeats a collective in each fusion that takes a part in it: those of one channel and chain count once. What
    it calls all-reduce-scatter counts as reduce-scatter.

    Args:
        compiled: `jax.jit(f).lower(...).compile()`, or its `as_text()`.
        unknown_trip_count: what to assume for a loop whose length XLA does not know.

    Raises:
        ValueError: where a collective is inside a loop of unknown length and `unknown_trip_count` is None.
    """
    text = compiled if isinstance(compiled, str) else compiled.as_text() or ""
    entry, computations = _parse(text)
    header = text.split("\n", 1)[0]
    devices = math.prod(int(n) for n in re.findall(r"\b(?:num_partitions|replica_count)=(\d+)", header))

    runs: dict[str, int] = defaultdict(int)
    fused: set[str] = set()
    unknown: dict[str, str] = {}  # computation -> the loop of unknown length that runs it

    def visit(computation: str, count: int, loop: str | None) -> None:
        runs[computation] += count
        if loop:
            unknown[computation] = loop
        for op in computations[computation]:
            times, inside = count, loop
            if op.opcode == "while":
                known = _trip_count(op, computations)
                assumed = 1 if unknown_trip_count is None else unknown_trip_count
                times *= assumed if known is None else known
                inside = op.name if known is None else loop
            for called in _called(op):
                if op.opcode == "fusion":
                    fused.add(called)
                visit(called, times, inside)

    visit(entry, 1, None)

    found = []
    parts: dict[tuple[str, str, str], Collective] = {}
    for computation, count in runs.items():
        types = {op.name: op.type for op in computations[computation]}
        for op in computations[computation]:
            kind = op.opcode.removesuffix("-start")
            if kind not in KINDS:
                continue
            if computation in unknown and unknown_trip_count is None:
                raise ValueError(
                    f"cannot count the executions of {op.name} ({kind}): it is inside the loop "
                    f"{unknown[computation]}, whose trip count XLA does not know; pass unknown_trip_count="
                )
            source = re.search(r'op_name="([^"]*)"', op.line)
            size = sum(_bytes(types[operand]) for operand in op.operands)
            kind = "reduce-scatter" if computation.startswith("all-reduce-scatter") else kind
            one = Collective(kind, size, count, source[1] if source else op.name, _group(op.line, devices))
            channel, chain = re.search(r"channel_id=(\d+)", op.line), re.search(r'chain_id="(\d+)"', op.line)
            if chain and channel and computation in fused:
                parts.setdefault((kind, channel[1], chain[1]), one)
            else:
                found.append(one)
    return [*found, *parts.values()]


def wire_bytes(collective: Collective) -> float:
    """Estimate what one device sends for all executions of a collective, if the devices form a ring.

    With n devices in a group and b bytes of operands: all-gather b (n - 1), because its operand is one shard;
    reduce-scatter and all-to-all b (n - 1) / n; all-reduce twice that (a reduce-scatter, then an all-gather);
    collective-permute b.
    """
    n = collective.group
    factor = {
        "all-gather": n - 1,
        "all-reduce": 2 * (n - 1) / n,
        "reduce-scatter": (n - 1) / n,
        "all-to-all": (n - 1) / n,
        "collective-permute": 1,
    }[collective.kind]
    return factor * collective.bytes * collective.count


def totals(found: Iterable[Collective]) -> dict[str, Total]:
    """Add up collectives by kind, in the order of `KINDS`; kinds that do not occur are left out."""
    groups: dict[str, list[Collective]] = {kind: [] for kind in KINDS}
    for collective in found:
        groups[collective.kind].append(collective)
    return {
        kind: Total(
            sum(c.count for c in group),
            sum(c.count * c.bytes for c in group) / 1e6,
            sum(wire_bytes(c) for c in group) / 1e6,
        )
        for kind, group in groups.items()
        if group
    }


def _parse(text: str) -> tuple[str, dict[str, list[_Instruction]]]:
    """Return the name of the entry computation, and the instructions of every computation."""
    entry = ""
    computations: dict[str, list[_Instruction]] = {}
    current: list[_Instruction] = []
    for line in text.splitlines():
        if header := _COMPUTATION.match(line):
            current = computations[header[2]] = []
            if header[1]:
                entry = header[2]
        elif match := _INSTRUCTION.match(line):
            name, type_, opcode, rest = match.groups()
            operands = tuple(re.findall(r"%([\w.\-]+)", re.split(r"\)(?:,|$)", rest)[0]))
            current.append(_Instruction(name, type_, opcode, operands, line))
    if not entry:
        raise ValueError("this is not the text of a compiled HLO module: it has no ENTRY computation")
    return entry, computations


def _trip_count(loop: _Instruction, computations: Mapping[str, list[_Instruction]]) -> int | None:
    """Return how often a loop runs, if XLA knows it.

    The TPU's compiler does not write it down. Its loops count from zero to the constant of their condition.
    """
    if known := _TRIP_COUNT.search(loop.line):
        return int(known[1])
    condition = re.search(r"\bcondition=%?([\w.\-]+)", loop.line)
    ops = {op.name: op for op in computations[condition[1]]} if condition else {}
    last = list(ops.values())[-1:]
    if not last or last[0].opcode != "compare" or "direction=LT" not in last[0].line:
        return None
    start, end = (ops[name] for name in last[0].operands)
    number = re.search(r" constant\((\d+)\)", end.line)
    return int(number[1]) if number and start.opcode == "get-tuple-element" else None


def _called(op: _Instruction) -> list[str]:
    """Return the computations that an instruction runs."""
    if op.opcode.endswith(("-update", "-done")):  # they name the computation that their -start has run
        return []
    called = _CALLED.findall(op.line)
    if branches := _BRANCHES.search(op.line):
        called += re.findall(r"[\w.\-]+", branches[1])
    return called


def _bytes(type_: str) -> int:
    """Return the size of an HLO type such as `bf16[8,128]{1,0}`, or of a tuple of them."""
    size = 0
    for letters, digits, dims in _ARRAY.findall(type_):
        bits = 8 if letters == "pred" else int(digits or 0)
        size += math.ceil(math.prod(int(d) for d in dims.split(",") if d) * bits / 8)
    return size


def _group(line: str, devices: int) -> int:
    """Return the size of a collective's replica groups; XLA writes them in one of three ways."""
    if listed := re.search(r"replica_groups=\{\{([\d,]*)\}", line):
        return listed[1].count(",") + 1
    if iota := re.search(r"replica_groups=\[\d+,(\d+)\]<=", line):
        return int(iota[1])
    if mesh := re.search(r"replica_groups=mesh\[([^\]]*)\] ?\{([^}]*)\}", line):
        sizes = dict(re.findall(r"'([^']+)'=(\d+)", mesh[1]))
        # An axis may be a part of a mesh axis, written 'name':(stride)size.
        return math.prod(int(part or sizes[axis]) for axis, part in re.findall(r"'([^']+)'(?::\(\d+\)(\d+))?", mesh[2]))
    return 2 if "source_target_pairs=" in line else devices


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """Format rows as a Markdown table: the first row's keys are the columns, floats get three digits."""
    if not rows:
        return ""
    columns = list(rows[0])
    cells = [columns, *([_cell(row.get(column, "")) for column in columns] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |" for line in cells]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return str(value)
