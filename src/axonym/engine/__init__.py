"""How a positional function becomes a named one.

The package lists names for libraries that are written on Axonym and need more than its functions: how arguments are
read, how arrays get their names, how axes are sharded, and which values are current. `axonym.compat.haliax` uses
nothing else of Axonym than this and public names; `axonym.costs` also uses the names that `axonym.report` lists.
"""

from ..axis import AxisKey, Pairs, names_in, selection, selector, selectors, shown, sized, spec
from ..base.dtypes import limits
from ..base.kinds import Payload, Tree, type_text
from ..current.machine import MACHINE, Machine, find_choice, find_iterations, find_kernel_call
from ..faults.gathered_rows import list_layouts
from ..faults.split_windows import Slide
from ..layout.assignment import AxisMapping, Entry, MeshLike, bases_of, normalized
from ..layout.context import MAPPING, context_mesh, resolve_mapping
from ..layout.layout import Layout
from ..layout.modes import find_auto_axes, make_mesh
from ..layout.partition import assign_mesh_axes, only, without
from ..layout.records import LEDGER, Ledger, Mixture, Table
from ..layout.tracing import transforming
from ..names.plans import Names
from .auto import whole
from .core import facts, payload_of, shape_of, wrap
from .operators import equality_operator, left_operator, right_operator
from .pointwise import nary
from .steps import selectors_of

__all__ = [
    "LEDGER",
    "MACHINE",
    "MAPPING",
    "AxisKey",
    "AxisMapping",
    "Entry",
    "Layout",
    "Ledger",
    "Machine",
    "MeshLike",
    "Mixture",
    "Names",
    "Pairs",
    "Payload",
    "Slide",
    "Table",
    "Tree",
    "assign_mesh_axes",
    "bases_of",
    "context_mesh",
    "equality_operator",
    "facts",
    "find_auto_axes",
    "find_choice",
    "find_iterations",
    "find_kernel_call",
    "left_operator",
    "limits",
    "list_layouts",
    "make_mesh",
    "names_in",
    "nary",
    "normalized",
    "only",
    "payload_of",
    "resolve_mapping",
    "right_operator",
    "selection",
    "selector",
    "selectors",
    "selectors_of",
    "shape_of",
    "shown",
    "sized",
    "spec",
    "transforming",
    "type_text",
    "whole",
    "without",
    "wrap",
]
