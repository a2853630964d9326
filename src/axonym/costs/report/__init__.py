"""The report on a program's costs: sums, tables, pictures, differences and files."""

from ..shared.rows import Collective, Kept, Memory, Time, Work
from .bars import Bar, Bars
from .cost import Cost
from .difference import Change, Difference

__all__ = [
    "Bar",
    "Bars",
    "Change",
    "Collective",
    "Cost",
    "Difference",
    "Kept",
    "Memory",
    "Time",
    "Work",
]
