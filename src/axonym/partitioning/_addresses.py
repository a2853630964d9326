"""What names stand for inside a shard_map: mesh axes to communicate over, and what each device is known to hold."""

import json
import math
from collections.abc import Sequence
from typing import Any

import jax
from jax import lax
from jax.sharding import AxisType

from .. import _constraints, layout
from ..axis import AxisSelection, selection
from ..errors import AxisNotFoundError, AxisSizeError, ShardingError, describe, message, suggestion
from ..layout import AxisMapping, Entry
from ..plans import Names

__all__ = [
    "REDUCTIONS",
    "count_of",
    "dimension",
    "has",
    "is_checked",
    "manual_axes",
    "mesh_axes_of",
    "readings",
    "require_axis",
    "require_blocks",
    "require_computed",
    "require_even",
    "require_no_blocks",
    "require_partial",
    "require_size",
    "require_whole",
    "spelled",
    "targets",
]

REDUCTIONS = ("psum", "pmean", "pmax", "pmin")


def targets(
    function: str,
    name: str,
    over: AxisSelection | None,
    names: Names,
    present: set[str],
    array: jax.Array | None = None,
) -> dict[str, Entry]:
    """Return the axes of an array that a name stands for, and the mesh axes of their blocks."""
    if name in names:
        cut = name if function == "psum_scatter" else None
        return {name: mesh_axes_of(function, name if over is None else over, names, array, cut)}
    if name in present:
        return {}
    if name not in manual_axes():
        problem, facts = f"no array has axis {name!r}", f"axes of the arrays: {', '.join(sorted(present)) or 'none'}"
        raise AxisNotFoundError(message(function, problem, facts, hint=suggestion(name, {*present, *manual_axes()})))
    found: dict[str, Entry] = {}
    for own in names:
        entry = _entry(own, names)
        if name in entry:
            if not _comes_next(function, name, own, entry, names, array):
                first = entry[-1 if function == "all_gather" else 0]
                raise _out_of_order(function, own, entry, first, (name,), together=f'by "{own}"')
            found[own] = (name,)
    return found


def _out_of_order(function: str, own: str, entry: Entry, first: str, axes: Entry, together: str) -> ShardingError:
    problem = f"axis {own!r} is split over {', '.join(entry)}: {first!r} comes before {', '.join(map(repr, axes))}"
    given = "..." if function == "all_to_all" else f'x, "{own}"'
    hint = f"take all {together}; or {first} first, and then axn.{function}({given}, over={spelled(axes)})"
    return ShardingError(message(function, problem, hint=hint))


def _comes_next(function: str, name: str, own: str, entry: Entry, names: Names, array: jax.Array | None) -> bool:
    """Return whether this one of its mesh axes is the next to gather or scatter an axis over."""
    # Blocks of the last mesh axis are gathered first, and scattered last.
    gathers = function == "all_gather"
    if entry[-1 if gathers else 0] == name:
        return True
    if array is None:
        return False
    # If the present size of the axis shows it, this was done for the mesh axes before.
    at = entry.index(name)
    now, at_first = (entry[: at + 1], entry) if gathers else (entry[:at], ())
    return _is_block(array, names, own, now) and not _is_block(array, names, own, at_first)


def mesh_axes_of(
    function: str, axis: AxisSelection, names: Names, array: jax.Array | None = None, cut: str | None = None
) -> Entry:
    """Find the Manual mesh axes that axes, of arrays or of the mesh, stand for.

    Args:
        function: the name for errors.
        axis: the axes.
        names: the names of the array in question, if there is one.
        array: the array itself, which shows whether it is a parameter where its names do not.
        cut: the axis to scatter, whose size does not show its mesh axes.

    Raises:
        AxisSizeError: if the size of an `Axis` is neither the local nor the global one.
        ShardingError: if one is an axis of neither the mapping, the mesh nor the arrays, or of the mesh and not Manual;
            if it is ambiguous whether the array is a parameter, and the axis has different mesh axes then.
    """
    manual = manual_axes()
    found: list[str] = []
    unclear: list[str] = []
    for name, size in selection(axis, function):
        known = [layout.looked_up(mapping, name) for mapping in _mappings(names)]
        if name in names or any(entry is not None for entry in known):
            entry = _entry(name, names) if array is None else _entry_of(function, name, names, array, cut)
            found += () if entry is None else entry
            unclear += [name] if entry is None else []
            if entry is not None:
                require_size(function, (name, size), names, array, entry)
        elif name in manual:
            found.append(name)
        else:
            _require_known(function, name)
    for name in unclear:
        stored, computed = readings(name, names)
        # Together with the others, both may be the same: a sum does not depend on the order of mesh axes.
        if function not in REDUCTIONS or not {*stored} <= {*computed, *found}:
            raise _unclear(function, name, names, array, stored, computed)
        found += computed
    return tuple(dict.fromkeys(mesh_axis for mesh_axis in found if mesh_axis in manual))


