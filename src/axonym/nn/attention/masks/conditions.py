"""Internal. The kinds of conditions that masks are made of, and all that attention asks of them.

For a new kind of mask, write a subclass of `Condition` here and list it in `KINDS`. Add the field that it reads to
`AttentionMask`, with a line in `&`. All users of masks call this file: the plain implementation, the loop over
blocks, the ring, the cache, and the kernels, which name the kinds that they support. The file must know neither
blocks, devices nor kernels: it is given positions, and arrays over them.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from ....array import NamedArray, named
from ....axis import Axis, axis_name, sized
from ....create import arange
from ....engine.batched import apply_batched
from ....engine.core import Core, Operand
from ....errors import AxisClashError, OperandError, message

if TYPE_CHECKING:
    from .mask import AttentionMask

Pair: TypeAlias = tuple[NamedArray, NamedArray | None]
"""An array for the queries, and one for the keys; None where the keys have what the queries have."""

Number: TypeAlias = Any
"""A Python number, a traced one, or a named array of them."""


class Range(NamedTuple):
    """The smallest and the largest of some positions."""

    least: Number
    most: Number


class Pairing(NamedTuple):
    """Queries and keys that a mask is evaluated for.

    Attributes:
        queries: the positions of the queries.
        keys: the positions of the keys.
        q_pos: the axis of query positions, if there is one.
        k_pos: the axis of key positions.
        slice: slices arrays over all positions to these ones, and leaves numbers as they are.
    """

    queries: NamedArray
    keys: NamedArray
    q_pos: str | None
    k_pos: str
    slice: Callable[[Any], Any] = lambda x: x


@dataclasses.dataclass(frozen=True, eq=False)
class Condition:
    """What a key must meet for a query to see it.

    The defaults are correct for each kind, but skip no block of keys.

    Attributes:
        compares_positions: whether it depends on where queries and keys are.
        sees_itself: whether a key at the position of the query surely meets it.
    """

    compares_positions = False
    sees_itself = False

    @classmethod
    def find(cls, clause: "AttentionMask") -> Iterator["Condition"]:
        """Yield the conditions of this kind that a mask without alternatives sets."""
        raise NotImplementedError

    def evaluate(self, pairing: Pairing) -> NamedArray:
        """Return which keys meet it, over no more axes than it takes."""
        raise NotImplementedError

    def find_start(self, first: Number) -> Number | None:
        """Return a position before which no query from `first` on sees a key; None if there is none."""

    def find_end(self, behind: Number) -> Number | None:
        """Return a position from which on no query before `behind` sees a key; None if there is none."""

    def compare(self, queries: Range, keys: Range) -> Iterator[Number]:
        """Yield what must be true for one of some queries to see one of some keys."""
        yield from ()

    @property
    def reach(self) -> int | None:
        """How many positions a query sees at most, its own and those before; None if it may see others."""

    @property
    def lacks_keys(self) -> bool:
        """Whether arrays over the queries stand for the keys too."""
        return False


@dataclasses.dataclass(frozen=True, eq=False)
class Near(Condition):
    """A key is not after the query, or less than `window` positions away, or both."""

    causal: bool
    window: int | None
    compares_positions = True
    sees_itself = True

    @classmethod
    def find(cls, clause: "AttentionMask") -> Iterator[Condition]:
        """Yield one condition for both, which one comparison of all pairs can check."""
        if clause.causal or clause.window is not None:
            yield cls(clause.causal, clause.window)

    def evaluate(self, pairing: Pairing) -> NamedArray:
        """Compare the positions."""
        options = {"causal": self.causal, "window": self.window}
        return _pair_up(_are_near, pairing.queries, pairing.keys, **options)

    def find_start(self, first: Number) -> Number | None:
        """Return the first position in the window of the first query."""
        return None if self.window is None else first - (self.window - 1)

    def find_end(self, behind: Number) -> Number:
        """Return the end of the last query's window, or the position after that query."""
        return behind if self.causal or self.window is None else behind + (self.window - 1)

    def compare(self, queries: Range, keys: Range) -> Iterator[Number]:
        """Compare the nearest query and key; with a causal mask, a window needs only one side."""
        if self.causal:
            yield keys.least <= queries.most
        if self.window is not None:
            yield queries.least - keys.most < self.window
            if not self.causal:
                yield keys.least - queries.most < self.window

    @property
    def reach(self) -> int | None:
        """The window, if nothing after the query is seen."""
        return self.window if self.causal else None


