"""Products with parameters."""

import jax

from ..array import NamedArray
from ..axis import Axis
from ..layout import context_mesh, current_mapping
from ..ops.contract import dot
from ..partitioning.shard import auto_sharded

__all__ = ["multiply"]


def multiply(x: NamedArray, weight: NamedArray, axis: tuple[Axis, ...]) -> NamedArray:
    """Contract an input and a weight, which is gathered first from where its own mapping has put it.

    Left to itself, the compiler may move the larger activations, or the weight several times. The backward pass gathers
    the weight again: kept, those of all layers of a loop would be on every device at once.
    """
    names = [each.name for each in axis]  # a block of the weight has other sizes
    if current_mapping() is None or context_mesh() is None:
        return dot(x, weight, axis=names)

    def gathered(x: NamedArray, weight: NamedArray) -> NamedArray:
        return dot(x, auto_sharded(weight), axis=names)

    product: NamedArray = jax.checkpoint(gathered, prevent_cse=False)(x, weight)
    return product
