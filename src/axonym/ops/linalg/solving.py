"""Systems of equations, inverses, determinants and powers of matrices, and products of vectors.

A matrix over the axes (row, column) maps vectors over `column` to vectors over `row`:
`a.dot(v, axis=column)` is over `row`. Maps in the other direction have their names swapped: `solve(a, b, row, column)`
takes `b` over `row` and returns the solution over `column`, and `inv(a, row, column)` maps vectors over `row` to
vectors over `column`. Its element at row i and column j is at (j, i) in the positional inverse.

`row` and `column` may each be several axes, flattened in the given order: `solve` and `inv` are then numpy's
tensorsolve and tensorinv. All other axes are batch axes. Names for new axes are arguments.
"""

from typing import TYPE_CHECKING, Literal, TypeAlias

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np

from ...axis import AxisSelection, AxisSelector, selector, selectors
from ...base.calls import explain_calls
from ...base.dtypes import match_ranks
from ...base.kinds import type_text
from ...engine.batched import apply_batched
from ...engine.core import Operand
from ...engine.matrix import apply_to_matrices
from ...engine.operands import one_of
from ...errors import AxisSizeError, OperandError, message
from .. import contract, elementwise

if TYPE_CHECKING:
    from ...array import NamedArray

__all__ = [
    "cho_solve",
    "cross",
    "det",
    "expm",
    "inv",
    "lstsq",
    "matrix_power",
    "matrix_rank",
    "pinv",
    "slogdet",
    "solve",
    "solve_triangular",
    "vdot",
    "vecdot",
]

Pair: TypeAlias = "tuple[NamedArray, NamedArray]"


def cho_solve(
    factor: "NamedArray",
    b: Operand,
    row: AxisSelection,
    column: AxisSelection,
    *,
    upper: bool = False,
) -> "NamedArray":
    """Solve `a x = b`, given the factor of `a` that `cholesky` returns for the same axes.

    Args:
        factor: axes {row, column, ...}.
        b: axes {row, ...}; as in `solve`.
        row: the axes that `a` maps to, those of `b`.
        column: the axes that `a` maps from, those of the result.
        upper: whether the factor is an upper triangle.

    Returns:
        `x`: the axes of `b`, with `column` instead of `row`.

    Examples:
        >>> factor = axn.linalg.cholesky(axn.named([[4.]], ("row", "column")), "row", "column")
        >>> axn.linalg.cho_solve(factor, axn.named([8.], "row"), "row", "column").tolist()
        [2.0]
    """
    return apply_to_matrices(
        _cho_solve, [factor, b], row, column, "CE", square=True, lower=not upper
    )


def _cho_solve(factor: jax.Array, b: jax.Array, *, lower: bool) -> jax.Array:
    return jax.scipy.linalg.cho_solve((factor, lower), b)


def cross(x: Operand, y: Operand, axis: AxisSelector) -> "NamedArray":
    """Return the cross product of vectors over an axis of size three.

    Args:
        x: axes {axis, ...}.
        y: axes {axis, ...}; other axes are matched by name.
        axis: the axis of the vectors; `jnp.cross` takes vectors of size two as well.

    Returns:
        The axes of `x` and `y`.

    Raises:
        AxisSizeError: if the axis has another size.

    Examples:
        >>> axn.cross(axn.named([1, 0, 0], "xyz"), axn.named([0, 1, 0], "xyz"), "xyz").tolist()
        [0, 0, 1]
    """
    pair = selector(axis, "cross")
    (given,), (name, _) = selectors((pair,)), pair
    return apply_batched(_cross, [x, y], [given, given], (name,), in_place=True, name=name)


def _cross(x: jax.Array, y: jax.Array, *, name: str) -> jax.Array:
    if x.shape[-1] != 3:
        raise AxisSizeError(
            message("cross", f"axis {name!r} has size {x.shape[-1]}, but must have size 3")
        )
    return jnp.cross(*match_ranks(x, y))


