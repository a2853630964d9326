"""How other libraries store the arrays of layers: the axes of each dimension."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

from ..axis import AxisSelection, spec
from ..nn.attention.positions.position import PositionEmbedding
from ..nn.batch_norm import BatchNorm, BatchNormState
from ..nn.conv import ConvTranspose
from ..nn.embedding import Embedding
from ..nn.group_norm import GroupNorm
from ..nn.linear import Linear
from ..nn.memory.layer import Decay
from ..nn.memory.short_conv import TAP, ShortConv
from ..nn.moe.linear import MoELinear
from ..nn.norm import LayerNorm, RmsNorm
from ..nn.weights import find_stored_outputs

__all__ = ["TORCH", "Layout", "Stored", "in_first", "out_first"]


@dataclasses.dataclass(frozen=True)
class Stored:
    """How a state dict stores an array.

    Axes of the array that are not listed come first, each as a separate dimension.

    Attributes:
        dims: the axes of each dimension, or their names; the last of several axes varies fastest.
        flipped: the names of axes that are stored in reverse.
        split: axes to split in two first, as in `{"features": ("groups", 2)}`: "groups" of size 2, and the rest of
            "features" inside each.

    Examples:
        >>> layer = axn.nn.Linear.init(axn.Axis("embed", 2), axn.Axis("mlp", 3), key=jax.random.key(0))
        >>> layouts = {axn.nn.Linear: lambda layer: {"weight": axn.state_dict.Stored(("mlp", "embed"))}}
        >>> axn.state_dict.to_state_dict(layer, layouts=layouts).spec("weight").shape
        (3, 2)
    """

    dims: Sequence[AxisSelection]
    flipped: Sequence[str] = ()
    split: Mapping[str, tuple[str, int]] = dataclasses.field(default_factory=dict)


Layout: TypeAlias = Callable[[Any], Mapping[str, Stored]]
"""A function of a module that returns how its arrays are stored, by field; others are stored as they are."""


def out_first(layer: Linear | MoELinear) -> dict[str, Stored]:
    """Return the layout of linear layers in torch: a weight {Out, In}, each flattened to one dimension.

    Examples:
        >>> layer = axn.nn.Linear.init(axn.Axis("embed", 2), axn.Axis("mlp", 3), key=jax.random.key(0))
        >>> axn.state_dict.out_first(layer)["weight"].dims
        (('mlp',), (Axis(name='embed', size=2),))
    """
    outputs = _name_outputs(layer)
    return {"weight": Stored((outputs, spec(layer.In))), "bias": Stored((layer.Out,))}


def in_first(layer: Linear | MoELinear) -> dict[str, Stored]:
    """Return the layout of `Conv1D` in Hugging Face's GPT-2: a weight {In, Out}, each flattened to one dimension.

    Examples:
        >>> layer = axn.nn.Linear.init(axn.Axis("embed", 2), axn.Axis("mlp", 3), key=jax.random.key(0))
        >>> axn.state_dict.in_first(layer)["weight"].dims
        ((Axis(name='embed', size=2),), ('mlp',))
    """
    outputs = _name_outputs(layer)
    return {"weight": Stored((spec(layer.In), outputs)), "bias": Stored((layer.Out,))}


def _name_outputs(layer: Linear | MoELinear) -> tuple[str, ...]:
    """Return the names that the output axes have in a weight."""
    return tuple(axis.name for axis in find_stored_outputs(spec(layer.In), spec(layer.Out)))


def _store_table(layer: Embedding) -> dict[str, Stored]:
    return {"weight": Stored((layer.Vocab, layer.Embed))}


def _store_positions(layer: PositionEmbedding) -> dict[str, Stored]:
    return {"weight": Stored((layer.Pos, layer.Embed))}


def _store_norm(layer: LayerNorm | RmsNorm | GroupNorm | BatchNorm) -> dict[str, Stored]:
    return {"weight": Stored((layer.axis,)), "bias": Stored((layer.axis,))}


def _store_statistics(state: BatchNormState) -> dict[str, Stored]:
    return {"mean": Stored((state.mean.names,)), "var": Stored((state.var.names,))}


def _transpose_kernel(layer: ConvTranspose) -> dict[str, Stored]:
    """Return the layout of transposed convolutions in torch: a flipped kernel, and groups along the inputs."""
    # A layer in a Stacked has leading axes, too; its own are the last ones.
    out, inputs = layer.weight.names[-len(layer.kernel_size) - 2 : -len(layer.kernel_size)]
    kernel, groups = layer.weight.names[-len(layer.kernel_size) :], f"groups of {out}"
    return {
        "weight": Stored(((groups, inputs), out, *kernel), kernel, {out: (groups, layer.groups)})
    }


def _store_short_conv(layer: ShortConv) -> dict[str, Stored]:
    """Return the layout of `Conv1d` with as many groups as channels: each sees one, itself."""
    return {"weight": Stored((layer.axis, (), TAP)), "bias": Stored((layer.axis,))}


def _store_decay(layer: Decay) -> dict[str, Stored]:
    return {"log_rate": Stored((layer.axis,)), "bias": Stored((layer.axis,))}


TORCH: Mapping[type, Layout] = MappingProxyType(
    {
        Linear: out_first,
        MoELinear: out_first,
        Embedding: _store_table,
        PositionEmbedding: _store_positions,
        LayerNorm: _store_norm,
        RmsNorm: _store_norm,
        GroupNorm: _store_norm,
        BatchNorm: _store_norm,
        BatchNormState: _store_statistics,
        ConvTranspose: _transpose_kernel,
        ShortConv: _store_short_conv,
        Decay: _store_decay,
    }
)
"""The layouts of torch, by type of module. Others are stored as they are, such as the weight of `Conv`."""
