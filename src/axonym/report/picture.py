"""Pictures of layouts: each array as a rectangle, cut into the blocks that devices hold, as SVG.

`show(...).picture()` and `check(...).picture()` make them; a notebook shows them, and `save` writes a file.
"""

import dataclasses
import html
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .table import numbers

__all__ = ["Drawing", "Picture", "Side", "cut"]

WIDTH = 760  # of a picture, in pixels
ARRAYS = 40  # more are not drawn
LETTER = 6.4  # the width of a letter of the size below, about
FONT = 'font-family="ui-sans-serif, system-ui, sans-serif" font-size="11"'
# A file that stands alone, such as an image of a README, follows the colours of the reader's system.
ALONE = "<style>svg{color:#1f2328}@media(prefers-color-scheme:dark){svg{color:#e6edf3}}</style>"


@dataclasses.dataclass(frozen=True)
class Side:
    """One side of a drawn array.

    Attributes:
        label: the axes along it, with the mesh axes that split them.
        size: the number of elements.
        parts: the number of blocks.

    Examples:
        >>> from axonym.report.picture import Side
        >>> Side("vocab=1024 → model", 1024, 8).length
        174.0
    """

    label: str
    size: int
    parts: int

    @property
    def length(self) -> float:
        """The length in pixels, which grows with the logarithm of the size: large and small axes fit on one page."""
        return 34 + 14 * math.log2(max(self.size, 1))


@dataclasses.dataclass(frozen=True)
class Drawing:
    """One array to draw.

    Attributes:
        title: what it is.
        caption: what else there is to say.
        down: the side from top to bottom.
        across: the side from left to right.
        holders: the devices of each block, row by row.
        devices: the number of all devices.

    Examples:
        >>> layouts = axn.partitioning.show(axn.zeros({"batch": 8}), {"batch": "data"}, jax.make_mesh((4,), ("data",)))
        >>> drawing = layouts.picture().drawings[0]
        >>> drawing.across.label, drawing.holders
        ('batch=8 → data', ((0,), (1,), (2,), (3,)))
    """

    title: str
    caption: str
    down: Side
    across: Side
    holders: tuple[tuple[int, ...], ...]
    devices: int

    @property
    def width(self) -> float:
        """The width with all texts."""
        texts = self.title, self.caption, self.across.label
        return max(22 + self.across.length, *(LETTER * len(text) for text in texts))

    @property
    def height(self) -> float:
        """The height with all texts."""
        return 54 + max(self.down.length, LETTER * len(self.down.label))

    def svg(self, left: float, top: float) -> str:
        """Return the elements of the picture.

        Args:
            left: the left end of the array in the picture, in pixels.
            top: its upper end.
        """
        wide, high = self.across.length / self.across.parts, self.down.length / self.down.parts
        found = [
            f'<text x="{left:g}" y="{top + 12:g}" font-weight="bold">{html.escape(self.title)}</text>',
            f'<text x="{left + 18:g}" y="{top + 27:g}">{html.escape(self.across.label)}</text>',
            f'<text transform="translate({left + 4:g} {top + 33:g}) rotate(90)">{html.escape(self.down.label)}</text>',
            f'<text x="{left:g}" y="{top + self.height - 3:g}" opacity="0.7">{html.escape(self.caption)}</text>',
        ]
        for number, devices in enumerate(self.holders):
            row, column = divmod(number, self.across.parts)
            x, y = left + 18 + column * wide, top + 32 + row * high
            found.append(
                f'<rect x="{x:g}" y="{y:g}" width="{wide:g}" height="{high:g}" fill="{self._colour(devices)}"'
                f' stroke="currentColor" stroke-width="0.7"><title>{_name_devices(devices)}</title></rect>'
            )
            label = numbers(devices)
            # A text that does not fit is shown by the mouse, as the title of the block.
            if LETTER * len(label) < wide and high > 12:
                middle = f'x="{x + wide / 2:g}" y="{y + high / 2 + 4:g}"'
                found.append(f'<text {middle} text-anchor="middle">{label}</text>')
        return "\n".join(found)

    def _colour(self, devices: Sequence[int]) -> str:
        """Return the colour of the first device, the same in all arrays; grey for blocks that all devices hold."""
        # Hues around the circle, but not all of it: the last device must not look like the first.
        if len(devices) == self.devices or not devices:
            return "rgb(128 128 128 / 0.25)"
        return f"hsl({round(330 * devices[0] / self.devices)} 75% 55% / 0.55)"


