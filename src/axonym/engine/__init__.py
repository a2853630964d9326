"""How a positional function becomes a named one.

What the package lists is for libraries that are written on Axonym and need more than its functions: how arguments are
read, how arrays get their names, and what is current. `axonym.compat.haliax` is one, and uses nothing else of Axonym
than this and what users have.
"""

from ..axis import AxisKey, Pairs, names_in, selection, selector, selectors, shown, sized, spec
from ..core import facts, shape_of, wrap
from ..dtypes import limits
from ..kinds import Payload, Tree
from ..layout.assignment import AxisMapping, MeshLike
from ..layout.context import context_mesh, resolve_mapping
from ..layout.tracing import transforming
from .auto import whole
from .operators import equality_operator, left_operator, right_operator
from .pointwise import nary
from .steps import selectors_of

__all__ = [
    "AxisKey",
    "AxisMapping",
    "MeshLike",
    "Pairs",
    "Payload",
    "Tree",
    "context_mesh",
    "equality_operator",
    "facts",
    "left_operator",
    "limits",
    "names_in",
    "nary",
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
    "whole",
    "wrap",
]
