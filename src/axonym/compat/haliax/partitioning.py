"""Layout by name: the mapping of axes to mesh axes, and functions compiled under it."""

import contextlib
import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, Protocol, TypeAlias, TypeVar

import equinox as eqx
import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

import axonym as axn
from axonym import Axis, AxisSelection, AxisSelector
from axonym.engine import context_mesh, resolve_mapping, selection, transforming, wrap
from axonym.errors import ArgumentError, ShardingError, message

from ._adapt import adapted
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
F = TypeVar("F", bound=Callable[..., Any])
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
def set_mesh(mesh: MeshLike) -> AbstractContextManager[Any]:
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
    return None if mapping is None else {name: _spelled(entry) for name, entry in mapping.items()}  # type: ignore[misc]


def _spelled(entry: tuple[str, ...]) -> PhysicalAxisSpec | None:
    return entry[0] if len(entry) == 1 else entry or None


# mesh axes
def physical_axis_name(
    axis: AxisSelector, mapping: ResourceMapping | None = None
) -> PhysicalAxisSpec | None:
    """Return the mesh axis of an axis, or a tuple of several; None if there is none, or no mapping."""
    ((name, _),) = selection(axis, "physical_axis_name")
    resolved = resolve_mapping(mapping)
    return None if resolved is None else _spelled(resolved.get(name, ()))


def physical_axis_size(axis: AxisSelector, mapping: ResourceMapping | None = None) -> int | None:
    """Return the number of parts into which the mesh splits an axis; None if it is not mapped."""
    physical = physical_axis_name(axis, mapping)
    if physical is None:
        return None
    mesh = _require_mesh("physical_axis_size")
    names = (physical,) if isinstance(physical, str) else physical
    for name in names:
        if name not in mesh.axis_names:
            sizes = ", ".join(f"{own}={size}" for own, size in mesh.shape.items())
            problem = f"{name!r} is not an axis of the mesh"
            raise ShardingError(message("physical_axis_size", problem, f"mesh: {sizes}"))
    ways: int = math.prod(mesh.shape[name] for name in names)
    return ways


