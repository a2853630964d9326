"""Conversion of functions of arrays to functions of named arrays."""

from collections.abc import Callable
from typing import Any, Protocol

from axonym import Axis, AxisSelection, AxisSelector, NamedArray
from axonym.engine import facts, nary, selection, whole, wrap
from axonym.errors import ArgumentError, message

from ._adapt import KindError, adapted
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


class ReductionFunction(Protocol):
    """A reduction over any axes, with an optional mask."""

    def __call__(
        self,
        array: NamedArray,
        axis: AxisSelection | None = None,
        where: NamedArray | None = None,
        **kwargs: Any,
    ) -> NamedArray:
        """Reduce."""
        ...


class SimpleReductionFunction(Protocol):
    """A reduction over one axis or all of them."""

    def __call__(
        self, array: NamedArray, axis: AxisSelector | None = None, **kwargs: Any
    ) -> NamedArray:
        """Reduce."""
        ...


def unwrap_namedarrays(*a: Any) -> tuple[Any, ...]:
    """Return the arrays of NamedArrays, and anything else unchanged."""
    return tuple(raw(x) for x in a)


@adapted
def wrap_elemwise_unary(f: Callable[..., Any], a: Any, *args: Any, **kwargs: Any) -> Any:
    """Apply a function of an array, which keeps its shape."""
    return (
        wrap(a, f(a.array, *args, **kwargs), a.names)
        if isinstance(a, NamedArray)
        else f(a, *args, **kwargs)
    )


def wrap_elemwise_binary(op: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Convert a function of two arrays, which broadcasts by position, to one that broadcasts by name."""

    def wrap_elemwise_binary(a: Any, b: Any) -> Any:  # errors say this name
        return op(a, b)

    @adapted
    def call(a: Any, b: Any) -> Any:
        is_named = isinstance(a, NamedArray) or isinstance(b, NamedArray)
        if not is_named or axisless_meets_plain(a, b):
            return op(raw(a), raw(b))
        return nary(wrap_elemwise_binary, a, b)

    return call


@adapted
def wrap_reduction_call(
    fn: Callable[..., Any],
    a: Any,
    axis: AxisSelection | None,
    where: NamedArray | None = None,
    single_axis_only: bool = False,
    supports_where: bool = True,
    **kwargs: Any,
) -> Any:
    """Apply a function that removes dimensions to a NamedArray, a plain array, or each array of a tree.

    The function is called with `axis`, an int, a tuple of ints or None, and with `where` only if there is one.
    """
    if not isinstance(a, NamedArray):

        def leaf(x: Any) -> Any:
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
    fn: Callable[..., Any],
    a: Any,
    axis: AxisSelection | None,
    *,
    single_axis_only: bool,
    **kwargs: Any,
) -> Any:
    """Apply a function that keeps the shape along axes; without axis, return its plain result."""
    if not isinstance(a, NamedArray) or axis is None:
        return fn(raw(a), axis=axis, **kwargs)
    at, _ = _positions("wrap_axiswise_call", a, axis, single_axis_only)
    array = whole(a.array, at if isinstance(at, tuple) else (at,))
    return wrap(a, fn(array, axis=at, **kwargs), a.names)


def _positions(
    function: str, a: Any, axis: AxisSelection | None, single: bool
) -> tuple[Any, tuple[str, ...]]:
    """Return the positions of axes in the form of `jax.numpy`, and the names of the others."""
    if axis is None:
        return None, ()
    chosen = a.resolve_axis(
        tuple(
            name if size is None else Axis(name, size) for name, size in selection(axis, function)
        )
    )
    if single and len(chosen) != 1:
        raise ArgumentError(
            message(function, f"takes one axis, not {len(chosen)}", f"array has: {facts(a)}")
        )
    names = tuple(each.name for each in chosen)
    at = tuple(a.names.index(name) for name in names)
    return (at[0] if len(at) == 1 else at), tuple(name for name in a.names if name not in names)
