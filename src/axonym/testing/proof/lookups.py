"""Internal. Operations that read or write at positions which are computed, and random numbers."""

import dataclasses
from collections.abc import Mapping, Sequence

from .elements import Equation, Rule, combine
from .facts import Known
from .places import Cause, Part, Place
from .shapes import move_known, pad_known, shape_of, slice_known
from .sums import forget_dimensions, treat_last


def _gather(equation: Equation, inputs: Sequence[Known], cause: Cause) -> list[Known]:
    table, indices = inputs
    numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    shape = shape_of(equation.invars[0])
    new_rank = len(shape_of(equation.outvars[0]))
    rows = [i for i in range(new_rank) if i not in numbers.offset_dims]
    windows = list(numbers.offset_dims)
    to: dict[Place, Place | None] = {}
    for i, size in enumerate(shape):
        if i in numbers.operand_batching_dims:
            at = numbers.operand_batching_dims.index(i)
            to[i] = rows[numbers.start_indices_batching_dims[at]]
        elif i in numbers.collapsed_slice_dims:
            to[i] = None
        else:
            place = windows.pop(0)
            # A whole slice starts at zero.
            to[i] = place if sizes[i] == size else None
    own: dict[Place, Place | None] = dict(enumerate([*rows, None]))
    parts = [move_known(table, to, cause), move_known(indices, own, cause)]
    varies = {Part(place) for place in numbers.offset_dims if place not in to.values()}
    found = combine(parts, may_hide=table.may_hide)
    return [dataclasses.replace(found, varies=found.varies | varies)]


def _scatter(equation: Equation, inputs: Sequence[Known], cause: Cause) -> list[Known]:
    table, indices, updates = inputs
    numbers = equation.params["dimension_numbers"]
    shape, update_shape = shape_of(equation.invars[0]), shape_of(equation.invars[2])
    windows = list(numbers.update_window_dims)
    rows = [i for i in range(len(update_shape)) if i not in windows]
    to: dict[Place, Place | None] = dict.fromkeys(rows)
    own: dict[Place, Place | None] = dict.fromkeys(range(len(rows) + 1))
    pairs = zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
    for place, at in pairs:
        to[rows[at]] = own[at] = place
    # An element of the table may come from any update, unless a dimension of the updates covers the whole one.
    moved: set[Part] = set()
    for i, size in enumerate(shape):
        if i in numbers.operand_batching_dims:
            continue
        if i in numbers.inserted_window_dims:
            moved.add(Part(i))
            continue
        at = windows.pop(0)
        is_whole = update_shape[at] == size
        to[at] = i if is_whole else None
        if not is_whole:
            moved.add(Part(i))
    parts = [table.bare(), move_known(updates, to, cause), move_known(indices, own, cause)]
    found = combine(parts, may_hide=table.may_hide or updates.may_hide)
    return [dataclasses.replace(found, varies=found.varies | moved)]


def _slice(equation: Equation, inputs: Sequence[Known], cause: Cause) -> list[Known]:
    known, *starts = inputs
    old, new = shape_of(equation.invars[0]), shape_of(equation.outvars[0])
    for i, (size, count) in enumerate(zip(old, new, strict=True)):
        start = _find_start(starts[i], size, count)
        if size == count:
            continue
        if start is not None:
            known = slice_known(known, i, size, start, start + count, 1, cause)
        else:
            known = forget_dimensions([known], [i], cause)
    return [combine([known, *starts], may_hide=known.may_hide)]


def _find_start(known: Known, size: int, count: int) -> int | None:
    """Return where a slice starts, if it is known; a slice that would end outside is moved into the array."""
    if known.constant is None:
        return None
    return min(max(int(known.constant), 0), size - count)


def _update_slice(equation: Equation, inputs: Sequence[Known], cause: Cause) -> list[Known]:
    known, update, *starts = inputs
    old, new = shape_of(equation.invars[0]), shape_of(equation.invars[1])
    moved: set[Part] = set()
    for i, (size, count) in enumerate(zip(old, new, strict=True)):
        if size == count:
            continue
        moved.add(Part(i))
        start = _find_start(starts[i], size, count)
        if start is not None:
            update = pad_known(update, i, count, start, 0, size, cause)
        else:
            update = forget_dimensions([update], [i], cause)
    hide = known.may_hide or update.may_hide
    found = combine([known, update, *starts], may_hide=hide)
    return [dataclasses.replace(found, varies=found.varies | moved)]


def _draw(equation: Equation, inputs: Sequence[Known], cause: Cause) -> list[Known]:
    """Draw for each key: what comes behind the dimensions of the keys depends on the whole key."""
    lead = len(shape_of(equation.invars[0]))
    if equation.primitive.name == "random_wrap":
        lead -= 1
    return treat_last(equation, inputs, lead, cause)


def _draw_bits(equation: Equation, inputs: Sequence[Known], cause: Cause) -> list[Known]:
    """Return bits, and the next key of each key."""
    return treat_last(equation, inputs, 0, cause)


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(
        ("random_bits", "random_seed", "random_split", "random_unwrap", "random_wrap"), _draw
    ),
    **dict.fromkeys(
        (
            "scatter",
            "scatter-add",
            "scatter-max",
            "scatter-min",
            "scatter-mul",
            "scatter-sub",
            "scatter_add",
            "scatter_max",
            "scatter_min",
            "scatter_mul",
            "scatter_sub",
        ),
        _scatter,
    ),
    "dynamic_slice": _slice,
    "dynamic_update_slice": _update_slice,
    "gather": _gather,
    "rng_bit_generator": _draw_bits,
}
