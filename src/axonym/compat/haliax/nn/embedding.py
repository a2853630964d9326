"""Embedding tables."""

import dataclasses

import equinox as eqx
import jax

from axonym import Axis, AxisSpec, NamedArray, nn
from axonym.engine import sized, spec

from .._adapt import adapted
from ..partitioning import auto_sharded
from ._constructor import TwoSpellings
from .linear import drawn, hashable, times
from .mup import AbstractEmbeddingReparam, EmbeddingStandardParam, ReparamEnabled

__all__ = ["Embedding"]


class Embedding(eqx.Module, ReparamEnabled, metaclass=TwoSpellings):
    """A table of vectors over `Embed`, looked up by their numbers in `Vocab`.

    Differs from `axonym.nn.Embedding`: `Embed` is kept as given, the initial standard deviation is one over the size
    of a vector, and a parametrisation scales the weights. `Embedding(Vocab, Embed, key=key)` calls `init`.

    Attributes:
        weight: axes {Vocab, Embed}.
        Vocab: the axis of the numbers.
        Embed: the axes of a vector.
    """

    weight: NamedArray
    Vocab: Axis = eqx.field(static=True)
    Embed: AxisSpec = eqx.field(static=True, converter=hashable)
    _reparam_cls: type[AbstractEmbeddingReparam] = eqx.field(
        static=True, default=EmbeddingStandardParam
    )

    @staticmethod
    @adapted
    def init(
        Vocab: Axis,
        Embed: AxisSpec,
        *,
        init_scale: float = 1,
        key: jax.Array,
        initializer_range: float | None = None,
        reparam_cls: type[AbstractEmbeddingReparam] = EmbeddingStandardParam,
    ) -> "Embedding":
        """Make a table; `initializer_range` replaces `init_scale`, and is scaled like it."""
        axes = (sized(Vocab, "Embedding.init"), *spec(Embed, "Embedding.init"))
        scale = init_scale if initializer_range is None else initializer_range
        return Embedding(
            drawn(key, axes, scale * reparam_cls.init_scale(Vocab, Embed)),
            Vocab,
            Embed,
            reparam_cls,
        )

    def __call__(self, input_ids: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        """Call `embed`; `key` is not used."""
        return self.embed(input_ids)

    @adapted
    def embed(self, input_ids: NamedArray) -> NamedArray:
        """Look up vectors; the result has the axes of the ids, then `Embed`; ids out of range give NaN."""
        vectors = self._table(auto_sharded(self.weight)).embed(input_ids)
        return times(auto_sharded(vectors), self.reparam.active_scale)

    @adapted
    def unembed(self, input_embeds: NamedArray) -> NamedArray:
        """Multiply by the transposed table, from `Embed` to scores over `Vocab`."""
        return self._table(times(self.weight, self.reparam.unembed_active_scale)).unembed(
            input_embeds
        )

    @adapted
    def resize_embeddings(self, new_size: int, key: jax.Array | None = None) -> "Embedding":
        """Return a table of another size: the first rows are kept, and new ones are drawn around their mean.

        Without a key, each new row is the mean.
        """
        resized = self._table(self.weight).resize_embeddings(new_size, key)
        return dataclasses.replace(self, weight=resized.weight, Vocab=resized.Vocab)

    def _table(self, weight: NamedArray) -> nn.Embedding:
        return nn.Embedding(weight, self.Vocab, spec(self.Embed))

    @property
    def reparam(self) -> AbstractEmbeddingReparam:
        """The parametrisation, for the axes of this table."""
        return self._reparam_cls(self.Embed, self.Vocab)
