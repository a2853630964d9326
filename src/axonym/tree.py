"""The functions of `jax.tree`, with named arrays kept whole as leaves."""

from collections.abc import Callable
from typing import Any

import jax

from .array import is_named_array

__all__ = ["flatten", "leaves", "map", "structure", "unflatten"]


def _is_leaf(is_leaf: Callable[[Any], bool] | None) -> Callable[[Any], bool]:
    return is_named_array if is_leaf is None else lambda x: is_named_array(x) or is_leaf(x)


def map(fn: Callable[..., Any], tree: Any, *rest: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """Apply a function to each leaf; a named array is one.

    Example:
        >>> axn.tree.map(lambda x: x.sum("embed"), {"weight": axn.ones(axn.Axis("embed", 3))})["weight"].item()
        3.0
    """
    return jax.tree.map(fn, tree, *rest, is_leaf=_is_leaf(is_leaf))


def leaves(tree: Any, *, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    """Return the leaves."""
    return jax.tree.leaves(tree, is_leaf=_is_leaf(is_leaf))


def flatten(tree: Any, *, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], Any]:
    """Return the leaves and the structure."""
    return jax.tree.flatten(tree, is_leaf=_is_leaf(is_leaf))


def structure(tree: Any, *, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """Return the structure."""
    return jax.tree.structure(tree, is_leaf=_is_leaf(is_leaf))


def unflatten(structure: Any, leaves: Any) -> Any:
    """Put a tree together from its structure and leaves."""
    return jax.tree.unflatten(structure, leaves)
