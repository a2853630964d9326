"""Attention over blocks of scores, forwards and backwards: loops over blocks of queries and of keys.

The forward pass keeps the largest score and the sum of exponentials of each query so far, and nothing of a block for
the backward pass, which recomputes the scores. The two are not combined: next to a score of -1e9, from a bias that
hides, the logarithm of the sum would be lost. Blocks that causal masks, windows and prefixes hide completely are not
computed.

Reference:
    Rabe, Staats (2021), Self-attention does not need O(n^2) memory. Dao (2023), FlashAttention-2.
"""

import functools
from typing import NamedTuple

import jax
from jax import lax

from ....array import NamedArray, is_named_array
from ....core import wrap
from ....layout.assignment import Entry
from ....names import plans
from ....ops.contract import dot
from ....ops.elementwise import exp, log, maximum
from ....ops.where import where
from ....partitioning.shard import auto_sharded
from ..call import KEYS, QUERIES, AttentionCall, beside_sinks, lowest, rename_all
from ..dropping import dropped
from ..hidden import all_see, key_blocks, masked, may_see, range_of
from .plan import At, Number, Operands, Plan, Rest, Tree, filled, made, plus, put, take


def finished(
    call: AttentionCall,
    plan: Plan,
    operands: Operands,
    rest: Rest,
    results: tuple[NamedArray, ...],
    over: Entry = (),
) -> NamedArray:
    """Return the result of a call, given those of all blocks: the average, largest scores and totals.

    Args:
        call: the call.
        plan: its plan.
        operands: its operands.
        rest: the others.
        results: those of all blocks.
        over: Manual mesh axes over which the keys are split.
    """
    out, largest, total = results
    if not all_see(rest, plan.sizes):
        mean = operands.value.mean(KEYS).astype(out.dtype)
        if over:
            mean = wrap(mean, lax.pmean(mean.array, over), mean.names)
        out = where(largest <= lowest(largest.dtype), mean, out)
    if call.sinks is not None:
        log_sum = largest + log(total)
        sinks = rename_all(call.sinks, {str(call.q_pos): QUERIES})
        out = out * beside_sinks(log_sum, sinks).astype(out.dtype)
    return auto_sharded(rename_all(out, {QUERIES: str(call.q_pos)}))


def _weigh(plan: Plan, rest: Rest, at: At, weights: NamedArray, value: NamedArray) -> NamedArray:
    """Sum values of a block."""
    if plan.dropout:
        offsets = rest.offsets
        starts = dict(offsets)
        for name, start in zip((QUERIES, KEYS), at.starts, strict=True):
            starts[name] = plus(start, offsets.get(name))
        weights = dropped(weights, plan.dropout, rest.key, starts, dict(plan.all_sizes))
    return dot(
        weights.astype(value.dtype),
        value,
        axis=KEYS,
        out_axes=plan.out_names,
        precision=plan.scoring.precision,
        preferred_element_type=plan.scoring.dtype,
    )


class Rows(NamedTuple):
    """What is known of each query: the largest score, the sum of exponentials relative to it, and the weighted sum."""

    largest: NamedArray
    total: NamedArray
    summed: NamedArray


def no_rows(plan: Plan, operands: Operands, block: int | None = None) -> Rows:
    """Return what is known of all queries, or those of a block, before the first key."""
    names = plans.without(plan.scoring.names, (KEYS,))
    sizes = {} if block is None else {QUERIES: block}
    return Rows(
        filled(plan, operands, names, lowest(plan.scoring.dtype), **sizes),
        filled(plan, operands, names, 0, **sizes),
        filled(plan, operands, plan.out_names, 0, **sizes),
    )


def rows_of(plan: Plan, operands: Operands, rest: Rest, rows_at: At, before: Rows) -> Rows:
    """Add all keys to what is known of a block of queries."""
    query = take(operands.query, plan, rows_at)

    def with_keys(j: Number, carry: Rows) -> Rows:
        at = rows_at.with_keys(plan, j)
        key = take(operands.key, plan, at)
        value = take(operands.value, plan, at)
        bias = take(operands.bias, plan, at)
        scores = masked(plan, rest, at, plan.scoring(query, key, bias), bias, once=False)
        new = maximum(carry.largest, scores.max(KEYS))
        shrink, weights = exp(carry.largest - new), exp(scores - new)
        total = carry.total * shrink + weights.sum(KEYS)
        return Rows(new, total, carry.summed * shrink + _weigh(plan, rest, at, weights, value))

    rows: Rows = _over_keys(plan, rest, rows_at, with_keys, before)
    return rows


