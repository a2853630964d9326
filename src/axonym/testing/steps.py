"""Internal. The claim that decoding token by token with a cache gives the same results as the complete sequence."""

import itertools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np

from ..array import NamedArray, is_named_array
from ..base.kinds import Tree
from ..errors import OperandError, message
from .differences import differences
from .explain import fail, write_place
from .failure import ClaimError
from .program import Program
from .trace import Operation, Trace


def check_cache(
    program: Program, axis: str, out: str, step: Callable[..., Any], cache: Tree
) -> None:
    """Raise if single positions with a cache give other results than the complete sequence.

    Args:
        program: the whole.
        axis: the axis of positions in the arguments.
        out: the axis of positions in the results.
        step: takes a cache and the arguments at one position, and returns the next cache and the result.
        cache: the first cache.
    """
    whole = program(program.arrays)
    wanted = program.results_with(out)
    size = program.size_of(axis, program.carriers(axis))
    run = eqx.filter_jit(step)
    for at in range(size):
        given = take(program.args, axis, at)
        pair = run(cache, *given)
        if not isinstance(pair, tuple) or len(pair) != 2:
            problem = "step must return a pair: the next cache, and the result"
            raise OperandError(message(program.function, problem))
        before, (cache, result) = cache, pair
        found = Program(program.function, lambda result=result: result, ())
        own = found.run(found.arrays)
        for i, (place, array) in zip(wanted, zip(found.results, own, strict=True), strict=False):
            here = NamedArray(whole[i], program.results[i].names)[out, at]
            order = [here.names.index(name) for name in place.names if name in here.names]
            change = differences(
                np.transpose(np.asarray(here.array), order), array, is_same_program=False
            )
            if change.any():
                stepped = Program(program.function, step, (before, *given))
                raise _explain(program, stepped, axis, at, float(change.max()))


def take(tree: Tree, axis: str, at: int) -> Tree:
    """Take one position along an axis from all arrays that have it."""
    return jax.tree.map(
        lambda x: x[axis, at] if is_named_array(x) and axis in x.names else x,
        tree,
        is_leaf=is_named_array,
    )


def _explain(program: Program, step: Program, axis: str, at: int, effect: float) -> ClaimError:
    place = {axis: at}
    problem = f"through the cache, {write_place(place)} gives another result than in the whole"
    return fail(
        "causal",
        problem,
        axis=axis,
        causes="cache",
        source=place,
        target=place,
        effect=effect,
        place=_locate(program, step, axis, at),
    )


def _locate(program: Program, step: Program, axis: str, at: int) -> tuple[str, str, str] | None:
    """Find the first layer whose results for one position are not among its results for the complete sequence."""
    whole = Trace(program.run_unwrapped, program.arrays, program)
    single = Trace(step.run_unwrapped, step.arrays, step)
    all_values, values = whole.run(program.arrays), single.run(step.arrays)
    size = program.size_of(axis, program.carriers(axis))
    known: dict[tuple[str, ...], list[Any]] = {}
    for operation in whole.operations:
        known.setdefault(operation.layer, []).extend(all_values[i] for i in operation.results)

    for layer, group in itertools.groupby(single.operations, lambda operation: operation.layer):
        last: Operation = list(group)[-1]
        result = values[last.results[0]]
        # Layers compute other operations for one position; results that match a slice of the whole are right.
        slices = [
            np.asarray(x).take(at, d)
            for x in known.get(layer, ())
            for d, own in enumerate(np.shape(x))
            if own == size and np.shape(x)[:d] + np.shape(x)[d + 1 :] == np.shape(result)
        ]
        is_known = any(not differences(one, result, is_same_program=False).any() for one in slices)
        if layer and slices and not is_known:
            return last.place
    return None
