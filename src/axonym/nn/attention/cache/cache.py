"""A cache of keys and values, for decoding token by token or chunk by chunk."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import DTypeLike

from ....array import NamedArray
from ....axis import Axis, AxisSelector, AxisSpec, axis_name, selector, sized, spec
from ....base.dtypes import widen_positions
from ....base.kinds import type_text
from ....base.phrases import missing_axis
from ....create import arange, zeros
from ....engine import checks
from ....engine.audits import expect
from ....engine.batched import apply_batched
from ....engine.core import Core, Operand, facts
from ....engine.operands import integers
from ....errors import (
    ArgumentError,
    AxisClashError,
    AxisNotFoundError,
    AxisSizeError,
    OperandError,
    message,
    suggestion,
)
from ....names import plans
from ....partitioning.shard import auto_sharded
from ...layer import Layer
from ...settings import check_int
from ..attention import dot_product_attention
from ..call import show
from ..masks.conditions import Pairing, count_positions, find_visible, list_conditions
from ..masks.mask import AttentionMask, causal
from .filling import write_tokens

__all__ = ["KVCache"]


class KVCache(Layer):
    """It holds the keys and values of the tokens so far, in arrays of static size; `length` counts the tokens.

    A cache is immutable: `extend` and `attend` return the updated cache. So it may be the carry of a loop, or a donated
    argument of `jax.jit`, which is then updated in place.

    Without `window`, the token at position i is stored at index i, and the size of `KPos` is the capacity. Tokens
    beyond it are an error where the length is known, and dropped under `jax.jit`. With `window`, the arrays are a ring
    buffer for sequences of any length: a query sees the last `window` tokens, its own included, and a chunk may have
    up to `KPos.size - window + 1` tokens.

    Attributes:
        key: the keys, axes {KPos, ...}.
        value: the values, axes {KPos, ...}; None if the keys are the values, too.
        length: the number of tokens: integers, with the axes along which sequences have their own lengths.
        KPos: the axis of positions.
        window: how many tokens a query sees; None for all.

    Examples:
        >>> Batch, KPos, Dim = axn.make_axes(batch=2, key_pos=8, head_dim=4)
        >>> cache = axn.nn.KVCache.init("key_pos", (Batch, KPos, Dim))
        >>> q = k = v = axn.ones((Batch, axn.Axis("pos", 3), Dim))
        >>> out, cache = cache.attend("pos", "head_dim", q, k, v)
        >>> out.axes == q.axes, cache.length.item()
        (True, 3)
    """

    key: NamedArray
    value: NamedArray | None
    length: NamedArray
    KPos: str = eqx.field(static=True)
    window: int | None = eqx.field(static=True, default=None)

    @classmethod
    def init(
        cls,
        KPos: AxisSelector,
        axes: AxisSpec,
        value_axes: AxisSpec | None = None,
        *,
        lengths: AxisSpec = (),
        window: int | None = None,
        shared: bool = False,
        dtype: DTypeLike = jnp.float32,
    ) -> Self:
        """Make an empty cache, sharded by the mapping.

        Args:
            KPos: the axis of positions.
            axes: the axes of the keys, `KPos` included, in the order in which they are stored.
            value_axes: the axes of the values; by default the same.
            lengths: axes along which sequences have their own lengths, such as batch, or layers with one cache each;
                by default, all share one length.
            window: how many tokens a query sees, if not all; `KPos` may then be shorter than the sequence.
            shared: whether the keys are the values, too, and stored once, as for `LatentAttention`.
            dtype: of keys and values.

        Raises:
            AxisNotFoundError: if keys or values lack `KPos`, or an axis of `lengths`.
            AxisSizeError: if one of these axes has two sizes.
            ArgumentError: if `window` is not an int from 1 to the size of `KPos`, if `KPos` is among `lengths`, or if
                `shared` values have axes of their own.

        Examples:
            >>> Batch, KPos, Dim = axn.make_axes(batch=2, key_pos=8, head_dim=4)
            >>> cache = axn.nn.KVCache.init("key_pos", (Batch, KPos, Dim), lengths=Batch, window=4)
            >>> cache.key.shape, cache.length.shape
            ({'batch': 2, 'key_pos': 8, 'head_dim': 4}, {'batch': 2})
        """
        keys = values = spec(axes, "KVCache.init")
        if value_axes is not None:
            values = spec(value_axes, "KVCache.init")
            if shared:
                problem = "values that are the keys must not have axes of their own"
                hint = "leave out value_axes, or shared=True"
                raise ArgumentError(message("KVCache.init", problem, hint=hint))
        key = zeros(keys, dtype)
        value = key if shared else zeros(values, dtype)
        for what, x in (("keys", key), ("values", value)):
            checks.require("KVCache.init", x, KPos, what, role=", the positions")
        size = key.axis_size(KPos)
        if value.axis_size(KPos) != size:
            raise _make_size_error("KVCache.init", axis_name(KPos), "keys", key, "values", value)
        if isinstance(window, bool):  # which Python takes for an int
            raise ArgumentError(message("KVCache.init", f"window must be an int, not {window}"))
        if window is not None:
            window = check_int("KVCache.init", "window", window)
            if not 1 <= window <= size:
                problem = f"window must be from 1 to {size}, the size of the cache, not {window}"
                raise ArgumentError(message("KVCache.init", problem, f"axes: {facts(key)}"))
        length = zeros(lengths, jnp.int32)
        _check_lengths(length, axis_name(KPos), key, value)
        own = None if shared else value
        return auto_sharded(cls(key, own, length, axis_name(KPos), window))

    @classmethod
    def stacked(
        cls,
        Layers: Axis,
        KPos: AxisSelector,
        axes: AxisSpec,
        value_axes: AxisSpec | None = None,
        *,
        lengths: AxisSpec = (),
        window: int | None = None,
        shared: bool = False,
        dtype: DTypeLike = jnp.float32,
    ) -> Self:
        """Make an empty cache for each of several layers, stored along an axis, for `layer=(Layers, i)`.

        Args:
            Layers: the axis of layers, which comes first. Each layer has its own length.
            KPos: see `init`.
            axes: those of the keys of one layer.
            value_axes: those of the values of one layer; by default the same.
            lengths: further axes with their own lengths, such as batch.
            window: see `init`.
            shared: see `init`.
            dtype: see `init`.

        Raises:
            AxisClashError: if keys or values have `Layers` already.

        Examples:
            >>> Layers, Batch, KPos, Dim = axn.make_axes(layers=3, batch=2, key_pos=8, head_dim=4)
            >>> caches = axn.nn.KVCache.stacked(Layers, "key_pos", (Batch, KPos, Dim), lengths=Batch)
            >>> caches.length.shape
            {'layers': 3, 'batch': 2}
        """
        Layers = sized(Layers, "KVCache.stacked")
        keys = (Layers, *spec(axes, "KVCache.stacked"))
        values = None if value_axes is None else (Layers, *spec(value_axes, "KVCache.stacked"))
        own = (Layers, *spec(lengths, "KVCache.stacked"))
        options: dict[str, Any] = {"window": window, "shared": shared, "dtype": dtype}
        return cls.init(KPos, keys, values, lengths=own, **options)

    def positions(self, Pos: Axis | None) -> NamedArray:
        """Return the positions of the next tokens, such as for `RotaryEmbedding.at`.

        Args:
            Pos: the axis of the tokens, with its size; None for one token without it.

        Returns:
            Integers, axes {Pos}, unless it is None, and those of `length`.

        Examples:
            >>> cache = axn.nn.KVCache.init("key_pos", axn.make_axes(key_pos=8, head_dim=4))
            >>> cache.positions(axn.Axis("pos", 3)).tolist()
            [0, 1, 2]
        """
        if Pos is not None:
            Pos = sized(Pos, "KVCache.positions")
        return count_positions(Pos, self.length)

    def extend(
        self,
        Pos: AxisSelector | None,
        keys: NamedArray,
        values: NamedArray | None = None,
        *,
        count: int | Operand | None = None,
        layer: tuple[AxisSelector, int | Operand] | None = None,
    ) -> Self:
        """Return the cache with more tokens.

        Args:
            Pos: the position axis of the new tokens, under another name than `KPos`; None for one token without it.
            keys: axes {Pos, ...}: those of the cache without `KPos`.
            values: the same; left out if the keys are the values, too.
            count: how many of the tokens are real, from the first on; by default all. It may have axes of `length`.
                The rest is padding, which no later query sees.
            layer: an axis of `length` and the index along it to extend: `("layers", i)`. The tokens and the count lack
                that axis. All other layers stay as they are, in place. A traced index must be in range.

        Raises:
            AxisNotFoundError: if keys or values lack an axis, or `length` one of `count` or that of `layer`.
            AxisClashError: if keys or values have one that the cache lacks.
            AxisSizeError: if an axis has two sizes, or the index of `layer` is out of range.
            OperandError: if `count` or the index of `layer` is not an integer, or values are missing, or given
                to a cache without.
            ArgumentError: if the tokens do not fit, or `count` is not from 0 to their number.

        Examples:
            >>> KPos, Pos, Dim = axn.make_axes(key_pos=8, pos=3, head_dim=4)
            >>> cache = axn.nn.KVCache.init("key_pos", (KPos, Dim))
            >>> tokens = axn.ones((Pos, Dim))
            >>> cache.extend("pos", tokens, tokens).extend("pos", tokens, tokens, count=1).length.item()
            4
        """
        # With a layer, all checks and writes concern its part of the arrays.
        at = self._check_layer(layer)
        pos = None if Pos is None else axis_name(Pos)
        is_shared = self.value is None
        if (values is None) != is_shared:
            problem = "the values are missing"
            if is_shared:
                problem = "the keys of this cache are the values, too"
            hint = f"{'give no' if is_shared else 'give'} values, or make the cache with shared={not is_shared}"
            raise OperandError(message("KVCache", problem, hint=hint))
        given = {"key": keys} if values is None else {"key": keys, "value": values}
        for field, x in given.items():
            self._check(f"{field}s", x, getattr(self, field), pos, at)
        number = 1 if pos is None else keys.axis_size(pos)
        if pos is not None and values is not None and values.axis_size(pos) != number:
            raise _make_size_error("KVCache", pos, "values", values, "keys", keys)

        start = _take_layer(self.length, at)
        length = (start + _check_count(count, number, keys)).astype(self.length.dtype)
        if isinstance(count, Core) and length.names != start.names:
            problem = "the count has axes that the length of the cache lacks"
            lines = f"count has: {facts(count)}", f"length has: {facts(start)}"
            hint = "KVCache.init(..., lengths=...)"
            raise AxisNotFoundError(message("KVCache", problem, *lines, hint=hint))
        self._check_room(number, length)

        places = count_positions(None if pos is None else keys.resolve_axis(pos), start)
        # In a ring, a token takes the slot of the one that was written as many positions ago as there are slots.
        if self.window is not None:
            places = places % self.key.axis_size(self.KPos)
        index = {**at, self.KPos: places}
        is_ring = self.window is not None
        written: dict[str, Any] = {}
        for field, x in given.items():
            kept = getattr(self, field)
            x = x.astype(kept.dtype)
            written[field] = write_tokens(kept, x, index, start.names, ring=is_ring)
        if at:
            length = self.length.at[at].set(length)
        return auto_sharded(dataclasses.replace(self, **written, length=length))

    def _check_room(self, number: int, length: NamedArray) -> None:
        """Check that the cache can hold `length` tokens."""
        size = self.key.axis_size(self.KPos)
        room = size if self.window is None else size - self.window + 1
        # With a window, later tokens overwrite those that no query sees any more.
        if number > room or (self.window is None and _is_outside(length.array, 0, size)):
            problem = f"{number} more {'token does' if number == 1 else 'tokens do'} not fit"
            hint = f"make it larger, or give it a window; at most {room} fit at once"
            given = f"cache has: {facts(self.key)}"
            raise ArgumentError(message("KVCache", problem, given, hint=hint))
        if self.window is None:
            # A length that is traced is checked when the program runs, if `axn.check` asks for it.
            given = f"cache has: {facts(self.key)}"
            expect("KVCache", "length", length.array, 0, size, given, room=f"{self.KPos}={size}")

    def attend(
        self,
        Pos: AxisSelector | None,
        HeadDim: AxisSelector,
        query: NamedArray,
        keys: NamedArray,
        values: NamedArray | None = None,
        mask: AttentionMask | NamedArray | None = None,
        *,
        count: int | Operand | None = None,
        layer: tuple[AxisSelector, int | Operand] | None = None,
        **options: Any,
    ) -> tuple[NamedArray, Self]:
        """Extend the cache, and attend causally from the new tokens.

        Args:
            Pos: the position axis of the new tokens; None for one token without it.
            HeadDim: the axis of features of queries and keys.
            query: axes {Pos, HeadDim, ...}.
            keys: axes {Pos, HeadDim, ...}.
            values: axes {Pos, ...}; left out if the keys are the values, too.
            mask: a further mask. In a ring buffer, where `KPos` counts slots, it may not compare positions.
            count: how many of the tokens are real; see `extend`. The results of padding are meaningless.
            layer: which of several caches, stored along an axis, to extend and attend to; see `extend`.
            options: those of `dot_product_attention`, except `q_start` and `k_start`.

        Returns:
            The result of attention, and the next cache.

        Raises:
            AxisSizeError: if the numbers of queries and of tokens differ.
            OperandError: if the mask has segments without `key_ids`, unless the new tokens fill the whole cache.
            ArgumentError: if the tokens or the mask do not fit, or a start is given.

        Examples:
            >>> KPos, Dim = axn.make_axes(key_pos=8, head_dim=4)
            >>> cache = axn.nn.KVCache.init("key_pos", (KPos, Dim))
            >>> token = axn.ones(Dim)
            >>> out, cache = cache.attend(None, "head_dim", token, token, token)
            >>> out.tolist(), cache.length.item()
            ([1.0, 1.0, 1.0, 1.0], 1)
        """
        for name in ("q_start", "k_start"):
            if name in options:
                problem = f"{name} must not be given: the cache tracks positions"
                raise ArgumentError(message("KVCache.attend", problem, hint="cache.positions(Pos)"))
        filled = self.extend(Pos, keys, values, count=count, layer=layer)
        at = self._check_layer(layer)
        Tokens = None if Pos is None else keys.resolve_axis(axis_name(Pos))
        if not isinstance(query, Core):
            raise checks.no_names("KVCache.attend", query)
        if Tokens is not None and query.shape.get(Tokens.name, Tokens.size) != Tokens.size:
            raise _make_size_error("KVCache.attend", Tokens.name, "query", query, "keys", keys)

        given = AttentionMask() if mask is None else AttentionMask.of(mask, "KVCache.attend")
        self._check_mask(given, Tokens)

        start: Any = _take_layer(self.length, at)
        # Positions of a ring are not those of its slots: what is seen is then an array, made anew for each chunk.
        if self.window is None:
            given = causal() & given
        else:
            seen = self._find_window(Tokens, start)
            if seen is not None:
                given = given & seen
            start = 0  # slots are not positions
        kept = _take_layer(filled.key, at)
        own = kept if filled.value is None else _take_layer(filled.value, at)
        attended = dot_product_attention(
            Pos, self.KPos, HeadDim, query, kept, own, given, q_start=start, **options
        )
        return attended, filled

    def _check_mask(self, mask: AttentionMask, Tokens: Axis | None) -> None:
        """Check that the conditions of a mask are defined for the keys of the cache."""
        conditions = [own for clause in mask.clauses for own in list_conditions(clause)]
        if self.window is not None and any(own.compares_positions for own in conditions):
            problem = "the key axis of a cache with a window has slots, which a mask cannot compare with positions"
            hint = "the window of the cache is causal already; give other conditions as an array"
            raise ArgumentError(message("KVCache.attend", problem, hint=hint))
        size = self.key.axis_size(self.KPos)
        if self.window is None and Tokens is not None and Tokens.size == size:
            return  # all keys of the cache are those of the new tokens
        if any(own.lacks_keys for own in conditions):
            problem = "the segment ids of new tokens do not cover all keys of the cache"
            hint = f"pass key_ids=..., over axis {self.KPos!r}"
            given = f"cache has: {facts(self.key)}"
            raise OperandError(message("KVCache.attend", problem, given, hint=hint))

    def _find_window(self, Pos: Axis | None, start: NamedArray) -> NamedArray | None:
        """Return which slots each token from `start` on sees, once all tokens are in the ring buffer."""
        # Of the token in each slot, the position follows from that of the last one that was written.
        places = arange(self.key.resolve_axis(self.KPos))
        last, pos = start, None
        if Pos is not None:
            last, pos = start + (Pos.size - 1), Pos.name
        held = apply_batched(
            _find_stored, (last, places), ((), ()), (), outer=True, size=places.size
        )
        mask = AttentionMask(causal=True, window=self.window)
        pairing = Pairing(count_positions(Pos, start), held, pos, self.KPos)
        return find_visible(mask, pairing)

    def _check_layer(self, layer: tuple[AxisSelector, int | Operand] | None) -> dict[str, Any]:
        """Return the checked index of one layer; an empty index without `layer`."""
        if layer is None:
            return {}
        if not isinstance(layer, tuple) or len(layer) != 2:
            problem = f"layer must be an axis and a position along it, not {type_text(layer)}"
            raise OperandError(message("KVCache", problem, hint='such as ("layers", i)'))
        (name, _), index = selector(layer[0], "KVCache"), layer[1]
        given = f"length has: {facts(self.length)}"
        if name not in self.length.names:
            problem = f"the cache has one length for all of axis {name!r}, which cannot grow layer by layer"
            hint = suggestion(name, self.length.names) or "KVCache.init(..., lengths=...)"
            raise AxisNotFoundError(message("KVCache", problem, given, hint=hint))
        size = self.length.resolve_axis(layer[0]).size
        integers("KVCache", "the position of the layer", index)
        if isinstance(index, Core):
            index = index.node[0][0]  # the array behind the names
        if np.ndim(index) or _is_outside(index, -size, size - 1):
            problem = f"the layer must be one position along axis {name!r}, from 0 to {size - 1}"
            raise AxisSizeError(message("KVCache", problem, given))
        expect("KVCache", "layer", index, -size, size - 1, given, room=f"{name}={size}")
        # Writes take no negative indices.
        return {name: widen_positions(index) % size}

    def _check(
        self, what: str, x: NamedArray, kept: NamedArray, pos: str | None, at: Mapping[str, object]
    ) -> None:
        """Check that new keys or values have the axes of the cache."""
        if not isinstance(x, Core):
            raise checks.no_names("KVCache", x)
        wanted = plans.without(kept.names, (self.KPos, *at))
        lines = show(what, x), show("cache", kept)
        needed = wanted if pos is None else (*wanted, pos)
        for name in needed:
            if name not in x.names:
                raise missing_axis("KVCache", name, x.names, *lines, what=what)
        for name in x.names:
            if name not in wanted and name != pos:
                is_pos = name == self.KPos
                hint = "give the positions of new tokens another name" if is_pos else None
                problem = f"new {what} must not have axis {name!r}"
                raise AxisClashError(message("KVCache", problem, *lines, hint=hint))
        for name in wanted:
            if x.axis_size(name) != kept.axis_size(name):
                raise _make_size_error("KVCache", name, what, x, "cache", kept)


def _take_layer(x: NamedArray, at: dict[str, object]) -> NamedArray:
    """Return the part of an array that belongs to a layer; the complete array if there is no index."""
    return x[at] if at else x


def _find_stored(last: jax.Array, place: jax.Array, *, size: int) -> jax.Array:
    """Return the last position so far in a slot of a ring; for an empty slot, a number after all positions."""
    # It is the largest position up to the last one that is the slot, modulo the number of slots.
    held = last - (last - place) % size
    return jnp.where(held < 0, np.iinfo(np.int32).max, held)


def _check_count(count: int | Operand | None, number: int, keys: NamedArray) -> Any:
    """Return how many tokens are real, and check the number unless it is traced."""
    if count is None:
        return number
    integers("KVCache", "the count", count)
    numbers = count.node[0][0] if isinstance(count, Core) else count
    if _is_outside(numbers, 0, number):
        problem = f"the count of real tokens must be from 0 to {number}, the number of new tokens"
        raise ArgumentError(message("KVCache", problem, show("keys", keys)))
    return count


def _is_outside(numbers: object, least: int, most: int) -> bool:
    """Return whether a number is known to be outside a range."""
    if isinstance(numbers, Tracer) or not getattr(numbers, "is_fully_addressable", True):
        return False
    # JAX would trace the comparison under `jax.jit`, also of known numbers.
    known = np.asarray(numbers)
    return bool(((known < least) | (known > most)).any())


def _check_lengths(length: NamedArray, k_pos: str, key: NamedArray, value: NamedArray) -> None:
    """Check that keys and values have the axes along which sequences have their own lengths."""
    for axis in length.axes:
        if axis.name == k_pos:
            problem = f"lengths must not have axis {k_pos!r}, along which they count"
            raise ArgumentError(message("KVCache.init", problem, f"axes: {facts(key)}"))
        for what, x in (("keys", key), ("values", value)):
            checks.require("KVCache.init", x, axis.name, what, role=" of the lengths")
            if x.axis_size(axis.name) != axis.size:
                problem = f"axis {axis.name!r} has size {axis.size} in the lengths, and {x.axis_size(axis.name)} in the"
                text = message("KVCache.init", f"{problem} {what}", f"axes: {facts(x)}")
                raise AxisSizeError(text)


def _make_size_error(
    function: str, name: str, what: str, x: NamedArray, other: str, y: NamedArray
) -> AxisSizeError:
    """Build the error of an axis with different sizes in two operands."""
    problem = f"axis {name!r} has size {x.axis_size(name)} in the {what}, and {y.axis_size(name)} in the {other}"
    return AxisSizeError(message(function, problem, show(what, x), show(other, y)))
