"""Internal. Attention block by block where no positions are split: softmax as a running sum.

Memory is linear in the number of positions. It is the method without exchange; `choose` calls it, and so does `context`
if positions are not split after all. It knows only the mesh axes in the types of arrays.
"""

import jax

from ....array import NamedArray, is_named_array
from ....engine import auto
from ....engine.core import wrap
from ....layout import explicit
from ....layout.assignment import Entry
from ....partitioning.shard import auto_sharded
from ..blocks import loop
from ..blocks.plan import Block, BlockPlan, Operands, Rest, Tree, fill, prepare
from ..call import KEYS, QUERIES, AttentionCall
from ..plain import attend_plainly
from .devices import DevicePlan, Method, PositionSharding, Saved, run


def attend_by_blocks(call: AttentionCall) -> NamedArray:
    """Compute attention with one block of scores at a time."""
    if call.q_pos is None:
        return attend_plainly(call)  # its scores are linear in the number of positions
    if not call.query.axis_size(call.q_pos) or not call.keys.axis_size(call.k_pos):
        return attend_plainly(call)  # there is no block
    plan, operands, rest = prepare(call)
    # With a mapping on Auto axes, other axes stay sharded, and the compiler gathers positions.
    operands, rest = auto_sharded((operands, rest))
    sees = loop.is_sure_to_see(rest, plan.sizes)
    operands, rest, entries = _gather_positions(plan, operands, rest)
    sharding = PositionSharding((), (), 1, None, entries)
    devices = DevicePlan(LOCAL, sharding, plan.blocks, sees)
    results = run(plan, devices, operands, rest)
    return loop.finish(call, plan, operands, results, sees=sees)


def _gather_positions(
    plan: BlockPlan, operands: Operands, rest: Rest
) -> tuple[Operands, Rest, tuple[tuple[str, Entry], ...]]:
    """On Explicit mesh axes, gather positions, and return the mesh axes of the result too, which the types choose."""
    leaves = jax.tree.leaves((operands, rest), is_leaf=is_named_array)
    given = [x for x in leaves if isinstance(x, NamedArray)]
    if not any(explicit.has_explicit_axes(x.array) for x in given):
        return operands, rest, ()

    # Each block is cut from all positions.
    def gather(x: Tree) -> Tree:
        if not isinstance(x, NamedArray):
            return x
        dims = [x.names.index(name) - len(x.names) for name in (QUERIES, KEYS) if name in x.names]
        return wrap(x, auto.whole(x.array, dims), x.names)

    operands, rest = jax.tree.map(gather, (operands, rest), is_leaf=is_named_array)
    leaves = jax.tree.leaves((operands, rest), is_leaf=is_named_array)
    given = [x for x in leaves if isinstance(x, NamedArray)]
    labels, arrays = [x.names for x in given], [x.array for x in given]
    return operands, rest, tuple(explicit.choose(plan.out_names, labels, arrays).items())


def _compute(plan: BlockPlan, devices: DevicePlan, operands: Operands, rest: Rest) -> Tree:
    """Return the results of all queries, each block of which sees all keys at once."""

    def compute(block: Block) -> tuple[NamedArray, ...]:
        rows = loop.start_rows(plan, operands, plan.blocks[0])
        return loop.average(plan, loop.fold_keys(plan, operands, rest, block, rows))

    # In the dtype of the result, and not in that of the running sums, which is wider.
    out = fill(plan, operands, plan.out_names, 0.0).astype(plan.dtype)
    row = fill(plan, operands, plan.row_names, 0.0)
    return loop.fold_queries(plan, (out, row, row), compute), ()


def _differentiate(
    plan: BlockPlan, devices: DevicePlan, saved: Saved, cotangents: Tree
) -> Operands:
    """Return the gradients by the operands."""
    operands, rest, results, _ = saved
    return loop.differentiate(plan, operands, rest, results, cotangents, sees=devices.sees)


LOCAL = Method("blockwise", _compute, _differentiate)