def det(a: "NamedArray", row: AxisSelection, column: AxisSelection) -> "NamedArray":
    """Return the determinant of square matrices.

    Args:
        a: axes {row, column, ...}.
        row: the axes that `a` maps to.
        column: the axes that `a` maps from.

    Returns:
        The other axes of `a`.

    Examples:
        >>> axn.linalg.det(axn.named([[2., 0.], [1., 3.]], ("row", "column")), "row", "column")
        NamedArray(float32[])
        6.0
    """
    return apply_to_matrices(jnp.linalg.det, [a], row, column, "", square=True)


def expm(
    a: "NamedArray", row: AxisSelection, column: AxisSelection, *, max_squarings: int = 16
) -> "NamedArray":
    """Return the exponential of square matrices, which map a space to itself.

    Args:
        a: axes {row, column, ...}.
        row: the axes that `a` maps to.
        column: the axes that `a` maps from.
        max_squarings: the largest number of squarings; the result is NaN for matrices that need more.

    Returns:
        The axes of `a`.

    Examples:
        >>> axn.linalg.expm(axn.named([[0., 1.], [0., 0.]], ("row", "column")), "row", "column").tolist()
        [[1.0, 1.0], [0.0, 1.0]]
    """
    fn = jax.scipy.linalg.expm
    return apply_to_matrices(
        fn, [a], row, column, "RC", square=True, in_place=True, max_squarings=max_squarings
    )


def inv(a: "NamedArray", row: AxisSelection, column: AxisSelection) -> "NamedArray":
    """Return the inverse of square matrices, which maps vectors over `row` to vectors over `column`.

    So `inv(a, row, column).dot(b, axis=row)` is `solve(a, b, row, column)`, and the element at row i and column j is
    at (j, i) in the positional inverse.

    Args:
        a: axes {row, column, ...}.
        row: the axes that `a` maps to.
        column: the axes that `a` maps from.

    Returns:
        The axes of `a`; in storage the two names swap places.

    Examples:
        >>> a = axn.named([[1., 2.], [0., 1.]], ("row", "column"))
        >>> axn.linalg.inv(a, "row", "column")
        NamedArray(float32[column=2, row=2])
        [[ 1. -2.]
         [ 0.  1.]]
    """
    return apply_to_matrices(jnp.linalg.inv, [a], row, column, "CR", square=True, in_place=True)


def lstsq(
    a: "NamedArray",
    b: Operand,
    row: AxisSelection,
    column: AxisSelection,
    new_axis: AxisSelector,
    *,
    rcond: Operand | None = None,
) -> "tuple[NamedArray, NamedArray, NamedArray, NamedArray]":
    """Return the shortest `x` that minimises the sum of squares of `a x - b`.

    Args:
        a: axes {row, column, ...}.
        b: axes {row, ...}; each position of axes that `a` lacks is a separate problem with the same matrix.
        row: the axes of the equations.
        column: the axes of the unknowns.
        new_axis: the axis that numbers the singular values.
        rcond: singular values below this fraction of the largest one count as zero.

    Returns:
        The solution over the axes of `b`, with `column` instead of `row`; the residual sums of squares, which numpy
        leaves out for some shapes and ranks; the rank of `a`; its singular values over {new_axis, ...}.

    Examples:
        >>> a = axn.named([[1.], [1.]], ("row", "column"))
        >>> x, residual, rank, s = axn.linalg.lstsq(a, axn.named([1., 3.], "row"), "row", "column", "k")
        >>> x.round(3).tolist()
        [2.0]
    """
    operands = _append_bound([a, b], rcond)
    out = ("CE", "E", "", "K")
    return apply_to_matrices(
        jnp.linalg.lstsq, operands, row, column, out, new_axis=new_axis, each=True
    )


def _append_bound(operands: list[Operand], bound: Operand | None) -> list[Operand]:
    """Append a bound for singular values that count as zero; without one, JAX chooses it."""
    return operands if bound is None else [*operands, bound]


