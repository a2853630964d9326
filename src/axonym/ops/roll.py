"""Functions that move elements along axes: rolling, reversing and rotating.

Names stay where they are; values move along them.
"""

import functools
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..axis import AxisSelection, AxisSelector, names_in, selection
from ..base.calls import explain_calls
from ..engine import auto, checks, reduction
from ..engine.batched import apply_batched, hashable
from ..engine.core import Core, Operand
from ..engine.kernels import with_options
from ..errors import ArgumentError, OperandError, message
from ..layout import explicit
from .cumulative import Positions

if TYPE_CHECKING:
    from ..array import NamedArray

__all__ = ["flip", "roll", "rot90"]


def flip(x: "NamedArray", axis: AxisSelection | None = None) -> "NamedArray":
    """Reverse the order of elements along `axis`.

    Args:
        x: axes {axis, ...}.
        axis: one axis, several, or None for all.

    Returns:
        The axes of `x`.

    Examples:
        >>> axn.flip(axn.named([1, 2, 3], "time"), "time").tolist()
        [3, 2, 1]
    """
    return reduction.normalization(_flip, x, axis)


def roll(x: "NamedArray", shift: Operand | Sequence[Operand], axis: AxisSelection) -> "NamedArray":
    """Shift elements along `axis`; those shifted beyond the end reappear at the start.

    A Python int is static: each value compiles its own program. An array may be traced. It may have other axes of `x`;
    each position along these axes is then shifted by its own amount.

    Args:
        x: axes {axis, ...}.
        shift: one number of positions for all axes, or a sequence with one for each.
        axis: one axis or several.

    Returns:
        The axes of `x`.

    Raises:
        ArgumentError: if the number of shifts is not that of the axes.
        OperandError: if a shift is not an integer.

    Examples:
        >>> x = axn.named([[0, 1, 2], [3, 4, 5]], ("batch", "time"))
        >>> axn.roll(x, axn.named([0, 1], "batch"), "time")
        NamedArray(int32[batch=2, time=3])
        [[0 1 2]
         [5 3 4]]
    """
    axis = hashable(axis, "roll")
    names = names_in(selection(axis, "roll"))
    shifts = tuple(shift) if isinstance(shift, Sequence) else (shift,) * len(names)
    if len(shifts) != len(names):
        problem = f"{len(shifts)} shifts for {len(names)} axes"
        raise ArgumentError(message("roll", problem, f"axes: {', '.join(names)}"))
    if all(isinstance(each, int | np.integer) for each in shifts):
        return reduction.normalization(with_options(_roll, shift=shifts), x, axis)
    if not isinstance(x, Core):
        raise checks.no_names("roll", x)
    core = [axis, *[()] * len(shifts)]
    return apply_batched(_roll, [x, *shifts], core, names, each=True, in_place=True)


def rot90(x: "NamedArray", axis1: AxisSelector, axis2: AxisSelector, k: int = 1) -> "NamedArray":
    """Rotate values by `k` right angles in the plane of two axes, from `axis1` towards `axis2`.

    Names stay and values move: counterclockwise, if `axis1` points down and `axis2` to the right, as for the rows and
    columns of an image.

    Args:
        x: axes {axis1, axis2, ...}.
        axis1: the axis to rotate from.
        axis2: the axis to rotate towards.
        k: the number of right angles; a negative one rotates backwards.

    Returns:
        The axes of `x`; if `k` is odd, the two exchange their sizes.

    Examples:
        >>> axn.rot90(axn.named([[1, 2, 3], [4, 5, 6]], ("row", "column")), "row", "column")
        NamedArray(int32[row=3, column=2])
        [[3 6]
         [2 5]
         [1 4]]
    """
    return reduction.normalization(with_options(_rot90, k=operator.index(k) % 4), x, (axis1, axis2))


def _flip(array: jax.Array, axis: Positions) -> jax.Array:
    return lax.rev(array, [at % array.ndim for at in axis])


def _roll(
    array: jax.Array, *traced: jax.Array, axis: Positions | None = None, shift: tuple[int, ...] = ()
) -> jax.Array:
    """Roll along `axis` by static shifts, or along all dimensions by traced ones."""
    if axis is not None:
        # The compiler decides on Explicit mesh axes, too: a split axis sends its edges, and is not gathered.
        return auto.move_elements(functools.partial(jnp.roll, shift=shift, axis=axis), [array])
    for each in traced:
        if not jnp.issubdtype(each.dtype, jnp.integer):
            raise OperandError(message("roll", f"a shift must be an integer, not {each.dtype}"))
    # By an amount that is not known, any device may need any element.
    every = range(array.ndim)
    return jnp.roll(auto.whole(array, every), jnp.stack(traced), tuple(every))


def _rot90(array: jax.Array, axis: tuple[int, int], k: int) -> jax.Array:
    entries = list(explicit.get_layout(array))
    first, second = axis
    if entries and k % 2:
        # Rows become columns on the devices where they are.
        entries[first], entries[second] = entries[second], entries[first]
    return auto.move_elements(functools.partial(jnp.rot90, k=k, axes=axis), [array], entries)


explain_calls(globals(), __all__)