def pspec_for_axis(axis: AxisSelection, mapping: ResourceMapping | None = None) -> PartitionSpec:
    """Return the PartitionSpec of an array with these axes, in this order."""
    names = [name for name, _ in selection(axis, "pspec_for_axis")]
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
    return axis if ways is None else axis.resize(-(-axis.size // ways) * ways)


def _get_mesh() -> MeshLike:  # pyright: ignore[reportUnusedFunction]  # programs call it
    """Return the mesh of `set_mesh` or of `with mesh:`, or an empty one."""
    found = current_mesh()
    return Mesh(np.empty((), object), ()) if found is None else found


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
    missing = "mesh" if found is None else "axis mapping"
    if found is None or (mapping is None and axn.current_mapping() is None):
        if not transforming():
            warnings.warn(
                f"shard: no {missing} is set, so nothing is sharded", RuntimeWarning, stacklevel=3
            )
        return x
    return axn.shard(
        x, uneven(axn.current_mapping() if mapping is None else mapping), found, strict=False
    )


shard_with_axis_mapping = shard


@adapted
def auto_sharded(x: T, mesh: MeshLike | None = None) -> T:
    """Lay out each NamedArray of a tree by the current mapping; without mapping or mesh, do nothing."""
    mapping = axn.current_mapping()
    found = None if mapping is None else current_mesh(mesh)
    return x if found is None else axn.shard(x, uneven(mapping), found, strict=False)


def on_entered_mesh(x: T) -> T:
    """Lay out a result on the mesh of `with mesh:`, which Axonym's operations ignore."""
    is_laid_out = axn.current_mapping() is None or context_mesh() is not None
    return x if is_laid_out else auto_sharded(x)


def pspec_for(
    tree: Any,
    resource_mapping: ResourceMapping | None = None,
    preserve_existing_shardings: bool = True,
) -> Any:
    """Return a tree of PartitionSpecs; by default None for NamedArrays that already have a sharding.

    Plain arrays are replicated, unless a `field` gives their axis names.
    """
    mapping = resolve_mapping(resource_mapping)
    if mapping is None:
        raise ShardingError(
            message(
                "pspec_for", "there is no axis mapping", hint="pass one, or use hax.axis_mapping"
            )
        )
    resolved = mapping  # for type checkers, which do not narrow None in a closure

    def one(leaf: Any, names: tuple[str, ...] | None) -> PartitionSpec | None:
        if isinstance(leaf, axn.NamedArray):
            leaf, names = leaf.array, leaf.names
        has = _sharding_of(leaf) if preserve_existing_shardings else None
        if names is not None:
            anonymous = len(getattr(leaf, "shape", names)) - len(names)
            return (
                None
                if has is not None
                else PartitionSpec(*[None] * anonymous, *pspec_for_axis(names, resolved))
            )
        if isinstance(leaf, bool | int | float | complex | np.generic):
            return PartitionSpec()
        if not hasattr(leaf, "shape") or (has is not None and len(has.device_set) > 1):
            return None
        return PartitionSpec(None) if leaf.shape else PartitionSpec()

    return _map_with_names(one, tree)


def infer_resource_partitions(
    tree: Any,
    resource_mapping: ResourceMapping | None = None,
    preserve_existing_shardings: bool = True,
    mesh: MeshLike | None = None,
) -> Any:
    """Return a tree of shardings: those of `pspec_for`, and those that arrays already have."""
    specs = pspec_for(tree, resource_mapping, preserve_existing_shardings)
    found = _require_mesh("infer_resource_partitions", mesh)

    def one(spec: PartitionSpec | None, leaf: Any) -> Any:
        if spec is not None:
            return NamedSharding(found, spec)
        return _sharding_of(leaf.array if isinstance(leaf, axn.NamedArray) else leaf)

    return jax.tree.map(
        one, specs, tree, is_leaf=lambda x: x is None or isinstance(x, PartitionSpec)
    )


def _sharding_of(array: Any) -> Any:
    """Return the sharding of an array, or of an abstract one; None if no devices are known."""
    sharding = None if isinstance(array, Tracer) else getattr(array, "sharding", None)
    return None if isinstance(getattr(sharding, "mesh", None), AbstractMesh) else sharding


def _map_with_names(fn: Callable[[Any, tuple[str, ...] | None], Any], tree: Any) -> Any:
    """Map over the leaves of a tree, with the names that a `field` gives to a plain array, or None."""
    if not isinstance(tree, eqx.Module):
        is_leaf = lambda x: isinstance(x, axn.NamedArray | eqx.Module)  # noqa: E731
        return jax.tree.map(
            lambda x: _map_with_names(fn, x) if isinstance(x, eqx.Module) else fn(x, None),
            tree,
            is_leaf=is_leaf,
        )
    told = {field.name: field.metadata.get("axis_names") for field in dataclasses.fields(tree)}
    children, structure = jax.tree_util.tree_flatten_with_path(
        tree, is_leaf=lambda x: x is not tree
    )
    mapped = []
    for path, child in children:
        names = told.get(getattr(path[0], "name", ""))
        plain = (
            names is not None and hasattr(child, "shape") and not isinstance(child, axn.NamedArray)
        )
        mapped.append(fn(child, names) if plain else _map_with_names(fn, child))
    return jax.tree.unflatten(structure, mapped)


def _lay_out_plain(tree: Any, mapping: ResourceMapping | None, *, replicate: bool) -> Any:
    """Lay out plain arrays by the names of their fields; `replicate` those without."""
    mesh = current_mesh()
    if mapping is None or mesh is None:
        return tree

    def one(leaf: Any, names: tuple[str, ...] | None) -> Any:
        if not isinstance(leaf, jax.Array) or (names is None and not replicate):
            return leaf
        return axn.shard(axn.NamedArray(leaf, names or ()), mapping, mesh, strict=False).array

    return _map_with_names(one, tree)


# compiling
class _Body(eqx.Module):
    """The function to compile: the user's function, with the layout of plain arrays around it."""

    fn: Any
    axis_resources: ResourceMapping | None = eqx.field(static=True)
    in_axis_resources: ResourceMapping | None = eqx.field(static=True)
    out_axis_resources: ResourceMapping | None = eqx.field(static=True)

    @property
    def __name__(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]  # of the class, not of its objects
        return getattr(self.fn, "__name__", "named_jit")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        fn, args, kwargs = _lay_out_plain(
            (self.fn, args, kwargs), self.in_axis_resources, replicate=False
        )
        result = adapted(fn)(*args, **kwargs)
        given = (self.out_axis_resources, self.axis_resources, axn.current_mapping())
        mapping = next((mapping for mapping in given if mapping is not None), None)
        return _lay_out_plain(result, mapping, replicate=True)


def _in_full(result: Any) -> Any:
    """Give layouts an entry for each dimension, as in Haliax; a compiled program omits None at the end."""
    leaves, structure = jax.tree.flatten(result, is_leaf=axn.is_named_array)
    full: dict[int, NamedSharding] = {}
    for i, leaf in enumerate(leaves):
        sharding = _sharding_of(leaf.array) if isinstance(leaf, axn.NamedArray) else None
        if (
            isinstance(sharding, NamedSharding)
            and len(sharding.spec) < leaf.ndim
            and sharding.is_fully_addressable
        ):
            missing = [None] * (leaf.ndim - len(sharding.spec))
            full[i] = NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec, *missing))
    if not full:
        return result
    respelled = jax.device_put([leaves[i].array for i in full], [*full.values()])  # without a copy
    for i, array in zip(full, respelled, strict=True):
        leaves[i] = wrap(leaves[i], array, leaves[i].names)
    return jax.tree.unflatten(structure, leaves)


