"""Internal. The meaning of names inside a shard_map: mesh axes to communicate over, and the blocks of each device.

`collectives` calls this before devices communicate. A name may be an axis of arrays or of the mesh, and an array may be
a parameter or data, with different mesh axes. Names, sizes and types decide; if they do not, an error asks the user to
say which.
"""

import itertools
import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal

import jax
from jax import lax

from ..axis import AxisSelection, selection
from ..base.phrases import missing_axis, write_size_conflict
from ..errors import AxisNotFoundError, AxisSizeError, ShardingError, describe, message, suggestion
from ..layout import assignment, context, explicit, modes, partition
from ..layout.assignment import AxisMapping, Entry
from ..layout.records import LEDGER
from ..layout.scope import current_scope
from ..names.plans import Names

REDUCTIONS = ("psum", "pmean", "pmax", "pmin")

# Whether a name stands for an axis of arrays or of the mesh; "either" raises if both have it.
Meaning = Literal["either", "arrays", "mesh"]


def find_targets(
    function: str,
    axis: tuple[str, int | None],
    over: AxisSelection | None,
    names: Names,
    present: set[str],
    array: jax.Array | None = None,
) -> dict[str, Entry]:
    """Return which axes of an array an axis stands for, and over which mesh axes they are split."""
    name, size = axis
    if size is None and over is None:
        require_one_meaning(function, name, names, array, present)
    if name in names:
        cut = name if function == "psum_scatter" else None
        if over is None:
            return {name: find_mesh_axes(function, {name: size}, names, array, cut)}
        return {name: find_mesh_axes(function, over, names, array, cut, meaning="mesh")}
    if name in present:  # another array of the tree has it, so this one is not meant
        return {}
    if name not in list_manual_axes() or size is not None:
        facts = f"axes of the arrays: {', '.join(sorted(present)) or 'none'}"
        hint = suggestion(name, {*present, *list_manual_axes()})
        raise AxisNotFoundError(message(function, f"no array has axis {name!r}", facts, hint=hint))
    return find_split_axes(function, name, names, array)


def find_split_axes(
    function: str, name: str, names: Names, array: jax.Array | None = None
) -> dict[str, Entry]:
    """Return the axes of an array that a gather or a scatter over a mesh axis works on."""
    found: dict[str, Entry] = {}
    for own in names:
        entry = _look_up(own, names)
        if name not in entry:
            continue
        if not _is_next(function, name, own, entry, names, array):
            first = _first_to_move(function, entry)
            raise _out_of_order(function, own, entry, first, (name,), together=f'by "{own}"')
        found[own] = (name,)
    return found


def _first_to_move(function: str, entry: Entry) -> str:
    """Return the mesh axis to take first: blocks of the last one are gathered first, and scattered last."""
    return entry[-1] if function == "all_gather" else entry[0]


def _out_of_order(
    function: str, own: str, entry: Entry, first: str, axes: Entry, together: str
) -> ShardingError:
    later = ", ".join(map(repr, axes))
    problem = f"axis {own!r} is split over {', '.join(entry)}: {first!r} comes before {later}"
    given = "..." if function == "all_to_all" else f'x, "{own}"'
    alone = f"axn.{function}({given}, over={spell(axes)})"
    hint = f"take all {together}; or {first} first, and then {alone}"
    return ShardingError(message(function, problem, hint=hint))


def _is_next(
    function: str, name: str, own: str, entry: Entry, names: Names, array: jax.Array | None
) -> bool:
    """Return whether this mesh axis is the next to gather or scatter over; an axis may be split over several."""
    if _first_to_move(function, entry) == name:
        return True
    if array is None:
        return False
    # The present size of the axis shows whether the mesh axes that come first are done.
    at, gathers = entry.index(name), function == "all_gather"
    now, at_first = (entry[: at + 1], entry) if gathers else (entry[:at], ())
    is_now = _is_block(array, names, own, now)
    return is_now and not _is_block(array, names, own, at_first)


