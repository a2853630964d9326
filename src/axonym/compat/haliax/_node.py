"""The pytree registration of `NamedArray`."""

import json
from collections.abc import Sequence
from typing import Any, TypeVar, cast

import jax
from jax.export import register_pytree_node_serialization

import axonym as axn

__all__ = ["SizedNames", "is_hole", "registered"]

T = TypeVar("T")


class SizedNames(tuple[str, ...]):
    """Names that remember sizes, since `jax.tree.map` may give a NamedArray a payload without a shape.

    Only the names are compared.
    """

    sizes: tuple[int, ...]

    @classmethod
    def of(cls, names: Sequence[str], sizes: Sequence[int]) -> "SizedNames":
        """Give names their sizes."""
        made = cls(names)
        made.sizes = tuple(sizes)
        return made


def is_hole(leaf: object) -> bool:
    """Return whether a leaf is a named array whose array a filter or a mask has replaced, by None, `()`, a bool, ..."""
    if not isinstance(leaf, axn.NamedArray) or hasattr(leaf.array, "shape"):
        return False
    is_scalar = isinstance(leaf.array, int | float | complex) and not leaf.names
    return not is_scalar


def registered(cls: type[T]) -> type[T]:
    """Register `NamedArray` as a pytree node whose structure remembers sizes, but is compared only by names."""
    key = jax.tree_util.GetAttrKey("array")

    def flatten(x: Any) -> tuple[tuple[Any], tuple[str, ...]]:
        children, names = x.node
        shape = getattr(children[0], "shape", None)
        return children, SizedNames.of(names, shape) if isinstance(shape, tuple) and len(
            shape
        ) == len(names) else names

    def flatten_with_keys(x: Any) -> tuple[tuple[Any], tuple[str, ...]]:
        (array,), names = flatten(x)
        return ((key, array),), names

    def unflatten(names: tuple[str, ...], children: Any) -> T:
        made: Any = object.__new__(cls)
        made.node = (children, names)
        return cast(T, made)

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten_func=flatten)
    register_pytree_node_serialization(
        cls,
        serialized_name=f"haliax.{cls.__name__}",
        serialize_auxdata=lambda names: json.dumps(names).encode(),
        deserialize_auxdata=lambda data: tuple(json.loads(data)),
    )
    return cls
