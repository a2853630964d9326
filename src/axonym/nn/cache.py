"""A cache of keys and values, for decoding token by token or chunk by chunk."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.typing import DTypeLike

from .. import _constraints
from .._checks import expect
from ..array import NamedArray
from ..axis import Axis, AxisSelector, AxisSpec, axis_name, selector, sized, spec
from ..core import Core, Operand, facts, wrap
from ..create import arange, zeros
from ..errors import (
    ArgumentError,
    AxisClashError,
    AxisNotFoundError,
    AxisSizeError,
    OperandError,
    message,
    suggestion,
)
from ..ops import _lift
from ..ops._batch import batched
from ..ops._merging import settled, settled_gradient
from ..ops._operands import integers
from ..ops._position import Reach, planned
from ..ops._scatter import on_mesh, write
from ..ops._widen import widened
from ..partitioning.shard import auto_sharded
from ._settings import integer
from ._visible import positions, visible
from .attention import dot_product_attention
from .mask import AttentionMask, causal

__all__ = ["KVCache"]


class KVCache(eqx.Module):
    """Hold the keys and values of the tokens so far, in arrays of static size; `length` counts the tokens.

    A cache is immutable: `extend` and `attend` return the next one. So it may be the carry of a loop, or a donated
    argument of `jax.jit`, which is then updated in place.

    Without `window`, the token at position i is stored at index i, and the size of `KPos` is the capacity. Tokens
    beyond it are an error where the length is known, and dropped under `jax.jit`. With `window`, the arrays are a ring
    buffer for sequences of any length: a query sees the last `window` tokens, its own included, and a chunk may have
    up to `KPos.size - window + 1` tokens.

    Attributes:
        key: the keys, axes {KPos, ...}.
        value: the values, axes {KPos, ...}.
        length: the number of tokens: integers, with the axes along which sequences have their own lengths.
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

    @classmethod
    def init(
        cls,
        KPos: AxisSelector,
        axes: AxisSpec,
        value_axes: AxisSpec | None = None,
        *,
        lengths: AxisSpec = (),
        window: int | None = None,
        dtype: DTypeLike = jnp.float32,
    ) -> Self:
        """Make an empty cache, laid out by the mapping.

        Args:
            KPos: the axis of positions.
            axes: the axes of the keys, `KPos` included, in the order in which they are stored.
            value_axes: the axes of the values; by default the same.
            lengths: axes along which sequences have their own lengths, such as batch, or layers with one cache each;
                by default, all share one length.
            window: how many tokens a query sees, if not all; `KPos` may then be shorter than the sequence.
            dtype: of keys and values.

        Raises:
            AxisNotFoundError: if keys or values lack `KPos`, or an axis of `lengths`.
            AxisSizeError: if one of these axes has two sizes.
            ArgumentError: if `window` is not an int from 1 to the size of `KPos`, or `KPos` is among `lengths`.
        """
        keys = spec(axes, "KVCache.init")
        values = keys if value_axes is None else spec(value_axes, "KVCache.init")
        key, value = zeros(keys, dtype), zeros(values, dtype)
        for what, x in (("keys", key), ("values", value)):
            if not x.has_axis(KPos):
                problem = f"the {what} lack axis {axis_name(KPos)!r}, the positions"
                raise AxisNotFoundError(message("KVCache.init", problem, f"axes: {facts(x)}"))
        size = key.axis_size(KPos)
        if value.axis_size(KPos) != size:
            raise _two_sizes("KVCache.init", axis_name(KPos), "key", key, "value", value)
        if isinstance(window, bool):
            raise ArgumentError(message("KVCache.init", f"window must be an int, not {window}"))
        window = None if window is None else integer("KVCache.init", "window", window)
        if window is not None and not 1 <= window <= size:
            problem = f"window must be from 1 to {size}, the size of the cache, not {window}"
            raise ArgumentError(message("KVCache.init", problem, f"axes: {facts(key)}"))
        length = zeros(lengths, jnp.int32)
        _check_lengths(length, axis_name(KPos), key, value)
        return auto_sharded(cls(key, value, length, axis_name(KPos), window))

    def positions(self, Pos: Axis | None) -> NamedArray:
        """Return the positions of the next tokens: axes {Pos}, unless it is None, and those of `length`."""
        return positions(None if Pos is None else sized(Pos, "KVCache.positions"), self.length)

    def extend(
        self,
        Pos: AxisSelector | None,
        key: NamedArray,
        value: NamedArray,
        *,
        count: int | Operand | None = None,
        layer: tuple[AxisSelector, int | Operand] | None = None,
    ) -> Self:
        """Return the cache with more tokens.

        Args:
            Pos: the position axis of the new tokens, under another name than `KPos`; None for one token without it.
            key: axes {Pos, ...}: those of the cache without `KPos`.
            value: the same, for values.
            count: how many of the tokens are real, from the first on; by default all. It may have axes of `length`.
                The rest is padding, which no later query sees.
            layer: an axis of `length` and the index along it to extend: `("layers", i)`. The tokens and the count lack
                that axis. All other layers stay as they are, in place. A traced index must be in range.

        Raises:
            AxisNotFoundError: if a key or a value lacks an axis, or `length` one of `count` or that of `layer`.
            AxisClashError: if a key or a value has one that the cache lacks.
            AxisSizeError: if an axis has two sizes, or the index of `layer` is out of range.
            OperandError: if `count` or the index of `layer` is not an integer.
            ArgumentError: if the tokens do not fit, or `count` is not from 0 to their number.
        """
        pos, at = None if Pos is None else axis_name(Pos), self._at(layer)
        for what, x, kept in (("key", key, self.key), ("value", value, self.value)):
            self._check(what, x, kept, pos, at)
        number = 1 if Pos is None else key.axis_size(Pos)
        if pos is not None and value.axis_size(pos) != number:
            raise _two_sizes("KVCache", pos, "value", value, "key", key)
        start = _of_layer(self.length, at)
        length = (start + _real(count, number, key)).astype(self.length.dtype)
        if isinstance(count, Core) and length.names != start.names:
            problem = "the count has axes that the length of the cache lacks"
            lines = f"count has: {facts(count)}", f"length has: {facts(start)}"
            raise AxisNotFoundError(message("KVCache", problem, *lines, hint="KVCache.init(..., lengths=...)"))
        size = self.key.axis_size(self.KPos)
        room = size if self.window is None else size - self.window + 1
        if number > room or (self.window is None and _outside(length.array, 0, size)):
            problem = f"{number} more {'token does' if number == 1 else 'tokens do'} not fit"
            hint = f"make it larger, or give it a window; at most {room} fit at once"
            raise ArgumentError(message("KVCache", problem, f"cache has: {facts(self.key)}", hint=hint))
        if self.window is None:
            given = f"cache has: {facts(self.key)}"
            expect("KVCache", "length", length.array, 0, size, given, room=f"{self.KPos}={size}")
        places = positions(None if pos is None else key.resolve_axis(pos), start)
        index = {**at, self.KPos: places if self.window is None else places % size}
        filled, values = (
            _put(kept, x.astype(kept.dtype), index, start.names, self.window is not None)
            for kept, x in ((self.key, key), (self.value, value))
        )
        length = self.length.at[at].set(length) if at else length
        return auto_sharded(dataclasses.replace(self, key=filled, value=values, length=length))

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
        layer: tuple[AxisSelector, int | Operand] | None = None,
        **options: Any,
    ) -> tuple[NamedArray, Self]:
        """Extend the cache, and attend causally from the new tokens.

        Args:
            Pos: the position axis of the new tokens; None for one token without it.
            Key: the feature axis of queries and keys.
            query: axes {Pos, Key, ...}.
            key: axes {Pos, Key, ...}.
            value: axes {Pos, ...}.
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
        """
        for name in ("q_start", "k_start"):
            if name in options:
                problem = f"{name} must not be given: the cache tracks positions"
                raise ArgumentError(message("KVCache.attend", problem, hint="cache.positions(Pos)"))
        filled = self.extend(Pos, key, value, count=count, layer=layer)
        at = self._at(layer)
        Tokens = None if Pos is None else key.resolve_axis(axis_name(Pos))
        if not isinstance(query, Core):
            raise _lift.unnamed("KVCache.attend", query)
        if Tokens is not None and query.has_axis(Tokens.name) and query.axis_size(Tokens.name) != Tokens.size:
            raise _two_sizes("KVCache.attend", Tokens.name, "query", query, "key", key)
        given = AttentionMask() if mask is None else AttentionMask.of(mask, "KVCache.attend")
        self._check_mask(given, Tokens)
        start: Any = _of_layer(self.length, at)
        if self.window is None:
            given = causal() & given
        else:
            seen = self._in_window(Tokens, start)
            given, start = given if seen is None else given & seen, 0
        keys, values = _of_layer(filled.key, at), _of_layer(filled.value, at)
        return dot_product_attention(Pos, self.KPos, Key, query, keys, values, given, q_start=start, **options), filled

    def _check_mask(self, mask: AttentionMask, Tokens: Axis | None) -> None:
        """Check that the conditions of a mask are defined for the keys of the cache."""
        comparing = (clause.causal or clause.window or clause.prefix is not None for clause in mask.clauses)
        if self.window is not None and any(comparing):
            problem = "the key axis of a cache with a window has slots, which a mask cannot compare with positions"
            hint = "the window of the cache is causal already; give other conditions as an array"
            raise ArgumentError(message("KVCache.attend", problem, hint=hint))
        # Only then are all keys of the cache those of the new tokens.
        whole = self.window is None and Tokens is not None and Tokens.size == self.key.axis_size(self.KPos)
        if not whole and any(keys is None for clause in mask.clauses for _, keys in clause.segment_ids):
            problem = "the segment ids of new tokens do not cover all keys of the cache"
            hint = f"pass key_ids=..., over axis {self.KPos!r}"
            raise OperandError(message("KVCache.attend", problem, f"cache has: {facts(self.key)}", hint=hint))

    def _in_window(self, Pos: Axis | None, start: NamedArray) -> NamedArray | None:
        """Return which slots of the ring buffer each token from `start` on sees, once all of them are in it."""
        places = arange(self.key.resolve_axis(self.KPos))
        last = start + (0 if Pos is None else Pos.size - 1)
        held = batched(_held, (last, places), ((), ()), (), outer=True, size=places.size)
        pos = None if Pos is None else Pos.name
        return visible(AttentionMask(causal=True, window=self.window), positions(Pos, start), held, pos, self.KPos)

    def _at(self, layer: tuple[AxisSelector, int | Operand] | None) -> dict[str, Any]:
        """Return the checked index of one layer; an empty one without `layer`."""
        if layer is None:
            return {}
        if not isinstance(layer, tuple) or len(layer) != 2:
            problem = f"layer must be an axis and a position along it, not {type(layer).__name__}"
            raise OperandError(message("KVCache", problem, hint='such as ("layers", i)'))
        (name, _), index = selector(layer[0], "KVCache"), layer[1]
        if name not in self.length.names:
            problem = f"the cache has one length for all of axis {name!r}, which cannot grow layer by layer"
            hint = suggestion(name, self.length.names) or "KVCache.init(..., lengths=...)"
            raise AxisNotFoundError(message("KVCache", problem, f"length has: {facts(self.length)}", hint=hint))
        size = self.length.resolve_axis(layer[0]).size
        integers("KVCache", "the position of the layer", index)
        index = index.node[0][0] if isinstance(index, Core) else index
        if np.ndim(index) or _outside(index, -size, size - 1):
            problem = f"the layer must be one position along axis {name!r}, from 0 to {size - 1}"
            raise AxisSizeError(message("KVCache", problem, f"length has: {facts(self.length)}"))
        expect("KVCache", "layer", index, -size, size - 1, f"length has: {facts(self.length)}", room=f"{name}={size}")
        # Writes take no negative indices.
        return {name: widened(index) % size}

    def _check(self, what: str, x: NamedArray, kept: NamedArray, pos: str | None, at: Mapping[str, Any]) -> None:
        """Check that new keys or values have the axes of the cache."""
        if not isinstance(x, Core):
            raise _lift.unnamed("KVCache", x)
        wanted = [name for name in kept.names if name != self.KPos and name not in at]
        lines = f"{what} has: {facts(x)}", f"cache has: {facts(kept)}"
        for name in (*wanted, *(() if pos is None else (pos,))):
            if name not in x.names:
                hint = suggestion(name, x.names)
                raise AxisNotFoundError(message("KVCache", f"the {what} lacks axis {name!r}", *lines, hint=hint))
        for name in x.names:
            if name not in wanted and name != pos:
                hint = "give the positions of new tokens another name" if name == self.KPos else None
                problem = f"a new {what} must not have axis {name!r}"
                raise AxisClashError(message("KVCache", problem, *lines, hint=hint))
        for name in wanted:
            if x.axis_size(name) != kept.axis_size(name):
                raise _two_sizes("KVCache", name, what, x, "cache", kept)


