"""The functions of `jax.tree_util`, with named arrays kept whole as leaves."""

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import equinox as eqx
import jax

from axonym import AxisSelector, is_named_array, tree
from axonym.engine import Payload, Tree, selector
from axonym.nn import Stacked

from ._adapt import Function, adapted
from .hof import vmap

__all__ = [
    "hashable_combine",
    "hashable_partition",
    "resize_axis",
    "scan_aware_tree_map",
    "tree_flatten",
    "tree_leaves",
    "tree_map",
    "tree_structure",
    "tree_unflatten",
]

IsLeaf = Callable[[Any], bool] | None
Static: TypeAlias = tuple[tuple[Payload, ...], Any]
_trees = tree  # also the names of arguments


@adapted
def tree_map(fn: Function, tree: Tree, *rest: Tree, is_leaf: IsLeaf = None) -> Tree:
    """Apply a function to each leaf."""
    return _trees.map(fn, tree, *rest, is_leaf=is_leaf)


@adapted
def scan_aware_tree_map(fn: Function, tree: Tree, *rest: Tree, is_leaf: IsLeaf = None) -> Tree:
    """Apply a function to each leaf; inside a `Stacked`, to the leaves of each layer, by Haliax's `vmap`."""

    def apply(node: Tree, *others: Tree) -> Tree:
        if not isinstance(node, Stacked):
            return fn(node, *others)
        mapped: Function = functools.partial(scan_aware_tree_map, fn, is_leaf=is_leaf)
        for axis in reversed(node.storage):
            mapped = vmap(mapped, axis)
        return dataclasses.replace(
            node, stacked=mapped(node.stacked, *(other.stacked for other in others))
        )

    return _trees.map(
        apply,
        tree,
        *rest,
        is_leaf=lambda x: isinstance(x, Stacked) or (is_leaf is not None and is_leaf(x)),
    )


def _or_named(is_leaf: IsLeaf) -> Callable[[Any], bool]:
    """Return an `is_leaf` that also stops at named arrays, even at those without an array, unlike `axn.tree`."""
    return lambda x: is_named_array(x) or (is_leaf is not None and is_leaf(x))


def tree_flatten(tree: Tree, is_leaf: IsLeaf = None) -> tuple[list[Payload], Any]:
    """Return the leaves and the structure."""
    return jax.tree.flatten(tree, is_leaf=_or_named(is_leaf))


def tree_unflatten(treedef: Any, leaves: Iterable[Payload]) -> Tree:
    """Rebuild a tree from its structure and leaves."""
    return jax.tree.unflatten(treedef, leaves)


def tree_leaves(tree: Tree, is_leaf: IsLeaf = None) -> list[Payload]:
    """Return the leaves."""
    return jax.tree.leaves(tree, is_leaf=_or_named(is_leaf))


def tree_structure(tree: Tree, is_leaf: IsLeaf = None) -> Any:
    """Return the structure."""
    return jax.tree.structure(tree, is_leaf=_or_named(is_leaf))


@adapted
def resize_axis(
    tree: Tree, old_axis: AxisSelector, new_size: int, key: jax.Array | None = None
) -> Tree:
    """Resize an axis in all named arrays of a tree and in static fields of modules; a tree without it is unchanged."""
    name, _ = selector(old_axis, "resize_axis")
    if not any(is_named_array(leaf) and name in leaf.names for leaf in tree_leaves(tree)):
        return tree
    return _trees.resize_axis(tree, old_axis, new_size, key)


def hashable_partition(pytree: Tree, filter_spec: Tree) -> tuple[Tree, Static]:
    """Partition a tree by a filter: the leaves that pass, and the others as a tuple of leaves and the structure."""
    dynamic, static = eqx.partition(pytree, filter_spec)
    leaves, structure = jax.tree.flatten(static)
    return dynamic, (tuple(leaves), structure)


def hashable_combine(dynamic: Tree, static: Static) -> Tree:
    """Undo `hashable_partition`."""
    leaves, structure = static
    return eqx.combine(dynamic, jax.tree.unflatten(structure, leaves))
