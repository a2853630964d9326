"""Internal. Perceptrons whose blocks go around a ring of devices, each sent while another one is multiplied.

`MLP` and `GatedMLP` call it. Suppose that a mapping shards positions over the mesh axis of the hidden axis. The first
product then needs all positions, and the result of the last one is summed and sharded again. In a ring, each device
multiplies the positions that it has while it sends them on, so the exchange overlaps with the products.

Blocks stay in the order in which they arrive, which is allowed since the functions between the products compute each
position alone. The sum of a block travels too, and ends on the device that has these positions.
"""

import functools
from collections.abc import Callable, Sequence
from typing import TypeAlias

from jax import lax

from ..array import NamedArray
from ..errors import ShardingError
from ..layout import context
from ..layout.partition import count_shards, find_layout
from ..ops.contract import dot
from ..ops.elementwise import tanh
from ..partitioning.addresses import count_devices, find_mesh_axes
from ..partitioning.collectives import pcast, ppermute
from ..partitioning.options import PRODUCTS
from ..partitioning.padding import is_padded
from ..partitioning.shard import auto_sharded
from ..partitioning.shard_map import shard_map
from . import activation
from .linear import Linear
from .weights import add_bias, find_mesh_to_share, find_stored_outputs

Pointwise: TypeAlias = Callable[[NamedArray], NamedArray]
Between: TypeAlias = Callable[..., NamedArray]

# A device has one block at a time, so another function, which may look at all positions, would give a wrong result.
_POINTWISE = {getattr(activation, name) for name in activation.__all__ if name != "glu"}
_POINTWISE.add(tanh)


def apply_in_ring(
    x: NamedArray, first: Sequence[Linear], last: Linear, activation: Pointwise, between: Between
) -> NamedArray | None:
    """Apply a perceptron whose blocks go around a ring of devices, or return None where the compiler sends them.

    Args:
        x: the input.
        first: the layers that read it, all with the same axes.
        last: the layer that reads `between` of their results.
        activation: the function that must be one of elements.
        between: what it is a part of, from the results of `first` to the input of `last`.

    Returns:
        What `last` makes, sharded as the input.
    """
    ring = _find_ring(x, first, last, activation)
    return None if ring is None else _go_around(ring, x, first, last, between)


def _find_ring(
    x: NamedArray, first: Sequence[Linear], last: Linear, activation: Pointwise
) -> str | None:
    """Return the axis of the input whose blocks go around a ring, or None."""
    shared = find_mesh_to_share(PRODUCTS.get().rings)
    if shared is None or not is_pointwise(activation):
        return None
    if not all(map(_is_plain, (*first, last))) or not _fit(x, first, last):
        return None

    mapping, mesh = shared
    (hidden,) = last.In
    weights = [layer.weight for layer in (*first, last)]
    try:
        of_input = find_layout(x.names, x.array.shape, mapping, mesh).by_name(x.names)
        entries = [
            find_layout(weight.names, weight.array.shape, mapping, mesh).by_name(weight.names)
            for weight in weights
        ]
    except ShardingError:
        # The products themselves raise when they shard the arrays, and their message names the operation.
        return None
    over = entries[0][hidden.name]
    further = [entry for own in entries for name, entry in own.items() if name != hidden.name]
    # The ring exchanges positions for parts of the hidden axis. It gathers no other axis of a weight.
    if count_shards(mesh, over) == 1 or any(further):
        return None
    return next((name for name, entry in of_input.items() if entry == over), None)


def _go_around(
    ring: str, x: NamedArray, first: Sequence[Linear], last: Linear, between: Between
) -> NamedArray:
    """Apply the layers to the blocks of an axis, each while the next one is sent."""
    sizes = dict(zip(x.names, x.array.shape, strict=True))
    split, names, hidden = tuple(context.map_names(sizes)), x.names, last.In[0].name

    def run(x: NamedArray, first: Sequence[Linear], weight: NamedArray) -> NamedArray:
        # The type of a weight says that it varies over all mesh axes, so its gradient is summed over the batch once,
        # after the loop. Otherwise, each block would sum it.
        every = find_mesh_axes("MLP", split, names, meaning="arrays")
        along = find_mesh_axes("MLP", ring, names, meaning="arrays")
        first, weight = pcast((first, weight), over=every)
        count = count_devices(along)
        products = [_multiply(x, first)]
        for _ in range(1, count):
            x = ppermute(x, over=along)
            products.append(_multiply(x, first))
        # The compiler would merge both products with the own block into one operation, which would wait for both
        # neighbours.
        products[0] = lax.optimization_barrier(products[0])

        # A device begins with the block of the neighbour behind it. The sum of this block passes all other devices and
        # ends with its owner, so each device adds the products with its own block last.
        total = dot(between(*products[1]), weight, axis=hidden)
        for step in range(2, count + 1):
            here = dot(between(*products[step % count]), weight, axis=hidden)
            total = ppermute(total, over=along) + here
        return total

    x, first, weight = auto_sharded((x, first, last.weight))
    return add_bias(shard_map(run, strict=False)(x, first, weight), last.bias)


def _multiply(x: NamedArray, layers: Sequence[Linear]) -> list[NamedArray]:
    """Apply the layers to a block, without the constraints of `Linear`: a shard_map surrounds it."""
    names = tuple(axis.name for axis in layers[0].In)
    return [add_bias(dot(x, layer.weight, axis=names), layer.bias) for layer in layers]


def _is_plain(layer: Linear) -> bool:
    """Return whether a layer multiplies by a matrix as it is, and adds a bias."""
    # A subclass may do more in its call, and a `dot_general` of its own may need all of an operand for a scale.
    if type(layer) is not Linear or layer.dot_general is not None or is_padded(layer.weight):
        return False
    is_square = find_stored_outputs(layer.In, layer.Out) != layer.Out
    return layer.weight.array.ndim == len(layer.weight.names) and not is_square


def _fit(x: NamedArray, first: Sequence[Linear], last: Linear) -> bool:
    """Return whether the axes of an input and of layers fit, and one of them is hidden.

    Nothing raises here: layers have their own messages for axes that do not fit.
    """
    if len(last.In) != 1 or any(layer.Out != last.In or layer.In != first[0].In for layer in first):
        return False
    if not isinstance(x, NamedArray) or x.array.ndim != len(x.names):
        return False
    others = dict(x.shape)
    sizes = [others.pop(axis.name, None) for axis in first[0].In]
    added = {axis.name for axis in (*last.In, *last.Out)}
    return sizes == [axis.size for axis in first[0].In] and not added & others.keys()


def is_pointwise(fn: Pointwise) -> bool:
    """Return whether a function is known to compute each element alone."""
    while isinstance(fn, functools.partial):  # such as `partial(gelu, approximate=False)`
        fn = fn.func
    return fn in _POINTWISE
