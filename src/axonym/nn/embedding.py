"""Tables of vectors, looked up by integer ids."""

import dataclasses
import math
from typing import Self

import equinox as eqx
import jax

from .. import random
from ..array import NamedArray
from ..axis import Axis, AxisSpec, axis_name, axis_size, sized, spec
from ..core import facts
from ..dtypes import widen
from ..engine.audits import current_report, expect
from ..engine.operands import integers
from ..ops.join import concatenate
from ..partitioning.shard import auto_sharded
from .initializer import Initializer, fan_in
from .inputs import check_input
from .layer import Layer, in_scope
from .settings import drawn
from .weights import look_up, multiply

__all__ = ["Embedding"]


class Embedding(Layer):
    """Look up vectors over `Embed` by integer ids, positions along `Vocab`.

    Attributes:
        weight: axes {Vocab, Embed}.
        Vocab: the axis of ids.
        Embed: the axes of a vector.
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
        """Make a table; by default, the standard deviation is `init_scale` over the square root of Embed's size."""
        Vocab, embed = sized(Vocab, "Embedding.init"), spec(Embed, "Embedding.init")
        if initializer is None:
            initializer = fan_in(axis_size(embed), init_scale)
        return cls(drawn("Embedding.init", initializer, key, (Vocab, *embed)), Vocab, embed)

    def __call__(self, ids: NamedArray, *, key: jax.Array | None = None) -> NamedArray:
        """Call `embed`; `key` is not used, every layer takes one."""
        return self.embed(ids)

    @in_scope
    def embed(self, ids: NamedArray) -> NamedArray:
        """Look up the vectors of `ids`; negative ids count from the end, ids out of range give NaN.

        `axonym.debug.checks` reports both.

        Args:
            ids: axes {...}, integers.

        Returns:
            Axes {..., Embed}.

        Raises:
            AxisClashError: if `ids` already has an axis of `Embed`.
            OperandError: if `ids` are no integers.
        """
        check_input("Embedding", ids, (), self.Embed)
        integers("Embedding", "ids", ids)
        if (
            current_report() is not None
        ):  # one that is too large is reported by what reads the table
            held, room = f"ids have: {facts(ids)}", f"{self.Vocab.name}={self.Vocab.size}"
            expect("Embedding", "id", ids.array, 0, math.inf, held, room=room)
        vectors = look_up(self.weight, self.Vocab, ids)
        return auto_sharded(vectors.rearrange((*ids.names, *axis_name(self.Embed))))

    @in_scope
    def unembed(self, x: NamedArray) -> NamedArray:
        """Multiply by the transposed table, from `Embed` to logits over `Vocab`.

        Args:
            x: axes {Embed, ...}.

        Raises:
            AxisNotFoundError: if `x` lacks an axis of `Embed`.
            AxisClashError: if `x` already has `Vocab`.
        """
        check_input("Embedding.unembed", x, self.Embed, (self.Vocab,))
        return multiply(x, self.weight, self.Embed)

    def resize_embeddings(self, new_size: int, key: jax.Array | None = None) -> Self:
        """Return a table with another number of rows, which keeps the first ones.

        Each new row is the mean of all old ones; with a key, it is drawn from a normal distribution, truncated at three
        standard deviations, with mean and standard deviation of the old rows for each feature. A language model then
        gives new tokens no more than average weight at the start.

        Args:
            new_size: the new number of rows.
            key: for the new rows.

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
        New, old = Vocab.resize(more), widen(self.weight)
        rows = old.mean(Vocab.name).broadcast_axis(New)
        if key is not None:
            drawn = random.truncated_normal(key, rows.axes, -3.0, 3.0, old.dtype)
            rows = drawn * old.std(Vocab.name) + rows
        weight = concatenate(Vocab.name, (self.weight, rows.astype(self.weight.dtype)))
        return dataclasses.replace(self, weight=weight, Vocab=Vocab)
