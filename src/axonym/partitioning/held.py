"""Internal. Leaves of trees that are arrays, or named arrays that hold one.

`shard_map` takes their arrays out, and puts blocks and results in.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec

from ..array import NamedArray
from ..layout import explicit
from ..layout.layout import Layout


def holds_array(leaf: object) -> bool:
    """Return whether a leaf is an array, or holds one."""
    array = array_of(leaf)
    # Arrays of NumPy and abstract ones count, which share no class with others.
    return hasattr(array, "shape") and hasattr(array, "dtype")


def spec_of(leaf: object) -> PartitionSpec | None:
    """Return the layout that the type of an array has; None for other leaves."""
    return Layout(explicit.get_layout(leaf)).spec if isinstance(leaf, jax.Array) else None


def fill(leaves: Sequence[object], arrays: Iterable[object]) -> list[Any]:
    """Replace the arrays that leaves hold, in order."""
    rest = iter(arrays)
    return [replace_array(leaf, next(rest)) if holds_array(leaf) else leaf for leaf in leaves]


def array_of(leaf: object) -> Any:
    """Return the array that a leaf is or holds."""
    return leaf.array if isinstance(leaf, NamedArray) else leaf


def replace_array(leaf: object, array: object) -> Any:
    """Replace the array that a leaf is or holds."""
    return NamedArray(array, leaf.names) if isinstance(leaf, NamedArray) else array


def without_data(leaf: object) -> Any:
    """Keep a placeholder for an array: a tracer must not outlive its trace."""
    if not holds_array(leaf):
        return leaf
    array = array_of(leaf)
    return replace_array(leaf, jax.ShapeDtypeStruct(array.shape, array.dtype))
