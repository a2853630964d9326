"""Internal. Experts that take a fixed number of tokens each.

`device` calls it where experts have a capacity and the tokens that compete for it are on one device. All shapes are
known, so that the products of all experts are one.
"""

from collections.abc import Callable

from ...array import NamedArray
from ...axis import Axis
from ...create import arange
from ...names import plans
from ...ops.contract import dot
from ...ops.index import take
from ...ops.logical import logical_and
from ...ops.where import where
from .layout import CHOICE, DEVICE, GROUP, PLACE, QUEUE, ROW, SLOT, TOKEN, TokenLayout
from .queues import Queues

Apply = Callable[[NamedArray], NamedArray]


def apply_in_blocks(
    layout: TokenLayout,
    apply: Apply,
    inputs: tuple[NamedArray, NamedArray, NamedArray],
    queues: Queues,
    Experts: Axis,
) -> NamedArray:
    """Give each expert a block of tokens, from each device and each group of tokens.

    Args:
        layout: the layout, in which competing tokens are on one device.
        apply: the function of the experts, of an input with the axis of those of one device.
        inputs: the tokens of the device, the weights of their choices, and the number of the expert of each choice,
            which is beyond the last one for choices of no expert within reach.
        queues: the queues of the experts.
        Experts: the axis of all experts.
    """
    x, gates, number = inputs
    embed = plans.without(x.names, layout.tokens)
    tokens = *layout.groups, *layout.competing
    flat = x.rearrange((*tokens, *embed)).flatten_axes(tokens, TOKEN)
    count = flat.axis_size(TOKEN)
    Place, Group = Axis(PLACE, layout.capacity or 0), Axis(GROUP, queues.sizes.size // Experts.size)
    competing = count // max(Group.size, 1)

    # The queues of the experts within reach.
    at = layout.list_reached(Experts) * Group.size
    at = at.broadcast_axis(Group) + arange(Group)
    starts, sizes = (take(each, QUEUE, at, mode="clip") for each in (queues.starts, queues.sizes))
    place = arange(Place).broadcast_axis(starts.axes)
    choice = take(queues.order, SLOT, starts + place, mode="clip")
    # Choices are in the order of groups, then of choices, then of tokens.
    token = choice // (competing * gates.axis_size(CHOICE)) * competing + choice % competing
    token = where(place < sizes, token, count)

    # Places without a token get zeros: what experts make of them is not read.
    order = (DEVICE, Experts.name, GROUP, PLACE)
    rows = take(flat, TOKEN, token, mode="fill", fill_value=0).rearrange((*order, ...))
    results = apply(layout.exchange(rows)).rearrange(rows.names)
    home = layout.exchange(results).flatten_axes(order, ROW)

    own = number * Group.size + queues.queue % Group.size
    is_taken = logical_and(queues.place < Place.size, own < starts.size)
    row = where(is_taken, own * Place.size + queues.place, home.axis_size(ROW))
    return dot(take(home, ROW, row, mode="fill", fill_value=0), gates, axis=CHOICE)
