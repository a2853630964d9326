"""The result of a search for mappings: the best one, and why the others lose."""

import dataclasses
from collections.abc import Iterator

from ..mesh.assignment import AxisMapping, Mappings
from ..report.table import Cell, Printed, Table, byte_text
from .report import Cost
from .units import mesh_text, time_text

__all__ = ["Candidate", "Plan"]

SHOWN = 8


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A mapping that was counted.

    Attributes:
        mesh: the axes of the mesh with their sizes.
        mappings: of parameters, and of the computation.
        cost: what it costs, traced.
    """

    mesh: tuple[tuple[str, int], ...]
    mappings: Mappings
    cost: Cost

    @property
    def fits(self) -> bool:
        """Whether a device has the memory for it."""
        return not self.cost.problems


@dataclasses.dataclass(frozen=True, repr=False)
class Plan(Printed):
    """The result of `axn.plan`, which prints as a table.

    Attributes:
        best: the one that takes the least time of those that fit; if none fits, the one that lacks the least memory.
        others: those that lose, the next best one first.
        counted: how many mappings were counted.
        illegal: how many of them were not legal.
        is_complete: whether the search ended by itself; otherwise at its limit.
    """

    best: Candidate
    others: tuple[Candidate, ...]
    counted: int
    illegal: int
    is_complete: bool

    @property
    def mappings(self) -> Mappings:
        """The best mappings."""
        return self.best.mappings

    @property
    def mesh(self) -> dict[str, int]:
        """The mesh of the best mappings."""
        return dict(self.best.mesh)

    @property
    def problems(self) -> tuple[str, ...]:
        """What does not fit in the best one, with what to change."""
        return self.best.cost.problems

    def parts(self) -> Iterator[str | Table]:
        """Yield the paragraphs and tables."""
        target = self.best.cost.target.name
        how = "the search ended by itself"
        if not self.is_complete:
            how = "the search ended at its limit"
        yield (
            f"for {target}, mesh {mesh_text(self.best.mesh)}: {self.counted} mappings counted,"
            f" {self.illegal} of them not legal; {how}"
        )
        if self.problems:
            yield "\n".join(("nothing fits", *self.problems))
        rows: list[tuple[Cell, ...]] = [_row(self.best, "best")]
        for other in self.others[:SHOWN]:
            rows.append(_row(other, _reason(other, self.best)))
        header: tuple[str, ...] = ("mesh", "parameters", "computation", "time", "sent", "peak", "")
        if all(other.mesh == self.best.mesh for other in self.others):
            header, rows = header[1:], [row[1:] for row in rows]
        yield Table(header, tuple(rows), right=("time", "sent", "peak"))


def _row(one: Candidate, why: str) -> tuple[Cell, ...]:
    totals = one.cost.totals
    return (
        mesh_text(one.mesh),
        _mapping_text(one.mappings.parameters),
        _mapping_text(one.mappings.compute),
        time_text(totals["seconds"]),
        byte_text(round(totals["bytes sent"])),
        byte_text(round(totals["peak memory"])),
        why,
    )


def _mapping_text(mapping: AxisMapping) -> str:
    """Write the entries of a mapping, such as `embed→data`."""
    found: list[str] = []
    for name, entry in mapping.entries:
        if entry:
            found.append(f"{name}→{'+'.join(entry)}")
    return ", ".join(found) or "nothing"


def _reason(one: Candidate, best: Candidate) -> str:
    """Say why a candidate loses."""
    memory, capacity = one.cost.memory.peak, one.cost.target.memory
    if best.fits and memory > capacity:
        return f"does not fit by {byte_text(memory - capacity)}"
    if not best.fits and memory > best.cost.memory.peak:
        return f"lacks {byte_text(memory - best.cost.memory.peak)} more"
    slower = one.cost.time.seconds / best.cost.time.seconds - 1
    text = f"{slower:.0%} slower"
    axis, more = _most_sent(one.cost, best.cost)
    if more > 0:
        text += f", +{byte_text(more)} for {axis}"
    return text


def _most_sent(one: Cost, best: Cost) -> tuple[str, int]:
    """Return the axis because of which most is sent that the best one does not send."""
    found = ("", 0)
    for axis, (_, sent, _) in one.by_axis.items():
        more = sent - best.by_axis.get(axis, (0, 0, 0.0))[1]
        if more > found[1]:
            found = axis, more
    return found
