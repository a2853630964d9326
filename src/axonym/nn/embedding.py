"""Tables of vectors, looked up by number."""

import math

import equinox as eqx
import jax

from ..array import NamedArray
from ..axis import Axis, AxisSpec, spec
from ..ops.contract import dot
from ..ops.index import take
from ..partitioning.shard import auto_sharded
from .linear import Initializer, fan_in

__all__ = ["Embedding"]


class Embedding(eqx.Module):
    """Look up vectors over `Embed` by their numbers in `Vocab`.

    Attributes:
        weight: axes {Vocab, Embed}.
        Vocab: the axis of the numbers.
        Embed: the axes of a vector.
    """

    weight: NamedArray
    Vocab: Axis = eqx.field(static=True)
    Embed: tuple[Axis, ...] = eqx.field(static=True)

    @staticmethod
    def init(
        Vocab: Axis,
        Embed: AxisSpec,
        *,
        key: jax.Array,
        init_scale: float = 1.0,
        initializer: Initializer | None = None,
    ) -> "Embedding":
        """Make a table; by default its entries have a standard deviation of `init_scale` over the root of Embed's size."""
        embed = spec(Embed, "Embedding.init")
        if initializer is None:
            initializer = fan_in(math.prod(axis.size for axis in embed), init_scale)
        return Embedding(initializer(key, (Vocab, *embed)), Vocab, embed)

    def __call__(self, ids: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        """Look up the vectors of integer `ids`; a number outside of the vocabulary gives NaN.

        Args:
            ids: axes {...}, integers.
            key: not used; every layer takes one.

        Returns:
            Axes {..., Embed}.
        """
        return auto_sharded(take(auto_sharded(self.weight), self.Vocab, ids).rearrange((*ids.names, *self.Embed)))

    def unembed(self, x: NamedArray) -> NamedArray:
        """Multiply by the table the other way, from `Embed` to scores over `Vocab`.

        Args:
            x: axes {Embed, ...}.
        """
        return dot(x, self.weight, axis=self.Embed)
