"""Internal. Operations that move elements without computing: broadcasts, reshapes, slices, paddings and joins."""

import dataclasses
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeAlias

from .elements import Equation, Rule, combine
from .facts import Count, Known
from .places import (
    Cause,
    Number,
    Part,
    Place,
    anchor,
    count_behind,
    find_weight,
    make_exact,
    move,
    move_parts,
    reshape,
    reshape_parts,
    shift,
    take_one,
)

Dimensions: TypeAlias = Mapping[Place, Place | None]


def shape_of(variable: Any) -> tuple[int, ...]:
    """Return the dimensions of an array in a program."""
    return tuple(getattr(variable.aval, "shape", ()))


def move_known(known: Known, to: Dimensions, cause: Cause | None) -> Known:
    """Move dimensions to other places, with all facts; a dimension mapped to None may have any coordinate."""
    varies = move_parts(known.varies, to)
    count = known.count
    facts = known.move_facts(to)
    # A number that changes along a removed dimension is not known.
    if count is not None and any(to.get(place, place) is None for place in count.steps):
        facts["count"] = None
    return dataclasses.replace(known, reach=move(known.reach, to, cause), varies=varies, **facts)


def _iota(equation: Equation, inputs: Sequence[Known], cause: Cause) -> list[Known]:
    (dimension,) = (equation.params["dimension"],)
    shape = shape_of(equation.outvars[0])
    count = Count(0, {dimension: 1} if shape[dimension] > 1 else {})
    dtype = equation.outvars[0].aval.dtype
    fitting = count if count.fits(dtype, shape) else None
    return [Known(varies=frozenset((Part(dimension),)), count=fitting)]


def _broadcast(equation: Equation, inputs: Sequence[Known], cause: Cause) -> list[Known]:
    old = shape_of(equation.invars[0])
    places = equation.params["broadcast_dimensions"]
    # A dimension of size 1 has one coordinate, zero, which adds nothing.
    to: Dimensions = {i: place if old[i] > 1 else None for i, place in enumerate(places)}
    return [move_known(inputs[0], to, cause)]


def _transpose(equation: Equation, inputs: Sequence[Known], cause: Cause) -> list[Known]:
    places = equation.params["permutation"]
    return [move_known(inputs[0], {old: new for new, old in enumerate(places)}, cause)]


def _squeeze(equation: Equation, inputs: Sequence[Known], cause: Cause) -> list[Known]:
    return [squeeze(inputs[0], equation.params["dimensions"], shape_of(equation.invars[0]), cause)]


def squeeze(known: Known, dropped: Sequence[int], shape: Sequence[int], cause: Cause) -> Known:
    """Remove dimensions that have one coordinate."""
    kept = [i for i in range(len(shape)) if i not in dropped]
    to: dict[Place, Place | None] = dict.fromkeys(dropped)
    return move_known(known, to | {old: new for new, old in enumerate(kept)}, cause)


def _reshape(equation: Equation, inputs: Sequence[Known], cause: Cause) -> list[Known]:
    (known, *_), order = inputs, equation.params.get("dimensions")
    old, new = shape_of(equation.invars[0]), shape_of(equation.outvars[0])
    if order is not None:
        # The array is transposed first.
        known = move_known(known, {i: place for place, i in enumerate(order)}, cause)
        old = tuple(old[i] for i in order)
    # Dimensions of equal size with equally many elements behind them are the same.
    after = {pair: i for i, pair in enumerate(zip(new, count_behind(new), strict=True))}
    to: dict[Place, Place | None] = {
        i: after.get(pair) if pair[0] > 1 else None
        for i, pair in enumerate(zip(old, count_behind(old), strict=True))
    }
    moved = move_known(dataclasses.replace(known, reach={}), to, cause)
    varies = reshape_parts(known.varies, old, new)
    reach = reshape(known.reach, old, new, cause)
    is_same = all(to[i] is not None or size == 1 for i, size in enumerate(old))
    origin = moved.origin if is_same else None
    return [dataclasses.replace(moved, reach=reach, varies=varies, origin=origin)]


