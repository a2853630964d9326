"""Internal. Types of arrays on Explicit mesh axes: what they are, and how operands come to agree.

JAX refuses operands whose types differ. Each operation of the engine asks `agree`, which chooses a layout by the names
(`settle`) and reshards the operands that differ from it. Nothing here runs on a mesh of Auto axes alone.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import jax
from jax.core import Tracer
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from ..names.plans import values_at
from . import modes
from .assignment import AxisMapping, Entry, MeshLike, find_key
from .context import context_mesh, current_mapping, get_taken_axes
from .layout import Layout
from .partition import only, without
from .reshards import LIMIT, report_move

L = TypeVar("L")


def has_explicit_axes(array: object) -> bool:
    """Return whether the type of an array includes its sharding."""
    return modes.has_explicit(jax.typeof(array).sharding.mesh)


def mesh_of_type(array: object) -> AbstractMesh:
    """Return the mesh in the type of an array, which may be empty."""
    mesh: AbstractMesh = jax.typeof(array).sharding.mesh
    return mesh


def move_to_one_mesh(arrays: Sequence[Any]) -> Sequence[Any]:
    """Without a current mesh, move arrays that have no mesh to that of the others."""
    if not jax.sharding.get_abstract_mesh().empty:
        return arrays
    # JAX refuses operands of which one has a mesh and another one has none, but takes scalars.
    there = next(array for array in arrays if not mesh_of_type(array).empty)
    moved: list[Any] = []
    for array in arrays:
        if not mesh_of_type(array).empty or not jax.numpy.ndim(array):
            moved.append(array)
        elif isinstance(array, Tracer) or isinstance(there, Tracer):
            moved.append(jax.reshard(array, NamedSharding(mesh_of_type(there), PartitionSpec())))
        else:
            # Only the sharding of a value knows the devices, and not its type.
            devices = NamedSharding(there.sharding.mesh, PartitionSpec())
            moved.append(jax.device_put(array, devices))
    return moved


def get_layout(array: jax.Array) -> Layout:
    """Return the layout in the type of an array: its Explicit mesh axes."""
    return Layout.from_spec(jax.typeof(array).sharding.spec)


def make_sharding(array: jax.Array, entries: Sequence[Entry]) -> NamedSharding:
    """Make a sharding on the mesh of an array, or on the current one if the array has none.

    Mesh axes that a surrounding `vmap` maps over are left out: arrays that it does not map may be sharded over them.
    """
    mesh = mesh_of_type(array)
    if mesh.empty:  # an array that was made without a mesh
        mesh = jax.sharding.get_abstract_mesh()
    return NamedSharding(mesh, Layout(_remove_taken(entries)).spec)


def _remove_taken(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    taken = get_taken_axes()
    return tuple(without(entry, taken) for entry in entries) if taken else tuple(entries)


def reshard(
    array: jax.Array,
    entries: Sequence[Entry],
    names: Sequence[object] = (),
    *,
    is_asked: bool = False,
) -> jax.Array:
    """Reshard an array with an explicit sharding, if it differs.

    Args:
        array: the array.
        entries: the mesh axes of each dimension.
        names: its names, where they are known, for `limit_reshards`.
        is_asked: whether the user asked for this layout, so that `limit_reshards` says nothing.
    """
    if get_layout(array) == _remove_taken(entries):
        return array
    if LIMIT.get() is not None and not is_asked:
        known = tuple(name for name in names if isinstance(name, str))
        report_move(array, get_layout(array), _remove_taken(entries), known)
    moved: jax.Array = jax.reshard(array, make_sharding(array, entries))
    return moved


def report_gathered(array: jax.Array, entries: Sequence[Entry]) -> None:
    """Report, as `limit_reshards` says, that a result is not split like the array that it was made of."""
    if LIMIT.get() is not None and len(entries) == array.ndim:
        report_move(array, get_layout(array), _remove_taken(entries), ())


def settle(
    labels: Sequence[L],
    operands: Sequence[tuple[Sequence[object], Sequence[Entry]]],
    decided: Mapping[str, Entry] | None = None,
) -> dict[L, Entry]:
    """Choose the mesh axes of each label so that no mesh axis is used twice.

    Each label wants the mesh axes that were decided for it. Otherwise it wants those of the current mapping, if an
    operand has them, and otherwise those of the first operand that splits it. Labels that want the mesh axes of the
    mapping choose first, then labels with their own entry in the mapping, then the others. Among equals, earlier labels
    choose first.

    For example, take Explicit mesh axes `x` and `y`, and the mapping `{"embed": "x"}`. One operand has `batch` on `x`
    and a replicated `embed`; another one has `embed` on `x` and `mlp` on `y`:

        label   operands   mapping   wants   rank   gets
        batch   x          -         x       2      -
        embed   -, x       x         x       1      x
        mlp     y          -         y       3      y

    So the first operand is resharded from (x, -) to (-, x), and the result is split as (-, y).

    Args:
        labels: the labels to shard.
        operands: for each operand its labels and their present mesh axes.
        decided: mesh axes of labels that do not follow the operands.
    """
    mapping, mesh = current_mapping(), context_mesh()
    entries = AxisMapping(()) if mapping is None else mapping
    explicit = set[str]() if mesh is None else modes.find_explicit_axes(mesh)

    asked: dict[L, Entry] = {}
    wanted: dict[L, Entry] = {}
    for label in labels:
        asked[label] = ()
        key = find_key(entries, label) if isinstance(label, str) else None
        if key is not None:
            several = [only(entry, explicit) for entry in entries.alternatives(key)]
            # An operand that the mapping has sharded has the alternative that fits.
            had = _list_offers(label, operands)
            asked[label] = next((entry for entry in several if entry in had), several[0])
        if isinstance(label, str) and decided is not None and label in decided:
            wanted[label] = only(decided[label], explicit)
        else:
            # An axis is split only where an operand is: to split one that nobody has split may send it around.
            wanted[label] = _choose_offer(label, operands, asked[label])

    def rank(label: L) -> tuple[bool, bool]:
        is_own = isinstance(label, str) and entries.has_own(label)
        return not set(wanted[label]) & set(asked[label]), not is_own

    gets: dict[L, Entry] = {}
    used = set(get_taken_axes())
    for label in sorted(labels, key=rank):  # stable: earlier labels first among equals
        gets[label] = without(wanted[label], used)
        used.update(gets[label])
    return dict(zip(labels, values_at(gets, labels), strict=True))


def _choose_offer(
    label: object, operands: Sequence[tuple[Sequence[object], Sequence[Entry]]], asked: Entry
) -> Entry:
    """Return the mesh axes that an operand has for a label, preferably the requested ones."""
    offers = _list_offers(label, operands)
    return asked if asked and asked in offers else next(filter(None, offers), ())


def _list_offers(
    label: object, operands: Sequence[tuple[Sequence[object], Sequence[Entry]]]
) -> list[Entry]:
    """List the mesh axes that operands have for a label."""
    return [entries[list(own).index(label)] for own, entries in operands if label in own]


def free_axes(mesh: MeshLike, used: Iterable[str] = ()) -> dict[str, int]:
    """Return the sizes of the Explicit mesh axes that are neither used nor mapped over by a surrounding `vmap`."""
    free = modes.find_explicit_axes(mesh) - {*used, *get_taken_axes()}
    return {axis: size for axis, size in mesh.shape.items() if axis in free}


def claim(entry: Entry, size: int, free: dict[str, int]) -> Entry:
    """Take mesh axes of an entry from the free ones, in order, as many as divide a size."""
    fits = only(entry, free)
    # The first mesh axis of an entry splits into the largest blocks, so that a prefix keeps most elements in place.
    while size % math.prod(values_at(free, fits)):
        fits = fits[:-1]
    for axis in fits:
        del free[axis]
    return fits


def remove_taken_axes(array: jax.Array) -> jax.Array:
    """Remove from a sharding the mesh axes that a surrounding `vmap` maps over, so that mapped arrays can use them."""
    return reshard(array, get_layout(array))


def choose(
    out: Sequence[L],
    labels: Sequence[Sequence[object]],
    arrays: Sequence[Any],
    decided: Mapping[str, Entry] | None = None,
) -> dict[L, Entry]:
    """Choose the mesh axes of a result by the types of operands, as `settle` does.

    Args:
        out: the labels of the result.
        labels: for each array the labels of its dimensions, perhaps only of the last ones.
        arrays: the arrays; the first one that splits a label is followed.
        decided: mesh axes of labels that do not follow the arrays.
    """
    operands = [
        (own, layout[len(layout) - len(own) :])
        for own, layout in zip(labels, map(get_layout, arrays), strict=True)
    ]
    return settle(out, operands, decided)


def agree(
    out: Sequence[L],
    labels: Sequence[Sequence[object]],
    arrays: Sequence[Any],
    decided: Mapping[str, Entry] | None = None,
    *,
    first: int = 0,
    others_whole: bool = False,
) -> tuple[list[Any], dict[L, Entry]]:
    """On a mesh with Explicit axes, shard dimensions with the same label alike; all operations begin with this.

    The arrays come to one mesh, their types choose the layout, and those that differ from it are resharded. Only
    contractions differ: an operand whose contracted axis is on mesh axes of the result is not resharded.

    Args:
        out: the labels of the result.
        labels: for each array the labels of its last dimensions; any others may be among them.
        arrays: the arrays.
        decided: mesh axes of labels that do not follow the arrays.
        first: the array that is followed before all others.
        others_whole: whether the other dimensions are gathered; otherwise, they only leave the mesh axes of the result.

    Returns:
        The arrays, and the mesh axes of each label; none without Explicit axes.
    """
    if not any(map(has_explicit_axes, arrays)):
        return list(arrays), {}
    arrays = move_to_one_mesh(arrays)
    # The array to follow stands twice, once in front; `settle` takes the first operand that splits a label.
    table = choose(out, [labels[first], *labels], [arrays[first], *arrays], decided)
    by_label: dict[object, Entry] = dict(table.items())
    used = set(itertools.chain.from_iterable(table.values()))

    moved: list[object] = []
    for array, own in zip(arrays, labels, strict=True):
        layout = get_layout(array)
        wanted: list[Entry] = []
        for at, entry in enumerate(_remove_taken(layout), start=len(own) - len(layout)):
            other: Entry = () if others_whole else without(entry, used)
            wanted.append(by_label.get(own[at], other) if at >= 0 else other)
        # A scalar of Python stays one, with its weak type.
        is_there = wanted == list(layout)
        moved.append(array if is_there else reshard(jax.numpy.asarray(array), wanted, own))
    return moved, table


def reshard_like(array: jax.Array, other: jax.Array) -> jax.Array:
    """On a mesh with Explicit axes, give an array the layout of another array of the same shape."""
    entries = get_layout(other)
    if not has_explicit_axes(other) or get_layout(array) == entries:
        return array
    if LIMIT.get() is not None and has_explicit_axes(array):
        report_move(array, get_layout(array), entries, ())
    sharding = NamedSharding(mesh_of_type(other), Layout(entries).spec)
    moved: jax.Array = jax.reshard(array, sharding)
    return moved


def make_auto(fn: Callable[..., Any], mesh: MeshLike, out_sharding: object) -> Callable[..., Any]:
    """Make a function in which the Explicit axes of a mesh are Auto, so that the compiler decides on layouts."""
    explicit = only(mesh.axis_names, modes.find_explicit_axes(mesh))
    call: Callable[..., Any] = jax.sharding.auto_axes(fn, axes=explicit, out_sharding=out_sharding)
    # An eager gradient of a shard_map cannot change the types of mesh axes outside jit.
    return jax.jit(call) if modes.has_manual(mesh) else call
