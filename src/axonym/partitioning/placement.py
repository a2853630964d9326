"""Make global arrays from host data, sharded by a mapping; each of many processes loads only its part.

No data passes through one device to the others, and no process needs data that its devices do not hold.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..array import NamedArray, is_named_array
from ..axis import AxisSpec, names_and_sizes, spec
from ..base.kinds import type_text
from ..engine.core import facts, shape_of, wrap
from ..errors import AxisSizeError, OperandError, ShardingError, describe, message
from ..layout import context, partition
from ..layout.assignment import AxisMapping, MeshLike, ResourceMapping
from ..layout.records import note
from ..names.plans import Names
from .buffers import copy_aligned
from .keys import check_keys_of_data
from .trees import collect_names, no_mapping, no_mesh

__all__ = ["from_callback", "from_local", "local_slices"]

T = TypeVar("T")


def from_local(
    tree: T,
    mapping: ResourceMapping | None = None,
    mesh: MeshLike | None = None,
    *,
    strict: bool = True,
) -> T:
    """Make global arrays of the parts that each process has, sharded by a mapping.

    Each named array of the tree holds the part of this process. Along an axis that the mapping splits over several
    processes, it has the positions of `local_slices`, and all positions of other axes. In a single process, the part is
    the whole array.
    Parts must have the same sizes on all processes, which is not checked. Data is copied, so a loader may reuse its
    buffers. Keys of `jax.random` are loaded like numbers.

    Args:
        tree: named arrays that hold numpy arrays, as in `axn.NamedArray(rows, ("batch", "embed"))`, or JAX arrays of
            this process. Other leaves stay as they are.
        mapping: axis names to mesh axes; by default the current mapping. Axes without an entry are replicated: every
            process has all positions, with the same values. The mapping may be that of the computation, which also has
            axes of the model.
        mesh: by default the mesh of `set_mesh`.
        strict: raise if no array of the tree has an axis of a given mapping, and for keys that resemble an axis
            without an entry.

    Returns:
        The tree with global arrays: an axis that is split over n processes has n times its size here.

    Raises:
        ShardingError: if there is no mapping or no mesh with devices, or they do not fit the arrays.
        OperandError: if an array has no data on this host, such as inside jit; if no array has names.

    Examples:
        >>> mesh = jax.make_mesh((8,), ("data",))
        >>> rows = axn.NamedArray(np.ones((16, 4)), ("batch", "embed"))
        >>> x = axn.from_local(rows, {"batch": "data"}, mesh)
        >>> x.shape, x.sharding.spec
        ({'batch': 16, 'embed': 4}, P('data', None))
    """
    resolved, concrete = _find_mapping_and_mesh("from_local", mapping, mesh)
    if strict and not any(map(is_named_array, jax.tree.leaves(tree, is_leaf=is_named_array))):
        hint = 'name their dimensions: axn.NamedArray(rows, ("batch", "embed"))'
        raise OperandError(
            message(
                "from_local", "there is no named array, so nothing would be laid out", hint=hint
            )
        )
    if mapping is not None and strict:
        check_keys_of_data("from_local", resolved, collect_names(tree), concrete)

    def load_leaf(leaf: object) -> Any:
        return _from_local(leaf, resolved, concrete) if isinstance(leaf, NamedArray) else leaf

    made: T = jax.tree.map(load_leaf, tree, is_leaf=is_named_array)
    return made


def _from_local(x: NamedArray, mapping: AxisMapping, mesh: Mesh) -> NamedArray:
    array: Any = x.array
    if not jax.tree.leaves(array):  # a filter or a mask has removed it
        return x
    shape, names = shape_of("from_local", array, x.names), x.names
    if not _is_on_this_host(array):
        held = "a traced array" if isinstance(array, Tracer) else type_text(array)
        problem = f"a NamedArray holds {held}, which is not data of this process"
        hint = "give it a numpy array, outside of jit"
        raise OperandError(message("from_local", problem, f"its axes: {facts(x)}", hint=hint))
    parts = _list_parts("from_local", names, shape, mapping, mesh)
    for name, size, (own, ways) in zip(names[::-1], shape[::-1], parts[::-1], strict=False):
        if size % len(own):
            problem = f"{name}={size} cannot be split evenly in {len(own)}, "
            problem += f"the parts that this process holds of {ways}"
            mesh_fact = f"mesh: {partition.describe_mesh(mesh)}"
            lines = (f"array has: {facts(x)}", f"mapping: {mapping}", mesh_fact)
            hint = f"use a multiple of {len(own)}"
            raise ShardingError(message("from_local", problem, *lines, hint=hint))
    # All processes compute the same global size, since their parts have equal sizes.
    sizes = tuple(size // len(own) * ways for size, (own, ways) in zip(shape, parts, strict=True))
    sharding = _find_sharding("from_local", names, sizes, mapping, mesh)
    # NumPy has no random keys: their numbers are loaded, in a further dimension that no axis splits.
    is_keys = jnp.issubdtype(array.dtype, jax.dtypes.prng_key)
    data = np.asarray(jax.random.key_data(array) if is_keys else array)

    def load(index: tuple[slice, ...]) -> Any:
        # It is copied, because devices may read the memory later, and a CPU keeps it as the array.
        return copy_aligned(data[_locate_block(index, parts)])

    if is_keys:
        numbers = _assemble((*sizes, *data.shape[array.ndim :]), sharding, load)
        return wrap(x, jax.random.wrap_key_data(numbers, impl=jax.random.key_impl(array)), names)
    return wrap(x, _assemble(sizes, sharding, load), names)


def _is_on_this_host(array: object) -> bool:
    """Return whether the values of an array can be read here."""
    if isinstance(array, Tracer) or not isinstance(array, jax.Array):
        return isinstance(array, np.ndarray | np.generic)
    return array.is_fully_addressable or array.is_fully_replicated


def local_slices(
    axes: AxisSpec,
    mapping: ResourceMapping | None = None,
    mesh: MeshLike | None = None,
    *,
    strict: bool = True,
) -> dict[str, slice]:
    """Return the positions of each axis that this process has to load: those that its devices hold.

    Args:
        axes: the axes of the global array.
        mapping: axis names to mesh axes; by default the current mapping.
        mesh: by default the mesh of `set_mesh`.
        strict: as in `from_local`.

    Returns:
        A slice for each axis, in the order of `axes`: of a file with all positions, `file[tuple(slices.values())]` is
        the part for `from_local`.

    Raises:
        ShardingError: if there is no mapping or no mesh with devices, or they do not fit the axes; if the positions of
            an axis on this process are not one range.

    Examples:
        >>> mesh = jax.make_mesh((8,), ("data",))
        >>> axn.local_slices(axn.make_axes(batch=16, embed=4), {"batch": "data"}, mesh)
        {'batch': slice(0, 16, None), 'embed': slice(0, 4, None)}
    """
    resolved, concrete = _find_mapping_and_mesh("local_slices", mapping, mesh)
    given = spec(axes, "local_slices")
    names, sizes = names_and_sizes(given)
    if mapping is not None and strict:
        check_keys_of_data("local_slices", resolved, set(names), concrete)
    # It raises for axes that the mapping cannot split, as the array itself would.
    _find_sharding("local_slices", names, sizes, resolved, concrete)
    slices = {}
    parts = _list_parts("local_slices", names, sizes, resolved, concrete)
    for name, size, (own, ways) in zip(names, sizes, parts, strict=True):
        # One slice describes the positions of this process only if no part of another one is between them.
        if own[-1] - own[0] >= len(own):
            held = ", ".join(map(str, own))
            problem = f"this process does not hold one range of {name!r}: parts {held} of {ways}"
            hint = "use from_callback, which loads block by block"
            mesh_fact = f"mesh: {partition.describe_mesh(concrete)}"
            lines = (f"array has: {describe(names, sizes)}", f"mapping: {resolved}", mesh_fact)
            raise ShardingError(message("local_slices", problem, *lines, hint=hint))
        slices[name] = slice(own[0] * (size // ways), (own[-1] + 1) * (size // ways))
    return slices


def from_callback(
    axes: AxisSpec,
    fn: Callable[[dict[str, slice]], Any],
    mapping: ResourceMapping | None = None,
    mesh: MeshLike | None = None,
    *,
    copy: bool = True,
    strict: bool = True,
) -> NamedArray:
    """Make a global array of blocks that a function loads, sharded by a mapping.

    Only blocks that devices of this process hold are loaded, each once, however many devices hold it.

    Args:
        axes: the axes of the global array.
        fn: takes the positions of a block, a slice with start and stop for each axis, and returns the block as a numpy
            array with the axes in the order of `axes`.
        mapping: axis names to mesh axes; by default the current mapping.
        mesh: by default the mesh of `set_mesh`.
        copy: whether blocks are copied. Without it, the array may keep the memory of a block, so it must be new, and
            not be written again.
        strict: raise for keys of a given mapping that resemble an axis without an entry.

    Returns:
        The global array, with the names of `axes`. `jax.make_array_from_callback` loads a block again for each device
        that holds it, and knows no names.

    Raises:
        ShardingError: if there is no mapping or no mesh with devices, or they do not fit the axes.
        AxisSizeError: if a block does not have the requested shape.

    Examples:
        >>> mesh = jax.make_mesh((8,), ("data",))
        >>> file = np.arange(64).reshape(16, 4)  # or np.load("weight.npy", mmap_mode="r")
        >>> Rows, Embed = axn.make_axes(rows=16, embed=4)
        >>> x = axn.from_callback((Rows, Embed), lambda at: file[at["rows"], at["embed"]], {"rows": "data"}, mesh)
        >>> x.sharding.shard_shape(x.array.shape)
        (2, 4)
    """
    resolved, concrete = _find_mapping_and_mesh("from_callback", mapping, mesh)
    given = spec(axes, "from_callback")
    names, sizes = names_and_sizes(given)

    def load(index: tuple[slice, ...]) -> Any:
        block = fn(dict(zip(names, index, strict=True)))
        if copy:
            block = copy_aligned(np.asarray(block))
        # An error of JAX would not name the axes.
        wanted = tuple(part.stop - part.start for part in index)
        if np.shape(block) != wanted:
            problem = f"asked for the block {describe(names, wanted)}, "
            problem += f"the function returned shape {np.shape(block)}"
            there = f"the array has: {describe(names, sizes)}"
            raise AxisSizeError(message("from_callback", problem, there))
        return block

    sharding = _find_sharding("from_callback", names, sizes, resolved, concrete)
    if mapping is not None and strict:
        check_keys_of_data("from_callback", resolved, set(names), concrete, whole=True)
    return NamedArray(_assemble(sizes, sharding, load), names)


def _find_mapping_and_mesh(
    function: str, mapping: ResourceMapping | None, mesh: MeshLike | None
) -> tuple[AxisMapping, Mesh]:
    """Find the mapping and the mesh, whose devices must be known."""
    resolved = context.resolve_mapping(mapping)
    if resolved is None:
        raise no_mapping(function)
    if mesh is None:
        with suppress(ValueError):  # while tracing, there is only an abstract mesh
            current = jax.sharding.get_mesh()
            if not current.empty:
                mesh = current
    mesh = context.context_mesh(mesh)
    if mesh is None:
        raise no_mesh(function, resolved)
    if not isinstance(mesh, Mesh):
        problem = "an abstract mesh has no devices to put data on"
        hint = "call it outside of jit, on a mesh of jax.make_mesh"
        raise ShardingError(
            message(function, problem, f"mesh: {partition.describe_mesh(mesh)}", hint=hint)
        )
    if not mesh.local_devices:
        problem = f"no device of the mesh belongs to this process, number {jax.process_index()}"
        raise ShardingError(message(function, problem, f"mesh: {partition.describe_mesh(mesh)}"))
    return resolved, mesh


def _find_sharding(
    function: str, names: Names, sizes: tuple[int, ...], mapping: AxisMapping, mesh: Mesh
) -> NamedSharding:
    note(mapping, names)
    return NamedSharding(mesh, partition.find_layout(names, sizes, mapping, mesh, function).spec)


def _list_parts(
    function: str, names: Names, shape: tuple[int, ...], mapping: AxisMapping, mesh: Mesh
) -> list[tuple[list[int], int]]:
    """List, for each dimension, the parts that this process holds, and the number of all parts."""
    entries = partition.assign_mesh_axes(names, shape, mapping, mesh, function)
    parts = [([0], 1)] * (len(shape) - len(names))
    for name in names:
        entry = entries.get(name, ())
        count = partition.count_shards(mesh, entry)
        # JAX says which blocks this process holds, whatever the order of its devices, for an array with one element in
        # each block.
        sharding: Any = NamedSharding(mesh, PartitionSpec(entry))
        indices = sharding.addressable_devices_indices_map((count,)).values()
        parts.append((sorted({index[0].start or 0 for index in indices}), count))
    return parts


def _locate_block(
    index: tuple[slice, ...], parts: Sequence[tuple[list[int], int]]
) -> tuple[slice, ...]:
    """Find a block of the global array in the data of this process, the concatenation of its parts."""
    found = []
    for at, (own, _) in zip(index, parts, strict=False):
        size = at.stop - at.start
        first = own.index(at.start // size) * size if size else 0
        found.append(slice(first, first + size))
    return tuple(found)


def _assemble(
    sizes: tuple[int, ...], sharding: NamedSharding, load: Callable[[tuple[slice, ...]], Any]
) -> jax.Array:
    """Make an array of the blocks that the devices of this process hold, in new memory that it may keep."""

    def place_of(index: Any) -> tuple[tuple[int, int], ...]:
        return tuple(part.indices(size)[:2] for part, size in zip(index, sizes, strict=True))

    # Each block is loaded once, however many devices hold it: to load one may mean to read a file.
    blocks: dict[Any, Any] = {}
    for place in map(place_of, sharding.addressable_devices_indices_map(sizes).values()):
        if place not in blocks:
            blocks[place] = load(tuple(slice(*part) for part in place))
    # This transfer is explicit, but JAX takes it for an implicit one. If neither is allowed, JAX still raises.
    config: Any = jax.config
    implicit_only = config.jax_transfer_guard_host_to_device in ("disallow", "log")
    with jax.transfer_guard_host_to_device("allow") if implicit_only else nullcontext():
        return jax.make_array_from_callback(sizes, sharding, lambda index: blocks[place_of(index)])
