"""Internal. Turn names into positional plans: which dimensions to permute, insert, reduce or contract.

A plan knows only names: no sizes, no arrays, no JAX. Its positions count named dimensions from the left; anonymous
leading dimensions shift all of them equally. Plans are memoised by names. Errors state the problem in terms of names;
the caller adds sizes.
"""

import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import lru_cache
from types import EllipsisType
from typing import NamedTuple, Protocol, TypeVar

from ..base.phrases import missing_axis
from ..errors import AxisClashError, AxisNotFoundError, BroadcastError, suggestion

Names = tuple[str, ...]
Labels = tuple[Hashable, ...]
Label = TypeVar("Label", bound=Hashable)
K = TypeVar("K")
V = TypeVar("V")
Key = TypeVar("Key", contravariant=True)
Value = TypeVar("Value", covariant=True)
CACHE = 8192


class Table(Protocol[Key, Value]):
    """Anything that has a value for a key: a mapping, or a sequence with its positions as keys."""

    def __getitem__(self, key: Key, /) -> Value:
        """Look a key up."""
        ...


def hold_axes(*fields: str) -> Callable[[type[V]], type[V]]:
    """Record on a NamedTuple, as `AXIS_FIELDS`, which of its fields hold names of axes.

    It is a decorator, since a NamedTuple may not define attributes beside its fields.
    """

    def mark(kind: type[V]) -> type[V]:
        setattr(kind, "AXIS_FIELDS", fields)  # noqa: B010  # no attribute that types know
        return kind

    return mark


class Alignment(NamedTuple):
    """How one operand is aligned with the result.

    `order` permutes its named dimensions (None: no change); `insert` lists the positions, among the named dimensions of
    the result, of new dimensions of size 1.
    """

    order: tuple[int, ...] | None
    insert: tuple[int, ...]


class Contraction(NamedTuple):
    """The arguments of `lax.dot_general`, and the permutation of its result (None: no change)."""

    contract: tuple[tuple[int, ...], tuple[int, ...]]
    batch: tuple[tuple[int, ...], tuple[int, ...]]
    order: tuple[int, ...] | None


def keep(memo: dict[K, V], key: K, made: V) -> V:
    """Store a value under a key; a memo that is full is emptied first.

    A hit, `memo[key]`, costs less than a call of an `lru_cache`, which also keeps track of the order of use.
    """
    if len(memo) >= CACHE:
        memo.clear()
    memo[key] = made
    return made


def require(names: Sequence[str], wanted: Sequence[str]) -> None:
    """Raise AxisNotFoundError unless all of `wanted` are among `names`."""
    for name in wanted:
        if name not in names:
            raise missing_axis(None, name, without(tuple(names), tuple(wanted)))


def distinct(names: Sequence[str], why: str = "") -> None:
    """Raise AxisClashError if a name occurs twice."""
    for name in names:
        if names.count(name) > 1:
            raise AxisClashError(f"{why}axis {name!r} would appear twice".strip())


@lru_cache(CACHE)
def positions(names: Names, wanted: Names) -> tuple[int, ...]:
    """Return the positions of `wanted` in `names`, counted from the right (-1 is the last)."""
    require(names, wanted)
    distinct(wanted)
    return tuple(names.index(name) - len(names) for name in wanted)


@lru_cache(CACHE)
def without(names: Names, removed: Names) -> Names:
    """Drop names."""
    return tuple(name for name in names if name not in removed)


@lru_cache(CACHE)
def intersect(names: Names, others: Names) -> Names:
    """Keep the names that are among others, in their own order."""
    return tuple(name for name in names if name in others)


def values_at(table: Table[K, V], keys: Iterable[K]) -> tuple[V, ...]:
    """Look up several keys of a mapping, or several positions of a sequence."""
    return tuple(table[key] for key in keys)


def shift_places(places: Iterable[int], by: int) -> tuple[int, ...]:
    """Move positions to the right, for example positions of named dimensions past the anonymous ones."""
    return tuple(place + by for place in places)


def labels(names: Names, ndim: int) -> tuple[str | int, ...]:
    """Label each dimension by its name or, if anonymous, by a negative number that counts back from the first name."""
    return (*range(len(names) - ndim, 0), *names)


@lru_cache(CACHE)
def union(first: Names, second: Names) -> Names:
    """Append the names of `second` that `first` lacks to those of `first`."""
    return (*first, *without(second, first))


def unite(operands: Iterable[Names]) -> Names:
    """Return the names of all operands, each once, in the order of their first occurrence."""
    return tuple(dict.fromkeys(itertools.chain.from_iterable(operands)))


