"""Keys and values of tokens that attention has seen, for decoding token by token or chunk by chunk."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import DTypeLike

from ..array import NamedArray
from ..axis import Axis, AxisSelector, AxisSpec, axis_name, spec
from ..core import Core, Operand, facts
from ..create import arange, zeros
from ..errors import ArgumentError, AxisClashError, AxisNotFoundError, message, suggestion
from ..ops import _lift
from ..ops._batch import batched
from ..ops._position import Reach, planned
from ..ops._scatter import write
from ..partitioning.shard import auto_sharded
from ..transform.vmap import vmap
from ._settings import integer
from ._visible import positions, visible
from .attention import dot_product_attention
from .mask import AttentionMask, causal

__all__ = ["KVCache"]


class KVCache(eqx.Module):
    """Hold keys and values of tokens so far, in arrays of static size of which `length` tells how much is filled.

    It does not change: `extend` and `attend` return the next one. So it may be a carry of a loop, and an argument that
    `jax.jit` is told to donate, which is then written in place.

    Without `window`, a token at position i lies at i, and there is room for as many tokens as `KPos` has positions.
    Tokens behind them are an error where the length is known, and under `jax.jit` they are dropped. With `window`, the
    arrays are a ring, which a sequence may go around without end: a query sees the last `window` tokens, its own
    included, and a chunk may have as many tokens as the ring has positions beyond the window, and one more.

    Attributes:
        key: the keys, axes {KPos, ...}.
        value: the values, axes {KPos, ...}.
        length: how many tokens there are; integers, of the axes along which sequences have lengths of their own.
        KPos: the axis of positions.
        window: how many tokens a query sees; None for all.

    Example:
        >>> Batch, KPos, Dim = axn.make_axes(batch=2, key_pos=8, head_dim=4)
        >>> cache = axn.nn.KVCache.init("key_pos", (Batch, KPos, Dim))
        >>> q = k = v = axn.ones((Batch, axn.Axis("pos", 3), Dim))
        >>> out, cache = cache.attend("pos", "head_dim", q, k, v)
        >>> out.axes == q.axes, cache.length.item()
        (True, 3)
    """

    key: NamedArray
    value: NamedArray
    length: NamedArray
    KPos: str = eqx.field(static=True)
    window: int | None = eqx.field(static=True, default=None)

    @staticmethod
    def init(
        KPos: AxisSelector,
        axes: AxisSpec,
        value_axes: AxisSpec | None = None,
        *,
        lengths: AxisSpec = (),
        window: int | None = None,
        dtype: DTypeLike = jnp.float32,
    ) -> "KVCache":
        """Make an empty cache, laid out by the mapping.

        Args:
            KPos: the axis of positions.
            axes: those of the keys, `KPos` among them; the order in which they are stored.
            value_axes: those of the values; by default the same.
            lengths: axes along which sequences have lengths of their own, such as batch, or layers of which each has
                its own cache; by default all have one.
            window: how many tokens a query sees, if not all; `KPos` may then be shorter than the sequence.
            dtype: of keys and values.

        Raises:
            AxisNotFoundError: if keys or values lack `KPos`.
            ArgumentError: if `window` is no number of positions that there are.
        """
        keys = spec(axes, "KVCache.init")
        values = keys if value_axes is None else spec(value_axes, "KVCache.init")
        key, value = zeros(keys, dtype), zeros(values, dtype)
        for what, x in (("keys", key), ("values", value)):
            if not x.has_axis(KPos):
                problem = f"the {what} lack axis {axis_name(KPos)!r}, the positions"
                raise AxisNotFoundError(message("KVCache.init", problem, f"axes: {facts(x)}"))
        size = key.axis_size(KPos)
        window = None if window is None else integer("KVCache.init", "window", window)
        if window is not None and not 1 <= window <= size:
            problem = f"a window has from one position to as many as the cache, not {window}"
            raise ArgumentError(message("KVCache.init", problem, f"axes: {facts(key)}"))
        length = zeros(lengths, jnp.int32)
        return auto_sharded(KVCache(key, value, length, axis_name(KPos), window))

    def positions(self, Pos: Axis | None) -> NamedArray:
        """Return the positions of tokens that are to come: axes {Pos} and those of `length`; None for one token."""
        return positions(Pos, self.length)

    def extend(
        self, Pos: AxisSelector | None, key: NamedArray, value: NamedArray, *, count: int | Operand | None = None
    ) -> "KVCache":
        """Return the cache with more tokens.

        Args:
            Pos: the axis of positions of the new tokens, called otherwise than `KPos`; None for one token without it.
            key: axes {Pos, ...}: those of the cache, but for `KPos`.
            value: the same, for values.
            count: how many of the tokens are real, from the first on; by default all. It may have axes of `length`.
                The rest is padding, which no later query sees.

        Raises:
            AxisNotFoundError: if a key or a value lacks an axis, or `length` one of `count`.
            AxisClashError: if a key or a value has one that the cache lacks.
            ArgumentError: if there are more tokens than the cache has room for.
        """
        pos = None if Pos is None else axis_name(Pos)
        for what, x, kept in (("key", key, self.key), ("value", value, self.value)):
            self._check(what, x, kept, pos)
        number = 1 if Pos is None else key.axis_size(Pos)
        size = self.key.axis_size(self.KPos)
        real = number if count is None else count
        length = (self.length + real).astype(self.length.dtype)
        if isinstance(real, Core) and length.names != self.length.names:
            problem = "the count has axes along which all sequences have one length"
            lines = f"count has: {facts(real)}", f"length has: {facts(self.length)}"
            raise AxisNotFoundError(message("KVCache", problem, *lines, hint="KVCache.init(..., lengths=...)"))
        room = size if self.window is None else size - self.window + 1
        if number > room or (self.window is None and _exceeds(length.array, size)):
            problem = f"{number} more {'token does' if number == 1 else 'tokens do'} not fit"
            hint = f"make it larger, or give it a window; at once it takes {room}"
            raise ArgumentError(message("KVCache", problem, f"cache has: {facts(self.key)}", hint=hint))
        put: Any = functools.partial(_put, pos, self.KPos, self.window is not None)
        for name in self.length.names:
            put = vmap(put, name)
        both = put((self.key, self.value), (key, value), self.length)
        filled, values = (x.rearrange(kept.names) for x, kept in zip(both, (self.key, self.value), strict=True))
        return auto_sharded(KVCache(filled, values, length, self.KPos, self.window))

    def attend(
        self,
        Pos: AxisSelector | None,
        Key: AxisSelector,
        query: NamedArray,
        key: NamedArray,
        value: NamedArray,
        mask: AttentionMask | NamedArray | None = None,
        *,
        count: int | Operand | None = None,
        **options: Any,
    ) -> "tuple[NamedArray, KVCache]":
        """Extend the cache, and attend from the new tokens to all that are not after them.

        Args:
            Pos: the axis of positions of the new tokens; None for one token without it.
            Key: the axis of a key's features.
            query: axes {Pos, Key, ...}.
            key: axes {Pos, Key, ...}.
            value: axes {Pos, ...}.
            mask: hides more. In a ring, where `KPos` counts places, it may not compare positions.
            count: how many of the tokens are real; see `extend`. What the others get means nothing.
            options: those of `dot_product_attention`.

        Returns:
            What the queries get, and the next cache.

        Raises:
            ArgumentError: if the tokens do not fit, or the mask does not.
        """
        filled = self.extend(Pos, key, value, count=count)
        given = AttentionMask() if mask is None else AttentionMask.of(mask, "KVCache.attend")
        start: Any = self.length
        if self.window is None:
            given = causal() & given
        else:
            if any(clause.causal or clause.window or clause.prefix is not None for clause in given.clauses):
                problem = "in a ring, the axis of keys counts places, which a mask cannot compare with positions"
                hint = "the window of the cache is causal already; give other conditions as an array"
                raise ArgumentError(message("KVCache.attend", problem, hint=hint))
            seen = self._in_window(None if Pos is None else key.resolve_axis(axis_name(Pos)))
            given, start = given if seen is None else given & seen, 0
        out = dot_product_attention(
            Pos, self.KPos, Key, query, filled.key, filled.value, given, q_start=start, **options
        )
        return out, filled

    def _in_window(self, Pos: Axis | None) -> NamedArray | None:
        """Return which places of the ring each new token sees, once all of them are in it."""
        places = arange(self.key.resolve_axis(self.KPos))
        last = self.length + (0 if Pos is None else Pos.size - 1)
        held = batched(_held, (last, places), ((), ()), (), outer=True, size=places.size)
        pos = None if Pos is None else Pos.name
        return visible(AttentionMask(causal=True, window=self.window), self.positions(Pos), held, pos, self.KPos)

    def _check(self, what: str, x: NamedArray, kept: NamedArray, pos: str | None) -> None:
        """Check that new keys or values have the axes of the cache."""
        if not isinstance(x, Core):
            raise _lift.unnamed("KVCache", x)
        wanted = [name for name in kept.names if name != self.KPos] + ([] if pos is None else [pos])
        lines = f"{what} has: {facts(x)}", f"cache has: {facts(kept)}"
        for name in wanted:
            if name not in x.names:
                hint = suggestion(name, x.names)
                raise AxisNotFoundError(message("KVCache", f"the {what} lacks axis {name!r}", *lines, hint=hint))
        for name in x.names:
            if name not in wanted:
                hint = "positions of new tokens have a name of their own" if name == self.KPos else None
                problem = f"the {what} has axis {name!r}, which is none of a new {what}"
                raise AxisClashError(message("KVCache", problem, *lines, hint=hint))


def _put(pos: str | None, k_pos: str, ring: bool, kept: Any, new: Any, start: NamedArray) -> tuple[NamedArray, ...]:
    """Write new keys and values behind a start without axes; what lies behind the end is dropped."""
    at = positions(None if pos is None else new[0].resolve_axis(pos), start)
    at = at % kept[0].axis_size(k_pos) if ring else at
    # Places of a ring all lie in it; no position is negative.
    reach = Reach("promise_in_bounds" if ring else "drop", sorted=not ring, unique=True, wraps=False)
    steps, arguments = planned("KVCache", kept[0], {k_pos: at})
    return tuple(
        write("KVCache", old, steps, arguments, "set", x.astype(old.dtype), reach)
        for old, x in zip(kept, new, strict=True)
    )


def _held(last: jax.Array, place: jax.Array, *, size: int) -> jax.Array:
    """Return the last position so far that falls on a place of a ring; before there is one, a number behind all."""
    held = last - (last - place) % size
    return jnp.where(held < 0, np.iinfo(np.int32).max, held)


def _exceeds(length: jax.Array, size: int) -> bool:
    """Tell whether a length is too large, as far as that is known here."""
    return not isinstance(length, Tracer) and length.is_fully_addressable and bool((length > size).any())
