"""Internal. Remember how modules were flattened, for `named_jit`.

A jitted training step takes the state that the previous step returned. Flattening its modules again takes up to a
fifth of the call; but a module is immutable, so its leaves can be kept as long as it lives. A list or a dict inside a
module may change, so its entries are compared with a copy.
"""

import operator
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
from jax.tree_util import DictKey, GetAttrKey, SequenceKey

from ..array import NamedArray

# How to get from a module to something in it, one step after another.
Path: TypeAlias = tuple[Callable[[Any], Any], ...]


class Structure:
    """A tree structure; equal structures are one object, so that a look-up need not compare their entries.

    Attributes:
        tree: the structure.
        containers: the lists and dicts in a module of this structure; None if parts of it may change in other ways.
            Found when the first module is remembered.
    """

    __slots__ = ("containers", "tree")
    containers: tuple[Path, ...] | None

    def __init__(self, tree: Any) -> None:
        self.tree = tree


class _Known(NamedTuple):
    """The record of a module: its leaves, its structure, and copies of its lists and dicts."""

    module: weakref.ref[Any]
    leaves: list[Any]
    structure: Structure
    held: tuple[tuple[Any, Any], ...]


class Flattened:
    """The leaves and the structures of modules, each kept as long as the module lives."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}
        self._structures: dict[Any, Structure] = {}

    def structure(self, tree: object) -> Structure:
        """Return the shared object for a tree structure."""
        known = self._structures.get(tree)
        if known is None:
            known = self._structures.setdefault(tree, Structure(tree))
        return known

    def get(self, module: object) -> tuple[list[Any], Structure] | None:
        """Return leaves and structure of a module, if they are known and no part of it has changed."""
        known = self._known.get(id(module))
        if known is None or known.module() is not module:
            return None
        # The reference above matters: an id may be that of a new object, after the old one is gone.
        is_same = all(_is_as_before(container, before) for container, before in known.held)
        return (known.leaves, known.structure) if is_same else None

    def remember(self, module: object, leaves: list[object], structure: Structure) -> None:
        """Keep leaves and structure of a module as long as it lives, if `get` can notice all its changes."""
        if not hasattr(structure, "containers"):
            structure.containers = containers_of(module, structure.tree)
        if structure.containers is None:
            return
        held: list[tuple[Any, Any]] = []
        for path in structure.containers:
            container: Any = module
            for step in path:
                container = step(container)
            held.append((container, container.copy()))
        key, known = id(module), self._known
        reference = weakref.ref(module, lambda _: known.pop(key, None))
        known[key] = _Known(reference, leaves, structure, tuple(held))


def _is_as_before(container: Any, before: Any) -> bool:
    """Return whether a list or a dict has the same objects as its copy, in the same order."""
    if len(container) != len(before):
        return False
    if type(container) is dict:
        # The same keys in the same order, so that values can be compared one by one.
        if list(container) != list(before):
            return False
        container, before = container.values(), before.values()
    return all(map(operator.is_, container, before))


def containers_of(module: object, tree: Any) -> tuple[Path, ...] | None:
    """Return the paths of the lists and dicts in a module; None if it has nodes that may change in other ways."""
    kinds = set(_walk_kinds(tree))
    for kind in kinds - {list, dict}:
        if not issubclass(kind, (tuple, eqx.Module, NamedArray, type(None))):
            return None
    if not kinds & {list, dict}:
        return ()
    with suppress(LookupError):
        return tuple(_walk_paths(module, ()))
    return None


def _walk_kinds(tree: Any) -> Iterator[type]:
    """Yield the types of the nodes of a structure."""
    data = tree.node_data()
    if data is not None:  # no leaf
        yield data[0]
        for child in tree.children():
            yield from _walk_kinds(child)


def _walk_paths(part: object, above: Path) -> Iterator[Path]:
    """Yield the paths of the lists and dicts in a part of a module, the outer ones first."""
    if type(part) in (list, dict):
        yield above
    if isinstance(part, NamedArray):
        return
    # One level at a time: everything but the part itself is a leaf.
    below, _ = jax.tree_util.tree_flatten_with_path(part, is_leaf=lambda x: x is not part)
    for keys, child in below:
        if keys:  # a leaf is its own only part
            yield from _walk_paths(child, (*above, _make_getter(keys[0])))


def _make_getter(key: object) -> Callable[[Any], Any]:
    """Return the function that gets the child of a node under a key."""
    match key:
        case GetAttrKey(name=name):
            return operator.attrgetter(name)
        case SequenceKey(idx=index):
            return operator.itemgetter(index)
        case DictKey(key=index):
            return operator.itemgetter(index)
        case _:
            raise LookupError(key)  # of a tuple that flattens in a way of its own


def modules_in(result: Any, tree: Any) -> tuple[tuple[int | None, int, int, Any], ...]:
    """Find modules in a result, or the result itself if it is one: index, range of leaves and structure of each."""
    if isinstance(result, eqx.Module):
        return ((None, 0, tree.num_leaves, tree),)
    # Usual results of a training step; a module deeper inside is flattened again, which is slower and no error.
    if type(result) is not tuple:
        return ()
    found = []
    start = 0
    for at, (entry, structure) in enumerate(zip(result, tree.children(), strict=True)):
        stop = start + structure.num_leaves
        if isinstance(entry, eqx.Module):
            found.append((at, start, stop, structure))
        start = stop
    return tuple(found)
