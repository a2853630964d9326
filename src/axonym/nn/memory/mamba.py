"""Mamba-2: a memory that decays by one number for each head, and to which values are added."""

from typing import Self

import equinox as eqx
import jax

from ...array import NamedArray
from ...axis import Axis, AxisSelector, AxisSpec
from ...base.dtypes import widen
from ...create import ones
from ..activation import silu
from ..initializer import Initializer
from ..norm import RmsNorm
from ..settings import check_int
from ..weights import read_vector
from .chunks import Writes
from .layer import MemoryLayer, make_parts

__all__ = ["Mamba2"]


class Mamba2(MemoryLayer):
    """A state-space layer whose decay, input and output depend on the input, with a state for each head.

    A state S has axes of state and of a head's values. At each position, S' = a S + dt B v' and y = C' S' + d v, where
    dt and a = exp(-dt rate) are numbers for each head. The result is gated and then normalised. B, C and v are
    convolved over the last few positions. They are called keys, queries and values, as in attention.

    A call computes chunks of positions at once; `step` computes one position, for decoding, with the same results.
    States are float32 or wider.

    Attributes:
        query: C, from the input to the axes of key heads and of the state.
        key: B, the same.
        value: from the input to the axes of heads and a head's values.
        gate: the same for the gate.
        forget: from the input to heads, for dt.
        convs: the convolutions of C, B and values, each with `weight`, axes {tap, ...}, and `bias`.
        decay: `log_rate` and the `bias` of dt, axes of heads.
        norm: the norm of the result, over heads and values.
        out: from the axes of heads and values back.
        axis: the axis to run along.
        chunk: the number of positions in a chunk.
        skip: d, axes of heads.

    Examples:
        >>> Time, Embed, Heads, State, HeadDim = axn.make_axes(time=5, embed=8, heads=2, state=4, head_dim=3)
        >>> layer = axn.nn.Mamba2.init("time", Embed, Heads, State, HeadDim, key=jax.random.key(0))
        >>> y, (state, recent) = layer(axn.ones((Time, Embed)))
        >>> y.shape, state.shape
        ({'time': 5, 'embed': 8}, {'heads': 2, 'state': 4, 'head_dim': 3})

    Reference:
        Dao, Gu (2024), Transformers are SSMs, sections 6 and 7.
    """

    skip: NamedArray = eqx.field(kw_only=True)

    @classmethod
    def init(
        cls,
        axis: AxisSelector,
        Embed: AxisSpec,
        Heads: AxisSpec,
        State: Axis,
        HeadDim: Axis,
        *,
        key: jax.Array,
        KeyHeads: AxisSpec = (),
        window: int = 4,
        chunk: int = 64,
        eps: float = 1e-5,
        initializer: Initializer | None = None,
    ) -> Self:
        """Make a layer.

        Args:
            axis: the axis to run along.
            Embed: the axes of the input, and of the result.
            Heads: the axes of heads.
            State: the axis of the state.
            HeadDim: the features of values of a head.
            key: for the weights.
            KeyHeads: those of `Heads` that B and C have, which others share; by default none, so all heads share them.
            window: how many positions the convolutions see.
            chunk: the number of positions in a chunk.
            eps: see `RmsNorm.init`.
            initializer: see `Linear.init`.

        Raises:
            AxisNotFoundError: if an axis of `KeyHeads` is not among `Heads`.
            ArgumentError: if `window` or `chunk` is not a positive int.
        """
        function = "Mamba2.init"
        parts = make_parts(
            function, Embed, Heads, KeyHeads, State, HeadDim, window, True, initializer, key
        )
        return cls(
            **parts,
            norm=RmsNorm.init(parts["value"].Out, eps, use_bias=False),
            axis=axis,
            chunk=check_int(function, "chunk", chunk, 1),
            skip=ones(parts["decay"].axis),
        )

    def _prepare(
        self, x: NamedArray, query: NamedArray, keys: NamedArray, values: NamedArray
    ) -> Writes:
        step, log_decay = self.decay(self.forget(x))
        return Writes(query, keys, values * step, log_decay, None)

    def _gate(self, x: NamedArray, read: NamedArray, values: NamedArray) -> NamedArray:
        skipped = values * widen(read_vector(self.skip))
        return self.norm((read + skipped) * silu(widen(self.gate(x))))
