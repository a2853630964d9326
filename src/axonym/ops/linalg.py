"""Linear algebra over named axes: `axn.linalg`.

A matrix over the axes (row, column) maps vectors over `column` to vectors over `row`:
`a.dot(v, axis=column)` is over `row`. Maps in the other direction have their names swapped: `solve(a, b, row, column)`
takes `b` over `row` and returns the solution over `column`, and `inv(a, row, column)` maps vectors over `row` to
vectors over `column`. Its element at row i and column j is at (j, i) in the positional inverse.

`row` and `column` may each be several axes, flattened in the given order: `solve` and `inv` are then numpy's
tensorsolve and tensorinv. All other axes are batch axes. Names for new axes are arguments.
"""

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np

from ..axis import AxisSelection, AxisSelector, selection, selector, selectors
from ..core import Core, Operand
from ..dtypes import as_inexact, of_one_rank
from ..engine import checks, reduction
from ..engine.batched import batched
from ..engine.matrix import matrix_axes, over
from ..engine.operands import one_of
from ..engine.root import root
from ..errors import ArgumentError, AxisError, AxisSizeError, OperandError, message
from ..faults.lost_nan import restore_nan
from ..kinds import type_text
from . import contract, elementwise
from .contract import outer as outer  # numpy has it here too

if TYPE_CHECKING:
    from ..array import NamedArray


__all__ = [
    "cho_solve",
    "cholesky",
    "cond",
    "cross",
    "det",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "expm",
    "inv",
    "lstsq",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "norm",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "solve_triangular",
    "svd",
    "svdvals",
    "vdot",
    "vecdot",
    "vector_norm",
]


Pair: TypeAlias = "tuple[NamedArray, NamedArray]"

