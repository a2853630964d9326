"""The difference between the costs of two programs, row by row."""

import dataclasses
from collections.abc import Iterator

from ...report import Cell, Printed, Table, byte_text
from ..shared.units import write_time

__all__ = ["Change", "Difference"]


@dataclasses.dataclass(frozen=True)
class Change:
    """One number or layout that differs.

    Attributes:
        section: `about`, `layouts`, `communication`, `memory`, `totals` or `time`, in nanoseconds.
        what: the name of the row, such as the path of a parameter, or `all-gather over data because of embed, bytes`.
        before: the number or layout before; None if the row is new.
        after: the number or layout after; None if the row is gone.

    Examples:
        >>> from axonym.costs.report import Change
        >>> change = Change("memory", "peak", 2**30, 2**29)
        >>> change.ratio, str(change)
        (0.5, 'peak: 1.0 GiB -> 512.0 MiB (-50.0%)')
    """

    section: str
    what: str
    before: str | int | None
    after: str | int | None

    @property
    def ratio(self) -> float | None:
        """The new number divided by the old one; None if either is no number or the old one is zero."""
        if isinstance(self.before, str) or isinstance(self.after, str):
            return None
        if not self.before:
            return None
        return (self.after or 0) / self.before

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """The row of a table: its name, the values before and after, and the relative change."""
        grown = f"{self.ratio - 1:+.1%}" if self.ratio is not None else ""
        return self.what, self._write(self.before), self._write(self.after), grown

    def _write(self, value: str | int | None) -> str:
        if value is None:
            return "none"
        if self.section == "time" and isinstance(value, int):
            return write_time(value / 1e9)
        is_bytes = self.section == "memory" or "bytes" in self.what
        if is_bytes and isinstance(value, int):
            return byte_text(value)
        if isinstance(value, int):
            return f"{value:,}"
        return value

    def __str__(self) -> str:
        what, before, after, grown = self.cells
        text = f"{what}: {before} -> {after}"
        if grown:
            text += f" ({grown})"
        return text


@dataclasses.dataclass(frozen=True, repr=False)
class Difference(Printed):
    """The difference between two costs, which prints as a table, also in notebooks. `Cost.diff` returns it.

    Attributes:
        titles: the titles of the two reports.
        changes: the rows that differ.

    Examples:
        >>> x, sizes = axn.zeros({"batch": 64}), {"data": 8}
        >>> before = axn.cost(lambda x: x.sum(), {"batch": None}, sizes, x, depth="traced")
        >>> after = axn.cost(lambda x: x.sum(), {"batch": "data"}, sizes, x, depth="traced")
        >>> [str(change) for change in before.diff(after).changes if change.what == "parameters"]
        ['parameters: 256 B -> 32 B (-87.5%)']
    """

    titles: tuple[str, str]
    changes: tuple[Change, ...]

    def parts(self) -> Iterator[str | Table]:
        """Yield the paragraphs and tables."""
        yield f"before: {self.titles[0]}\nafter:  {self.titles[1]}"
        for section in dict.fromkeys(change.section for change in self.changes):
            rows: list[tuple[Cell, ...]] = [
                change.cells for change in self.changes if change.section == section
            ]
            header = (section, "before", "after", "by")
            yield Table(header, tuple(rows), right=("before", "after", "by"))
        if not self.changes:
            yield "nothing differs"