def find_mesh_axes(
    function: str,
    axis: AxisSelection,
    names: Names,
    array: jax.Array | None = None,
    cut: str | None = None,
    meaning: Meaning = "either",
) -> Entry:
    """Find the Manual mesh axes that the given axes, of arrays or of the mesh, stand for.

    An `Axis` has a size, so it is an axis of arrays.

    Args:
        function: the name for errors.
        axis: the axes.
        names: the names of the array in question, if there is one.
        array: the array itself, which shows whether it is a parameter if its names do not.
        cut: the axis to scatter, whose size does not show its mesh axes.
        meaning: whether a name that both the arrays and the mesh have stands for an axis of arrays or a mesh axis.

    Raises:
        AxisSizeError: if the size of an `Axis` is neither the local nor the global one.
        ShardingError: if one is an axis of neither the mapping, the mesh nor the arrays, or of the mesh and not Manual;
            if a name without a size may be that of an axis of arrays or of the mesh; if it is ambiguous whether the
            array is a parameter, and the axis has different mesh axes then.
    """
    manual = list_manual_axes()
    found: list[str] = []
    unclear: list[str] = []
    for name, size in selection(axis, function):
        if size is None and meaning == "either":
            require_one_meaning(function, name, names, array)
        # With `over`, a name that arrays have too means the mesh axis.
        is_of_mesh = size is None and meaning == "mesh" and name in _list_mesh_axes()
        if not is_of_mesh and (name in names or _is_mapped(name, names)):
            entry: Entry | None = _look_up(name, names)
            if array is not None:
                entry = _choose_entry(function, name, names, array, cut)
            if entry is None:
                unclear.append(name)
            else:
                found += entry
                require_size(function, (name, size), names, array, entry)
        elif name in manual and size is None and meaning != "arrays":
            found.append(name)
        else:
            _require_known(function, (name, size), names)
    for name in unclear:
        stored, computed = list_readings(name, names)
        # Together with the others, both may be the same: a sum does not depend on the order of mesh axes.
        if function not in REDUCTIONS or not {*stored} <= {*computed, *found}:
            raise _unclear(function, name, names, array, stored, computed)
        found += computed
    # Two axes may be mapped to one mesh axis, which counts once.
    return partition.only(dict.fromkeys(found), manual)


def _is_mapped(name: str, names: Names) -> bool:
    return any(
        assignment.find_entry(mapping, name) is not None for mapping in _list_mappings(names)
    )


def _list_mesh_axes() -> tuple[str, ...]:
    mesh = context.context_mesh()
    return () if mesh is None else mesh.axis_names


def require_one_meaning(
    function: str,
    name: str,
    names: Names,
    array: object = None,
    present: Collection[str] = (),
) -> None:
    """Raise for a name that both the arrays and the mesh have, unless the mapping makes them the same devices.

    Args:
        function: the name for errors.
        name: the name.
        names: the names of the array in question, if there is one.
        array: the array itself.
        present: names of arrays beside it.
    """
    mesh, scope = context.context_mesh(), current_scope()
    if mesh is None or scope is None or name not in mesh.axis_names:
        return
    mappings = (*scope.mappings.all(), *_list_compute_mappings())
    entries = {assignment.find_entry(mapping, name) for mapping in mappings} - {None}
    known = {*names, *present, *scope.names, *scope.hidden, *scope.looped}
    # If all mappings split the axis over the mesh axis of its name, both readings are the same devices.
    is_same = entries == {(name,)}
    if is_same and name in present and name not in names:
        # This array is gathered over the mesh axis, or not at all.
        is_same = not any(name in entry for _, entry in _list_readings(names))
    if is_same or not (entries or name in known):
        return
    facts = [] if array is None else [describe_array(names, array)]
    facts += (*_mapping_facts(), f"mesh: {partition.describe_mesh(mesh)}")
    # The hint has the size of the arguments, if they have the axis.
    sizes = sorted(size for own, size in scope.sizes if own == name)
    given = f'axn.Axis("{name}", {sizes[0] if sizes else "..."})'
    hint = f'over="{name}" for the mesh axis, or {given} for the axis of arrays'
    problem = f"{name!r} is an axis of arrays and a mesh axis"
    raise ShardingError(message(function, problem, *facts, hint=hint))


