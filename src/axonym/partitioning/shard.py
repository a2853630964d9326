"""Lay out trees of named arrays by a mapping."""

import dataclasses
import itertools
from collections.abc import Callable, Set
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from ..array import NamedArray, is_named_array
from ..axis import Axis, sized
from ..core import shape_of, wrap
from ..current.blocks import Blocks, Entered
from ..errors import OperandError, ShardingError, explained, message
from ..kinds import in_tuple, type_text
from ..layout import assignment, constraints, context, partition, tracing
from ..layout.assignment import AxisMapping, Mappings, MeshLike, ResourceMapping
from ..layout.records import note
from ..names.plans import Names
from .keys import check_keys
from .processes import check_equal, is_of_one_process

__all__ = [
    "auto_sharded",
    "is_optimiser_state",
    "lay_out_tree",
    "mapping_for",
    "names_held",
    "names_of",
    "no_mapping",
    "no_mesh",
    "paths_of",
    "pspec_for",
    "round_axis_for_partitioning",
    "set_mesh",
    "several_of",
    "shard",
    "static_axes",
]

T = TypeVar("T")


def set_mesh(mesh: MeshLike) -> AbstractContextManager[Any]:
    """Make a mesh the current one, inside a `with` block: `with axn.set_mesh(jax.make_mesh((8,), ("data",)))`.

    As with `jax.set_mesh`, a `Mesh` is the current one of the thread from this call on, also without a block.

    Raises:
        OperandError: if it is no mesh.
        ShardingError: where the block of another asyncio task or generator of the thread is entered or left inside of
            this one. What such a task does without a block of its own uses this mesh.
    """
    if not isinstance(mesh, Mesh | AbstractMesh):
        problem = f"expected a mesh, got {type_text(mesh)}"
        raise OperandError(
            message("set_mesh", problem, hint='make one: jax.make_mesh((4, 2), ("data", "model"))')
        )
    return _MeshBlock(mesh)


class _MeshBlock(AbstractContextManager[Any]):
    """The block of `set_mesh`."""

    def __init__(self, mesh: MeshLike) -> None:
        self._mesh = mesh
        self._inner: AbstractContextManager[Any]
        if isinstance(mesh, Mesh):
            self._inner = jax.set_mesh(mesh)
        else:
            self._inner = jax.sharding.use_abstract_mesh(mesh)
        self._entered: Entered[MeshLike | None] | None = None

    def __enter__(self) -> Any:
        try:
            self._entered = _meshes.enter(self._mesh, self._inner)
        except ShardingError:
            self._inner.__exit__(None, None, None)  # a Mesh is current since this block was made
            raise
        return self._mesh

    def __exit__(self, *raised: object) -> None:
        assert self._entered is not None
        _meshes.leave(self._entered, *raised)


def _spelled(mesh: MeshLike | None) -> str:
    if mesh is None:
        return "none"
    return partition.describe_mesh(mesh)


_meshes: Blocks[MeshLike | None] = Blocks("set_mesh", None, _spelled)


