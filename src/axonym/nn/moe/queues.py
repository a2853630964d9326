"""Internal. The order in which an expert takes choices, up to its capacity.

`device` builds the queues where experts have a capacity. Masked tokens choose no expert. Their choices come after all
queues, take no place, and their own place means nothing.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ...array import NamedArray, named
from ...axis import Axis
from ...create import arange
from ...layout import tracing
from ...ops.cumulative import cumsum
from ...ops.histogram import bincount
from ...ops.index import take
from ...ops.sorting import argsort
from .layout import CHOICE, QUEUE, SLOT, TokenLayout


class Queues(NamedTuple):
    """The choices of each expert in the order in which it takes them, for each group of competing tokens.

    First choices go before second ones, and earlier tokens before later ones. The queue of an expert and a group has
    the number `expert * groups + group`.

    Attributes:
        order: the choices, sorted by queue.
        starts: where each queue begins in this order.
        sizes: how many choices each queue has.
        queue: the queue of each choice, {tokens, CHOICE}.
        place: the place of each choice in its queue, counting those of all devices.
    """

    order: NamedArray
    starts: NamedArray
    sizes: NamedArray
    queue: NamedArray
    place: NamedArray


def build_queues(layout: TokenLayout, chosen: NamedArray, Experts: Axis) -> Queues:
    """Put choices into the queues of experts; `chosen` has the expert of each choice, {tokens, CHOICE}."""
    names = (*layout.groups, CHOICE, *layout.competing)
    turned = chosen.rearrange(names)
    flat = turned.flatten_axes(names, SLOT)
    # One sort for all groups: the queues of an expert follow one another.
    groups = math.prod(turned.axis_size(name) for name in layout.groups)
    (Slot,) = flat.axes
    per_group = Slot.size // max(groups, 1)
    queue = flat * groups + arange(Slot) // max(per_group, 1)

    order = argsort(queue, SLOT)
    sizes = bincount(queue, Axis(QUEUE, Experts.size * groups))
    starts = cumsum(sizes, QUEUE) - sizes
    place = argsort(order, SLOT) - take(starts, QUEUE, queue, mode="clip")
    if layout.queued:
        place = place + _count_earlier_choices(layout, turned, queue, sizes.size)

    def by_token(x: NamedArray) -> NamedArray:
        return x.unflatten_axis(SLOT, turned.axes).rearrange(chosen.names)

    return Queues(order, starts, sizes, by_token(queue), by_token(place))


def _count_earlier_choices(
    layout: TokenLayout, turned: NamedArray, queue: NamedArray, queues: int
) -> NamedArray:
    """Count, for each choice, the choices of other devices that precede it in its queue.

    Devices exchange how many choices they have in each stretch of consecutive tokens.
    """
    split = [name for name in layout.competing if name in layout.queued]
    at = layout.competing.index(split[-1])
    outer, inner = layout.competing[:at], layout.competing[at:]
    length = math.prod(turned.axis_size(name) for name in inner)
    shape = [turned.axis_size(name) for name in (CHOICE, *outer)]
    stretches = math.prod(shape)

    # A stretch is a run of choices that one device has without a gap. Each device counts its own stretches.
    stretch = (arange(queue.axes[0]) // length) % stretches
    counts = bincount(queue * stretches + stretch, Axis(QUEUE, queues * stretches))
    own = counts.array.reshape(queues, *shape, 1)

    entries = [(), (), *(layout.queued.get(name, ()) for name in outer), layout.queued[split[-1]]]
    whole = [size * layout.count(entry) for size, entry in zip(own.shape, entries, strict=True)]
    starts = [
        lax.axis_index(entry) * size if entry else 0
        for size, entry in zip(own.shape, entries, strict=True)
    ]
    axes = tuple(axis for entry in entries for axis in entry)
    # Counts are small: a sum of arrays with zeros elsewhere gathers them in one collective over all mesh axes.
    zeros = tracing.varying(jnp.zeros(whole, own.dtype), tracing.varying_over(own))
    everywhere = lax.psum(lax.dynamic_update_slice(zeros, own, starts), axes)
    mine = lax.dynamic_slice(_count_earlier_stretches(everywhere), starts, own.shape)
    others = named((mine - _count_earlier_stretches(own)).ravel(), QUEUE)
    return take(others, QUEUE, queue * stretches + stretch, mode="clip")


def _count_earlier_stretches(counts: jax.Array) -> jax.Array:
    """Count the choices that precede each stretch in its queue, which is the first axis."""
    flat = counts.reshape(counts.shape[0], -1)
    return (jnp.cumsum(flat, 1) - flat).reshape(counts.shape)
