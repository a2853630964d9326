"""Measure fairly: interleaved timings, and what a compiled program computes, reads and sends.

Nothing here knows about a model or a library, so that every benchmark counts in the same way.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax

from axonym.costs.compiled.program import Program, find_text
from axonym.costs.shared.ring import count_wire_bytes as ring_bytes

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


def collectives(compiled: jax.stages.Compiled | str, *, unknown_trip_count: int | None = None) -> list[Collective]:
    """List the collectives of a compiled program, or of its HLO text, with the number of times each one runs.

    Every branch of a conditional counts as if it ran. They are read as `axn.cost` does.

    Args:
        compiled: `jax.jit(f).lower(...).compile()`, or its `as_text()`.
        unknown_trip_count: what to assume for a loop whose length XLA does not know.

    Raises:
        ValueError: where a collective is inside a loop of unknown length and `unknown_trip_count` is None.
    """
    found: list[Collective] = []
    for one in Program(find_text(compiled), unknown_trip_count).list_transfers():
        if one.kind in KINDS:
            found.append(Collective(one.kind, one.nbytes, one.count, one.name, one.group))
    return found


def wire_bytes(collective: Collective) -> float:
    """Estimate what one device sends for all executions of a collective, if the devices form a ring.

    With n devices in a group and b bytes of operands: all-gather b (n - 1), because its operand is one shard;
    reduce-scatter and all-to-all b (n - 1) / n; all-reduce twice that (a reduce-scatter, then an all-gather);
    collective-permute b.
    """
    return collective.count * ring_bytes(collective.kind, collective.bytes, collective.group)


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


def equations(jaxpr: Any) -> Iterator[Any]:
    """Yield the equations of a program, those of nested functions in the place of their calls."""
    for equation in jaxpr.eqns:
        inner = [
            getattr(part, "jaxpr", part)
            for value in equation.params.values()
            for part in (value if isinstance(value, tuple | list) else (value,))
            if hasattr(getattr(part, "jaxpr", part), "eqns")
        ]
        if not inner:
            yield equation
        for part in inner:
            yield from equations(part)
