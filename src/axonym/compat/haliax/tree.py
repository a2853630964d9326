"""The functions of `jax.tree`, with named arrays kept whole as leaves."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from . import tree_util

__all__ = ["T", "flatten", "leaves", "map", "scan_aware_map", "structure", "unflatten"]

T = TypeVar("T")
IsLeaf = Callable[[Any], bool] | None


def map(fn: Callable[..., T], tree: Any, *rest: Any, is_leaf: IsLeaf = None) -> Any:
    """Apply a function to each leaf."""
    return tree_util.tree_map(fn, tree, *rest, is_leaf=is_leaf)


def scan_aware_map(fn: Callable[..., T], tree: Any, *rest: Any, is_leaf: IsLeaf = None) -> Any:
    """Apply a function to each leaf; inside a `Stacked`, to the leaves of each layer."""
    return tree_util.scan_aware_tree_map(fn, tree, *rest, is_leaf=is_leaf)


def leaves(tree: Any, *, is_leaf: IsLeaf = None) -> list[Any]:
    """Return the leaves."""
    return tree_util.tree_leaves(tree, is_leaf)


def flatten(tree: Any, *, is_leaf: IsLeaf = None) -> tuple[list[Any], Any]:
    """Return the leaves and the structure."""
    return tree_util.tree_flatten(tree, is_leaf)


def structure(tree: Any, *, is_leaf: IsLeaf = None) -> Any:
    """Return the structure."""
    return tree_util.tree_structure(tree, is_leaf)


def unflatten(treedef: Any, leaves: Iterable[Any]) -> Any:
    """Rebuild a tree from its structure and leaves."""
    return tree_util.tree_unflatten(treedef, leaves)
