"""Functions along an axis that keep it: softmax, cumulative sums, sorting."""

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from ..axis import AxisSelection, AxisSelector
from ..core import Operand
from . import _lift

if TYPE_CHECKING:
    from ..array import NamedArray

__all__ = ["argsort", "cumprod", "cumsum", "log_softmax", "softmax", "sort"]


def argsort(x: "NamedArray", axis: AxisSelector, *, stable: bool = True, descending: bool = False) -> "NamedArray":
    """Return the indices that would sort along `axis`."""
    return _lift.along(jnp.argsort, x, axis, stable=stable, descending=descending)


def cumprod(x: "NamedArray", axis: AxisSelector) -> "NamedArray":
    """Return the products of all elements up to each one along `axis`."""
    return _lift.along(jnp.cumprod, x, axis)


def cumsum(x: "NamedArray", axis: AxisSelector) -> "NamedArray":
    """Return the sums of all elements up to each one along `axis`."""
    return _lift.along(jnp.cumsum, x, axis)


def log_softmax(x: "NamedArray", axis: AxisSelection | None = None, *, where: Operand | None = None) -> "NamedArray":
    """Return the logarithm of `softmax`."""
    return _lift.normalization(jax.nn.log_softmax, x, axis, where)


def softmax(x: "NamedArray", axis: AxisSelection | None = None, *, where: Operand | None = None) -> "NamedArray":
    """Return exponentials divided by their sum over `axis`: positive numbers that sum to one.

    Args:
        x: axes {axis, ...}.
        axis: one axis, several, or None for all.
        where: axes among those of `x`; elements that take part, the others come out as zero.
    """
    return _lift.normalization(jax.nn.softmax, x, axis, where)


def sort(x: "NamedArray", axis: AxisSelector, *, stable: bool = True, descending: bool = False) -> "NamedArray":
    """Sort along `axis`."""
    return _lift.along(jnp.sort, x, axis, stable=stable, descending=descending)
