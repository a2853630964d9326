"""Tables of text that fit a terminal, and the same tables for notebooks."""

import dataclasses
import html
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

Cell: TypeAlias = (
    str | tuple[str, ...]
)  # a tuple is a list of items, the last of which may be left out
WIDTH = 120
ROWS = 60


@dataclasses.dataclass(frozen=True)
class Table:
    """A header and rows.

    Attributes:
        header: the titles of the columns.
        rows: a cell for each column.
        last: a separate row at the end.
        right: titles of columns that are aligned to the right.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    last: tuple[Cell, ...] | None = None
    right: tuple[str, ...] = ("bytes", "per device")

    def _shown(self) -> list[tuple[Cell, ...]]:
        rows = list(self.rows[:ROWS])
        more = len(self.rows) - ROWS
        if more > 0:
            rows.append((f"… {more} more rows", *[""] * (len(self.header) - 1)))
        if self.last is not None:
            rows.append(self.last)
        return rows

    def __str__(self) -> str:
        rows: list[tuple[Cell, ...]] = [self.header, *self._shown()]
        columns = zip(*rows, strict=True)
        widths = [max(len(_joined(cell)) for cell in column) for column in columns]
        while sum(widths) + 2 * (len(widths) - 1) > WIDTH:
            widths[widths.index(max(widths))] -= 1
        lines: list[str] = []
        for row in rows:
            cells: list[str] = []
            for cell, width, title in zip(row, widths, self.header, strict=True):
                side = "<"
                if title in self.right:
                    side = ">"
                cells.append(f"{_fitted(cell, width):{side}{width}}")
            lines.append("  ".join(cells).rstrip())
        return "\n".join(lines)

    def as_html(self) -> str:
        """Return the table as HTML."""

        def row(tag: str, cells: Sequence[Cell]) -> str:
            inner = ""
            for cell, title in zip(cells, self.header, strict=True):
                place = "left"
                if title in self.right:
                    place = "right"
                text = html.escape(_joined(cell))
                inner += f'<{tag} style="text-align:{place}">{text}</{tag}>'
            return f"<tr>{inner}</tr>"

        body = "".join(row("td", cells) for cells in self._shown())
        return f"<table><thead>{row('th', self.header)}</thead><tbody>{body}</tbody></table>"


class Printed:
    """The base of objects that print as paragraphs of text and tables."""

    def parts(self) -> Iterator[str | Table]:
        """Yield the paragraphs and tables."""
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.parts()))

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        pieces: list[str] = []
        for part in self.parts():
            if isinstance(part, Table):
                pieces.append(part.as_html())
            else:
                pieces.append(f"<pre>{html.escape(part)}</pre>")
        return "".join(pieces)


def _joined(cell: Cell) -> str:
    if isinstance(cell, str):
        return cell
    return ", ".join(cell)


def _fitted(cell: Cell, width: int) -> str:
    if isinstance(cell, tuple):
        return listed(cell, width)
    if len(cell) <= width:
        return cell
    half = width // 2  # the end of a path matters more than its middle
    return f"{cell[: width - half - 1]}…{cell[len(cell) - half :]}"


def listed(items: Sequence[str], width: int) -> str:
    """Write a list; if it is too long, the first items and the number of the others."""
    whole = ", ".join(items)
    for kept in range(len(items) - 1, 0, -1):
        if len(whole) <= width:
            return whole
        whole = f"{', '.join(items[:kept])}, +{len(items) - kept} more"
    return _fitted(whole, width)


def grouped(rows: Iterable[tuple[str, *tuple[Cell, ...]]]) -> tuple[tuple[Cell, ...], ...]:
    """Merge rows that differ only in numbers in their paths, such as those of the layers of a list."""
    groups: dict[tuple[Cell, ...], list[str]] = {}
    for path, *cells in rows:
        parts = ["*" if part.isdecimal() else part for part in path.split(".")]
        groups.setdefault((".".join(parts), *cells), []).append(path)
    found: list[tuple[Cell, ...]] = []
    for (_, *cells), paths in groups.items():
        found.append((_shared(paths), *cells))
    return tuple(found)


def _shared(paths: Sequence[str]) -> str:
    """Write paths that differ only in numbers as one, with `*` in the place of these."""
    if len(paths) == 1:
        return paths[0]
    places = zip(*(path.split(".") for path in paths), strict=True)
    shared = [parts[0] if len(set(parts)) == 1 else "*" for parts in places]
    return f"{'.'.join(shared)} ({len(paths)}x)"


def byte_text(count: int | None) -> str:
    """Write a number of bytes, such as `1.5 GiB`; empty if unknown."""
    if count is None:
        return ""
    if count < 1024:
        return f"{count} B"
    amount, units = count / 1024, iter(("KiB", "MiB", "GiB", "TiB"))
    unit = next(units)
    for larger in units:
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.1f} {unit}"


def total(counts: Iterable[int | None]) -> int | None:
    """Add numbers of bytes; None if one of them is unknown."""
    whole = 0
    for count in counts:
        if count is None:
            return None
        whole += count
    return whole


def numbers(values: Iterable[int]) -> str:
    """Write ascending numbers with runs as ranges, such as `0-3, 8`."""
    runs: list[list[int]] = []
    for value in values:
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    texts: list[str] = []
    for first, last in runs:
        texts.append("-".join(dict.fromkeys((str(first), str(last)))))
    return ", ".join(texts)
