"""What names stand for inside of a shard_map: mesh axes to talk over, and what each device is known to hold."""

import math
from typing import Any

import jax
from jax import lax
from jax.sharding import AxisType

from .. import layout
from ..axis import AxisSelection, selection
from ..core import Names
from ..errors import AxisNotFoundError, AxisSizeError, ShardingError, describe, message, suggestion
from ..layout import AxisMapping, Entry

__all__ = [
    "count_of",
    "dimension",
    "has",
    "is_checked",
    "manual_axes",
    "mesh_axes_of",
    "require_axis",
    "require_blocks",
    "require_computed",
    "require_even",
    "require_no_blocks",
    "require_partial",
    "require_whole",
    "targets",
]


def targets(function: str, name: str, over: AxisSelection | None, names: Names, present: set[str]) -> dict[str, Entry]:
    """Tell which axes of an array are asked for by a name, and over which mesh axes their blocks lie."""
    if name in names:
        return {name: mesh_axes_of(function, name if over is None else over, names)}
    if name in present:
        return {}
    if name not in manual_axes():
        problem, facts = f"no array has axis {name!r}", f"axes of the arrays: {', '.join(sorted(present)) or 'none'}"
        raise AxisNotFoundError(message(function, problem, facts, hint=suggestion(name, {*present, *manual_axes()})))
    found: dict[str, Entry] = {}
    for own in names:
        entry = _entry(own, names)
        if name in entry:
            # Blocks of the last mesh axis are put together first, and cut last.
            first = entry[-1 if function == "all_gather" else 0]
            if first != name:
                problem = f"axis {own!r} lies over {', '.join(entry)}: {first!r} comes before {name!r}"
                hint = f'take all by "{own}"; or {first} first, and then axn.{function}(x, "{own}", over="{name}")'
                raise ShardingError(message(function, problem, hint=hint))
            found[own] = (name,)
    return found


def mesh_axes_of(function: str, axis: AxisSelection, names: Names) -> Entry:
    """Find the Manual mesh axes that axes, of arrays or of the mesh, stand for.

    Raises:
        ShardingError: if one is an axis of neither the mapping, the mesh nor the arrays, or of the mesh and not Manual.
    """
    manual = manual_axes()
    found: list[str] = []
    for name, _ in selection(axis, function):
        known = [layout.looked_up(mapping, name) for mapping in _mappings(names)]
        if name in names or any(entry is not None for entry in known):
            found += _entry(name, names)
        elif name in manual:
            found.append(name)
        else:
            _require_known(function, name)
    return tuple(dict.fromkeys(mesh_axis for mesh_axis in found if mesh_axis in manual))


def _require_known(function: str, name: str) -> None:
    """Refuse a name that means nothing here, where it can be told."""
    mesh, scope = layout.context_mesh(), layout.current_scope()
    if mesh is not None and name in mesh.axis_names:
        kind = layout.mesh_types(mesh)[name].name
        problem = f"mesh axis {name!r} is {kind}; devices talk over Manual axes, inside of shard_map"
        raise ShardingError(message(function, problem, f"mesh: {layout.describe_mesh(mesh)}"))
    if scope is None:
        return
    mapped = (scope.mappings.compute, scope.mappings.parameters)
    if name not in scope.names and all(layout.looked_up(mapping, name) is None for mapping in mapped):
        known = sorted({*scope.names, *scope.mappings.compute, *scope.mappings.parameters, *manual_axes()})
        problem = f"{name!r} is an axis of neither the arguments, the mapping nor the mesh"
        raise ShardingError(message(function, problem, f"there are: {', '.join(known)}", hint=suggestion(name, known)))


def manual_axes() -> Entry:
    """List the mesh axes that devices can talk over: Manual ones that no surrounding `vmap` maps over."""
    mesh = jax.sharding.get_abstract_mesh()
    types, taken = {} if mesh.empty else layout.mesh_types(mesh), layout.taken_axes()
    return tuple(axis for axis, kind in types.items() if kind is AxisType.Manual and axis not in taken)


def _mappings(names: Names) -> tuple[AxisMapping, ...]:
    """List the mappings to look a name up in: of data, the current one alone; else that of parameters as well."""
    current, scope = layout.current_mapping(), layout.current_scope()
    computed = () if current is None else (current,)
    if scope is None:
        return computed
    if not names:
        return (*computed, scope.mappings.parameters)
    own = scope.mappings.of(names)
    return computed if own == scope.mappings.compute else (own, *computed)


def require_computed(function: str, name: str, names: Names, array: Any) -> None:
    """Refuse to reduce over an axis that only parameters are split by: where is the sum of anything else partial?"""
    current, scope = layout.current_mapping(), layout.current_scope()
    if scope is None or layout.looked_up(current or {}, name) is not None:
        return
    entry = [axis for axis in layout.looked_up(scope.mappings.parameters, name) or () if axis in manual_axes()]
    if entry:
        problem = f"only the mapping of parameters has axis {name!r}, so that no sum over it is partial"
        facts = f"parameters: {scope.mappings.parameters}", f"compute: {scope.mappings.compute}"
        hint = f'for a sum over blocks of parameters, name the mesh axis: axn.{function}(x, "{entry[0]}")'
        raise ShardingError(message(function, problem, has(names, array), *facts, hint=hint))