def all_rows(plan: Plan, operands: Operands, rest: Rest, before: Rows) -> Rows:
    """Add all keys to what is known of all queries."""

    def of_queries(done: Number, after: Rows) -> Rows:
        # From the end: the backward pass takes shared positions from the first block.
        i = plan.counts[0] - 1 - done
        rows_at = At((i, 0), (plan.start(0, i), 0))
        # Blocks may share positions: what was known before is not read from what is written.
        known = Rows(*(take(x, plan, rows_at) for x in before))
        block = rows_of(plan, operands, rest, rows_at, known)
        return Rows(*(put(plan, x, own, rows_at) for x, own in zip(after, block, strict=True)))

    after: Rows = lax.fori_loop(0, plan.counts[0], of_queries, before)
    return after


def _over_keys(plan: Plan, rest: Rest, rows_at: At, step: Tree, carry: Tree) -> Tree:
    """Fold over the blocks of keys that a block of queries may see."""
    if rest.mask is None or rest.mask.places is None:
        return lax.fori_loop(*key_blocks(plan, rest, rows_at.starts[0]), step, carry)

    def if_seen(j: Number, carry: Tree) -> Tree:
        at = rows_at.with_keys(plan, j)
        return if_may_see(_may_see(plan, rest, at), functools.partial(step, j), carry)

    return lax.fori_loop(0, plan.counts[1], if_seen, carry)


def if_may_see(seen: Number, step: Tree, carry: Tree) -> Tree:
    """Take a step unless all is hidden."""
    if seen is True:
        return step(carry)
    return lax.cond(seen, step, lambda carry: carry, carry)


class Kept(NamedTuple):
    """What the backward pass knows of each query.

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


def kept_rows(
    plan: Plan, out: NamedArray, rows: tuple[NamedArray, NamedArray], by: Tree, *, sees: bool
) -> Kept:
    """Return what the backward pass needs, given the result, the rows, and gradients by result and total.

    Args:
        plan: the plan.
        out: the result.
        rows: the largest score and the total of each query.
        by: the gradients by `out` and by the total.
        sees: whether each query certainly sees a key.
    """
    largest, total = rows
    by_out, by_total = by
    dtype = plan.scoring.dtype
    features = plans.without(out.names, total.names)
    mean = dot(by_out, out, axis=features, out_axes=total.names, preferred_element_type=dtype)
    mean = mean - by_total * total
    if not sees:  # a query without keys has no weights
        largest = where(largest <= lowest(dtype), -lowest(dtype), largest)
    return Kept(largest, total, mean, by_out)


def no_gradients(plan: Plan, operands: Operands) -> Operands:
    """Return gradients before the first block, in the dtype of scores."""

    def zeros_like(x: NamedArray) -> NamedArray:
        return made(operands, x.array.shape, x.names, 0.0, plan.scoring.dtype)

    zeros: Operands = jax.tree.map(zeros_like, operands, is_leaf=is_named_array)
    return zeros


def with_gradients(
    plan: Plan, operands: Operands, rest: Rest, kept: Kept, gradients: Operands
) -> Operands:
    """Add to gradients those of all blocks."""
    dtype = plan.scoring.dtype

    def of_queries(i: Number, gradients: Operands) -> Operands:
        rows_at = At((i, 0), (plan.start(0, i), 0))
        query = take(operands.query, plan, rows_at)
        largest, total, mean, by_out = (take(x, plan, rows_at) for x in kept)
        # It is not divided itself: rounding it for a product would no longer be exact, as that of `mean` is.
        by_out, share = by_out.astype(dtype), 1 / total

        def with_keys(j: Number, gradients: Operands) -> Operands:
            at = rows_at.with_keys(plan, j)
            key = take(operands.key, plan, at)
            value = take(operands.value, plan, at)
            bias = take(operands.bias, plan, at)

            scores, to_operands = jax.vjp(plan.scoring, query, key, bias)
            weights = exp(masked(plan, rest, at, scores, bias, once=True) - largest) * share
            # With narrow values, autodiff would round `by_weights`, but not `mean`, which may cancel almost all of it.
            weigh = functools.partial(_weigh, plan, rest, at)
            _, to_values = jax.vjp(weigh, weights, value.astype(dtype))
            by_weights, by_value = to_values(by_out)
            by_query, by_key, by_bias = to_operands(weights * (by_weights - mean))

            add = functools.partial(put, plan, at=at, add=True)
            return Operands(
                query=add(gradients.query, by_query),
                key=add(gradients.key, by_key),
                value=add(gradients.value, by_value),
                bias=None if gradients.bias is None else add(gradients.bias, by_bias),
            )

        added: Operands = _over_keys(plan, rest, rows_at, with_keys, gradients)
        return added

    after: Operands = lax.fori_loop(0, plan.counts[0], of_queries, gradients)
    return after


def _may_see(plan: Plan, rest: Rest, at: At) -> Number:
    assert rest.mask is not None
    queries, keys = (range_of(plan, rest, which, at) for which in (0, 1))
    return may_see(rest.mask, queries, keys)