@dataclasses.dataclass(frozen=True, eq=False)
class Prefix(Condition):
    """A key is among the first `length` ones."""

    length: Any
    compares_positions = True

    @classmethod
    def find(cls, clause: "AttentionMask") -> Iterator[Condition]:
        """Yield the condition, if there is a prefix."""
        if clause.prefix is not None:
            yield cls(clause.prefix)

    def evaluate(self, pairing: Pairing) -> NamedArray:
        """Compare the positions of the keys with the length."""
        return _pair_up(jnp.less, pairing.keys, pairing.slice(self.length))

    def find_end(self, behind: Number) -> Number:
        """Return the longest prefix."""
        return find_extreme(self.length, jnp.max)

    def compare(self, queries: Range, keys: Range) -> Iterator[Number]:
        """Compare the first key with the longest prefix."""
        yield keys.least < find_extreme(self.length, jnp.max)


@dataclasses.dataclass(frozen=True, eq=False)
class SameSegment(Condition):
    """A key has the segment id of the query."""

    ids: Pair

    @classmethod
    def find(cls, clause: "AttentionMask") -> Iterator[Condition]:
        """Yield a condition for each pair of ids."""
        yield from map(cls, clause.segment_ids)

    def evaluate(self, pairing: Pairing) -> NamedArray:
        """Compare the ids of all pairs."""
        of_queries, of_keys = complete(self.ids, pairing.q_pos, pairing.k_pos, "segment ids")
        return _pair_up(jnp.equal, pairing.slice(of_queries), pairing.slice(of_keys))

    @property
    def lacks_keys(self) -> bool:
        """Whether the ids are for both queries and keys."""
        return self.ids[1] is None


@dataclasses.dataclass(frozen=True, eq=False)
class Listed(Condition):
    """A boolean array is true for the key."""

    array: NamedArray

    @classmethod
    def find(cls, clause: "AttentionMask") -> Iterator[Condition]:
        """Yield the condition, if there is an array."""
        if clause.explicit is not None:
            yield cls(clause.explicit)

    def evaluate(self, pairing: Pairing) -> NamedArray:
        """Return the array."""
        array: NamedArray = pairing.slice(self.array)
        return array


KINDS: tuple[type[Condition], ...] = (Near, Prefix, SameSegment, Listed)


def list_conditions(clause: "AttentionMask") -> list[Condition]:
    """Return the conditions that a mask without alternatives sets."""
    return [condition for kind in KINDS for condition in kind.find(clause)]


def is_made_of(mask: "AttentionMask", *kinds: type[Condition]) -> bool:
    """Return whether a mask has conditions of these kinds only, on positions that count along their axes.

    A kernel asks this of a mask whose fields it reads: it refuses kinds that it does not know.
    """
    # No kernel can say "or", and none reads positions: it counts them along the axes.
    if mask.alternatives or mask.places is not None:
        return False
    return all(isinstance(condition, kinds) for condition in list_conditions(mask))


def find_visible(mask: "AttentionMask", pairing: Pairing) -> NamedArray | None:
    """Return which keys are seen, or None for all."""
    if mask.places is not None:
        places = complete(mask.places, pairing.q_pos, pairing.k_pos, "positions")
        queries, keys = map(pairing.slice, places)
        pairing = pairing._replace(queries=queries, keys=keys)
    seen: list[NamedArray] = []
    for clause in mask.clauses:
        conditions = [condition.evaluate(pairing) for condition in list_conditions(clause)]
        if not conditions:
            return None  # a clause without conditions is met by all keys
        seen.append(functools.reduce(logical_and, conditions))
    return functools.reduce(logical_or, seen)


