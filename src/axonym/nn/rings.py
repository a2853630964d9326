"""Products that go around a ring: what they need and make is sent in blocks, each while another one is multiplied.

Where a mapping splits positions over the mesh axis of a hidden axis, a perceptron needs all positions before its first
product, and adds up and splits what its last one makes. In a ring, a device multiplies the positions that it has while
it sends them on. Blocks stay in the order in which they came, since what is between the products is computed for each
position alone; the sums of a block move on to the device whose positions these are.
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
from ..partitioning.addresses import count_of, mesh_axes_of
from ..partitioning.collectives import pcast, ppermute
from ..partitioning.options import PRODUCTS
from ..partitioning.shard import auto_sharded
from ..partitioning.shard_map import shard_map
from . import activation
from .linear import Linear
from .weights import add_bias, find_mesh_to_share, stored_outputs

Pointwise: TypeAlias = Callable[[NamedArray], NamedArray]
Between: TypeAlias = Callable[..., NamedArray]

# Functions of an element: another one might look at the positions of all devices.
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
    if shared is None or not _is_pointwise(activation):
        return None
    if not all(map(_is_plain, (*first, last))) or not _fit(x, first, last):
        return None

    mapping, mesh = shared
    (hidden,) = last.In
    weights = [layer.weight for layer in (*first, last)]
    try:
        lying = find_layout(x.names, x.array.shape, mapping, mesh).by_name(x.names)
        entries = [
            find_layout(weight.names, weight.array.shape, mapping, mesh).by_name(weight.names)
            for weight in weights
        ]
    except ShardingError:  # which the products raise, where they lay the arrays out
        return None
    over = entries[0][hidden.name]
    further = [entry for own in entries for name, entry in own.items() if name != hidden.name]
    if count_shards(mesh, over) == 1 or any(further):
        return None
    return next((name for name, entry in lying.items() if entry == over), None)


def _go_around(
    ring: str, x: NamedArray, first: Sequence[Linear], last: Linear, between: Between
) -> NamedArray:
    """Apply the layers to the blocks of an axis, each while the next one is sent."""
    split, names = tuple(context.mapped(x.names)), x.names

    hidden = last.In[0].name

    def run(x: NamedArray, first: Sequence[Linear], weight: NamedArray) -> NamedArray:
        # The gradient of a weight is then summed over the batch once, and not for each block.
        every = mesh_axes_of("MLP", split, names, meaning="arrays")
        along = mesh_axes_of("MLP", ring, names, meaning="arrays")
        first, weight = pcast((first, weight), over=every)
        count = count_of(along)
        read = [_products(x, first)]
        for _ in range(1, count):
            x = ppermute(x, over=along)
            read.append(_products(x, first))
        # Both products with the own block in one operation would wait for both of its neighbours.
        read[0] = lax.optimization_barrier(read[0])

        # The own block comes last. Until then, sums move on with those of the blocks behind it.
        total = dot(between(*read[1]), weight, axis=hidden)
        for turn in range(2, count + 1):
            here = dot(between(*read[turn % count]), weight, axis=hidden)
            total = ppermute(total, over=along) + here
        return total

    x, first, weight = auto_sharded((x, first, last.weight))
    return add_bias(shard_map(run, strict=False)(x, first, weight), last.bias)


def _products(x: NamedArray, layers: Sequence[Linear]) -> list[NamedArray]:
    names = tuple(axis.name for axis in layers[0].In)
    found: list[NamedArray] = []
    for layer in layers:
        found.append(add_bias(dot(x, layer.weight, axis=names), layer.bias))
    return found


def _is_plain(layer: Linear) -> bool:
    """Return whether a layer multiplies by a matrix as it is, and adds a bias."""
    if type(layer) is not Linear or layer.dot_general is not None:
        return False
    is_square = stored_outputs(layer.In, layer.Out) != layer.Out
    return layer.weight.array.ndim == len(layer.weight.names) and not is_square


def _fit(x: NamedArray, first: Sequence[Linear], last: Linear) -> bool:
    """Return whether the axes of an input and of layers fit, and one of them is hidden; layers raise if not."""
    if len(last.In) != 1 or any(layer.Out != last.In or layer.In != first[0].In for layer in first):
        return False
    if not isinstance(x, NamedArray) or x.array.ndim != len(x.names):
        return False
    kept = dict(x.shape)
    sizes = [kept.pop(axis.name, None) for axis in first[0].In]
    made = {axis.name for axis in (*last.In, *last.Out)}
    return sizes == [axis.size for axis in first[0].In] and not made & kept.keys()


def _is_pointwise(fn: Pointwise) -> bool:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return fn in _POINTWISE
