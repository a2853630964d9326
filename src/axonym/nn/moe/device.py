"""Internal. Apply the experts of one device to its own tokens and to tokens from other devices.

The mixture runs it on all devices in a `shard_map`, or as it is on one. It chooses how experts are computed: in blocks
of a fixed size, or sorted by expert. It knows nothing of routers.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from jax import lax

from ...array import NamedArray, named
from ...create import arange
from ...faults import narrow_sums
from ...ops.logical import logical_and
from ...ops.where import where
from ..settings import apply_activation
from .blocks import apply_in_blocks
from .layout import TokenLayout
from .linear import MoELinear
from .queues import build_queues
from .sorting import apply_sorted

Experts = tuple[MoELinear | None, MoELinear, MoELinear]
# Of the hidden axis, or of its gate; and of what the gate multiplies, if it is changed first.
Activations: TypeAlias = tuple[
    Callable[[NamedArray], NamedArray], Callable[[NamedArray], NamedArray] | None
]


def apply_on_device(
    layout: TokenLayout,
    activations: Activations,
    tokens_and_choices: tuple[NamedArray, NamedArray, NamedArray],
    experts: Experts,
    *,
    adds_up: bool = True,
) -> tuple[NamedArray, NamedArray | None]:
    """Apply experts to the tokens of one device; return which choices were dropped, if experts have a capacity.

    Args:
        layout: the layout.
        activations: the functions of the hidden axis.
        tokens_and_choices: tokens, and the weights and the experts of their choices.
        experts: the layers of the experts.
        adds_up: whether to add up the results of devices that have the same tokens.
    """
    x, gates, chosen = tokens_and_choices
    All = experts[1].Experts
    Local = layout.local_experts(All)
    apply = partial(_apply_experts, activations, layout)
    number = layout.number_choices(chosen, All)

    dropped = None
    if layout.capacity is None:
        y = apply_sorted(layout, apply, experts, (x, gates, number), Local)
    else:
        queues = build_queues(layout, chosen, All)
        # A choice of no expert, at a masked position, has no place.
        dropped = logical_and(queues.place >= layout.capacity, chosen < All.size)
        if layout.queued:
            # The blocks of several devices could not tell which of their choices fit: only those are sent.
            nowhere = layout.count(layout.shared) * Local.size
            number = where(dropped, nowhere, number)
            y = apply_sorted(layout, apply, experts, (x, gates, number), Local)
        else:
            y = apply_in_blocks(layout, partial(apply, experts), (x, gates, number), queues, All)

    # Devices with the same tokens have applied different experts, or different parts of the hidden axis.
    to_sum = (*layout.alone, *layout.hidden)
    if to_sum and adds_up:
        added = narrow_sums.reduce_in_float32(lambda array: lax.psum(array, to_sum), y.array)
        y = named(added, y.names)
    return y, dropped


def _apply_experts(
    activations: Activations,
    layout: TokenLayout,
    experts: Experts,
    x: NamedArray,
    sizes: NamedArray | None = None,
) -> NamedArray:
    """Apply experts, of which this device may have a part of the hidden axis; the first part has the bias."""
    gate, up, down = experts
    if layout.hidden and down.bias is not None:
        own = where(lax.axis_index(layout.hidden) == 0, down.bias, 0)
        down = dataclasses.replace(down, bias=own)
    hidden = _compute_hidden(activations, gate, up, x, sizes)
    if layout.hidden_size is not None:
        Part = hidden.resolve_axis(down.In.name)
        before = lax.axis_index(layout.hidden) * Part.size if layout.hidden else 0
        hidden = where(arange(Part) + before < layout.hidden_size, hidden, 0)
    return down(hidden, sizes)


def is_costly(primitive: Any, *_: object, **__: object) -> bool:
    """Return whether the backward pass keeps a result: it keeps all but cheap results and gathered weights."""
    return primitive.name in ("all_to_all", "dot_general", "ragged_dot_general", "sort")


def _compute_hidden(
    activations: Activations,
    gate: MoELinear | None,
    up: MoELinear,
    x: NamedArray,
    sizes: NamedArray | None = None,
) -> NamedArray:
    apply = partial(apply_activation, "MixtureOfExperts")
    activation, of_up = activations
    if gate is None:
        return apply(activation, up(x, sizes))
    raised = up(x, sizes)
    gated = apply(activation, gate(x, sizes))
    return gated * (raised if of_up is None else apply(of_up, raised))