class _NamedJit:
    """A function compiled by `named_jit`."""

    def __init__(
        self, fn: Callable[..., Any], compiled: axn.NamedJit[..., Any], *, is_mapped: bool
    ) -> None:
        safe_update_wrapper(self, fn)
        compiled.__wrapped__ = fn
        self._compiled = compiled
        self._is_mapped = is_mapped

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        with self._entering_mesh():
            return _in_full(self._compiled(*args, **kwargs))

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def lower(self, /, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """Trace and lower for these arguments."""
        with self._entering_mesh():
            return self._compiled.lower(*args, **kwargs)

    def _entering_mesh(self) -> AbstractContextManager[Any]:
        entering = entering_mesh()
        if isinstance(entering, contextlib.nullcontext) and (
            self._is_mapped or axn.current_mapping() is not None
        ):
            _require_mesh("named_jit")
        return entering


def named_jit(
    fn: Callable[..., Any] | None = None,
    axis_resources: ResourceMapping | None = None,
    *,
    in_axis_resources: ResourceMapping | None = None,
    out_axis_resources: ResourceMapping | None = None,
    donate_args: Any = None,
    donate_kwargs: Any = None,
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
    inside, arguments, results = (
        None if mapping is None else uneven(mapping)
        for mapping in (axis_resources, in_axis_resources, out_axis_resources)
    )
    older = pjit_args.pop("donate", None)
    compiled = axn.named_jit(
        _Body(fn, inside, arguments, results),
        inside,
        in_axis_resources=arguments,
        out_axis_resources=results,
        donate_args=older if donate_args is None else donate_args,
        donate_kwargs=donate_kwargs,
        strict=False,
        **pjit_args,
    )
    is_mapped = any(mapping is not None for mapping in (inside, arguments, results))
    return _NamedJit(fn, compiled, is_mapped=is_mapped)


named_pjit = named_jit


def fsdp(*args: Any, **kwargs: Any) -> Any:
    """Compile a step that stores by one mapping and computes by another: `fsdp([fn,] parameters, compute)`.

    All arguments and results are laid out by `parameter_mapping`; `compute_mapping` is current inside.
    """
    function = args[0] if args and not isinstance(args[0], Mapping) else None
    mappings = list(args if function is None else args[1:])
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