def _of_layer(x: NamedArray, at: dict[str, Any]) -> NamedArray:
    """Return the part of an array that belongs to a layer; all of it where there is no index."""
    return x[at] if at else x


def _put(old: NamedArray, new: NamedArray, index: dict[Any, Any], each: tuple[str, ...], ring: bool) -> NamedArray:
    """Write new keys or values to slots, which differ along the axes `each`; those out of range are dropped."""
    if each:
        return _put_each(old, new, index, each)
    # Slots of a ring are in range; none is negative.
    reach = Reach("promise_in_bounds" if ring else "drop", sorted=not ring, unique=True, wraps=False)
    steps, arguments = planned("KVCache", old, index)
    return write("KVCache", old, steps, arguments, "set", new, reach)


def _put_each(old: NamedArray, new: NamedArray, index: dict[str, Any], each: tuple[str, ...]) -> NamedArray:
    """Do `_put` in one scatter whose batch dimensions are `each`, wherever they stand.

    `jax.vmap` would move them to the front, which copies the whole cache.
    """
    *layers, places = index.values()
    each = tuple(name for name in old.names if name in each)
    tokens = tuple(name for name in places.names if name not in each)
    inner = [name for name in old.names if name not in (*each, *index)]
    where, update = places.rearrange((*each, *tokens)), new.rearrange((*each, *tokens, *inner))
    array = on_mesh(old.array)
    anonymous = array.ndim - len(old.names)
    dims = {name: anonymous + i for i, name in enumerate(old.names)}
    indexed = tuple(dims[name] for name in index)
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=(*range(anonymous), *(anonymous + i for i in range(len(where.names), len(update.names)))),
        inserted_window_dims=tuple(sorted(indexed)),
        scatter_dims_to_operand_dims=indexed,
        operand_batching_dims=tuple(dims[name] for name in each),
        scatter_indices_batching_dims=tuple(range(len(each))),
    )

    def scatter(array: jax.Array, update: jax.Array, where: jax.Array, *layers: jax.Array) -> jax.Array:
        indices = jnp.stack([*(jnp.broadcast_to(layer, where.shape) for layer in layers), where], axis=-1)
        update = jnp.broadcast_to(update, (*array.shape[:anonymous], *update.shape[-len(new.names) :]))
        count = where.size
        written = lax.scatter(settled(array, count), indices, update, numbers, unique_indices=True, mode="drop")
        return settled_gradient(written, count)

    operands = [array, update.array, where.array, *(jnp.asarray(layer, where.dtype) for layer in layers)]
    return wrap(old, _lift.local(scatter, operands, list(_constraints.entries_of(array))), old.names)