def _require_known(function: str, axis: tuple[str, int | None], names: Names) -> None:
    """Raise for a name that is not known as an axis of arguments or mappings; a mesh axis must be Manual."""
    name, size = axis
    mesh, scope = context.context_mesh(), current_scope()
    if mesh is not None and name in mesh.axis_names and size is None:
        kind = modes.list_modes(mesh)[name]
        problem = (
            f"mesh axis {name!r} is {kind}, but collectives need a Manual axis, inside of shard_map"
        )
        raise ShardingError(message(function, problem, f"mesh: {partition.describe_mesh(mesh)}"))
    if scope is None:
        # The same code may run without a mesh, where an axis that nothing maps needs no communication.
        _require_no_misspelling(function, axis, names)
        return
    mappings = (scope.mappings.compute, scope.mappings.parameters)
    is_mapped = any(assignment.find_entry(mapping, name) is not None for mapping in mappings)
    if is_mapped or name in scope.names:
        return
    known = sorted({*scope.names, *itertools.chain(*mappings), *list_manual_axes()})
    problem = f"{name!r} is an axis of neither the arguments, the mapping nor the mesh"
    facts, hint = f"there are: {', '.join(known)}", suggestion(name, known)
    if name in list_manual_axes():
        problem = f"{name!r} is a mesh axis, and an axis of neither the arguments nor the mapping"
        hint = f'over="{name}" for the mesh axis; an axis that is made inside needs no collective'
    raise ShardingError(message(function, problem, facts, hint=hint))


def _require_no_misspelling(function: str, axis: tuple[str, int | None], names: Names) -> None:
    """Raise, outside of a shard_map, for a name close to a known one; an `Axis` is declared, so it is not misspelled.

    Other unknown names are taken for axes without a mapping: arrays that this call does not get may have them.
    """
    name, size = axis
    ledger = LEDGER.get()
    known = {*names, *itertools.chain(*_list_compute_mappings()), *_list_mesh_axes()}
    if ledger is not None:
        known |= ledger.known
    hint = suggestion(name, known)
    if size is None and name not in known and hint is not None:
        problem = f"{name!r} is an axis of neither the array, the mapping nor the mesh"
        facts = f"there are: {', '.join(sorted(known))}"
        hint += f" Otherwise, give an Axis, or map {name!r} to None"
        raise ShardingError(message(function, problem, facts, hint=hint))


