"""Ring attention: keys and values go from device to device, and each device adds what its queries see of them.

A device has a part of the positions. In each turn it sends the keys and values that it has to the next device, while it
computes with them. Parts that the mask hides from all its queries are not computed, and with a causal window, keys go
only as far as it reaches. In the backward pass, the gradients of keys and values travel with them, and in the end go
home. Nothing is kept but what the device had, its result, and two numbers for each query, so that memory is linear in
the number of its positions.

Reference:
    Liu, Zaharia, Abbeel (2023), Ring attention with blockwise transformers for near-infinite context.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
from jax import lax

from ....array import NamedArray
from ....ops.elementwise import maximum
from ..blocks.loop import (
    Kept,
    Rows,
    all_rows,
    if_may_see,
    kept_rows,
    no_gradients,
    no_rows,
    with_gradients,
)
from ..blocks.plan import Number, Operands, Plan, Rest, Tree
from ..call import KEYS, QUERIES
from ..hidden import may_see, range_of
from .devices import Layout, dimension, is_row, mapped, of_array, travels


class _Turn(NamedTuple):
    """What a device computes with in one turn."""

    operands: Operands
    rest: Rest
    seen: Number


class _Ring:
    """The operands of a device, and those that travel."""

    def __init__(self, plan: Plan, layout: Layout, operands: Operands, rest: Rest) -> None:
        self.plan = layout.local(plan)
        self.layout = layout
        self.here = layout.here()
        offsets = layout.offsets(plan, operands)
        self._offsets = {**offsets, QUERIES: self.here * self.plan.sizes[0]}
        self._home = operands, rest
        self.visiting = _kept(travels, self._home)

    def turn(self, number: Number, visiting: Tree) -> _Turn:
        """Return what a device computes with in a turn: its queries, and the keys that are there."""
        source = (self.here - number) % self.layout.ways
        operands, rest = _joined(visiting, mapped(functools.partial(self.part, source), self._home))
        rest = rest._replace(offsets={**self._offsets, KEYS: source * self.plan.sizes[1]})
        seen: Number = True
        if rest.mask is not None:
            queries, keys = (range_of(self.plan, rest, which) for which in (0, 1))
            seen = may_see(rest.mask, queries, keys)
        return _Turn(operands, rest, seen)

    def part(self, source: Number, x: Tree) -> Tree:
        """Return the part of an array that belongs to the keys of another device."""
        if not is_row(x):
            return x
        at, size = dimension(x, KEYS), self.plan.sizes[1]
        return of_array(lambda array: lax.dynamic_slice_in_dim(array, source * size, size, at), x)

    def with_part(self, source: Number, x: NamedArray, part: NamedArray) -> NamedArray:
        """Write the part of an array that belongs to the keys of another device."""
        if not is_row(x):
            return part
        at, size = dimension(x, KEYS), self.plan.sizes[1]
        return of_array(
            lambda array: lax.dynamic_update_slice_in_dim(array, part.array, source * size, at), x
        )


def ring_forward(
    plan: Plan, layout: Layout, operands: Operands, rest: Rest
) -> tuple[NamedArray, NamedArray, NamedArray]:
    """Return the result, the largest score and the total of each query of a device."""
    ring = _Ring(plan, layout, operands, rest)
    plan = ring.plan

    def compute(number: Number, visiting: Tree, rows: Rows) -> Rows:
        now = ring.turn(number, visiting)
        step = functools.partial(all_rows, plan, now.operands, now.rest)
        added: Rows = if_may_see(now.seen, step, rows)
        return added

    def turn(number: Number, carry: Tree) -> Tree:
        visiting, rows = carry
        return layout.send(visiting), compute(number, visiting, rows)

    carry = ring.visiting, no_rows(plan, operands)
    visiting, rows = _repeated(0, layout.hops, turn, carry)
    rows = compute(layout.hops, visiting, rows)
    total = maximum(rows.total, 1.0)
    return (rows.summed / total).astype(plan.dtype), rows.largest, total


def ring_backward(
    plan: Plan, layout: Layout, operands: Operands, rest: Rest, results: Tree, cotangents: Tree
) -> Operands:
    """Return the gradients by the operands of a device."""
    out, largest, total = results
    by_out, _, by_total = cotangents
    ring = _Ring(plan, layout, operands, rest)
    plan, send = ring.plan, layout.send
    rows = kept_rows(plan, out, (largest, total), (by_out, by_total), sees=layout.sees)
    compute = functools.partial(_gradients, ring, rows)

    zeros = no_gradients(plan, operands)
    staying = _kept(_stays, zeros)
    visiting = ring.visiting
    arriving = send(visiting) if layout.hops else None
    staying, own = compute(0, visiting, staying)
    if not layout.hops:
        return Operands(*_joined(own, staying))

    visiting = arriving
    arriving = send(visiting) if layout.hops > 1 else None
    staying, gradients = compute(1, visiting, staying)

    def turn(number: Number, carry: Tree) -> Tree:
        visiting, gradients, staying = carry
        arriving, arrived = send(visiting), send(gradients)
        staying, more = compute(number, visiting, staying)
        return arriving, _sum(arrived, more), staying

    if layout.hops > 1:
        carry = arriving, gradients, staying
        visiting, gradients, staying = _repeated(2, layout.hops, turn, carry)
        arrived = send(gradients)
        staying, more = compute(layout.hops, visiting, staying)
        gradients = _sum(arrived, more)
    home = send(gradients, -layout.hops)
    return Operands(*_joined(_sum(own, home), staying))


def _gradients(ring: _Ring, rows: Kept, number: Number, visiting: Tree, staying: Tree) -> Tree:
    """Return gradients after a turn: those that stay, and what is added to those that travel."""
    now = ring.turn(number, visiting)
    source = (ring.here - number) % ring.layout.ways
    zeros = _kept(travels, no_gradients(ring.plan, now.operands))
    before = _joined(zeros, mapped(functools.partial(ring.part, source), staying))
    step = functools.partial(with_gradients, ring.plan, now.operands, now.rest, rows)
    after = if_may_see(now.seen, step, before)
    write = functools.partial(ring.with_part, source)
    return mapped(write, staying, _kept(_stays, after)), _kept(travels, after)


def _stays(x: Tree) -> bool:
    return not travels(x)


def _kept(keep: Callable[[Tree], bool], tree: Tree) -> Tree:
    """Return a tree with None in place of arrays that are left out."""
    return mapped(lambda x: x if keep(x) else None, tree)


def _joined(one: Tree, other: Tree) -> Tree:
    """Return a tree with the arrays of two; where both have one, that of the first."""

    def first(x: Tree, y: Number) -> Tree:
        return y if x is None else x

    def is_leaf(x: Tree) -> bool:
        return x is None or isinstance(x, NamedArray)

    return jax.tree.map(first, one, other, is_leaf=is_leaf)


def _sum(one: Tree, other: Tree) -> Tree:
    return jax.tree.map(jax.numpy.add, one, other)


def _repeated(first: int, behind: int, step: Callable[[Tree, Tree], Tree], carry: Tree) -> Tree:
    """Take steps; a loop compiles them once."""
    if behind - first == 1:
        return step(first, carry)
    if behind <= first:
        return carry
    return lax.fori_loop(first, behind, step, carry)
