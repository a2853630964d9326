"""The engine that turns functions of matrices into functions over named row and column axes, one or more each."""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, Any, overload

import jax
from jax import lax

from .. import plans
from ..axis import AxisSelection, AxisSelector, selection, selector, selectors
from ..core import Core, facts
from ..errors import AxisClashError, AxisSizeError, describe, message
from ..plans import Names
from . import _lift
from ._batch import batched

if TYPE_CHECKING:
    from ..array import NamedArray

Function = Callable[..., Any]


def matrix_axes(function: str, row: AxisSelection, column: AxisSelection) -> tuple[AxisSelector, ...]:
    """Return the axes of matrices in the order in which a function gets them."""
    return selectors((*selection(row, function), *selection(column, function)))


@overload
def over(
    fn: Function, operands: Sequence[Any], row: AxisSelection, column: AxisSelection, out: str, **options: Any
) -> "NamedArray": ...
@overload
def over(
    fn: Function,
    operands: Sequence[Any],
    row: AxisSelection,
    column: AxisSelection,
    out: tuple[str, str],
    **options: Any,
) -> "tuple[NamedArray, NamedArray]": ...
@overload
def over(
    fn: Function,
    operands: Sequence[Any],
    row: AxisSelection,
    column: AxisSelection,
    out: tuple[str, str, str],
    **options: Any,
) -> "tuple[NamedArray, NamedArray, NamedArray]": ...
@overload
def over(
    fn: Function,
    operands: Sequence[Any],
    row: AxisSelection,
    column: AxisSelection,
    out: tuple[str, str, str, str],
    **options: Any,
) -> "tuple[NamedArray, NamedArray, NamedArray, NamedArray]": ...
def over(
    fn: Function,
    operands: Sequence[Any],
    row: AxisSelection,
    column: AxisSelection,
    out: str | tuple[str, ...],
    *,
    new_axis: AxisSelector | None = None,
    square: bool = False,
    in_place: bool = False,
    each: bool = False,
    **options: Any,
) -> Any:
    """Apply a function of matrices over (row, column).

    Args:
        fn: the function; a second operand, the right-hand sides, is a matrix too.
        operands: the matrices; if `out` mentions E, the right-hand sides over `row`; then scalars.
        out: the axes of each result in one letter each: R for row, C for column, K for the new axis, and E for those
            of the right-hand sides that the matrices lack.
        new_axis: the new axis.
        square: whether there must be as many rows as columns.
        in_place: as in `batched`.
        each: as in `batched`.
        options: keyword arguments of `fn`, static and hashable.
    """
    function = _lift.title(fn)
    first, second = selection(row, function), selection(column, function)
    core: list[AxisSelection] = [selectors((*first, *second))]
    rows, columns = (tuple(name for name, _ in pairs) for pairs in (first, second))
    new = None if new_axis is None else selector(new_axis, function)
    patterns = out if isinstance(out, tuple) else (out,)
    extra: Names = ()
    if any("E" in pattern for pattern in patterns):
        a, b = operands[:2]
        known = a.names if isinstance(a, Core) else (*rows, *columns)
        if isinstance(b, Core):
            for name in b.names:
                if name in columns:
                    raise _both(function, name, a, b)
            extra = tuple(name for name in b.names if name not in known and name not in rows)
        core.append((*selectors(first), *extra))
    core += [()] * (len(operands) - len(core))
    table = {"R": rows, "C": columns, "E": extra, "K": (new[0],) if new else ()}
    names = tuple(tuple(name for letter in pattern for name in table[letter]) for pattern in patterns)
    adapted = _of_axes(fn, rows, columns, extra, new, square, out)
    outs: Any = names if isinstance(out, tuple) else names[0]
    return batched(adapted, operands, core, outs, in_place=in_place, each=each, **options)


def _both(function: str, name: str, a: Any, b: Core) -> AxisClashError:
    """Build the error for right-hand sides with an axis that the result would get."""
    lines = [f"operand {i} has: {facts(x)}" for i, x in enumerate((a, b), start=1) if isinstance(x, Core)]
    hint = f'rename that of the second operand: b.rename({{"{name}": "{name}_2"}})'
    return AxisClashError(
        message(function, f"both operands have axis {name!r}, which is the axis of the unknowns", *lines, hint=hint)
    )


@lru_cache(plans.CACHE)
def _of_axes(
    fn: Function,
    rows: Names,
    columns: Names,
    extra: Names,
    new: tuple[str, int | None] | None,
    square: bool,
    out: str | tuple[str, ...],
) -> Function:
    """Convert a function of matrices to one of arrays whose last dimensions are the given axes."""
    function = _lift.title(fn)
    sided = any("E" in pattern for pattern in out)

    @wraps(fn)
    def of_axes(array: jax.Array, *others: jax.Array, **options: Any) -> Any:
        at = array.ndim - len(rows) - len(columns)
        lead, shape = array.shape[:at], array.shape[at:]
        sizes = {"R": shape[: len(rows)], "C": shape[len(rows) :], "E": ()}
        height, width = math.prod(sizes["R"]), math.prod(sizes["C"])
        if square and height != width:
            held = f"rows {describe(rows, sizes['R'])}, columns {describe(columns, sizes['C'])}"
            hint = "pinv, lstsq, qr and svd take matrices of any shape"
            raise AxisSizeError(message(function, "the matrix is not square", f"it has: {held}", hint=hint))
        matrix = _reshaped(array, (*lead, height, width))
        if sided:
            sides = others[0]
            at = sides.ndim - len(rows) - len(extra)
            sizes["E"] = sides.shape[at + len(rows) :]
            # All operands get the same number of dimensions, by which JAX distinguishes vectors from matrices.
            ones = (1,) * (matrix.ndim - at - 2)
            sides = _reshaped(sides, (*ones, *sides.shape[:at], height, math.prod(sizes["E"])))
            others = (sides, *others[1:])
        results = fn(matrix, *others, **options)
        if isinstance(out, str):
            return _unflattened(function, results, out, sizes, new)
        return tuple(_unflattened(function, r, p, sizes, new) for r, p in zip(results, out, strict=True))

    return of_axes


def _unflattened(
    function: str,
    result: jax.Array,
    pattern: str,
    sizes: dict[str, tuple[int, ...]],
    new: tuple[str, int | None] | None,
) -> jax.Array:
    """Unflatten the last dimensions of a result, one per letter, to the sizes of their axes."""
    at = result.ndim - len(pattern)
    table = {**sizes, "K": (result.shape[at + pattern.index("K")],)} if "K" in pattern else sizes
    if new and "K" in pattern:
        _lift.check_given(function, (new,), (new[0],), table["K"])
    return _reshaped(result, (*result.shape[:at], *(size for letter in pattern for size in table[letter])))


def _reshaped(array: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return array if array.shape == shape else lax.reshape(array, shape)
