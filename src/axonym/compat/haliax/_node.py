"""How `NamedArray` is a node of trees."""

from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar, cast

import jax

from axonym import is_named_array
from axonym.axis import Axis
from axonym.core import wrap

__all__ = ["SizedNames", "is_empty", "registered", "with_axes", "without_axes"]

T = TypeVar("T")


class SizedNames(tuple[str, ...]):
    """Names that remember sizes, for a payload without a shape: what `jax.tree.map` may put into an array.

    They are compared as names alone.
    """

    sizes: tuple[int, ...]

    @classmethod
    def of(cls, names: Sequence[str], sizes: Sequence[int]) -> "SizedNames":
        """Give names their sizes."""
        made = cls(names)
        made.sizes = tuple(sizes)
        return made


def registered(cls: type[T]) -> type[T]:
    """Make `NamedArray` a pytree node whose structure remembers sizes, though it is compared by names alone."""
    key = jax.tree_util.GetAttrKey("array")

    def flatten(x: Any) -> tuple[tuple[Any], tuple[str, ...]]:
        children, names = x.node
        shape = getattr(children[0], "shape", None)
        return children, SizedNames.of(names, shape) if isinstance(shape, tuple) and len(shape) == len(names) else names

    def flatten_with_keys(x: Any) -> tuple[tuple[Any], tuple[str, ...]]:
        (array,), names = flatten(x)
        return ((key, array),), names

    def unflatten(names: tuple[str, ...], children: Any) -> T:
        made: Any = object.__new__(cls)
        made.node = (children, names)
        return cast(T, made)

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten_func=flatten)
    return cls


def is_empty(leaf: Any) -> bool:
    """Tell whether a leaf is a named array of no array: of None, as `eqx.filter` leaves it, or of what Optax masks."""
    return is_named_array(leaf) and not hasattr(leaf.array, "shape")


def without_axes(tree: T, names: Collection[str]) -> T:
    """Take axes away from empty named arrays, as mapping over them takes them away from others."""
    return _changed(tree, lambda axes: [axis for axis in axes if axis.name not in names])


def with_axes(tree: T, axes: Sequence[Axis]) -> T:
    """Put axes in front of those of empty named arrays, as mapping over them does to others."""
    return _changed(tree, lambda own: [*axes, *own])


def _changed(tree: T, change: Callable[[tuple[Axis, ...]], Sequence[Axis]]) -> T:
    leaves, structure = jax.tree.flatten(tree, is_leaf=is_named_array)
    if not any(map(is_empty, leaves)):
        return tree
    for i, leaf in enumerate(leaves):
        if is_empty(leaf):
            axes = change(leaf.axes)
            names = SizedNames.of([axis.name for axis in axes], [axis.size for axis in axes])
            leaves[i] = wrap(leaf, leaf.array, names)
    return cast(T, jax.tree.unflatten(structure, leaves))