def _name_devices(devices: Sequence[int]) -> str:
    return f"device {numbers(devices)}" if len(devices) == 1 else f"devices {numbers(devices)}"


def cut(
    sides: tuple[Sequence[Sequence[str]], Sequence[Sequence[str]]], mesh: Sequence[tuple[str, int]]
) -> tuple[tuple[int, ...], ...]:
    """Return the devices that hold each block of an array, row by row.

    Args:
        sides: the mesh axes of each dimension, for the vertical and for the horizontal side.
        mesh: the axes of the mesh with their sizes; devices are numbered by their place, the last axis fastest.

    Examples:
        >>> from axonym.report.picture import cut
        >>> cut(([["data"]], [[]]), [("data", 2), ("model", 2)])
        ((0, 1), (2, 3))
    """
    sizes = dict(mesh)
    devices = math.prod(sizes.values())
    places = np.indices(tuple(sizes.values())).reshape(len(sizes), devices)
    place = dict(zip(sizes, places, strict=True))
    # The number of the block of each device, in the order of JAX: the first mesh axis of an entry varies slowest.
    block = np.zeros(devices, int)
    count = 1
    for axis in (axis for side in sides for entry in side for axis in entry):
        block, count = block * sizes[axis] + place[axis], count * sizes[axis]
    return tuple(tuple(np.flatnonzero(block == number).tolist()) for number in range(count))


@dataclasses.dataclass(frozen=True, repr=False)
class Picture:
    """A picture of arrays, which notebooks show.

    Equal colours are equal devices. Blocks that all devices hold are grey.

    Attributes:
        title: the mesh.
        drawings: the arrays.

    Examples:
        >>> mesh = jax.make_mesh((4,), ("data",))
        >>> axn.partitioning.show({"x": axn.zeros({"batch": 8})}, {"batch": "data"}, mesh).picture()
        <Picture of x on mesh data=4>
    """

    title: str
    drawings: tuple[Drawing, ...]

    def svg(self) -> str:
        """Return the picture as SVG, in the colour of the text around it."""
        return self._svg("")

    def save(self, path: str | Path) -> None:
        """Write the picture to a file; its colours follow the light or dark mode of a reader's system."""
        Path(path).write_text(self._svg(ALONE) + "\n", encoding="utf-8")

    def __repr__(self) -> str:
        return (
            f"<Picture of {', '.join(drawing.title for drawing in self.drawings)} on {self.title}>"
        )

    def _repr_html_(self) -> str:
        return self.svg()

    def _svg(self, style: str) -> str:
        left, top, line, found = 0.0, 22.0, 0.0, list[str]()
        # Side by side, as words of a text; one that is wider than the page has a line of its own.
        for drawing in self.drawings[:ARRAYS]:
            if left and left + drawing.width > WIDTH:
                left, top, line = 0.0, top + line + 14, 0.0
            found.append(drawing.svg(left, top))
            left, line = left + drawing.width + 26, max(line, drawing.height)
        bottom, more = top + line + 6, len(self.drawings) - ARRAYS
        if more > 0:
            found.append(f'<text x="0" y="{bottom + 12:g}">… {more} more arrays</text>')
            bottom += 18
        # A drawing may be wider than a page; the browser then scales the picture.
        width = max([WIDTH, *(drawing.width for drawing in self.drawings[:ARRAYS])])
        title = html.escape(self.title)
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-2 0 {width + 4:g} {bottom:g}"'
                f' width="{width + 4:g}" style="max-width:100%;height:auto" role="img" aria-label="{title}"'
                f' fill="currentColor" {FONT}>{style}',
                f'<text x="0" y="12" opacity="0.7">{title}</text>',
                *found,
                "</svg>",
            ]
        )
