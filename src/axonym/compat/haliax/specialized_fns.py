"""Functions with specialised kernels."""

import axonym as axn
from axonym import AxisSelector

from ._adapt import adapted

__all__ = ["top_k"]


@adapted
def top_k(
    arr: axn.NamedArray, axis: AxisSelector, k: int, new_axis: AxisSelector | None = None
) -> tuple[axn.NamedArray, axn.NamedArray]:
    """Return the `k` largest elements along an axis, largest first, and their indices; the axis keeps its place."""
    return axn.top_k(arr, axis, k, new_axis)
