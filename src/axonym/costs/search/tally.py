"""Internal. The progress of a search, passed to a callback or drawn as a bar on a terminal.

`axn.plan` counts by it. It must not know choices.
"""

import dataclasses
import math
import sys
from collections.abc import Callable
from typing import Literal, TextIO

from ..shared.units import write_time
from .progress import Progress

# Of the bar, in letters.
WIDTH = 24
ERASE = "\x1b[K"


@dataclasses.dataclass
class Tally:
    """Count what a search does, and tell somebody.

    Attributes:
        tell: who is told; by default a bar on the terminal.
        limit: how many mappings are counted at most.
        counted: how many were counted.
        seconds: the time of the best one so far.
    """

    tell: Callable[[Progress], object] | None
    limit: int
    counted: int = 0
    seconds: float = math.inf

    def __post_init__(self) -> None:
        if self.tell is None:
            self.tell = Bar(sys.stderr)

    def add(self, doing: Literal["counting", "compiling"], count: int, seconds: float) -> None:
        """Tell that something was done.

        Args:
            doing: what.
            count: as how many mappings it counts.
            seconds: the time of the mapping; infinite if it does not fit.
        """
        self.counted += count
        if doing == "counting":
            self.seconds = min(self.seconds, seconds)
        self._report(doing)

    def close(self) -> None:
        """Tell that all is done."""
        self._report("done")

    def _report(self, doing: Literal["counting", "compiling", "done"]) -> None:
        if self.tell is not None:
            self.tell(Progress(doing, self.counted, self.limit, self.seconds))


class Bar:
    """Draw a bar in one line of a terminal, and erase it at the end; elsewhere, draw nothing.

    Args:
        stream: where to.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def __call__(self, progress: Progress) -> None:
        """Draw how far it is."""
        if self._stream is None or not self._stream.isatty():
            return
        text = _write_line(progress) if progress.doing != "done" else ""
        # Whatever else is printed begins at the start of the line, and replaces it.
        self._stream.write(f"\r{text}{ERASE}\r")
        self._stream.flush()


def _write_line(progress: Progress) -> str:
    drawn = min(WIDTH, WIDTH * progress.counted // max(progress.limit, 1))
    bar = "#" * drawn + "." * (WIDTH - drawn)
    text = f"plan [{bar}] {progress.counted} of at most {progress.limit}, {progress.doing}"
    if math.isfinite(progress.seconds):
        text += f", best {write_time(progress.seconds)}"
    return text