def matrix_power(
    a: "NamedArray", row: AxisSelection, column: AxisSelection, n: int
) -> "NamedArray":
    """Raise square matrices, which map a space to itself, to the power `n`.

    Args:
        a: axes {row, column, ...}.
        row: the axes that `a` maps to.
        column: the axes that `a` maps from.
        n: the power, static; a negative one inverts the matrices first.

    Returns:
        The axes of `a`. The result maps `column` to `row` too: the power -1 is `inv` with its two names swapped.

    Raises:
        OperandError: if `n` is not an int.

    Examples:
        >>> axn.linalg.matrix_power(axn.named([[1, 1], [0, 1]], ("row", "column")), "row", "column", 3).tolist()
        [[1, 3], [0, 1]]
    """
    if not isinstance(n, int | np.integer):
        problem = f"the power must be an int, not {type_text(n)}"
        raise OperandError(message("matrix_power", problem))
    return apply_to_matrices(
        jnp.linalg.matrix_power, [a], row, column, "RC", square=True, in_place=True, n=int(n)
    )


def matrix_rank(
    a: "NamedArray",
    row: AxisSelection,
    column: AxisSelection,
    *,
    tol: Operand | None = None,
    hermitian: bool = False,
) -> "NamedArray":
    """Return the rank of matrices: the number of singular values above a tolerance.

    Args:
        a: axes {row, column, ...}.
        row: the axes that `a` maps to.
        column: the axes that `a` maps from.
        tol: singular values up to this one count as zero.
        hermitian: whether the matrices are Hermitian, which is faster.

    Returns:
        Integers over the other axes of `a`.

    Examples:
        >>> axn.linalg.matrix_rank(axn.named([[1., 2.], [2., 4.]], ("row", "column")), "row", "column").item()
        1
    """
    operands = _append_bound([a], tol)
    return apply_to_matrices(_matrix_rank, operands, row, column, "", hermitian=hermitian)


def _matrix_rank(a: jax.Array, *bound: jax.Array, hermitian: bool) -> jax.Array:
    if 0 in a.shape[-2:]:  # JAX asks for the largest singular value
        return jnp.zeros(a.shape[:-2], int)
    rank: jax.Array = jnp.linalg.matrix_rank(a, *bound, hermitian=hermitian)
    return rank


def pinv(
    a: "NamedArray",
    row: AxisSelection,
    column: AxisSelection,
    *,
    rtol: Operand | None = None,
    hermitian: bool = False,
) -> "NamedArray":
    """Return the Moore-Penrose inverse of matrices, which like `inv` maps vectors over `row` to vectors over `column`.

    Args:
        a: axes {row, column, ...}.
        row: the axes that `a` maps to.
        column: the axes that `a` maps from.
        rtol: singular values up to this fraction of the largest one count as zero.
        hermitian: whether the matrices are Hermitian, which is faster.

    Returns:
        The axes of `a`; in storage the two names swap places.

    Examples:
        >>> axn.linalg.pinv(axn.named([[2.], [0.]], ("row", "column")), "row", "column").tolist()
        [[0.5, 0.0]]
    """
    operands = _append_bound([a], rtol)
    return apply_to_matrices(
        jnp.linalg.pinv, operands, row, column, "CR", in_place=True, hermitian=hermitian
    )


def slogdet(
    a: "NamedArray",
    row: AxisSelection,
    column: AxisSelection,
    *,
    method: Literal["lu", "qr"] | None = None,
) -> Pair:
    """Return the sign of the determinant of square matrices, and the logarithm of its absolute value.

    Args:
        a: axes {row, column, ...}.
        row: the axes that `a` maps to.
        column: the axes that `a` maps from.
        method: the factorisation to compute it from, "lu" (None) or "qr".

    Returns:
        The sign and the logarithm, over the other axes of `a`.

    Examples:
        >>> sign, log = axn.linalg.slogdet(axn.named([[-1.]], ("row", "column")), "row", "column")
        >>> sign.item(), log.item()
        (-1.0, 0.0)
    """
    one_of("slogdet", "method", method, (None, "lu", "qr"))
    return apply_to_matrices(
        jnp.linalg.slogdet, [a], row, column, ("", ""), square=True, method=method
    )


