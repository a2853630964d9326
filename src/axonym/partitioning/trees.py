"""Internal. How the arrays of a tree get their layouts, and which axes, paths and mappings they have.

`shard`, `named_jit`, `shard_map` and the reports share it.
"""

import dataclasses
import itertools
from collections.abc import Callable, Set
from functools import partial
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..array import NamedArray, is_named_array
from ..axis import Axis
from ..base.kinds import to_tuple
from ..engine.core import shape_of, wrap
from ..errors import ShardingError, explained, message
from ..layout import assignment, constraints, partition, tracing
from ..layout.assignment import AxisMapping, Mappings, MeshLike
from ..layout.records import note
from ..names.plans import Names
from .processes import check_equal, is_of_one_process

T = TypeVar("T")


def no_mapping(function: str) -> ShardingError:
    """Build the error of a call without a mapping."""
    return ShardingError(
        message(function, "there is no axis mapping", hint="pass one, or use axn.axis_mapping")
    )


def no_mesh(function: str, mapping: AxisMapping | Mappings) -> ShardingError:
    """Build the error of a mapping without a mesh."""
    axes: dict[str, int] = {}
    for own in assignment.each_mapping(mapping):
        axes |= dict.fromkeys(itertools.chain.from_iterable(own.values()), 2)
    # The hint shows a mesh that fits the mapping, for eight devices.
    if len(axes) <= 1:
        axes = dict.fromkeys(axes or ("data",), 8)
    names = repr(tuple(axes)).replace("'", '"')
    hint = f"run inside of: with axn.set_mesh(jax.make_mesh({tuple(axes.values())}, {names}))"
    return ShardingError(message(function, "there is no mesh", f"mapping: {mapping}", hint=hint))


def collect_names(tree: object) -> set[str]:
    """Collect the names of all named arrays of a tree."""
    leaves = jax.tree.leaves(tree, is_leaf=is_named_array)
    return {name for leaf in leaves if isinstance(leaf, NamedArray) for name in leaf.names}


def collect_paths(tree: object) -> set[str]:
    """Collect the paths of all named arrays of a tree, such as `layers.0.weight`."""
    leaves = jax.tree.leaves_with_path(tree, is_leaf=is_named_array)
    return {assignment.path_text(path) for path, leaf in leaves if isinstance(leaf, NamedArray)}


def find_several(tree: object) -> set[str]:
    """Collect the names of axes whose size is not one in some array of a tree."""
    names: set[str] = set()
    for leaf in jax.tree.leaves(tree, is_leaf=is_named_array):
        if isinstance(leaf, NamedArray) and len(shape := getattr(leaf.array, "shape", ())) >= len(
            leaf.names
        ):
            here = zip(leaf.names, shape[len(shape) - len(leaf.names) :], strict=True)
            names.update(name for name, size in here if size != 1)
    return names


def list_sizes(tree: object) -> list[tuple[str, int]]:
    """List the axes of the named arrays of a tree with their sizes; placeholders of size one do not count."""
    several, found = find_several(tree), dict[tuple[str, int], None]()
    for leaf in jax.tree.leaves(tree, is_leaf=is_named_array):
        if not isinstance(leaf, NamedArray):
            continue
        shape = getattr(leaf.array, "shape", ())
        if len(shape) >= len(leaf.names):
            for name, size in zip(leaf.names, shape[len(shape) - len(leaf.names) :], strict=True):
                if size != 1 or name not in several:
                    found[name, size] = None
    return list(found)


def find_static_axes(module: eqx.Module) -> dict[str, tuple[Axis, ...]]:
    """Return the axes that a module holds in static fields, by field."""
    found: dict[str, tuple[Axis, ...]] = {}
    for field in dataclasses.fields(module):
        # A field may be missing while a module is being made.
        value: object = None
        if field.metadata.get("static"):
            value = getattr(module, field.name, None)
        several: tuple[Any, ...] = to_tuple(value)
        if all(isinstance(axis, Axis) for axis in several):
            found[field.name] = several
    return found


def find_layout_names(function: str, path: object, x: NamedArray) -> Names:
    """Return the names by which an array of a tree is sharded; no names, if it has fewer dimensions than names.

    The state of an optimiser may have a reduced array in place of each parameter, still with all its names.

    Raises:
        LostAxisError: if an array that is not an entry of a tree has fewer dimensions than names.
    """
    if path and len(x.array.shape) < len(x.names):
        return ()
    shape_of(function, x.array, x.names)
    return x.names


def is_optimiser_state(node: object) -> bool:
    """Return whether a node is a state of optax, in which reduced arrays may have all names of a parameter."""
    return hasattr(node, "_fields") and type(node).__module__.partition(".")[0] == "optax"


def choose_mapping(
    mapping: AxisMapping | Mappings,
    names: Names,
    shape: tuple[int, ...],
    path: str,
    several: Set[str],
) -> AxisMapping:
    """Return the mapping for one array; `several` are axes that have several elements somewhere in the tree.

    An axis with one element here and more elsewhere in the tree is replicated: a name has one size in a computation, so
    this is a placeholder of an optimiser, not data.
    """
    own = mapping.of(names, path) if isinstance(mapping, Mappings) else mapping
    here = zip(names, shape[len(shape) - len(names) :], strict=True)
    # An axis of one element everywhere may be data, such as a batch of one.
    single = [name for name, size in here if size == 1 and name in several]
    if not single:
        return own
    return dataclasses.replace(own, entries=tuple({**own, **dict.fromkeys(single, ())}.items()))


