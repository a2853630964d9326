"""Lay out trees of named arrays on a mesh, and compile functions of them."""

from .checking import check
from .fsdp import fsdp_mapping
from .reshards import limit_reshards
from .showing import show, visualize

__all__ = ["check", "fsdp_mapping", "limit_reshards", "show", "visualize"]
