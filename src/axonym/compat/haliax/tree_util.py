"""The functions of `jax.tree_util`, with named arrays kept whole as leaves."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax

from axonym import AxisSelector, is_named_array, tree
from axonym.engine import selector
from axonym.nn import Stacked

from ._adapt import adapted
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
_trees = tree  # also the names of arguments


@adapted
def tree_map(fn: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf = None) -> Any:
    """Apply a function to each leaf."""
    return _trees.map(fn, tree, *rest, is_leaf=is_leaf)


@adapted
def scan_aware_tree_map(
    fn: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf = None
) -> Any:
    """Apply a function to each leaf; inside a `Stacked`, to the leaves of each layer, by Haliax's `vmap`."""

    def apply(node: Any, *others: Any) -> Any:
        if not isinstance(node, Stacked):
            return fn(node, *others)
        mapped = vmap(functools.partial(scan_aware_tree_map, fn, is_leaf=is_leaf), node.Block)
        return dataclasses.replace(
            node, stacked=mapped(node.stacked, *(other.stacked for other in others))
        )

    return _trees.map(
        apply,
        tree,
        *rest,
        is_leaf=lambda x: isinstance(x, Stacked) or (is_leaf is not None and is_leaf(x)),
    )


def tree_flatten(tree: Any, is_leaf: IsLeaf = None) -> tuple[list[Any], Any]:
    """Return the leaves and the structure."""
    return _trees.flatten(tree, is_leaf=is_leaf)


def tree_unflatten(treedef: Any, leaves: Any) -> Any:
    """Rebuild a tree from its structure and leaves."""
    return jax.tree.unflatten(treedef, leaves)


def tree_leaves(tree: Any, is_leaf: IsLeaf = None) -> list[Any]:
    """Return the leaves."""
    return _trees.leaves(tree, is_leaf=is_leaf)


def tree_structure(tree: Any, is_leaf: IsLeaf = None) -> Any:
    """Return the structure."""
    return _trees.structure(tree, is_leaf=is_leaf)


@adapted
def resize_axis(
    tree: Any, old_axis: AxisSelector, new_size: int, key: jax.Array | None = None
) -> Any:
    """Resize an axis in all named arrays of a tree and in static fields of modules; a tree without it is unchanged."""
    name, _ = selector(old_axis, "resize_axis")
    if not any(is_named_array(leaf) and name in leaf.names for leaf in tree_leaves(tree)):
        return tree
    return _trees.resize_axis(tree, old_axis, new_size, key)


def hashable_partition(pytree: Any, filter_spec: Any) -> tuple[Any, tuple[tuple[Any, ...], Any]]:
    """Partition a tree by a filter: the leaves that pass, and the others as a tuple of leaves and the structure."""
    dynamic, static = eqx.partition(pytree, filter_spec)
    leaves, structure = jax.tree.flatten(static)
    return dynamic, (tuple(leaves), structure)


def hashable_combine(dynamic: Any, static: tuple[tuple[Any, ...], Any]) -> Any:
    """Undo `hashable_partition`."""
    leaves, structure = static
    return eqx.combine(dynamic, jax.tree.unflatten(structure, leaves))