def _require_known(function: str, name: str) -> None:
    """Raise for a name that is unknown here, as far as names are known."""
    mesh, scope = layout.context_mesh(), layout.current_scope()
    if mesh is not None and name in mesh.axis_names:
        kind = layout.mesh_types(mesh)[name].name
        problem = f"mesh axis {name!r} is {kind}, but collectives need a Manual axis, inside of shard_map"
        raise ShardingError(message(function, problem, f"mesh: {layout.describe_mesh(mesh)}"))
    if scope is None:
        return
    mapped = (scope.mappings.compute, scope.mappings.parameters)
    if name not in scope.names and all(layout.looked_up(mapping, name) is None for mapping in mapped):
        known = sorted({*scope.names, *scope.mappings.compute, *scope.mappings.parameters, *manual_axes()})
        problem = f"{name!r} is an axis of neither the arguments, the mapping nor the mesh"
        raise ShardingError(message(function, problem, f"there are: {', '.join(known)}", hint=suggestion(name, known)))


def manual_axes() -> Entry:
    """List the mesh axes to communicate over: Manual ones that no surrounding `vmap` maps over."""
    mesh = jax.sharding.get_abstract_mesh()
    types, taken = {} if mesh.empty else layout.mesh_types(mesh), layout.taken_axes()
    return tuple(axis for axis, kind in types.items() if kind is AxisType.Manual and axis not in taken)


def _mappings(names: Names) -> tuple[AxisMapping, ...]:
    """List the mappings to look a name up in: for data, only the current one; otherwise that of parameters as well."""
    current, scope = layout.current_mapping(), layout.current_scope()
    computed = () if current is None else (current,)
    if scope is None or scope.is_data(names):
        return computed
    stored = scope.mappings.of(names)
    return (*computed, stored) if not names and scope.is_data(scope.names) else (stored, *computed)


def _entry_of(function: str, name: str, names: Names, array: jax.Array, cut: str | None) -> Entry | None:
    """Look up the mesh axes of an axis for an array that may be a parameter, or data that has lost its batch axis."""
    stored, computed = readings(name, names)
    scope = layout.current_scope()
    if stored == computed or scope is None:
        return stored
    both: list[Entry] = [stored, computed]
    if name not in names:
        # If values differ between the devices of only one of the two, it is that one.
        possible = [entry for entry in both if _may_vary(array, entry)] or [computed]
    elif name != cut:
        # Whole data can be sent on, but not gathered.
        blocks = both if computed or function == "ppermute" else [stored]
        possible = [entry for entry in blocks if _is_block(array, names, name, entry)]
    else:
        possible = both
    if len(possible) == 1:
        return possible[0]
    if scope.is_in_data:
        return computed
    is_of_parameters = name in names and layout.looked_up(layout.current_mapping() or {}, name) is None
    return stored if is_of_parameters else None


def _unclear(
    function: str, name: str, names: Names, array: jax.Array | None, stored: Entry, computed: Entry
) -> ShardingError:
    scope = layout.current_scope()
    over = "" if function in (*REDUCTIONS, "ppermute") else "over="
    told = [f"{over}{spelled(entry)}" if entry else f"no axn.{function}" for entry in (computed, stored)]
    problem = f"cannot tell whether the array is a parameter, whose axis {name!r} is split over other mesh axes"
    facts = () if scope is None else (f"parameters: {scope.mappings.parameters}", f"compute: {scope.mappings.compute}")
    hint = f"name the mesh axes: {told[0]} for what is computed, {told[1]} for a parameter"
    return ShardingError(message(function, problem, has(names, array), *facts, hint=hint))


def readings(name: str, names: Names) -> tuple[Entry, Entry]:
    """Look up the mesh axes of an axis twice, for a parameter and for data, where names leave it open."""
    scope, current = layout.current_scope(), layout.current_mapping()
    if scope is None or scope.is_data(names) or not scope.is_data(scope.names):
        known = _entry(name, names)
        return known, known
    computed = () if current is None else (current,)
    return _entry(name, names, (scope.mappings.of(names), *computed)), _entry(name, names, computed)


