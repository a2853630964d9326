"""Internal. Attention over split positions after an all-gather: each device gets the keys and values of all others.

`context` runs it for `implementation="all-gather"`. Queries stay, so that it also does calls in which each device has
all keys from the start.
"""

import functools

from jax import lax

from ..blocks.loop import average, differentiate, fold_all, start_rows
from ..blocks.plan import BlockPlan, Operands, Rest, Tree
from ..call import KEYS, QUERIES
from .devices import DevicePlan, Method, Saved, apply, find_dimension, is_of_keys, map_arrays, vary


def _compute(plan: BlockPlan, devices: DevicePlan, operands: Operands, rest: Rest) -> Tree:
    """Return the results of the queries of a device."""
    operands, rest = _gather(plan, devices, *vary(devices, (operands, rest)))
    plan = devices.make_local(plan, all_keys=True)
    return average(plan, fold_all(plan, operands, rest, start_rows(plan, operands))), ()


def _differentiate(
    plan: BlockPlan, devices: DevicePlan, saved: Saved, cotangents: Tree
) -> Operands:
    """Return the gradients by the operands of a device, after gathering the keys once more."""
    # Nothing is kept: the keys of all devices would take as much memory as positions that are not split.
    operands, rest = _gather(plan, devices, saved.operands, saved.rest)
    local = devices.make_local(plan, all_keys=True)
    gradients = differentiate(local, operands, rest, saved.results, cotangents, sees=devices.sees)

    def scatter(x: Tree) -> Tree:
        if not is_of_keys(x) or not devices.splits_keys:
            return x
        add = functools.partial(lax.psum_scatter, axis_name=devices.axes, tiled=True)
        return apply(lambda array: add(array, scatter_dimension=find_dimension(x, KEYS)), x)

    scattered: Operands = map_arrays(scatter, gradients)
    return scattered


def _gather(
    plan: BlockPlan, devices: DevicePlan, operands: Operands, rest: Rest
) -> tuple[Operands, Rest]:
    """Return the operands with all keys."""
    offsets = devices.find_offsets(plan, operands)

    def gather(x: Tree) -> Tree:
        if not is_of_keys(x) or not devices.splits_keys:
            return x
        join = functools.partial(lax.all_gather, axis_name=devices.axes, tiled=True)
        return apply(lambda array: join(array, axis=find_dimension(x, KEYS)), x)

    operands, rest = map_arrays(gather, (operands, rest))
    # Keys are all here, so that only queries begin elsewhere than at 0.
    start = devices.find_index() * devices.make_local(plan).sizes[0]
    return operands, rest._replace(offsets={**offsets, QUERIES: start})


GATHER = Method("all-gather", _compute, _differentiate)
