"""What a mask hides of a block of scores: single keys, or all of them, so that the block is not computed."""

import functools
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from ...array import NamedArray
from ...axis import Axis
from ...core import Core
from ...ops.elementwise import maximum
from ...ops.where import where
from .blocks.plan import At, Number, Plan, Rest, Tree, plus, take
from .call import KEYS, QUERIES, lowest
from .masks.conditions import logical_and, positions, smaller, visible
from .masks.mask import AttentionMask


def all_see(rest: Rest, sizes: tuple[int, int]) -> bool:
    """Return whether each query certainly sees a key: the one at its own position."""
    if rest.mask is None:
        return True
    if rest.q_start is not None or rest.k_start is not None or sizes[0] > sizes[1]:
        return False
    if rest.mask.places is not None and rest.mask.places[1] is not None:
        return False
    for clause in rest.mask.clauses:
        if clause.prefix is None and clause.explicit is None and not clause.segment_ids:
            return True
    return False


def seen(plan: Plan, rest: Rest, at: At, once: bool) -> NamedArray | None:
    """Return which keys of a block count, or None for all; with `once`, those of each query in one block only."""
    axes = Axis(QUERIES, plan.blocks[0]), Axis(KEYS, plan.blocks[1])
    conditions: list[NamedArray] = []
    if rest.mask is not None:
        part = functools.partial(take, plan=plan, at=at)
        queries = positions(axes[0], plus(at.starts[0], part(rest.start(0))))
        keys = positions(axes[1], plus(at.starts[1], part(rest.start(1))))
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


def masked(
    plan: Plan, rest: Rest, at: At, scores: NamedArray, bias: object, *, once: bool
) -> NamedArray:
    """Set hidden scores of a block to the lowest number; scores that a bias made as low stay above it."""
    small = lowest(scores.dtype)
    if bias is not None:
        scores = maximum(scores, small / 2)
    shown = seen(plan, rest, at, once)
    if shown is None:
        return scores
    order = tuple(name for name in scores.names if name in shown.names)
    return where(shown.rearrange(order), scores, small)


def key_blocks(plan: Plan, rest: Rest, start: object) -> tuple[Number, Number]:
    """Return the first block of keys that the block of queries from `start` on may see, and the one after the last."""
    if rest.mask is None:
        return 0, plan.counts[1]
    first = plus(start, _extreme(rest.start(0), jnp.min))
    behind = plus(start, _extreme(rest.start(0), jnp.max)) + plan.blocks[0]
    k_least, k_most = _extreme(rest.start(1), jnp.min), _extreme(rest.start(1), jnp.max)

    lows: list[Tree] = []
    highs: list[Tree] = []
    for clause in rest.mask.clauses:
        ends: list[Tree] = []
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
            low = plus(first - (clause.window - 1), -k_most)
        lows.append(low)
        highs.append(plus(functools.reduce(smaller, ends), -k_least))
    low, high = functools.reduce(smaller, lows), functools.reduce(jnp.maximum, highs)
    return _blocks_before(plan, low), _blocks_before(plan, high + (plan.blocks[1] - 1))


def _blocks_before(plan: Plan, position: Number) -> Number:
    """Count the whole blocks of keys before a position, which may be negative or beyond the end."""
    block = plan.blocks[1]
    most = plan.counts[1] * block
    if isinstance(position, int):
        return min(max(position, 0), most) // block
    # `lax.div` rounds nonnegative numbers down, in one operation.
    return lax.div(lax.clamp(0, position, most), block)


def _extreme(x: Tree, which: Tree) -> Number:
    """Reduce a number that may have axes to the smallest or largest of its elements."""
    if x is None or isinstance(x, int):
        return x or 0
    if isinstance(x, Core):
        x = which(x.array)
    return jnp.asarray(x, int)  # the type in which a loop counts


class Range(NamedTuple):
    """The smallest and the largest of some positions."""

    least: Number
    most: Number


def may_see(mask: AttentionMask, queries: Range, keys: Range) -> Number:
    """Return whether one of some queries may see one of some keys, going by their positions; True if it surely may."""
    seen: Number = None
    for clause in mask.clauses:
        conditions: list[Tree] = []
        if clause.causal:
            conditions.append(keys.least <= queries.most)
        if clause.window is not None:
            conditions.append(queries.least - keys.most < clause.window)
        if clause.window is not None and not clause.causal:
            conditions.append(keys.least - queries.most < clause.window)
        if clause.prefix is not None:
            conditions.append(keys.least < _extreme(clause.prefix, jnp.max))
        if not conditions:
            return True
        own = functools.reduce(jnp.logical_and, conditions)
        seen = own if seen is None else seen | own
    return seen


def range_of(plan: Plan, rest: Rest, which: int, at: At | None = None) -> Range:
    """Return the positions of all queries (0) or keys (1) that this device has, or of those of a block."""
    assert rest.mask is not None
    if rest.mask.places is not None:
        places = rest.mask.places[which]
        if places is None:
            places = rest.mask.places[0].rename({QUERIES: KEYS})
        if at is not None:
            places = take(places, plan, at)
        return Range(_extreme(places, jnp.min), _extreme(places, jnp.max))
    start, size = rest.start(which), plan.sizes[which]
    first, last = _extreme(start, jnp.min), _extreme(start, jnp.max)
    return Range(first, last + (size - 1))
