"""Layout by name: the mapping of axes to mesh axes, and functions compiled under it."""

import contextlib
import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, Protocol, TypeAlias, TypeVar, cast

import equinox as eqx
import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec, Sharding

import axonym as axn
from axonym import Axis, AxisSelection, AxisSelector
from axonym.engine import (
    Payload,
    Tree,
    context_mesh,
    names_in,
    resolve_mapping,
    selection,
    transforming,
    wrap,
)
from axonym.errors import ArgumentError, ShardingError, message

from ._adapt import Function, adapted
from ._elementwise import raw
from ._mesh import current_mesh, entering_mesh, uneven
from .util import StringHolderEnum, safe_update_wrapper

__all__ = [
    "PhysicalAxisSpec",
    "ResourceAxis",
    "ResourceMapping",
    "auto_sharded",
    "axis_mapping",
    "current_thread_local_mapping",
    "fsdp",
    "infer_resource_partitions",
    "named_jit",
    "named_pjit",
    "physical_axis_name",
    "pspec_for",
    "pspec_for_axis",
    "round_axis_for_partitioning",
    "set_mesh",
    "shard",
    "shard_with_axis_mapping",
]

PhysicalAxisSpec: TypeAlias = str | Sequence[str]
ResourceMapping: TypeAlias = Mapping[str, PhysicalAxisSpec]
MeshLike: TypeAlias = Mesh | AbstractMesh
T = TypeVar("T")
F = TypeVar("F", bound=Function)
Names: TypeAlias = tuple[str, ...]
Args = ParamSpec("Args")
R = TypeVar("R", covariant=True)


class ResourceAxis(StringHolderEnum):
    """Usual names of mesh axes."""

    MODEL = "model"
    DATA = "data"
    REPLICA = "replica"


class WrappedCallable(Protocol[Args, R]):
    """The type that `named_jit` returns."""

    def __call__(self, *args: Args.args, **kwargs: Args.kwargs) -> R:
        """Call the compiled function."""
        ...

    def lower(self, *args: Args.args, **kwargs: Args.kwargs) -> jax.stages.Lowered:
        """Trace and lower for these arguments."""
        ...


# the context
def set_mesh(mesh: MeshLike) -> AbstractContextManager[object]:
    """Set the current mesh, globally or inside a `with` block."""
    return axn.set_mesh(mesh)


mesh_context = set_mesh


@contextlib.contextmanager
def axis_mapping(
    mapping: ResourceMapping, *, merge: bool = False, **kwargs: PhysicalAxisSpec
) -> Generator[None]:
    """Set the current mapping; with `merge` it is added to the outer one, whose entries it overrides."""
    with axn.axis_mapping(uneven(mapping), merge=merge, **kwargs):
        yield


def current_thread_local_mapping() -> ResourceMapping | None:
    """Return the current mapping as a dict, or None."""
    mapping = axn.current_mapping()
    if mapping is None:
        return None
    return {name: _spelled(entry) for name, entry in mapping.items()}  # type: ignore[misc]


def _spelled(entry: tuple[str, ...]) -> PhysicalAxisSpec | None:
    if len(entry) == 1:
        return entry[0]
    return entry or None


# mesh axes
def physical_axis_name(
    axis: AxisSelector, mapping: ResourceMapping | None = None
) -> PhysicalAxisSpec | None:
    """Return the mesh axis of an axis, or a tuple of several; None if there is none, or no mapping."""
    ((name, _),) = selection(axis, "physical_axis_name")
    resolved = resolve_mapping(mapping)
    if resolved is None:
        return None
    return _spelled(resolved.get(name, ()))


def physical_axis_size(axis: AxisSelector, mapping: ResourceMapping | None = None) -> int | None:
    """Return the number of parts into which the mesh splits an axis; None if it is not mapped."""
    physical = physical_axis_name(axis, mapping)
    if physical is None:
        return None
    mesh = _require_mesh("physical_axis_size")
    names = tuple(physical)
    if isinstance(physical, str):
        names = (physical,)
    for name in names:
        if name not in mesh.axis_names:
            sizes = ", ".join(f"{own}={size}" for own, size in mesh.shape.items())
            problem = f"{name!r} is not an axis of the mesh"
            raise ShardingError(message("physical_axis_size", problem, f"mesh: {sizes}"))
    ways: int = math.prod(mesh.shape[name] for name in names)
    return ways


