"""Internal. Facts about values that do not depend on data: numbers that count positions, masks, and hidden scores.

Numbers make attention causal: a mask compares positions, hidden scores become a very negative constant, and their
exponentials are zero. These facts follow such numbers from `iota` to the sum that skips zeros.

Proofs assume that floating numbers are finite, and that visible scores are far above the constant that hides the
others.
"""

import dataclasses
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from .places import INFINITY, Number, Part, Parts, Place, Reach, Turn

Pair: TypeAlias = tuple[Place, Place]
# Scores that are hidden are no greater than the negative of this.
# The masks of this library take the least number of a dtype.
_LARGE = 1e4
# Constants with more elements than this are not inspected.
_MOST = 2**24


class Count(NamedTuple):
    """A number that counts coordinates: a constant, plus multiples of the coordinates at some places.

    Attributes:
        constant: the number where all coordinates are zero.
        steps: how much one step along a place adds; never zero.
        is_absolute: whether the number is the absolute value of this sum.
    """

    constant: Number
    steps: Mapping[Place, Number]
    is_absolute: bool = False

    def add(self, other: "Count", sign: int = 1) -> "Count | None":
        """Return the sum, or the difference if the sign is negative."""
        if self.is_absolute or other.is_absolute:
            return None
        steps = dict(self.steps)
        for place, step in other.steps.items():
            steps[place] = steps.get(place, 0) + sign * step
        return Count(
            self.constant + sign * other.constant,
            {place: step for place, step in steps.items() if step},
        )

    def scale(self, factor: Number) -> "Count | None":
        """Return the product with a number."""
        if self.is_absolute:
            return None
        if not factor:
            return Count(0, {})
        steps = {place: step * factor for place, step in self.steps.items()}
        return Count(self.constant * factor, steps)

    def find_ends(self, shape: Sequence[int]) -> tuple[Number, Number] | None:
        """Return the least and the greatest of these numbers, or None if the size of a place is not known."""
        least = most = self.constant
        for place, step in self.steps.items():
            if not isinstance(place, str):
                size = shape[place]
            elif isinstance(place, Turn):
                size = place.size
            else:
                return None
            end = step * max(size - 1, 0)
            least, most = least + min(0, end), most + max(0, end)
        return least, most

    def fits(self, dtype: Any, shape: Sequence[int]) -> bool:
        """Return whether a dtype holds all these numbers exactly."""
        is_inexact = jnp.issubdtype(dtype, jnp.inexact)
        if not self.steps and (is_inexact or jnp.issubdtype(dtype, jnp.bool_)):
            return True
        numbers, ends = (self.constant, *self.steps.values()), self.find_ends(shape)
        if not all(math.isfinite(one) and float(one).is_integer() for one in numbers) or not ends:
            return False
        least, most = ends
        if jnp.issubdtype(dtype, jnp.integer):
            info = jnp.iinfo(dtype)  # type: ignore[no-untyped-call]  # of jax
            return bool(info.min <= least and most <= info.max)
        if jnp.issubdtype(dtype, jnp.floating):
            digits = jnp.finfo(dtype).nmant + 1  # type: ignore[no-untyped-call]  # of jax
            return bool(max(abs(float(least)), abs(float(most))) <= 2**digits)
        return False


class Side(NamedTuple):
    """The facts that hold where a condition has one of its two values.

    Attributes:
        bounds: for two places (a, b), the least and the greatest `p_b - p_a`; each pair has an entry in both orders.
        equal: pairs of places; if the coordinates at both are equal, the condition surely has this value.
    """

    bounds: Mapping[Pair, tuple[Number, Number]] = {}
    equal: frozenset[frozenset[Place]] = frozenset()

    def meet(self, other: "Side") -> "Side":
        """Return the facts that hold wherever both conditions are true."""
        bounds = dict(self.bounds)
        for pair, (low, high) in other.bounds.items():
            own = bounds.get(pair, (-INFINITY, INFINITY))
            bounds[pair] = max(own[0], low), min(own[1], high)
        return Side(bounds, self.equal & other.equal)

    def join(self, other: "Side") -> "Side":
        """Return the facts that hold wherever at least one condition is true."""
        bounds = {
            pair: (min(low, other.bounds[pair][0]), max(high, other.bounds[pair][1]))
            for pair, (low, high) in self.bounds.items()
            if pair in other.bounds
        }
        return Side(bounds, self.equal | other.equal)

    def move(self, to: Mapping[Place, Place | None]) -> "Side":
        """Move places; facts about places without a new one are dropped."""
        bounds: dict[Pair, tuple[Number, Number]] = {}
        for (a, b), ends in self.bounds.items():
            x, y = to.get(a, a), to.get(b, b)
            if x is not None and y is not None:
                bounds[x, y] = ends
        pairs = [[to.get(place, place) for place in pair] for pair in self.equal]
        equal = frozenset(
            frozenset(place for place in pair if place is not None)
            for pair in pairs
            if None not in pair
        )
        return Side(bounds, equal)


