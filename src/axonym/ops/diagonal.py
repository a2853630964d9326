"""Diagonals and triangles: functions of two axes of an array as the rows and columns of matrices."""

import operator
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike, DTypeLike

from ..axis import AxisSelector, Pairs, names_in, selection, selector
from ..base.calls import explain_calls
from ..base.kinds import type_text
from ..engine import checks, kernels, pointwise, reduction
from ..engine.batched import apply_batched
from ..engine.core import Core, Operand, shape_of, wrap
from ..engine.operands import own_names
from ..errors import OperandError, message
from ..faults.shared_paddings import separate_padding
from ..names import plans
from ..names.plans import Names

if TYPE_CHECKING:
    from ..array import NamedArray

__all__ = ["diag", "diagonal", "fill_diagonal", "trace", "tril", "triu"]


def diag(
    x: "NamedArray", axis: AxisSelector, rows: AxisSelector, columns: AxisSelector, k: int = 0
) -> "NamedArray":
    """Put the elements along an axis on a diagonal of matrices; all other elements are zero.

    `jnp.diag` of a matrix extracts a diagonal; here `diagonal` does this.

    Args:
        x: axes {axis, ...}.
        axis: the axis of the elements, which is removed.
        rows: the name of the rows, of size `axis + abs(k)`.
        columns: the name of the columns, of the same size.
        k: the diagonal: 0 is the main one, positive numbers are above it.

    Returns:
        Axes {..., rows, columns}.

    Raises:
        AxisNotFoundError: if `axis` is missing.
        AxisSizeError: if `rows` or `columns` is an `Axis` of another size.

    Examples:
        >>> axn.diag(axn.named([1, 2], "x"), "x", "row", "column")
        NamedArray(int32[row=2, column=2])
        [[1 0]
         [0 2]]
    """
    pair = selector(rows, "diag"), selector(columns, "diag")
    names = (pair[0][0], pair[1][0])
    return apply_batched(
        _diag, (x,), (axis,), names, whole=True, pair=pair, k=_check_offset("diag", k)
    )


def _diag(array: jax.Array, *, pair: Pairs, k: int) -> jax.Array:
    size = array.shape[-1] + abs(k)
    for given in pair:
        checks.require_size("diag", given, size, "the matrix has size {}")
    before = [(0, 0)] * (array.ndim - 1)
    # Column c holds the element of the row in which the diagonal crosses it.
    along_columns = jnp.pad(separate_padding(array), [*before, (max(k, 0), max(-k, 0))])
    is_on = _number_diagonals((size, size), (-2, -1)) == k
    return jnp.where(is_on, along_columns[..., None, :], _make_zero(array))


def _make_zero(array: jax.Array) -> jax.Array:
    """Return a scalar zero with the dtype and the mesh of an array."""
    # A constant would belong to no mesh, which `jnp.where` under Explicit axes does not accept.
    return lax.full_like(array, 0, shape=())


def _check_offset(function: str, k: int) -> int:
    """Check the number of a diagonal, which must be static because sizes depend on it."""
    try:
        return operator.index(k)
    except TypeError:
        problem = f"the diagonal offset must be an int, not {type_text(k)}"
        raise OperandError(message(function, problem)) from None


def _number_diagonals(shape: Sequence[int], at: tuple[int, ...]) -> jax.Array:
    """Return the diagonal, in the dimensions `at`, of each element: 0 for the main one, positive above it.

    The other dimensions have size 1.
    """
    # Thin, so that what is compared broadcasts to the other dimensions without being stored for them.
    row, column = (i + len(shape) for i in at)
    thin = [1] * len(shape)
    thin[row], thin[column] = shape[row], shape[column]
    numbers = partial(lax.broadcasted_iota, jnp.int32, thin)
    return numbers(column) - numbers(row)


def diagonal(
    x: "NamedArray",
    axis1: AxisSelector,
    axis2: AxisSelector,
    new_axis: AxisSelector,
    offset: int = 0,
) -> "NamedArray":
    """Take the diagonal of the matrices that two axes span.

    Args:
        x: axes {axis1, axis2, ...}.
        axis1: the rows, which are removed.
        axis2: the columns, which are removed.
        new_axis: the axis along the diagonal; it may have the name of one of the two.
        offset: the diagonal: 0 is the main one, positive numbers are above it.

    Returns:
        Axes {..., new_axis}.

    Raises:
        AxisNotFoundError: if `axis1` or `axis2` is missing.
        AxisSizeError: if `new_axis` is an `Axis` of another size than the diagonal.

    Examples:
        >>> x = axn.arange((axn.Axis("row", 2), axn.Axis("column", 3)))
        >>> axn.diagonal(x, "row", "column", "row", offset=1)
        NamedArray(int32[row=2])
        [1 5]
    """
    new = selector(new_axis, "diagonal")
    offset = _check_offset("diagonal", offset)
    return apply_batched(_diagonal, (x,), ((axis1, axis2),), (new[0],), new=new, offset=offset)


def _diagonal(array: jax.Array, *, new: tuple[str, int | None], offset: int) -> jax.Array:
    result: jax.Array = jnp.diagonal(array, offset, -2, -1)
    size = result.shape[-1]
    checks.require_size("diagonal", new, size, "the diagonal has size {}")
    return result


