"""Internal. What collectives know about the `shard_map` around them."""

import dataclasses
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ..current.features import Feature
from .assignment import Mappings


@dataclasses.dataclass(frozen=True)
class Scope:
    """What collectives inside a shard_map know about it.

    Attributes:
        mappings: its mappings.
        sizes: the axes of its arguments, with their global sizes.
        hidden: axes that a surrounding `vmap` or `nmap` maps over.
        looped: axes that a surrounding loop runs along.
    """

    mappings: Mappings
    sizes: frozenset[tuple[str, int]]
    hidden: frozenset[str] = frozenset()
    looped: frozenset[str] = frozenset()

    @property
    def names(self) -> frozenset[str]:
        """The names of the axes of the arguments."""
        return frozenset(name for name, _ in self.sizes)

    @property
    def is_in_data(self) -> bool:
        """Whether a surrounding map or loop runs along an axis of data, so that arrays inside may lack it."""
        return self.is_data((*self.hidden, *self.looped))

    def is_data(self, names: Iterable[str]) -> bool:
        """Return whether an array with these names is data, not a parameter."""
        return self.mappings.of(tuple(names)) == self.mappings.compute


SCOPE: Feature[Scope | None] = Feature(None, depends_on_names=True)
"""The scope of the surrounding shard_map."""


def current_scope() -> Scope | None:
    """Return the scope of the surrounding shard_map."""
    return SCOPE.get()


def hiding(names: Iterable[str], *, loop: bool = False) -> AbstractContextManager[Any]:
    """Tell collectives inside a shard_map about axes that a `vmap` or `nmap` maps over, or a loop runs along."""
    scope = SCOPE.get()
    if scope is None:
        return nullcontext()
    if loop:
        inner = dataclasses.replace(scope, looped=scope.looped | set(names))
    else:
        inner = dataclasses.replace(scope, hidden=scope.hidden | set(names))
    return SCOPE.using(inner)
