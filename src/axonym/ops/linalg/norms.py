"""Norms of vectors and matrices over named axes, and the condition number."""

from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from ...axis import AxisSelection, selection, selectors
from ...base.calls import explain_calls
from ...base.dtypes import to_inexact
from ...engine import checks, reduction
from ...engine.core import Core
from ...engine.matrix import apply_to_matrices, matrix_axes
from ...engine.operands import one_of
from ...engine.root import root
from ...errors import ArgumentError, AxisError, message
from ...faults.lost_nan import restore_nan

if TYPE_CHECKING:
    from ...array import NamedArray

__all__ = [
    "cond",
    "matrix_norm",
    "norm",
    "vector_norm",
]

_ORDERS = ("fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf)


def cond(
    x: "NamedArray",
    row: AxisSelection,
    column: AxisSelection,
    *,
    p: float | Literal["fro", "nuc"] | None = None,
) -> "NamedArray":
    """Return the condition number of matrices: the norm of each times that of its inverse.

    Args:
        x: axes {row, column, ...}.
        row: the axes that `x` maps to.
        column: the axes that `x` maps from.
        p: the order of the norm, as in `matrix_norm`; None and 2 give the ratio of the extreme singular values, which
            need not be those of a square matrix.

    Returns:
        The other axes of `x`.

    Examples:
        >>> axn.linalg.cond(axn.named([[4., 0.], [0., 2.]], ("row", "column")), "row", "column").item()
        2.0
    """
    one_of("cond", "p", p, (None, *_ORDERS))
    return apply_to_matrices(
        jnp.linalg.cond, [x], row, column, "", square=p not in (None, 2, -2), p=p
    )


def matrix_norm(
    x: "NamedArray",
    row: AxisSelection,
    column: AxisSelection,
    *,
    ord: float | Literal["fro", "nuc"] = "fro",
) -> "NamedArray":
    """Return a norm of matrices.

    Args:
        x: axes {row, column, ...}.
        row: the axes that `x` maps to.
        column: the axes that `x` maps from.
        ord: "fro", the root of the sum of squares; "nuc", the sum of singular values; 2 or -2, the largest or smallest
            singular value; 1 or -1, the largest or smallest sum of absolute values in a column; inf or -inf, in a row.

    Returns:
        The other axes of `x`.

    Examples:
        >>> axn.linalg.matrix_norm(axn.named([[3., 0.], [0., 4.]], ("row", "column")), "row", "column").item()
        5.0
    """
    one_of("matrix_norm", "ord", ord, _ORDERS)
    if ord == "fro":  # a sum, which needs no matrices: split axes stay split
        return reduction.reduction(_matrix_norm, x, matrix_axes("matrix_norm", row, column))
    return apply_to_matrices(_matrix_norm_of, [x], row, column, "", ord=ord)


def _matrix_norm_of(array: jax.Array, *, ord: Any) -> jax.Array:
    found: jax.Array = jnp.linalg.matrix_norm(array, ord=ord)
    if ord in (1, -1, np.inf, -np.inf):  # the largest or smallest sum, which may lose a NaN
        return restore_nan(found, array, (-2, -1))
    return found


def _matrix_norm(array: jax.Array, axis: tuple[int, ...]) -> jax.Array:
    return _vector_norm(array, axis)


def norm(
    x: "NamedArray",
    axis: AxisSelection | None = None,
    ord: float | Literal["fro", "nuc"] | None = None,
) -> "NamedArray":
    """Return a norm of vectors or matrices, distinguished as in numpy.

    Args:
        x: axes {axis, ...}.
        axis: one axis for vectors; with an `ord`, a pair (row, column) for matrices; None for all axes.
        ord: None is the root of the sum of squares, over any number of axes. Over one axis as in `vector_norm`, over
            two as in `matrix_norm`.

    Returns:
        The axes of `x` except `axis`.

    Raises:
        AxisError: if an `ord` is given for more than two axes.
        ArgumentError: if `ord` is unknown.

    Examples:
        >>> axn.linalg.norm(axn.named([3., 4.], "x")).item()
        5.0
    """
    if ord is None:
        return reduction.reduction(_norm, x, axis)
    if not isinstance(x, Core):
        raise checks.no_names("norm", x)
    pairs = selection(x.names if axis is None else axis, "norm")
    if len(pairs) == 1:
        return reduction.reduction(_norm, x, selectors(pairs), ord=_check_order("norm", ord))
    if len(pairs) != 2:
        problem = f"ord needs one axis or a pair (row, column), got {len(pairs)} axes"
        several = "matrix_norm several for row and for column"
        hint = f"vector_norm takes any number of axes, and {several}"
        raise AxisError(message("norm", problem, hint=hint))
    one_of("norm", "ord", ord, _ORDERS)
    row, column = selectors(pairs)
    return apply_to_matrices(jnp.linalg.norm, [x], row, column, "", ord=ord, axis=(-2, -1))


def _norm(array: jax.Array, axis: tuple[int, ...], ord: object = 2) -> jax.Array:
    return _vector_norm(array, axis, ord)


def vector_norm(
    x: "NamedArray", axis: AxisSelection | None = None, *, ord: float = 2
) -> "NamedArray":
    """Return a norm of vectors over `axis`, or over several axes that count as one.

    Args:
        x: axes {axis, ...}.
        axis: one axis, several, or None for all.
        ord: inf or -inf, the largest or smallest absolute value; 0, the number of nonzero elements; any other number
            p, the sum of absolute values to the power p, to the power 1/p.

    Returns:
        The axes of `x` except `axis`.

    Raises:
        ArgumentError: if `ord` is not a number.

    Examples:
        >>> axn.linalg.vector_norm(axn.named([3., -4.], "x"), ord=1).item()
        7.0
    """
    return reduction.reduction(_vector_norm, x, axis, ord=_check_order("vector_norm", ord))


def _vector_norm(array: jax.Array, axis: tuple[int, ...], ord: Any = 2) -> jax.Array:
    # `jnp.linalg.vector_norm` takes roots of integers in their own type, in which 1/3 is 0.
    array = to_inexact(array)
    if ord == 2:  # the gradient at zero is zero, by `root`
        return root(jnp.sum(jnp.real(array * jnp.conj(array)), axis))
    if abs(ord) == np.inf:
        return restore_nan(jnp.linalg.vector_norm(array, axis=axis, ord=ord), array, axis)
    if ord <= 1:
        return jnp.linalg.vector_norm(array, axis=axis, ord=ord)
    powers = jnp.sum(jnp.abs(array) ** ord, axis)
    # The slope of the root is infinite at zero; two selections make the gradient zero there, where one gives NaN.
    is_zero = powers == 0
    return jnp.where(is_zero, 0, jnp.where(is_zero, 1, powers) ** (1 / ord))


def _check_order(function: str, ord: object) -> float:
    if isinstance(ord, np.number):
        number: float = ord.item()
        return number
    if isinstance(ord, int | float):
        return ord
    problem = f"the ord of a vector norm must be a number, not {ord!r}"
    raise ArgumentError(message(function, problem))


explain_calls(globals(), __all__)
