"""Attention block by block: softmax as a running sum, so that memory is linear in the number of positions."""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from ....array import NamedArray, is_named_array
from ....core import Core, wrap
from ....engine import auto, kernels
from ....layout import explicit, tracing
from ....names import plans
from ....ops.elementwise import maximum
from ....partitioning.shard import auto_sharded
from ..blocks.loop import finished, kept_rows, no_gradients, no_rows, rows_of, with_gradients
from ..blocks.plan import At, Number, Operands, Plan, Rest, Tree, filled, prepared, put
from ..call import KEYS, QUERIES, AttentionCall, plain
from ..hidden import all_see


def blockwise(call: AttentionCall) -> NamedArray:
    """Compute attention with one block of scores at a time."""
    if call.q_pos is None:
        return plain(call)  # its scores are linear in the number of positions
    if not call.query.axis_size(call.q_pos) or not call.keys.axis_size(call.k_pos):
        return plain(call)  # there is no block
    plan, operands, rest = prepared(call)
    operands, rest = auto_sharded((operands, rest))
    return finished(call, plan, operands, rest, _on_mesh(plan, operands, rest))


def _on_mesh(plan: Plan, operands: Operands, rest: Rest) -> tuple[NamedArray, ...]:
    """Make types agree: on Explicit mesh axes, the compiler decides shardings; on Manual ones, all arrays vary."""
    leaves, tree = jax.tree.flatten((operands, rest), is_leaf=is_named_array)
    arrays = list(map(_array_of, leaves))
    varying = set[str]().union(*(jax.typeof(array).mat.varying for array in arrays))
    arrays = [tracing.varying(array, varying) for array in arrays]

    def positional(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        rebuilt = map(_like_leaf, leaves, arrays)
        results: Tree = _compiled(plan, *jax.tree.unflatten(tree, rebuilt))
        return tuple(x.array for x in results)

    rows = plans.without(plan.scoring.names, (KEYS,))
    names = plan.out_names, rows, rows
    if not any(map(explicit.has_explicit_axes, arrays)):
        return _named(operands, positional(*arrays), names)
    named: list[int] = []
    labels: list[tuple[str, ...]] = []
    for at, leaf in enumerate(leaves):
        if isinstance(leaf, Core):
            by_position = [leaf.names.index(name) for name in (QUERIES, KEYS) if name in leaf.names]
            arrays[at] = auto.whole(arrays[at], [i - len(leaf.names) for i in by_position])
            named.append(at)
            labels.append(leaf.names)
    table = explicit.choose(plan.out_names, labels, plans.values_at(arrays, named))
    local = auto.local(positional, arrays, tuple([table[name] for name in own] for own in names))
    return _named(operands, local, names)


def _array_of(leaf: object) -> jax.Array:
    if isinstance(leaf, NamedArray):
        return leaf.array
    array: jax.Array = kernels.run(jnp.asarray, leaf)
    return array


def _like_leaf(leaf: object, array: jax.Array) -> jax.Array | NamedArray:
    if isinstance(leaf, Core):
        return wrap(leaf, array, leaf.names)
    return array


def _named(
    operands: Operands, arrays: Tree, names: tuple[tuple[str, ...], ...]
) -> tuple[NamedArray, ...]:
    return tuple(wrap(operands.query, array, own) for array, own in zip(arrays, names, strict=True))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(plan: Plan, operands: Operands, rest: Rest) -> tuple[NamedArray, ...]:
    """Return the result, and for each query the largest score and the sum of exponentials relative to it.

    Without keys, result and sum are meaningless. Gradients treat the largest score as a constant, which is right for
    values that do not depend on its choice, such as `largest + log(total)`.
    """
    rows = plans.without(plan.scoring.names, (KEYS,))

    def of_queries(done: Number, results: tuple[NamedArray, ...]) -> tuple[NamedArray, ...]:
        # From the end: the backward pass takes shared positions from the first block.
        i = plan.counts[0] - 1 - done
        rows_at = At((i, 0), (plan.start(0, i), 0))
        block = rows_of(plan, operands, rest, rows_at, no_rows(plan, operands, plan.blocks[0]))
        total = maximum(block.total, 1.0)  # the largest score adds one, if there is any
        done = zip(results, (block.summed / total, block.largest, total), strict=True)
        return tuple(put(plan, x, block, rows_at) for x, block in done)

    out = filled(plan, operands, plan.out_names, 0.0).astype(plan.dtype)
    row = filled(plan, operands, rows, 0.0)
    results: tuple[NamedArray, ...] = lax.fori_loop(0, plan.counts[0], of_queries, (out, row, row))
    return results


def _forward(plan: Plan, operands: Operands, rest: Rest) -> Tree:
    results: Tree = _attend(plan, operands, rest)
    return results, (operands, rest, *results)


def _backward(plan: Plan, kept: Tree, cotangents: Tree) -> Tree:
    operands, rest, out, largest, total = kept
    by_out, _, by_total = cotangents
    sees = all_see(rest, plan.sizes)
    rows = kept_rows(plan, out, (largest, total), (by_out, by_total), sees=sees)
    gradients = with_gradients(plan, operands, rest, rows, no_gradients(plan, operands))
    return jax.tree.map(lambda gradient, x: gradient.astype(x.dtype), gradients, operands), None


_attend.defvjp(_forward, _backward)
# Outside of a program, it is one of its own: step by step, constants would move to the device at each call.
_compiled = jax.jit(_attend, static_argnums=0, inline=tracing.INLINE)
