"""Contractions, `dot` and `einsum`, and `rearrange`."""

import itertools
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import EllipsisType
from typing import Any, TypeAlias

import jax
from jax.lax import PrecisionLike
from jax.typing import DTypeLike

import axonym as axn
from axonym import AxisSelection, AxisSelector
from axonym.engine import names_in, selection, selectors
from axonym.errors import OperandError, message

from ._adapt import adapted
from ._dots import in_einsum, in_rearrange
from .axis import PartialAxisSpec, rearrange_for_partial_order
from .partitioning import auto_sharded, on_entered_mesh

__all__ = ["dot", "einsum", "rearrange"]

DotGeneralOp = Callable[..., jax.Array]
Arrays: TypeAlias = tuple[Any, ...]


@adapted
def dot(
    *arrays: Any,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    out_axes: PartialAxisSpec | None = None,
    dot_general: DotGeneralOp = jax.lax.dot_general,
    **kwargs: Any,
) -> axn.NamedArray:
    """Multiply arrays by name and sum over `axis=`, which unlike in Axonym may be an axis of only one array.

    Args:
        arrays: the arrays. Passing the axes first instead of by keyword is deprecated.
        precision: as in `jax.numpy.einsum`.
        preferred_element_type: the dtype to accumulate in and return.
        out_axes: the order of the result's axes, with any number of `...`.
        dot_general: the function that multiplies two arrays.
        kwargs: `axis`, the axes to sum over: None for all, () for none.
    """
    unknown = kwargs.keys() - {"axis"}
    if unknown:
        raise TypeError(f"dot() got an unexpected keyword argument {min(unknown)!r}")
    if "axis" in kwargs:
        axis: AxisSelection | None = kwargs["axis"]
    elif arrays and not isinstance(arrays[0], axn.NamedArray | jax.Array):
        text = "dot with the axes in front is deprecated: write dot(x, y, axis=...)"
        warnings.warn(text, DeprecationWarning, stacklevel=3)
        axis, *rest = arrays
        arrays = tuple(rest)
    else:
        hint = 'write dot(x, y, axis="embed"), or axis=None for the sum over all axes'
        raise OperandError(message("dot", "the axis to sum over is missing", hint=hint))
    if not arrays:
        raise OperandError(message("dot", "no arrays given"))
    if axis is not None:
        arrays, axis = _alone_summed(arrays, axis)
    if out_axes is not None:
        left: dict[str, None] = {}
        if axis is not None:
            left = dict.fromkeys(itertools.chain(*(x.names for x in arrays)))
            for name in names_in(selection(axis)):
                left.pop(name, None)
        out_axes = rearrange_for_partial_order(out_axes, tuple(left))
    product = axn.dot(
        *arrays,
        axis=axis,
        out_axes=out_axes,
        precision=precision,
        preferred_element_type=preferred_element_type,
        dot_general=dot_general,
    )
    return on_entered_mesh(product)


def _alone_summed(arrays: Arrays, axis: AxisSelection) -> tuple[Arrays, AxisSelection]:
    """Sum over the axes that only one array has, which is an error in Axonym."""
    given = selection(axis, "dot")
    if len(arrays) < 2 or not _are_named(arrays):
        return arrays, axis
    holders = Counter(itertools.chain(*(x.names for x in arrays)))
    alone = tuple(pair for pair in given if holders[pair[0]] == 1)
    if not alone:
        return arrays, axis

    def summed(x: axn.NamedArray) -> axn.NamedArray:
        own = tuple(pair for pair in alone if pair[0] in x.names)
        if not own:
            return x
        return x.sum(selectors(own))

    return tuple(map(summed, arrays)), axn.without_axes(axis, names_in(alone))


def _are_named(arrays: Iterable[object]) -> bool:
    return all(isinstance(x, axn.NamedArray) for x in arrays)


@adapted
def einsum(
    equation: str,
    *arrays: axn.NamedArray,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    _dot_general: DotGeneralOp = jax.lax.dot_general,
    **axis_aliases: AxisSelector,
) -> axn.NamedArray:
    """Contract arrays by an expression, in any of the three forms of Axonym's `einsum`.

    Unlike there, one pair of braces may apply to all arrays, and the result may have several `...`: each but the last
    stands for the axes that come next, up to one that the result names. An expression without an arrow sums over
    everything, if each name occurs in several operands; otherwise it is an error.
    """
    if isinstance(equation, str) and "->" not in equation:
        names = re.findall(r"\w+", equation)
        if names and all(names.count(name) > 1 for name in names) and "..." not in equation:
            equation += " ->"
    if isinstance(equation, str) and _are_named(arrays):
        names = [x.names for x in arrays]
        equation, axis_aliases = in_einsum(equation, names, axis_aliases)
    result = axn.einsum(
        _braces_each(equation, arrays, axis_aliases),
        *arrays,
        precision=precision,
        preferred_element_type=preferred_element_type,
        dot_general=_dot_general,
        **axis_aliases,
    )
    return on_entered_mesh(result)


def _braces_each(equation: str, arrays: Arrays, aliases: Mapping[str, AxisSelector]) -> str:
    """Give each array its own braces, with the names that it has; a name that no array has goes to the first one."""
    if not isinstance(equation, str) or len(arrays) < 2 or not _are_named(arrays):
        return equation
    shared = re.fullmatch(r"\s*\{([^{}]*)\}\s*(->.*)", equation)
    if shared is None:
        return equation
    own: list[list[str]] = [[] for _ in arrays]
    for name in dict.fromkeys(shared[1].split()):
        real = axn.axis_name(aliases.get(name, name))
        holders = [at for at, x in enumerate(arrays) if name == "..." or real in x.names]
        for at in holders or [0]:
            own[at].append(name)
    return ", ".join(f"{{{' '.join(names)}}}" for names in own) + shared[2]


@adapted
def rearrange(array: axn.NamedArray, *args: Any, **kwargs: Any) -> axn.NamedArray:
    """Store the axes in another order, or split and merge axes by an expression.

    The result of an expression is laid out by the current mapping. Unlike in Axonym, there may be any number of `...`:
    each but the last stands for the axes that come next, up to one that the order names. On the right of an expression,
    they also stand for axes that only the left side names. If the axes are given as a sequence, their sizes are not
    checked.

    Args:
        array: the array.
        args: the order or the expression, which may also be the keyword `axes` or `expression`.
        kwargs: the axes that names in the expression stand for.
    """
    given = list(args)
    for key in ("axes", "expression"):
        if not args and key in kwargs:
            given.append(kwargs.pop(key))
    if len(given) != 1:
        raise OperandError(
            message("rearrange", f"expected one order of axes or one expression, got {len(given)}")
        )
    (order,) = given
    if isinstance(order, str):
        if isinstance(array, axn.NamedArray):
            order, kwargs = in_rearrange(order, array.names, kwargs)
        return auto_sharded(axn.rearrange(array, order, **kwargs))
    if isinstance(order, Sequence) and isinstance(array, axn.NamedArray):
        order = list(map(_entry, order))
        if order.count(...) > 1:
            order = rearrange_for_partial_order(order, array.names)
    return axn.rearrange(array, order, **kwargs)


def _entry(entry: AxisSelector | EllipsisType) -> str | EllipsisType:
    if entry is ...:
        return entry
    return axn.axis_name(entry)
