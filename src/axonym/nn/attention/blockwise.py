"""Attention block by block: softmax as a running sum, so that memory is linear in the number of positions.

The forward pass keeps the largest score and the sum of exponentials of each query so far, and nothing of a block for
the backward pass, which recomputes the scores. The two are not combined: next to a score of -1e9, from a bias that
hides, the logarithm of the sum would be lost. Blocks that causal masks, windows and prefixes hide completely are not
computed. If blocks do not divide an axis, the last one begins earlier, and hides the positions that it has twice.

Reference:
    Rabe, Staats (2021), Self-attention does not need O(n^2) memory. Dao (2023), FlashAttention-2.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.export import is_symbolic_dim

from ...array import NamedArray, is_named_array
from ...axis import Axis
from ...core import Core, Operand, wrap
from ...dtypes import at_least_float32
from ...engine import kernels
from ...errors import ArgumentError, message
from ...mesh import auto, explicit, tracing
from ...names import plans
from ...ops.contract import dot
from ...ops.elementwise import exp, log, maximum
from ...ops.where import where
from ...partitioning.shard import auto_sharded
from ..dropout import Dropout
from .call import (
    KEYS,
    QUERIES,
    AttentionCall,
    Scoring,
    beside_sinks,
    lowest,
    plain,
    rename_all,
    renamed,
)
from .mask import AttentionMask
from .visible import logical_and, positions, smaller, visible

BLOCK = 512


@dataclasses.dataclass(frozen=True)
class _Plan:
    """The static part: how scores are computed, the axes of the result, and sizes and blocks of queries and keys."""

    scoring: Scoring
    out_names: tuple[str, ...]
    dtype: Any
    dropout: float
    sizes: tuple[int, int]
    blocks: tuple[int, int]

    @property
    def counts(self) -> tuple[int, int]:
        """The numbers of blocks."""
        return -(-self.sizes[0] // self.blocks[0]), -(-self.sizes[1] // self.blocks[1])

    def start(self, which: int, number: Any) -> Any:
        """Return the first position of a block; the last block ends where the axis ends."""
        size, block = self.sizes[which], self.blocks[which]
        if size == block:
            return 0
        start = number * block
        if size % block:
            return jnp.minimum(start, size - block)
        return start


class _At(NamedTuple):
    """Which block of queries and which of keys, and the first position of each."""

    numbers: tuple[Any, Any]
    starts: tuple[Any, Any]


class _Operands(NamedTuple):
    """The operands with gradients."""

    query: NamedArray
    key: NamedArray
    value: NamedArray
    bias: NamedArray | None


class _Rest(NamedTuple):
    """The operands without gradients; positions that start at 0 are None, so that nothing is added."""

    mask: AttentionMask | None
    q_start: Any
    k_start: Any
    key: Any


def blockwise(call: AttentionCall) -> NamedArray:
    """Compute attention with one block of scores at a time."""
    if call.q_pos is None:
        return plain(call)  # its scores are linear in the number of positions
    sizes = call.query.axis_size(call.q_pos), call.keys.axis_size(call.k_pos)
    if not min(sizes):
        return plain(call)  # there is no block
    new = {call.q_pos: QUERIES, call.k_pos: KEYS}
    operands = _Operands(call.scoring_query, call.keys, call.values, call.bias)
    rest = _Rest(
        call.mask,
        _without_zero(call.q_start),
        _without_zero(call.k_start),
        call.key if call.dropout else None,
    )
    operands, rest = auto_sharded(rename_all((_led(operands, rest), rest), new))

    scoring = call.scoring
    scoring = dataclasses.replace(
        scoring,
        names=renamed(scoring.names, new),
        dtype=at_least_float32(scoring.dtype),
    )
    dtype = jnp.promote_types(call.query.dtype, call.values.dtype)
    out_names = renamed(call.out_names, new)
    plan = _Plan(scoring, out_names, dtype, call.dropout, sizes, _blocks(call, sizes))

    out, largest, total = _on_mesh(plan, operands, rest)
    if not _all_see(rest, sizes):
        mean = operands.value.mean(KEYS).astype(out.dtype)
        out = where(largest <= lowest(largest.dtype), mean, out)
    if call.sinks is not None:
        log_sum = largest + log(total)
        out = out * beside_sinks(log_sum, rename_all(call.sinks, new)).astype(out.dtype)
    return auto_sharded(rename_all(out, {QUERIES: call.q_pos}))


def _without_zero(start: int | Operand) -> int | Operand | None:
    if isinstance(start, int) and start == 0:
        return None
    return start


def _led(operands: _Operands, rest: _Rest) -> _Operands:
    """Give the query the anonymous dimensions of all arrays, so that scores and results have these."""
    leaves = jax.tree.leaves((operands, rest), is_leaf=is_named_array)
    given = [x for x in leaves if isinstance(x, NamedArray)]
    lead = jnp.broadcast_shapes(*(x.array.shape[: x.array.ndim - len(x.names)] for x in given))
    query = operands.query
    array = jnp.broadcast_to(query.array, (*lead, *query.array.shape[-len(query.names) :]))
    return operands._replace(query=wrap(query, array, query.names))


def _blocks(call: AttentionCall, sizes: tuple[int, int]) -> tuple[int, int]:
    """Choose block sizes for which the last block hides least.

    A size that only `jax.export` knows later is not cut, unless it is a multiple of the block: whether a block fits
    must be known now.
    """
    given = call.block_size or (BLOCK, BLOCK)
    if min(given) < 1:
        problem = f"a block must have at least one position, not {min(given)}"
        raise ArgumentError(message("dot_product_attention", problem))
    queries, keys = map(_block, sizes, given)
    return queries, keys


def _block(size: Any, given: int) -> Any:
    if is_symbolic_dim(size):
        if size % given == 0:
            return given
        return size
    count = -(-size // given)
    return -(-size // count)


def _all_see(rest: _Rest, sizes: tuple[int, int]) -> bool:
    """Return whether each query certainly sees a key: the one at its own position."""
    if rest.mask is None:
        return True
    if rest.q_start is not None or rest.k_start is not None or sizes[0] > sizes[1]:
        return False
    for clause in rest.mask.clauses:
        if clause.prefix is None and clause.explicit is None and not clause.segment_ids:
            return True
    return False


def _on_mesh(plan: _Plan, operands: _Operands, rest: _Rest) -> tuple[NamedArray, ...]:
    """Make types agree: on Explicit mesh axes, the compiler decides shardings; on Manual ones, all arrays vary."""
    leaves, tree = jax.tree.flatten((operands, rest), is_leaf=is_named_array)
    arrays = list(map(_array_of, leaves))
    varying = set[str]().union(*(jax.typeof(array).mat.varying for array in arrays))
    arrays = [tracing.varying(array, varying) for array in arrays]

    def positional(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        rebuilt = map(_like_leaf, leaves, arrays)
        results: Any = _compiled(plan, *jax.tree.unflatten(tree, rebuilt))
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
    operands: _Operands, arrays: Any, names: tuple[tuple[str, ...], ...]
) -> tuple[NamedArray, ...]:
    return tuple(wrap(operands.query, array, own) for array, own in zip(arrays, names, strict=True))


def _filled(
    plan: _Plan, operands: _Operands, names: tuple[str, ...], value: float, **sizes: int
) -> NamedArray:
    """Make an array that a loop fills, with the sizes of the operands except the given ones."""
    known: dict[str, int] = {}
    for x in operands:
        if x is not None:
            known.update(x.shape.items())
    known.update(sizes)

    query = operands.query
    lead = query.array.shape[: -len(query.names)]
    shape = (*lead, *map(known.__getitem__, names))
    return _made(operands, shape, names, value, plan.scoring.dtype)


def _made(
    operands: _Operands, shape: tuple[int, ...], names: tuple[str, ...], value: float, dtype: Any
) -> NamedArray:
    varying = jax.typeof(operands.query.array).mat.varying
    array = tracing.varying(jnp.full(shape, value, dtype), varying)
    return auto_sharded(NamedArray(array, names))


def _take(x: object, plan: _Plan, at: _At) -> Any:
    """Slice an array to a block of queries and of keys, if it has their axes; numbers stay as they are."""
    if not isinstance(x, NamedArray):
        return x
    starts, sizes = _window(plan, x, at)
    if sizes == x.array.shape:
        return x
    return wrap(x, lax.dynamic_slice(x.array, starts, sizes, allow_negative_indices=False), x.names)


def _window(plan: _Plan, x: NamedArray, at: _At) -> tuple[list[Any], tuple[int, ...]]:
    starts: list[object] = [0] * x.array.ndim
    sizes = list(x.array.shape)
    for name, start, block in zip((QUERIES, KEYS), at.starts, plan.blocks, strict=True):
        if name in x.names:
            dim = x.names.index(name) - len(x.names)
            starts[dim], sizes[dim] = start, block
    return starts, tuple(sizes)


def _put(
    plan: _Plan, x: NamedArray, block: NamedArray, at: _At, *, add: bool = False
) -> NamedArray:
    """Write a block, or add it to the previous values."""
    update = block.rearrange(x.names).array.astype(x.dtype)
    if add:
        update = update + _take(x, plan, at).array
    starts, sizes = _window(plan, x, at)
    if sizes == x.array.shape:
        return wrap(x, update, x.names)
    written = lax.dynamic_update_slice(x.array, update, starts, allow_negative_indices=False)
    return wrap(x, written, x.names)


def _plus(x: Any, y: Any) -> Any:
    """Add two numbers; None stands for 0 and adds no operation."""
    if y is None or (isinstance(y, int) and y == 0):
        return x
    return x + y


def _seen(plan: _Plan, rest: _Rest, at: _At, once: bool) -> NamedArray | None:
    """Return which keys of a block count, or None for all; with `once`, those of each query in one block only."""
    axes = Axis(QUERIES, plan.blocks[0]), Axis(KEYS, plan.blocks[1])
    conditions: list[NamedArray] = []
    if rest.mask is not None:
        part = functools.partial(_take, plan=plan, at=at)
        queries = positions(axes[0], _plus(at.starts[0], part(rest.q_start)))
        keys = positions(axes[1], _plus(at.starts[1], part(rest.k_start)))
        seen = visible(rest.mask, queries, keys, QUERIES, KEYS, part)
        if seen is not None:
            conditions.append(seen)

    for which in (0, 1) if once else (1,):
        if plan.sizes[which] % plan.blocks[which]:
            least = at.numbers[which] * plan.blocks[which]
            conditions.append(positions(axes[which], at.starts[which]) >= least)
    if not conditions:
        return None
    return functools.reduce(logical_and, conditions)


def _masked(
    plan: _Plan, rest: _Rest, at: _At, scores: NamedArray, bias: object, *, once: bool
) -> NamedArray:
    """Set hidden scores of a block to the lowest number; scores that a bias made as low stay above it."""
    small = lowest(scores.dtype)
    if bias is not None:
        scores = maximum(scores, small / 2)
    seen = _seen(plan, rest, at, once)
    if seen is None:
        return scores
    order = tuple(name for name in scores.names if name in seen.names)
    return where(seen.rearrange(order), scores, small)


def _weigh(plan: _Plan, rest: _Rest, at: _At, weights: NamedArray, value: NamedArray) -> NamedArray:
    """Sum values of a block."""
    if plan.dropout:
        key = functools.reduce(jax.random.fold_in, at.numbers, rest.key)
        weights = Dropout(plan.dropout)(weights, key=key)
    return dot(
        weights.astype(value.dtype),
        value,
        axis=KEYS,
        out_axes=plan.out_names,
        precision=plan.scoring.precision,
        preferred_element_type=plan.scoring.dtype,
    )


def _key_blocks(plan: _Plan, rest: _Rest, start: object) -> tuple[Any, Any]:
    """Return the first block of keys that the block of queries from `start` on may see, and the one after the last."""
    if rest.mask is None:
        return 0, plan.counts[1]
    first = _plus(start, _extreme(rest.q_start, jnp.min))
    behind = _plus(start, _extreme(rest.q_start, jnp.max)) + plan.blocks[0]
    k_least, k_most = _extreme(rest.k_start, jnp.min), _extreme(rest.k_start, jnp.max)

    lows: list[Any] = []
    highs: list[Any] = []
    for clause in rest.mask.clauses:
        ends: list[Any] = []
        if clause.causal:
            ends.append(behind)
        elif clause.window is not None:
            ends.append(behind + (clause.window - 1))
        if clause.prefix is not None:
            ends.append(_extreme(clause.prefix, jnp.max))
        if not ends:
            return 0, plan.counts[1]
        low = 0
        if clause.window is not None:
            low = _plus(first - (clause.window - 1), -k_most)
        lows.append(low)
        highs.append(_plus(functools.reduce(smaller, ends), -k_least))
    low, high = functools.reduce(smaller, lows), functools.reduce(jnp.maximum, highs)
    return _blocks_before(plan, low), _blocks_before(plan, high + (plan.blocks[1] - 1))


def _blocks_before(plan: _Plan, position: Any) -> Any:
    """Count the whole blocks of keys before a position, which may be negative or beyond the end."""
    block = plan.blocks[1]
    most = plan.counts[1] * block
    if isinstance(position, int):
        return min(max(position, 0), most) // block
    # `lax.div` rounds nonnegative numbers down, in one operation.
    return lax.div(lax.clamp(0, position, most), block)


def _extreme(x: Any, which: Any) -> Any:
    """Reduce a number that may have axes to the smallest or largest of its elements."""
    if x is None or isinstance(x, int):
        return x or 0
    if isinstance(x, Core):
        x = which(x.array)
    return jnp.asarray(x, int)  # the type in which a loop counts


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(plan: _Plan, operands: _Operands, rest: _Rest) -> tuple[NamedArray, ...]:
    """Return the result, and for each query the largest score and the sum of exponentials relative to it.

    Without keys, result and sum are meaningless. Gradients treat the largest score as a constant, which is right for
    values that do not depend on its choice, such as `largest + log(total)`.
    """
    small = lowest(plan.scoring.dtype)
    rows = plans.without(plan.scoring.names, (KEYS,))

    def of_queries(done: Any, filled: tuple[NamedArray, ...]) -> tuple[NamedArray, ...]:
        # From the end: the backward pass takes shared positions from the first block.
        i = plan.counts[0] - 1 - done
        start = plan.start(0, i)
        rows_at = _At((i, 0), (start, 0))
        query = _take(operands.query, plan, rows_at)

        def with_keys(j: Any, carry: Any) -> Any:
            largest, total, summed = carry
            at = _At((i, j), (start, plan.start(1, j)))
            key = _take(operands.key, plan, at)
            value = _take(operands.value, plan, at)
            bias = _take(operands.bias, plan, at)
            scores = _masked(plan, rest, at, plan.scoring(query, key, bias), bias, once=False)
            new = maximum(largest, scores.max(KEYS))
            shrink, weights = exp(largest - new), exp(scores - new)
            total = total * shrink + weights.sum(KEYS)
            return new, total, summed * shrink + _weigh(plan, rest, at, weights, value)

        block = {QUERIES: plan.blocks[0]}
        nothing = (
            _filled(plan, operands, rows, small, **block),
            _filled(plan, operands, rows, 0, **block),
            _filled(plan, operands, plan.out_names, 0, **block),
        )
        largest, total, summed = lax.fori_loop(*_key_blocks(plan, rest, start), with_keys, nothing)
        total = maximum(total, 1.0)  # the largest score adds one, if there is any
        done = zip(filled, (summed / total, largest, total), strict=True)
        return tuple(_put(plan, x, block, rows_at) for x, block in done)

    out = _filled(plan, operands, plan.out_names, 0.0).astype(plan.dtype)
    row = _filled(plan, operands, rows, 0.0)
    filled: tuple[NamedArray, ...] = lax.fori_loop(0, plan.counts[0], of_queries, (out, row, row))
    return filled


def _forward(plan: _Plan, operands: _Operands, rest: _Rest) -> Any:
    results: Any = _attend(plan, operands, rest)
    return results, (operands, rest, *results)


def _backward(plan: _Plan, kept: Any, cotangents: Any) -> Any:
    operands, rest, out, largest, total = kept
    by_out, _, by_total = cotangents
    dtype = plan.scoring.dtype
    features = plans.without(out.names, total.names)
    mean = dot(by_out, out, axis=features, out_axes=total.names, preferred_element_type=dtype)
    mean = mean - by_total * total
    if not _all_see(rest, plan.sizes):  # a query without keys has no weights
        largest = where(largest <= lowest(dtype), -lowest(dtype), largest)

    def of_queries(i: Any, gradients: Any) -> Any:
        start = plan.start(0, i)
        rows_at = _At((i, 0), (start, 0))
        rows = operands.query, largest, mean, by_out, total
        query, largest_i, mean_i, by_out_i, total_i = (_take(x, plan, rows_at) for x in rows)
        # It is not divided itself: rounding it for a product would no longer be exact, as that of `mean` is.
        by_out_i, share = by_out_i.astype(dtype), 1 / total_i

        def with_keys(j: Any, gradients: Any) -> Any:
            at = _At((i, j), (start, plan.start(1, j)))
            key = _take(operands.key, plan, at)
            value = _take(operands.value, plan, at)
            bias = _take(operands.bias, plan, at)

            scores, to_operands = jax.vjp(plan.scoring, query, key, bias)
            weights = exp(_masked(plan, rest, at, scores, bias, once=True) - largest_i) * share
            # With narrow values, autodiff would round `by_weights`, but not `mean`, which may cancel almost all of it.
            weigh = functools.partial(_weigh, plan, rest, at)
            _, to_values = jax.vjp(weigh, weights, value.astype(dtype))
            by_weights, by_value = to_values(by_out_i)
            by_query, by_key, by_bias = to_operands(weights * (by_weights - mean_i))

            put = functools.partial(_put, plan, at=at, add=True)
            return _Operands(
                query=put(gradients.query, by_query),
                key=put(gradients.key, by_key),
                value=put(gradients.value, by_value),
                bias=None if gradients.bias is None else put(gradients.bias, by_bias),
            )

        return lax.fori_loop(*_key_blocks(plan, rest, start), with_keys, gradients)

    def zeros_like(x: NamedArray) -> NamedArray:
        return _made(operands, x.array.shape, x.names, 0.0, dtype)

    zeros = jax.tree.map(zeros_like, operands, is_leaf=is_named_array)
    gradients = lax.fori_loop(0, plan.counts[0], of_queries, zeros)
    return jax.tree.map(lambda gradient, x: gradient.astype(x.dtype), gradients, operands), None


_attend.defvjp(_forward, _backward)
# Outside of a program, it is one of its own: step by step, constants would move to the device at each call.
_compiled = jax.jit(_attend, static_argnums=0, inline=tracing.INLINE)
