"""Tables of vectors, looked up by number."""

import math

import equinox as eqx
import jax

from ..array import NamedArray
from ..axis import Axis, AxisSpec, axis_name, spec
from ..ops.index import take
from ..partitioning.shard import auto_sharded
from ._inputs import check_input
from ._weights import multiply
from .initializer import Initializer, fan_in

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
        """Make a table; by default entries have a standard deviation of `init_scale` over the root of Embed's size."""
        embed = spec(Embed, "Embedding.init")
        if initializer is None:
            initializer = fan_in(math.prod(axis.size for axis in embed), init_scale)
        return Embedding(initializer(key, (Vocab, *embed)), Vocab, embed)

    def __call__(self, ids: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        """Look up the vectors of integer `ids`; negative numbers count from the end, those out of range give NaN.

        Args:
            ids: axes {...}, integers.
            key: not used; every layer takes one.

        Returns:
            Axes {..., Embed}.

        Raises:
            AxisClashError: if `ids` already have an axis of `Embed`.
        """
        check_input("Embedding", ids, (), self.Embed)
        vectors = take(auto_sharded(self.weight), self.Vocab, ids)
        return auto_sharded(vectors.rearrange((*ids.names, *axis_name(self.Embed))))

    def unembed(self, x: NamedArray) -> NamedArray:
        """Multiply by the table the other way, from `Embed` to scores over `Vocab`.

        Args:
            x: axes {Embed, ...}.

        Raises:
            AxisNotFoundError: if `x` lacks an axis of `Embed`.
            AxisClashError: if `x` already has `Vocab`.
        """
        check_input("Embedding.unembed", x, self.Embed, (self.Vocab,))
        return multiply(x, self.weight, self.Embed)