def list_manual_axes() -> Entry:
    """List the mesh axes to communicate over: Manual ones that no surrounding `vmap` maps over."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return ()
    free = modes.find_manual_axes(mesh) - set(context.get_taken_axes())
    return partition.only(mesh.axis_names, free)


def _list_compute_mappings() -> tuple[AxisMapping, ...]:
    """List the current mapping, if there is one."""
    current = context.current_mapping()
    return () if current is None else (current,)


def _list_mappings(names: Names) -> tuple[AxisMapping, ...]:
    """List the mappings to look a name up in: only the current one for data, else the mapping of parameters too."""
    computed, scope = _list_compute_mappings(), current_scope()
    if scope is None or scope.is_data(names):
        return computed
    stored = scope.mappings.of(names)
    # A scalar is more often computed from data than a parameter, so that the current mapping comes first.
    if not names and scope.is_data(scope.names):
        return (*computed, stored)
    return (stored, *computed)


def _choose_entry(
    function: str, name: str, names: Names, array: jax.Array, cut: str | None
) -> Entry | None:
    """Look up the mesh axes of an axis for an array that may be a parameter, or data that has lost its batch axis."""
    stored, computed = list_readings(name, names)
    scope = current_scope()
    if stored == computed or scope is None:
        return stored
    # The possible readings: both, without those that the array contradicts.
    possible = [stored, computed]
    if name not in names:
        # If values differ over the mesh axes of only one reading, it is that one.
        possible = [entry for entry in possible if _may_vary(array, entry)] or [computed]
    elif name != cut:
        # Data that is not split can be sent on, but not gathered.
        if not computed and function != "ppermute":
            possible = [stored]
        possible = [entry for entry in possible if _is_block(array, names, name, entry)]
    if len(possible) == 1:
        return possible[0]
    # Inside a map or loop over the batch, an array without the batch axis is a row of data.
    if scope.is_in_data:
        return computed
    # If no computed array is split along the axis, the array is split as it is stored: it is a parameter.
    current: Mapping[str, Entry] = context.current_mapping() or {}
    if name in names and assignment.find_entry(current, name) is None:
        return stored
    return None


def _unclear(
    function: str, name: str, names: Names, array: jax.Array | None, stored: Entry, computed: Entry
) -> ShardingError:
    over = "" if function in (*REDUCTIONS, "ppermute") else "over="
    data, parameter = (
        f"{over}{spell(entry)}" if entry else f"no axn.{function}" for entry in (computed, stored)
    )
    problem = "cannot tell whether the array is a parameter, "
    problem += f"whose axis {name!r} is split over other mesh axes"
    hint = f"name the mesh axes: {data} for what is computed, {parameter} for a parameter"
    return ShardingError(
        message(function, problem, describe_array(names, array), *_mapping_facts(), hint=hint)
    )


def _mapping_facts() -> tuple[str, ...]:
    scope = current_scope()
    if scope is None:
        return ()
    mappings = scope.mappings
    if mappings.parameters == mappings.compute:
        return (f"mapping: {mappings.compute}",)
    return f"parameters: {mappings.parameters}", f"compute: {mappings.compute}"


def list_readings(name: str, names: Names) -> tuple[Entry, Entry]:
    """Look up the mesh axes of an axis; if names do not decide, look them up for a parameter and for data."""
    scope = current_scope()
    # An array that lacks the axes of data may be data only if the arguments have some.
    if scope is None or scope.is_data(names) or not scope.is_data(scope.names):
        known = _look_up(name, names)
        return known, known
    computed = _list_compute_mappings()
    stored = (scope.mappings.of(names), *computed)
    return _look_up(name, names, stored), _look_up(name, names, computed)


def _list_readings(names: Names) -> Iterator[tuple[str, Entry]]:
    yield from ((name, entry) for name in names for entry in list_readings(name, names))


def _may_vary(array: jax.Array, axes: Entry) -> bool:
    return not _find_constant_axes(array, axes) or not is_checked(axes)


def _find_constant_axes(array: jax.Array, axes: Entry) -> Entry:
    """Return the mesh axes along which an array is the same on all devices, by its type."""
    return partition.without(axes, jax.typeof(array).mat.varying)


def _is_block(array: jax.Array, names: Names, name: str, axes: Entry) -> bool:
    """Return whether an axis has the size of a block over mesh axes; without mesh axes, the global size."""
    # Arguments show the global sizes; the size of an axis that was made inside is unknown.
    scope = current_scope()
    size = array.shape[find_dimension(array, names, name)]
    return scope is not None and (name, size * count_devices(axes)) in scope.sizes


def require_computed(function: str, name: str, names: Names, array: object) -> None:
    """Raise for a reduction over an axis that splits only parameters: no activation is a partial sum over it."""
    current, scope = context.current_mapping(), current_scope()
    if scope is None or assignment.find_entry(current or {}, name) is not None:
        return
    stored = assignment.find_entry(scope.mappings.parameters, name) or ()
    entry = partition.only(stored, list_manual_axes())
    if entry:
        problem = f"only the mapping of parameters has axis {name!r}, "
        problem += "so there are no partial sums over it"
        hint = "for a sum over blocks of parameters, "
        hint += f'name the mesh axis: axn.{function}(x, "{entry[0]}")'
        facts = (describe_array(names, array), *_mapping_facts())
        raise ShardingError(message(function, problem, *facts, hint=hint))


def _look_up(name: str, names: Names, mappings: Sequence[AxisMapping] | None = None) -> Entry:
    """Look up the mesh axes of an axis; derived and `if_free` axes get what others of the array leave."""
    if mappings is None:
        mappings = _list_mappings(names)
    for mapping in mappings:
        entry = assignment.find_entry(mapping, name)
        if entry is None:
            continue
        used = set[str]()
        if not mapping.has_own(name):
            # Among those that yield, the first name chooses first.
            before = [other for other in names if mapping.has_own(other) or other < name]
            used.update(*(mapping.get(other, ()) for other in before))
        return partition.without(partition.only(entry, list_manual_axes()), used)
    return ()


def is_checked(axes: Entry) -> bool:
    """Return whether JAX tracks what varies between devices: not with `check=False`."""
    return bool(jax.typeof(lax.axis_index(axes)).mat.varying)


def require_partial(function: str, array: jax.Array, names: Names, axes: Entry) -> None:
    """Raise for a sum of values that are the same on all devices."""
    same = _find_constant_axes(array, axes)
    if same and is_checked(axes):
        problem = f"the array is the same on all devices of mesh axis {same[0]!r}"
        hint = (
            "it needs no sum: a gradient with respect to a replicated value is summed already. "
            f'For a multiple, write x * axn.collectives.axis_size("{same[0]}")'
        )
        raise ShardingError(message(function, problem, describe_array(names, array), hint=hint))


def require_blocks(
    function: str, array: jax.Array, names: Names, name: str, axes: Entry, has_over: bool
) -> None:
    """Raise if each device already has all of the axis to gather; the size of the axis decides only without `over`."""
    same = _find_constant_axes(array, axes)
    if same and is_checked(axes):
        problem = f"axis {name!r} is already whole: the array is the same on all devices of mesh axis {same[0]!r}"
        raise ShardingError(message(function, problem, describe_array(names, array)))
    if has_over:
        _require_last(function, array, names, name, axes)
        return
    # Of several mesh axes, some may be gathered before others.
    entry = _look_up(name, names) or axes
    if any(_is_block(array, names, name, over) for over in (axes, entry)):
        return
    rest, size = partition.without(entry, axes), array.shape[find_dimension(array, names, name)]
    if _is_block(array, names, name, ()):
        problem = f"axis {name!r} is already whole: it has size {size} in the arguments"
    elif _is_block(array, names, name, rest):
        problem = f"axis {name!r} is already gathered over {', '.join(axes)}: it is split only over {', '.join(rest)}"
    else:
        return
    hint = f'if these are blocks, name their mesh axis: axn.{function}(..., over="{axes[-1]}")'
    raise ShardingError(message(function, problem, describe_array(names, array), hint=hint))


def _require_last(function: str, array: jax.Array, names: Names, name: str, axes: Entry) -> None:
    """Raise for a gather over mesh axes if the size shows that later ones, which come first, are not gathered yet."""
    entries = list_readings(name, names)
    # Mesh axes are gathered from the last one on: a block may still be split over the first ones of its entry.
    starts = (entry[:count] for entry in entries for count in range(1, len(entry) + 1))
    # Sizes show over which mesh axes the block is still split.
    left = [
        start for start in starts if {*axes} <= {*start} and _is_block(array, names, name, start)
    ]
    is_last = any(start[-len(axes) :] == axes for start in left)
    if not left or is_last or _is_block(array, names, name, axes):
        return
    whole = left[0]
    # The last mesh axis that the call leaves out has to go first.
    first = partition.without(whole, axes)[-1]
    early = partition.only(axes, whole[: whole.index(first)])
    together = f'by "{name}"' if whole in entries else f"with over={spell(whole)}"
    raise _out_of_order(function, name, whole, first, early, together)


def require_whole(
    function: str, array: jax.Array, names: Names, name: str, dim: int, axes: Entry
) -> None:
    """Raise for a scatter of a value that is already a block."""
    if _is_block(array, names, name, axes) and not _is_block(array, names, name, ()):
        size = array.shape[dim] * count_devices(axes)
        problem = f"axis {name!r} is already split: it has size {size} in the arguments"
        hint = f'for the sum of blocks, axn.psum(x, "{axes[-1]}"); to split them again, over="{axes[-1]}"'
        raise ShardingError(message(function, problem, describe_array(names, array), hint=hint))


def require_no_blocks(
    function: str, axis: tuple[str, int | None], names: Names, array: jax.Array, axes: Entry
) -> None:
    """Raise for a reduction over an axis whose devices hold different blocks of another axis."""
    name, size = axis
    # A user who names a mesh axis wants the sum over these devices, whatever blocks they hold.
    if not names or (size is None and name in list_manual_axes()):
        return
    # If these mesh axes split another axis as well, devices hold different positions of that one.
    mine = set(itertools.chain(*list_readings(name, names))) & {*axes}
    for own, entry in _list_readings(names):
        shared = partition.only(entry, mine)
        is_block = shared and _is_block(array, names, own, entry)
        if is_block and not _is_block(array, names, own, ()):
            problem = f"{own!r} is split over mesh axis {shared[0]!r}, like {name!r}: "
            problem += "its blocks would be reduced into one"
            hint = "gather it or reduce over it first; "
            hint += f'or name the mesh axis: axn.{function}(x, "{shared[0]}")'
            raise ShardingError(message(function, problem, describe_array(names, array), hint=hint))


def require_even(
    function: str, array: jax.Array, names: Names, name: str, dim: int, axes: Entry
) -> None:
    """Raise for an uneven scatter of an axis, counting the Explicit mesh axes that split it already."""
    beside = explicit.get_layout(array)[dim]
    parts = count_devices(axes) * partition.count_shards(explicit.mesh_of_type(array), beside)
    if array.shape[dim] % parts:
        asked, over = f"{name}={array.shape[dim]}", ", ".join((*axes, *beside))
        problem = f"{asked} cannot be split evenly in {parts} over mesh axis {over}"
        raise AxisSizeError(message(function, problem, describe_array(names, array)))


def require_axis(function: str, name: str, names: Names, array: object) -> None:
    """Raise for an array without the axis."""
    if name not in names:
        raise missing_axis(function, name, names, describe_array(names, array))


def require_size(
    function: str, axis: tuple[str, int | None], names: Names, array: jax.Array | None, axes: Entry
) -> None:
    """Raise for an `Axis` whose size is neither the size of a block nor the global size, if that is known."""
    name, size = axis
    if size is None:
        return
    scope, parts = current_scope(), count_devices(axes)
    known = () if scope is None else scope.sizes
    outside = {whole for own, whole in known if own == name}
    here = {whole // parts for whole in outside}
    accepted = here | outside
    facts = [] if array is None else [describe_array(names, array)]
    if array is not None and name in names:
        block = array.shape[find_dimension(array, names, name)]
        here, accepted = {block}, accepted | {block, block * parts}
        # Outside any shard_map, the array itself has the global size.
        if not outside and not axes:
            outside = {block}
    if not outside or size in accepted:
        return

    inner, outer = _join_sizes(here), _join_sizes(outside)
    sizes = inner if inner == outer else f"{inner} here and {outer} outside"
    problem = write_size_conflict(name, size, f"has size {sizes}")
    raise AxisSizeError(message(function, problem, *facts))


def _join_sizes(sizes: set[int]) -> str:
    return " or ".join(map(str, sorted(sizes)))


def describe_array(names: Names, array: object) -> str:
    """Describe an array, for an error."""
    return f"array has: {describe(names, getattr(array, 'shape', None))}"


def find_dimension(array: jax.Array, names: Names, name: str) -> int:
    """Return the position of a named dimension."""
    return array.ndim - len(names) + names.index(name)


def count_devices(axes: Entry) -> int:
    """Return the number of devices along mesh axes."""
    return math.prod(map(lax.axis_size, axes))


def spell(axes: Entry) -> str:
    """Format mesh axes as in a call."""
    names = list(map(json.dumps, axes))
    return names[0] if len(names) == 1 else f"({', '.join(names)})"