def solve(a: "NamedArray", b: Operand, row: AxisSelection, column: AxisSelection) -> "NamedArray":
    """Solve `a x = b` for square matrices.

    Args:
        a: axes {row, column, ...}.
        b: axes {row, ...}; along axes that `a` lacks, all systems are solved with one factorisation.
        row: the axes that `a` maps to, those of `b`.
        column: the axes that `a` maps from, those of the result.

    Returns:
        `x`, such that `a.dot(x, axis=column)` is `b`: the axes of `b`, with `column` instead of `row`.

    Examples:
        >>> a = axn.named([[2., 0.], [0., 4.]], ("row", "column"))
        >>> axn.linalg.solve(a, axn.named([2., 2.], "row"), "row", "column")
        NamedArray(float32[column=2])
        [1.  0.5]
    """
    return apply_to_matrices(jnp.linalg.solve, [a, b], row, column, "CE", square=True)


def solve_triangular(
    a: "NamedArray",
    b: Operand,
    row: AxisSelection,
    column: AxisSelection,
    *,
    lower: bool = False,
    unit_diagonal: bool = False,
) -> "NamedArray":
    """Solve `a x = b` for triangular matrices; only the triangle is read.

    To solve with the transpose, swap `row` and `column`: the transpose of a lower triangle is an upper one.

    Args:
        a: axes {row, column, ...}.
        b: axes {row, ...}; as in `solve`.
        row: the axes that `a` maps to, those of `b`.
        column: the axes that `a` maps from, those of the result.
        lower: whether the triangle is the lower one: column up to row.
        unit_diagonal: whether to take the diagonal as ones, without reading it.

    Returns:
        `x`: the axes of `b`, with `column` instead of `row`.

    Examples:
        >>> a, b = axn.named([[2., 2.], [0., 1.]], ("row", "column")), axn.named([4., 1.], "row")
        >>> axn.linalg.solve_triangular(a, b, "row", "column").tolist()
        [1.0, 1.0]
    """
    options = {"lower": lower, "unit_diagonal": unit_diagonal}
    return apply_to_matrices(
        jax.scipy.linalg.solve_triangular, [a, b], row, column, "CE", square=True, **options
    )


def vdot(x: "NamedArray", y: "NamedArray") -> "NamedArray":
    """Multiply the complex conjugate of `x` by `y` and sum over all axes.

    Args:
        x: any axes.
        y: the same axes.

    Returns:
        A 0-d array.

    Raises:
        AxisNotFoundError: if one of the two lacks an axis.

    Examples:
        >>> axn.vdot(axn.named([1j, 2], "x"), axn.named([1j, 1], "x")).item()
        (3+0j)
    """
    return contract.dot(elementwise.conj(x), y, axis=None)


def vecdot(x: "NamedArray", y: "NamedArray", axis: AxisSelection) -> "NamedArray":
    """Multiply the complex conjugate of `x` by `y` and sum over `axis`: `dot` for vectors that may be complex.

    Args:
        x: axes {axis, ...}.
        y: axes {axis, ...}; other axes are matched by name.
        axis: the axes to sum over.

    Returns:
        The axes of both except `axis`.

    Raises:
        AxisNotFoundError: if one of the two lacks an axis to sum over.

    Examples:
        >>> axn.vecdot(axn.named([1j, 2], "x"), axn.named([1j, 1], "x"), "x").item()
        (3+0j)
    """
    return contract.dot(elementwise.conj(x), y, axis=axis)


explain_calls(globals(), __all__)