def _may_vary(array: jax.Array, axes: Entry) -> bool:
    return all(axis in jax.typeof(array).mat.varying for axis in axes) or not is_checked(axes)


def _is_block(array: jax.Array, names: Names, name: str, axes: Entry) -> bool:
    """Return whether an axis has the size of a block over mesh axes; without mesh axes, the global size."""
    scope, size = layout.current_scope(), array.shape[dimension(array, names, name)]
    return scope is not None and (name, size * count_of(axes)) in scope.sizes


def require_computed(function: str, name: str, names: Names, array: Any) -> None:
    """Raise for a reduction over an axis that splits only parameters: no sum of anything else is partial over it."""
    current, scope = layout.current_mapping(), layout.current_scope()
    if scope is None or layout.looked_up(current or {}, name) is not None:
        return
    entry = [axis for axis in layout.looked_up(scope.mappings.parameters, name) or () if axis in manual_axes()]
    if entry:
        problem = f"only the mapping of parameters has axis {name!r}, so there are no partial sums over it"
        facts = f"parameters: {scope.mappings.parameters}", f"compute: {scope.mappings.compute}"
        hint = f'for a sum over blocks of parameters, name the mesh axis: axn.{function}(x, "{entry[0]}")'
        raise ShardingError(message(function, problem, has(names, array), *facts, hint=hint))


def _entry(name: str, names: Names, mappings: Sequence[AxisMapping] | None = None) -> Entry:
    """Look up the mesh axes of an axis; a derived one yields to the other axes of its array."""
    for mapping in _mappings(names) if mappings is None else mappings:
        entry = layout.looked_up(mapping, name)
        if entry is not None:
            others = () if name in mapping else (other for other in names if other in mapping)
            used = {mesh_axis for other in others for mesh_axis in mapping[other]}
            manual = manual_axes()
            return tuple(mesh_axis for mesh_axis in entry if mesh_axis not in used and mesh_axis in manual)
    return ()


def is_checked(axes: Entry) -> bool:
    """Return whether JAX tracks what varies between devices: not with `check=False`."""
    return bool(jax.typeof(lax.axis_index(axes)).mat.varying)


def require_partial(function: str, array: jax.Array, names: Names, axes: Entry) -> None:
    """Raise for a sum of values that are the same on all devices."""
    same = [axis for axis in axes if axis not in jax.typeof(array).mat.varying]
    if same and is_checked(axes):
        problem = f"the array is the same on all devices of mesh axis {same[0]!r}"
        hint = (
            "it needs no sum: a gradient with respect to a replicated value is summed already. "
            f'For a multiple, write x * axn.collectives.axis_size("{same[0]}")'
        )
        raise ShardingError(message(function, problem, has(names, array), hint=hint))


def require_blocks(function: str, array: jax.Array, names: Names, name: str, axes: Entry, told: bool) -> None:
    """Raise for a gather of what each device has whole; by its size only if `over` is not given."""
    same = [axis for axis in axes if axis not in jax.typeof(array).mat.varying]
    if same and is_checked(axes):
        problem = f"axis {name!r} is already whole: the array is the same on all devices of mesh axis {same[0]!r}"
        raise ShardingError(message(function, problem, has(names, array)))
    if told:
        _require_last(function, array, names, name, axes)
        return
    entry = _entry(name, names) or axes  # of several mesh axes, some may be gathered before others
    if any(_is_block(array, names, name, over) for over in (axes, entry)):
        return
    rest, size = tuple(axis for axis in entry if axis not in axes), array.shape[dimension(array, names, name)]
    if _is_block(array, names, name, ()):
        problem = f"axis {name!r} is already whole: it has size {size} in the arguments"
    elif _is_block(array, names, name, rest):
        problem = f"axis {name!r} is already gathered over {', '.join(axes)}: it is split only over {', '.join(rest)}"
    else:
        return
    hint = f'if these are blocks, name their mesh axis: axn.{function}(..., over="{axes[-1]}")'
    raise ShardingError(message(function, problem, has(names, array), hint=hint))


