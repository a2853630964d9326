"""Shard trees of named arrays by a mapping.

A mapping says over which mesh axes an axis is sharded; axes without an entry are replicated. Outside of compiled
functions arrays are moved, and inside the compiler learns the layout.
"""

from contextlib import AbstractContextManager
from typing import Any, TypeVar

import jax
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from ..array import NamedArray, is_named_array
from ..axis import Axis, sized
from ..base.kinds import type_text
from ..current.blocks import Blocks, Entered
from ..errors import OperandError, ShardingError, message
from ..layout import assignment, context, partition
from ..layout.assignment import AxisMapping, Mappings, MeshLike, ResourceMapping
from .keys import check_keys
from .trees import (
    add_path,
    choose_mapping,
    collect_names,
    collect_paths,
    find_layout_names,
    find_several,
    no_mapping,
    no_mesh,
    shard_tree,
)

__all__ = [
    "auto_sharded",
    "pspec_for",
    "round_axis_for_partitioning",
    "set_mesh",
    "shard",
]

T = TypeVar("T")


def set_mesh(mesh: MeshLike) -> AbstractContextManager[Any]:
    """Make a mesh the current one, inside a `with` block.

    As with `jax.set_mesh`, a `Mesh` is the current one of the thread from this call on, also without a block.

    Args:
        mesh: a mesh, or an abstract one, which needs no devices.

    Raises:
        OperandError: if it is no mesh.
        ShardingError: if another asyncio task or generator of the thread enters or leaves its block inside this one. A
            task without a block uses this mesh.

    Examples:
        >>> with axn.set_mesh(jax.make_mesh((8,), ("data",))):
        ...     axn.shard(axn.ones({"batch": 8}), {"batch": "data"}).sharding.spec
        P('data',)
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
        # JAX has a function for each kind of mesh.
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


def _describe_mesh(mesh: MeshLike | None) -> str:
    return "none" if mesh is None else partition.describe_mesh(mesh)


_meshes: Blocks[MeshLike | None] = Blocks("set_mesh", None, _describe_mesh)


def shard(
    x: T,
    mapping: ResourceMapping | Mappings | None = None,
    mesh: MeshLike | None = None,
    *,
    strict: bool = True,
) -> T:
    """Shard each named array of a tree; plain arrays stay as they are.

    Outside jit, arrays are moved. Abstract arrays, as `jax.eval_shape` returns them, get shardings; plain ones among
    them are replicated unless their type says otherwise. Inside jit, `shard` constrains the compiler on Auto mesh axes,
    and changes the type on Explicit ones. The state of an optimiser may have reduced arrays: those with fewer
    dimensions than names are replicated, and so are axes with one element here and more elsewhere in the tree. Several
    processes must all pass the same arrays, which is checked; `from_local` joins parts.

    Args:
        x: a NamedArray or a tree of them.
        mapping: axis names to mesh axes; by default the current mapping. Axes that it lacks are replicated. `Mappings`
            has separate layouts for parameters and data.
        mesh: by default the mesh of `set_mesh`.
        strict: raise for keys of a given mapping that no array of the tree has. Not checked are keys of the current
            mapping, which is for a whole model, and keys of `Mappings.compute`, which is also for data.

    Raises:
        ShardingError: if there is no mapping or no mesh, or they do not fit the arrays; if the
            processes have different arrays.
        LostAxisError: if `x` is a single array with fewer dimensions than names.

    Examples:
        >>> mesh = jax.make_mesh((4, 2), ("data", "model"))
        >>> x = axn.ones({"batch": 8, "embed": 4})
        >>> axn.shard(x, {"batch": "data", "embed": "model"}, mesh).sharding.spec
        P('data', 'model')
    """
    # Only a mapping is completed by the current one; two mappings are complete.
    resolved: AxisMapping | Mappings | None
    resolved = mapping if isinstance(mapping, Mappings) else context.resolve_mapping(mapping)
    mesh = context.context_mesh(mesh)
    if resolved is None:
        raise no_mapping("shard")
    if mesh is None:
        raise no_mesh("shard", resolved)
    if mapping is not None and strict:
        check_keys("shard", resolved, collect_names(x), mesh, collect_paths(x))
    return shard_tree(x, resolved, mesh)


def auto_sharded(x: T, mesh: MeshLike | None = None) -> T:
    """Shard each named array of a tree by the current mapping; without mapping or mesh, do nothing.

    On Auto mesh axes, gradients of parameters get the layout of results of the surrounding `named_jit` or `fsdp`. If
    weights are gathered for the computation, their gradients are scattered again, and no device holds a full gradient.

    Args:
        x: a NamedArray or a tree of them.
        mesh: by default the mesh of `set_mesh`.

    Examples:
        >>> with axn.set_mesh(jax.make_mesh((8,), ("data",))), axn.axis_mapping({"batch": "data"}):
        ...     axn.auto_sharded(axn.ones({"batch": 8})).sharding.spec
        P('data',)
    """
    mapping, mesh = context.current_mapping(), context.context_mesh(mesh)
    # Layers call this in every program, also in those without a mesh.
    if mapping is None or mesh is None:
        return x
    return shard_tree(x, mapping, mesh, gradients=context.find_stored_mapping)


def pspec_for(
    tree: object,
    resource_mapping: ResourceMapping | None = None,
    mesh: MeshLike | None = None,
    *,
    strict: bool = True,
) -> Any:
    """Return a tree of PartitionSpecs: one per named array, replicated for plain arrays, None for other leaves.

    The mapping is checked against the mesh, if one is given or current.

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
        check_keys("pspec_for", mapping, collect_names(tree), mesh)
    several = find_several(tree)

    def one(path: object, leaf: object) -> PartitionSpec | None:
        if isinstance(leaf, NamedArray):
            # A hole that a filter has left keeps its place in the tree.
            if not hasattr(leaf.array, "shape"):
                return None
            names, shape = find_layout_names("pspec_for", path, leaf), tuple(leaf.array.shape)
            own = choose_mapping(mapping, names, shape, "", several)
            try:
                return partition.find_layout(names, shape, own, mesh, "pspec_for").spec
            except ShardingError as error:
                raise add_path(error, assignment.path_text(path)) from None
        if hasattr(leaf, "shape"):
            return PartitionSpec()
        return None

    return jax.tree.map_with_path(one, tree, is_leaf=is_named_array)


