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

from .. import _constraints
from ..array import NamedArray, is_named_array
from ..axis import Axis
from ..core import Core, wrap
from ..errors import ArgumentError, message
from ..ops import _lift
from ..ops._widen import at_least_float32
from ..ops.contract import dot
from ..ops.elementwise import exp, log, maximum
from ..ops.select import where
from ..partitioning.shard import auto_sharded
from ._attention import KEYS, QUERIES, AttentionCall, Scoring, beside_sinks, lowest, plain, rename_all
from ._visible import logical_and, positions, smaller, visible
from .dropout import Dropout
from .mask import AttentionMask

__all__ = ["blockwise"]

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
        return jnp.minimum(number * block, size - block) if size % block else number * block


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
    prng: Any


def blockwise(call: AttentionCall) -> NamedArray:
    """Compute attention with one block of scores at a time."""
    if call.q_pos is None:
        return plain(call)  # its scores are linear in the number of positions
    sizes = call.query.axis_size(call.q_pos), call.key.axis_size(call.k_pos)
    if not min(sizes):
        return plain(call)  # there is no block
    new = {call.q_pos: QUERIES, call.k_pos: KEYS}
    operands = _Operands(call.scoring_query, call.key, call.value, call.bias)
    q_start, k_start = (None if isinstance(at, int) and at == 0 else at for at in (call.q_start, call.k_start))
    rest = _Rest(call.mask, q_start, k_start, call.prng if call.dropout else None)
    operands, rest = auto_sharded(rename_all((_led(operands, rest), rest), new))
    scoring = call.scoring
    scoring = dataclasses.replace(
        scoring,
        names=tuple(new.get(name, name) for name in scoring.names),
        dtype=at_least_float32(scoring.dtype),
    )
    dtype = jnp.promote_types(call.query.dtype, call.value.dtype)
    out_names = tuple(new.get(name, name) for name in call.out_names)
    plan = _Plan(scoring, out_names, dtype, call.dropout, sizes, _blocks(call, sizes))
    out, largest, total = _on_mesh(plan, operands, rest)
    if not _all_see(rest, sizes):
        mean = operands.value.mean(KEYS).astype(out.dtype)
        out = where(largest <= lowest(largest.dtype), mean, out)
    if call.sinks is not None:
        log_sum = largest + log(total)
        out = out * beside_sinks(log_sum, rename_all(call.sinks, new)).astype(out.dtype)
    result: NamedArray = rename_all(out, {QUERIES: call.q_pos})
    return auto_sharded(result)


