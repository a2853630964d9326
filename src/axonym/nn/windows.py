"""Internal. Windows that slide along named axes: their sizes, strides and padding, for `conv` and `pool`."""

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any, TypeAlias

from ..errors import ArgumentError, AxisSizeError, message
from .settings import integer

Padding: TypeAlias = str | int | Sequence[int] | Sequence[tuple[int, int]]
"""The padding of an input: "VALID" for none, "SAME" to keep the size at stride 1, or how much for all axes, for each
of them, or for the two sides of each."""

Pads: TypeAlias = str | tuple[tuple[int, int], ...]

_KINDS_OF_PADDING = '"SAME", "VALID", an int, one int for each axis, or a pair for each axis'


def each(
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
    return tuple(integer(function, what, entry, least) for entry in entries)


def pads(function: str, padding: Padding, count: int) -> Pads:
    """Return a padding as "SAME", "VALID", or the two sides of each axis.

    Args:
        function: the name for errors.
        padding: see `Padding`.
        count: the number of axes.

    Raises:
        ArgumentError: if it is none of these.
    """
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
    sides = ((0, 0),) * len(names) if isinstance(padding, str) else padding
    for name, size, window, (low, high) in zip(names, sizes, windows, sides, strict=True):
        if window > size + low + high:
            padded = f" and {low + high} of padding" if low + high else ""
            problem = f"a window of {window} does not fit into axis {name!r} of size {size}{padded}"
            raise AxisSizeError(message(function, problem, f"input has: {described}"))
