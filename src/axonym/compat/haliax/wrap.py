"""Conversion of functions of arrays to functions of named arrays."""

from typing import Any, Protocol, TypeAlias

from axonym import AxisSelection, AxisSelector, NamedArray, axis_name
from axonym.engine import Tree, facts, nary, selection, selectors, whole, wrap
from axonym.errors import ArgumentError, message

from ._adapt import Function, KindError, Operand, adapted
from ._elementwise import axisless_meets_plain, raw
from ._reduce import of_leaves

__all__ = [
    "ReductionFunction",
    "SimpleReductionFunction",
    "unwrap_namedarrays",
    "wrap_axiswise_call",
    "wrap_elemwise_binary",
    "wrap_elemwise_unary",
    "wrap_reduction_call",
]


Positions: TypeAlias = int | tuple[int, ...] | None  # in the form of `jax.numpy`


class ReductionFunction(Protocol):
    """A reduction over any axes, with an optional mask."""

    def __call__(
        self,
        array: NamedArray,
        axis: AxisSelection | None = None,
        where: NamedArray | None = None,
        **kwargs: object,
    ) -> NamedArray:
        """Reduce."""
        ...


class SimpleReductionFunction(Protocol):
    """A reduction over one axis or all of them."""

    def __call__(
        self, array: NamedArray, axis: AxisSelector | None = None, **kwargs: object
    ) -> NamedArray:
        """Reduce."""
        ...


def unwrap_namedarrays(*a: Any) -> tuple[Any, ...]:
    """Return the arrays of NamedArrays, and anything else unchanged."""
    return tuple(map(raw, a))


@adapted
def wrap_elemwise_unary(f: Function, a: Operand, *args: object, **kwargs: object) -> Any:
    """Apply a function of an array, which keeps its shape."""
    made = f(raw(a), *args, **kwargs)
    if isinstance(a, NamedArray):
        return wrap(a, made, a.names)
    return made


def wrap_elemwise_binary(op: Function) -> Function:
    """Convert a function of two arrays, which broadcasts by position, to one that broadcasts by name."""

    def wrap_elemwise_binary(a: object, b: object) -> Any:  # errors say this name
        return op(a, b)

    @adapted
    def call(a: Operand, b: Operand) -> Any:
        is_named = isinstance(a, NamedArray) or isinstance(b, NamedArray)
        if not is_named or axisless_meets_plain(a, b):
            return op(raw(a), raw(b))
        return nary(wrap_elemwise_binary, a, b)

    return call


@adapted
def wrap_reduction_call(
    fn: Function,
    a: Tree,
    axis: AxisSelection | None,
    where: NamedArray | None = None,
    single_axis_only: bool = False,
    supports_where: bool = True,
    **kwargs: Any,
) -> Tree:
    """Apply a function that removes dimensions to a NamedArray, a plain array, or each array of a tree.

    The function is called with `axis`, an int, a tuple of ints or None, and with `where` only if there is one.
    """
    if not isinstance(a, NamedArray):

        def leaf(x: Tree) -> Tree:
            return wrap_reduction_call(
                fn, x, axis, where, single_axis_only, supports_where, **kwargs
            )

        return of_leaves(leaf, fn, "wrap_reduction_call", a, axis, where, kwargs)
    at, rest = _positions("wrap_reduction_call", a, axis, single_axis_only)
    if where is not None:
        if not supports_where:
            raise ArgumentError(message("wrap_reduction_call", "the function takes no where"))
        if not isinstance(where, NamedArray):
            problem = f"where must be a NamedArray, not {type(where).__name__}"
            raise KindError(message("wrap_reduction_call", problem, f"array has: {facts(a)}"))
        kwargs["where"] = where.broadcast_to(a.axes).array
    return wrap(a, fn(a.array, axis=at, **kwargs), rest)


@adapted
def wrap_axiswise_call(
    fn: Function,
    a: Operand,
    axis: AxisSelection | None,
    *,
    single_axis_only: bool,
    **kwargs: object,
) -> Any:
    """Apply a function that keeps the shape along axes; without axis, return its plain result."""
    if not isinstance(a, NamedArray) or axis is None:
        return fn(raw(a), axis=axis, **kwargs)
    at, rest = _positions("wrap_axiswise_call", a, axis, single_axis_only)
    dims = tuple(i for i, name in enumerate(a.names) if name not in rest)
    return wrap(a, fn(whole(a.array, dims), axis=at, **kwargs), a.names)


def _positions(
    function: str, a: NamedArray, axis: AxisSelection | None, single: bool
) -> tuple[Positions, tuple[str, ...]]:
    """Return the positions of axes in the form of `jax.numpy`, and the names of the others."""
    if axis is None:
        return None, ()
    chosen = a.resolve_axis(selectors(selection(axis, function)))
    if single and len(chosen) != 1:
        raise ArgumentError(
            message(function, f"takes one axis, not {len(chosen)}", f"array has: {facts(a)}")
        )
    names = axis_name(chosen)
    at = tuple(map(a.names.index, names))
    rest = tuple(name for name in a.names if name not in names)
    if len(at) == 1:
        return at[0], rest
    return at, rest
