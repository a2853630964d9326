"""Internal. The loops over blocks of queries and keys, forward and backward; all methods of sharing positions run them.

The forward pass keeps the largest score and the sum of exponentials of each query so far, and nothing of a block for
the backward pass, which recomputes the scores. It does not combine the two: added to a score of -1e9, from a bias that
hides, the log of the sum would round away. Blocks that causal masks, windows and prefixes hide completely are not
computed. The loops know nothing of devices: where a device has a part of the positions, `Rest.offsets` says which.

Reference:
    Rabe, Staats (2021), Self-attention does not need O(n^2) memory. Dao (2023), FlashAttention-2.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
from jax import lax
from jax.core import Tracer

from ....array import NamedArray, is_named_array
from ....axis import Axis
from ....current.machine import MACHINE, write_iterations
from ....engine.core import wrap
from ....layout.assignment import Entry
from ....names import plans
from ....ops.contract import dot
from ....ops.elementwise import exp, log, maximum
from ....ops.where import where
from ....partitioning.shard import auto_sharded
from ..call import KEYS, QUERIES, AttentionCall, find_lowest, rename_all, weigh_against_sinks
from ..dropping import drop
from ..masks import conditions
from ..masks.conditions import Number, Range, add
from .plan import Block, BlockPlan, Operands, Rest, Tree, fill, make_like_query, slice_block, write


class Rows(NamedTuple):
    """The state of each query: the largest score, the sum of exponentials relative to it, and the weighted sum."""

    largest: NamedArray
    total: NamedArray
    weighted: NamedArray


def start_rows(plan: BlockPlan, operands: Operands, block: int | None = None) -> Rows:
    """Return the state of all queries, or of a block of queries, before the first key."""
    sizes = {} if block is None else {QUERIES: block}
    return Rows(
        fill(plan, operands, plan.row_names, find_lowest(plan.scoring.dtype), **sizes),
        fill(plan, operands, plan.row_names, 0, **sizes),
        fill(plan, operands, plan.out_names, 0, **sizes),
    )


def average(plan: BlockPlan, rows: Rows) -> tuple[NamedArray, NamedArray, NamedArray]:
    """Return the result, the largest score and the total of queries that have seen all keys.

    Without keys, result and total are meaningless; `finish` replaces them.
    """
    total = maximum(rows.total, 1.0)  # the largest score adds one, if there is any
    return (rows.weighted / total).astype(plan.dtype), rows.largest, total


def fold_queries(
    plan: BlockPlan,
    results: tuple[NamedArray, ...],
    compute: Callable[[Block], tuple[NamedArray, ...]],
) -> tuple[NamedArray, ...]:
    """Compute each block of queries, and write the results into arrays over all queries."""

    def write_block(done: Number, results: tuple[NamedArray, ...]) -> tuple[NamedArray, ...]:
        # From the end: the backward pass takes shared positions from the first block.
        block = Block.of_queries(plan, plan.counts[0] - 1 - done)
        pairs = zip(results, compute(block), strict=True)
        return tuple(write(plan, x, own, block) for x, own in pairs)

    written: tuple[NamedArray, ...] = lax.fori_loop(0, plan.counts[0], write_block, results)
    return written


def fold_all(plan: BlockPlan, operands: Operands, rest: Rest, before: Rows) -> Rows:
    """Add all keys to the state of all queries."""

    def compute(block: Block) -> Rows:
        # Blocks may share positions: what was known before is not read from what is written.
        known = Rows(*(slice_block(x, plan, block) for x in before))
        return fold_keys(plan, operands, rest, block, known)

    return Rows(*fold_queries(plan, tuple(before), compute))


def fold_keys(
    plan: BlockPlan, operands: Operands, rest: Rest, queries: Block, before: Rows
) -> Rows:
    """Add all keys to the state of a block of queries."""
    query = slice_block(operands.query, plan, queries)  # once, and not for each block of keys

    def add_block(number: Number, rows: Rows) -> Rows:
        block = queries.with_keys(plan, number)
        key, value, bias = (slice_block(x, plan, block) for x in operands[1:])
        scores = plan.scoring(query, key, bias)
        scores = _mask_scores(plan, rest, block, scores, bias, once=False)
        # Exponentials are relative to the largest score so far; a larger one shrinks those before.
        largest = maximum(rows.largest, scores.max(KEYS))
        shrink, weights = exp(rows.largest - largest), exp(scores - largest)
        total = rows.total * shrink + weights.sum(KEYS)
        summed = _sum_values(plan, rest, block, weights, value)
        return Rows(largest, total, rows.weighted * shrink + summed)

    rows: Rows = _fold_visible(plan, rest, queries, add_block, before)
    return rows


def _fold_visible(
    plan: BlockPlan, rest: Rest, queries: Block, step: Callable[[Number, Tree], Tree], carry: Tree
) -> Tree:
    """Loop over the blocks of keys that a block of queries may see."""
    if rest.mask is None or rest.mask.places is None:
        blocks = _find_key_blocks(plan, rest, queries.starts[0])
        if MACHINE.get() is None or all(isinstance(block, int) for block in blocks):
            return lax.fori_loop(*blocks, step, carry)
        # A cost counts all iterations of a loop whose length a device computes.
        with jax.named_scope(write_iterations(_count_mean(plan, rest))):
            return lax.fori_loop(*blocks, step, carry)

    # Positions in any order give no span of blocks: each block is asked.
    def step_if_seen(number: Number, carry: Tree) -> Tree:
        block = queries.with_keys(plan, number)
        seen = may_see_keys(plan, rest, block)
        return step_if(seen, functools.partial(step, number), carry)

    return lax.fori_loop(0, plan.counts[1], step_if_seen, carry)


def step_if(seen: Number, step: Callable[[Tree], Tree], carry: Tree) -> Tree:
    """Run a step unless the mask hides the whole block."""
    # Where that is known while tracing, there is nothing to decide at run time.
    return step(carry) if seen is True else lax.cond(seen, step, lambda carry: carry, carry)


def _sum_values(
    plan: BlockPlan, rest: Rest, block: Block, weights: NamedArray, value: NamedArray
) -> NamedArray:
    """Sum the values of a block by their weights, after dropout."""
    if plan.dropout:
        # Counted over all devices and blocks, so that the draw does not depend on either.
        starts = dict(rest.offsets)
        for name, start in zip((QUERIES, KEYS), block.starts, strict=True):
            starts[name] = add(start, rest.offsets.get(name))
        weights = drop(weights, plan.dropout, rest.key, starts, dict(plan.all_sizes))
    return dot(
        weights.astype(value.dtype),
        value,
        axis=KEYS,
        out_axes=plan.out_names,
        precision=plan.scoring.precision,
        preferred_element_type=plan.scoring.dtype,
    )


class BackwardRows(NamedTuple):
    """The numbers of each query that the backward pass needs.

    Attributes:
        largest: the largest score.
        total: the sum of exponentials relative to it.
        mean: the gradient by the weights, averaged with these.
        by_out: the gradient by the result.
    """

    largest: NamedArray
    total: NamedArray
    mean: NamedArray
    by_out: NamedArray


def make_backward_rows(
    plan: BlockPlan, results: Sequence[NamedArray], cotangents: Sequence[NamedArray], *, sees: bool
) -> BackwardRows:
    """Return what the backward pass needs of each query.

    Args:
        plan: the plan.
        results: those of `average`.
        cotangents: the gradients by them. That by the largest score is ignored, as if it were a constant: right for
            values that do not depend on its choice, such as `largest + log(total)`.
        sees: whether each query certainly sees a key.
    """
    out, largest, total = results
    by_out, _, by_total = cotangents
    dtype = plan.scoring.dtype
    # The mean of `by_weights` by the weights is the product of `by_out` and the result (FlashAttention-2).
    features = plans.without(out.names, total.names)
    mean = dot(by_out, out, axis=features, out_axes=total.names, preferred_element_type=dtype)
    # `by_total` comes from sinks, whose share depends on the total.
    mean = mean - by_total * total
    if not sees:  # a query without keys has no weights
        lowest = find_lowest(dtype)
        # Relative to a large number, the exponentials of all its scores are zero.
        largest = where(largest <= lowest, -lowest, largest)
    return BackwardRows(largest, total, mean, by_out)


def make_zeros(plan: BlockPlan, operands: Operands) -> Operands:
    """Return gradients before the first block, in the dtype of scores."""

    def zeros_like(x: NamedArray) -> NamedArray:
        return make_like_query(operands, x.array.shape, x.names, 0.0, plan.scoring.dtype)

    zeros: Operands = jax.tree.map(zeros_like, operands, is_leaf=is_named_array)
    return zeros


def differentiate(
    plan: BlockPlan,
    operands: Operands,
    rest: Rest,
    results: Sequence[NamedArray],
    cotangents: Sequence[NamedArray],
    *,
    sees: bool,
) -> Operands:
    """Return the gradients of operands whose queries and keys are all on this device; see `make_backward_rows`."""
    rows = make_backward_rows(plan, results, cotangents, sees=sees)
    return add_gradients(plan, operands, rest, rows, make_zeros(plan, operands))


def add_gradients(
    plan: BlockPlan, operands: Operands, rest: Rest, rows: BackwardRows, gradients: Operands
) -> Operands:
    """Add the gradients of all blocks to `gradients`."""
    dtype = plan.scoring.dtype

    # From the first block on: positions that two blocks share count in the first of them.
    def add_queries(number: Number, gradients: Operands) -> Operands:
        queries = Block.of_queries(plan, number)
        query = slice_block(operands.query, plan, queries)
        largest, total, mean, by_out = (slice_block(x, plan, queries) for x in rows)
        # `by_out` is not divided itself: rounded for a product, it would no longer be as exact as `mean` is.
        by_out, share = by_out.astype(dtype), 1 / total

        def add_keys(number: Number, gradients: Operands) -> Operands:
            block = queries.with_keys(plan, number)
            key, value, bias = (slice_block(x, plan, block) for x in operands[1:])

            scores, to_operands = jax.vjp(plan.scoring, query, key, bias)
            scores = _mask_scores(plan, rest, block, scores, bias, once=True)
            weights = exp(scores - largest) * share
            # With narrow values, autodiff would round `by_weights`, but not `mean`, which may cancel almost all of it.
            weigh = functools.partial(_sum_values, plan, rest, block)
            _, to_values = jax.vjp(weigh, weights, value.astype(dtype))
            by_weights, by_value = to_values(by_out)
            by_query, by_key, by_bias = to_operands(weights * (by_weights - mean))

            add_block = functools.partial(write, plan, block=block, add=True)
            return Operands(
                query=add_block(gradients.query, by_query),
                key=add_block(gradients.key, by_key),
                value=add_block(gradients.value, by_value),
                bias=None if gradients.bias is None else add_block(gradients.bias, by_bias),
            )

        added: Operands = _fold_visible(plan, rest, queries, add_keys, gradients)
        return added

    after: Operands = lax.fori_loop(0, plan.counts[0], add_queries, gradients)
    return after


def finish(
    call: AttentionCall,
    plan: BlockPlan,
    operands: Operands,
    results: tuple[NamedArray, ...],
    *,
    sees: bool,
    over: Entry = (),
) -> NamedArray:
    """Return the result of a call, given the results of all blocks.

    Args:
        call: the call.
        plan: its plan.
        operands: its operands.
        results: those of `average`.
        sees: whether each query certainly sees a key.
        over: Manual mesh axes over which the keys are split.
    """
    out, largest, total = results
    # In blocks, a query without keys has summed nothing; all implementations give it the mean of all values.
    if not sees:
        mean = operands.value.mean(KEYS).astype(out.dtype)
        if over:
            mean = wrap(mean, lax.pmean(mean.array, over), mean.names)
        out = where(largest <= find_lowest(largest.dtype), mean, out)
    if call.sinks is not None:
        # A sink is a key without a value: it takes its share of the weights, and adds nothing.
        log_sum = largest + log(total)
        sinks = rename_all(call.sinks, {str(call.q_pos): QUERIES})
        out = out * weigh_against_sinks(log_sum, sinks).astype(out.dtype)
    return auto_sharded(rename_all(out, {QUERIES: str(call.q_pos)}))


def is_sure_to_see(rest: Rest, sizes: tuple[int, int]) -> bool:
    """Return whether each query certainly sees a key: the one at its own position."""
    if rest.mask is None:
        return True
    if rest.q_start is not None or rest.k_start is not None or sizes[0] > sizes[1]:
        return False
    return conditions.sees_itself(rest.mask)


def _mask_scores(
    plan: BlockPlan, rest: Rest, block: Block, scores: NamedArray, bias: object, *, once: bool
) -> NamedArray:
    """Set hidden scores of a block to the lowest number; scores that a bias made that low stay above it.

    `once` also hides queries that an earlier block has: their gradients would be added twice, while a result may be
    written twice.
    """
    lowest = find_lowest(scores.dtype)
    if bias is not None:
        # A score that a bias made as low must not pass for hidden: `finish` knows queries without keys by it.
        scores = maximum(scores, lowest / 2)
    axes = Axis(QUERIES, plan.blocks[0]), Axis(KEYS, plan.blocks[1])
    limits: list[NamedArray] = []
    if rest.mask is not None:
        slice_to_block = functools.partial(slice_block, plan=plan, block=block)
        starts = (add(block.starts[i], slice_to_block(rest.start(i))) for i in (0, 1))
        queries, keys = map(conditions.count_positions, axes, starts)
        pairing = conditions.Pairing(queries, keys, QUERIES, KEYS, slice_to_block)
        seen = conditions.find_visible(rest.mask, pairing)
        limits += [] if seen is None else [seen]
    for which in (0, 1) if once else (1,):
        if plan.sizes[which] % plan.blocks[which]:
            # The last block begins earlier; what the block before it has is hidden.
            least = block.numbers[which] * plan.blocks[which]
            positions = conditions.count_positions(axes[which], block.starts[which])
            limits.append(positions >= least)
    if not limits:
        return scores
    # The order of the scores, since a transposition of conditions in each block would not be free.
    shown = functools.reduce(conditions.logical_and, limits)
    order = tuple(name for name in scores.names if name in shown.names)
    return where(shown.rearrange(order), scores, lowest)


def _find_key_blocks(plan: BlockPlan, rest: Rest, start: Number) -> tuple[Number, Number]:
    """Return the first block of keys that the block of queries from `start` on may see, and the one after the last."""
    if rest.mask is None:
        return 0, plan.counts[1]
    # Sequences may start at different positions: a block is computed if one of them needs it.
    starts, keys = (conditions.find_range(rest.start(which)) for which in (0, 1))
    first, behind = add(start, starts.least), add(start, starts.most) + plan.blocks[0]
    span = conditions.find_span(rest.mask, first, behind, keys)
    if span is None:
        return 0, plan.counts[1]
    low, high = span
    return _count_blocks(plan, low), _count_blocks(plan, high + (plan.blocks[1] - 1))


def _count_mean(plan: BlockPlan, rest: Rest) -> float:
    """Return how many blocks of keys a block of queries sees on average; all of them if that depends on values.

    Where devices split the positions, one device sees almost all keys before its own.
    """
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(rest)):
        return plan.counts[1]
    with jax.ensure_compile_time_eval():
        starts = [int(plan.start(0, number)) for number in range(plan.counts[0])]
        spans = [tuple(map(int, _find_key_blocks(plan, rest, start))) for start in starts]
    return sum(max(behind - first, 0) for first, behind in spans) / plan.counts[0]


def _count_blocks(plan: BlockPlan, position: Number) -> Number:
    """Count the complete blocks of keys before a position, which may be negative or beyond the end."""
    block = plan.blocks[1]
    most = plan.counts[1] * block
    if isinstance(position, int):
        return min(max(position, 0), most) // block
    # `lax.div` rounds nonnegative numbers down, in one operation.
    return lax.div(lax.clamp(0, position, most), block)


def may_see_keys(plan: BlockPlan, rest: Rest, block: Block | None = None) -> Number:
    """Return whether queries of this device, or of a block, may see its keys; True if they certainly may."""
    if rest.mask is None:
        return True
    return conditions.may_see(
        rest.mask, *(_find_range(plan, rest, which, block) for which in (0, 1))
    )


def _find_range(plan: BlockPlan, rest: Rest, which: int, block: Block | None) -> Range:
    """Return the positions of the queries (0) or keys (1) of this device, or of a block."""
    assert rest.mask is not None
    if rest.mask.places is not None:
        places = conditions.complete(rest.mask.places, QUERIES, KEYS, "positions")[which]
        if block is not None:
            places = slice_block(places, plan, block)
        return conditions.find_range(places)
    # Blocks are asked only where a mask has positions of its own.
    first, last = conditions.find_range(rest.start(which))
    return Range(first, last + (plan.sizes[which] - 1))
