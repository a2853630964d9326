"""Aliases of `haliax.rearrange`, for each of the two forms of an order."""

from axonym import AxisSelector, NamedArray

from .._contract import rearrange
from ..axis import PartialAxisSpec

__all__ = ["axis_spec_rearrange", "einops_rearrange", "rearrange"]


def einops_rearrange(array: NamedArray, expression: str, **bindings: AxisSelector) -> NamedArray:
    """Split, merge and order axes by an expression, such as `"{(h: a b)} -> ... b a"`."""
    return rearrange(array, expression, **bindings)


def axis_spec_rearrange(array: NamedArray, axis_spec: PartialAxisSpec) -> NamedArray:
    """Store the axes in another order."""
    return rearrange(array, axis_spec)
