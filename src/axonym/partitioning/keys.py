"""Internal. Keys of a mapping that no array has: most often misspelled names.

A misspelled key would silently replicate an array, so a program would need more memory and communicate more. All
functions that take a mapping call this.
"""

import itertools
import warnings
from collections.abc import Set

import jax

from ..array import NamedArray, is_named_array
from ..base.callers import users_line
from ..errors import ShardingError, message, suggestion
from ..layout.assignment import AxisMapping, Mappings, MeshLike, add_bases, find_entry, matches
from ..layout.partition import no_mesh_axis
from ..layout.records import Ledger
from ..names.plans import Names
from .arguments import join_first

# The hint for a key that no array has; not all functions have an option for it.
_LENIENT = {
    "": "pass strict=False where one mapping serves several models",
    "cost": "leave it out: the cost is that of these arrays",
    "spread": "leave it out: no parameter has it",
}


def check_keys(
    function: str,
    mapping: AxisMapping | Mappings,
    names: Set[str],
    mesh: MeshLike | None,
    paths: Set[str] = frozenset(),
    *,
    ledger: Ledger | None = None,
) -> None:
    """Raise ShardingError for a key of the mapping that no array has, or a mesh axis that the mesh does not have.

    Args:
        function: the name for errors.
        mapping: the mapping, or several.
        names: the names of the known arrays.
        mesh: the mesh, if there is one.
        paths: the paths of the arrays, for patterns that override a mapping.
        ledger: notes of the layouts inside of a function. Without it, the mapping is for these arrays alone. Keys of
            `Mappings.compute` are then not checked, since activations are not known.
    """
    if isinstance(mapping, Mappings):
        for own in (mapping.parameters, *(extra for _, extra in mapping.overrides)):
            check_keys(function, own, names, mesh, ledger=ledger)
        computed = names if ledger is not None else names | mapping.compute.keys()
        check_keys(function, mapping.compute, computed, mesh, ledger=ledger)
        for pattern, _ in mapping.overrides:
            if not any(matches(pattern, path) for path in paths):
                problem = f"no array has a path that matches {pattern!r}"
                shown = sorted(paths - {""})  # an array that is a whole tree has no path
                parts = {part for path in shown for part in path.split(".")}
                facts = f"paths: {join_first(shown, 8) or 'none'}"
                raise ShardingError(
                    message(function, problem, facts, hint=suggestion(pattern, parts))
                )
        return
    check_mesh_axes(function, mapping, mesh)
    if ledger is not None:
        names = names | ledger.seen.get(mapping, set())
    # A derived axis, such as `embed.out`, takes the entry of its base.
    known = add_bases(names)
    for key in mapping:
        if key not in known:
            hint = suggestion(key, known) or _LENIENT.get(function, _LENIENT[""])
            if not known:
                hint = f"plain arrays are not laid out: name them, axn.named(array, ({key!r}, ...))"
            raise _key_error(function, key, mapping, known, hint)


def check_keys_of_data(
    function: str, mapping: AxisMapping, names: Set[str], mesh: MeshLike, *, whole: bool = False
) -> None:
    """Apply `check_keys` to the mapping of data, which may also have keys for the model.

    Keys may be axes of the model, but at least one must be an axis of the data. If a key resembles an axis of the data
    that has no entry, it is taken for a misspelling: the data would be the same on all processes. With `whole`, no key
    needs to be an axis of the data: the array may be a parameter that is replicated.
    """
    check_mesh_axes(function, mapping, mesh)
    known = add_bases(names)
    # A mapping without any axis of the data is that of something else.
    is_for_others = bool(names) and not whole and not known & mapping.keys()
    for key in mapping:
        hint = suggestion(key, known - mapping.keys())
        if key not in known and (is_for_others or hint is not None):
            hint = hint or "pass strict=False if all of it is the same on all processes"
            raise _key_error(function, key, mapping, known, hint)


def warn_of_unused_storage(
    function: str, mappings: Mappings, arguments: object, result: object
) -> None:
    """Warn if the mapping of parameters stores no named array of a call: the two mappings may be swapped."""
    own, computed = mappings.parameters, mappings.compute

    def list_names(tree: object) -> list[Names]:
        leaves = jax.tree.leaves(tree, is_leaf=is_named_array)
        return [leaf.names for leaf in leaves if isinstance(leaf, NamedArray)]

    def has_entry(mapping: AxisMapping, names: Names) -> bool:
        return any(find_entry(mapping, name) for name in names)

    # A function that makes a model has none among its arguments.
    arrays = list_names(arguments) or list_names(result)
    if own == computed or not any(own.values()):
        return
    is_stored = any(has_entry(own, names) and mappings.of(names) != computed for names in arrays)
    # A function of data alone has no array to store, but then its arrays have axes of both mappings.
    is_apart = any(has_entry(computed, names) and not has_entry(own, names) for names in arrays)
    if is_apart and not is_stored:
        problem = "the mapping of parameters stores none of the arrays"
        hint = "it is the first one; if the two are exchanged, weights count as data"
        text = message(function, problem, f"mappings: {mappings}", hint=hint)
        warnings.warn(text, stacklevel=users_line()[1])


def warn_of_unmapped_layers(function: str, mapping: AxisMapping | Mappings, ledger: Ledger) -> None:
    """Warn if `pipelined` is current, and the mapping has no axis of layers of the stacks that ran."""
    # A model may have a second stack, which is no pipeline.
    if ledger.pipelines and not any(ledger.pipelines.values()):
        first = next(iter(ledger.pipelines))
        problem = "axn.pipelined is current, but the mapping has no axis of layers, so nothing is a pipeline"
        facts = f"axes of layers: {', '.join(ledger.pipelines)}", f"mapping: {mapping}"
        hint = f'map the layers to a mesh axis, as in {{"{first}": "stage"}}'
        warnings.warn(message(function, problem, *facts, hint=hint), stacklevel=users_line()[1])


def check_mesh_axes(function: str, mapping: AxisMapping, mesh: MeshLike | None) -> None:
    """Raise ShardingError for a mesh axis that the mesh does not have."""
    for key in mapping:
        for axis in itertools.chain.from_iterable(mapping.alternatives(key)):
            if mesh is not None and axis not in mesh.axis_names:
                raise no_mesh_axis(function, key, axis, mesh, f"mapping: {mapping}")


def _key_error(
    function: str, key: str, mapping: AxisMapping, known: Set[str], hint: str
) -> ShardingError:
    problem = f"the mapping has axis {key!r}, which no array here has"
    axes = f"axes of the arrays: {', '.join(sorted(known)) or 'none'}"
    return ShardingError(message(function, problem, f"mapping: {mapping}", axes, hint=hint))