class Truth(NamedTuple):
    """The facts about coordinates where a boolean is true, and where it is false."""

    true: Side
    false: Side

    def invert(self) -> "Truth":
        """Return the facts about the negation."""
        return Truth(self.false, self.true)

    def both(self, other: "Truth | None") -> "Truth":
        """Return the facts about the conjunction; None is a boolean without known facts."""
        if other is None:
            return Truth(self.true._replace(equal=frozenset()), Side(equal=self.false.equal))
        return Truth(self.true.meet(other.true), self.false.join(other.false))

    def either(self, other: "Truth | None") -> "Truth":
        """Return the facts about the disjunction."""
        return self.invert().both(other and other.invert()).invert()


class Guard(NamedTuple):
    """The region of an array outside which all elements are zero, or all are hidden scores.

    Attributes:
        kind: what the elements outside the region are.
        side: the facts about the coordinates of the elements that may be something else.
        may_hide: whether the elements that may be something else may also be large constants.
    """

    kind: Literal["zero", "hidden"]
    side: Side
    may_hide: bool = False


class Origin(NamedTuple):
    """The array whose elements an array repeats.

    Attributes:
        number: the number of that array.
        places: the place of the coordinate of each of its dimensions; None for a dimension of size 1 that was removed.
    """

    number: int
    places: tuple[Place | None, ...]


@dataclasses.dataclass(frozen=True)
class Known:
    """All known facts about an array.

    Attributes:
        reach: the positions of the axis that an element can depend on.
        varies: the parts of coordinates on which elements depend in other ways than through the axis.
        count: the number in each element, if it counts coordinates.
        truth: the facts about coordinates where the elements are true, and where they are false.
        guard: the region where elements may be something other than zero or hidden.
        may_hide: whether elements may be constants large enough to hide others.
        origin: the array of integers whose elements it repeats, within one iteration of a loop and on one device.
    """

    reach: Reach = dataclasses.field(default_factory=dict)
    varies: Parts = frozenset()
    count: Count | None = None
    truth: Truth | None = None
    guard: Guard | None = None
    may_hide: bool = False
    origin: Origin | None = None

    @property
    def constant(self) -> Number | None:
        """The number that all elements equal, if it is known."""
        if self.count is None or self.count.steps or self.count.is_absolute:
            return None
        return self.count.constant

    @property
    def is_hiding(self) -> bool:
        """Whether all elements equal one number that hides a score."""
        return self.constant is not None and self.constant <= -_LARGE

    def bare(self) -> "Known":
        """Return these facts without the ones about numbers."""
        return Known(self.reach, self.varies, may_hide=self.may_hide)

    def move_facts(self, to: Mapping[Place, Place | None]) -> dict[str, Any]:
        """Return the facts about numbers with places moved; a place without a new one has only the coordinate zero."""
        count = self.count
        if count is not None:
            pairs = [(to.get(place, place), step) for place, step in count.steps.items()]
            steps = {place: step for place, step in pairs if place is not None}
            count = count._replace(steps=steps)
        truth = self.truth and Truth(self.truth.true.move(to), self.truth.false.move(to))
        guard = self.guard and self.guard._replace(side=self.guard.side.move(to))
        origin = self.origin
        if origin is not None:
            places = (place if place is None else to.get(place, place) for place in origin.places)
            origin = origin._replace(places=tuple(places))
        return {"count": count, "truth": truth, "guard": guard, "origin": origin}


def know_constant(value: Any) -> Known:
    """Return the facts about a constant of the program."""
    if jnp.issubdtype(getattr(value, "dtype", np.float32), jax.dtypes.extended):
        return Known(varies=frozenset(map(Part, range(value.ndim))))  # keys of random numbers
    varies = frozenset(map(Part, range(np.ndim(value))))
    if np.size(value) > _MOST or not getattr(value, "is_fully_addressable", True):
        return Known(varies=varies, may_hide=True)
    array = np.asarray(value)
    if array.dtype == bool and array.ndim > 1:
        return Known(varies=varies, truth=Truth(_read_mask(array), _read_mask(~array)))
    if array.size == 0 or not _is_real(array.dtype):
        return Known(varies=varies)
    least, most = array.min(), array.max()
    count = None
    # Also a small array that repeats one number is a constant.
    if least == most:
        varies = frozenset()
        count = Count(array.flat[0].item(), {})
    is_large = not (least > -_LARGE and most < _LARGE)
    return Known(varies=varies, count=count, may_hide=is_large)


