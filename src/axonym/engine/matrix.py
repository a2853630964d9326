"""Internal. The engine that turns functions of matrices into functions over named row and column axes.

`ops.linalg` calls it. Rows and columns may be several axes each: they are flattened to a matrix, and the axes of the
result come from a pattern of letters.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, Any, TypeVar, overload

import jax
from jax import lax

from ..axis import AxisSelection, AxisSelector, names_in, selection, selector, selectors
from ..base.kinds import Payload, to_tuple
from ..errors import AxisClashError, AxisSizeError, describe, message
from ..names import plans
from ..names.plans import Names
from . import checks
from .batched import apply_batched
from .core import Core
from .operands import own_names

if TYPE_CHECKING:
    from ..array import NamedArray

Function = Callable[..., Any]
E = TypeVar("E")


def matrix_axes(
    function: str, row: AxisSelection, column: AxisSelection
) -> tuple[AxisSelector, ...]:
    """Return the axes of matrices in the order in which a function gets them."""
    return selectors((*selection(row, function), *selection(column, function)))


@overload
def apply_to_matrices(
    fn: Function,
    operands: Sequence[Payload],
    row: AxisSelection,
    column: AxisSelection,
    out: str,
    **options: Any,
) -> "NamedArray": ...
@overload
def apply_to_matrices(
    fn: Function,
    operands: Sequence[Payload],
    row: AxisSelection,
    column: AxisSelection,
    out: tuple[str, str],
    **options: Any,
) -> "tuple[NamedArray, NamedArray]": ...
@overload
def apply_to_matrices(
    fn: Function,
    operands: Sequence[Payload],
    row: AxisSelection,
    column: AxisSelection,
    out: tuple[str, str, str],
    **options: Any,
) -> "tuple[NamedArray, NamedArray, NamedArray]": ...
@overload
def apply_to_matrices(
    fn: Function,
    operands: Sequence[Payload],
    row: AxisSelection,
    column: AxisSelection,
    out: tuple[str, str, str, str],
    **options: Any,
) -> "tuple[NamedArray, NamedArray, NamedArray, NamedArray]": ...
def apply_to_matrices(
    fn: Function,
    operands: Sequence[Payload],
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
        in_place: as in `apply_batched`.
        each: as in `apply_batched`.
        options: keyword arguments of `fn`, static and hashable.
    """
    function = checks.title(fn)
    first, second = selection(row, function), selection(column, function)
    core: list[AxisSelection] = [selectors((*first, *second))]
    rows, columns = names_in(first), names_in(second)
    new = None if new_axis is None else selector(new_axis, function)
    new_names: Names = () if new is None else new[:1]
    # One letter for each axis of a result; a function with several results has a pattern for each.
    patterns = to_tuple(out)
    extra: Names = ()
    if "E" in "".join(patterns):
        extra = _find_side_axes(function, operands[0], operands[1], rows, columns)
        # Right-hand sides share the rows, and their further axes are columns to solve for.
        core.append((*selectors(first), *extra))
    # Further operands, such as a tolerance, are scalars.
    core += [()] * (len(operands) - len(core))
    table = {"R": rows, "C": columns, "E": extra, "K": new_names}
    names = tuple(_expand_pattern(pattern, table) for pattern in patterns)
    adapted = _adapt(fn, rows, columns, extra, new, square, out)
    outs: Any = names[0] if isinstance(out, str) else names
    # JAX cannot split a decomposition: each device has all rows and columns, unless no result has any.
    whole = any(patterns)
    return apply_batched(
        adapted, operands, core, outs, in_place=in_place, each=each, whole=whole, **options
    )


def _expand_pattern(pattern: str, table: Mapping[str, tuple[E, ...]]) -> tuple[E, ...]:
    """Replace each letter of a pattern by its value in a table."""
    return tuple(itertools.chain.from_iterable(plans.values_at(table, pattern)))


def _find_side_axes(function: str, a: object, b: object, rows: Names, columns: Names) -> Names:
    """Return the axes that only the right-hand sides have; the axes of the unknowns must not be among them."""
    own, known = own_names(b), a.names if isinstance(a, Core) else columns
    for name in plans.intersect(own, columns):
        lines = checks.facts_by_number((a, b))
        problem = f"both operands have axis {name!r}, which is the axis of the unknowns"
        hint = f'rename that of the second operand: b.rename({{"{name}": "{name}_2"}})'
        raise AxisClashError(message(function, problem, *lines, hint=hint))
    return plans.without(own, (*known, *rows))


# Cached, so that the same function of arrays comes back, and with it the kernel that `apply_batched` has kept.
@lru_cache(plans.CACHE)
def _adapt(
    fn: Function,
    rows: Names,
    columns: Names,
    extra: Names,
    new: tuple[str, int | None] | None,
    square: bool,
    out: str | tuple[str, ...],
) -> Function:
    """Convert a function of matrices to one of arrays whose last dimensions are the given axes."""
    function = checks.title(fn)
    sided = "E" in "".join(out)

    @wraps(fn)
    def of_axes(array: jax.Array, *others: jax.Array, **options: object) -> Any:
        at = array.ndim - len(rows) - len(columns)
        lead, shape = array.shape[:at], array.shape[at:]
        sizes = {"R": shape[: len(rows)], "C": shape[len(rows) :], "E": ()}
        # Several axes become one dimension in the order in which they were named.
        height, width = math.prod(sizes["R"]), math.prod(sizes["C"])
        if square and height != width:
            held = f"rows {describe(rows, sizes['R'])}, columns {describe(columns, sizes['C'])}"
            hint = "pinv, lstsq, qr and svd take matrices of any shape"
            problem = "the matrix is not square"
            raise AxisSizeError(message(function, problem, f"it has: {held}", hint=hint))
        matrix = _reshape(array, (*lead, height, width))
        if sided:
            sides = others[0]
            at = sides.ndim - len(rows) - len(extra)
            sizes["E"] = sides.shape[at + len(rows) :]
            # All operands get the same number of dimensions, by which JAX distinguishes vectors from matrices.
            ones = (1,) * (matrix.ndim - at - 2)
            sides = _reshape(sides, (*ones, *sides.shape[:at], height, math.prod(sizes["E"])))
            others = (sides, *others[1:])
        results = fn(matrix, *others, **options)
        # Flattened rows become axes again, of the matrix's own sizes.
        if isinstance(out, str):
            return _unflatten(function, results, out, sizes, new)
        pairs = zip(results, out, strict=True)
        return tuple(_unflatten(function, each, own, sizes, new) for each, own in pairs)

    return of_axes


def _unflatten(
    function: str,
    result: jax.Array,
    pattern: str,
    sizes: dict[str, tuple[int, ...]],
    new: tuple[str, int | None] | None,
) -> jax.Array:
    """Unflatten the last dimensions of a result, one per letter, to the sizes of their axes."""
    at = result.ndim - len(pattern)
    table = dict(sizes)
    if "K" in pattern:
        # Only the function knows the size of the new axis, such as the smaller one of rows and columns.
        table["K"] = (result.shape[at + pattern.index("K")],)
        if new is not None:
            checks.check_given(function, (new,), new[:1], table["K"])
    return _reshape(result, (*result.shape[:at], *_expand_pattern(pattern, table)))


def _reshape(array: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return array if array.shape == shape else lax.reshape(array, shape)
