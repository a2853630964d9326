"""Internal. Tables of text that fit a terminal, and the same tables for notebooks.

All reports print by `Printed` and `Table`. They know nothing of arrays.
"""

import dataclasses
import html
import itertools
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

# A tuple is a list of items, the last of which may be left out.
Cell: TypeAlias = str | tuple[str, ...]
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
        wrapped: titles of columns in which long text is wrapped; in other columns, it is cut.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    last: tuple[Cell, ...] | None = None
    right: tuple[str, ...] = ("bytes", "per device")
    wrapped: tuple[str, ...] = ()

    def _list_rows(self) -> list[tuple[Cell, ...]]:
        # A model may have thousands of arrays; `rows` has them all.
        rows = list(self.rows[:ROWS])
        more = len(self.rows) - ROWS
        if more > 0:
            rows.append((f"… {more} more rows", *[""] * (len(self.header) - 1)))
        if self.last is not None:
            rows.append(self.last)
        return rows

    def __str__(self) -> str:
        rows: list[tuple[Cell, ...]] = [self.header, *self._list_rows()]
        columns = zip(*rows, strict=True)
        widths = [max(len(_join(cell)) for cell in column) for column in columns]
        # The widest column gives way, letter by letter, so that short ones stay readable.
        while sum(widths) + 2 * (len(widths) - 1) > WIDTH:
            widths[widths.index(max(widths))] -= 1
        sides = [">" if title in self.right else "<" for title in self.header]
        columns_of = zip(widths, sides, strict=True)
        formats = [f"{side}{width}" for width, side in columns_of]
        lines: list[str] = []
        for row in rows:
            cells = [
                _wrap(cell, width) if title in self.wrapped else [_fit(cell, width)]
                for cell, width, title in zip(row, widths, self.header, strict=True)
            ]
            for line in itertools.zip_longest(*cells, fillvalue=""):
                texts = [f"{text:{form}}" for text, form in zip(line, formats, strict=True)]
                lines.append("  ".join(texts).rstrip())
        return "\n".join(lines)

    def as_html(self) -> str:
        """Return the table as HTML."""

        def row(tag: str, cells: Sequence[Cell]) -> str:
            inner = ""
            for cell, title in zip(cells, self.header, strict=True):
                place = "right" if title in self.right else "left"
                text = html.escape(_join(cell))
                inner += f'<{tag} style="text-align:{place}">{text}</{tag}>'
            return f"<tr>{inner}</tr>"

        body = "".join(row("td", cells) for cells in self._list_rows())
        return f"<table><thead>{row('th', self.header)}</thead><tbody>{body}</tbody></table>"


class Printed:
    """The base of objects that print as paragraphs of text and tables: in a terminal as text, in notebooks as HTML."""

    def parts(self) -> Iterator[str | Table]:
        """Yield the paragraphs and tables."""
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.parts()))

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return "".join(
            part.as_html() if isinstance(part, Table) else f"<pre>{html.escape(part)}</pre>"
            for part in self.parts()
        )


def _join(cell: Cell) -> str:
    return cell if isinstance(cell, str) else ", ".join(cell)


def _wrap(cell: Cell, width: int) -> list[str]:
    """Return a cell as lines that fit."""
    return textwrap.wrap(_join(cell), width, break_on_hyphens=False) or [""]


def _fit(cell: Cell, width: int) -> str:
    if isinstance(cell, tuple):
        return list_items(cell, width)
    if len(cell) <= width:
        return cell
    half = width // 2  # the end of a path matters more than its middle
    return f"{cell[: width - half - 1]}…{cell[len(cell) - half :]}"


def list_items(items: Sequence[str], width: int) -> str:
    """Format a list; if it is too long, show the first items and the number of the others."""
    text = ", ".join(items)
    for count in range(len(items) - 1, 0, -1):
        if len(text) <= width:
            return text
        text = f"{', '.join(items[:count])}, +{len(items) - count} more"
    return _fit(text, width)


def group_rows(rows: Iterable[tuple[str, *tuple[Cell, ...]]]) -> tuple[tuple[Cell, ...], ...]:
    """Merge rows that differ only in numbers in their paths, such as rows of the layers in a list."""
    groups: dict[tuple[Cell, ...], list[str]] = {}
    for path, *cells in rows:
        # Rows are merged if all their other cells are equal, wherever they are in the table.
        parts = ["*" if part.isdecimal() else part for part in path.split(".")]
        groups.setdefault((".".join(parts), *cells), []).append(path)
    return tuple((_merge_paths(paths), *cells) for (_, *cells), paths in groups.items())


def _merge_paths(paths: Sequence[str]) -> str:
    """Write paths that differ only in numbers as one path, with `*` in place of the numbers."""
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
    known = list(counts)
    return None if None in known else sum(filter(None, known))


def numbers(values: Iterable[int]) -> str:
    """Write ascending numbers with runs as ranges, such as `0-3, 8`."""
    runs: list[list[int]] = []
    for value in values:
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
