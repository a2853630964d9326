"""The gated delta rule: a memory that decays, and replaces what a key reads by a new value."""

import math
from typing import Self

import equinox as eqx
import jax

from ...array import NamedArray
from ...axis import Axis, AxisSelector, AxisSpec, sized
from ...base.dtypes import widen
from ...ops.elementwise import rsqrt, square
from ..activation import sigmoid, silu
from ..initializer import Initializer
from ..linear import Linear
from ..norm import RmsNorm
from ..settings import check_int
from .chunks import Writes
from .layer import MemoryLayer, make_parts

__all__ = ["GatedDeltaNet"]


class GatedDeltaNet(MemoryLayer):
    """Write values into a memory of each head by the delta rule, with a decay, and read them with queries.

    A memory S maps a key to a value. At each position, S' = a S + b k (v - k' a S)': it decays by a, and a part b of
    what the key reads is replaced by the value. The result is q' S', normalised and gated. Queries, keys and values are
    convolved over the last few positions; queries and keys have length one.

    A call computes chunks of positions at once; `step` computes one position, for decoding, with the same results.
    Memories are float32 or wider.

    Attributes:
        query: from the input to the axes of key heads and features.
        key: the same for keys.
        value: from the input to the axes of heads and a head's values.
        gate: the same for the gate.
        forget: from the input to heads, for the decay a.
        convs: the convolutions of queries, keys and values, each with `weight`, axes {tap, ...}.
        decay: `log_rate` and `bias`, axes of heads.
        norm: the norm of a head's result.
        out: from the axes of heads and values back.
        axis: the axis to run along.
        chunk: the number of positions in a chunk.
        strength: from the input to heads, for b.

    Examples:
        >>> Time, Embed, Heads, KeyDim = axn.make_axes(time=5, embed=8, heads=2, key_dim=4)
        >>> layer = axn.nn.GatedDeltaNet.init("time", Embed, Heads, KeyDim, key=jax.random.key(0))
        >>> y, (memory, recent) = layer(axn.ones((Time, Embed)))
        >>> y.shape, memory.shape
        ({'time': 5, 'embed': 8}, {'heads': 2, 'key_dim': 4, 'value_dim': 4})

    Reference:
        Yang, Kautz, Hatamizadeh (2025), Gated delta networks: improving Mamba2 with delta rule, eq. 10.
    """

    strength: Linear = eqx.field(kw_only=True)

    @classmethod
    def init(
        cls,
        axis: AxisSelector,
        Embed: AxisSpec,
        Heads: AxisSpec,
        KeyDim: Axis,
        ValueDim: Axis | None = None,
        *,
        key: jax.Array,
        KeyHeads: AxisSpec | None = None,
        window: int = 4,
        chunk: int = 64,
        eps: float = 1e-6,
        initializer: Initializer | None = None,
    ) -> Self:
        """Make a layer.

        Args:
            axis: the axis to run along.
            Embed: the axes of the input, and of the result.
            Heads: the axes of heads.
            KeyDim: the features of queries and keys of a head.
            ValueDim: the features of values of a head; by default `value_dim`, of the size of `KeyDim`.
            key: for the weights.
            KeyHeads: those of `Heads` that queries and keys have; by default all of them.
            window: how many positions the convolutions see.
            chunk: the number of positions in a chunk.
            eps: see `RmsNorm.init`.
            initializer: see `Linear.init`.

        Raises:
            AxisNotFoundError: if an axis of `KeyHeads` is not among `Heads`.
            ArgumentError: if `window` or `chunk` is not a positive int.
        """
        function = "GatedDeltaNet.init"
        k_parts, k_strength = jax.random.split(key)
        Values = ValueDim or Axis("value_dim", sized(KeyDim, function).size)
        parts = make_parts(
            function, Embed, Heads, KeyHeads, KeyDim, Values, window, False, initializer, k_parts
        )
        heads = parts["decay"].axis
        return cls(
            **parts,
            norm=RmsNorm.init(Values, eps, use_bias=False),
            axis=axis,
            chunk=check_int(function, "chunk", chunk, 1),
            strength=Linear.init(
                Embed, heads, key=k_strength, use_bias=False, initializer=initializer
            ),
        )

    def _prepare(
        self, x: NamedArray, query: NamedArray, keys: NamedArray, values: NamedArray
    ) -> Writes:
        KeyDim = self.query.Out[-1]
        query, keys = (y * rsqrt(square(y).sum(KeyDim) + 1e-6) for y in (query, keys))
        _, log_decay = self.decay(self.forget(x))
        strength = sigmoid(widen(self.strength(x)))
        return Writes(query / math.sqrt(KeyDim.size), keys, values, log_decay, strength)

    def _gate(self, x: NamedArray, read: NamedArray, values: NamedArray) -> NamedArray:
        return self.norm(read) * silu(widen(self.gate(x)))
