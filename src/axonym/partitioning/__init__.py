"""Lay out trees of named arrays on a mesh, and compile functions of them."""

from ..mesh.reshards import limit_reshards
from ..report.check import check
from ..report.schedule import schedule
from ..report.show import show, visualize
from .fsdp import fsdp_mapping

__all__ = ["check", "fsdp_mapping", "limit_reshards", "schedule", "show", "visualize"]