def shard_tree(
    tree: T,
    mapping: AxisMapping | Mappings,
    mesh: MeshLike,
    several: Set[str] | None = None,
    function: str = "shard",
    shown: Callable[[str], str] = str,
    gradients: Callable[[Names], AxisMapping | None] | None = None,
    *,
    is_result: bool = False,
) -> T:
    """Shard each named array of a tree.

    Args:
        tree: the tree.
        mapping: the mapping, or two.
        mesh: the mesh.
        several: for a part of a tree, the axes of the whole tree that `find_several` returns.
        function: what the user called, for errors.
        shown: how errors show a path.
        gradients: gives the mapping of gradients; by default they are sharded like the arrays.
        is_result: whether a compiled function returns the tree, whose shardings JAX must be able to say.
    """
    if several is None:
        several = find_several(tree)

    def one(path: object, leaf: object) -> Any:
        if isinstance(leaf, jax.ShapeDtypeStruct) and not tracing.transforming():
            return _plan_unnamed(leaf, mesh)
        # Other content is None in a filtered tree, or the placeholder of Optax for a masked array.
        if not isinstance(leaf, NamedArray) or not hasattr(leaf.array, "shape"):
            return leaf
        is_abstract = isinstance(leaf.array, jax.ShapeDtypeStruct)
        if is_abstract and tracing.transforming():
            # A part of a checkpoint that is not loaded yet has no data to constrain.
            return leaf
        names, shape = find_layout_names(function, path, leaf), leaf.array.shape
        own = choose_mapping(mapping, names, shape, assignment.path_text(path), several)
        if is_result:
            # The compiler splits an uneven result in a way for which JAX has no sharding.
            own = partition.resolve_uneven(names, shape, own, mesh, function)
        shard_array = _plan if is_abstract else _shard_array
        if not is_abstract and gradients is not None and tracing.transforming():
            shard_array = partial(constraints.constrain, gradient=gradients(names))
        try:
            array = shard_array(leaf.array, names, own, mesh, function)
        except ShardingError as error:
            raise add_path(error, shown(assignment.path_text(path))) from None
        return wrap(leaf, array, leaf.names)

    sharded: T = jax.tree.map_with_path(one, tree, is_leaf=is_named_array)
    return sharded


def add_path(error: ShardingError, path: str) -> ShardingError:
    """Return the error of one array, with the path of this array in its tree added."""
    return explained(error, "shard", f"at: {path}") if path else error


def _plan(array: Any, names: Names, mapping: AxisMapping, mesh: MeshLike, function: str) -> Any:
    """Return an abstract array with the sharding that its data will have, as loaders of checkpoints want it."""
    spec = partition.find_layout(names, tuple(array.shape), mapping, mesh, function).spec
    return _place(array, spec, mesh)


def _plan_unnamed(array: jax.ShapeDtypeStruct, mesh: MeshLike) -> jax.ShapeDtypeStruct:
    """Return an abstract array without names, with the sharding of its type, or replicated.

    A loader without a sharding would take the sharding in the file, which may be for another mesh.
    """
    own = array.sharding
    if not isinstance(own, NamedSharding):
        return _place(array, PartitionSpec(), mesh)
    if isinstance(own.mesh, Mesh):
        return array
    types = mesh.abstract_mesh if isinstance(mesh, Mesh) else mesh
    return _place(array, own.spec if own.mesh == types else PartitionSpec(), mesh)


def _place(array: Any, spec: PartitionSpec, mesh: MeshLike) -> jax.ShapeDtypeStruct:
    current = jax.sharding.get_mesh()
    if current.abstract_mesh == mesh:
        # It has devices. A mesh of the same sizes that names none stays without: costs are traced so.
        mesh = current
    placed = NamedSharding(mesh, spec)
    return jax.ShapeDtypeStruct(
        array.shape, array.dtype, sharding=placed, weak_type=array.weak_type
    )


def _shard_array(
    array: Any, names: Names, mapping: AxisMapping, mesh: MeshLike, function: str
) -> Any:
    if tracing.transforming():
        return constraints.constrain(array, names, mapping, mesh, function)
    # A surrounding function checks at its end which keys of the mapping some array has.
    note(mapping, names)
    spec = partition.find_layout(names, tuple(array.shape), mapping, mesh, function).spec
    # An abstract mesh names no devices: JAX then takes those of the current mesh.
    target: NamedSharding | PartitionSpec
    target = NamedSharding(mesh, spec) if isinstance(mesh, Mesh) else spec
    if (
        jax.process_count() > 1
        and isinstance(target, NamedSharding)
        and is_of_one_process(array, target)
    ):
        check_equal(function, array, names)
    if jax.process_count() > 1 and jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        # JAX refuses to put keys on devices of other processes, but not their numbers.
        numbers = jax.device_put(jax.random.key_data(array), target)
        return jax.random.wrap_key_data(numbers, impl=jax.random.key_impl(array))
    return jax.device_put(array, target)
