"""Internal. The `shard_map` around a collective: its mappings, and the axes of its arguments.

Inside a `shard_map`, arrays are blocks, which do not tell the global sizes or which axes are data.
`partitioning` makes the scope current; loops and maps of `transform` record the axes that arrays inside lack.
"""

import dataclasses
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ..current.features import Feature
from .assignment import Mappings, find_entry


@dataclasses.dataclass(frozen=True)
class Scope:
    """A surrounding shard_map, as its collectives know it.

    Attributes:
        mappings: its mappings.
        sizes: the axes of its arguments, with their global sizes.
        hidden: axes that a surrounding `vmap` or `nmap` maps over.
        looped: axes that a surrounding loop runs along.
        rows: those of both at each of whose positions a function returns a result of its own.
    """

    mappings: Mappings
    sizes: frozenset[tuple[str, int]]
    hidden: frozenset[str] = frozenset()
    looped: frozenset[str] = frozenset()
    rows: frozenset[str] = frozenset()

    @property
    def names(self) -> frozenset[str]:
        """The names of the axes of the arguments."""
        return frozenset(name for name, _ in self.sizes)

    @property
    def is_in_data(self) -> bool:
        """Whether a surrounding map or loop runs along an axis of data, so that arrays inside may lack it."""
        return self.is_data((*self.hidden, *self.looped))

    @property
    def axes_of_rows(self) -> frozenset[str]:
        """The mesh axes over which rows are split, by any of the mappings."""
        entries = (find_entry(mapping, row) for row in self.rows for mapping in self.mappings.all())
        return frozenset(axis for entry in entries for axis in entry or ())

    def is_data(self, names: Iterable[str]) -> bool:
        """Return whether an array with these names is data, not a parameter."""
        return self.mappings.of(tuple(names)) == self.mappings.compute


SCOPE: Feature[Scope | None] = Feature(None, depends_on_names=True)
"""The scope of the surrounding shard_map."""


def current_scope() -> Scope | None:
    """Return the scope of the surrounding shard_map."""
    return SCOPE.get()


def hiding(names: Iterable[str], *, loop: str | None = None) -> AbstractContextManager[Any]:
    """Record in the scope, for a `with` block, the axes that a `vmap`, a `nmap` or the named loop hides.

    Args:
        names: the axes.
        loop: the name of the function that loops, such as "scan"; None for a map.
    """
    scope = SCOPE.get()
    if scope is None:
        return nullcontext()
    changed = ["hidden" if loop is None else "looped"]
    if loop in (None, "map"):  # in other loops, a carry may add up what belongs to all rows
        changed.append("rows")
    # Scopes are compared by JAX's caches, so that a new one is made rather than this one changed.
    more = {field: getattr(scope, field) | set(names) for field in changed}
    return SCOPE.using(dataclasses.replace(scope, **more))