def shard(
    x: T,
    mapping: ResourceMapping | Mappings | None = None,
    mesh: MeshLike | None = None,
    *,
    strict: bool = True,
) -> T:
    """Lay out each named array of a tree; plain arrays stay as they are.

    Outside jit, arrays are moved, and abstract ones, as `jax.eval_shape` returns them, get their shardings, plain ones
    included, which are replicated unless their type says otherwise. Inside, it is a constraint for the compiler (Auto
    mesh axes) or changes the type (Explicit ones). Optimisers may keep less of an array under its names: entries of a
    tree with fewer dimensions than names are replicated, and so are axes with one element that have more elsewhere in
    the tree. Of several processes, each must pass the same whole arrays, which is checked; `from_local` joins parts.

    Args:
        x: a NamedArray or a tree of them.
        mapping: axis names to mesh axes; by default the current mapping. Axes that it lacks are replicated. `Mappings`
            has separate layouts for parameters and data.
        mesh: by default the mesh of `set_mesh`.
        strict: raise for keys of a given mapping that no array of the tree has. Keys of the current mapping, which is
            for a whole model, are not checked, nor are those of `Mappings.compute`, which is also for data.

    Raises:
        ShardingError: if there is no mapping or no mesh, or they do not fit the arrays; if the
            processes have different arrays.
        LostAxisError: if `x` is a single array with fewer dimensions than names.
    """
    resolved: AxisMapping | Mappings | None
    if isinstance(mapping, Mappings):
        resolved = mapping
    else:
        resolved = context.resolve_mapping(mapping)
    mesh = context.context_mesh(mesh)
    if resolved is None:
        raise no_mapping("shard")
    if mesh is None:
        raise no_mesh("shard", resolved)
    if mapping is not None and strict:
        check_keys("shard", resolved, names_of(x), mesh, paths_of(x))
    return lay_out_tree(x, resolved, mesh)


def auto_sharded(x: T, mesh: MeshLike | None = None) -> T:
    """Lay out each named array of a tree by the current mapping; without mapping or mesh, do nothing.

    On Auto mesh axes, gradients of parameters are laid out as the results of the surrounding `named_jit` or `fsdp`
    are: what is gathered for the computation is scattered again, without being whole on each device in between.
    """
    mapping, mesh = context.current_mapping(), context.context_mesh(mesh)
    if mapping is None or mesh is None:
        return x
    return lay_out_tree(x, mapping, mesh, gradients=context.stored_mapping)


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
    if len(axes) <= 1:
        axes = dict.fromkeys(axes or ("data",), 8)
    names = repr(tuple(axes)).replace("'", '"')
    hint = f"run inside of: with axn.set_mesh(jax.make_mesh({tuple(axes.values())}, {names}))"
    return ShardingError(message(function, "there is no mesh", f"mapping: {mapping}", hint=hint))


def names_of(tree: object) -> set[str]:
    """Collect the names of all named arrays of a tree."""
    leaves = jax.tree.leaves(tree, is_leaf=is_named_array)
    names: set[str] = set()
    for leaf in leaves:
        if isinstance(leaf, NamedArray):
            names.update(leaf.names)
    return names


def paths_of(tree: object) -> set[str]:
    """Collect the paths of all named arrays of a tree, such as `layers.0.weight`."""
    leaves = jax.tree.leaves_with_path(tree, is_leaf=is_named_array)
    return {assignment.path_text(path) for path, leaf in leaves if isinstance(leaf, NamedArray)}


def several_of(tree: object) -> set[str]:
    """Collect the names of axes whose size is not one in some array of a tree."""
    names: set[str] = set()
    for leaf in jax.tree.leaves(tree, is_leaf=is_named_array):
        if isinstance(leaf, NamedArray) and len(shape := getattr(leaf.array, "shape", ())) >= len(
            leaf.names
        ):
            here = zip(leaf.names, shape[len(shape) - len(leaf.names) :], strict=True)
            names.update(name for name, size in here if size != 1)
    return names


def static_axes(module: eqx.Module) -> dict[str, tuple[Axis, ...]]:
    """Return the axes that a module holds in static fields, by field."""
    found: dict[str, tuple[Axis, ...]] = {}
    for field in dataclasses.fields(module):
        value: object = None
        if field.metadata.get("static"):
            value = getattr(module, field.name, None)
        several: tuple[Any, ...] = in_tuple(value)
        if all(isinstance(axis, Axis) for axis in several):
            found[field.name] = several
    return found


def names_held(function: str, path: object, x: NamedArray) -> Names:
    """Return the names by which an array of a tree is laid out: none, if it has fewer dimensions than names.

    Optimisers map functions over the arrays of a tree and may keep less of each, under all its names.

    Raises:
        LostAxisError: if an array that is not an entry of a tree has fewer dimensions than names.
    """
    if path and len(x.array.shape) < len(x.names):
        return ()
    shape_of(function, x.array, x.names)
    return x.names