def may_see(mask: "AttentionMask", queries: Range, keys: Range) -> Number:
    """Return whether one of some queries may see one of some keys, going by their positions; True if it surely may."""
    seen: list[Number] = []
    for clause in mask.clauses:
        compared = [each for own in list_conditions(clause) for each in own.compare(queries, keys)]
        if not compared:
            return True  # ids and arrays would have to be read to say more
        seen.append(functools.reduce(jnp.logical_and, compared))
    return functools.reduce(operator.or_, seen)


def find_span(
    mask: "AttentionMask", first: Number, behind: Number, keys: Range
) -> tuple[Number, Number] | None:
    """Return the range of indices of keys that some queries may see; None if they may see all.

    Args:
        mask: the mask.
        first: the position of the first query.
        behind: the position after the last query.
        keys: the positions of the first key; they differ where sequences start at different positions.
    """
    starts: list[Number] = []
    ends: list[Number] = []
    for clause in mask.clauses:
        conditions = list_conditions(clause)
        own_ends = _drop_none(condition.find_end(behind) for condition in conditions)
        if not own_ends:
            return None  # nothing bounds the keys of this clause
        own_starts = _drop_none(condition.find_start(first) for condition in conditions)
        # From positions to indices: the first key may have another position than 0.
        start = functools.reduce(jnp.maximum, own_starts) if own_starts else None
        starts.append(0 if start is None else add(start, -keys.most))
        ends.append(add(functools.reduce(minimum, own_ends), -keys.least))
    return functools.reduce(minimum, starts), functools.reduce(jnp.maximum, ends)


def _drop_none(numbers: Iterable[Number | None]) -> list[Number]:
    return [number for number in numbers if number is not None]


def sees_itself(mask: "AttentionMask") -> bool:
    """Return whether each query surely sees the key at its own position, whatever arrays in the mask say."""
    # Keys with positions of their own may lack that of a query.
    if mask.places is not None and mask.places[1] is not None:
        return False
    return any(
        all(condition.sees_itself for condition in list_conditions(clause))
        for clause in mask.clauses
    )


def find_reach(mask: "AttentionMask") -> int | None:
    """Return how many positions a query sees at most, its own and those before; None if it may see others."""
    if mask.places is not None:
        return None
    # Alternatives add up to the one that reaches farthest; conditions of one, to the one that reaches least.
    farthest = 0
    for clause in mask.clauses:
        reaches = _drop_none(condition.reach for condition in list_conditions(clause))
        if not reaches:
            return None
        farthest = max(farthest, min(reaches))
    return farthest


def copy_to_keys(mask: "AttentionMask", q_pos: str, k_pos: str) -> "AttentionMask":
    """Return the mask with arrays for the keys added wherever it has one array for both queries and keys.

    Devices send keys without the queries, so the keys need arrays of their own.
    """
    # Only segments have arrays over the queries alone; a kind with such arrays is completed here too.
    clauses: list[AttentionMask] = []
    for clause in mask.clauses:
        pairs = (complete(pair, q_pos, k_pos, "segment ids") for pair in clause.segment_ids)
        clauses.append(dataclasses.replace(clause, segment_ids=tuple(pairs)))
    places = mask.places and complete(mask.places, q_pos, k_pos, "positions")
    return dataclasses.replace(clauses[0], alternatives=tuple(clauses[1:]), places=places)


def complete(pair: Pair, q_pos: str | None, k_pos: str, what: str) -> tuple[NamedArray, NamedArray]:
    """Return the arrays of queries and keys; if the keys have none, copy the array of the queries."""
    # Renamed, an array over the queries is one over the keys: both count the same positions.
    of_queries, of_keys = pair
    if of_keys is not None:
        return of_queries, of_keys
    if q_pos is None:
        problem = f"{what} of a query without an axis of positions cannot be reused for its keys"
        is_at = what == "positions"
        function, keyword = ("at", "key_positions") if is_at else ("segments", "key_ids")
        raise OperandError(message(function, problem, hint=f"pass {keyword}=..."))
    return of_queries, of_queries.rename({q_pos: k_pos})


