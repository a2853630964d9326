"""Aliases of `haliax.rearrange`, for each of the two forms of an order."""

from collections.abc import Sequence
from typing import Any

from axonym import NamedArray

from .._contract import rearrange

__all__ = ["axis_spec_rearrange", "einops_rearrange", "rearrange"]


def einops_rearrange(array: NamedArray, expression: str, **bindings: Any) -> NamedArray:
    """Split, merge and order axes by an expression, such as `"{(h: a b)} -> ... b a"`."""
    return rearrange(array, expression, **bindings)


def axis_spec_rearrange(array: NamedArray, axis_spec: Sequence[Any]) -> NamedArray:
    """Store the axes in another order."""
    return rearrange(array, axis_spec)