def _require_last(function: str, array: jax.Array, names: Names, name: str, axes: Entry) -> None:
    """Raise for a gather over mesh axes before the ones after them, if the size shows that these remain."""
    entries = readings(name, names)
    starts = [entry[:count] for entry in entries for count in range(1, len(entry) + 1)]
    left = [entry for entry in starts if {*axes} <= {*entry} and _is_block(array, names, name, entry)]
    if not left or any(entry[-len(axes) :] == axes for entry in left) or _is_block(array, names, name, axes):
        return
    *_, first = (axis for axis in left[0] if axis not in axes)
    early = left[0][: left[0].index(first)]
    together = f'by "{name}"' if left[0] in entries else f"with over={spelled(left[0])}"
    raise _out_of_order(function, name, left[0], first, tuple(axis for axis in axes if axis in early), together)


def require_whole(function: str, array: jax.Array, names: Names, name: str, dim: int, axes: Entry) -> None:
    """Raise for a scatter of what is a block already."""
    if _is_block(array, names, name, axes) and not _is_block(array, names, name, ()):
        problem = f"axis {name!r} is already split: it has size {array.shape[dim] * count_of(axes)} in the arguments"
        hint = f'for the sum of blocks, axn.psum(x, "{axes[-1]}"); to split them again, over="{axes[-1]}"'
        raise ShardingError(message(function, problem, has(names, array), hint=hint))


def require_no_blocks(function: str, name: str, names: Names, array: jax.Array, axes: Entry) -> None:
    """Raise for a reduction over a name whose devices hold different blocks of another axis."""
    if not names or name in manual_axes():
        return
    mine = {axis for entry in readings(name, names) for axis in entry if axis in axes}
    for own, entry in ((n, entry) for n in names for entry in readings(n, names)):
        shared = [axis for axis in entry if axis in mine]
        if shared and _is_block(array, names, own, entry) and not _is_block(array, names, own, ()):
            problem = f"{own!r} is split over mesh axis {shared[0]!r}, like {name!r}: "
            problem += "its blocks would be reduced into one"
            hint = f'gather it or reduce over it first; or name the mesh axis: axn.{function}(x, "{shared[0]}")'
            raise ShardingError(message(function, problem, has(names, array), hint=hint))


def require_even(function: str, array: jax.Array, names: Names, name: str, dim: int, axes: Entry) -> None:
    """Raise for an uneven scatter of an axis, counting the Explicit mesh axes that split it already."""
    beside = _constraints.entries_of(array)[dim]
    ways = count_of(axes) * math.prod(jax.typeof(array).sharding.mesh.shape[axis] for axis in beside)
    if array.shape[dim] % ways:
        over = ", ".join((*axes, *beside))
        problem = f"{name}={array.shape[dim]} cannot be split evenly in {ways} over mesh axis {over}"
        raise AxisSizeError(message(function, problem, has(names, array)))


def require_axis(function: str, name: str, names: Names, array: Any) -> None:
    """Raise for an array without the axis."""
    if name not in names:
        hint = suggestion(name, names)
        raise AxisNotFoundError(message(function, f"no axis named {name!r}", has(names, array), hint=hint))


def require_size(
    function: str, axis: tuple[str, int | None], names: Names, array: jax.Array | None, axes: Entry
) -> None:
    """Raise for an `Axis` whose size is neither that of a block over mesh axes nor the global one, if known."""
    name, size = axis
    if size is None:
        return
    scope, ways = layout.current_scope(), count_of(axes)
    outside = set() if scope is None else {whole for own, whole in scope.sizes if own == name}
    here = {whole // ways for whole in outside}
    accepted = here | outside
    if array is not None and name in names:
        block = array.shape[dimension(array, names, name)]
        here, accepted = {block}, accepted | {block, block * ways}
        outside = outside or (set() if axes else {block})
    if outside and size not in accepted:
        inner, outer = (" or ".join(map(str, sorted(sizes))) for sizes in (here, outside))
        known = inner if inner == outer else f"{inner} here and {outer} outside"
        problem = f"axis {name!r} was given with size {size}, but has size {known}"
        raise AxisSizeError(message(function, problem, *([] if array is None else [has(names, array)])))


def has(names: Names, array: Any) -> str:
    """Describe an array, for an error."""
    return f"array has: {describe(names, getattr(array, 'shape', None))}"


def dimension(array: jax.Array, names: Names, name: str) -> int:
    """Return the position of a named dimension."""
    return array.ndim - len(names) + names.index(name)


def count_of(axes: Entry) -> int:
    """Return the number of devices along mesh axes."""
    return math.prod(map(lax.axis_size, axes))


def spelled(axes: Entry) -> str:
    """Write mesh axes as in a call."""
    return f'"{axes[0]}"' if len(axes) == 1 else f"({', '.join(map(json.dumps, axes))})"
