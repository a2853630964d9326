"""What one device does with its tokens and its experts."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

from jax import lax

from ...array import NamedArray, named
from ...faults import narrow_sums
from ...layout.assignment import Entry
from ...ops.logical import logical_and
from ...ops.where import where
from ..settings import activated
from .blocks import by_blocks
from .layout import TokenLayout
from .linear import MoELinear
from .queues import queues_of
from .sorting import by_sorting

Experts = tuple[MoELinear | None, MoELinear, MoELinear]


def on_device(
    layout: TokenLayout,
    activation: Callable[[NamedArray], NamedArray],
    tokens_and_choices: tuple[NamedArray, NamedArray, NamedArray],
    experts: Experts,
    *,
    adds_up: bool = True,
) -> tuple[NamedArray, NamedArray | None]:
    """Apply experts to the tokens of one device; return which choices were dropped, if experts have a capacity.

    Args:
        layout: the layout.
        activation: the function of the hidden axis, or of its gate.
        tokens_and_choices: tokens, and the weights and the experts of their choices.
        experts: the layers of the experts.
        adds_up: whether to add up the results of devices that have the same tokens.
    """
    x, gates, chosen = tokens_and_choices
    All = experts[1].Experts
    Local = layout.local_experts(All)
    apply = partial(_applied, activation, layout.hidden)
    number = layout.numbered(chosen, All)

    dropped = None
    if layout.capacity is None:
        y = by_sorting(layout, apply, experts, (x, gates, number), Local)
    else:
        queues = queues_of(layout, chosen, All)
        # A choice of no expert, at a masked position, has no place.
        dropped = logical_and(queues.place >= layout.capacity, chosen < All.size)
        if layout.queued:
            nowhere = layout.count(layout.shared) * Local.size
            number = where(dropped, nowhere, number)
            y = by_sorting(layout, apply, experts, (x, gates, number), Local)
        else:
            y = by_blocks(layout, partial(apply, experts), (x, gates, number), queues, All)

    to_sum = (*layout.alone, *layout.hidden)
    if to_sum and adds_up:
        added = narrow_sums.reduce_in_float32(lambda array: lax.psum(array, to_sum), y.array)
        y = named(added, y.names)
    return y, dropped


def _applied(
    activation: Callable[[NamedArray], NamedArray],
    hidden: Entry,
    experts: Experts,
    x: NamedArray,
    sizes: NamedArray | None = None,
) -> NamedArray:
    """Apply experts, of which this device may have a part of the hidden axis; the first part has the bias."""
    gate, up, down = experts
    if hidden and down.bias is not None:
        own = where(lax.axis_index(hidden) == 0, down.bias, 0)
        down = dataclasses.replace(down, bias=own)
    return down(_hidden(activation, gate, up, x, sizes), sizes)


def is_costly(primitive: Any, *_: object, **__: object) -> bool:
    """Return whether the backward pass keeps a result: all but cheap ones and gathered weights."""
    return primitive.name in ("all_to_all", "dot_general", "ragged_dot_general", "sort")


def _hidden(
    activation: Callable[[NamedArray], NamedArray],
    gate: MoELinear | None,
    up: MoELinear,
    x: NamedArray,
    sizes: NamedArray | None = None,
) -> NamedArray:
    apply = partial(activated, "MixtureOfExperts", activation)
    if gate is None:
        return apply(up(x, sizes))
    return apply(gate(x, sizes)) * up(x, sizes)
