"""Contractions, `dot` and `einsum`, and `rearrange`."""

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.lax import PrecisionLike
from jax.typing import DTypeLike

import axonym as axn
from axonym import AxisSelection, AxisSelector
from axonym.engine import selection
from axonym.errors import OperandError, message

from ._adapt import adapted
from ._shape import selection_of
from .axis import PartialAxisSpec, rearrange_for_partial_order
from .partitioning import auto_sharded, on_entered_mesh

__all__ = ["dot", "einsum", "rearrange"]

DotGeneralOp = Callable[..., jax.Array]


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
        union = dict.fromkeys(name for x in arrays for name in x.names)
        summed = set(union) if axis is None else {name for name, _ in selection(axis)}
        out_axes = rearrange_for_partial_order(
            out_axes, tuple(name for name in union if name not in summed)
        )
    product = axn.dot(
        *arrays,
        axis=axis,
        out_axes=out_axes,
        precision=precision,
        preferred_element_type=preferred_element_type,
        dot_general=dot_general,
    )
    return on_entered_mesh(product)


def _alone_summed(
    arrays: tuple[Any, ...], axis: AxisSelection
) -> tuple[tuple[Any, ...], AxisSelection]:
    """Sum over the axes that only one array has, which is an error in Axonym."""
    given = selection(axis, "dot")
    if len(arrays) < 2 or not all(isinstance(x, axn.NamedArray) for x in arrays):
        return arrays, axis
    holders = {name: sum(name in x.names for x in arrays) for name, _ in given}
    alone = [each for each in selection_of(axis) if holders[axn.axis_name(each)] == 1]
    if not alone:
        return arrays, axis
    names = axn.axis_name(alone)
    own = [
        [each for each, name in zip(alone, names, strict=True) if name in x.names] for x in arrays
    ]
    summed = tuple(x.sum(axes) if axes else x for x, axes in zip(arrays, own, strict=True))
    return summed, axn.without_axes(axis, names)


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

    Unlike there, one pair of braces may apply to all arrays. An expression without an arrow sums over everything, if
    each name occurs in several operands; otherwise it is an error.
    """
    if isinstance(equation, str) and "->" not in equation:
        names = re.findall(r"\w+", equation)
        if names and all(names.count(name) > 1 for name in names) and "..." not in equation:
            equation += " ->"
    result = axn.einsum(
        _braces_each(equation, arrays, axis_aliases),
        *arrays,
        precision=precision,
        preferred_element_type=preferred_element_type,
        dot_general=_dot_general,
        **axis_aliases,
    )
    return on_entered_mesh(result)


def _braces_each(equation: str, arrays: Sequence[Any], aliases: Mapping[str, AxisSelector]) -> str:
    """Give each array its own braces, with the names that it has; a name that none has stays in the first."""
    shared = (
        re.fullmatch(r"\s*\{([^{}]*)\}\s*(->.*)", equation) if isinstance(equation, str) else None
    )
    if shared is None or len(arrays) < 2 or not all(isinstance(x, axn.NamedArray) for x in arrays):
        return equation
    real = {name: axn.axis_name(aliases.get(name, name)) for name in shared[1].split()}
    unknown = {
        name for name in real if name != "..." and not any(real[name] in x.names for x in arrays)
    }
    own = [[name for name in real if name == "..." or real[name] in x.names] for x in arrays]
    own[0] += unknown
    return ", ".join(f"{{{' '.join(names)}}}" for names in own) + shared[2]


@adapted
def rearrange(array: axn.NamedArray, *args: Any, **kwargs: Any) -> axn.NamedArray:
    """Store the axes in another order, or split and merge axes by an expression.

    The result of an expression is laid out by the current mapping. Unlike in Axonym, a sequence may have any number of
    `...`, and the sizes of its axes are not checked.

    Args:
        array: the array.
        args: the order or the expression, which may also be the keyword `axes` or `expression`.
        kwargs: the axes that names in the expression stand for.
    """
    given = [
        *args,
        *(kwargs.pop(key) for key in ("axes", "expression") if not args and key in kwargs),
    ]
    if len(given) != 1:
        raise OperandError(
            message("rearrange", f"expected one order of axes or one expression, got {len(given)}")
        )
    (order,) = given
    if (
        isinstance(order, Sequence)
        and not isinstance(order, str)
        and isinstance(array, axn.NamedArray)
    ):
        order = [entry if entry is ... else axn.axis_name(entry) for entry in order]
        order = rearrange_for_partial_order(order, array.names) if order.count(...) > 1 else order
    result = axn.rearrange(array, order, **kwargs)
    return auto_sharded(result) if isinstance(order, str) else result
