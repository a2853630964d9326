"""Internal. XLA gathers the batch of a Fourier transform, and may end the process over a split axis.

JAX 0.10 gathers the batch, as `tests/upstream/test_gathered_transforms.py` shows. In all versions the process may end;
this has no reproducer, since it would end the process that runs the tests. The guard transforms the block of each
device in a shard_map. One all-to-all moves the mesh axes of a transformed axis to another axis before the transform,
and another one moves them back afterwards.
"""

from collections.abc import Callable, Sequence
from itertools import chain, takewhile

import jax
from jax import lax

from ..layout import context, explicit, modes, tracing
from ..layout.assignment import Entry, MeshLike
from ..layout.blocks import find_entries, find_mesh
from ..layout.layout import Layout
from ..layout.partition import count_shards, only
from ..names.plans import Names, positions


def transform_blocks(
    transform: Callable[[jax.Array], jax.Array],
    array: jax.Array,
    names: Names,
    chosen: Names,
) -> jax.Array:
    """Transform an array along axes, whose sizes may change; all other axes are a batch.

    Args:
        transform: transforms an array of the same names, perhaps smaller along the batch.
        array: the array.
        names: its names.
        chosen: the axes that are transformed.
    """
    mesh = find_mesh(array)
    # An eager call would compile the shard_map each time.
    if mesh.empty or not tracing.tracing():
        return transform(array)
    entries = find_entries(array, names)
    at = [array.ndim + i for i in positions(names, chosen)]
    wanted = _choose_mesh_axes(mesh, array.shape, entries, dict(zip(at, chosen, strict=True)))
    if all(count_shards(mesh, entry) == 1 for entry in wanted):
        return transform(array)

    result = jax.eval_shape(transform, jax.ShapeDtypeStruct(array.shape, array.dtype))
    places = _find_places(mesh, array.shape, wanted, at)
    sent = [i for i in places if entries[i]]
    # The mesh axes that moved last move back first. They stay where they are if they do not divide the new size.
    back = list(
        takewhile(lambda i: not result.shape[i] % count_shards(mesh, wanted[i]), reversed(places))
    )
    before = [() if i in at and i not in sent else entry for i, entry in enumerate(entries)]
    after = [wanted[i] if i in back or i not in at else () for i in range(array.ndim)]
    for i, other in places.items():
        if i not in sent:
            before[other] += wanted[i]
        if i not in back:
            after[other] += wanted[i]

    def transform_block(block: jax.Array) -> jax.Array:
        for i in sent:
            block = lax.all_to_all(block, wanted[i], places[i], i, tiled=True)
        block = transform(block)
        for i in back:
            block = lax.all_to_all(block, wanted[i], i, places[i], tiled=True)
        return block

    # All axes, so that no operation inside sees Explicit ones, but those of a surrounding `vmap`.
    manual = set(mesh.axis_names) - modes.find_manual_axes(mesh)
    if explicit.has_explicit_axes(array):
        manual -= set(context.get_taken_axes())
        array = explicit.reshard(array, Layout(before).only(modes.find_explicit_axes(mesh)))
    transformed: jax.Array = jax.shard_map(
        transform_block,
        mesh=context.mesh_for_blocks(mesh),
        in_specs=Layout(before).spec,
        out_specs=Layout(after).spec,
        axis_names=manual,
    )(array)
    return transformed


def _choose_mesh_axes(
    mesh: MeshLike, shape: Sequence[int], entries: Sequence[Entry], chosen: dict[int, str]
) -> list[Entry]:
    """Return the mesh axes of each dimension; take them from the mapping if they did not divide it before."""
    wanted = list(entries)
    for i, name in chosen.items():
        entry = only(context.map_names({name: shape[i]}).get(name, ()), modes.find_auto_axes(mesh))
        if not entry or set(entry) & set(chain(*wanted)):
            continue
        wanted[i] = entry
    return wanted


def _find_places(
    mesh: MeshLike, shape: Sequence[int], entries: Sequence[Entry], at: Sequence[int]
) -> dict[int, int]:
    """For each split dimension in `at`, choose another dimension that can be split over its mesh axes."""
    blocks = [size // count_shards(mesh, entry) for size, entry in zip(shape, entries, strict=True)]
    places: dict[int, int] = {}
    for i in at:
        ways = count_shards(mesh, entries[i])
        for other, size in enumerate(blocks):
            if ways > 1 and other not in at and not size % ways:
                places[i], blocks[other] = other, size // ways
                break
    return places
