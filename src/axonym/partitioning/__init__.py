"""Lay out trees of named arrays on a mesh, and compile functions of them."""

from ..costs.lock import assert_layout
from ..costs.targets import TARGETS, Link, Target
from ..mesh.reshards import limit_reshards
from ..report.check import check
from ..report.schedule import schedule
from ..report.show import show, visualize
from .fsdp import fsdp_mapping

__all__ = [
    "TARGETS",
    "Link",
    "Target",
    "assert_layout",
    "check",
    "fsdp_mapping",
    "limit_reshards",
    "schedule",
    "show",
    "visualize",
]
