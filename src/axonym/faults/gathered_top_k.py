"""Internal. XLA gathers the whole operand of `jax.lax.top_k`, along a split axis and along a split batch alike.

All versions, on Auto and Explicit axes; `tests/upstream/test_gathered_top_k.py` shows it. The guard lets each device
select from its own block in a shard_map. Then all devices get these few elements, and select from them. `ops/sorting`
calls it where it knows how an array is split.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import Tracer
from jax.sharding import NamedSharding

from ..layout import context, explicit, modes, partition, records
from ..layout.assignment import Entry
from ..layout.blocks import choose_manual_axes, find_mesh
from ..layout.layout import Layout
from ..names.plans import Names

Selected: TypeAlias = tuple[jax.Array, jax.Array]
Select: TypeAlias = Callable[[jax.Array, int], Selected]


class Blocks(NamedTuple):
    """How an array is split.

    Attributes:
        entries: the mesh axes of each dimension, the one to select along last.
        manual: the mesh axes that are Manual while blocks are computed.
    """

    entries: tuple[Entry, ...]
    manual: tuple[str, ...]


def find_blocks(array: jax.Array, names: Names, name: str) -> Blocks | None:
    """Find out how an array is split; None if it is not, or nobody knows.

    Explicit mesh axes are those of its type. Auto mesh axes are those of its sharding or, while tracing, of the current
    mapping; an array with another layout is resharded. A dimension that does not divide is gathered.

    Args:
        array: the array.
        names: its names.
        name: the axis to select along.
    """
    mesh = find_mesh(array)
    if mesh.empty or records.AUDIT.get() is not None:
        return None
    layout = explicit.get_layout(array).only(mesh.shape)
    auto = _read_sharding(array)
    if auto is None:
        sizes = array.shape[array.ndim - len(names) :]
        mapped = context.map_names(dict(zip(names, sizes, strict=True)))
        auto = Layout([()] * (array.ndim - len(names)) + [mapped.get(own, ()) for own in names])
    auto = auto.only(modes.find_auto_axes(mesh))
    used = set(context.get_taken_axes())
    entries: list[Entry] = []
    for size, typed, other in zip(array.shape, layout, auto, strict=True):
        entry = partition.without((*typed, *other), used)
        # The size of a dimension may be a symbol, of which nobody knows what divides it.
        if not isinstance(size, int) or not size or size % partition.count_shards(mesh, entry):
            entry = ()
        used.update(entry)
        entries.append(entry)
    if partition.count_shards(mesh, tuple(chain(*entries))) == 1:
        return None
    entries.append(entries.pop(names.index(name) - len(names)))
    manual = choose_manual_axes(mesh, entries, explicit.has_explicit_axes(array))
    return Blocks(tuple(entries), tuple(sorted(manual)))


def _read_sharding(array: jax.Array) -> Layout | None:
    """Return the mesh axes of a concrete array; None while tracing."""
    if isinstance(array, Tracer):
        return None
    sharding = array.sharding
    if not isinstance(sharding, NamedSharding):
        return Layout([()] * array.ndim)
    return Layout.from_spec(sharding.spec, array.ndim)


def select_by_blocks(select: Select, array: jax.Array, k: int, blocks: Blocks | None) -> Selected:
    """Select elements along the last dimension, and return their positions too.

    Args:
        select: selects so many elements along the last dimension of an array.
        array: the array.
        k: the number of elements.
        blocks: how the array is split.
    """
    # On Explicit axes, a first call only asks for shapes.
    if blocks is None or not set(chain(*blocks.entries)) <= modes.find_auto_axes(find_mesh(array)):
        found, at = select(array, k)
        return found, at
    found, at = _select(select, lax.stop_gradient(array), k, blocks)
    return _pass_tangents(array, found, at), at


def _select(select: Select, array: jax.Array, k: int, blocks: Blocks) -> Selected:
    *batch, own = blocks.entries
    split, joined = Layout(blocks.entries).spec, Layout([*batch, ()]).spec

    def by_device(fn: Callable[..., Selected], spec: Any, *arrays: jax.Array) -> Selected:
        mapped = jax.shard_map(
            fn,
            mesh=context.mesh_for_blocks(find_mesh(array)),
            in_specs=spec,
            out_specs=(spec, spec),
            axis_names=set(blocks.manual),
        )
        return mapped(*arrays)

    def select_own(block: jax.Array) -> Selected:
        size = block.shape[-1]
        found, at = select(block, min(k, size))
        return found, at + lax.axis_index(own) * size if own else at

    def select_among(elements: jax.Array, positions: jax.Array) -> Selected:
        found, at = select(elements, k)
        return found, jnp.take_along_axis(positions, at, -1)

    selected = by_device(select_own, split, array)
    # They are in the order of blocks: as on one device, equal elements come in the order of their positions.
    return by_device(select_among, joined, *selected) if own else selected


@jax.custom_jvp
def _pass_tangents(array: jax.Array, found: jax.Array, at: jax.Array) -> jax.Array:
    """Return `found` with the tangents of the array: JAX could not differentiate a nested shard_map."""
    return found


@_pass_tangents.defjvp
def _pass_jvp(primals: Sequence[jax.Array], tangents: Sequence[Any]) -> tuple[jax.Array, jax.Array]:
    _, found, at = primals
    return found, jnp.take_along_axis(tangents[0], at, -1)
