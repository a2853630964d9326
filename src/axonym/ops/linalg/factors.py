"""Factors of matrices: triangles, singular values, eigenvalues, and the vectors that belong to them.

The axis between two factors, which numbers singular values or eigenvalues, is an argument.
"""

from typing import TYPE_CHECKING, Literal, TypeAlias

import jax.numpy as jnp

from ...axis import AxisSelection, AxisSelector
from ...base.calls import explain_calls
from ...engine.matrix import apply_to_matrices
from ...engine.operands import one_of

if TYPE_CHECKING:
    from ...array import NamedArray

__all__ = [
    "cholesky",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "qr",
    "svd",
    "svdvals",
]

Pair: TypeAlias = "tuple[NamedArray, NamedArray]"


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
    return apply_to_matrices(
        jnp.linalg.cholesky, [a], row, column, "RC", square=True, in_place=True, **options
    )


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
    return apply_to_matrices(
        jnp.linalg.eig, [a], row, column, ("K", "RK"), new_axis=new_axis, square=True
    )


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
    return apply_to_matrices(
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
    return apply_to_matrices(
        jnp.linalg.eigvals, [a], row, column, "K", new_axis=new_axis, square=True
    )


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
    return apply_to_matrices(
        jnp.linalg.eigvalsh, [a], row, column, "K", new_axis=new_axis, square=True, **options
    )


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
    return apply_to_matrices(
        jnp.linalg.qr, [a], row, column, ("RK", "KC"), new_axis=new_axis, mode=mode
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
    return apply_to_matrices(
        jnp.linalg.svd, [a], row, column, ("RK", "K", "KC"), new_axis=new_axis, **options
    )


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
    return apply_to_matrices(jnp.linalg.svdvals, [a], row, column, "K", new_axis=new_axis)


explain_calls(globals(), __all__)
