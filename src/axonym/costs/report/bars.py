"""Pictures of costs: bars for the bytes sent for each axis, the parts of memory, and the time of each layer."""

import dataclasses
import html
from collections.abc import Mapping
from pathlib import Path

from ...report import ALONE, FONT, LETTER

__all__ = ["Bar", "Bars"]

WIDTH = 760  # of a picture, in pixels
HEIGHT = 18  # of a bar
GAP = 30  # between groups
MOST = 12  # bars of a group


@dataclasses.dataclass(frozen=True)
class Bar:
    """One bar of a picture.

    Attributes:
        label: the name on its left.
        amount: the number that sets its length.
        text: the amount as text, on its right.

    Examples:
        >>> from axonym.costs.report import Bar
        >>> Bar("parameters", 3e9, "2.8 GiB").text
        '2.8 GiB'
    """

    label: str
    amount: float
    text: str


@dataclasses.dataclass(frozen=True, repr=False)
class Bars:
    """Groups of bars, which notebooks show. The longest bars of a group come first, and the shortest are left out.

    Attributes:
        title: the description of the picture.
        groups: the bars of each group, by the title of the group.

    Examples:
        >>> from axonym.costs.report import Bar, Bars
        >>> bars = Bars("a step", {"memory": (Bar("parameters", 3e9, "2.8 GiB"), Bar("data", 1e9, "0.9 GiB"))})
        >>> bars
        <Bars of memory: a step>
        >>> bars.svg().count("<rect")
        2
    """

    title: str
    groups: Mapping[str, tuple[Bar, ...]]

    def svg(self) -> str:
        """Return the picture as SVG, in the colour of the text around it."""
        return self._write_svg("")

    def save(self, path: str | Path) -> None:
        """Write the picture to a file, whose colours follow the light or dark mode of a reader's system."""
        Path(path).write_text(self._write_svg(ALONE) + "\n", encoding="utf-8")

    def __repr__(self) -> str:
        return f"<Bars of {', '.join(self.groups)}: {self.title}>"

    def _repr_html_(self) -> str:
        return self.svg()

    def _write_svg(self, style: str) -> str:
        # All bars begin behind the longest label.
        longest = 0
        for bars in self.groups.values():
            longest = max([longest, *(len(bar.label) for bar in bars)])
        left = LETTER * longest + 10
        found: list[str] = []
        top = 0.0
        for hue, (title, bars) in enumerate(self.groups.items()):
            if bars:
                top += 14
                text = html.escape(title)
                found.append(f'<text x="0" y="{top:g}" font-weight="bold">{text}</text>')
                found.append(_draw(bars, left, top + 8, 120 * hue + 210))
                top += 8 + HEIGHT * min(len(bars), MOST) + GAP - 14
        title = html.escape(self.title)
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-2 -2 {WIDTH + 4} {top + 4:g}"'
                f' width="{WIDTH + 4}" style="max-width:100%;height:auto" role="img"'
                f' aria-label="{title}" fill="currentColor" {FONT}>{style}',
                *found,
                "</svg>",
            ]
        )


def _draw(bars: tuple[Bar, ...], left: float, top: float, hue: int) -> str:
    """Draw the bars of a group below each other."""
    shown = sorted(bars, key=lambda bar: -bar.amount)[:MOST]
    # The text of the longest bar needs room behind it.
    room = WIDTH - left - LETTER * 12
    whole = shown[0].amount or 1
    found: list[str] = []
    for place, bar in enumerate(shown):
        y = top + place * HEIGHT
        wide = room * bar.amount / whole
        found.append(f'<text x="0" y="{y + 12:g}">{html.escape(bar.label)}</text>')
        found.append(
            f'<rect x="{left:g}" y="{y:g}" width="{wide:g}" height="{HEIGHT - 4}"'
            f' fill="hsl({hue % 360} 65% 55% / 0.6)"/>'
        )
        text = html.escape(bar.text)
        found.append(f'<text x="{left + wide + 6:g}" y="{y + 12:g}" opacity="0.8">{text}</text>')
    return "\n".join(found)
