"""Shared parts of convolution and pooling: windows that slide along named axes."""

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import TypeAlias

from ..errors import ArgumentError, AxisSizeError, message
from ._settings import integer

__all__ = ["Padding", "Pads", "check_fit", "each", "pads"]

Padding: TypeAlias = str | int | Sequence[int] | Sequence[tuple[int, int]]
"""The padding of an input: "VALID" for none, "SAME" to keep the size at stride 1, or how much for all axes, for each
of them, or for the two sides of each."""

Pads: TypeAlias = str | tuple[tuple[int, int], ...]


def each(function: str, what: str, value: int | Sequence[int], count: int, least: int | None = 1) -> tuple[int, ...]:
    """Return a setting for each axis.

    Raises:
        ArgumentError: if it has another length, or an entry that is smaller than `least` or not an int.
    """
    entries = tuple(value) if isinstance(value, Iterable) else (value,) * count
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
        if padding not in ("SAME", "VALID"):
            hint = '"SAME", "VALID", an int, one int for each axis, or a pair for each axis'
            raise ArgumentError(message(function, f"unknown padding {padding!r}", hint=hint))
        return padding
    sides: list[int | tuple[int, int]] = list(padding) if isinstance(padding, Iterable) else [padding] * count
    pairs: list[tuple[int, ...]] = [tuple(side) if isinstance(side, Iterable) else (side, side) for side in sides]
    fit = all(len(pair) == 2 and all(isinstance(end, Integral) and end >= 0 for end in pair) for pair in pairs)
    if len(pairs) != count or not fit:
        problem = f"padding must have one non-negative entry for each of {count} axes, not {padding!r}"
        hint = '"SAME", "VALID", an int, one int for each axis, or a pair for each axis'
        raise ArgumentError(message(function, problem, hint=hint))
    return tuple((int(pair[0]), int(pair[1])) for pair in pairs)


def check_fit(
    function: str, names: Sequence[str], sizes: Sequence[int], windows: Sequence[int], padding: Pads, described: str
) -> None:
    """Check that each window fits into the padded axis that it slides along.

    Raises:
        AxisSizeError: if one does not, so that nothing would be left.
    """
    sides = ((0, 0),) * len(names) if isinstance(padding, str) else padding
    for name, size, window, (low, high) in zip(names, sizes, windows, sides, strict=True):
        if padding != "SAME" and window > size + low + high:
            padded = f" and {low + high} of padding" if low + high else ""
            problem = f"a window of {window} does not fit into axis {name!r} of size {size}{padded}"
            raise AxisSizeError(message(function, problem, f"input has: {described}"))
