"""Products with parameters."""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax

from ..array import NamedArray
from ..axis import Axis
from ..layout import context_mesh, current_mapping
from ..ops.contract import dot
from ..partitioning.shard import auto_sharded

__all__ = ["multiply"]


def multiply(
    x: NamedArray, weight: NamedArray, axis: tuple[Axis, ...], dot_general: Callable[..., Any] | None = None
) -> NamedArray:
    """Contract an input and a weight, which is gathered first from where its own mapping has put it.

    Left to itself, the compiler may move the larger activations, or the weight several times. The backward pass gathers
    the weight again: kept, those of all layers of a loop would be on every device at once.
    """
    names = [each.name for each in axis]  # a block of the weight has other sizes
    custom = lax.dot_general if dot_general is None else dot_general
    if current_mapping() is None or context_mesh() is None:
        return dot(x, weight, axis=names, dot_general=custom)

    def gathered(x: NamedArray, weight: NamedArray) -> NamedArray:
        return dot(x, auto_sharded(weight), axis=names, dot_general=custom)

    product: NamedArray = jax.checkpoint(gathered, prevent_cse=False)(x, weight)
    return product
