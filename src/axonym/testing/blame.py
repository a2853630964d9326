"""Internal. Find where a difference between two runs first appears: the layer, and the operation in it.

Two runs of one program differ in their inputs. Some differences are right: if example 3 changed, the part of each value
that belongs to example 3 changes too. The search goes down the tree of layers. At each level, it takes the first part
with other changes, if its changed results alone break the claim when they are put into the first run. So only the
results of a layer count, not what it does inside, such as sorting tokens by expert.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from .differences import differences
from .program import Arrays, is_float
from .tolerances import tolerance
from .trace import Operation, Trace

Mask = np.ndarray[Any, Any]
Values = dict[int, Any]


def list_views(shape: Sequence[int], size: int) -> Iterator[tuple[int, int, int]]:
    """Yield the views of an array with three dimensions, where the second one has the given size.

    An axis may be merged with its neighbours, such as examples with positions, so multiples of the size count too.
    """
    for d, own in enumerate(shape):
        before, after = int(np.prod(shape[:d])), int(np.prod(shape[d + 1 :]))
        if own % size:
            continue
        for inner in range(1, own // size + 1):
            if own // size % inner == 0:
                yield before * (own // size // inner), size, inner * after


def is_within(changed: Mask, size: int, chosen: Mask) -> bool:
    """Return whether an array changed only at chosen positions along some dimension of the given size."""
    return not changed.any() or any(
        not changed.reshape(view)[:, ~chosen].any() for view in list_views(changed.shape, size)
    )


def find_place(
    trace: Trace,
    one: Arrays,
    other: Arrays,
    is_explained: Callable[[Any, Any], bool],
    is_broken: Callable[[Arrays], bool] | None = None,
    another: Trace | None = None,
) -> tuple[str, str, str] | None:
    """Find the first layer, and its first operation, with unexplained differences between two runs.

    Args:
        trace: the program.
        one: the inputs of one run.
        other: those of the other one.
        is_explained: whether two values differ as they should.
        is_broken: whether results break the claim; without it, every unexplained difference is wrong.
        another: the program of the second run, if its arrays have other sizes.

    Returns:
        The layer, the operation and the line of the source; None if there is none.
    """
    another = another or trace
    if [each.name for each in another.operations] != [each.name for each in trace.operations]:
        return None  # they differ in more than sizes, and nothing in one stands for something in the other
    first, second = trace.run(one), another.run(other)
    # The same operation has another number of values before it only if constants differ.
    pairs = zip(trace.operations, another.operations, strict=True)
    partner = {i: j for a, b in pairs for i, j in zip(a.results, b.results, strict=True)}
    readers: dict[int, int] = {}
    for number, operation in enumerate(trace.operations):
        for i in operation.operands:
            readers[i] = number
    readers |= dict.fromkeys(trace.outputs, len(trace.operations))

    def is_wrong(part: Sequence[tuple[int, Operation]]) -> bool:
        last = part[-1][0]
        made = {i for _, operation in part for i in operation.results}
        exits = {i for i in made if readers.get(i, -1) > last}
        if all(is_explained(first[i], second[partner[i]]) for i in exits):
            return False
        if is_broken is None:
            return True
        changed = {**first, **{i: second[partner[i]] for i in exits}}
        rest = trace.operations[last + 1 :]
        found = trace.resume(changed, rest, frozenset(exits))
        return is_broken([found[i] for i in trace.outputs])

    part: Sequence[tuple[int, Operation]] = list(enumerate(trace.operations))
    depth = 0
    while True:
        groups = [list(group) for group in _group(part, depth)]
        wrong = next((group for group in groups if is_wrong(group)), None)
        if wrong is None:
            # Together these operations break the claim, but no single one does.
            return part[-1][1].place if depth else None
        if len(wrong) == 1:
            return wrong[0][1].place
        part, depth = wrong, depth + 1


def _group(
    part: Sequence[tuple[int, Operation]], depth: int
) -> Iterator[Sequence[tuple[int, Operation]]]:
    """Group consecutive operations of the same layer at the next level; other operations stay alone."""

    def key(item: tuple[int, Operation]) -> object:
        number, operation = item
        inside = operation.layer[depth : depth + 1]
        # In a loop, each iteration is a separate part, below the layer of the loop.
        return (inside, operation.turns) if inside else number

    for _, group in itertools.groupby(part, key):
        yield list(group)


def is_same(x: Any, y: Any) -> bool:
    """Return whether two values are equal up to rounding."""
    return np.shape(x) == np.shape(y) and not differences(x, y, is_same_program=True).any()


# Two programs that do the same in other ways, such as under two layouts, match by their layers: by path, and by how
# often each has been called before.
Results = dict[tuple[tuple[str, ...], int], tuple[Operation, int]]


def list_layers(trace: Trace) -> Results:
    """Return the last floating result of each call of a layer, by the layer's path and the number of the call."""
    found: Results = {}
    calls: Counter[tuple[str, ...]] = Counter()
    for layer, group in itertools.groupby(trace.operations, lambda operation: operation.layer):
        last = list(group)[-1]
        if layer:
            found[layer, calls[layer]] = last, last.results[0]
            calls[layer] += 1
    return found


def find_first_layer(
    one: Trace, first: dict[int, Any], other: Trace, second: dict[int, Any], dtype: Any = None
) -> tuple[str, str, str] | None:
    """Return the first layer of a program whose result differs in another one.

    Args:
        one: the program.
        first: its values.
        other: the other program.
        second: its values.
        dtype: the narrowest dtype in which numbers were computed, if the results have another one.
    """
    known = list_layers(other)
    for key, (operation, result) in list_layers(one).items():
        if key not in known or result not in first or known[key][1] not in second:
            continue
        x, y = first[result], second[known[key][1]]
        if np.shape(x) != np.shape(y) or not is_float(x):
            continue
        change = differences(x, y, is_same_program=False)
        if dtype is not None:
            change = change * (change > tolerance(dtype, is_same_program=False))
        if change.any():
            return operation.place
    return None