def _is_real(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.floating))


def _read_mask(mask: np.ndarray[Any, Any]) -> Side:
    """Return the facts about the coordinates of the true elements of an array."""
    bounds: dict[Pair, tuple[Number, Number]] = {}
    equal: set[frozenset[Place]] = set()
    for a in range(mask.ndim):
        for b in range(a + 1, mask.ndim):
            others = tuple(i for i in range(mask.ndim) if i not in (a, b))
            rows, columns = np.nonzero(mask.any(axis=others))
            if rows.size:
                low, high = int((columns - rows).min()), int((columns - rows).max())
                bounds[a, b], bounds[b, a] = (low, high), (-high, -low)
            if np.all(mask, axis=others).diagonal().all():
                equal.add(frozenset((a, b)))
    return Side(bounds, frozenset(equal))


def compare(name: str, left: Count, right: Count) -> Truth | None:
    """Return the facts about coordinates where a comparison of two counts is true, and where it is false."""
    if left.is_absolute and not right.steps and not right.is_absolute and name in ("lt", "le"):
        plain = left._replace(is_absolute=False)
        negative = plain.scale(-1)
        above = compare(name, plain, right)
        below = negative and compare(name, negative, right)
        return above.both(below) if above is not None and below is not None else None
    difference = left.add(right, -1)
    if difference is None or not math.isfinite(difference.constant):
        return None
    flipped = difference.scale(-1)
    if flipped is None:
        return None
    # Between whole numbers, one that is greater is greater by one.
    is_whole = all(
        float(one).is_integer() for one in (difference.constant, *difference.steps.values())
    )
    least = 1 if is_whole else 0
    constant = difference.constant
    if name in ("ge", "gt"):
        true = _bound(difference, least if name == "gt" else 0)
        false = _bound(flipped, least if name == "ge" else 0)
        holds = constant >= 0 if name == "ge" else constant > 0
    elif name in ("le", "lt"):
        true = _bound(flipped, least if name == "lt" else 0)
        false = _bound(difference, least if name == "le" else 0)
        holds = constant <= 0 if name == "le" else constant < 0
    else:
        true, false = _bound(difference, 0).meet(_bound(flipped, 0)), Side()
        holds = constant == 0
        if name == "ne":
            true, false, holds = false, true, not holds
    pairs = frozenset([frozenset(difference.steps)]) if _is_pair(difference) else frozenset()
    return (
        Truth(true._replace(equal=pairs), false)
        if holds
        else Truth(true, false._replace(equal=pairs))
    )


def decide(name: str, left: Count, right: Count, shape: Sequence[int]) -> Count | None:
    """Return one if a comparison of two counts is true for all elements, zero if it is false for all, else None."""
    difference = left.add(right, -1)
    ends = difference and difference.find_ends(shape)
    if not ends:
        return None
    least, most = ends
    if name in ("eq", "ne"):
        is_known = least > 0 or most < 0 or least == most == 0
        return Count(int((name == "eq") == (least == 0)), {}) if is_known else None
    # Whether it is true for the least and for the greatest.
    holds: Callable[[Number, Number], bool] = getattr(operator, name)
    return Count(int(holds(least, 0)), {}) if holds(least, 0) == holds(most, 0) else None


def compare_origins(left: Origin | None, right: Origin | None) -> Truth | None:
    """Return where two copies of an array are surely equal: where their coordinates along one dimension are."""
    if left is None or right is None or left.number != right.number:
        return None
    pairs = zip(left.places, right.places, strict=True)
    differing = [frozenset(pair) for pair in pairs if pair[0] != pair[1]]
    if len(differing) != 1 or None in differing[0]:
        return None
    equal = frozenset(place for place in differing[0] if place is not None)
    return Truth(Side(equal=frozenset([equal])), Side())


def _is_pair(count: Count) -> bool:
    return len(count.steps) == 2 and not sum(count.steps.values())


def _bound(count: Count, least: Number) -> Side:
    """Return the facts about coordinates where a count is at least a number."""
    if not _is_pair(count):
        return Side()
    (a, step), (b, _) = count.steps.items()
    if step < 0:
        a, b, step = b, a, -step
    # The count is constant + step * (p_a - p_b).
    low = math.ceil((least - count.constant) / step)
    return Side({(b, a): (low, INFINITY), (a, b): (-INFINITY, -low)})
