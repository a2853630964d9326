"""Remember how modules were flattened.

A jitted training step takes the state that it returned the step before. Flattening its modules again takes up to a
fifth of the call; but a module is immutable, so its leaves can be kept as long as it lives.
"""

import weakref
from typing import Any

import equinox as eqx

from ..array import NamedArray


class Structure:
    """A tree structure; equal ones are one object, so that a look-up needs no walk through its entries."""

    __slots__ = ("tree",)

    def __init__(self, tree: Any) -> None:
        self.tree = tree


class Flattened:
    """The leaves and the structures of modules, each kept as long as the module lives."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], list[Any], Structure]] = {}
        self._structures: dict[Any, Structure] = {}

    def structure(self, tree: object) -> Structure:
        """Return the one object for a tree structure."""
        known = self._structures.get(tree)
        if known is None:
            known = self._structures.setdefault(tree, Structure(tree))
        return known

    def get(self, module: object) -> tuple[list[Any], Structure] | None:
        """Return leaves and structure of a module, if they are known."""
        known = self._known.get(id(module))
        if known is None or known[0]() is not module:
            return None
        return known[1:]

    def remember(self, module: object, leaves: list[object], structure: Structure) -> None:
        """Keep leaves and structure of a module until it is gone."""
        key, known = id(module), self._known
        known[key] = (weakref.ref(module, lambda _: known.pop(key, None)), leaves, structure)


def made_of_immutables(tree: Any) -> bool:
    """Return whether a structure consists only of tuples, modules and named arrays, which are immutable."""
    data = tree.node_data()
    if data is None:  # a leaf
        return True
    kinds = (tuple, eqx.Module, NamedArray, type(None))
    return issubclass(data[0], kinds) and all(map(made_of_immutables, tree.children()))


def modules_in(result: Any, tree: Any) -> tuple[tuple[int | None, int, int, Any], ...]:
    """Find the modules that a result is, or has as entries: where, their ranges among the leaves, their structures."""
    if isinstance(result, eqx.Module):
        if not made_of_immutables(tree):
            return ()
        return ((None, 0, tree.num_leaves, tree),)
    if type(result) is not tuple:
        return ()
    found = []
    start = 0
    for at, (entry, structure) in enumerate(zip(result, tree.children(), strict=True)):
        stop = start + structure.num_leaves
        if isinstance(entry, eqx.Module) and made_of_immutables(structure):
            found.append((at, start, stop, structure))
        start = stop
    return tuple(found)
