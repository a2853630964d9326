"""Internal. Experts that take all tokens that choose them: choices are sorted by expert.

Choices are sent to the devices of their experts in rounds. In a round, each device sends every other device a bucket of
tokens, a little larger than an even share. One round is enough while experts have about the same load; otherwise, more
rounds follow until the fullest bucket is sent. So memory does not grow with the imbalance, and only padding is sent in
vain.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.export import is_symbolic_dim

from ...array import NamedArray
from ...axis import Axis
from ...create import arange
from ...current.features import using
from ...current.machine import IS_PROOF
from ...layout import tracing
from ...layout.assignment import AxisMapping
from ...layout.context import MAPPING, current_mapping
from ...layout.scope import SCOPE, Scope, current_scope
from ...ops.histogram import bincount
from ...ops.index import take
from ...ops.logical import logical_and
from ...ops.sorting import argsort
from ...ops.where import where
from .layout import CHOICE, DEVICE, PLACE, ROW, SLOT, TOKEN, TokenLayout

PADDING = 1.25  # the size of a bucket, in even shares of the choices

Apply = Callable[[Any, NamedArray, NamedArray], NamedArray]


class _Plan(NamedTuple):
    """Which choices a device sends where.

    Attributes:
        order: the choices, sorted by expert.
        back: the place of each choice in this order.
        number: the expert of each choice; beyond the last one for choices that go nowhere.
        starts: where the choices for each device begin in this order.
        sizes: how many there are.
    """

    order: NamedArray
    back: NamedArray
    number: NamedArray
    starts: NamedArray
    sizes: NamedArray


class _Rounds(NamedTuple):
    """The static part of all rounds.

    Attributes:
        layout: the layout.
        apply: the function of the experts, of weights, rows and the number of rows of each expert.
        Local: the axis of the experts of one device.
        bucket: the number of rows for each device.
        mapping: the current mapping.
        scope: the surrounding `shard_map`.
    """

    layout: TokenLayout
    apply: Apply
    Local: Axis
    bucket: int
    mapping: AxisMapping | None
    scope: Scope | None


def apply_sorted(
    layout: TokenLayout,
    apply: Apply,
    experts: Any,
    inputs: tuple[NamedArray, NamedArray, NamedArray],
    Local: Axis,
) -> NamedArray:
    """Give each expert the tokens that chose it.

    Args:
        layout: the layout.
        apply: the function of the experts, of weights, rows and the number of rows of each expert.
        experts: the weights.
        inputs: the tokens of the device, the weights of their choices, and the number of the expert of each choice,
            which is beyond the last one for choices of no expert within reach.
        Local: the axis of the experts of one device.
    """
    x, gates, number = inputs
    if IS_PROOF.get() and layout.count(layout.shared) == 1:
        return _apply_all(apply, experts, x, gates, number, Local)
    tokens = [x.resolve_axis(name) for name in layout.tokens]
    flat = x.rearrange((*tokens, ...)).flatten_axes(layout.tokens, TOKEN)
    gates = gates.rearrange((*tokens, CHOICE)).flatten_axes(layout.tokens, TOKEN)
    ids = number.rearrange((*tokens, CHOICE)).flatten_axes((*layout.tokens, CHOICE), SLOT)

    devices, choices = layout.count(layout.shared), gates.axis_size(CHOICE)
    order = argsort(ids, SLOT)
    counts = bincount(ids, Axis(ROW, devices * Local.size))
    sizes = counts.unflatten_axis(ROW, (Axis(DEVICE, devices), Local)).sum(Local.name)
    plan = _Plan(order, argsort(order, SLOT), ids, sizes.cumsum(DEVICE) - sizes, sizes)

    most = flat.axis_size(TOKEN) * min(choices, Local.size)
    bucket = most
    # A symbolic number of tokens cannot be compared.
    if not is_symbolic_dim(most) and (devices > 1 or layout.alone):
        share = flat.axis_size(TOKEN) * choices / devices / layout.count(layout.alone)
        bucket = min(most, math.ceil(PADDING * share))
    rounds = _Rounds(layout, apply, Local, bucket, current_mapping(), current_scope())
    given = flat, gates, experts
    if bucket == most:
        y = _apply_round(rounds, 0, plan, *given)
    else:
        y = _apply_in_rounds(rounds, plan, *given)
    return y.unflatten_axis(TOKEN, tokens)


def _apply_all(
    apply: Callable[..., NamedArray],
    experts: Any,
    x: NamedArray,
    gates: NamedArray,
    number: NamedArray,
    Local: Axis,
) -> NamedArray:
    """Apply all experts to all tokens: the same function, in which no token changes its place.

    A proof would have to know that the sizes of groups count the keys of the sort before them.
    """
    results = apply(experts, x.broadcast_axis(Local))
    weights = where(number.broadcast_axis(Local) == arange(Local), gates, 0).sum(CHOICE)
    return (results * weights).sum(Local.name)


def _apply_round(
    rounds: _Rounds, number: Any, plan: _Plan, x: NamedArray, gates: NamedArray, experts: Any
) -> NamedArray:
    """Send one bucket to each device, and add up what comes back."""
    bucket, local = rounds.bucket, rounds.Local.size
    choices, first = gates.axis_size(CHOICE), number * bucket

    # The way there: a row of the bucket looks its token up, by its place among the choices of its device.
    place = (first + arange(Axis(PLACE, bucket))).broadcast_axis(plan.starts.axes)
    choice = take(plan.order, SLOT, plan.starts + place, mode="clip")
    is_row = place < plan.sizes
    token = where(is_row, choice // choices, x.axis_size(TOKEN))
    rows = take(x, TOKEN, token, mode="fill", fill_value=0)
    expert = where(is_row, take(plan.number, SLOT, choice, mode="clip") % local, local)
    weights = gates.rearrange((TOKEN, CHOICE)).flatten_axes((TOKEN, CHOICE), SLOT)
    of_row = where(is_row, choice, weights.axis_size(SLOT))
    weight = take(weights, SLOT, of_row, mode="fill", fill_value=0)
    home = _send_there_and_back(rounds, experts, rows, expert, weight)

    # The way back: a choice looks its row up. Choices of other rounds are out of bounds, and read zero.
    device = plan.number // local
    place = plan.back - take(plan.starts, DEVICE, device, mode="clip") - first
    is_here = logical_and(place >= 0, place < bucket)
    is_here = logical_and(is_here, device < plan.starts.size)
    row = where(is_here, device * bucket + place, home.axis_size(ROW))
    row = row.unflatten_axis(SLOT, (x.resolve_axis(TOKEN), gates.resolve_axis(CHOICE)))
    return take(home, ROW, row, mode="fill", fill_value=0).sum(CHOICE)


def _send_there_and_back(
    rounds: _Rounds, experts: Any, rows: NamedArray, expert: NamedArray, weight: NamedArray
) -> NamedArray:
    """Send rows to the devices of their experts, and the weighted results back.

    If they were weighted at home, the backward pass would need them there again.
    """
    pieces = rows.resolve_axis(DEVICE), rows.resolve_axis(PLACE)

    def sent(x: NamedArray) -> NamedArray:
        x = rounds.layout.exchange(x.rearrange((*pieces, ...)))
        return x.flatten_axes(pieces, ROW)

    given, ids, weight = sent(rows), sent(expert), sent(weight)
    results = _apply_by_expert(rounds, experts, given, ids) * weight
    back = results.unflatten_axis(ROW, pieces).rearrange((*pieces, ...))
    return rounds.layout.exchange(back).flatten_axes(pieces, ROW)


def _apply_by_expert(
    rounds: _Rounds, experts: Any, rows: NamedArray, ids: NamedArray
) -> NamedArray:
    """Apply experts to their rows; those of no expert are beyond the last one."""
    sizes = bincount(ids, rounds.Local)
    # JAX differentiates after the block ended in which a mapping was current.
    with using({MAPPING: rounds.mapping, SCOPE: rounds.scope}):
        if not rounds.layout.shared:  # rows of one device are sorted
            return rounds.apply(experts, rows, sizes)
        order = argsort(ids, ROW)
        ordered = rows.at[ROW, order].get(mode="promise_in_bounds", unique_indices=True)
        results = rounds.apply(experts, ordered, sizes)
        unsorted = results.at[ROW, argsort(order, ROW)]
        return unsorted.get(mode="promise_in_bounds", unique_indices=True)


def _apply_in_rounds(
    rounds: _Rounds, plan: _Plan, x: NamedArray, gates: NamedArray, experts: Any
) -> NamedArray:
    """Run as many rounds as the fullest bucket of all devices needs."""
    fullest = plan.sizes.array.max()
    if rounds.layout.shared:
        fullest = lax.pmax(fullest, rounds.layout.shared)
    count = -(-fullest // rounds.bucket)
    # All types are made to vary over the same mesh axes, so that those of loops stay as they are.
    mesh_axes = set[str]().union(*map(tracing.varying_over, jax.tree.leaves((plan, x, experts))))
    given = jax.tree.map(
        functools.partial(tracing.varying, mesh_axes=mesh_axes), (plan, x, gates, experts)
    )
    result: NamedArray = _sum_rounds(rounds, count, *given)
    return result


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _sum_rounds(rounds: _Rounds, count: jax.Array, plan: _Plan, *given: Any) -> Any:
    def body(number: jax.Array, total: Any) -> Any:
        return _add_trees(total, _apply_round(rounds, number, plan, *given))

    return _repeat(count, body, given[0])


def _sum_rounds_forward(rounds: _Rounds, count: jax.Array, plan: _Plan, *given: Any) -> Any:
    return _sum_rounds(rounds, count, plan, *given), (count, plan, given)


def _sum_rounds_backward(rounds: _Rounds, saved: Any, cotangent: Any) -> Any:
    count, plan, given = saved

    def body(number: jax.Array, total: Any) -> Any:
        # Rounds are computed again: what they keep would be as large as all of them together.
        _, pull = jax.vjp(functools.partial(_apply_round, rounds, number, plan), *given)
        return _add_trees(total, pull(cotangent))

    return None, None, *_repeat(count, body, given)


_sum_rounds.defvjp(_sum_rounds_forward, _sum_rounds_backward)


def _repeat(count: jax.Array, body: Callable[[jax.Array, Any], Any], like: Any) -> Any:
    """Add up the results of rounds, which have the structure of `like`."""

    def zeros(array: jax.Array) -> jax.Array:
        # Of an array: under a `vmap` over Explicit mesh axes, carries need its type.
        return jnp.where(False, array, jnp.zeros((), array.dtype))

    def step(state: tuple[jax.Array, Any]) -> tuple[jax.Array, Any]:
        number, total = state
        return number + 1, body(number, total)

    start = count - count, jax.tree.map(zeros, like)
    _, total = lax.while_loop(lambda state: state[0] < count, step, start)
    return total


def _add_trees(one: Any, other: Any) -> Any:
    return jax.tree.map(jnp.add, one, other)
