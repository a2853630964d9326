"""Internal. Operations that read or write at computed positions, and operations that draw random numbers."""

import dataclasses
from collections.abc import Mapping, Sequence

from .elements import Equation, Rule, combine
from .facts import Count, Known
from .places import Cause, Part, Place, Turn
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
            to[i] = _find_token(indices, numbers.start_index_map, i, size)
        else:
            place = windows.pop(0)
            # A complete slice starts at zero.
            to[i] = place if sizes[i] == size else None
    own: dict[Place, Place | None] = dict(enumerate([*rows, None]))
    parts = [move_known(table, to, cause), move_known(indices, own, cause)]
    if any(isinstance(place, str) for place in to.values()):
        parts = parts[:1]  # the number of a turn says where it reads, and nothing else
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
    # An element of the table may come from any update, unless a dimension of the updates covers the complete one.
    moved: set[Part] = set()
    for i, size in enumerate(shape):
        if i in numbers.operand_batching_dims:
            continue
        if i in numbers.inserted_window_dims:
            moved.add(Part(i))
            token = _find_token(indices, numbers.scatter_dims_to_operand_dims, i, size)
            if token is not None:
                # An element at a coordinate was written in the iteration of this number.
                to[token], indices = i, Known()
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
    turn = _find_turn(starts, old, new)
    if turn is not None:
        # An iteration that reads at its own number gets the same slice as in a loop over the array.
        place, token = turn
        known, starts[place] = move_known(known, {place: token}, cause), Known()
        old = (*old[:place], 1, *old[place + 1 :])
    for i, (size, count) in enumerate(zip(old, new, strict=True)):
        start = _find_start(starts[i], size, count)
        if size == count:
            continue
        if start is not None:
            known = slice_known(known, i, size, start, start + count, 1, cause)
        else:
            known = forget_dimensions([known], [i], cause)
    if not any(one.reach or one.varies for one in starts):
        return [known]
    return [combine([known, *starts], may_hide=known.may_hide)]


def _find_token(
    indices: Known, dimensions: Sequence[int], dimension: int, size: int
) -> Turn | None:
    """Return the loop whose iteration number is the index of one dimension."""
    steps = indices.count.steps if indices.count is not None else {}
    if len(steps) != 1 or tuple(dimensions) != (dimension,):
        return None
    (token,) = steps
    # It begins at zero, and so all are within the array.
    is_number = isinstance(token, Turn) and indices.count == Count(0, {token: 1})
    return token if isinstance(token, Turn) and is_number and token.size == size else None


def _find_turn(
    starts: Sequence[Known], old: Sequence[int], new: Sequence[int]
) -> tuple[int, Turn] | None:
    """Return a dimension and a loop, if a slice takes the element at the loop's iteration number along it."""
    for i, known in enumerate(starts):
        token = _find_token(known, (i,), i, old[i])
        if token is not None and new[i] == 1:
            return i, token
    return None


def _find_start(known: Known, size: int, count: int) -> int | None:
    """Return the start of a slice, if it is known; a slice that would end outside the array is moved into it."""
    if known.constant is None:
        return None
    return min(max(int(known.constant), 0), size - count)


def _update_slice(equation: Equation, inputs: Sequence[Known], cause: Cause) -> list[Known]:
    known, update, *starts = inputs
    old, new = shape_of(equation.invars[0]), shape_of(equation.invars[1])
    turn = _find_turn(starts, old, new)
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
    if turn is not None:
        # An element at a coordinate was written in the turn of this number, and depends on what that turn had.
        place, token = turn
        starts[place] = Known()
        update, *starts = (move_known(one, {token: place}, cause) for one in (update, *starts))
    hide = known.may_hide or update.may_hide
    found = combine([known, update, *starts], may_hide=hide)
    return [dataclasses.replace(found, varies=found.varies | moved)]


def _draw(equation: Equation, inputs: Sequence[Known], cause: Cause) -> list[Known]:
    """Draw for each key: the further dimensions of the result depend on the complete key."""
    lead = len(shape_of(equation.invars[0]))
    if equation.primitive.name == "random_wrap":
        lead -= 1
    return treat_last(equation, inputs, lead, cause)


def _draw_bits(equation: Equation, inputs: Sequence[Known], cause: Cause) -> list[Known]:
    """Return random bits, and the next key for each key."""
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