def _led(operands: _Operands, rest: _Rest) -> _Operands:
    """Give the query the anonymous dimensions of all arrays, so that scores and results have these."""
    given = [x for x in jax.tree.leaves((operands, rest), is_leaf=is_named_array) if isinstance(x, NamedArray)]
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
        return given if size % given == 0 else size
    count = -(-size // given)
    return -(-size // count)


def _all_see(rest: _Rest, sizes: tuple[int, int]) -> bool:
    """Return whether each query certainly sees a key: the one at its own position."""
    if rest.mask is None:
        return True
    if rest.q_start is not None or rest.k_start is not None or sizes[0] > sizes[1]:
        return False
    return any(
        clause.prefix is None and clause.explicit is None and not clause.segment_ids for clause in rest.mask.clauses
    )


def _on_mesh(plan: _Plan, operands: _Operands, rest: _Rest) -> tuple[NamedArray, ...]:
    """Make types agree: on Explicit mesh axes, the compiler decides shardings; on Manual ones, all arrays vary."""
    leaves, tree = jax.tree.flatten((operands, rest), is_leaf=is_named_array)
    arrays = [leaf.array if isinstance(leaf, NamedArray) else _lift.run(jnp.asarray, leaf) for leaf in leaves]
    varying = {axis for array in arrays for axis in jax.typeof(array).mat.varying}
    arrays = [_constraints.varying(array, varying) for array in arrays]

    def positional(*arrays: Any) -> tuple[jax.Array, ...]:
        pairs = zip(leaves, arrays, strict=True)
        rebuilt = [wrap(leaf, array, leaf.names) if isinstance(leaf, Core) else array for leaf, array in pairs]
        results: Any = _compiled(plan, *jax.tree.unflatten(tree, rebuilt))
        return tuple(x.array for x in results)

    rows = _without(plan.scoring.names, KEYS)
    names = plan.out_names, rows, rows
    if not any(map(_constraints.has_explicit_axes, arrays)):
        return _named(operands, positional(*arrays), names)
    given = []
    for at, leaf in enumerate(leaves):
        if isinstance(leaf, Core):
            by_position = [i - len(leaf.names) for i, name in enumerate(leaf.names) if name in (QUERIES, KEYS)]
            arrays[at] = _lift.whole(arrays[at], by_position)
            given.append((leaf.names, _constraints.entries_of(arrays[at])[-len(leaf.names) :] if leaf.names else ()))
    table = _constraints.settle(plan.out_names, given)
    local = _lift.local(positional, arrays, tuple([table[name] for name in own] for own in names))
    return _named(operands, local, names)


def _named(operands: _Operands, arrays: Any, names: tuple[tuple[str, ...], ...]) -> tuple[NamedArray, ...]:
    return tuple(wrap(operands.query, array, own) for array, own in zip(arrays, names, strict=True))


def _without(names: tuple[str, ...], *others: str) -> tuple[str, ...]:
    return tuple(name for name in names if name not in others)


def _filled(plan: _Plan, operands: _Operands, names: tuple[str, ...], value: float, **sizes: int) -> NamedArray:
    """Make an array that a loop fills, with the sizes of the operands except the given ones."""
    given = [x for x in operands if x is not None]
    known = {axis.name: axis.size for x in given for axis in x.axes} | sizes
    query = operands.query
    lead = query.array.shape[: -len(query.names)]
    return _made(operands, (*lead, *(known[name] for name in names)), names, value, plan.scoring.dtype)


def _made(operands: _Operands, shape: tuple[int, ...], names: tuple[str, ...], value: float, dtype: Any) -> NamedArray:
    array = _constraints.varying(jnp.full(shape, value, dtype), jax.typeof(operands.query.array).mat.varying)
    return auto_sharded(NamedArray(array, names))


def _take(x: Any, plan: _Plan, at: _At) -> Any:
    """Slice an array to a block of queries and of keys, if it has their axes; numbers stay as they are."""
    if not isinstance(x, NamedArray):
        return x
    starts, sizes = _window(plan, x, at)
    if sizes == x.array.shape:
        return x
    return wrap(x, lax.dynamic_slice(x.array, starts, sizes, allow_negative_indices=False), x.names)


def _window(plan: _Plan, x: NamedArray, at: _At) -> tuple[list[Any], tuple[int, ...]]:
    starts: list[Any] = [0] * x.array.ndim
    sizes = list(x.array.shape)
    for name, start, block in zip((QUERIES, KEYS), at.starts, plan.blocks, strict=True):
        if name in x.names:
            dim = x.names.index(name) - len(x.names)
            starts[dim], sizes[dim] = start, block
    return starts, tuple(sizes)


def _put(plan: _Plan, x: Any, block: Any, at: _At, *, add: bool = False) -> Any:
    """Write a block, or add it to the previous values."""
    if x is None:
        return None
    update = block.rearrange(x.names).array.astype(x.dtype)
    if add:
        update = update + _take(x, plan, at).array
    starts, sizes = _window(plan, x, at)
    if sizes == x.array.shape:
        return wrap(x, update, x.names)
    return wrap(x, lax.dynamic_update_slice(x.array, update, starts, allow_negative_indices=False), x.names)


def _plus(x: Any, y: Any) -> Any:
    """Add two numbers; None stands for 0 and adds no operation."""
    return x if y is None or (isinstance(y, int) and y == 0) else x + y


def _seen(plan: _Plan, rest: _Rest, at: _At, once: bool) -> NamedArray | None:
    """Return which keys of a block count, or None for all; with `once`, those of each query in one block only."""
    axes = Axis(QUERIES, plan.blocks[0]), Axis(KEYS, plan.blocks[1])
    conditions = []
    if rest.mask is not None:
        part = functools.partial(_take, plan=plan, at=at)
        firsts = part(rest.q_start), part(rest.k_start)
        queries, keys = (positions(*each) for each in zip(axes, map(_plus, at.starts, firsts), strict=True))
        conditions.append(visible(rest.mask, queries, keys, QUERIES, KEYS, part))
    for which in (0, 1) if once else (1,):
        if plan.sizes[which] % plan.blocks[which]:
            least = at.numbers[which] * plan.blocks[which]
            conditions.append(positions(axes[which], at.starts[which]) >= least)
    real = [condition for condition in conditions if condition is not None]
    return functools.reduce(logical_and, real) if real else None


def _masked(plan: _Plan, rest: _Rest, at: _At, scores: NamedArray, bias: Any, *, once: bool) -> NamedArray:
    """Set hidden scores of a block to the lowest number; scores that a bias made as low stay above it."""
    small = lowest(scores.dtype)
    scores = scores if bias is None else maximum(scores, small / 2)
    seen = _seen(plan, rest, at, once)
    if seen is None:
        return scores
    order = tuple(name for name in scores.names if name in seen.names)
    return where(seen.rearrange(order), scores, small)


def _weigh(plan: _Plan, rest: _Rest, at: _At, weights: NamedArray, value: NamedArray) -> NamedArray:
    """Sum values of a block."""
    if plan.dropout:
        key = functools.reduce(jax.random.fold_in, at.numbers, rest.prng)
        weights = Dropout(plan.dropout)(weights, key=key)
    return dot(
        weights.astype(value.dtype),
        value,
        axis=KEYS,
        out_axes=plan.out_names,
        precision=plan.scoring.precision,
        preferred_element_type=plan.scoring.dtype,
    )


def _key_blocks(plan: _Plan, rest: _Rest, start: Any) -> tuple[Any, Any]:
    """Return the first block of keys that the block of queries from `start` on may see, and the one after the last."""
    if rest.mask is None:
        return 0, plan.counts[1]
    first, behind = (_plus(start, _extreme(rest.q_start, which)) for which in (jnp.min, jnp.max))
    behind = behind + plan.blocks[0]
    k_least, k_most = (_extreme(rest.k_start, which) for which in (jnp.min, jnp.max))
    lows, highs = [], []
    for clause in rest.mask.clauses:
        ends = []
        if clause.causal:
            ends.append(behind)
        elif clause.window is not None:
            ends.append(behind + (clause.window - 1))
        if clause.prefix is not None:
            ends.append(_extreme(clause.prefix, jnp.max))
        if not ends:
            return 0, plan.counts[1]
        lows.append(0 if clause.window is None else _plus(first - (clause.window - 1), -k_most))
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
    return jnp.asarray(which(x.array) if isinstance(x, Core) else x, int)  # the type in which a loop counts


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(plan: _Plan, operands: _Operands, rest: _Rest) -> tuple[NamedArray, ...]:
    """Return the result, and for each query the largest score and the sum of exponentials relative to it.

    Without keys, result and sum are meaningless. Gradients treat the largest score as a constant, which is right for
    values that do not depend on its choice, such as `largest + log(total)`.
    """
    small = lowest(plan.scoring.dtype)
    rows = _without(plan.scoring.names, KEYS)

    def of_queries(done: Any, filled: tuple[NamedArray, ...]) -> tuple[NamedArray, ...]:
        i = plan.counts[0] - 1 - done  # from the end: the backward pass takes shared positions from the first block
        start = plan.start(0, i)
        rows_at = _At((i, 0), (start, 0))
        query = _take(operands.query, plan, rows_at)

        def with_keys(j: Any, carry: Any) -> Any:
            largest, total, summed = carry
            at = _At((i, j), (start, plan.start(1, j)))
            key, value, bias = (_take(x, plan, at) for x in operands[1:])
            scores = _masked(plan, rest, at, plan.scoring(query, key, bias), bias, once=False)
            new = maximum(largest, scores.max(KEYS))
            shrink, weights = exp(largest - new), exp(scores - new)
            total = total * shrink + weights.sum(KEYS)
            return new, total, summed * shrink + _weigh(plan, rest, at, weights, value)

        block = {QUERIES: plan.blocks[0]}
        nothing = tuple(
            _filled(plan, operands, names, x, **block) for names, x in ((rows, small), (rows, 0), (plan.out_names, 0))
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
    features = _without(out.names, *total.names)
    mean = dot(by_out, out, axis=features, out_axes=total.names, preferred_element_type=dtype) - by_total * total
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
            key, value, bias = (_take(x, plan, at) for x in operands[1:])
            scores, to_operands = jax.vjp(plan.scoring, query, key, bias)
            weights = exp(_masked(plan, rest, at, scores, bias, once=True) - largest_i) * share
            # With narrow values, autodiff would round `by_weights`, but not `mean`, which may cancel almost all of it.
            _, to_values = jax.vjp(functools.partial(_weigh, plan, rest, at), weights, value.astype(dtype))
            by_weights, by_value = to_values(by_out_i)
            by_query, by_key, by_bias = to_operands(weights * (by_weights - mean_i))
            parts = by_query, by_key, by_value, by_bias
            return _Operands(*(_put(plan, x, part, at, add=True) for x, part in zip(gradients, parts, strict=True)))

        return lax.fori_loop(*_key_blocks(plan, rest, start), with_keys, gradients)

    zeros: Any = [x if x is None else _made(operands, x.array.shape, x.names, 0.0, dtype) for x in operands]
    gradients = lax.fori_loop(0, plan.counts[0], of_queries, _Operands(*zeros))
    return jax.tree.map(lambda gradient, x: gradient.astype(x.dtype), gradients, operands), None


_attend.defvjp(_forward, _backward)
# Outside of a program, it is one of its own: step by step, constants would move to the device at each call.
_compiled = jax.jit(_attend, static_argnums=0, inline=_constraints.INLINE)
