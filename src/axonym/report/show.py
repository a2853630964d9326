"""Show the layout of each array of a tree, or the blocks of one array.

`show` makes a table or a picture of a whole tree, `visualize` lists the devices that hold each block of one array.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from ..array import NamedArray, is_named_array
from ..base.kinds import Payload, Tree, has_type, type_text
from ..engine import checks
from ..engine.core import facts, shape_of
from ..errors import OperandError, describe, message
from ..layout import assignment, context, modes, partition
from ..layout.assignment import AxisMapping, Mappings, MeshLike, ResourceMapping
from ..layout.layout import Layout
from ..names.plans import Names
from ..partitioning.keys import check_keys
from ..partitioning.trees import (
    choose_mapping,
    collect_names,
    collect_paths,
    find_layout_names,
    find_several,
    no_mesh,
)
from ..protocols.printing import summary
from .picture import Drawing, Picture, Side, cut
from .table import Cell, Printed, Table, byte_text, group_rows, numbers, total
from .target import get_memory_kind

__all__ = [
    "ArrayLayout",
    "Block",
    "Blocks",
    "Layouts",
    "array_table",
    "arrays_of",
    "planned",
    "show",
    "visualize",
]


@dataclasses.dataclass(frozen=True)
class ArrayLayout:
    """The layout of one array of a tree.

    Attributes:
        path: its path in the tree, such as `layers.0.weight`.
        names: the names of the trailing dimensions.
        shape: all sizes.
        dtype: the dtype, or None if unknown.
        spec: mesh axes per dimension, or None if no PartitionSpec describes the layout.
        nbytes: bytes of the array, or None if unknown.
        nbytes_per_device: bytes on each device that holds a part, or None if unknown.
        planned: whether this is the layout by a mapping, not the actual one.
        note: replaces the spec, such as `one device`.
        mesh: the axes of the mesh with their sizes; none if there is no spec.
        memory: the kind of memory that holds it, such as `pinned_host`; empty for that of the devices.

    Examples:
        >>> tree, mesh = {"x": axn.zeros({"batch": 8})}, jax.make_mesh((4,), ("data",))
        >>> layouts = axn.partitioning.show(tree, {"batch": "data"}, mesh)
        >>> row = layouts.arrays[0]
        >>> row.path, row.layout, row.nbytes, row.nbytes_per_device
        ('x', ('batch→data',), 32, 8)
    """

    path: str
    names: Names
    shape: tuple[int, ...]
    dtype: str | None
    spec: PartitionSpec | None
    nbytes: int | None = None
    nbytes_per_device: int | None = None
    planned: bool = False
    note: str = ""
    mesh: tuple[tuple[str, int], ...] = ()
    memory: str = ""

    @property
    def held(self) -> int:
        """Bytes in the memory of each device with a part; 0 if the host holds the array, or if they are unknown."""
        return 0 if self.memory else self.nbytes_per_device or 0

    @property
    def layout(self) -> tuple[str, ...]:
        """The layout by name, such as `("batch→data", "embed→(fsdp, model)")`."""
        if self.spec is None:
            return (self.note,)
        entries = Layout.from_spec(self.spec, len(self.shape))
        split: list[str] = []
        for label, axes in zip(_label_dimensions(self.names, self.shape), entries, strict=True):
            if len(axes) == 1:
                split.append(f"{label}→{axes[0]}")
            elif axes:
                split.append(f"{label}→({', '.join(axes)})")
        place = (f"in {self.memory}",) if self.memory else ()
        return (*(split or ["replicated"]), *place)

    @property
    def cells(self) -> tuple[str, Cell, str, Cell, str, str]:
        """The row of a table: path, axes, dtype, layout, bytes, bytes per device."""
        anonymous = self.shape[: len(self.shape) - len(self.names)]
        pairs = zip(self.names, self.shape[len(anonymous) :], strict=True)
        first = [f"anonymous {anonymous}"] if anonymous else []
        axes = (*first, *(f"{name}={size}" for name, size in pairs))
        return (
            self.path or "array",
            axes or "no axes",
            self.dtype or "",
            self.layout,
            byte_text(self.nbytes),
            byte_text(self.nbytes_per_device),
        )

    def drawing(self, title: str) -> Drawing:
        """Draw the array; of more than two dimensions, those that are split.

        Args:
            title: the text above the drawing.
        """
        entries = Layout.from_spec(self.spec or PartitionSpec(), len(self.shape))
        sizes = dict(self.mesh)
        counts = [math.prod(sizes[axis] for axis in entry) for entry in entries]
        labels = _label_dimensions(self.names, self.shape)

        def side(part: slice) -> Side:
            texts: list[str] = []
            size = parts = 1
            for i in chosen[part]:
                split = f" → {', '.join(entries[i])}" if entries[i] else ""
                texts.append(f"{labels[i]}={self.shape[i]}{split}")
                size, parts = size * self.shape[i], parts * counts[i]
            return Side(", ".join(texts), size, parts)

        # One dimension goes from left to right, as a row of a table.
        chosen, middle = _choose_dimensions(counts)
        down, across = slice(middle), slice(middle, None)
        drawn = [entries[i] for i in chosen]
        blocks = cut((drawn[down], drawn[across]), self.mesh)
        caption = self.note or byte_text(self.nbytes)
        if not self.note and self.nbytes_per_device is not None:
            caption += f", on each device {byte_text(self.nbytes_per_device)}"
        count = math.prod(sizes.values())
        return Drawing(title, caption, side(down), side(across), blocks, count)


def _choose_dimensions(counts: Sequence[int]) -> tuple[list[int], int]:
    """Choose the dimensions to draw, and how many of them go from top to bottom, before those from left to right.

    Args:
        counts: the number of blocks along each dimension.
    """
    dims = list(range(len(counts)))
    if len(dims) > 2:
        others = [i for i in dims if counts[i] == 1]
        dims = [i for i in dims if counts[i] > 1]
        # Two sides make a rectangle: fill up with the last dimensions, which are next to each other in memory.
        if len(dims) < 2:
            dims = sorted(dims + others[-2 + len(dims) :])
    return dims, int(len(dims) > 1)


def _label_dimensions(names: Names, shape: Sequence[int]) -> tuple[str, ...]:
    """Name each dimension; anonymous ones by position."""
    return (*(f"dim {i}" for i in range(len(shape) - len(names))), *names)


def array_table(arrays: Sequence[ArrayLayout], titles: tuple[str, str]) -> Table:
    """Make a table of layouts, with total bytes at its end.

    Args:
        arrays: the layouts, one row each; rows that differ only in numbers in their paths are one.
        titles: the headers of the columns of paths and of layouts.

    Examples:
        >>> from axonym.report.show import array_table
        >>> tree, mesh = {"x": axn.zeros({"batch": 8})}, jax.make_mesh((4,), ("data",))
        >>> layouts = axn.partitioning.show(tree, {"batch": "data"}, mesh)
        >>> print(array_table(layouts.arrays, ("argument", "layout")))
        argument  axes     dtype    layout      bytes  per device
        x         batch=8  float32  batch→data   32 B         8 B
    """
    # The compiler may not have decided.
    own = total(None if array.nbytes_per_device is None else array.held for array in arrays)
    everything = byte_text(sum(array.nbytes or 0 for array in arrays))
    sums = ("all", f"{len(arrays)} arrays", "", "", everything, byte_text(own))
    last = sums if len(arrays) > 1 else None
    header = (titles[0], "axes", "dtype", titles[1], "bytes", "per device")
    return Table(header, group_rows(array.cells for array in arrays), last)


@dataclasses.dataclass(frozen=True, repr=False)
class Layouts(Printed):
    """The layouts of the arrays of a tree, which print as a table, also in notebooks.

    Attributes:
        arrays: the layout of each array.

    Examples:
        >>> axn.partitioning.show({"x": np.zeros(3), "y": 1})
        array  axes            dtype    layout  bytes  per device
        x      anonymous (3,)  float64  host     24 B
    """

    arrays: tuple[ArrayLayout, ...]

    def parts(self) -> Iterator[str | Table]:
        """Yield the paragraphs and tables."""
        for planned, title in ((False, "layout"), (True, "planned layout")):
            arrays = [array for array in self.arrays if array.planned is planned]
            if arrays:
                yield array_table(arrays, ("array", title))
        if not self.arrays:
            yield "no arrays"

    def picture(self) -> Picture:
        """Return a picture of the arrays, which notebooks show: the blocks of each, in the colours of their devices.

        Like rows of the table, arrays that differ only in numbers in their paths are drawn once.
        """
        by_cells: dict[tuple[Cell, ...], ArrayLayout] = {
            array.cells[1:]: array for array in self.arrays
        }
        rows = group_rows(array.cells for array in self.arrays)
        drawings = tuple(by_cells[tuple(cells)].drawing(str(path)) for path, *cells in rows)
        meshes = dict.fromkeys(array.mesh for array in self.arrays if array.mesh)
        title = f"mesh {'; '.join(map(_write_mesh, meshes))}" if meshes else "no mesh"
        return Picture(title, drawings)


def _write_mesh(mesh: tuple[tuple[str, int], ...]) -> str:
    return ", ".join(f"{axis}={size}" for axis, size in mesh)


def arrays_of(tree: Tree, function: str) -> Iterator[tuple[str, Names, Payload]]:
    """Yield path, names and payload of each array of a tree; plain and reduced arrays have no names.

    Args:
        tree: any tree.
        function: what the user called, for errors.

    Examples:
        >>> from axonym.report.show import arrays_of
        >>> [(path, names) for path, names, _ in arrays_of({"x": axn.zeros({"pos": 2}), "n": 3}, "show")]
        [('x', ('pos',))]
    """
    # A filter leaves named arrays without an array, which have no layout.
    for keys, leaf in jax.tree.leaves_with_path(tree, is_leaf=is_named_array):
        if isinstance(leaf, NamedArray):
            if has_type(leaf.array):
                names = find_layout_names(function, keys, leaf)
                yield assignment.path_text(keys), names, leaf.array
        elif has_type(leaf):
            yield assignment.path_text(keys), (), leaf


def show(
    tree: Tree,
    mapping: ResourceMapping | Mappings | None = None,
    mesh: MeshLike | None = None,
    *,
    strict: bool = True,
) -> Layouts:
    """Show the layout of each array of a tree: names, sizes, dtype, layout, bytes and bytes per device.

    Without a mapping, the table shows actual layouts; for a traced array on a mesh with Explicit axes, the layout in
    its type. On Auto axes, the compiler decides after tracing. For such arrays, and for abstract ones without a
    sharding, the table has the layout by the current mapping, in a column `planned layout`.

    Args:
        tree: any tree. Arrays may be traced, or `jax.ShapeDtypeStruct`.
        mapping: show the layout by this mapping instead.
        mesh: the mesh for that; by default the one of `set_mesh`.
        strict: raise for keys of a given mapping that no array of the tree has, as `shard` does.

    Returns:
        An object that prints as a table, also in notebooks. Arrays that differ only in numbers in their paths share a
        row, with the bytes of one of them.

    Raises:
        ShardingError: if there is a mapping and no mesh, or they do not fit the arrays.

    Examples:
        >>> mesh = jax.make_mesh((4, 2), ("data", "model"))
        >>> x = axn.ones(axn.make_axes(batch=8, embed=16))
        >>> axn.partitioning.show({"x": x}, {"batch": "data"}, mesh)
        array  axes               dtype    planned layout  bytes  per device
        x      batch=8, embed=16  float32  batch→data      512 B       128 B
    """
    resolved: Mappings | None
    if isinstance(mapping, Mappings):
        resolved = mapping
    else:
        current = context.resolve_mapping(mapping)
        resolved = None if current is None else Mappings(current)
    mesh = context.context_mesh(mesh)
    if mapping is not None and resolved is not None:
        if mesh is None:
            raise no_mesh("show", resolved.compute)
        if strict:
            check_keys("show", resolved, collect_names(tree), mesh, collect_paths(tree))
    # Without a mapping in the call, arrays on devices have their layout, and only others follow the current mapping.
    rows: list[ArrayLayout] = []
    several = find_several(tree)
    for path, names, array in arrays_of(tree, "show"):
        row = _find_actual(path, names, array) if mapping is None else None
        if row is None and resolved is not None and mesh is not None:
            own = choose_mapping(resolved, names, array.shape, path, several)
            row = planned(path, names, array, own, mesh, "show")
        if row is None:
            row = _make_row(path, names, array, None, note="not known")
        rows.append(row)
    return Layouts(tuple(rows))


def planned(
    path: str, names: Names, array: Payload, mapping: AxisMapping, mesh: MeshLike, function: str
) -> ArrayLayout:
    """Return how a mapping shards one array.

    Args:
        path: its path in the tree.
        names: its names.
        array: the array, possibly abstract.
        mapping: the mapping.
        mesh: the mesh, possibly without devices.
        function: what the user called, for errors.

    Raises:
        ShardingError: if it does not fit.

    Examples:
        >>> from axonym.report.show import planned
        >>> with axn.axis_mapping({"pos": "data"}):
        ...     mapping = axn.current_mapping()
        >>> planned("x", ("pos",), jnp.zeros(8), mapping, jax.make_mesh((4,), ("data",)), "show").layout
        ('pos→data',)
    """
    spec = partition.find_layout(names, tuple(array.shape), mapping, mesh, function).spec
    return dataclasses.replace(_make_row(path, names, array, spec, mesh), planned=True)


def _make_row(
    path: str,
    names: Names,
    array: Payload,
    spec: PartitionSpec | None,
    mesh: MeshLike | None = None,
    note: str = "",
) -> ArrayLayout:
    """Derive the layout from an array and its spec; with a note instead, the array is replicated."""
    shape, nbytes = tuple(array.shape), math.prod(array.shape) * array.dtype.itemsize
    layout = Layout.from_spec(spec or PartitionSpec())
    shards = 1 if mesh is None else math.prod(partition.count_shards(mesh, x) for x in layout)
    own = None if note in {"not known", "host"} else nbytes // shards
    axes = () if spec is None or mesh is None else tuple(mesh.shape.items())
    kind = get_memory_kind(array)
    return ArrayLayout(
        path, names, shape, str(array.dtype), spec, nbytes, own, note=note, mesh=axes, memory=kind
    )


def _find_actual(path: str, names: Names, array: Payload) -> ArrayLayout | None:
    """Return the present layout of an array, or None if the array does not know it."""
    if isinstance(array, np.ndarray | np.generic):
        return _make_row(path, names, array, None, note="host")
    traced = isinstance(array, Tracer)
    sharding = _get_type(array).sharding
    if isinstance(sharding, NamedSharding):
        if traced and modes.is_manual(sharding.mesh):
            return _make_row(path, names, array, None, note="local block")
        # The type of an array tells nothing of Auto axes.
        if traced and not modes.is_explicit(sharding.mesh):
            return None
        return _make_row(path, names, array, sharding.spec, sharding.mesh)
    if sharding is None:
        return None
    # Shardings of other kinds have no names, but sizes of blocks.
    count, block = len(sharding.device_set), math.prod(sharding.shard_shape(tuple(array.shape)))
    note = "one device" if count == 1 else f"{count} devices"
    row = _make_row(path, names, array, None, note=note)
    return dataclasses.replace(row, nbytes_per_device=block * array.dtype.itemsize)


@dataclasses.dataclass(frozen=True)
class Block:
    """A block of an array, and the devices that hold it.

    Attributes:
        slices: the positions of the block along each axis; anonymous dimensions are `dim 0`, ...
        devices: numbers of the devices in the order of the mesh, the last axis fastest; without a mesh, their ids.
        coordinates: the positions of these devices along each axis of the mesh.

    Examples:
        >>> x = axn.shard(axn.zeros({"batch": 8}), {"batch": "data"}, jax.make_mesh((4, 2), ("data", "model")))
        >>> axn.partitioning.visualize(x).blocks[1]
        Block(slices={'batch': slice(2, 4, None)}, devices=(2, 3), coordinates={'data': (1,), 'model': (0, 1)})
    """

    slices: Mapping[str, slice]
    devices: tuple[int, ...]
    coordinates: Mapping[str, tuple[int, ...]]


@dataclasses.dataclass(frozen=True, repr=False)
class Blocks(Printed):
    """The devices that hold each block of an array, which print as tables, also in notebooks.

    Attributes:
        title: the array, and the mesh or the devices.
        blocks: the blocks, in the order of their first devices.

    Examples:
        >>> axn.partitioning.visualize(axn.zeros({"batch": 8}))
        float32[batch=8] on device 0
        <BLANKLINE>
        held by   batch
        device 0  0:8
    """

    title: str
    blocks: tuple[Block, ...]

    def parts(self) -> Iterator[str | Table]:
        """Yield the paragraphs and tables."""
        yield self.title
        if not self.blocks:
            return
        mesh_axes, axes = tuple(self.blocks[0].coordinates), tuple(self.blocks[0].slices)
        rows: list[tuple[Cell, ...]] = []
        for block in self.blocks:
            places = map(numbers, block.coordinates.values())
            ranges = [f"{part.start}:{part.stop}" for part in block.slices.values()]
            rows.append((_write_numbers("device", block.devices), *places, *ranges))
        yield Table(("held by", *mesh_axes, *axes), tuple(rows))
        if len(axes) == 2 and len(self.blocks) > 1:
            yield self._grid(*axes)

    def _grid(self, down: str, across: str) -> Table:
        """Draw the array, with the devices of each block in its place."""
        # Blocks are in the order of devices, rows and columns in that of the axes.
        at: dict[tuple[int, int], dict[tuple[int, int], str]] = {}
        for block in self.blocks:
            cells = at.setdefault(_get_range(block, down), {})
            cells[_get_range(block, across)] = numbers(block.devices)
        columns = sorted(set(itertools.chain(*at.values())))
        header = ("", *(f"{across} {first}:{last}" for first, last in columns))
        rows = tuple(
            (f"{down} {first}:{last}", *(cells[column] for column in columns))
            for (first, last), cells in sorted(at.items())
        )
        return Table(header, rows)


def _get_type(array: Payload) -> Payload:
    """Return the type of a traced array, which has the layout; return other arrays as they are."""
    return jax.typeof(array) if isinstance(array, Tracer) else array


def _get_range(block: Block, axis: str) -> tuple[int, int]:
    return block.slices[axis].start, block.slices[axis].stop


def _write_numbers(what: str, values: Sequence[int]) -> str:
    return f"{what}{'s' if len(values) != 1 else ''} {numbers(values)}"


def visualize(x: NamedArray) -> Blocks:
    """Show which devices hold which block of an array, by name.

    A traced array on a mesh with Explicit axes has its layout in its type. On Auto axes, the compiler decides: the
    blocks are printed afterwards, as the returned object says.

    Args:
        x: an array on devices, or a traced one.

    Returns:
        An object that prints as a table, also in notebooks: a row for each block and, if the array has two dimensions,
        a drawing. Devices are numbered by their place in the mesh.

    Raises:
        OperandError: if it is not a NamedArray, or has no devices.

    Examples:
        >>> mesh = jax.make_mesh((2, 2, 2), ("data", "model", "rest"))
        >>> x = axn.ones(axn.make_axes(batch=8, embed=16))
        >>> axn.partitioning.visualize(axn.shard(x, {"batch": "data", "embed": "model"}, mesh))
        float32[batch=8@data, embed=16@model] on the mesh data=2, model=2, rest=2
        <BLANKLINE>
        held by      data  model  rest  batch  embed
        devices 0-1  0     0      0-1   0:4    0:8
        devices 2-3  0     1      0-1   0:4    8:16
        devices 4-5  1     0      0-1   4:8    0:8
        devices 6-7  1     1      0-1   4:8    8:16
        <BLANKLINE>
                   embed 0:8  embed 8:16
        batch 0:4  0-1        2-3
        batch 4:8  4-5        6-7
    """
    if not isinstance(x, NamedArray):
        raise checks.no_names("visualize", x)
    names, array = x.names, x.array
    shape = shape_of("visualize", array, names)
    traced = isinstance(array, Tracer)
    sharding = getattr(_get_type(array), "sharding", None)
    if sharding is None:
        problem = f"a NamedArray holds {type_text(array)}, which is not on a device"
        abstract = "axn.partitioning.show(x, mapping, mesh) shows how a mapping would lay it out"
        is_abstract = isinstance(array, jax.ShapeDtypeStruct)
        hint = abstract if is_abstract else "lay it out with axn.shard"
        raise OperandError(message("visualize", problem, f"array has: {facts(x)}", hint=hint))
    if not traced:
        return _list_blocks(summary(x), names, shape, sharding)
    # Traced arrays: blocks of a shard_map, then types on Explicit axes, then the compiler's choice on Auto ones.
    if modes.has_manual(sharding.mesh):
        return Blocks(f"{summary(x)} is a block that each device has of its own", ())
    if modes.is_explicit(sharding.mesh):
        return _list_blocks(summary(x), names, shape, sharding)
    _print_when_decided(array, names)
    return Blocks(
        f"{array.dtype}[{describe(names, shape)}] is laid out by the compiler; its blocks are printed then",
        (),
    )


def _print_when_decided(array: Payload, names: Names) -> None:
    """Print the blocks of a traced array once the compiler has chosen its sharding."""

    # Under `vmap`, the compiler's layout has the mapped dimension too; this is how JAX reports it.
    @jax.custom_batching.custom_vmap
    def look(array: Payload) -> tuple[()]:
        shape = tuple(array.shape)
        title = f"{array.dtype}[{describe(names, shape)}]"
        jax.debug.inspect_array_sharding(
            array, callback=lambda decided: print(_list_blocks(title, names, shape, decided))
        )
        return ()

    @look.def_vmap
    def look_batched(size: int, batched: object, array: object) -> tuple[tuple[()], tuple[()]]:
        _print_when_decided(array, names)
        return (), ()

    look(jax.lax.stop_gradient(array))


def _list_blocks(title: str, names: Names, shape: tuple[int, ...], sharding: Sharding) -> Blocks:
    """List the blocks of an array, each with its devices, which hold the same ranges."""
    held: dict[tuple[tuple[int, int], ...], list[tuple[int, tuple[int, ...]]]] = {}
    mesh_axes: tuple[str, ...] = ()
    # Devices by their place in the mesh, which a program depends on; ids only where there is no mesh.
    if isinstance(sharding, NamedSharding):
        mesh = sharding.mesh
        mesh_axes, place = mesh.axis_names, f"the mesh {partition.describe_mesh(mesh)}"
        for number, at in enumerate(np.ndindex(*sharding.mesh.shape.values())):
            held.setdefault(_ranges_at(at, shape, sharding), []).append((number, at))
    else:
        indices: Mapping[Any, Any] = sharding.devices_indices_map(shape)
        place = _write_numbers("device", sorted(device.id for device in indices))
        for device, index in indices.items():
            ranges = tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))
            held.setdefault(ranges, []).append((device.id, ()))
    blocks: list[Block] = []
    for ranges, holders in held.items():
        numbers_of, places = zip(*holders, strict=True)
        along = zip(mesh_axes, zip(*places, strict=True), strict=True)
        coordinates = {axis: tuple(sorted(set(at))) for axis, at in along}
        parts = zip(_label_dimensions(names, shape), ranges, strict=True)
        slices = {label: slice(*part) for label, part in parts}
        blocks.append(Block(slices, tuple(sorted(numbers_of)), coordinates))
    return Blocks(f"{title} on {place}", tuple(blocks))


def _ranges_at(
    at: tuple[int, ...], shape: tuple[int, ...], sharding: NamedSharding
) -> tuple[tuple[int, int], ...]:
    """Find the block of an array at one place of the mesh."""
    sizes = sharding.mesh.shape
    coordinates = dict(zip(sharding.mesh.axis_names, at, strict=True))
    ranges = []
    for size, entry in zip(shape, Layout.from_spec(sharding.spec, len(shape)), strict=True):
        part, count = 0, 1
        for axis in entry:  # the first axis of an entry varies slowest
            part, count = part * sizes[axis] + coordinates[axis], count * sizes[axis]
        ranges.append((part * size // count, (part + 1) * size // count))
    return tuple(ranges)
