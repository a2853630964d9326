"""The progress of a search for mappings."""

from typing import Literal, NamedTuple

__all__ = ["Progress"]


class Progress(NamedTuple):
    """How far `axn.plan` is.

    Attributes:
        doing: what is next.
        counted: mappings that were counted, of which a compiled one counts as several.
        limit: how many are counted at most.
        seconds: the time of the best one so far that fits; infinite while there is none.
    """

    doing: Literal["counting", "compiling", "done"]
    counted: int
    limit: int
    seconds: float
