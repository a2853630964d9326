"""Aliases of loops and of their checkpoint policies."""

from .._checkpoint import ScanCheckpointPolicy, ScanCheckpointSpec
from ..hof import fold, is_named_or_shaped_array_like, map, scan

__all__ = [
    "ScanCheckpointPolicy",
    "ScanCheckpointSpec",
    "fold",
    "is_named_or_shaped_array_like",
    "map",
    "scan",
]