_ORDERS = ("fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf)


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
    return over(_cho_solve, [factor, b], row, column, "CE", square=True, lower=not upper)


def _cho_solve(factor: jax.Array, b: jax.Array, *, lower: bool) -> jax.Array:
    return jax.scipy.linalg.cho_solve((factor, lower), b)


def cholesky(
    a: "NamedArray",
    row: AxisSelection,
    column: AxisSelection,
    *,
    upper: bool = False,
    symmetrize_input: bool = True,
) -> "NamedArray":
    """Factor Hermitian positive definite matrices into a lower triangle and its adjoint.

    Args:
        a: axes {row, column, ...}.
        row: the axes that `a` maps to.
        column: the axes that `a` maps from.
        upper: return the upper triangle, whose adjoint is the first factor.
        symmetrize_input: use the mean of `a` and its adjoint; otherwise only the returned triangle of `a` is read.

    Returns:
        The triangle over the axes of `a`; NaN if the matrix is not positive definite.

    Examples:
        >>> axn.linalg.cholesky(axn.named([[4., 2.], [2., 2.]], ("row", "column")), "row", "column").tolist()
        [[2.0, 0.0], [1.0, 1.0]]
    """
    options = {"upper": upper, "symmetrize_input": symmetrize_input}
    return over(jnp.linalg.cholesky, [a], row, column, "RC", square=True, in_place=True, **options)


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
    return over(jnp.linalg.cond, [x], row, column, "", square=p not in (None, 2, -2), p=p)


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
    return batched(_cross, [x, y], [given, given], (name,), in_place=True, name=name)


def _cross(x: jax.Array, y: jax.Array, *, name: str) -> jax.Array:
    if x.shape[-1] != 3:
        raise AxisSizeError(
            message("cross", f"axis {name!r} has size {x.shape[-1]}, but must have size 3")
        )
    return jnp.cross(*of_one_rank(x, y))


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
    return over(jnp.linalg.det, [a], row, column, "", square=True)


def eig(a: "NamedArray", row: AxisSelection, column: AxisSelection, new_axis: AxisSelector) -> Pair:
    """Return the eigenvalues and eigenvectors of square matrices, both complex.

    JAX supports this on CPUs and some GPUs, without gradients of the eigenvectors.

    Args:
        a: axes {row, column, ...}.
        row: the axes that `a` maps to.
        column: the axes that `a` maps from.
        new_axis: the axis that numbers the eigenvalues.

    Returns:
        The eigenvalues over {new_axis, ...} and the eigenvectors over {row, new_axis, ...}.

    Examples:
        >>> a = axn.named([[2., 0.], [0., 1.]], ("row", "column"))
        >>> w, v = axn.linalg.eig(a, "row", "column", "k")
        >>> w.names, v.names
        (('k',), ('row', 'k'))
    """
    return over(jnp.linalg.eig, [a], row, column, ("K", "RK"), new_axis=new_axis, square=True)


def eigh(
    a: "NamedArray",
    row: AxisSelection,
    column: AxisSelection,
    new_axis: AxisSelector,
    *,
    UPLO: Literal["L", "U"] = "L",
    symmetrize_input: bool = True,
) -> Pair:
    """Return the eigenvalues of Hermitian matrices in ascending order, and orthonormal eigenvectors.

    Args:
        a: axes {row, column, ...}.
        row: the axes that `a` maps to.
        column: the axes that `a` maps from.
        new_axis: the axis that numbers the eigenvalues.
        UPLO: the triangle that is read, lower ("L") or upper ("U"), unless `symmetrize_input`.
        symmetrize_input: use the mean of `a` and its adjoint.

    Returns:
        The eigenvalues over {new_axis, ...} and the eigenvectors over {row, new_axis, ...}.

    Examples:
        >>> a = axn.named([[2., 0.], [0., 1.]], ("row", "column"))
        >>> w, v = axn.linalg.eigh(a, "row", "column", "k")
        >>> w.tolist(), v.names
        ([1.0, 2.0], ('row', 'k'))
    """
    one_of("eigh", "UPLO", UPLO, ("L", "U"))
    options = {"UPLO": UPLO, "symmetrize_input": symmetrize_input}
    return over(
        jnp.linalg.eigh, [a], row, column, ("K", "RK"), new_axis=new_axis, square=True, **options
    )


def eigvals(
    a: "NamedArray", row: AxisSelection, column: AxisSelection, new_axis: AxisSelector
) -> "NamedArray":
    """Return the eigenvalues of square matrices, complex and in no particular order.

    Args:
        a: axes {row, column, ...}.
        row: the axes that `a` maps to.
        column: the axes that `a` maps from.
        new_axis: the axis that numbers the eigenvalues.

    Returns:
        Axes {new_axis, ...}.

    Examples:
        >>> axn.linalg.eigvals(axn.named([[2.]], ("row", "column")), "row", "column", "k").tolist()
        [(2+0j)]
    """
    return over(jnp.linalg.eigvals, [a], row, column, "K", new_axis=new_axis, square=True)


def eigvalsh(
    a: "NamedArray",
    row: AxisSelection,
    column: AxisSelection,
    new_axis: AxisSelector,
    *,
    UPLO: Literal["L", "U"] = "L",
    symmetrize_input: bool = True,
) -> "NamedArray":
    """Return the eigenvalues of Hermitian matrices in ascending order.

    Args:
        a: axes {row, column, ...}.
        row: the axes that `a` maps to.
        column: the axes that `a` maps from.
        new_axis: the axis that numbers the eigenvalues.
        UPLO: as in `eigh`.
        symmetrize_input: as in `eigh`.

    Returns:
        Axes {new_axis, ...}.

    Examples:
        >>> axn.linalg.eigvalsh(axn.named([[2.]], ("row", "column")), "row", "column", "k").tolist()
        [2.0]
    """
    one_of("eigvalsh", "UPLO", UPLO, ("L", "U"))
    options = {"UPLO": UPLO, "symmetrize_input": symmetrize_input}
    return over(
        jnp.linalg.eigvalsh, [a], row, column, "K", new_axis=new_axis, square=True, **options
    )


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
    return over(fn, [a], row, column, "RC", square=True, in_place=True, max_squarings=max_squarings)


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
    return over(jnp.linalg.inv, [a], row, column, "CR", square=True, in_place=True)


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
    return over(jnp.linalg.lstsq, operands, row, column, out, new_axis=new_axis, each=True)


def _append_bound(operands: list[Operand], bound: Operand | None) -> list[Operand]:
    """Append a bound for singular values that count as zero; without one, JAX chooses it."""
    return operands if bound is None else [*operands, bound]


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
    return over(_matrix_norm_of, [x], row, column, "", ord=ord)


def _matrix_norm_of(array: jax.Array, *, ord: Any) -> jax.Array:
    found: jax.Array = jnp.linalg.matrix_norm(array, ord=ord)
    if ord in (1, -1, np.inf, -np.inf):  # the largest or smallest sum, which may lose a NaN
        return restore_nan(found, array, (-2, -1))
    return found


def _matrix_norm(array: jax.Array, axis: tuple[int, ...]) -> jax.Array:
    return _vector_norm(array, axis)


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
    return over(
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
    return over(jnp.linalg.matrix_rank, operands, row, column, "", hermitian=hermitian)


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
        raise checks.unnamed("norm", x)
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
    return over(jnp.linalg.norm, [x], row, column, "", ord=ord, axis=(-2, -1))


def _norm(array: jax.Array, axis: tuple[int, ...], ord: object = 2) -> jax.Array:
    return _vector_norm(array, axis, ord)


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
    return over(jnp.linalg.pinv, operands, row, column, "CR", in_place=True, hermitian=hermitian)


def qr(
    a: "NamedArray",
    row: AxisSelection,
    column: AxisSelection,
    new_axis: AxisSelector,
    *,
    mode: Literal["reduced", "complete"] = "reduced",
) -> Pair:
    """Factor matrices into orthonormal columns and an upper triangle.

    Args:
        a: axes {row, column, ...}.
        row: the axes that `a` maps to.
        column: the axes that `a` maps from.
        new_axis: the axis between the factors, over which their product is `a`.
        mode: "reduced" (the new axis is as long as the shorter of row and column) or "complete" (as long as row).

    Returns:
        Axes {row, new_axis, ...} and {new_axis, column, ...}.

    Examples:
        >>> a = axn.named([[0., 2.], [1., 0.], [0., 0.]], ("row", "column"))
        >>> q, r = axn.linalg.qr(a, "row", "column", "k")
        >>> q.axes, axn.allclose(q.dot(r, axis="k"), a).item()
        ((Axis(name='row', size=3), Axis(name='k', size=2)), True)
    """
    one_of("qr", "mode", mode, ("reduced", "complete"))
    return over(jnp.linalg.qr, [a], row, column, ("RK", "KC"), new_axis=new_axis, mode=mode)


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
    return over(jnp.linalg.slogdet, [a], row, column, ("", ""), square=True, method=method)


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
    return over(jnp.linalg.solve, [a, b], row, column, "CE", square=True)


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
    return over(
        jax.scipy.linalg.solve_triangular, [a, b], row, column, "CE", square=True, **options
    )


def svd(
    a: "NamedArray",
    row: AxisSelection,
    column: AxisSelection,
    new_axis: AxisSelector,
    *,
    full_matrices: bool = False,
    hermitian: bool = False,
) -> "tuple[NamedArray, NamedArray, NamedArray]":
    """Factor matrices into orthonormal columns, singular values in descending order, and orthonormal rows.

    Args:
        a: axes {row, column, ...}.
        row: the axes that `a` maps to.
        column: the axes that `a` maps from.
        new_axis: the axis that numbers the singular values, as long as the shorter of row and column.
        full_matrices: complete the bases: `new_axis` is as long as row in the first result, and as long as column in
            the last.
        hermitian: whether the matrices are Hermitian, which is faster.

    Returns:
        Axes {row, new_axis, ...}, {new_axis, ...} and {new_axis, column, ...}.

    Examples:
        >>> a = axn.named([[3., 0., 0.], [0., 0., 2.]], ("row", "column"))
        >>> u, s, vh = axn.linalg.svd(a, "row", "column", "k")
        >>> s.tolist(), axn.allclose((u * s).dot(vh, axis="k"), a).item()
        ([3.0, 2.0], True)
    """
    options = {"full_matrices": full_matrices, "hermitian": hermitian}
    return over(jnp.linalg.svd, [a], row, column, ("RK", "K", "KC"), new_axis=new_axis, **options)


def svdvals(
    a: "NamedArray", row: AxisSelection, column: AxisSelection, new_axis: AxisSelector
) -> "NamedArray":
    """Return the singular values of matrices in descending order.

    Args:
        a: axes {row, column, ...}.
        row: the axes that `a` maps to.
        column: the axes that `a` maps from.
        new_axis: the axis that numbers the singular values, as long as the shorter of row and column.

    Returns:
        Axes {new_axis, ...}.

    Examples:
        >>> axn.linalg.svdvals(axn.named([[0., 2.]], ("row", "column")), "row", "column", "k").tolist()
        [2.0]
    """
    return over(jnp.linalg.svdvals, [a], row, column, "K", new_axis=new_axis)


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
    array = as_inexact(array)
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
