"""Internal. The parts that devices of a `shard_map` have and send: each mesh axis is one more place."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

from .elements import Equation, Rule
from .facts import Known
from .places import (
    Cause,
    Change,
    Digit,
    Part,
    Parts,
    Place,
    forget,
    move,
    move_parts,
    rewrite,
)
from .shapes import move_known, shape_of, squeeze
from .sums import forget_dimensions, treat_last


def name_mesh_axis(axis: str) -> str:
    """Return the name of the place for the devices of a mesh axis."""
    return f"mesh axis {axis}"


def _list_axes(equation: Equation) -> list[str]:
    """Return the names of the places for the mesh axes of a collective."""
    named = equation.params.get("axes", equation.params.get("axis_name", ()))
    several = named if isinstance(named, tuple | list) else (named,)
    return [name_mesh_axis(axis) if isinstance(axis, str) else "" for axis in several]


def divide(
    known: Known, entries: Sequence[Sequence[str]], shape: Sequence[int], mesh: Mapping[str, int]
) -> Known:
    """Return the facts about a device's part of an array whose dimensions mesh axes divide."""
    reach, varies = known.reach, known.varies
    for place, axes in enumerate(entries):
        inner = shape[place]
        for axis in axes:
            inner //= mesh[axis]
            token = name_mesh_axis(axis)
            reach = rewrite(reach, _split(place, token, inner, mesh[axis]), None)
            whole = Digit(place, inner, mesh[axis], 1)
            if any(part.meets(whole) for part in known.varies):
                varies |= {Part(token)}
    # Facts about the numbers of positions do not hold for the numbers within a block.
    facts = known.move_facts({place: None for place, axes in enumerate(entries) if axes})
    facts["origin"] = None
    is_divided = any(axes for axes in entries)
    count = None if is_divided and known.constant is None else known.count
    facts["count"] = count
    return dataclasses.replace(known, reach=reach, varies=varies, **facts)


