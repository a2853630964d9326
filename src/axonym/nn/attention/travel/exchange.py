"""Attention over split positions after an exchange: of keys for all keys, or of positions for heads.

With all-gather, each device gets the keys and values of all others. With all-to-all, each device gets all positions of
a part of the heads, and gives the results back.

Reference:
    Jacobs et al. (2023), DeepSpeed Ulysses, for all-to-all.
"""

import functools

import jax.numpy as jnp
from jax import lax

from ....array import NamedArray
from ....layout import tracing
from ....ops.elementwise import maximum
from ..blocks.loop import all_rows, kept_rows, no_gradients, no_rows, with_gradients
from ..blocks.plan import Operands, Plan, Rest, Tree
from ..call import KEYS, QUERIES
from .devices import Layout, dimension, mapped, of_array, travels, varied


def gather_forward(plan: Plan, layout: Layout, operands: Operands, rest: Rest) -> Tree:
    """Return the result, the largest score and the total of each query of a device."""
    given = _gathered(plan, layout, operands, rest)
    return _attended(layout.local(plan, whole=(False, True)), *given)


def gather_backward(
    plan: Plan, layout: Layout, operands: Operands, rest: Rest, results: Tree, cotangents: Tree
) -> Operands:
    """Return the gradients by the operands of a device."""
    given = _gathered(plan, layout, operands, rest)
    plan = layout.local(plan, whole=(False, True))
    gradients = _differentiated(layout, plan, given, results, cotangents)

    def scattered(x: Tree) -> Tree:
        if not travels(x) or not layout.splits_keys:
            return x
        scatter = functools.partial(lax.psum_scatter, axis_name=layout.axes, tiled=True)
        return of_array(lambda a: scatter(a, scatter_dimension=dimension(x, KEYS)), x)

    result: Operands = mapped(scattered, gradients)
    return result


def _gathered(plan: Plan, layout: Layout, operands: Operands, rest: Rest) -> tuple[Operands, Rest]:
    """Return the operands with all keys."""
    offsets = layout.offsets(plan, operands)

    def one(x: Tree) -> Tree:
        if not travels(x) or not layout.splits_keys:
            return x
        gather = functools.partial(lax.all_gather, axis_name=layout.axes, tiled=True)
        return of_array(lambda a: gather(a, axis=dimension(x, KEYS)), x)

    operands, rest = mapped(one, (operands, rest))
    start = layout.here() * layout.local(plan).sizes[0]
    return operands, rest._replace(offsets={**offsets, QUERIES: start})


def exchange_forward(plan: Plan, layout: Layout, operands: Operands, rest: Rest) -> Tree:
    """Return results as `gather_forward` does, the last two by heads, and what the backward pass keeps.

    It keeps operands and result by heads, so that it need not exchange them again.
    """
    by_heads = mapped(functools.partial(_by_head, layout), operands)
    kept = mapped(lambda x: x if str(layout.heads) in x.names else None, by_heads)
    rest = _rest_by_heads(plan, layout, operands, rest)
    out, *rows = _attended(
        layout.local(plan, whole=(True, True)), *varied(layout, (by_heads, rest))
    )
    return (_given_back(layout, out), *rows), (kept, out)


def exchange_backward(
    plan: Plan, layout: Layout, operands: Operands, rest: Rest, results: Tree, cotangents: Tree
) -> Operands:
    """Return the gradients by the operands of a device, given what `exchange_forward` keeps and the rows."""
    (kept, out), rows = results
    rest = _rest_by_heads(plan, layout, operands, rest)
    by_heads = Operands(
        *(_kept_or_by_head(layout, *pair) for pair in zip(kept, operands, strict=True))
    )
    by_out, *others = cotangents
    plan = layout.local(plan, whole=(True, True))
    cotangents = _by_head(layout, by_out), *others
    gradients = _differentiated(layout, plan, (by_heads, rest), (out, *rows), cotangents)

    back: Operands = mapped(functools.partial(_given_back, layout), gradients, operands)
    return back


def _kept_or_by_head(layout: Layout, kept: Tree, x: Tree) -> Tree:
    return _by_head(layout, x) if kept is None else kept


def _rest_by_heads(plan: Plan, layout: Layout, operands: Operands, rest: Rest) -> Rest:
    """Return the other operands for all positions of a part of the heads."""
    offsets = layout.offsets(plan, operands)
    if plan.dropout:
        heads = str(layout.heads)
        start = layout.here() * (operands.query.axis_size(heads) // layout.ways)
        offsets[heads] = offsets.get(heads, 0) + start
    rest = mapped(functools.partial(_by_head, layout), rest)
    return rest._replace(offsets=offsets)


def _split_position(layout: Layout, x: NamedArray) -> str | None:
    """Return the positions of an array that are split."""
    if QUERIES in x.names:
        return QUERIES
    if KEYS in x.names and layout.splits_keys:
        return KEYS
    return None


def _by_head(layout: Layout, x: Tree) -> Tree:
    """Return an array with all positions, and a part of the heads if it has heads."""
    if not isinstance(x, NamedArray):
        return x
    position, heads, axes = _split_position(layout, x), str(layout.heads), layout.axes
    if heads not in x.names and position is None:
        return x
    if heads not in x.names:
        at = dimension(x, str(position))
        return of_array(lambda a: lax.all_gather(a, axes, axis=at, tiled=True), x)
    to = dimension(x, heads)
    if position is not None:
        at = dimension(x, position)
        return of_array(lambda a: layout.swapped(a, to, at), x)
    size = x.array.shape[to] // layout.ways
    start = layout.here() * size
    return of_array(lambda a: lax.dynamic_slice_in_dim(a, start, size, to), x)


def _given_back(layout: Layout, x: NamedArray, like: NamedArray | None = None) -> NamedArray:
    """Undo `_by_head` for a result, or for the gradient of an operand, whose parts are summed."""
    position, heads, axes = _split_position(layout, x), str(layout.heads), layout.axes
    if heads not in x.names and position is None:
        return x
    if heads not in x.names:
        at = dimension(x, str(position))
        scatter = functools.partial(lax.psum_scatter, axis_name=axes, tiled=True)
        return of_array(lambda a: scatter(a, scatter_dimension=at), x)
    to = dimension(x, heads)
    if position is not None:
        at, dtype = dimension(x, position), x.dtype if like is None else like.dtype
        return of_array(lambda a: layout.swapped(a.astype(dtype), at, to), x)
    assert like is not None
    start = layout.here() * x.array.shape[to]
    zeros = tracing.varying(jnp.zeros(like.array.shape, x.dtype), tracing.varying_over(x.array))
    return of_array(lambda a: lax.dynamic_update_slice_in_dim(zeros, a, start, to), x)


def _attended(plan: Plan, operands: Operands, rest: Rest) -> Tree:
    rows = all_rows(plan, operands, rest, no_rows(plan, operands))
    total = maximum(rows.total, 1.0)
    return (rows.summed / total).astype(plan.dtype), rows.largest, total


def _differentiated(
    layout: Layout, plan: Plan, given: tuple[Operands, Rest], results: Tree, cotangents: Tree
) -> Operands:
    operands, rest = given
    out, largest, total = results
    by_out, _, by_total = cotangents
    rows = kept_rows(plan, out, (largest, total), (by_out, by_total), sees=layout.sees)
    return with_gradients(plan, operands, rest, rows, no_gradients(plan, operands))
