"""Shared parts of convolution and pooling: windows that slide along named axes."""

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
    """Return a setting for each axis.

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

    Raises:
        ArgumentError: if it is none of these.
    """
    if isinstance(padding, str):
        if padding in ("SAME", "VALID"):
            return padding
        problem = f"unknown padding {padding!r}"
        raise ArgumentError(message(function, problem, hint=_KINDS_OF_PADDING))

    pairs: list[tuple[int, int]] = []
    sides: tuple[int | tuple[int, int], ...] = _as_tuple(padding, count)
    for side in sides:
        ends = _as_tuple(side, 2)
        if len(ends) == 2 and _is_count(ends[0]) and _is_count(ends[1]):
            pairs.append((int(ends[0]), int(ends[1])))

    if not len(pairs) == len(sides) == count:
        problem = (
            f"padding must have one non-negative entry for each of {count} axes, not {padding!r}"
        )
        raise ArgumentError(message(function, problem, hint=_KINDS_OF_PADDING))
    return tuple(pairs)


def _as_tuple(value: object, count: int) -> tuple[Any, ...]:
    """Return several values as a tuple, and one value as often as there are axes."""
    if isinstance(value, Iterable):
        return tuple(value)
    return (value,) * count


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
    sides: Sequence[tuple[int, int]] = ((0, 0),) * len(names)
    if not isinstance(padding, str):
        sides = padding
    for name, size, window, (low, high) in zip(names, sizes, windows, sides, strict=True):
        if window > size + low + high:
            padded = ""
            if low + high:
                padded = f" and {low + high} of padding"
            problem = f"a window of {window} does not fit into axis {name!r} of size {size}{padded}"
            raise AxisSizeError(message(function, problem, f"input has: {described}"))