def fill_diagonal(
    x: "NamedArray", axis1: AxisSelector, axis2: AxisSelector, value: Operand, k: int = 0
) -> "NamedArray":
    """Replace a diagonal of the matrices that two axes span.

    `jnp.fill_diagonal` repeats a sequence of values along the diagonal; here they are matched by name.

    Args:
        x: axes {axis1, axis2, ...}.
        axis1: the rows.
        axis2: the columns.
        value: a scalar, or an array whose axes are among those of `x`; with `axis1`, it has one value per row.
        k: the diagonal: 0 is the main one, positive numbers are above it.

    Returns:
        The axes and dtype of `x`.

    Raises:
        AxisNotFoundError: if `axis1` or `axis2` is missing.

    Examples:
        >>> x = axn.ones((axn.Axis("row", 2), axn.Axis("column", 2)), int)
        >>> axn.fill_diagonal(x, "row", "column", axn.named([7, 8], "row")).tolist()
        [[7, 1], [1, 8]]
    """
    if not isinstance(x, Core):
        raise checks.no_names("fill_diagonal", x)
    (array,), names = x.node
    given = selection((axis1, axis2), "fill_diagonal")
    pair = names_in(given)
    operands = (x, value)
    checks.run_plan("fill_diagonal", operands, plans.require, names, pair)
    # `pointwise.nary` may store the result in the order of `value`; the dimensions of the pair follow it.
    both = (names, own_names(value))
    target = checks.run_plan("fill_diagonal", operands, plans.broadcast, both)
    checks.check_given("fill_diagonal", given, names, shape_of("fill_diagonal", array, names))
    at = plans.positions(target, pair)
    return pointwise.nary(_fill_diagonal, x, value, at=at, k=_check_offset("fill_diagonal", k))


def _fill_diagonal(array: jax.Array, value: ArrayLike, *, at: tuple[int, ...], k: int) -> jax.Array:
    is_on = _number_diagonals(array.shape, at) == k
    return jnp.where(is_on, jnp.asarray(value).astype(array.dtype), array)


def trace(
    x: "NamedArray",
    axis1: AxisSelector,
    axis2: AxisSelector,
    offset: int = 0,
    dtype: DTypeLike | None = None,
) -> "NamedArray":
    """Sum the diagonal of the matrices that two axes span.

    Args:
        x: axes {axis1, axis2, ...}.
        axis1: the rows.
        axis2: the columns.
        offset: the diagonal: 0 is the main one, positive numbers are above it.
        dtype: the dtype of the result; by default that of `x`, or int for bool.

    Returns:
        The axes of `x` except the two.

    Examples:
        >>> axn.trace(axn.named([[1, 2], [3, 4]], ("row", "column")), "row", "column").item()
        5
    """
    offset = _check_offset("trace", offset)
    return reduction.reduction(_trace, x, (axis1, axis2), offset=offset, dtype=dtype)


def _trace(
    array: jax.Array, axis: tuple[int, int], *, offset: int, dtype: DTypeLike | None
) -> jax.Array:
    # Unlike jnp.trace, this works if Explicit mesh axes split the rows or the columns.
    is_on = _number_diagonals(array.shape, axis) == offset
    return jnp.sum(jnp.where(is_on, array, _make_zero(array)), axis, dtype)


def tril(x: "NamedArray", axis1: AxisSelector, axis2: AxisSelector, k: int = 0) -> "NamedArray":
    """Keep the lower triangle of the matrices that two axes span; all other elements become zero.

    Args:
        x: axes {axis1, axis2, ...}.
        axis1: the rows.
        axis2: the columns.
        k: the highest diagonal to keep: 0 is the main one, positive numbers are above it.

    Returns:
        The axes of `x`.

    Examples:
        >>> axn.tril(axn.named([[1, 2], [3, 4]], ("row", "column")), "row", "column").tolist()
        [[1, 0], [3, 4]]
    """
    return _keep_triangle("tril", x, axis1, axis2, k)


def triu(x: "NamedArray", axis1: AxisSelector, axis2: AxisSelector, k: int = 0) -> "NamedArray":
    """Keep the upper triangle of the matrices that two axes span; all other elements become zero.

    Args:
        x: axes {axis1, axis2, ...}.
        axis1: the rows.
        axis2: the columns.
        k: the lowest diagonal to keep: 0 is the main one, positive numbers are above it.

    Returns:
        The axes of `x`.

    Examples:
        >>> axn.triu(axn.named([[1, 2], [3, 4]], ("row", "column")), "row", "column").tolist()
        [[1, 2], [0, 4]]
    """
    return _keep_triangle("triu", x, axis1, axis2, k)


def _keep_triangle(
    function: str, x: "NamedArray", axis1: AxisSelector, axis2: AxisSelector, k: int
) -> "NamedArray":
    if not isinstance(x, Core):
        raise checks.no_names(function, x)
    (array,), names = x.node
    if k.__class__ is not int:
        k = _check_offset(function, k)
    # A lookup by the arguments as they are, before any of them is parsed, is what an eager call costs.
    try:
        kernel = _triangles[function][names, axis1, axis2, k]
    except (KeyError, TypeError):  # an axis that cannot be hashed is invalid
        kernel = checks.run_plan(function, (x,), _make_triangle, function, names, axis1, axis2, k)
        plans.keep(_triangles[function], (names, axis1, axis2, k), kernel)
    return wrap(x, kernel.call(array), names)


Triangles: TypeAlias = dict[tuple[Names, AxisSelector, AxisSelector, int], kernels.Kernel]
_triangles: dict[str, Triangles] = {"tril": {}, "triu": {}}


def _make_triangle(
    function: str, names: Names, axis1: AxisSelector, axis2: AxisSelector, k: int
) -> kernels.Kernel:
    given = selection((axis1, axis2), function)
    at = plans.positions(names, names_in(given))

    def body(array: jax.Array) -> jax.Array:
        shape = shape_of(function, array, names)
        checks.check_given(function, given, names, shape)
        offsets = _number_diagonals(shape[len(shape) - len(names) :], at)
        keep = offsets <= k if function == "tril" else offsets >= k
        return jnp.where(keep, array, _make_zero(array))

    return kernels.Kernel(names, body)


explain_calls(globals(), __all__)