@lru_cache(CACHE)
def align(source: Labels, target: Labels) -> Alignment | None:
    """Plan how an operand with `source` names, all in `target`, is aligned with `target`; None if it already is."""
    if source == target:
        return None
    # Transpose first, then insert: the order counts dimensions of the operand, the positions those of the result.
    ordered = tuple(name for name in target if name in source)
    order = _index_labels(source, ordered)
    insert = tuple(at for at, name in enumerate(target) if name not in source)
    is_in_order = order == tuple(range(len(source)))
    return Alignment(None if is_in_order else order, insert)


@lru_cache(CACHE)
def broadcast(operands: tuple[Names, ...]) -> Names:
    """Return the names of an elementwise result: those of the first operand that contains all others.

    Raises:
        BroadcastError: if no operand contains all others.
    """
    # A union of all names, with an order that nobody chose, would hide a missing axis behind an outer product.
    everything = set().union(*operands)
    for names in operands:
        if len(names) == len(everything):
            return names
    # The hint is about the operand with most names, which needs the fewest new ones.
    largest = max(operands, key=len)
    missing = without(unite(operands), largest)
    # A name that all operands have cannot be meant by another one.
    everywhere = set(largest).intersection(*operands)
    near = suggestion(missing[0], without(largest, tuple(everywhere)))
    new = ", ".join(missing)
    hint = f"if the outer product is meant, give an operand the others' axes first: x.broadcast_axis({new})"
    if near:
        hint = f"{near} Or: {hint}"
    raise BroadcastError("no operand has the axes of all others", hint)


@lru_cache(CACHE)
def rename(names: Names, renames: tuple[tuple[str, str], ...]) -> Names:
    """Replace names, all at once, so that they may be swapped.

    Raises:
        AxisNotFoundError: if an old name is missing.
        AxisClashError: if a name would occur twice.
    """
    # Not one after the other: {"a": "b", "b": "a"} swaps two names.
    table = dict(renames)
    require(names, tuple(table))
    renamed = tuple(table.get(name, name) for name in names)
    distinct(renamed)
    return renamed


@lru_cache(CACHE)
def complete(names: Names, order: tuple[str | EllipsisType, ...]) -> Names:
    """Complete an order in which `...` stands for all other axes, in their present order.

    Raises:
        AxisNotFoundError: if the order mentions a missing axis, or omits one without `...`.
        AxisClashError: if it mentions an axis, or `...`, twice.
    """
    # An order without `...` must be complete: a new axis would otherwise land at an end by chance.
    mentioned = tuple(entry for entry in order if isinstance(entry, str))
    require(names, mentioned)
    distinct(mentioned)
    rest = without(names, mentioned)
    if len(mentioned) < len(order) - 1:
        raise AxisClashError("the order has more than one ...", "write ... once")
    if ... not in order and rest:
        raise AxisNotFoundError(
            f"the order leaves out {', '.join(rest)}", "name all axes, or write ... for the others"
        )
    parts = [(entry,) if isinstance(entry, str) else rest for entry in order]
    return tuple(itertools.chain.from_iterable(parts))


@lru_cache(CACHE)
def contraction(
    left: tuple[Label, ...],
    right: tuple[Label, ...],
    contracted: tuple[Label, ...],
    out: tuple[Label, ...],
) -> Contraction:
    """Plan a contraction of two operands with labelled dimensions; labels that both have and keep are batched."""
    intersect = tuple(label for label in out if label in left and label in right)
    done = (*intersect, *contracted)
    free = tuple(label for label in (*left, *right) if label not in done)
    produced = (*intersect, *free)  # the order of `lax.dot_general`
    return Contraction(
        (_index_labels(left, contracted), _index_labels(right, contracted)),
        (_index_labels(left, intersect), _index_labels(right, intersect)),
        None if produced == out else _index_labels(produced, out),
    )


def _index_labels(labels: tuple[Label, ...], wanted: tuple[Label, ...]) -> tuple[int, ...]:
    return tuple(map(labels.index, wanted))


def letters(operands: Sequence[Sequence[Hashable]], out: Sequence[Hashable]) -> str:
    """Express a contraction of any number of operands as an einsum over single letters."""
    table: dict[Hashable, str] = {}
    for label in itertools.chain.from_iterable(operands):
        # After 26 letters, those of other alphabets.
        start = ord("a") if len(table) < 26 else 0x100
        table.setdefault(label, chr(start + len(table)))

    def spell(labels: Sequence[Hashable]) -> str:
        return "".join(values_at(table, labels))

    return f"{','.join(map(spell, operands))}->{spell(out)}"
