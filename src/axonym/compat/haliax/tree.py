"""The functions of `jax.tree`, with named arrays kept whole as leaves."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from axonym.engine import Payload, Tree

from . import tree_util
from .tree_util import IsLeaf

__all__ = ["T", "flatten", "leaves", "map", "scan_aware_map", "structure", "unflatten"]

T = TypeVar("T")


def map(fn: Callable[..., T], tree: Tree, *rest: Tree, is_leaf: IsLeaf = None) -> Tree:
    """Apply a function to each leaf."""
    return tree_util.tree_map(fn, tree, *rest, is_leaf=is_leaf)


def scan_aware_map(fn: Callable[..., T], tree: Tree, *rest: Tree, is_leaf: IsLeaf = None) -> Tree:
    """Apply a function to each leaf; inside a `Stacked`, to the leaves of each layer."""
    return tree_util.scan_aware_tree_map(fn, tree, *rest, is_leaf=is_leaf)


def leaves(tree: Tree, *, is_leaf: IsLeaf = None) -> list[Payload]:
    """Return the leaves."""
    return tree_util.tree_leaves(tree, is_leaf)


def flatten(tree: Tree, *, is_leaf: IsLeaf = None) -> tuple[list[Payload], Any]:
    """Return the leaves and the structure."""
    return tree_util.tree_flatten(tree, is_leaf)


def structure(tree: Tree, *, is_leaf: IsLeaf = None) -> Any:
    """Return the structure."""
    return tree_util.tree_structure(tree, is_leaf)


def unflatten(treedef: Any, leaves: Iterable[Payload]) -> Tree:
    """Rebuild a tree from its structure and leaves."""
    return tree_util.tree_unflatten(treedef, leaves)
