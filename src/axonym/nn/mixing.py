"""Internal. Layers that mix tokens, of several kinds in one decoder: within a sequence, or with a cache.

A decoder has layers of attention, of latent attention, or with a memory. Its blocks call `mix(layer, x, rotate)`, which
is a `Within` for all tokens of a sequence, and a `Cached` for the next ones. Other layers are called with a function
that attends, `layer(x, rotate, attend)`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax

from ..array import NamedArray, is_named_array
from ..axis import Axis
from ..create import zeros
from ..errors import OperandError, message
from ..ops.roll import roll
from ..ops.where import where
from ..partitioning.shard import auto_sharded
from .attention.attention import dot_product_attention
from .attention.cache.cache import KVCache
from .attention.latent import LatentAttention
from .attention.masks.mask import AttentionMask, segments
from .attention.positions.rotary import RotaryTable
from .memory.layer import MemoryLayer


class Within(eqx.Module):
    """Mixing within a sequence. A pipeline cuts the mask, as it is no closure.

    Attributes:
        seen: the tokens that attention sees.
        begins: at which positions memories begin anew; None for the first one.
    """

    seen: AttentionMask
    begins: NamedArray | None

    def __call__(self, layer: Any, x: NamedArray, rotate: RotaryTable | None) -> NamedArray:
        """Apply a layer that mixes tokens."""
        if isinstance(layer, MemoryLayer):
            return layer(x, begins=self.begins)[0]
        if isinstance(layer, LatentAttention):
            return layer(x, self.seen, rotate=rotate)
        y: NamedArray = layer(x, rotate, self.attend)
        return y

    def attend(
        self, q: NamedArray, k: NamedArray, v: NamedArray, mask: AttentionMask, **options: Any
    ) -> NamedArray:
        """Attend to the keys of the same sequence."""
        k, v = k.rename({"pos": "pos.key"}), v.rename({"pos": "pos.key"})
        seen = self.seen & mask
        return dot_product_attention("pos", "pos.key", "head_dim", q, k, v, seen, **options)


class Cache(KVCache):
    """The keys and values of layers with attention, and the states of those with a memory.

    Attributes:
        memories: a state of a `MemoryLayer` with a further axis of layers, or None.
    """

    memories: Any = None


@dataclasses.dataclass
class Cached:
    """Mixing of the next tokens with those in a cache, which is then extended.

    Attributes:
        cache: that of all layers.
        Pos: the axis of the tokens; None for one token without it.
        count: how many tokens are real; see `KVCache.extend`.
        real: which tokens are real, if there are several.
        layer: the axis of layers, and the number of this one among those of its kind.
    """

    cache: Any
    Pos: Axis | None
    count: NamedArray | None
    real: NamedArray | None
    layer: tuple[str, NamedArray]

    def __call__(self, layer: Any, x: NamedArray, rotate: RotaryTable | None) -> NamedArray:
        """Apply a layer that mixes tokens."""
        if isinstance(layer, MemoryLayer):
            return self.remember(layer, x)
        y: NamedArray
        if isinstance(layer, LatentAttention):
            options: Any = {"rotate": rotate, "count": self.count, "layer": self.layer}
            y, self.cache = layer.extend(x, self.cache, **options)
            return y
        y = layer(x, rotate, self.attend)
        return y

    def attend(self, *heads: NamedArray, **options: Any) -> NamedArray:
        """Attend to the keys of the cache."""
        options |= {"count": self.count, "layer": self.layer}
        y: NamedArray
        y, self.cache = self.cache.attend(self.Pos, "head_dim", *heads, **options)
        return y

    def remember(self, layer: MemoryLayer, x: NamedArray) -> NamedArray:
        """Read and write the memory of a layer; a sequence without a real token leaves its own as it is."""
        memories, place = self.cache.memories, {self.layer[0]: self.layer[1]}
        old = _map_arrays(lambda whole: whole[place], memories)
        if self.Pos is None:
            y, new = layer.step(x, old)
            if self.count is not None:
                is_real = self.count > 0
                new = _map_arrays(lambda one, other: where(is_real, one, other), new, old)
        else:
            y, new = layer(x, old, where=self.real)

        def write(whole: NamedArray, one: NamedArray) -> NamedArray:
            return whole.at[place].set(one.astype(whole.dtype))

        self.cache = dataclasses.replace(self.cache, memories=_map_arrays(write, memories, new))
        return y


def start_memories(find_layer: Callable[[], MemoryLayer], x: NamedArray, Layers: Axis) -> Any:
    """Return the states of several layers with a memory before the first token: zeros.

    Args:
        find_layer: returns one of the layers; it is not computed.
        x: the input of one token, with an axis of positions.
        Layers: the axis of layers.
    """
    state = jax.eval_shape(lambda: find_layer()(x)[1])
    return auto_sharded(_map_arrays(lambda one: zeros((Layers, *one.axes), one.dtype), state))


def find_begins(mask: AttentionMask | None) -> NamedArray | None:
    """Return at which positions memories begin anew, by a mask of segments.

    Raises:
        OperandError: if the mask has other conditions, which a memory cannot meet.
    """
    if mask is None:
        return None
    ids = mask.segment_ids[0][0] if mask.segment_ids else None
    form: Any = jax.tree.structure(mask)
    if ids is None or form != jax.tree.structure(segments(ids)):
        problem = "layers with a memory see all tokens of their segment, and meet no other mask"
        raise OperandError(message("mask", problem, hint="pass nn.segments(ids), or no mask"))
    return ids != roll(ids, 1, "pos")


def _map_arrays(fn: Callable[..., Any], *trees: Any) -> Any:
    return jax.tree.map(fn, *trees, is_leaf=is_named_array)