def materialize(
    function: str, mask: "AttentionMask", QPos: Axis, KPos: Axis, q_start: Any, k_start: Any
) -> NamedArray:
    """Return which keys each query sees, axes {QPos, KPos} and those of the arrays in the mask."""
    q_pos, k_pos = axis_name(QPos), axis_name(KPos)
    if q_pos == k_pos:
        problem = f"the position axes of queries and keys are both named {q_pos!r}"
        hint = 'give those of keys another name: KPos.derive("key")'
        raise AxisClashError(message(function, problem, hint=hint))
    # `seen` may lack axes along which nothing changes; the caller's array has them.
    queries, keys = count_positions(QPos, q_start), count_positions(KPos, k_start)
    seen = find_visible(mask, Pairing(queries, keys, q_pos, k_pos))
    both = (named(True, ()) if seen is None else seen).broadcast_axis(
        (sized(QPos, function), sized(KPos, function))
    )
    return both.rearrange((..., q_pos, k_pos))


def combine(merge: Callable[[Any, Any], Any], x: object, y: object) -> Any:
    """Merge two conditions, each of which may be None."""
    if x is None or y is None:
        return y if x is None else x
    return merge(x, y)


def count_positions(Pos: Axis | None, start: int | Operand) -> NamedArray:
    """Count the positions along an axis from a start, which may have axes; without an axis, there is one position."""
    if isinstance(start, NamedArray):
        if Pos is None:
            return start
        if Pos.size == 1:
            return start.broadcast_axis(Pos)  # nothing to add, as in a step of decoding
        return _pair_up(jnp.add, arange(Pos), start)

    if Pos is None:
        return named(start, ())
    if isinstance(start, int):
        return arange(Pos, start=start)
    # A narrow start cannot count to the end of a long axis.
    return arange(Pos, start=start, dtype=jnp.result_type(start, jnp.int32))


def find_extreme(x: Any, reduce: Callable[[jax.Array], jax.Array]) -> Number:
    """Reduce a number that may have axes to the smallest or largest of its elements."""
    if x is None or isinstance(x, int):
        return x or 0
    # In the type in which a loop counts.
    return jnp.asarray(reduce(x.array) if isinstance(x, Core) else x, int)


def find_range(x: Any) -> Range:
    """Return the smallest and the largest element of a number that may have axes."""
    return Range(find_extreme(x, jnp.min), find_extreme(x, jnp.max))


def add(x: Number, y: Number) -> Number:
    """Add two numbers; None stands for 0, and adding 0 makes no operation."""
    if y is None or (isinstance(y, int) and y == 0):
        return x
    return y if x is None else x + y


def logical_and(x: NamedArray, y: NamedArray) -> NamedArray:
    """Return where both are true, over the axes of both."""
    return _pair_up(jnp.logical_and, x, y)


def logical_or(x: NamedArray, y: NamedArray) -> NamedArray:
    """Return where one is true, over the axes of both."""
    return _pair_up(jnp.logical_or, x, y)


def minimum(x: int | Operand, y: int | Operand) -> Any:
    """Return the smaller of two numbers, over the axes of both; of Python numbers, a Python number."""
    # Python numbers stay static: a loop over blocks then has a known length.
    if isinstance(x, int) and isinstance(y, int):
        return min(x, y)
    if isinstance(x, Core) or isinstance(y, Core):
        return _pair_up(jnp.minimum, x, y)
    return jnp.minimum(x, y)


def _pair_up(fn: Callable[..., Any], x: Any, y: Any, **options: Any) -> NamedArray:
    """Apply a function to all pairs of elements of two arrays; axes that both have are matched."""
    paired: NamedArray = apply_batched(fn, (x, y), ((), ()), (), outer=True, **options)
    return paired


def _are_near(query: jax.Array, key: jax.Array, *, causal: bool, window: int | None) -> jax.Array:
    """Compare positions; with a causal mask, a window needs only one side."""
    if window is None:
        return query >= key
    if not causal:
        return jnp.abs(query - key) < window
    return (query >= key) & (query - key < window)
