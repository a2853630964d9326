"""The progress of a search for mappings."""

from typing import Literal, NamedTuple

__all__ = ["Progress"]


class Progress(NamedTuple):
    """The progress of `axn.plan`, which its callback gets after each mapping.

    Attributes:
        doing: the phase, `counting` or `compiling`, or `done`.
        counted: the number of mappings so far; a compiled one counts as 10.
        limit: the largest number of mappings.
        seconds: the time of the best mapping so far that fits, in seconds; infinite if there is none yet.

    Examples:
        >>> from axonym.costs.search.progress import Progress
        >>> progress = Progress("counting", counted=50, limit=200, seconds=0.012)
        >>> f"{progress.counted / progress.limit:.0%}"
        '25%'
    """

    doing: Literal["counting", "compiling", "done"]
    counted: int
    limit: int
    seconds: float