def _split(place: Place, token: str, inner: int, ways: int) -> Callable[[Digit], Change]:
    """Cut off the part of a dimension's digits above `inner`, and move it to the devices."""

    def change(digit: Digit) -> Change:
        if digit.place != place:
            return (digit,), 0, 0
        last = digit.inner * digit.size
        if inner % last == 0:
            return (digit,), 0, 0
        if digit.inner >= inner:
            # All of the digit is the number of the device, or a part of it.
            if digit.inner % inner or last > inner * ways:
                return forget(digit)
            return (digit._replace(place=token, inner=digit.inner // inner),), 0, 0
        if inner % digit.inner or last != inner * ways:
            return forget(digit)
        lower = digit._replace(size=inner // digit.inner)
        upper = Digit(token, 1, ways, digit.weight * lower.size)
        return (upper, lower), 0, 0

    return change


def collect(
    known: Known, entries: Sequence[Sequence[str]], shape: Sequence[int], mesh: Mapping[str, int]
) -> Known:
    """Return the facts about the complete array; each device has a part of this shape."""
    reach, varies = known.reach, known.varies
    # Beyond the part of one device, the coordinates of dimensions count devices.
    for place, axes in enumerate(entries):
        inner = shape[place]
        own = {part for part in varies if part.place == place and axes}
        varies = varies - own | {part._replace(last=min(part.last, inner)) for part in own}
        for axis in reversed(axes):
            token = name_mesh_axis(axis)
            reach = rewrite(reach, _join(place, token, inner), None)
            if any(part.place == token for part in varies):
                varies |= {Part(place, inner, inner * mesh[axis])}
            inner *= mesh[axis]
    divided: dict[Place, Place | None] = {i: None for i, axes in enumerate(entries) if axes}
    facts = known.move_facts(divided) | {"origin": None}
    if divided and known.constant is None:
        facts["count"] = None
    return dataclasses.replace(known, reach=reach, varies=varies, **facts)


def _join(place: Place, token: str, inner: int) -> Callable[[Digit], Change]:
    """Make the number of the device a part of a dimension, above the coordinates that one device has."""

    def change(digit: Digit) -> Change:
        if digit.place == token:
            return (digit._replace(place=place, inner=digit.inner * inner),), 0, 0
        return (digit,), 0, 0

    return change


def leave(known: Known, mesh: Iterable[str], cause: Cause) -> Known:
    """Drop the devices of a `shard_map`: the result may depend on the parts of all of them."""
    to: dict[Place, Place | None] = {name_mesh_axis(axis): None for axis in mesh}
    varies = move_parts(known.varies, to)
    return dataclasses.replace(known, reach=move(known.reach, to, cause), varies=varies)


def _reduce(equation: Equation, inputs: Sequence[Known], cause: Cause) -> list[Known]:
    axes = _list_axes(equation)
    found: list[Known] = []
    for known in inputs:
        own = forget_dimensions([known], axes, cause)
        # Groups of devices have sums of their own.
        is_whole = equation.params.get("axis_index_groups") is None
        found.append(dataclasses.replace(own, varies=_drop(known, axes)) if is_whole else own)
    return found


def _drop(known: Known, axes: Iterable[str]) -> Parts:
    return move_parts(known.varies, dict.fromkeys(axes))


def _permute(equation: Equation, inputs: Sequence[Known], cause: Cause) -> list[Known]:
    return [forget_dimensions([known], _list_axes(equation), cause) for known in inputs]


def _gather(equation: Equation, inputs: Sequence[Known], cause: Cause) -> list[Known]:
    params = equation.params
    axes, place = _list_axes(equation), params["all_gather_dimension"]
    found: list[Known] = []
    for variable, known in zip(equation.invars, inputs, strict=True):
        shape = shape_of(variable)
        inner = shape[place] if params["tiled"] else 1
        if not params["tiled"]:
            to: dict[Place, Place | None] = {i: i + 1 for i in range(place, len(shape))}
            known = move_known(known, to, cause)
        if params.get("axis_index_groups") is not None:
            found.append(forget_dimensions([known], [*axes, place], cause))
            continue
        if len(axes) == 1:
            reach = rewrite(known.reach, _join(place, axes[0], inner), cause)
        else:
            reach = forget_dimensions([known], axes, cause).reach
        # If devices have equal parts, these repeat along the dimension.
        varies = {
            Part(place, inner)
            if part.place in axes
            # Within one device's part, coordinates are unchanged.
            else part._replace(last=min(part.last, inner))
            if part.place == place
            else part
            for part in known.varies
        }
        found.append(Known(reach, frozenset(varies), may_hide=known.may_hide))
    return found


def _exchange(equation: Equation, inputs: Sequence[Known], cause: Cause) -> list[Known]:
    """Send a piece of a dimension to each device, and join the pieces that arrive along another dimension."""
    params = equation.params
    axes, split, joined = _list_axes(equation), params["split_axis"], params["concat_axis"]
    (known,), (old, new) = inputs, map(shape_of, (equation.invars[0], equation.outvars[0]))
    is_plain = params["tiled"] and len(axes) == 1 and params.get("axis_index_groups") is None
    if not is_plain or split == joined:
        return treat_last(equation, [forget_dimensions(inputs, axes, cause)], 0, cause)
    # The device that a piece came from becomes the outer part of the joined dimension, and the piece's own place
    # becomes the device.
    (token,), ways = axes, old[split] // new[split]
    send = _split(split, token, new[split], ways)

    def change(digit: Digit) -> Change:
        if digit.place == token:
            return (digit._replace(place=joined, inner=digit.inner * old[joined]),), 0, 0
        return send(digit)

    varies: set[Part] = set()
    for part in known.varies:
        if part.place == token:
            varies.add(Part(joined, old[joined]))
        elif part.place == joined:
            varies.add(part._replace(last=min(part.last, old[joined])))
        elif part.place == split:
            varies |= {part._replace(last=min(part.last, new[split])), Part(token)}
        else:
            varies.add(part)
    reach = rewrite(known.reach, change, cause)
    return [Known(reach, frozenset(varies), may_hide=known.may_hide)]


def _scatter_sums(equation: Equation, inputs: Sequence[Known], cause: Cause) -> list[Known]:
    """Add up the arrays of all devices, and give each device one piece of the sum along a dimension."""
    params = equation.params
    axes, place, ways = _list_axes(equation), params["scatter_dimension"], params["axis_size"]
    known = forget_dimensions(inputs, axes, cause)
    size = shape_of(equation.invars[0])[place]
    if len(axes) == 1 and params.get("axis_index_groups") is None:
        change = _split(place, axes[0], size // ways, ways)
        reach = rewrite(known.reach, change, cause)
    else:
        reach = forget_dimensions([known], [place], cause).reach
    found = dataclasses.replace(known, reach=reach, varies=known.varies | {Part(place)})
    if params["tiled"]:
        return [found]
    return [squeeze(found, [place], shape_of(equation.invars[0]), cause)]


def _get_index(equation: Equation, inputs: Sequence[Known], cause: Cause) -> list[Known]:
    return [Known(varies=frozenset(map(Part, _list_axes(equation))))]


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(
        (
            "pmax",
            "pmin",
            "psum",
            "psum2",
            "psum_invariant",
            "unreduced_psum",
        ),
        _reduce,
    ),
    **dict.fromkeys(("all_gather", "all_gather_invariant", "all_gather_reduced"), _gather),
    "all_to_all": _exchange,
    "axis_index": _get_index,
    "ppermute": _permute,
    "reduce_scatter": _scatter_sums,
}
