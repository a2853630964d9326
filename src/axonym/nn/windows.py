"""Internal. Windows that slide along named axes: their sizes, strides and padding, for `conv` and `pool`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, NamedTuple, TypeAlias

from ..array import NamedArray, is_named_array
from ..axis import AxisSelector, axis_name
from ..base.kinds import type_text
from ..engine.core import facts
from ..errors import (
    ArgumentError,
    AxisNotFoundError,
    AxisSizeError,
    OperandError,
    message,
    suggestion,
)
from .settings import check_int

Beyond: TypeAlias = str | Callable[[NamedArray], NamedArray]
"""What lies beyond the ends of an axis: a mode, or a function of the elements at an end."""

Padding: TypeAlias = (
    str
    | int
    | Sequence[int]
    | Sequence[tuple[int, int]]
    | Mapping[AxisSelector, int | tuple[int, int] | Beyond]
)
"""The padding of an input: "VALID" for none, "SAME" to keep the size at stride 1, or how much for all axes, for each
of them, or for the two sides of each. A mapping by axis may also say what lies beyond its ends."""


class Side(NamedTuple):
    """The padding of one axis: how much at each end, and what it consists of; None for zeros."""

    low: int
    high: int
    beyond: Beyond | None = None


Pads: TypeAlias = str | tuple[tuple[int, int] | Side, ...]
Counts: TypeAlias = str | tuple[tuple[int, int], ...]
"""How much a padding adds at both ends of each axis, as `lax` takes it."""

_MODES_OF_TORCH = {"circular": "wrap", "replicate": "edge", "zeros": "constant"}
MODES = ("constant", "edge", "reflect", "symmetric", "wrap")
_KINDS_OF_PADDING = '"SAME", "VALID", an int, one int for each axis, or a pair for each axis'
_KINDS_BY_AXIS = f"an int, a pair, one of {', '.join(map(repr, MODES))}, or a function"


def expand_setting(
    function: str,
    what: str,
    value: int | Sequence[int],
    count: int,
    least: int | None = 1,
) -> tuple[int, ...]:
    """Return a setting for each axis, where users may give one number for all.

    Args:
        function: the name for errors.
        what: the name of the setting for errors.
        value: a number, or one for each axis.
        count: the number of axes.
        least: the smallest number that is allowed; None allows all.

    Raises:
        ArgumentError: if it has another length, or an entry that is smaller than `least` or not an int.
    """
    entries = _as_tuple(value, count)
    if len(entries) != count:
        problem = f"{what} has {len(entries)} entries, but there are {count} axes"
        raise ArgumentError(message(function, problem, hint="give one int, or one for each axis"))
    return tuple(check_int(function, what, entry, least) for entry in entries)


def read_padding(
    function: str,
    padding: Padding,
    count: int,
    names: Sequence[str] = (),
    windows: Sequence[int] = (),
) -> Pads:
    """Return a padding as "SAME", "VALID", or the two sides of each axis.

    Args:
        function: the name for errors.
        padding: see `Padding`.
        count: the number of axes.
        names: their names; without them, a mapping is not allowed.
        windows: for each, the distance of the ends of a window plus one.

    Raises:
        ArgumentError: if it is none of these.
        AxisNotFoundError: if a mapping has another axis.
    """
    if isinstance(padding, Mapping) and names:
        return _read_by_axis(function, padding, names, windows)
    if isinstance(padding, str):
        if padding in ("SAME", "VALID"):
            return padding
        problem = f"unknown padding {padding!r}"
        raise ArgumentError(message(function, problem, hint=_KINDS_OF_PADDING))

    sides = [_as_tuple(side, 2) for side in _as_tuple(padding, count)]
    if len(sides) != count or not all(
        len(ends) == 2 and all(map(_is_count, ends)) for ends in sides
    ):
        problem = (
            f"padding must have one non-negative entry for each of {count} axes, not {padding!r}"
        )
        raise ArgumentError(message(function, problem, hint=_KINDS_OF_PADDING))
    return tuple((int(low), int(high)) for low, high in sides)


def _read_by_axis(
    function: str, padding: Mapping[Any, Any], names: Sequence[str], windows: Sequence[int]
) -> tuple[Side, ...]:
    """Read a padding by axis; an axis that it leaves out has none."""
    given = {axis_name(axis): value for axis, value in padding.items()}
    for name in given:
        if name not in names:
            problem = f"the padding has axis {name!r}, along which nothing slides"
            there = f"axes: {', '.join(names)}"
            raise AxisNotFoundError(message(function, problem, there, hint=suggestion(name, names)))
    sides: list[Side] = []
    for name, window in zip(names, windows, strict=True):
        value = given.get(name, 0)
        if value in MODES if isinstance(value, str) else callable(value):
            low = (window - 1) // 2
            sides.append(Side(low, window - 1 - low, value))
            continue
        ends = _as_tuple(value, 2)
        if isinstance(value, str) or len(ends) != 2 or not all(map(_is_count, ends)):
            problem = f"unknown padding of axis {name!r}: {value!r}"
            ours = _MODES_OF_TORCH.get(value) if isinstance(value, str) else None
            hint = f"write {ours!r}" if ours else _KINDS_BY_AXIS
            raise ArgumentError(message(function, problem, hint=hint))
        sides.append(Side(int(ends[0]), int(ends[1])))
    if sum(callable(side.beyond) for side in sides) > 1:
        # Which of the two would make the corners?
        problem = "only one axis can be padded by a function"
        raise ArgumentError(message(function, problem, hint="pad the other axis by a mode"))
    return tuple(sides)


def find_modes(padding: Pads) -> tuple[str | None, ...]:
    """Return the mode of each axis: None for zeros, "given" where a function makes what lies beyond its ends."""
    if isinstance(padding, str):
        return ()
    beyond = [side.beyond if isinstance(side, Side) else None for side in padding]
    return tuple(mode if isinstance(mode, str | None) else "given" for mode in beyond)


def count_sides(padding: Pads) -> Counts:
    """Return how much a padding adds, without what it consists of."""
    return padding if isinstance(padding, str) else tuple((side[0], side[1]) for side in padding)


def find_beyond(
    function: str, x: NamedArray, names: Sequence[str], padding: Pads
) -> tuple[NamedArray, ...]:
    """Call the function of the axis that is padded by one, for both ends; nothing without such an axis.

    Raises:
        AxisSizeError: if the axis is shorter than its padding.
        OperandError: if the function does not return an array with the axes of its argument.
    """
    if isinstance(padding, str):
        return ()
    for name, side in zip(names, padding, strict=True):
        fn = side.beyond if isinstance(side, Side) else None
        if callable(fn):
            low, high = side[:2]
            size = x.axis_size(name)
            if max(low, high) > size:
                problem = f"a padding of {max(low, high)} needs as many elements of axis {name!r}, which has {size}"
                raise AxisSizeError(message(function, problem, f"input has: {facts(x)}"))
            ends = x[name, :low], x[name, size - high :]
            return tuple(_call_beyond(function, fn, rows, name) for rows in ends)
    return ()


def _call_beyond(
    function: str, fn: Callable[[NamedArray], NamedArray], rows: NamedArray, name: str
) -> NamedArray:
    result: Any = fn(rows)  # a user's function, which may return anything
    if not is_named_array(result) or result.shape != rows.shape:
        has = facts(result) if is_named_array(result) else type_text(result)
        problem = f"the function that pads axis {name!r} must return the axes of its argument"
        lines = f"argument has: {facts(rows)}", f"result has: {has}"
        raise OperandError(message(function, problem, *lines))
    beyond: NamedArray = result.rearrange(rows.names).astype(rows.dtype)
    return beyond


def _as_tuple(value: object, count: int) -> tuple[Any, ...]:
    """Return several values as a tuple, and one value as often as there are axes."""
    return tuple(value) if isinstance(value, Iterable) else (value,) * count


def _is_count(end: object) -> bool:
    return isinstance(end, Integral) and int(end) >= 0


def check_fit(
    function: str,
    names: Sequence[str],
    sizes: Sequence[int],
    windows: Sequence[int],
    padding: Pads,
    described: str,
) -> None:
    """Check that each window fits into the padded axis that it slides along.

    Raises:
        AxisSizeError: if one does not, so that nothing would be left.
    """
    if padding == "SAME":  # an axis of any size keeps it, divided by the stride
        return
    # The other string is "VALID", which pads nothing.
    counts = count_sides(padding)
    sides = ((0, 0),) * len(names) if isinstance(counts, str) else counts
    for name, size, window, (low, high) in zip(names, sizes, windows, sides, strict=True):
        if window > size + low + high:
            padded = f" and {low + high} of padding" if low + high else ""
            problem = f"a window of {window} does not fit into axis {name!r} of size {size}{padded}"
            raise AxisSizeError(message(function, problem, f"input has: {described}"))
