"""Position embeddings to add to token embeddings, and attention biases (ALiBi); for rotary embeddings, see `rotary`.

Positions are given as an axis, along which they count from zero, or as an array, for packed sequences and decoding.
"""

import math
from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike

from ....array import NamedArray
from ....axis import Axis, AxisSpec, shown, sized
from ....base.dtypes import at_least_float32
from ....engine import kernels
from ....engine.core import Core, facts, wrap
from ....errors import ArgumentError, AxisClashError, AxisSizeError, message
from ....ops.index import index
from ....ops.shape import rename
from ....partitioning.shard import auto_sharded
from ...embedding import Embedding
from ...initializer import Initializer
from ...inputs import check_positions, number_positions
from ...layer import Layer

__all__ = ["PositionEmbedding", "alibi_attention_bias", "sinusoidal_positions"]


def sinusoidal_positions(
    positions: Axis | NamedArray,
    Embed: Axis,
    *,
    theta: float = 10000.0,
    interleaved: bool = True,
    dtype: DTypeLike = jnp.float32,
) -> NamedArray:
    """Return sines and cosines of positions at falling frequencies, to add to embeddings.

    Args:
        positions: an axis, along which they count from zero; or the positions, axes {...}.
        Embed: the axis of features, of even size.
        theta: the base of the frequencies.
        interleaved: whether each sine is followed by its cosine, as in the paper; otherwise all sines come first.
        dtype: the dtype of the result; angles are computed in float32 or wider.

    Returns:
        Axes {..., Embed}.

    Raises:
        ArgumentError: if `Embed` has an odd size.
        AxisClashError: if `positions` has `Embed`.

    Examples:
        >>> Pos, Embed = axn.make_axes(pos=3, embed=4)
        >>> axn.nn.sinusoidal_positions(Pos, Embed)["pos", 0].tolist()
        [0.0, 1.0, 0.0, 1.0]

    Reference:
        Vaswani et al. (2017), Attention is all you need, section 3.5.
    """
    function = "sinusoidal_positions"
    counted, Embed = number_positions(function, positions), sized(Embed, function)
    if Embed.size % 2:
        problem = f"{shown(Embed)} must have an even size: each sine has a cosine"
        raise ArgumentError(message(function, problem))
    if Embed.name in counted.names:
        problem = f"positions already have axis {Embed.name!r}"
        raise AxisClashError(message(function, problem, f"positions have: {facts(counted)}"))
    computed = at_least_float32(dtype)
    frequencies = theta ** -(np.arange(0, Embed.size, 2) / Embed.size)
    frequencies = kernels.constant(
        frequencies.astype(computed).reshape(*[1] * counted.array.ndim, -1)
    )
    angles = counted.array[..., None].astype(computed) * frequencies
    # Beside each other, or all sines before all cosines: the two orders that programs use.
    pairs = jnp.stack([jnp.sin(angles), jnp.cos(angles)], -1 if interleaved else -2)
    flat = lax.reshape(pairs, (*counted.array.shape, Embed.size)).astype(dtype)
    return auto_sharded(wrap(counted, flat, (*counted.names, Embed.name)))