def round_axis_for_partitioning(
    axis: Axis, mapping: ResourceMapping | None = None, mesh: MeshLike | None = None
) -> Axis:
    """Return the axis with its size rounded up to a multiple of the number of its shards.

    Args:
        axis: the axis; it is returned unchanged if the mapping does not shard it.
        mapping: axis names to mesh axes; by default the current mapping.
        mesh: by default the mesh of `set_mesh`.

    Raises:
        ShardingError: if the axis is mapped and there is no mesh, or the mesh lacks the mesh axis.

    Examples:
        >>> mesh = jax.make_mesh((8,), ("model",))
        >>> axn.round_axis_for_partitioning(axn.Axis("vocab", 50257), {"vocab": "model"}, mesh)
        Axis(name='vocab', size=50264)
    """
    axis = sized(axis, "round_axis_for_partitioning")
    resolved, mesh = context.resolve_mapping(mapping), context.context_mesh(mesh)
    if resolved is None or not resolved.get(axis.name):
        return axis
    if mesh is None:
        raise no_mesh("round_axis_for_partitioning", resolved)
    if len(resolved.alternatives(axis.name)) > 1:
        return axis  # an alternative divides, or the error says what would
    one = AxisMapping(((axis.name, resolved[axis.name]),))
    # Size 0 always divides, so that only the mesh axes are checked.
    partition.find_layout((axis.name,), (0,), one, mesh, "round_axis_for_partitioning")
    ways = partition.count_shards(mesh, resolved[axis.name])
    return axis.resize(-(-axis.size // ways) * ways)