def pspec_for_axis(axis: AxisSelection, mapping: ResourceMapping | None = None) -> PartitionSpec:
    """Return the PartitionSpec of an array with these axes, in this order."""
    names = names_in(selection(axis, "pspec_for_axis"))
    return PartitionSpec(*(physical_axis_name(name, mapping) for name in names))


def sharding_for_axis(
    axis: AxisSelection, mapping: ResourceMapping | None = None, mesh: MeshLike | None = None
) -> NamedSharding:
    """Return the sharding of an array with these axes, in this order."""
    return NamedSharding(_require_mesh("sharding_for_axis", mesh), pspec_for_axis(axis, mapping))


def round_axis_for_partitioning(axis: Axis, mapping: ResourceMapping | None = None) -> Axis:
    """Round the size of an axis up to a multiple of the number of parts into which the mesh splits it."""
    if physical_axis_name(axis, mapping) is not None:
        _require_mesh("round_axis_for_partitioning")
    ways = physical_axis_size(axis, mapping)
    if ways is None:
        return axis
    return axis.resize(-(-axis.size // ways) * ways)


def _get_mesh() -> MeshLike:  # pyright: ignore[reportUnusedFunction]  # programs call it
    """Return the mesh of `set_mesh` or of `with mesh:`, or an empty one."""
    found = current_mesh()
    if found is None:
        return Mesh(np.empty((), object), ())
    return found


def _require_mesh(function: str, mesh: MeshLike | None = None) -> MeshLike:
    found = current_mesh(mesh)
    if found is None:
        hint = 'run inside of: with hax.set_mesh(jax.make_mesh((8,), ("data",)))'
        raise ShardingError(message(function, "No mesh found", hint=hint))
    return found


# laying out
@adapted
def shard(x: T, mapping: ResourceMapping | None = None, mesh: MeshLike | None = None) -> T:
    """Lay out each NamedArray of a tree; without mapping or mesh, do nothing, with a warning outside jit."""
    found = current_mesh(mesh)
    if mapping is None:
        mapping = axn.current_mapping()
    if found is None:
        return _unsharded(x, "mesh")
    if mapping is None:
        return _unsharded(x, "axis mapping")
    return axn.shard(x, uneven(mapping), found, strict=False)


def _unsharded(x: T, missing: str) -> T:
    if not transforming():
        text = f"shard: no {missing} is set, so nothing is sharded"
        warnings.warn(text, RuntimeWarning, stacklevel=4)
    return x


shard_with_axis_mapping = shard


@adapted
def auto_sharded(x: T, mesh: MeshLike | None = None) -> T:
    """Lay out each NamedArray of a tree by the current mapping; without mapping or mesh, do nothing."""
    mapping = axn.current_mapping()
    if mapping is None:
        return x
    found = current_mesh(mesh)
    if found is None:
        return x
    return axn.shard(x, uneven(mapping), found, strict=False)


def on_entered_mesh(x: T) -> T:
    """Lay out a result on the mesh of `with mesh:`, which Axonym's operations ignore."""
    if axn.current_mapping() is None or context_mesh() is not None:
        return x
    return auto_sharded(x)


def pspec_for(
    tree: Tree,
    resource_mapping: ResourceMapping | None = None,
    preserve_existing_shardings: bool = True,
) -> Tree:
    """Return a tree of PartitionSpecs; by default None for NamedArrays that already have a sharding.

    Plain arrays are replicated, unless a `field` gives their axis names.
    """
    mapping = resolve_mapping(resource_mapping)
    if mapping is None:
        hint = "pass one, or use hax.axis_mapping"
        raise ShardingError(message("pspec_for", "there is no axis mapping", hint=hint))

    def one(leaf: Payload, names: Names | None) -> PartitionSpec | None:
        has = None
        if preserve_existing_shardings:
            has = _sharding_of(raw(leaf))
        if isinstance(leaf, axn.NamedArray):
            leaf, names = leaf.array, leaf.names
        if names is None:
            return _plain_spec(leaf, has)
        if has is not None:
            return None
        anonymous = len(getattr(leaf, "shape", names)) - len(names)
        return PartitionSpec(*[None] * anonymous, *pspec_for_axis(names, mapping))

    return _map_with_names(one, tree)


def _plain_spec(leaf: Payload, has: Sharding | None) -> PartitionSpec | None:
    """Return the spec of a leaf without names: replicated, unless it is split already, or is no array."""
    if isinstance(leaf, bool | int | float | complex | np.generic):
        return PartitionSpec()
    if not hasattr(leaf, "shape") or (has is not None and len(has.device_set) > 1):
        return None
    if leaf.shape:
        return PartitionSpec(None)
    return PartitionSpec()


def infer_resource_partitions(
    tree: Tree,
    resource_mapping: ResourceMapping | None = None,
    preserve_existing_shardings: bool = True,
    mesh: MeshLike | None = None,
) -> Tree:
    """Return a tree of shardings: those of `pspec_for`, and those that arrays already have."""
    specs = pspec_for(tree, resource_mapping, preserve_existing_shardings)
    found = _require_mesh("infer_resource_partitions", mesh)

    def one(spec: PartitionSpec | None, leaf: Payload) -> Sharding | None:
        if spec is not None:
            return NamedSharding(found, spec)
        return _sharding_of(raw(leaf))

    return jax.tree.map(
        one, specs, tree, is_leaf=lambda x: x is None or isinstance(x, PartitionSpec)
    )


def _sharding_of(array: Payload) -> Sharding | None:
    """Return the sharding of an array, or of an abstract one; None if no devices are known."""
    if isinstance(array, Tracer):
        return None
    sharding: Sharding | None = getattr(array, "sharding", None)
    if isinstance(getattr(sharding, "mesh", None), AbstractMesh):
        return None
    return sharding


def _map_with_names(fn: Callable[[Payload, Names | None], Payload], tree: Tree) -> Tree:
    """Map over the leaves of a tree, with the names that a `field` gives to a plain array, or None."""
    if isinstance(tree, eqx.Module):
        return _map_fields(fn, tree)

    def one(leaf: Payload) -> Tree:
        if isinstance(leaf, eqx.Module):
            return _map_fields(fn, leaf)
        return fn(leaf, None)

    return jax.tree.map(one, tree, is_leaf=lambda x: isinstance(x, axn.NamedArray | eqx.Module))


def _map_fields(fn: Callable[[Payload, Names | None], Payload], module: eqx.Module) -> Tree:
    told = {field.name: field.metadata.get("axis_names") for field in dataclasses.fields(module)}
    children, structure = jax.tree_util.tree_flatten_with_path(
        module, is_leaf=lambda x: x is not module
    )
    mapped: list[Tree] = []
    for path, child in children:
        names = told.get(getattr(path[0], "name", ""))
        if names is None or isinstance(child, axn.NamedArray) or not hasattr(child, "shape"):
            mapped.append(_map_with_names(fn, child))
        else:
            mapped.append(fn(child, names))
    return jax.tree.unflatten(structure, mapped)


def _lay_out_plain(tree: Tree, mapping: ResourceMapping | None, *, replicate: bool) -> Tree:
    """Lay out plain arrays by the axis names of their fields; `replicate` says whether to replicate all others."""
    mesh = current_mesh()
    if mapping is None or mesh is None:
        return tree

    def one(leaf: Payload, names: Names | None) -> Payload:
        if not isinstance(leaf, jax.Array) or (names is None and not replicate):
            return leaf
        return axn.shard(axn.NamedArray(leaf, names or ()), mapping, mesh, strict=False).array

    return _map_with_names(one, tree)


# compiling
class _Body(eqx.Module):
    """The function to compile: the user's function, with the layout of plain arrays around it."""

    fn: Function
    axis_resources: ResourceMapping | None = eqx.field(static=True)
    in_axis_resources: ResourceMapping | None = eqx.field(static=True)
    out_axis_resources: ResourceMapping | None = eqx.field(static=True)

    @property
    def __name__(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]  # of the class, not of its objects
        return getattr(self.fn, "__name__", "named_jit")

    def __call__(self, *args: Payload, **kwargs: Payload) -> Tree:
        """Call the function."""
        fn, args, kwargs = _lay_out_plain(
            (self.fn, args, kwargs), self.in_axis_resources, replicate=False
        )
        result = adapted(fn)(*args, **kwargs)
        mapping: ResourceMapping | None = axn.current_mapping()
        for given in (self.axis_resources, self.out_axis_resources):
            if given is not None:
                mapping = given
        return _lay_out_plain(result, mapping, replicate=True)


def _in_full(result: Tree) -> Tree:
    """Give specs an entry for each dimension, as in Haliax; specs of compiled programs omit None at the end."""
    leaves, structure = jax.tree.flatten(result, is_leaf=axn.is_named_array)
    full: dict[int, NamedSharding] = {}
    for i, leaf in enumerate(leaves):
        if not isinstance(leaf, axn.NamedArray):
            continue
        sharding = _sharding_of(leaf.array)
        if not isinstance(sharding, NamedSharding) or not sharding.is_fully_addressable:
            continue
        missing = leaf.ndim - len(sharding.spec)
        if missing > 0:
            spec = PartitionSpec(*sharding.spec, *[None] * missing)
            full[i] = NamedSharding(sharding.mesh, spec)
    if not full:
        return result
    respelled = jax.device_put([leaves[i].array for i in full], [*full.values()])  # without a copy
    for i, array in zip(full, respelled, strict=True):
        leaves[i] = wrap(leaves[i], array, leaves[i].names)
    return jax.tree.unflatten(structure, leaves)


class _NamedJit:
    """A function compiled by `named_jit`."""

    def __init__(self, fn: Function, compiled: axn.NamedJit[..., Tree], *, is_mapped: bool) -> None:
        safe_update_wrapper(self, fn)
        compiled.__wrapped__ = fn
        self._compiled = compiled
        self._is_mapped = is_mapped

    def __call__(self, /, *args: object, **kwargs: object) -> Tree:
        with self._entering_mesh():
            return _in_full(self._compiled(*args, **kwargs))

    def __get__(self, instance: object, owner: type | None = None) -> Function:
        if instance is None:
            return self
        return functools.partial(self, instance)

    def lower(self, /, *args: object, **kwargs: object) -> jax.stages.Lowered:
        """Trace and lower for these arguments."""
        with self._entering_mesh():
            return self._compiled.lower(*args, **kwargs)

    def _entering_mesh(self) -> AbstractContextManager[object]:
        entering = entering_mesh()
        if isinstance(entering, contextlib.nullcontext) and (
            self._is_mapped or axn.current_mapping() is not None
        ):
            _require_mesh("named_jit")
        return entering


def named_jit(
    fn: Function | None = None,
    axis_resources: ResourceMapping | None = None,
    *,
    in_axis_resources: ResourceMapping | None = None,
    out_axis_resources: ResourceMapping | None = None,
    donate_args: Tree = None,
    donate_kwargs: Tree = None,
    **pjit_args: Any,
) -> Any:
    """Compile a function of trees, laid out by mappings; also a decorator.

    Arguments are moved to the layout of `in_axis_resources`. Keys of mappings that no array has are ignored.
    `donate` is an older name of `donate_args`.
    """
    if fn is None:
        return functools.partial(
            named_jit,
            axis_resources=axis_resources,
            in_axis_resources=in_axis_resources,
            out_axis_resources=out_axis_resources,
            donate_args=donate_args,
            donate_kwargs=donate_kwargs,
            **pjit_args,
        )
    given = (axis_resources, in_axis_resources, out_axis_resources)
    inside, arguments, results = map(_uneven_if_given, given)
    older = pjit_args.pop("donate", None)
    if donate_args is None:
        donate_args = older
    compiled = axn.named_jit(
        _Body(fn, inside, arguments, results),
        inside,
        in_axis_resources=arguments,
        out_axis_resources=results,
        donate_args=donate_args,
        donate_kwargs=donate_kwargs,
        strict=False,
        **pjit_args,
    )
    return _NamedJit(fn, compiled, is_mapped=given != (None, None, None))


def _uneven_if_given(mapping: ResourceMapping | None) -> ResourceMapping | None:
    if mapping is None:
        return None
    return cast(ResourceMapping, uneven(mapping))


named_pjit = named_jit


def fsdp(*args: Any, **kwargs: Any) -> Any:
    """Compile a step that stores by one mapping and computes by another: `fsdp([fn,] parameters, compute)`.

    All arguments and results are laid out by `parameter_mapping`; `compute_mapping` is current inside.
    """
    function, mappings = None, list(args)
    if args and not isinstance(args[0], Mapping):
        function, *mappings = args
    for name in ("parameter_mapping", "compute_mapping")[len(mappings) :]:
        if name not in kwargs:
            raise ArgumentError(
                message("fsdp", f"{name} is missing", hint="write fsdp(step, parameters, compute)")
            )
        mappings.append(kwargs.pop(name))
    parameters, compute = mappings
    return named_jit(
        function, compute, in_axis_resources=parameters, out_axis_resources=parameters, **kwargs
    )
