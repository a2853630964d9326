"""Turn names into positional plans: which dimensions to permute, insert, reduce or contract.

A plan knows only names: no sizes, no arrays, no JAX. Its positions count named dimensions from the left; anonymous
leading dimensions shift all of them equally. Plans are memoised by names. Errors state the problem in terms of names;
the caller adds sizes.
"""

from collections.abc import Hashable, Sequence
from functools import lru_cache
from types import EllipsisType
from typing import NamedTuple, TypeVar

from .errors import AxisClashError, AxisNotFoundError, BroadcastError, suggestion

__all__ = [
    "Alignment",
    "Contraction",
    "align",
    "broadcast",
    "complete",
    "contraction",
    "distinct",
    "keep",
    "letters",
    "positions",
    "rename",
    "require",
    "union",
    "without",
]

Names = tuple[str, ...]
Label = TypeVar("Label", bound=Hashable)
K = TypeVar("K")
V = TypeVar("V")
CACHE = 8192


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
            raise AxisNotFoundError(f"no axis named {name!r}", suggestion(name, names))


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
def union(first: Names, second: Names) -> Names:
    """Append the names of `second` that `first` lacks to those of `first`."""
    return (*first, *(name for name in second if name not in first))


@lru_cache(CACHE)
def align(source: Names, target: Names) -> Alignment | None:
    """Plan how an operand with `source` names, all in `target`, is aligned with `target`; None if it already is."""
    if source == target:
        return None
    ordered = tuple(name for name in target if name in source)
    order = None if ordered == source else tuple(source.index(name) for name in ordered)
    insert = tuple(at for at, name in enumerate(target) if name not in source)
    return Alignment(order, insert)


@lru_cache(CACHE)
def broadcast(operands: tuple[Names, ...]) -> Names:
    """Return the names of an elementwise result: those of the first operand that contains all others.

    Raises:
        BroadcastError: if no operand contains all others.
    """
    everything = set().union(*operands)
    for names in operands:
        if len(names) == len(everything):
            return names
    largest = max(operands, key=len)
    missing = [name for names in operands for name in names if name not in largest]
    new = ", ".join(dict.fromkeys(missing))
    hint = suggestion(missing[0], [name for name in largest if not all(name in names for names in operands)])
    meant = f"if the outer product is meant, give an operand the others' axes first: x.broadcast_axis({new})"
    raise BroadcastError("no operand has the axes of all others", f"{hint} Or: {meant}" if hint else meant)


@lru_cache(CACHE)
def rename(names: Names, renames: tuple[tuple[str, str], ...]) -> Names:
    """Replace names, all at once, so that they may be swapped.

    Raises:
        AxisNotFoundError: if an old name is missing.
        AxisClashError: if a name would occur twice.
    """
    table = dict(renames)
    require(names, tuple(table))
    renamed = tuple(table.get(name, name) for name in names)
    distinct(renamed)
    return renamed


@lru_cache(CACHE)
def complete(names: Names, order: tuple[str | EllipsisType, ...]) -> Names:
    """Complete an order in which `...` stands for all axes not mentioned, in their present order.

    Raises:
        AxisNotFoundError: if the order mentions a missing axis, or omits one without `...`.
        AxisClashError: if it mentions an axis, or `...`, twice.
    """
    mentioned = tuple(entry for entry in order if isinstance(entry, str))
    require(names, mentioned)
    distinct(mentioned)
    rest = without(names, mentioned)
    if len(mentioned) < len(order) - 1:
        raise AxisClashError("the order has more than one ...", "write ... once")
    if ... not in order and rest:
        raise AxisNotFoundError(f"the order leaves out {', '.join(rest)}", "name all axes, or write ... for the others")
    result: list[str] = []
    for entry in order:
        result.extend((entry,) if isinstance(entry, str) else rest)
    return tuple(result)


@lru_cache(CACHE)
def contraction(
    left: tuple[Label, ...], right: tuple[Label, ...], contracted: tuple[Label, ...], out: tuple[Label, ...]
) -> Contraction:
    """Plan a contraction of two operands with labelled dimensions; labels that both have and keep are batched."""
    shared = tuple(label for label in out if label in left and label in right)
    free = (*(x for x in left if x not in shared and x not in contracted),)
    free += tuple(x for x in right if x not in shared and x not in contracted)
    produced = (*shared, *free)
    return Contraction(
        (tuple(map(left.index, contracted)), tuple(map(right.index, contracted))),
        (tuple(map(left.index, shared)), tuple(map(right.index, shared))),
        None if produced == out else tuple(map(produced.index, out)),
    )


def letters(operands: Sequence[Sequence[Hashable]], out: Sequence[Hashable]) -> str:
    """Express a contraction of any number of operands as an einsum over single letters."""
    table: dict[Hashable, str] = {}
    for labels in operands:
        for label in labels:
            table.setdefault(label, chr(ord("a") + len(table)) if len(table) < 26 else chr(0x100 + len(table)))
    *spelled, result = ("".join(table[label] for label in labels) for labels in (*operands, out))
    return f"{','.join(spelled)}->{result}"
