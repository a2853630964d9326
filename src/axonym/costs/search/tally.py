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

# The width of the bar, in letters.
WIDTH = 24
# The code that erases the rest of a line of a terminal.
ERASE = "\x1b[K"


@dataclasses.dataclass
class Tally:
    """Count the mappings of a search, and report them.

    Attributes:
        callback: the function that gets the progress; by default, it draws a bar on the terminal.
        limit: the largest number of mappings.
        counted: the number of mappings so far.
        seconds: the time of the best mapping so far.
    """

    callback: Callable[[Progress], object] | None
    limit: int
    counted: int = 0
    seconds: float = math.inf

    def __post_init__(self) -> None:
        if self.callback is None:
            self.callback = Bar(sys.stderr)

    def add(self, doing: Literal["counting", "compiling"], count: int, seconds: float) -> None:
        """Count a mapping, and report it.

        Args:
            doing: the phase, counting or compiling.
            count: the number of mappings that it counts as.
            seconds: the time of the mapping; infinite if it does not fit.
        """
        self.counted += count
        if doing == "counting":
            self.seconds = min(self.seconds, seconds)
        self._report(doing)

    def close(self) -> None:
        """Report that the search is done."""
        self._report("done")

    def _report(self, doing: Literal["counting", "compiling", "done"]) -> None:
        if self.callback is not None:
            self.callback(Progress(doing, self.counted, self.limit, self.seconds))


class Bar:
    """Draw a bar in one line of a terminal, and erase it at the end; elsewhere, draw nothing.

    Args:
        stream: the stream to draw on, such as `sys.stderr`.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def __call__(self, progress: Progress) -> None:
        """Draw the progress."""
        if self._stream is None or not self._stream.isatty():
            return
        text = _write_line(progress) if progress.doing != "done" else ""
        # The cursor returns to the start of the line, so that other output replaces the bar.
        self._stream.write(f"\r{text}{ERASE}\r")
        self._stream.flush()


def _write_line(progress: Progress) -> str:
    drawn = min(WIDTH, WIDTH * progress.counted // max(progress.limit, 1))
    bar = "#" * drawn + "." * (WIDTH - drawn)
    text = f"plan [{bar}] {progress.counted} of at most {progress.limit}, {progress.doing}"
    if math.isfinite(progress.seconds):
        text += f", best {write_time(progress.seconds)}"
    return text
