"""Internal. How new keys or values are written into a cache: in place, in each compiler's way.

On a TPU, XLA turns a scatter into a loop, and gives its operand another layout. A single `dynamic_update_slice` takes
the layout of the new tokens, which has the batch where the cache has positions. Either one copies the complete cache
into that layout and back at each step of decoding. A loop that writes one box in each iteration keeps the cache's
layout, and attention reads it there. The compiler expects 8.1 instead of 32.9 million cycles for a step of 8 sequences
with 4096 positions (`benchmarks/lm_cache.py --target tpu`).
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ....array import NamedArray
from ....engine import auto
from ....engine.core import wrap
from ....engine.position import Reach
from ....engine.scatter import put_on_mesh, write
from ....engine.steps import steps_of
from ....faults.merged_slices import fit_start, like, separate, separate_gradient
from ....faults.sorted_positions import mark_varying_like
from ....layout import context, explicit, modes
from ....layout.blocks import find_entries, find_mesh
from ....layout.tracing import tracing
from ....names import plans
from ....names.plans import Names
from .parts import find_parts, write_in_parts

Index = dict[str, Any]


def write_tokens(
    old: NamedArray, new: NamedArray, index: Index, each: Names, *, ring: bool
) -> NamedArray:
    """Write new keys or values to slots; tokens whose slot is out of range are dropped.

    Args:
        old: the cache, axes {layer, KPos, ...}.
        new: the axes of `old`, with that of the tokens in place of those of `index`.
        index: the layer, if there is one, and then the slots of the tokens, which follow one another.
        each: the axes along which slots differ.
        ring: whether slots are in range, and go on at 0 behind the last one.
    """
    parts = find_parts(old, new, index, ring=ring)
    if parts is None:
        return _write(old, new, index, each, ring=ring)
    *_, k_pos = index
    # In the part of a device, slots are out of range if they are those of another one.
    own_ring = ring and not parts.entries[k_pos]

    def write(old: NamedArray, new: NamedArray, index: Index) -> NamedArray:
        return _write(old, new, index, each, ring=own_ring)

    return write_in_parts(write, parts, old, new, index)


def _write(
    old: NamedArray, new: NamedArray, index: Index, each: Names, *, ring: bool
) -> NamedArray:
    """Do `write_tokens` on an unsplit cache, or on the part of a device."""
    scatter = _scatter_each if each else _scatter
    across = _find_loop_axes(old, new, index, each, ring=ring)
    # Step by step, nothing is updated in place, and a loop would only take longer.
    if across is None or not tracing():
        return scatter(old, new, index, each, ring)
    names, numbers = tuple(index), tuple(index.values())
    others = [x.array for x in (new, *numbers) if isinstance(x, NamedArray)]
    # Both branches must return one type, which varies as all that they read.
    old = wrap(old, mark_varying_like(old.array, *others), old.names)

    def by_scatter(old: NamedArray, new: NamedArray, numbers: tuple[Any, ...]) -> NamedArray:
        return scatter(old, new, dict(zip(names, numbers, strict=True)), each, ring)

    def by_loop(old: NamedArray, new: NamedArray, numbers: tuple[Any, ...]) -> NamedArray:
        return write_boxes(old, new, dict(zip(names, numbers, strict=True)), each, across)

    # Tracing does not know the platform: both are traced, and one is compiled.
    written: NamedArray = lax.platform_dependent(old, new, numbers, tpu=by_loop, default=by_scatter)
    return written


def _find_loop_axes(
    old: NamedArray, new: NamedArray, index: Index, each: Names, *, ring: bool
) -> Names | None:
    """Return along which axes of the cache each iteration writes one box; None if a scatter is better."""
    *layers, k_pos = index
    tokens = plans.without(index[k_pos].names, each)
    wraps = ring and tokens and new.axis_size(tokens[0]) != 1
    sizes = (*old.array.shape, *new.array.shape)
    # A box cannot go on at the start of a ring, and an array without elements has none.
    if wraps or 0 in sizes or not all(isinstance(size, int) for size in sizes):
        return None
    split = _find_sharded_axes(old)
    if split is None or split.intersection((k_pos, *layers, *each)):
        return None
    # Along a sharded axis, a box at a traced index would bring the whole cache to each device.
    several = {axis.name: axis.size for axis in old.axes if axis.size > 1}
    if any(name in several for name in each):
        return each
    # One box alone would not do. All begin at one place, so that any axis will do: the shortest makes the fewest trips.
    usable = [name for name in several if name not in index and name not in split]
    return tuple(sorted(usable, key=several.__getitem__)[:1])


def _find_sharded_axes(x: NamedArray) -> set[str] | None:
    """Return the axes that the compiler splits over devices; None if they are not known."""
    mesh = find_mesh(x.array)
    if mesh.empty or set(mesh.axis_names) == modes.find_manual_axes(mesh):
        return set()
    is_known = explicit.has_explicit_axes(x.array) or context.current_mapping() is not None
    # Without types or a mapping, the compiler may split any axis.
    if mesh.size > 1 and not is_known:
        return None
    entries = find_entries(x.array, x.names)
    named = entries[len(entries) - len(x.names) :]
    return {name for name, entry in zip(x.names, named, strict=True) if entry}


def write_boxes(
    old: NamedArray, new: NamedArray, index: Index, each: Names, across: Names
) -> NamedArray:
    """Write the boxes of new tokens one after another; along `across`, each has its own position.

    Args:
        old: see `write_tokens`.
        new: see `write_tokens`.
        index: see `write_tokens`; the slots follow one another, and there are at most as many as `old` has.
        each: see `write_tokens`; sizes above 1 only if they are `across`.
        across: axes of `old`, unless they are in `index`.
    """
    *layers, k_pos = index
    places = index[k_pos]
    tokens = plans.without(places.names, each)
    # The tokens take the dimension of the positions, and a layer, of which a box has one, has none.
    kept = plans.without(old.names, tuple(layers))
    order = [own for name in kept for own in (tokens if name == k_pos else (name,))]
    array = put_on_mesh(old.array)
    anonymous = array.ndim - len(old.names)
    dims = {name: anonymous + i for i, name in enumerate(old.names)}
    lengths = [new.axis_size(name) for name in order]
    update = jnp.broadcast_to(new.rearrange(order).array, (*array.shape[:anonymous], *lengths))
    dropped = [dims[name] for name in (layers if tokens else index)]
    update = lax.expand_dims(update, sorted(dropped))
    # Slots follow one another, so that the first one says them all.
    firsts = places.rearrange((*tokens, *each)).array
    if tokens:
        firsts = firsts[0]
    at = dims[k_pos]
    over = [dims[name] for name in across]
    # The number of a trip, divided by strides, gives the index along each of the axes of the loop.
    strides = np.cumprod([1, *(array.shape[dim] for dim in reversed(over))])[::-1]

    def write_all(array: jax.Array, update: jax.Array, firsts: jax.Array, *layer: Any) -> Any:
        firsts = firsts.reshape(-1).astype(jnp.int32)

        def write_one(i: Any, array: jax.Array) -> jax.Array:
            i = lax.convert_element_type(i, np.int32)  # wide, with wide integers
            corner: list[Any] = [np.int32(0)] * array.ndim
            for name, number in zip(layers, layer, strict=True):
                corner[dims[name]] = jnp.asarray(number, jnp.int32)
            box = update
            for dim, stride in zip(over, strides[1:], strict=True):
                corner[dim] = lax.rem(lax.div(i, like(stride, i)), like(array.shape[dim], i))
                box = _slice(box, corner[dim], 1, dim)
            # Where all begin at one slot, there is one number for all trips.
            first = _slice(firsts, i, 1, 0)[0] if firsts.size > 1 else firsts[0]
            corner[at] = fit_start(first, array.shape[at], box.shape[at], wraps=False)
            # A box that does not fit is moved into range, and keeps there what is not its own.
            there = lax.dynamic_slice(array, corner, box.shape, allow_negative_indices=False)
            moved = _shift(box, there, first - corner[at], at)
            return lax.dynamic_update_slice(array, moved, corner, allow_negative_indices=False)

        return lax.fori_loop(np.int32(0), np.int32(strides[0]), write_one, array)

    operands = [array, update, firsts, *(index[name] for name in layers)]
    written = auto.local(write_all, operands, list(explicit.get_layout(array)))
    return wrap(old, written, old.names)


def _slice(array: jax.Array, start: Any, size: int, dim: int) -> jax.Array:
    return lax.dynamic_slice_in_dim(array, start, size, dim, allow_negative_indices=False)


def _shift(box: jax.Array, there: jax.Array, shift: jax.Array, dim: int) -> jax.Array:
    """Shift a box along a dimension, and drop the elements that no longer fit."""
    size = box.shape[dim]
    if size > 1:
        # A slice of two copies in a row is the box, rolled by any number of places.
        twice = lax.concatenate([box, box], dim)
        start = jnp.where(shift < 0, -shift, size - shift)
        box = _slice(twice, lax.clamp(like(0, start), start, like(size, start)), size, dim)
    place = lax.broadcasted_iota(jnp.int32, box.shape, dim) - shift
    return jnp.where((place >= 0) & (place < size), box, there)


def _scatter(old: NamedArray, new: NamedArray, index: Index, each: Names, ring: bool) -> NamedArray:
    """Do `write_tokens` in one scatter; slots are the same for all sequences."""
    # Slots of a ring are in range; none is negative.
    mode = "promise_in_bounds" if ring else "drop"
    reach = Reach(mode, sorted=not ring, unique=True, wraps=False)
    steps, arguments = steps_of("KVCache", old, index)
    return write("KVCache", old, steps, arguments, "set", new, reach)


def _scatter_each(
    old: NamedArray, new: NamedArray, index: Index, each: Names, ring: bool
) -> NamedArray:
    """Do `write_tokens` in one scatter whose batch dimensions are `each`, in any position.

    `jax.vmap` would move them to the front, which copies the whole cache.
    """
    *layers, places = index.values()
    each = tuple(name for name in old.names if name in each)
    tokens = plans.without(places.names, each)
    inner = plans.without(old.names, (*each, *index))
    where, update = places.rearrange((*each, *tokens)), new.rearrange((*each, *tokens, *inner))
    array = put_on_mesh(old.array)
    anonymous = array.ndim - len(old.names)
    dims = {name: anonymous + i for i, name in enumerate(old.names)}
    indexed = tuple(dims[name] for name in index)
    windows = range(anonymous + len(where.names), anonymous + len(update.names))
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=(*range(anonymous), *windows),
        inserted_window_dims=tuple(sorted(indexed)),
        scatter_dims_to_operand_dims=indexed,
        operand_batching_dims=tuple(dims[name] for name in each),
        scatter_indices_batching_dims=tuple(range(len(each))),
    )

    def scatter(
        array: jax.Array, update: jax.Array, where: jax.Array, *layers: jax.Array
    ) -> jax.Array:
        # A scatter takes one row of indices for each update.
        spread = [jnp.broadcast_to(layer, where.shape) for layer in layers]
        indices = jnp.stack([*spread, where], axis=-1)
        lead = array.shape[:anonymous]
        update = jnp.broadcast_to(update, (*lead, *update.shape[-len(new.names) :]))
        count = where.size
        written = lax.scatter(
            separate(array, count), indices, update, numbers, unique_indices=True, mode="drop"
        )
        return separate_gradient(written, count)

    starts = [jnp.asarray(layer, where.dtype) for layer in layers]
    operands = [array, update.array, where.array, *starts]
    return wrap(old, auto.local(scatter, operands, list(explicit.get_layout(array))), old.names)