def _entry(name: str, names: Names) -> Entry:
    """Look up the mesh axes of an axis; a derived one yields to the other axes of its array."""
    for mapping in _mappings(names):
        entry = layout.looked_up(mapping, name)
        if entry is not None:
            others = () if name in mapping else (other for other in names if other in mapping)
            used = {mesh_axis for other in others for mesh_axis in mapping[other]}
            manual = manual_axes()
            return tuple(mesh_axis for mesh_axis in entry if mesh_axis not in used and mesh_axis in manual)
    return ()


def is_checked(axes: Entry) -> bool:
    """Tell whether JAX keeps track of what varies between devices: not with `check=False`."""
    return bool(jax.typeof(lax.axis_index(axes)).mat.varying)


def require_partial(function: str, array: jax.Array, names: Names, axes: Entry) -> None:
    """Refuse to add up what is the same on all devices."""
    same = [axis for axis in axes if axis not in jax.typeof(array).mat.varying]
    if same and is_checked(axes):
        problem = f"the array is the same on all devices of mesh axis {same[0]!r}"
        hint = (
            "it needs no sum: a gradient with respect to a replicated value is summed already. "
            f'For a multiple, write x * axn.collectives.axis_size("{same[0]}")'
        )
        raise ShardingError(message(function, problem, has(names, array), hint=hint))


def require_blocks(function: str, array: jax.Array, names: Names, name: str, axes: Entry, told: bool) -> None:
    """Refuse to put together what each device has whole; by its size only where `over` has not told better."""
    same = [axis for axis in axes if axis not in jax.typeof(array).mat.varying]
    if same and is_checked(axes):
        problem = f"axis {name!r} is whole already: the array is the same on all devices of mesh axis {same[0]!r}"
        raise ShardingError(message(function, problem, has(names, array)))
    scope, size = layout.current_scope(), array.shape[dimension(array, names, name)]
    ways = {
        count_of(axes),
        count_of(_entry(name, names) or axes),
    }  # of several mesh axes, some may be gathered before others
    if scope is not None and not told and all(scope.is_whole(name, size, n) for n in ways):
        problem = f"axis {name!r} is whole already: the arguments have it with {size}"
        hint = f'if these are blocks, say of what: axn.{function}(..., over="{axes[-1]}")'
        raise ShardingError(message(function, problem, has(names, array), hint=hint))


def require_whole(function: str, array: jax.Array, names: Names, name: str, dim: int, axes: Entry) -> None:
    """Refuse to cut what is cut already."""
    scope, size, ways = layout.current_scope(), array.shape[dim], count_of(axes)
    if scope is not None and (name, size) not in scope.sizes and (name, size * ways) in scope.sizes:
        problem = f"axis {name!r} is cut already: the arguments have it with {size * ways}"
        hint = f'for the sum of blocks, axn.psum(x, "{axes[-1]}"); to cut them again, over="{axes[-1]}"'
        raise ShardingError(message(function, problem, has(names, array), hint=hint))


def require_no_blocks(function: str, name: str, names: Names, array: jax.Array) -> None:
    """Refuse to reduce over a name where the devices that it stands for hold different blocks of another axis."""
    scope, axes = layout.current_scope(), mesh_axes_of(function, name, names)
    if scope is None or not axes or name in manual_axes():
        return
    for own in names:
        shared = [axis for axis in _entry(own, names) if axis in axes]
        size = array.shape[dimension(array, names, own)]
        if shared and (own, size) not in scope.sizes and (own, size * count_of(_entry(own, names))) in scope.sizes:
            problem = f"{own!r} lies over mesh axis {shared[0]!r} as {name!r} does: "
            problem += "its blocks would be put on top of each other"
            hint = f'gather it or reduce over it first; or name the mesh axis: axn.{function}(x, "{shared[0]}")'
            raise ShardingError(message(function, problem, has(names, array), hint=hint))


def require_even(function: str, array: jax.Array, names: Names, name: str, dim: int, axes: Entry) -> None:
    """Refuse to cut an axis unevenly."""
    ways = count_of(axes)
    if array.shape[dim] % ways:
        problem = f"{name}={array.shape[dim]} cannot be cut evenly in {ways} over mesh axis {', '.join(axes)}"
        raise AxisSizeError(message(function, problem, has(names, array)))


def require_axis(function: str, name: str, names: Names, array: Any) -> None:
    """Refuse an array without the axis."""
    if name not in names:
        hint = suggestion(name, names)
        raise AxisNotFoundError(message(function, f"no axis named {name!r}", has(names, array), hint=hint))


def has(names: Names, array: Any) -> str:
    """Describe an array, for an error."""
    return f"array has: {describe(names, getattr(array, 'shape', None))}"


def dimension(array: jax.Array, names: Names, name: str) -> int:
    """Return the position of a named dimension."""
    return array.ndim - len(names) + names.index(name)


def count_of(axes: Entry) -> int:
    """Return how many devices there are along mesh axes."""
    return math.prod(map(lax.axis_size, axes))
