"""Reports about functions and trees: checks, pictures and tables of layouts.

This package exports names for libraries with their own reports: to read a call, to lay out its arguments without
values, and to write tables. `axonym.costs` is such a library.
"""

from ..layout.fitting import Fit, divide_mesh, find_partners, fit_sizes
from ..partitioning.arguments import by_parameter, identifiers, labels
from ..partitioning.jit import remapped
from ..partitioning.trees import find_several, is_optimiser_state, no_mapping, shard_tree
from ..transform.leaves import refilled
from .picture import ALONE, FONT, LETTER
from .show import ArrayLayout
from .table import Cell, Printed, Table, byte_text
from .target import abstract_array, abstract_mesh, get_memory_kind, is_array, unwrapped

__all__ = [
    "ALONE",
    "FONT",
    "LETTER",
    "ArrayLayout",
    "Cell",
    "Fit",
    "Printed",
    "Table",
    "abstract_array",
    "abstract_mesh",
    "by_parameter",
    "byte_text",
    "divide_mesh",
    "find_partners",
    "find_several",
    "fit_sizes",
    "get_memory_kind",
    "identifiers",
    "is_array",
    "is_optimiser_state",
    "labels",
    "no_mapping",
    "refilled",
    "remapped",
    "shard_tree",
    "unwrapped",
]
