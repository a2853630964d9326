"""Diagonals and triangles: functions of two axes of an array as the rows and columns of matrices."""

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from .. import plans
from ..axis import AxisSelector, Pairs, selection, selector
from ..core import Core, Operand, shape_of
from ..errors import AxisError, AxisSizeError, OperandError, message
from ..plans import Names
from . import _lift
from ._batch import batched

if TYPE_CHECKING:
    from ..array import NamedArray

__all__ = ["diag", "diagonal", "fill_diagonal", "trace", "tril", "triu"]


def diag(x: "NamedArray", axis: AxisSelector, rows: AxisSelector, columns: AxisSelector, k: int = 0) -> "NamedArray":
    """Put the elements along an axis on a diagonal of matrices that are zero elsewhere.

    Args:
        x: axes {axis, ...}.
        axis: the axis of the elements, which is removed.
        rows: the name of the rows, of size `axis + abs(k)`.
        columns: the name of the columns, of the same size.
        k: the diagonal: 0 is the main one, positive numbers are above it.

    Returns:
        The array with axes {..., rows, columns}.

    Raises:
        AxisNotFoundError: if `axis` is missing.
        AxisSizeError: if `rows` or `columns` is an `Axis` of another size.

    Example:
        >>> axn.diag(axn.named([1, 2], "x"), "x", "row", "column")
        NamedArray(int32[row=2, column=2])
        [[1 0]
         [0 2]]
    """
    pair = selector(rows, "diag"), selector(columns, "diag")
    return batched(_diag, (x,), (axis,), (pair[0][0], pair[1][0]), pair=pair, k=_offset("diag", k))


def _diag(array: jax.Array, *, pair: Pairs, k: int) -> jax.Array:
    size = array.shape[-1] + abs(k)
    for name, given in pair:
        if given not in (None, size):
            problem = f"axis {name!r} was given with size {given}, but the matrix has size {size}"
            raise AxisSizeError(message("diag", problem))
    before = [(0, 0)] * (array.ndim - 1)
    # Column c holds the element of the row in which the diagonal crosses it.
    along_columns = jnp.pad(array, [*before, (max(k, 0), max(-k, 0))])
    return jnp.where(
        _offsets((size, size), (-2, -1)) == k, along_columns[..., None, :], lax.full_like(array, 0, shape=())
    )


def _offset(function: str, k: int) -> int:
    """Check the number of a diagonal, which must be static because sizes depend on it."""
    try:
        return operator.index(k)
    except TypeError:
        problem = f"the diagonal offset must be an int, not {type(k).__name__}"
        raise OperandError(message(function, problem)) from None


def _offsets(shape: Sequence[int], at: tuple[int, ...]) -> jax.Array:
    """Return the diagonal, in the dimensions `at`, of each element: 0 for the main one, positive above it.

    The other dimensions have size 1.
    """
    thin = [size if i - len(shape) in at else 1 for i, size in enumerate(shape)]
    row, column = (lax.broadcasted_iota(jnp.int32, thin, i + len(shape)) for i in at)
    return column - row


def diagonal(
    x: "NamedArray", axis1: AxisSelector, axis2: AxisSelector, new_axis: AxisSelector, offset: int = 0
) -> "NamedArray":
    """Take the diagonal of the matrices that two axes span.

    Args:
        x: axes {axis1, axis2, ...}.
        axis1: the rows, which are removed.
        axis2: the columns, which are removed.
        new_axis: the axis along the diagonal, the last axis of the result; it may have the name of one of the two.
        offset: the diagonal: 0 is the main one, positive numbers are above it.

    Raises:
        AxisNotFoundError: if `axis1` or `axis2` is missing.
        AxisSizeError: if `new_axis` is an `Axis` of another size than the diagonal.

    Example:
        >>> x = axn.arange((axn.Axis("row", 2), axn.Axis("column", 3)))
        >>> axn.diagonal(x, "row", "column", "row", offset=1)
        NamedArray(int32[row=2])
        [1 5]
    """
    new = selector(new_axis, "diagonal")
    return batched(_diagonal, (x,), ((axis1, axis2),), (new[0],), new=new, offset=_offset("diagonal", offset))


def _diagonal(array: jax.Array, *, new: tuple[str, int | None], offset: int) -> jax.Array:
    result: jax.Array = jnp.diagonal(array, offset, -2, -1)
    size = result.shape[-1]
    if new[1] not in (None, size):
        problem = f"axis {new[0]!r} was given with size {new[1]}, but the diagonal has size {size}"
        raise AxisSizeError(message("diagonal", problem))
    return result