def _held(last: jax.Array, place: jax.Array, *, size: int) -> jax.Array:
    """Return the last position so far in a slot of a ring; for an empty slot, a number after all positions."""
    held = last - (last - place) % size
    return jnp.where(held < 0, np.iinfo(np.int32).max, held)


def _real(count: int | Operand | None, number: int, key: NamedArray) -> Any:
    """Return how many of some tokens are real; checked unless it is traced."""
    if count is None:
        return number
    integers("KVCache", "the count", count)
    if _outside(count.node[0][0] if isinstance(count, Core) else count, 0, number):
        problem = f"the count of real tokens must be from 0 to {number}, the number of new tokens"
        raise ArgumentError(message("KVCache", problem, f"key has: {facts(key)}"))
    return count


def _outside(numbers: Any, least: int, most: int) -> bool:
    """Return whether a number is outside a range; false if it is not known here."""
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
            if not x.has_axis(axis.name):
                problem, hint = f"the {what} lack axis {axis.name!r} of the lengths", suggestion(axis.name, x.names)
                raise AxisNotFoundError(message("KVCache.init", problem, f"axes: {facts(x)}", hint=hint))
            if x.axis_size(axis.name) != axis.size:
                problem = f"axis {axis.name!r} has size {axis.size} in the lengths, and {x.axis_size(axis.name)} in the"
                raise AxisSizeError(message("KVCache.init", f"{problem} {what}", f"axes: {facts(x)}"))


def _two_sizes(function: str, name: str, what: str, x: NamedArray, other: str, y: NamedArray) -> AxisSizeError:
    """Build the error of an axis with different sizes in two operands."""
    problem = f"axis {name!r} has size {x.axis_size(name)} in the {what}, and {y.axis_size(name)} in the {other}"
    return AxisSizeError(message(function, problem, f"{what} has: {facts(x)}", f"{other} has: {facts(y)}"))
