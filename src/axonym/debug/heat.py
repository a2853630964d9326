"""SVG pictures of sizes: a line for each layer, a cell for each step or position, coloured by the logarithm."""

import dataclasses
import html
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..report import ALONE, FONT, LETTER

__all__ = ["Heat"]

WIDTH = 760  # of a picture, in pixels
HEIGHT = 18  # of a line
LEGEND = 9  # cells
# A cell that is not finite is grey, which is no colour of a size (blue to red).
GREY = "hsl(0 0% 50% / 0.9)"


@dataclasses.dataclass(frozen=True, repr=False)
class Heat:
    """Lines of coloured cells, which notebooks show: blue for the smallest number, red for the largest.

    The logarithm of a number sets the colour between blue and red. A zero has no colour; NaN and infinities are grey
    and crossed out.

    Attributes:
        title: what the numbers are, such as "rms".
        axis: the axis along a line, such as "step"; empty if each line has one number.
        lines: the numbers of each line, from left to right, by its label. A single number fills its line.

    Examples:
        >>> from axonym.debug import Heat
        >>> picture = Heat("rms", "step", {"mlp": (0.5, 2.0), "norm": (1.0,)})
        >>> picture
        <Heat of rms: 2 lines, along step>
        >>> "mlp step=1: 2" in picture.svg()
        True
    """

    title: str
    axis: str
    lines: Mapping[str, Sequence[float]]

    def svg(self) -> str:
        """Return the picture as SVG, in the colour of the text around it."""
        return self._write_svg("")

    def save(self, path: str | Path) -> None:
        """Write the picture to a file, whose colours follow the light or dark mode of a reader's system."""
        Path(path).write_text(self._write_svg(ALONE) + "\n", encoding="utf-8")

    def __repr__(self) -> str:
        along = f", along {self.axis}" if self.axis else ""
        return f"<Heat of {self.title}: {len(self.lines)} lines{along}>"

    def _repr_html_(self) -> str:
        return self.svg()

    def _write_svg(self, style: str) -> str:
        left = LETTER * max((len(label) for label in self.lines), default=0) + 10
        sizes = [x for line in self.lines.values() for x in line if math.isfinite(x) and x > 0]
        low, high = min(sizes, default=1.0), max(sizes, default=1.0)
        along = f", along {self.axis}" if self.axis else ""
        found = [f'<text x="0" y="14" font-weight="bold">{html.escape(self.title + along)}</text>']
        top = 22.0
        for label, line in self.lines.items():
            found.append(f'<text x="0" y="{top + 12:g}">{html.escape(label)}</text>')
            wide = (WIDTH - left) / max(len(line), 1)
            for i, x in enumerate(line):
                place = f"{label} {self.axis}={i}" if len(line) > 1 else label
                found.append(_draw(x, left + i * wide, top, wide, (low, high), place))
            top += HEIGHT
        # What the colours mean.
        steps = [low * (high / low) ** (i / (LEGEND - 1)) for i in range(LEGEND)]
        for i, x in enumerate(steps if low < high else []):
            wide = (WIDTH - left) / LEGEND
            found.append(_draw(x, left + i * wide, top + 10, wide, (low, high), "legend"))
        bottom = top + 10 + HEIGHT
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-2 -2 {WIDTH + 4} {bottom + 4:g}"'
                f' width="{WIDTH + 4}" style="max-width:100%;height:auto" role="img"'
                f' aria-label="{html.escape(self.title + along)}" fill="currentColor" {FONT}>{style}',
                *found,
                "</svg>",
            ]
        )


def _draw(
    x: float, left: float, top: float, wide: float, span: tuple[float, float], place: str
) -> str:
    """Draw a cell, with its number if there is room."""
    low, high = span
    text = f"{x:.2g}"
    if not math.isfinite(x):
        colour = GREY
    elif x <= 0:
        colour = "none"
    else:
        share = math.log(x / low) / math.log(high / low) if low < high else 0.5
        colour = f"hsl({220 * (1 - share):.0f} 70% 55% / 0.6)"
    tall = HEIGHT - 2
    found = [
        f'<rect x="{left:.1f}" y="{top:g}" width="{max(wide - 1, 0.5):.1f}" height="{tall}"'
        f' fill="{colour}"><title>{html.escape(place)}: {text}</title></rect>'
    ]
    if not math.isfinite(x):
        right, bottom = left + max(wide - 1, 0.5), top + tall
        found.append(
            f'<path d="M{left:.1f} {bottom:g}L{right:.1f} {top:g}" stroke="currentColor"/>'
        )
    if wide > LETTER * (len(text) + 1):
        middle = left + wide / 2
        found.append(f'<text x="{middle:.1f}" y="{top + 12:g}" text-anchor="middle">{text}</text>')
    return "\n".join(found)