def slice_known(
    known: Known,
    place: int,
    size: int,
    start: int,
    stop: int,
    stride: int,
    cause: Cause,
) -> Known:
    """Take some coordinates along one dimension."""
    count = -(-(stop - start) // stride)
    if count == size:
        return known
    if count == 1:
        reach = take_one(known.reach, place, size, start, stride, cause)
    else:
        reach = shift(
            known.reach, place, size, cause, start=start, stride=stride, new_size=max(count, 0)
        )
    found = _leave(known, place)
    if known.count is not None and not known.count.is_absolute:
        step = known.count.steps.get(place, 0)
        steps = {**known.count.steps, place: step * stride}
        if not step or count == 1:
            steps.pop(place)
        found = dataclasses.replace(found, count=Count(known.count.constant + step * start, steps))
    # Which coordinates are taken depends on where they are.
    is_moved = any(digit.place == place for digits in known.reach for digit in digits)
    varies = known.varies | {Part(place)} if is_moved else known.varies
    return dataclasses.replace(found, reach=reach, varies=varies)


def _leave(known: Known, place: Place) -> Known:
    """Drop the facts about one dimension, whose coordinates change."""
    facts = known.move_facts({place: None}) | {"origin": None}
    if known.count is not None and place in known.count.steps:
        facts["count"] = None
    return dataclasses.replace(known, **facts)


def _slice(equation: Equation, inputs: Sequence[Known], cause: Cause) -> list[Known]:
    (known,), params = inputs, equation.params
    shape = shape_of(equation.invars[0])
    strides = params["strides"] or (1,) * len(shape)
    starts, stops = params["start_indices"], params["limit_indices"]
    for place, ends in enumerate(zip(shape, starts, stops, strides, strict=True)):
        size, start, stop, stride = map(int, ends)
        known = slice_known(known, place, size, start, stop, stride, cause)
    return [known]


def _split(equation: Equation, inputs: Sequence[Known], cause: Cause) -> list[Known]:
    axis, sizes = equation.params["axis"], equation.params["sizes"]
    size = shape_of(equation.invars[0])[axis]
    found: list[Known] = []
    start = 0
    for one in sizes:
        found.append(slice_known(inputs[0], axis, size, start, start + one, 1, cause))
        start += one
    return found


def pad_known(
    known: Known,
    place: int,
    size: int,
    low: int,
    interior: int,
    new_size: int,
    cause: Cause,
    weight: Number | None = None,
) -> Known:
    """Move coordinates along one dimension to `low + (interior + 1) * p`.

    Args:
        known: the facts about the array.
        place: the dimension.
        size: its size.
        low: how many elements come before.
        interior: how many come between.
        new_size: the new size.
        cause: the equation.
        weight: by how many positions of the axis one element advances along the new dimension, if the old one has a
            single element; by default, its digits say so.
    """
    if (low, interior, new_size) == (0, 0, size):
        return known
    step = Fraction(1, interior + 1)
    if size == 1:
        # In a concatenation, elements are as far apart as the elements of the longest operand.
        own = weight if weight is not None else find_weight([known.reach], place) * step
        reach = anchor(known.reach, place, low, new_size, make_exact(own))
    else:
        reach = shift(
            known.reach, place, size, cause, start=-low * step, stride=step, new_size=new_size
        )
    return dataclasses.replace(
        _leave(known, place), reach=reach, varies=known.varies | {Part(place)}
    )


def _pad(equation: Equation, inputs: Sequence[Known], cause: Cause) -> list[Known]:
    known, filling = inputs
    old, new = shape_of(equation.invars[0]), shape_of(equation.outvars[0])
    config = equation.params["padding_config"]
    if old == new and not any(map(any, config)):
        return [known]
    for place, (low, _, interior) in enumerate(config):
        # NumPy's integers, which programs may have, know no fractions.
        known = pad_known(known, place, old[place], int(low), int(interior), new[place], cause)
    found = combine([known, filling], may_hide=known.may_hide or filling.may_hide)
    return [found]


def _concatenate(equation: Equation, inputs: Sequence[Known], cause: Cause) -> list[Known]:
    place = equation.params["dimension"]
    total = shape_of(equation.outvars[0])[place]
    found: list[Known] = []
    start, weight = 0, find_weight([one.reach for one in inputs], place)
    for variable, known in zip(equation.invars, inputs, strict=True):
        size = shape_of(variable)[place]
        # An empty array contributes no elements.
        if size:
            found.append(pad_known(known, place, size, start, 0, total, cause, weight))
        start += size
    if len(found) == 1:
        return found
    return [combine(found, may_hide=any(one.may_hide for one in found))]


def _stack(equation: Equation, inputs: Sequence[Known], cause: Cause) -> list[Known]:
    axis, rank = equation.params["axis"], len(shape_of(equation.invars[0]))
    to: Dimensions = {i: i + 1 for i in range(axis, rank)}
    moved: list[Known] = []
    for i, known in enumerate(inputs):
        own = move_known(known, to, cause)
        reach = anchor(own.reach, axis, i, len(inputs), 1) if () in own.reach else own.reach
        moved.append(dataclasses.replace(own, reach=reach))
    found = combine(moved, may_hide=any(one.may_hide for one in inputs))
    return [dataclasses.replace(found, varies=found.varies | {Part(axis)})]


def _tile(equation: Equation, inputs: Sequence[Known], cause: Cause) -> list[Known]:
    # A digit is taken modulo its size, so it repeats as elements do. Parts of coordinates repeat, too.
    (known,) = inputs
    old, reps = shape_of(equation.invars[0]), equation.params["reps"]
    repeated = [i for i, number in enumerate(reps) if number > 1]
    varies = frozenset(
        part._replace(last=min(part.last, old[part.place])) if part.place in repeated else part
        for part in known.varies
    )
    # A dimension of size 1 has no digit that repeats, and another digit could not be told apart from its copies.
    facts = known.move_facts(dict.fromkeys(repeated)) | {"origin": None}
    if known.constant is None:
        facts["count"] = None
    return [dataclasses.replace(known, varies=varies, **facts)]


def _unstack(equation: Equation, inputs: Sequence[Known], cause: Cause) -> list[Known]:
    axis, shape = equation.params["axis"], shape_of(equation.invars[0])
    parts = [
        slice_known(inputs[0], axis, shape[axis], i, i + 1, 1, cause) for i in range(shape[axis])
    ]
    return [squeeze(one, [axis], shape, cause) for one in parts]


def _reverse(equation: Equation, inputs: Sequence[Known], cause: Cause) -> list[Known]:
    (known,) = inputs
    shape = shape_of(equation.invars[0])
    for place in equation.params["dimensions"]:
        size = shape[place]
        reach = shift(known.reach, place, size, cause, start=size - 1, stride=-1, new_size=size)
        known = dataclasses.replace(
            _leave(known, place), reach=reach, varies=known.varies | {Part(place)}
        )
    return [known]


RULES: Mapping[str, Rule] = {
    "broadcast_in_dim": _broadcast,
    "concatenate": _concatenate,
    "iota": _iota,
    "pad": _pad,
    "reshape": _reshape,
    "rev": _reverse,
    "slice": _slice,
    "split": _split,
    "stack": _stack,
    "tile": _tile,
    "squeeze": _squeeze,
    "transpose": _transpose,
    "unstack": _unstack,
}
