"""Internal. Ring attention: keys and values go from device to device, and each device attends to them with its queries.

A device has a part of the positions. In each step it sends the keys and values that it has to the next device, while it
computes with them. Parts that the mask hides from all its queries are not computed, and with a causal window, keys go
only as far as it reaches. In the backward pass, the gradients of keys and values are sent along, and finally return to
the original device. Nothing is kept but what the device had, its result, and two numbers for each query, so that memory
is linear in the number of its positions. `context` runs it for `implementation="ring"`.

Reference:
    Liu, Zaharia, Abbeel (2023), Ring attention with blockwise transformers for near-infinite context.
"""

import functools
from collections.abc import Callable

import jax
from jax import lax

from ....array import NamedArray
from ..blocks import loop
from ..blocks.plan import BlockPlan, Operands, Rest, Tree
from ..call import KEYS, QUERIES
from ..masks.conditions import Number
from .devices import (
    DevicePlan,
    Method,
    Saved,
    apply,
    find_dimension,
    is_of_keys,
    is_of_pairs,
    map_arrays,
    vary,
)


class _Ring:
    """The operands of a device, and those that travel."""

    def __init__(
        self, plan: BlockPlan, devices: DevicePlan, operands: Operands, rest: Rest
    ) -> None:
        self.plan = devices.make_local(plan)
        self.devices = devices
        self.index = devices.find_index()
        offsets = devices.find_offsets(plan, operands)
        self._offsets = {**offsets, QUERIES: self.index * self.plan.sizes[0]}
        # Arrays over pairs stay at home: a device slices those of the keys that visit.
        self._home = operands, rest
        self.travellers = _select(is_of_keys, self._home)

    def find_source(self, number: Number) -> Number:
        """Return the device whose keys are here in a step."""
        return (self.index - number) % self.devices.ways

    def visit(self, number: Number, travellers: Tree) -> tuple[Operands, Rest, Number]:
        """Return what a device computes with in a step: its queries, the keys that are there, and whether it may."""
        source = self.find_source(number)
        parts = map_arrays(functools.partial(self.slice_part, source), self._home)
        operands, rest = _join(travellers, parts)
        rest = rest._replace(offsets={**self._offsets, KEYS: source * self.plan.sizes[1]})
        return operands, rest, loop.may_see_keys(self.plan, rest)

    def slice_part(self, source: Number, x: Tree) -> Tree:
        """Return the part of a pairwise array that belongs to the keys of another device."""
        if not is_of_pairs(x):
            return x
        dim, size = find_dimension(x, KEYS), self.plan.sizes[1]
        return apply(lambda array: lax.dynamic_slice_in_dim(array, source * size, size, dim), x)

    def write_part(self, source: Number, x: NamedArray, part: NamedArray) -> NamedArray:
        """Write the part of a pairwise array that belongs to the keys of another device."""
        if not is_of_pairs(x):
            return part
        dim, start = find_dimension(x, KEYS), source * self.plan.sizes[1]
        update = lax.dynamic_update_slice_in_dim
        return apply(lambda array: update(array, part.array, start, dim), x)


def _compute(plan: BlockPlan, devices: DevicePlan, operands: Operands, rest: Rest) -> Tree:
    """Return the results of the queries of a device."""
    operands, rest = vary(devices, (operands, rest))
    ring = _Ring(plan, devices, operands, rest)
    plan = ring.plan

    def compute(number: Number, travellers: Tree, rows: loop.Rows) -> loop.Rows:
        operands, rest, seen = ring.visit(number, travellers)
        folded: loop.Rows = loop.step_if(
            seen, functools.partial(loop.fold_all, plan, operands, rest), rows
        )
        return folded

    def step(number: Number, carry: Tree) -> Tree:
        travellers, rows = carry
        return devices.send(travellers), compute(number, travellers, rows)

    carry = ring.travellers, loop.start_rows(plan, operands)
    travellers, rows = _repeat(0, devices.hops, step, carry)
    # After the last step nothing is sent.
    return loop.average(plan, compute(devices.hops, travellers, rows)), ()


