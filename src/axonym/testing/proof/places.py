"""Internal. The positions of one axis that an element can depend on, as a function of the element's places.

An element has a coordinate along each dimension, an iteration of each loop around it, and a device along each mesh axis
of a `shard_map`. These are its places. A `Digit` says what a coordinate adds to a position of the axis, and a `Span`
says how far from the sum of all digits the element can read. So a batch is still one axis after it is cut into
microbatches, merged with other dimensions, or divided among devices.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple, TypeAlias

# A dimension by its number; loops and mesh axes by a name.
Place: TypeAlias = int | str


class Turn(str):
    """The place of a loop: its name, with the number of its iterations."""

    __slots__ = ("size",)
    size: int

    def __new__(cls, name: str, size: int) -> "Turn":
        """Name a loop with so many iterations."""
        turn = super().__new__(cls, name)
        turn.size = size
        return turn


Number: TypeAlias = int | float | Fraction

INFINITY = float("inf")
# An element with more different spans than this is assumed to depend on everything.
_MOST = 12


class Cause(NamedTuple):
    """The equation at which an element began to depend on more positions.

    Attributes:
        equation: the equation.
        prefix: the name of the equation whose program has this one.
        reason: what it does.
    """

    equation: Any
    prefix: str
    reason: str


class Digit(NamedTuple):
    """What the coordinate p at a place adds to a position: `weight * (p // inner % size)`.

    The product of `inner` and `size` divides the number of coordinates. A digit of size 1 adds nothing. It records the
    distance between elements before a slice took one of them; padding the slice again needs this distance.

    Attributes:
        place: where the coordinate is.
        inner: the number of neighbours with the same digit.
        size: the number of different digits.
        weight: by how many positions the next digit advances.
    """

    place: Place
    inner: int
    size: int
    weight: Number

    @property
    def least(self) -> Number:
        """The least that it adds."""
        return min(0, self.weight * (self.size - 1))

    @property
    def most(self) -> Number:
        """The most that it adds."""
        return max(0, self.weight * (self.size - 1))

    def is_plain(self, size: int) -> bool:
        """Return whether the digit is the complete coordinate of a dimension of this size, times its weight."""
        return self.inner == 1 and self.size == size


Digits: TypeAlias = tuple[Digit, ...]


class Part(NamedTuple):
    """The coordinates at a place, taken modulo `last` and divided by `first`."""

    place: Place
    first: Number = 1
    last: Number = INFINITY

    def meets(self, digit: Digit) -> bool:
        """Return whether the part distinguishes elements with different digits."""
        end = digit.inner * digit.size
        return self.place == digit.place and self.first < end and digit.inner < self.last


Parts: TypeAlias = frozenset[Part]


def move_parts(parts: Parts, to: Mapping[Place, Place | None]) -> Parts:
    """Move parts to other places; parts without a new place are dropped."""
    pairs = [(part, to.get(part.place, part.place)) for part in parts]
    return frozenset(part._replace(place=place) for part, place in pairs if place is not None)


def reshape_parts(parts: Parts, old: Sequence[int], new: Sequence[int]) -> Parts:
    """Move parts to their dimensions after a reshape."""
    found: set[Part] = set()
    for part in parts:
        if isinstance(part.place, str):
            found.add(part)
            continue
        behind = count_behind(old)[part.place]
        first, last = part.first * behind, min(part.last, old[part.place]) * behind
        for place, (size, step) in enumerate(zip(new, count_behind(new), strict=True)):
            lower, upper = max(first, step), min(last, step * size)
            if lower < upper:
                found.add(Part(place, lower // step, -(-upper // step)))
    return frozenset(found)


class Span(NamedTuple):
    """The range of positions that an element can depend on, counted from the sum of its digits.

    Attributes:
        low: the first one.
        high: the last one.
        low_cause: where `low` fell below zero.
        high_cause: where `high` rose above zero.
    """

    low: Number
    high: Number
    low_cause: Cause | None = None
    high_cause: Cause | None = None

    def widen(self, low: Number, high: Number, cause: Cause | None) -> "Span":
        """Return the span with these numbers added to its ends; a negative `high` shortens it."""
        below, above = self.low_cause, self.high_cause
        if low < 0 and (self.low >= 0 or below is None):
            below = cause
        if high > 0 and (self.high <= 0 or above is None):
            above = cause
        return Span(self.low + low, self.high + high, below, above)

    def join(self, other: "Span") -> "Span":
        """Return the smallest span that contains both."""
        lower = min(self, other, key=lambda one: one.low)
        higher = max(self, other, key=lambda one: one.high)
        return Span(lower.low, higher.high, lower.low_cause, higher.high_cause)

    @property
    def bounds(self) -> tuple[Number, Number]:
        """The two ends."""
        return self.low, self.high


Reach: TypeAlias = Mapping[Digits, Span]
"""For each sum of digits, the positions around it. Without any, an element does not depend on the axis."""


def join(reaches: Iterable[Reach]) -> Reach:
    """Return the positions that at least one of several elements at the same places can depend on."""
    found: dict[Digits, Span] = {}
    for reach in reaches:
        for digits, span in reach.items():
            found[digits] = found[digits].join(span) if digits in found else span
    if len(found) > _MOST:
        return reach_all(next(iter(found.values())).low_cause)
    return found


def reach_all(cause: Cause | None) -> Reach:
    """Return a reach of every position."""
    return {(): Span(-INFINITY, INFINITY, cause, cause)}


def rewrite(reach: Reach, change: Callable[[Digit], "Change"], cause: Cause | None) -> Reach:
    """Change each digit, and sort the results."""
    pieces: list[Reach] = []
    for digits, span in reach.items():
        own: list[Digit] = []
        for digit in digits:
            new, low, high = change(digit)
            own += new
            if low or high or (digit.size > 1 and not new):
                span = span.widen(low, high, cause)
                if not new and span.low_cause is None and span.high_cause is None:
                    span = span._replace(low_cause=cause, high_cause=cause)
        pieces.append({_order(own): span})
    return join(pieces)


Change: TypeAlias = tuple[Sequence[Digit], Number, Number]
"""The digits in the place of one, and what they leave out at the lower and the upper end."""


def forget(digit: Digit) -> Change:
    """Drop a digit: the element may depend on all positions of the digit."""
    return (), digit.least, digit.most


def _order(digits: Iterable[Digit]) -> Digits:
    """Sort digits, and merge neighbours at one place into one digit."""
    # From the slowest digit to the fastest, so that digits that were one before a reshape are neighbours.
    waiting = sorted(
        digits,
        key=lambda one: (-abs(float(one.weight)), str(one.place), one.inner),
    )
    found: list[Digit] = []
    for digit in waiting:
        last = found[-1] if found else None
        if (
            last is not None
            and last.place == digit.place
            and last.inner == digit.inner * digit.size
            and last.weight == digit.weight * digit.size
            and min(last.size, digit.size) > 1
        ):
            found[-1] = digit._replace(size=last.size * digit.size)
        else:
            found.append(digit)
    return tuple(found)


def move(reach: Reach, to: Mapping[Place, Place | None], cause: Cause | None) -> Reach:
    """Move digits to other places; digits at a place mapped to None are forgotten, and unlisted places stay."""

    def change(digit: Digit) -> Change:
        place = to.get(digit.place, digit.place)
        return forget(digit) if place is None else ((digit._replace(place=place),), 0, 0)

    return rewrite(reach, change, cause)


def shift(
    reach: Reach,
    place: Place,
    size: int,
    cause: Cause | None,
    *,
    start: Number = 0,
    stride: Number = 1,
    reach_by: tuple[Number, Number] = (0, 0),
    new_size: int,
) -> Reach:
    """Let the coordinate p read the coordinates from `start + stride * p + reach_by[0]` to `... + reach_by[1]`.

    Args:
        reach: what is read.
        place: the dimension.
        size: its size.
        cause: the equation.
        start: the coordinate that the first one reads.
        stride: by how many coordinates the next one reads further along.
        reach_by: how far around.
        new_size: the size of the dimension that reads.
    """

    def change(digit: Digit) -> Change:
        if digit.place != place:
            return (digit,), 0, 0
        if not digit.is_plain(size):
            return forget(digit)
        weight = digit.weight
        ends = [weight * (start + more) for more in reach_by]
        scaled = make_exact(weight * stride)
        return (Digit(place, 1, new_size, scaled),), make_exact(min(ends)), make_exact(max(ends))

    return rewrite(reach, change, cause)


def make_exact(number: Number) -> Number:
    """Convert a fraction that is an integer to an `int`, so that equal weights compare and print alike."""
    if isinstance(number, Fraction) and number.denominator == 1:
        return int(number)
    return number


def take_one(
    reach: Reach, place: Place, size: int, start: int, stride: int, cause: Cause | None
) -> Reach:
    """Read one coordinate of a place, as a slice that takes one element does."""

    def change(digit: Digit) -> Change:
        if digit.place != place:
            return (digit,), 0, 0
        own = digit.weight * (start // digit.inner % digit.size)
        kept = Digit(place, 1, 1, digit.weight * stride)
        return ((kept,) if digit.is_plain(size) else ()), own, own

    return rewrite(reach, change, cause)


def find_weight(reaches: Iterable[Reach], place: Place) -> Number:
    """Return by how many positions one step along a place advances; one if no digit says so."""
    every = [digit for reach in reaches for digits in reach for digit in digits]
    own = sorted((one for one in every if one.place == place), key=lambda one: one.size > 1)
    # A digit of several elements is surer than a digit of one, which may be the first element, taken by itself.
    return own[-1].weight if own else 1


def anchor(reach: Reach, place: Place, start: int, size: int, weight: Number) -> Reach:
    """Put the only element of a dimension at a coordinate of a longer dimension.

    The element depends on the same positions wherever it is, so they can be counted from its new coordinate as well.
    """
    found: list[Reach] = []
    back = -weight * start
    for digits, span in reach.items():
        if any(digit.size > 1 for digit in digits):
            found.append({digits: span})
        else:
            own = span._replace(low=span.low + back, high=span.high + back)
            found.append({(Digit(place, 1, size, weight),): own})
    return join(found)


def strip(digits: Digits) -> Digits:
    """Drop digits that add nothing."""
    return tuple(digit for digit in digits if digit.size > 1)


def reshape(reach: Reach, old: Sequence[int], new: Sequence[int], cause: Cause | None) -> Reach:
    """Move digits to their dimensions after a reshape; a digit may be split over several dimensions."""
    after = count_behind(new)

    def change(digit: Digit) -> Change:
        if isinstance(digit.place, str):
            return (digit,), 0, 0
        # The position in the flat array counts this digit in steps of `first`, up to `last`.
        first = digit.inner * count_behind(old)[digit.place]
        last = first * digit.size
        parts: list[Digit] = []
        for place, (size, behind) in enumerate(zip(new, after, strict=True)):
            lower, upper = max(first, behind), min(last, behind * size)
            if lower >= upper:
                continue
            # A coordinate tells this part of the digit only if all three divisions have no rest.
            if lower % first or lower % behind or upper % lower or (behind * size) % upper:
                return forget(digit)
            weight = digit.weight * (lower // first)
            parts.append(Digit(place, lower // behind, upper // lower, weight))
        is_whole = _count(parts) == digit.size
        return (parts, 0, 0) if is_whole else forget(digit)

    return rewrite(reach, change, cause)


def _count(digits: Iterable[Digit]) -> int:
    total = 1
    for digit in digits:
        total *= digit.size
    return total


def count_behind(shape: Sequence[int]) -> list[int]:
    """Return, for each dimension, how many elements one step along it skips."""
    found: list[int] = []
    total = 1
    for size in reversed(shape):
        found.append(total)
        total *= size
    found.reverse()
    return found
