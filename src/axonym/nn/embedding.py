"""Tables of vectors: a layer looks them up by integer ids, and its transpose gives the logits of a language model."""

import dataclasses
import math
from typing import Self

import equinox as eqx
import jax

from .. import random
from ..array import NamedArray
from ..axis import Axis, AxisSpec, axis_name, axis_size, sized, spec
from ..base.dtypes import widen
from ..engine.audits import current_report, expect
from ..engine.core import facts
from ..engine.operands import integers
from ..ops.join import concatenate
from ..partitioning.padding import is_padded
from ..partitioning.shard import auto_sharded
from .initializer import Initializer, fan_in
from .inputs import check_input
from .layer import Layer, enter_scope
from .settings import draw_parameter
from .weights import look_up, multiply

__all__ = ["Embedding"]


class Embedding(Layer):
    """Look up vectors over `Embed` by integer ids, which are positions along `Vocab`.

    The same table may serve as the last layer of a language model, see `unembed`.

    Attributes:
        weight: axes {Vocab, Embed}.
        Vocab: the axis of ids.
        Embed: the axes of a vector.

    Examples:
        >>> Vocab, Embed = axn.make_axes(vocab=10, embed=4)
        >>> embedding = axn.nn.Embedding.init(Vocab, Embed, key=jax.random.key(0))
        >>> x = embedding(axn.named([3, 1, 4], "pos"))
        >>> x.shape, embedding.unembed(x).shape
        ({'pos': 3, 'embed': 4}, {'pos': 3, 'vocab': 10})
    """

    weight: NamedArray
    Vocab: Axis = eqx.field(static=True)
    Embed: tuple[Axis, ...] = eqx.field(static=True)

    @classmethod
    def init(
        cls,
        Vocab: Axis,
        Embed: AxisSpec,
        *,
        key: jax.Array,
        init_scale: float = 1.0,
        initializer: Initializer | None = None,
    ) -> Self:
        """Make a table.

        Args:
            Vocab: the axis of ids.
            Embed: the axes of a vector.
            key: for the weight.
            init_scale: a factor for the default initializer.
            initializer: makes the weight, axes {Vocab, *Embed}; by default `fan_in` of the size of `Embed`, whose
                standard deviation is one over the square root of that size: vectors have a length of about one.

        Raises:
            AxisClashError: if `Vocab` is also an axis of `Embed`.
        """
        Vocab, embed = sized(Vocab, "Embedding.init"), spec(Embed, "Embedding.init")
        if initializer is None:
            initializer = fan_in(axis_size(embed), init_scale)
        return cls(
            draw_parameter("Embedding.init", initializer, key, (Vocab, *embed)), Vocab, embed
        )

    def __call__(self, ids: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        """Call `embed`; it ignores `key`, which every layer accepts."""
        return self.embed(ids)

    @enter_scope
    def embed(self, ids: NamedArray) -> NamedArray:
        """Look up the vectors of `ids`.

        Negative ids count from the end, and ids out of range give NaN; `axonym.debug.checks` reports both.

        Args:
            ids: integers, axes {...}.

        Returns:
            Axes {..., *Embed}.

        Raises:
            AxisClashError: if `ids` already has an axis of `Embed`.
            OperandError: if `ids` are no integers.
        """
        check_input("Embedding", ids, (), self.Embed)
        integers("Embedding", "ids", ids)
        if current_report() is not None:
            # Negative ids only, which are legal for an index: `look_up` reports those that are too large. It does not
            # know the size of a padded table.
            most = self.Vocab.size - 1 if is_padded(self.weight) else math.inf
            there, room = f"ids have: {facts(ids)}", f"{self.Vocab.name}={self.Vocab.size}"
            expect("Embedding", "id", ids.array, 0, most, there, room=room)
        # Vectors take the place of ids in the order of axes, wherever the lookup puts `Embed`.
        vectors = look_up(self.weight, self.Vocab, ids)
        return auto_sharded(vectors.rearrange((*ids.names, *axis_name(self.Embed))))

    @enter_scope
    def unembed(self, x: NamedArray) -> NamedArray:
        """Multiply by the transposed table, from `Embed` to logits over `Vocab`.

        Args:
            x: axes {*Embed, ...}.

        Returns:
            Axes {..., Vocab}.

        Raises:
            AxisNotFoundError: if `x` lacks an axis of `Embed`.
            AxisClashError: if `x` already has `Vocab`.
        """
        check_input("Embedding.unembed", x, self.Embed, (self.Vocab,))
        return multiply(x, self.weight, self.Embed)

    def resize_embeddings(self, new_size: int, key: jax.Array | None = None) -> Self:
        """Return a table with another number of rows, which keeps the first ones.

        Without a key, each new row is the mean of all old ones. With a key, new rows are drawn: each feature has the
        mean and standard deviation of the old rows, in a normal distribution that is truncated at three standard
        deviations. Either way, a language model gives new tokens no more than average weight at the start.

        Args:
            new_size: the new number of rows; fewer rows drop the last ones.
            key: for the new rows.

        Returns:
            A layer whose `Vocab` has the new size.

        Raises:
            AxisSizeError: if `new_size` is negative.

        Examples:
            >>> Vocab, Embed = axn.make_axes(vocab=10, embed=4)
            >>> axn.nn.Embedding.init(Vocab, Embed, key=jax.random.key(0)).resize_embeddings(12).weight.shape
            {'vocab': 12, 'embed': 4}
        """
        Vocab = self.Vocab.resize(new_size)
        more = new_size - self.Vocab.size
        if more <= 0:
            return dataclasses.replace(self, weight=self.weight[Vocab.name, :new_size], Vocab=Vocab)
        # Computed in float32 or wider, and rounded once, at the end.
        New, old = Vocab.resize(more), widen(self.weight)
        rows = old.mean(Vocab.name).broadcast_axis(New)
        if key is not None:
            rows += random.truncated_normal(key, rows.axes, -3.0, 3.0, old.dtype) * old.std(
                Vocab.name
            )
        weight = concatenate(Vocab.name, (self.weight, rows.astype(self.weight.dtype)))
        return dataclasses.replace(self, weight=weight, Vocab=Vocab)
