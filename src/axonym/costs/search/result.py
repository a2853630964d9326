"""The result of a search for mappings: the best one, and why the others lose."""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from ... import Mappings
from ...engine import AxisMapping, Tree
from ...report import Cell, Printed, Table, byte_text
from ..report.cost import Cost
from ..shared.units import write_mesh, write_time
from .step import find_pace

__all__ = ["Candidate", "Plan"]

SHOWN = 5
MAPPED = ("mesh", "parameters", "computation", "choices")


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A mapping that was counted.

    Attributes:
        mesh: the axes of the mesh with their sizes.
        mappings: the mappings of parameters and of the computation.
        cost: the traced cost.
        compiled: the cost from a program of the target's compiler; None if it was not compiled.
        refusal: the error of the compiler, if it refuses the program.
        choices: the chosen values of keyword arguments.
        microbatches: the number of microbatches for `axn.pipelined`; None without a pipeline.
        split: for each mesh axis that was split because it does not divide all sizes, its parts with their sizes.
        is_estimated: whether the cost is an estimate. Mappings that are slower by an estimate are not traced.

    Examples:
        >>> x = axn.zeros({"batch": 64})
        >>> best = axn.plan(axn.sin, {"data": 8}, x, verify=0).best
        >>> best.mesh, best.fits, best.compiled
        ((('data', 8),), True, None)
    """

    mesh: tuple[tuple[str, int], ...]
    mappings: Mappings
    cost: Cost
    compiled: Cost | None = None
    refusal: str = ""
    choices: Mapping[str, Tree] = dataclasses.field(default_factory=dict)
    microbatches: int | None = None
    split: Mapping[str, Mapping[str, int]] = dataclasses.field(default_factory=dict)
    is_estimated: bool = False

    @property
    def fits(self) -> bool:
        """Whether it fits into the memory of a device, as reported by the compiler if it ran."""
        return not self.problems

    @property
    def problems(self) -> tuple[str, ...]:
        """Memory problems and their remedies, as reported by the compiler if it ran."""
        if self.refusal:
            return (self.refusal, *self.cost.remedies(0))
        return (self.compiled or self.cost).problems


@dataclasses.dataclass(frozen=True, repr=False)
class Plan(Printed):
    """The result of `axn.plan`, which prints as a table.

    Attributes:
        best: the candidate that fits and takes the least time. If none fits, the fastest candidate within 1 % of the
            least memory.
        others: the other candidates, the next best one first.
        counted: the number of mappings that were counted.
        illegal: the number of other mappings, which were not legal.
        is_complete: whether the search ended by itself, not at its limit.
        verification: a text that says which mappings were compiled for the target, how this changed the order, and why
            no more were compiled.
        bound: a lower bound of the seconds of any mapping: devices share all operations, and nothing is recomputed or
            sent, at the rates that are used to compare mappings; 0 if the operations are not known.

    Examples:
        >>> x = axn.zeros({"batch": 64})
        >>> found = axn.plan(axn.sin, {"data": 8}, x, verify=0)
        >>> found.counted == 1 + len(found.others), found.is_complete, found.mappings == found.best.mappings
        (True, True, True)
    """

    best: Candidate
    others: tuple[Candidate, ...]
    counted: int
    illegal: int
    is_complete: bool
    verification: str = ""
    bound: float = 0.0

    @property
    def gap(self) -> float:
        """The time of the best candidate above the bound, as a share of the bound; infinite without a bound."""
        seconds = (self.best.compiled or self.best.cost).time.compared
        return max(0.0, seconds / self.bound - 1) if self.bound else math.inf

    @property
    def mappings(self) -> Mappings:
        """The best mappings."""
        return self.best.mappings

    @property
    def mesh(self) -> dict[str, int]:
        """The mesh of the best mappings."""
        return dict(self.best.mesh)

    @property
    def split(self) -> Mapping[str, Mapping[str, int]]:
        """The parts of each mesh axis that was split for the best mappings, with their sizes."""
        return self.best.split

    @property
    def choices(self) -> Mapping[str, Tree]:
        """The chosen keyword arguments of the best candidate."""
        return self.best.choices

    @property
    def microbatches(self) -> int | None:
        """The number of microbatches for `axn.pipelined`; None if the best candidate is no pipeline."""
        return self.best.microbatches

    @property
    def problems(self) -> tuple[str, ...]:
        """Memory problems of the best candidate, with their remedies."""
        return self.best.problems

    @property
    def is_verified(self) -> bool:
        """Whether the best candidate was compiled for the target."""
        return self.best.compiled is not None

    def parts(self) -> Iterator[str | Table]:
        """Yield the paragraphs and tables."""
        target = self.best.cost.target.name
        how = "the search ended by itself"
        if not self.is_complete:
            how = "the search ended at its limit"
        lines = [
            f"for {target}, mesh {write_mesh(self.best.mesh)}: {self.counted} mappings counted,"
            f" {self.illegal} others not legal; {how}",
            self._write_times(),
        ]
        for axis, parts in self.split.items():
            whole = write_mesh([(axis, math.prod(parts.values()))])
            lines.append(f"fitted: mesh axis {whole} is split into {write_mesh(parts.items())}")
        if self.bound:
            lines.append(
                f"no mapping takes less than {write_time(self.bound)}; the best takes"
                f" {self.gap:.0%} more"
            )
        if self.verification:
            lines.append(self.verification)
        yield "\n".join(lines)
        if self.problems:
            source = "traced"
            if self.best.refusal or self.best.compiled is not None:
                # The two differ, and a traced peak may fit.
                traced = byte_text(self.best.cost.memory.peak)
                source = f"as compiled; the table has traced peaks, {traced} for the best"
            yield "\n".join((f"nothing fits, {source}", *self.problems))
        yield self._make_table(self.others[:SHOWN])
        verified = [one for one in (self.best, *self.others) if one.compiled or one.refusal]
        if verified:
            yield self._make_verified_table(verified)
        measured = [one for one in (self.best, *self.others) if one.cost.measured]
        if measured:
            yield self._make_measured_table(measured)

    def _write_times(self) -> str:
        """Name the time that ranks the mappings."""
        if self.best.cost.time.expected is None:
            return "times are bounds, at the peaks of the device"
        return "times are expected ones, by the shares of its peaks that the device reaches"

    def _make_table(self, others: Sequence[Candidate]) -> Table:
        """Make the table of the best candidates by traced cost, with the reasons why they lose to the first one."""
        rows: list[tuple[Cell, ...]] = [
            (*_write_mapped(self.best), *_write_traced(self.best), "best")
        ]
        for other in others:
            rows.append((*_write_mapped(other), *_write_traced(other), _explain(other, self.best)))
        header = (*MAPPED, "time", "sent", "peak", "")
        return self._trim(Table(header, tuple(rows), right=header[4:7]))

    def _make_verified_table(self, verified: Sequence[Candidate]) -> Table:
        """Make the table of compiled candidates, with their compiled and traced costs side by side."""
        rows: list[tuple[Cell, ...]] = []
        for one in verified:
            traced, compiled = _write_traced(one), ("refused",) * 3
            if one.compiled is not None:
                compiled = _write_numbers(one.compiled)
            # Each compiled number is next to its traced one.
            pairs: list[Cell] = []
            for own, other in zip(traced, compiled, strict=True):
                pairs += [own, other]
            rows.append((*_write_mapped(one), *pairs))
        numbers = ("time", "compiled", "sent", "compiled", "peak", "compiled")
        return self._trim(Table((*MAPPED, *numbers), tuple(rows), right=numbers))

    def _make_measured_table(self, measured: Sequence[Candidate]) -> Table:
        """Make the table of candidates that ran, with their measured and predicted times side by side."""
        rows: list[tuple[Cell, ...]] = []
        for one in measured:
            seconds, predicted = one.cost.measured or 0.0, one.cost.time.compared
            numbers = (write_time(predicted), write_time(seconds))
            rows.append((*_write_mapped(one), *numbers, f"{seconds / (predicted or 1):.2f}"))
        header = ("predicted", "measured", "ratio")
        return self._trim(Table((*MAPPED, *header), tuple(rows), right=header))

    def _trim(self, table: Table) -> Table:
        """Drop the column of meshes if there is only one mesh, and the column of choices if there are no choices."""
        # A column that says the same in each row tells nothing.
        columns = list(range(len(table.header)))
        if all(other.mesh == self.best.mesh for other in self.others):
            columns.remove(MAPPED.index("mesh"))
        if not any(map(_write_choices, (self.best, *self.others))):
            columns.remove(MAPPED.index("choices"))
        header = tuple(table.header[at] for at in columns)
        rows: list[tuple[Cell, ...]] = [tuple(row[at] for at in columns) for row in table.rows]
        # Mappings that differ at their ends would read alike if they were cut.
        wrapped = (*MAPPED, "")
        return dataclasses.replace(table, header=header, rows=tuple(rows), wrapped=wrapped)


def _write_mapped(one: Candidate) -> tuple[str, str, str, str]:
    mappings = one.mappings
    stored = _write_mapping(mappings.parameters)
    # All overrides are alike: one for each array of the state.
    for _, kept in mappings.overrides[:1]:
        stored += f"; state: {_write_mapping(kept)}"
    return (
        write_mesh(one.mesh),
        stored,
        _write_mapping(mappings.compute),
        _write_choices(one),
    )


def _write_choices(one: Candidate) -> str:
    """Write the choices other than mappings, such as `8 microbatches, policy=full`."""
    found: list[str] = []
    if one.microbatches is not None:
        found.append(f"{one.microbatches} microbatches")
    for name, value in one.choices.items():
        found.append(f"{name}={_write_value(value)}")
    return ", ".join(found)


def _write_value(value: Tree) -> str:
    """Write a value; repeated values of a list are counted, as in `7 x True, 3 x False`."""
    if not isinstance(value, list):
        return str(value)
    runs = [(repr(own), len(list(run))) for own, run in itertools.groupby(value)]
    return f"[{', '.join(f'{count} x {own}' for own, count in runs)}]"


def _write_traced(one: Candidate) -> tuple[str, str, str]:
    return _write_numbers(one.cost)


def _write_numbers(cost: Cost) -> tuple[str, str, str]:
    totals = cost.totals
    return (
        write_time(cost.time.compared),
        byte_text(round(totals["bytes sent"])),
        byte_text(round(totals["peak memory"])),
    )


def _write_mapping(mapping: AxisMapping) -> str:
    """Write the entries of a mapping, such as `embed→data`."""
    found: list[str] = []
    for name, entry in mapping.entries:
        text = "+".join(entry)
        if entry:
            found.append(
                f"{name}→if_free({text})" if name in mapping.yielding else f"{name}→{text}"
            )
    return ", ".join(found) or "nothing"


def _explain(one: Candidate, best: Candidate) -> str:
    """Write why a candidate loses, by compiled costs if both were compiled."""
    if one.refusal:
        return "the compiler refuses it"
    if one.cost.measured and best.cost.measured:
        return f"{one.cost.measured / best.cost.measured - 1:.0%} slower, measured"
    own, other, suffix = one.cost, best.cost, ""
    if one.compiled is not None and (best.compiled is not None or not one.fits):
        own, other, suffix = one.compiled, best.compiled or best.cost, ", compiled"
    # Memory decides before time.
    memory, capacity = own.memory.peak, own.target.memory
    if best.fits and memory > capacity:
        return f"does not fit by {byte_text(memory - capacity)}{suffix}"
    if not best.fits and memory > other.memory.peak:
        return f"lacks {byte_text(memory - other.memory.peak)} more{suffix}"
    # The best one may be slower by less than an estimate can tell, and send less.
    best_time = find_pace(other)
    slower = find_pace(own) - best_time
    text = f"{slower / (best_time or 1):.0%} slower{suffix}"
    if slower < 0:
        text = f"no slower{suffix}"
    elif slower and not best_time:
        # A program that only passes arrays on takes no time, so there is no ratio.
        text = f"slower{suffix}"
    axis, more = _find_most_sent(own, other)
    if more > 0:
        text += f", +{byte_text(more)} for {axis}"
    return text


def _find_most_sent(one: Cost, best: Cost) -> tuple[str, int]:
    """Return the axis with the most extra bytes that a candidate sends compared to the best one, with the bytes."""
    found = ("", 0)
    for axis, (_, sent, _) in one.by_axis.items():
        more = sent - best.by_axis.get(axis, (0, 0, 0.0))[1]
        if more > found[1]:
            found = axis, more
    return found