def fill_diagonal(
    x: "NamedArray", axis1: AxisSelector, axis2: AxisSelector, value: Operand, k: int = 0
) -> "NamedArray":
    """Replace a diagonal of the matrices that two axes span; the order of axes and the dtype do not change.

    Args:
        x: axes {axis1, axis2, ...}.
        axis1: the rows.
        axis2: the columns.
        value: a scalar, or an array whose axes are among those of `x`; with `axis1`, it has one value per row.
        k: the diagonal: 0 is the main one, positive numbers are above it.

    Raises:
        AxisNotFoundError: if `axis1` or `axis2` is missing.

    Example:
        >>> x = axn.ones((axn.Axis("row", 2), axn.Axis("column", 2)), int)
        >>> axn.fill_diagonal(x, "row", "column", axn.named([7, 8], "row")).tolist()
        [[7, 1], [1, 8]]
    """
    if not isinstance(x, Core):
        raise _lift.unnamed("fill_diagonal", x)
    (array,), names = x.node
    given = selection((axis1, axis2), "fill_diagonal")
    pair = tuple(name for name, _ in given)
    try:
        plans.require(names, pair)
        target = plans.broadcast((names, value.node[1] if isinstance(value, Core) else ()))
    except AxisError as flaw:
        _lift.fail("fill_diagonal", flaw, x, value)
    _lift.check_given("fill_diagonal", given, names, shape_of("fill_diagonal", array, names))
    at = plans.positions(target, pair)
    return _lift.nary(_fill_diagonal, x, value, at=at, k=_offset("fill_diagonal", k))


def _fill_diagonal(array: jax.Array, value: Any, *, at: tuple[int, ...], k: int) -> jax.Array:
    return jnp.where(_offsets(array.shape, at) == k, jnp.asarray(value).astype(array.dtype), array)


def trace(
    x: "NamedArray", axis1: AxisSelector, axis2: AxisSelector, offset: int = 0, dtype: DTypeLike | None = None
) -> "NamedArray":
    """Sum the diagonal of the matrices that two axes span; both axes are removed.

    Args:
        x: axes {axis1, axis2, ...}.
        axis1: the rows.
        axis2: the columns.
        offset: the diagonal: 0 is the main one, positive numbers are above it.
        dtype: the dtype of the result; by default that of `x`, or int for bool.
    """
    return _lift.reduction(_trace, x, (axis1, axis2), offset=_offset("trace", offset), dtype=dtype)


def _trace(array: jax.Array, axis: tuple[int, int], *, offset: int, dtype: DTypeLike | None) -> jax.Array:
    # Unlike jnp.trace, this works if Explicit mesh axes split the rows or the columns.
    kept = jnp.where(_offsets(array.shape, axis) == offset, array, lax.full_like(array, 0, shape=()))
    return jnp.sum(kept, axis, dtype)


def tril(x: "NamedArray", axis1: AxisSelector, axis2: AxisSelector, k: int = 0) -> "NamedArray":
    """Keep the elements whose index in `axis2` is at most that in `axis1` plus `k`; the others become zero."""
    return _triangle("tril", x, axis1, axis2, k)


def triu(x: "NamedArray", axis1: AxisSelector, axis2: AxisSelector, k: int = 0) -> "NamedArray":
    """Keep the elements whose index in `axis2` is at least that in `axis1` plus `k`; the others become zero."""
    return _triangle("triu", x, axis1, axis2, k)


def _triangle(function: str, x: "NamedArray", axis1: AxisSelector, axis2: AxisSelector, k: int) -> "NamedArray":
    try:
        (array,), names = x.node
    except AttributeError:
        raise _lift.unnamed(function, x) from None
    if k.__class__ is not int:
        k = _offset(function, k)
    try:
        call = _triangles[function][names, axis1, axis2, k]
    except (KeyError, TypeError):  # an axis that cannot be hashed is invalid
        try:
            call = _triangular(function, names, axis1, axis2, k).call
        except AxisError as flaw:
            selection((axis1, axis2), function)  # which raises its own error
            _lift.fail(function, flaw, x)
        plans.keep(_triangles[function], (names, axis1, axis2, k), call)
    made: NamedArray = _lift.new(type(x))
    made.node = ((call(array),), names)
    return made


_triangles: dict[str, dict[Any, Any]] = {"tril": {}, "triu": {}}


def _triangular(function: str, names: Names, axis1: AxisSelector, axis2: AxisSelector, k: int) -> _lift.Kernel:
    given = selection((axis1, axis2), function)
    at = plans.positions(names, tuple(name for name, _ in given))

    def body(array: Any) -> Any:
        shape = shape_of(function, array, names)
        _lift.check_given(function, given, names, shape)
        offsets = _offsets(shape[len(shape) - len(names) :], at)
        keep = offsets <= k if function == "tril" else offsets >= k
        return jnp.where(keep, array, lax.full_like(array, 0, shape=()))

    return _lift.Kernel(names, body)