class PositionEmbedding(Layer):
    """Look up learned vectors over `Embed` for positions, to add to embeddings.

    Attributes:
        weight: axes {Pos, Embed}.
        Pos: the axis of positions, as long as the longest sequence.
        Embed: the axes of a vector.

    Examples:
        >>> Pos, Embed = axn.make_axes(pos=16, embed=4)
        >>> table = axn.nn.PositionEmbedding.init(Pos, Embed, key=jax.random.key(0))
        >>> table(Pos.resize(3)).shape
        {'pos': 3, 'embed': 4}
    """

    weight: NamedArray
    Pos: Axis = eqx.field(static=True)
    Embed: tuple[Axis, ...] = eqx.field(static=True)

    @classmethod
    def init(
        cls,
        Pos: Axis,
        Embed: AxisSpec,
        *,
        key: jax.Array,
        init_scale: float = 1.0,
        initializer: Initializer | None = None,
    ) -> Self:
        """Make a table of one vector for each position.

        Args:
            Pos: the axis of positions, as long as the longest sequence.
            Embed: the axes of a vector.
            key: for the vectors.
            init_scale: see `Embedding.init`.
            initializer: see `Embedding.init`.

        Examples:
            >>> table = axn.nn.PositionEmbedding.init(*axn.make_axes(pos=16, embed=4), key=jax.random.key(0))
            >>> table.weight.shape
            {'pos': 16, 'embed': 4}
        """
        table = Embedding.init(
            sized(Pos, "PositionEmbedding.init"),
            Embed,
            key=key,
            init_scale=init_scale,
            initializer=initializer,
        )
        return cls(table.weight, table.Vocab, table.Embed)

    def __call__(self, positions: Axis | NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        """Return the vectors of positions.

        Args:
            positions: an axis, for the first positions; or integers, axes {...}. Those beyond the table give NaN.
            key: not used; every layer takes one.

        Returns:
            Axes {..., Embed}.

        Raises:
            AxisSizeError: if an axis is longer than the table.
            AxisClashError: if `positions` has an axis of `Embed`.

        Examples:
            >>> table = axn.nn.PositionEmbedding.init(*axn.make_axes(pos=16, embed=4), key=jax.random.key(0))
            >>> table(axn.named([[0, 1], [5, 6]], ("batch", "pos"))).shape
            {'batch': 2, 'pos': 2, 'embed': 4}
        """
        if isinstance(positions, Core):
            self._check_ids(positions)
            return Embedding(self.weight, self.Pos, self.Embed)(positions)
        check_positions("PositionEmbedding", positions)
        asked = sized(positions, "PositionEmbedding")
        if asked.size > self.Pos.size:
            problem = f"{shown(asked)} is longer than the table, which has {shown(self.Pos)}"
            raise AxisSizeError(message("PositionEmbedding", problem))
        first = index(auto_sharded(self.weight), {self.Pos.name: slice(asked.size)})
        return first if asked.name == self.Pos.name else rename(first, {self.Pos.name: asked.name})

    def _check_ids(self, positions: Core) -> None:
        clash = [axis.name for axis in self.Embed if axis.name in positions.names]
        if clash:
            problem = f"positions already have axis {clash[0]!r}"
            hint = f'give it positions, and add: x + layer(x.resolve_axis("{self.Pos.name}"))'
            held = f"positions have: {facts(positions)}"
            raise AxisClashError(message("PositionEmbedding", problem, held, hint=hint))


def alibi_attention_bias(
    Heads: Axis, KPos: Axis | NamedArray, bias_max: float = 8.0, dtype: DTypeLike = jnp.float32
) -> NamedArray:
    """Return biases for the scores of causal attention that grow with the position of the key, by a slope per head.

    Softmax ignores a term that is equal for all keys, so the position of the query is left out: the weights are the
    same as with a penalty on the distance.

    Args:
        Heads: the axis of heads.
        KPos: the axis of keys, counted from zero; or their positions, such as those of packed sequences.
        bias_max: the slopes fall from head to head, down to 2 ** -bias_max. If the number of heads is not a power of
            two, they are among those of the next power, every other slope first.
        dtype: the dtype of the result. In bfloat16, biases of neighbouring positions above 256 can be equal.

    Returns:
        Axes {Heads, those of KPos}.

    Raises:
        AxisClashError: if `KPos` has the axis of heads.

    Examples:
        >>> Heads, KPos = axn.make_axes(heads=2, key=3)
        >>> axn.nn.alibi_attention_bias(Heads, KPos).tolist()
        [[0.0, 0.0625, 0.125], [0.0, 0.00390625, 0.0078125]]

    Reference:
        Press, Smith, Lewis (2022), Train short, test long: attention with linear biases enables input length
        extrapolation.
    """
    function = "alibi_attention_bias"
    positions, Heads = number_positions(function, KPos), sized(Heads, function)
    if Heads.name in positions.names:
        problem = f"positions already have axis {Heads.name!r}, the axis of heads"
        raise AxisClashError(message(function, problem, f"positions have: {facts(positions)}"))
    # As the paper does it: every other slope of the next power of two, so that heads stay far apart.
    count = 2 ** math.ceil(math.log2(max(Heads.size, 1)))
    slopes = 2.0 ** (-bias_max * np.arange(1, count + 1) / count)
    if count != Heads.size:
        slopes = np.concatenate([slopes[1::2], slopes[::2]])[: Heads.size]
    computed = at_least_float32(dtype)  # float16 ends at 65504, and slopes are below one
    numbers = positions.array.astype(computed)
    at = numbers.ndim - len(positions.names)  # heads come after anonymous dimensions
    slopes = slopes.astype(computed).reshape(*[1] * at, -1, *[1] * len(positions.names))
    biases = (lax.expand_dims(numbers, (at,)) * kernels.constant(slopes)).astype(dtype)
    return auto_sharded(wrap(positions, biases, (Heads.name, *positions.names)))
