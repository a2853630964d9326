"""Internal. Attention over split positions after an all-to-all: each device gets all positions of a part of the heads.

Then it gives the results back. `context` runs it for `implementation="all-to-all"`. In between, arrays are split by
heads, or replicated if they have none; a device computes as if positions were not split.

Reference:
    Jacobs et al. (2023), DeepSpeed Ulysses.
"""

import functools

import jax.numpy as jnp
from jax import lax

from ....array import NamedArray
from ....layout import tracing
from ..blocks.loop import average, differentiate, fold_all, start_rows
from ..blocks.plan import BlockPlan, Operands, Rest, Tree
from ..call import KEYS, QUERIES
from .devices import DevicePlan, Method, Saved, apply, find_dimension, map_arrays, vary


def _compute(plan: BlockPlan, devices: DevicePlan, operands: Operands, rest: Rest) -> Tree:
    """Return the results, the last two by heads, and what the backward pass need not exchange again."""
    # Arrays without heads are gathered, and not kept: they would take the memory of all positions.
    by_heads = map_arrays(functools.partial(_shard_heads, devices), operands)
    kept = map_arrays(lambda x: x if str(devices.heads) in x.names else None, by_heads)
    rest = _shard_rest_by_heads(plan, devices, operands, rest)
    operands, rest = vary(devices, (by_heads, rest))
    plan = devices.make_local(plan, all_queries=True, all_keys=True)
    rows = fold_all(plan, operands, rest, start_rows(plan, operands))
    out, *others = average(plan, rows)
    return (_shard_positions(devices, out), *others), (kept, out)


def _differentiate(
    plan: BlockPlan, devices: DevicePlan, saved: Saved, cotangents: Tree
) -> Operands:
    """Return the gradients by the operands of a device."""
    # The result is taken by heads, as it was kept, and not as it was given back.
    operands, rest, (_, *rows), (kept, out) = saved
    rest = _shard_rest_by_heads(plan, devices, operands, rest)
    pairs = zip(kept, operands, strict=True)
    by_heads = Operands(*(_shard_heads(devices, x) if own is None else own for own, x in pairs))
    by_out, *others = cotangents
    plan = devices.make_local(plan, all_queries=True, all_keys=True)
    cotangents = _shard_heads(devices, by_out), *others
    gradients = differentiate(plan, by_heads, rest, (out, *rows), cotangents, sees=devices.sees)

    back: Operands = map_arrays(functools.partial(_shard_positions, devices), gradients, operands)
    return back


def _shard_rest_by_heads(
    plan: BlockPlan, devices: DevicePlan, operands: Operands, rest: Rest
) -> Rest:
    """Return the other operands for all positions of a part of the heads."""
    offsets = devices.find_offsets(plan, operands)
    if plan.dropout:
        # Within the part of the mesh axes that split the heads already, this device has one of `ways` parts.
        heads = str(devices.heads)
        start = devices.find_index() * (operands.query.axis_size(heads) // devices.ways)
        offsets[heads] = offsets.get(heads, 0) + start
    rest = map_arrays(functools.partial(_shard_heads, devices), rest)
    return rest._replace(offsets=offsets)


def _find_split_positions(devices: DevicePlan, x: NamedArray) -> str | None:
    """Return the positions of an array that are split."""
    if QUERIES in x.names:
        return QUERIES
    return KEYS if KEYS in x.names and devices.splits_keys else None


def _shard_heads(devices: DevicePlan, x: Tree) -> Tree:
    """Return an array with all positions, and a part of the heads if it has heads."""
    if not isinstance(x, NamedArray):
        return x
    positions, heads = _find_split_positions(devices, x), str(devices.heads)
    if heads not in x.names:
        if positions is None:
            return x
        gather = functools.partial(lax.all_gather, axis_name=devices.axes, tiled=True)
        return apply(lambda array: gather(array, axis=find_dimension(x, positions)), x)
    to = find_dimension(x, heads)
    if positions is not None:
        at = find_dimension(x, positions)
        return apply(lambda array: devices.exchange(array, to, at), x)
    # With heads and without positions, each device has all, and takes its part.
    size = x.array.shape[to] // devices.ways
    start = devices.find_index() * size
    return apply(lambda array: lax.dynamic_slice_in_dim(array, start, size, to), x)


def _shard_positions(
    devices: DevicePlan, x: NamedArray, like: NamedArray | None = None
) -> NamedArray:
    """Undo `_shard_heads` for a result, or for the gradient of an operand `like`, whose parts are summed."""
    positions, heads = _find_split_positions(devices, x), str(devices.heads)
    if heads not in x.names:
        if positions is None:
            return x
        scatter = functools.partial(lax.psum_scatter, axis_name=devices.axes, tiled=True)
        dimension = find_dimension(x, positions)
        return apply(lambda array: scatter(array, scatter_dimension=dimension), x)
    to = find_dimension(x, heads)
    if positions is not None:
        # Narrowed before it is sent, which halves the bytes of bfloat16.
        at, dtype = find_dimension(x, positions), x.dtype if like is None else like.dtype
        return apply(lambda array: devices.exchange(array.astype(dtype), at, to), x)
    assert like is not None
    # Each device has the gradients of its heads; the sum over devices joins them.
    start = devices.find_index() * x.array.shape[to]
    zeros = tracing.varying(jnp.zeros(like.array.shape, x.dtype), tracing.varying_over(x.array))
    return apply(lambda array: lax.dynamic_update_slice_in_dim(zeros, array, start, to), x)


EXCHANGE = Method("all-to-all", _compute, _differentiate, by_heads=True)