def is_optimiser_state(node: object) -> bool:
    """Return whether a node is a state of optax, which may keep less of an array under all its names."""
    return hasattr(node, "_fields") and type(node).__module__.partition(".")[0] == "optax"


def mapping_for(
    mapping: AxisMapping | Mappings,
    names: Names,
    shape: tuple[int, ...],
    path: str,
    several: Set[str],
) -> AxisMapping:
    """Return the mapping for one array of a tree, in which some axes have several elements.

    An axis with one element here and more elsewhere in the tree is replicated: a name has one size in a computation, so
    this is a placeholder of an optimiser, not data.
    """
    if isinstance(mapping, Mappings):
        own = mapping.of(names, path)
    else:
        own = mapping
    here = zip(names, shape[len(shape) - len(names) :], strict=True)
    single = [name for name, size in here if size == 1 and name in several]
    if not single:
        return own
    return dataclasses.replace(own, entries=tuple({**own, **dict.fromkeys(single, ())}.items()))


def lay_out_tree(
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
    """Lay out each named array of a tree.

    Args:
        tree: the tree.
        mapping: the mapping, or two.
        mesh: the mesh.
        several: for a part of a tree, the `several_of` the whole.
        function: what the user called, for errors.
        shown: how errors show a path.
        gradients: gives the mapping of gradients; by default they are laid out as the arrays.
        is_result: whether a compiled function returns the tree, whose shardings JAX must be able to say.
    """
    if several is None:
        several = several_of(tree)

    def one(path: object, leaf: object) -> Any:
        if isinstance(leaf, jax.ShapeDtypeStruct) and not tracing.transforming():
            return _planned_as_it_is(leaf, mesh)
        # otherwise None in a filtered tree, or the placeholder of optax for a masked array
        if not isinstance(leaf, NamedArray) or not hasattr(leaf.array, "shape"):
            return leaf
        is_abstract = isinstance(leaf.array, jax.ShapeDtypeStruct)
        if (
            is_abstract and tracing.transforming()
        ):  # a part of a checkpoint that is not loaded yet: no data
            return leaf
        names, shape = names_held(function, path, leaf), leaf.array.shape
        own = mapping_for(mapping, names, shape, assignment.path_text(path), several)
        if is_result:
            own = partition.evenly(names, shape, own, mesh, function)
        lay_out = _lay_out
        if is_abstract:
            lay_out = _planned
        elif gradients is not None and tracing.transforming():
            lay_out = partial(constraints.constrain, gradient=gradients(names))
        try:
            array = lay_out(leaf.array, names, own, mesh, function)
        except ShardingError as error:
            raise _located(error, shown(assignment.path_text(path))) from None
        return wrap(leaf, array, leaf.names)

    laid_out: T = jax.tree.map_with_path(one, tree, is_leaf=is_named_array)
    return laid_out


def _located(error: ShardingError, path: str) -> ShardingError:
    if not path:
        return error
    return explained(error, "shard", f"at: {path}")


def _planned(array: Any, names: Names, mapping: AxisMapping, mesh: MeshLike, function: str) -> Any:
    """Return an abstract array that says where its data will be, as loaders of checkpoints want it."""
    spec = partition.partition_spec(names, tuple(array.shape), mapping, mesh, function)
    return _placed(array, spec, mesh)


def _planned_as_it_is(array: jax.ShapeDtypeStruct, mesh: MeshLike) -> jax.ShapeDtypeStruct:
    """Return an abstract array without names that says where its data will be: by its type, or on all devices.

    Without a sharding, a loader would take the one in the file, which may be of another mesh.
    """
    own = array.sharding
    if not isinstance(own, NamedSharding):
        return _placed(array, PartitionSpec(), mesh)
    if isinstance(own.mesh, Mesh):
        return array
    types = mesh.abstract_mesh if isinstance(mesh, Mesh) else mesh
    return _placed(array, own.spec if own.mesh == types else PartitionSpec(), mesh)


def _placed(array: Any, spec: PartitionSpec, mesh: MeshLike) -> jax.ShapeDtypeStruct:
    current = jax.sharding.get_mesh()
    if current.abstract_mesh == mesh:
        # It has devices. A mesh of the same sizes that names none stays without: costs are traced so.
        mesh = current
    placed = NamedSharding(mesh, spec)
    return jax.ShapeDtypeStruct(
        array.shape, array.dtype, sharding=placed, weak_type=array.weak_type
    )


def _lay_out(array: Any, names: Names, mapping: AxisMapping, mesh: MeshLike, function: str) -> Any:
    if tracing.transforming():
        return constraints.constrain(array, names, mapping, mesh, function)
    note(mapping, names)
    spec = partition.partition_spec(names, tuple(array.shape), mapping, mesh, function)
    target: NamedSharding | PartitionSpec = spec
    if isinstance(mesh, Mesh):
        target = NamedSharding(mesh, spec)
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


def pspec_for(
    tree: object,
    resource_mapping: ResourceMapping | None = None,
    mesh: MeshLike | None = None,
    *,
    strict: bool = True,
) -> Any:
    """Return a tree of PartitionSpecs: one per named array, replicated for plain arrays, None for other leaves.

    With a mesh, given or current, the mapping is checked against it.

    Args:
        tree: named arrays, or a tree with such arrays, which may be abstract.
        resource_mapping: axis names to mesh axes; by default the current mapping.
        mesh: by default the mesh of `set_mesh`.
        strict: raise for keys of a given mapping that no array of the tree has.

    Raises:
        ShardingError: if there is no mapping, or it does not fit.

    Examples:
        >>> axn.pspec_for(axn.ones(axn.make_axes(batch=8, embed=4)), {"batch": "data"})
        P('data', None)
    """
    mapping, mesh = context.resolve_mapping(resource_mapping), context.context_mesh(mesh)
    if mapping is None:
        raise no_mapping("pspec_for")
    if resource_mapping is not None and strict:
        check_keys("pspec_for", mapping, names_of(tree), mesh)
    several = several_of(tree)

    def one(path: object, leaf: object) -> PartitionSpec | None:
        if isinstance(leaf, NamedArray):
            if not hasattr(leaf.array, "shape"):
                return None
            names, shape = names_held("pspec_for", path, leaf), tuple(leaf.array.shape)
            own = mapping_for(mapping, names, shape, "", several)
            try:
                return partition.partition_spec(names, shape, own, mesh, "pspec_for")
            except ShardingError as error:
                raise _located(error, assignment.path_text(path)) from None
        if hasattr(leaf, "shape"):
            return PartitionSpec()
        return None

    return jax.tree.map_with_path(one, tree, is_leaf=is_named_array)


def round_axis_for_partitioning(
    axis: Axis, mapping: ResourceMapping | None = None, mesh: MeshLike | None = None
) -> Axis:
    """Return the axis with its size rounded up to a multiple of the number of its shards.

    A vocabulary of 50,257, to be sharded in 8, becomes 50,264.

    Raises:
        ShardingError: if the axis is mapped and there is no mesh, or the mesh lacks the mesh axis.
    """
    axis = sized(axis, "round_axis_for_partitioning")
    resolved, mesh = context.resolve_mapping(mapping), context.context_mesh(mesh)
    if resolved is None or not resolved.get(axis.name):
        return axis
    if mesh is None:
        raise no_mesh("round_axis_for_partitioning", resolved)
    one = AxisMapping(((axis.name, resolved[axis.name]),))
    partition.partition_spec((axis.name,), (0,), one, mesh, "round_axis_for_partitioning")
    ways = partition.ways_on(mesh, resolved[axis.name])
    return axis.resize(-(-axis.size // ways) * ways)