def _differentiate(
    plan: BlockPlan, devices: DevicePlan, saved: Saved, cotangents: Tree
) -> Operands:
    """Return the gradients by the operands of a device."""
    ring = _Ring(plan, devices, saved.operands, saved.rest)
    plan, send, hops = ring.plan, devices.send, devices.hops
    rows = loop.make_backward_rows(plan, saved.results, cotangents, sees=devices.sees)
    compute = functools.partial(_add_visit, ring, rows)

    # Keys are sent one step ahead of their gradients, so that a device need not wait for them.
    staying = _select(_is_staying, loop.make_zeros(plan, saved.operands))
    # The own keys come first, and their gradients are added to what comes home: those need not travel all the way.
    travellers = ring.travellers
    arriving = send(travellers) if hops else None
    staying, own = compute(0, travellers, staying)
    if not hops:
        return Operands(*_join(own, staying))

    travellers = arriving
    arriving = send(travellers) if hops > 1 else None
    staying, gradients = compute(1, travellers, staying)

    def step(number: Number, carry: Tree) -> Tree:
        travellers, gradients, staying = carry
        arriving, arrived = send(travellers), send(gradients)
        staying, more = compute(number, travellers, staying)
        return arriving, _add(arrived, more), staying

    if hops > 1:
        carry = arriving, gradients, staying
        travellers, gradients, staying = _repeat(2, hops, step, carry)
        arrived = send(gradients)
        staying, more = compute(hops, travellers, staying)
        gradients = _add(arrived, more)
    # The last device sends them back in one hop, whatever the number of steps was.
    home = send(gradients, -hops)
    return Operands(*_join(_add(own, home), staying))


def _add_visit(
    ring: _Ring, rows: loop.BackwardRows, number: Number, travellers: Tree, staying: Tree
) -> Tree:
    """Return the gradients of a step: those that stay, and those to add to the gradients that are sent."""
    operands, rest, seen = ring.visit(number, travellers)
    source = ring.find_source(number)
    # From zero, and not from what has arrived: it is added later, so that computing need not wait for it.
    zeros = _select(is_of_keys, loop.make_zeros(ring.plan, operands))
    before = _join(zeros, map_arrays(functools.partial(ring.slice_part, source), staying))
    add = functools.partial(loop.add_gradients, ring.plan, operands, rest, rows)
    after = loop.step_if(seen, add, before)
    write = functools.partial(ring.write_part, source)
    staying = map_arrays(write, staying, _select(_is_staying, after))
    return staying, _select(is_of_keys, after)


def _is_staying(x: Tree) -> bool:
    return not is_of_keys(x)


def _select(is_selected: Callable[[Tree], bool], tree: Tree) -> Tree:
    """Return a tree with None in place of arrays that are left out."""
    return map_arrays(lambda x: x if is_selected(x) else None, tree)


def _join(one: Tree, other: Tree) -> Tree:
    """Return a tree with the arrays of two trees; where both have one, the first wins."""

    def is_leaf(x: Tree) -> bool:
        return x is None or isinstance(x, NamedArray)

    return jax.tree.map(lambda x, y: y if x is None else x, one, other, is_leaf=is_leaf)


def _add(one: Tree, other: Tree) -> Tree:
    return jax.tree.map(jax.numpy.add, one, other)


def _repeat(first: int, behind: int, step: Callable[[Tree, Tree], Tree], carry: Tree) -> Tree:
    """Take steps; a loop compiles them once."""
    # Without a loop, the compiler may overlap the step with what comes before and after.
    if behind - first == 1:
        return step(first, carry)
    return carry if behind <= first else lax.fori_loop(first, behind, step, carry)


RING = Method("ring", _compute, _differentiate)
