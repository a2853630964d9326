"""`shard_map`: run a function once per device, on local blocks by a mapping."""

import dataclasses
import functools
import re
from collections.abc import Callable, Collection, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from .. import _constraints, layout
from ..array import NamedArray, is_named_array
from ..core import shape_of
from ..errors import OperandError, ShardingError, describe, message, suggestion
from ..layout import Entry, Mappings, MeshLike, ResourceMapping, Scope
from . import _captured
from ._addresses import spelled
from ._arguments import check_mesh
from ._keys import check_keys
from .jit import NamedJit, Roles
from .shard import names_of, no_mapping, no_mesh, static_axes

__all__ = ["ShardMap", "shard_map"]

P = ParamSpec("P")
R = TypeVar("R")
Rest = ParamSpec("Rest")
T = TypeVar("T")


@overload
def shard_map(
    f: Callable[P, R],
    mapping: ResourceMapping | Mappings | None = None,
    mesh: MeshLike | None = None,
    out_mapping: ResourceMapping | Mappings | None = None,
    manual_axes: Collection[str] | None = None,
    check: bool = True,
    *,
    in_specs: Any = None,
    out_specs: Any = None,
    strict: bool = True,
) -> "ShardMap[P, R]": ...
@overload
def shard_map(
    f: None = None,
    mapping: ResourceMapping | Mappings | None = None,
    mesh: MeshLike | None = None,
    out_mapping: ResourceMapping | Mappings | None = None,
    manual_axes: Collection[str] | None = None,
    check: bool = True,
    *,
    in_specs: Any = None,
    out_specs: Any = None,
    strict: bool = True,
) -> "Callable[[Callable[P, R]], ShardMap[P, R]]": ...
def shard_map(
    f: Callable[P, R] | None = None,
    mapping: ResourceMapping | Mappings | None = None,
    mesh: MeshLike | None = None,
    out_mapping: ResourceMapping | Mappings | None = None,
    manual_axes: Collection[str] | None = None,
    check: bool = True,
    *,
    in_specs: Any = None,
    out_specs: Any = None,
    strict: bool = True,
) -> Any:
    """Run a function once per device, on the local blocks of its arguments by a mapping.

    Inside, arrays have the same names and local sizes, and devices communicate by `axn.collectives`. Results
    are assembled from their blocks by the names that they have at the end. Values that are not arrays are passed
    through. A call outside `jax.jit` is compiled, and cached as in `named_jit`.

    Args:
        f: the function; without it, a decorator is returned.
        mapping: lays out the arguments; by default the current mapping. `Mappings` has separate layouts for parameters
            and data. It is also the current one inside, for collectives and for mesh axes that are not Manual.
        mesh: by default the mesh of `set_mesh`.
        out_mapping: lays out the results; by default `mapping`.
        manual_axes: the mesh axes over which the function runs once per device; by default all. On the others, arrays
            stay whole inside, and Auto or Explicit as they were.
        check: raise for results that differ between devices where their layout says otherwise, and for sizes that show
            that a block is whole already. Without it, gradients of replicated arguments are not summed either.
        in_specs: PartitionSpecs of plain arrays among the positional arguments, as a prefix of their tree, None
            elsewhere; plain arrays are replicated by default.
        out_specs: the same for plain arrays of the result.
        strict: raise for keys of a given mapping that no array has.

    Raises:
        ShardingError: at the call, if there is no mapping or mesh, if they do not fit the arrays, or by `check`.

    Example:
        >>> Batch = axn.Axis("batch", 8)
        >>> mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
        >>> total = axn.shard_map(lambda x: axn.psum(x.sum("batch"), "batch"), {"batch": "data"}, mesh)
        >>> total(axn.arange(Batch)).item()
        28
    """
    if f is None:
        return functools.partial(
            shard_map,
            mapping=mapping,
            mesh=mesh,
            out_mapping=out_mapping,
            manual_axes=manual_axes,
            check=check,
            in_specs=in_specs,
            out_specs=out_specs,
            strict=strict,
        )
    if not callable(f):
        problem = f"the first argument is the function; got {type(f).__name__}"
        raise OperandError(message("shard_map", problem, hint="as a decorator: @axn.shard_map(mapping={...})"))
    given, out = (None if m is None else _both(m) for m in (mapping, out_mapping))
    manual = (manual_axes,) if isinstance(manual_axes, str) else None if manual_axes is None else tuple(manual_axes)
    return ShardMap(f, _Options(given, out, mesh, manual, check, strict, in_specs, out_specs))


def _both(mapping: ResourceMapping | Mappings) -> Mappings:
    return mapping if isinstance(mapping, Mappings) else Mappings(mapping)


@dataclasses.dataclass(frozen=True)
class _Options:
    mapping: Mappings | None
    out_mapping: Mappings | None
    mesh: MeshLike | None
    manual: Entry | None
    check: bool
    strict: bool
    in_specs: Any
    out_specs: Any


class ShardMap(Generic[P, R]):
    """A function that runs once per device, made by `shard_map`."""

    def __init__(self, f: Callable[P, R], options: _Options) -> None:
        functools.update_wrapper(self, f, updated=())
        self._f = f
        self._options = options
        self._compiled = NamedJit(self._mapped, Roles(function="shard_map"), None, None, {})

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function on each device."""
        current = layout.current_mapping()
        mappings = self._options.mapping or (None if current is None else Mappings(current))
        if mappings is None:
            raise no_mapping("shard_map")
        run = self._mapped if _constraints.tracing() else self._compiled
        with layout.context(mapping=None):
            result: R = run(self._f, mappings, args, kwargs)
        return result

    @overload  # not Self: for a class method, the class is the first argument already
    def __get__(self, instance: None, owner: Any = None) -> "ShardMap[..., R]": ...
    @overload
    def __get__(self: Callable[Concatenate[T, Rest], R], instance: T, owner: Any = None) -> Callable[Rest, R]: ...
    @overload  # a static method has no place for the instance
    def __get__(self, instance: Any, owner: Any = None) -> Callable[..., R]: ...
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Bind a method to its instance."""
        return self if instance is None else functools.partial(self, instance)

    def _mapped(self, f: Callable[P, R], mappings: Mappings, args: Any, kwargs: Any) -> Any:
        """Lay out the arguments, run the function on their blocks, and assemble its results."""
        options = self._options
        mesh, is_nested = _mesh(options.mesh, mappings)
        check_mesh("shard_map", f, mesh, args, kwargs)
        blocks = _Blocks(mesh, _manual_axes(mesh, options.manual), options.check, (f, args, kwargs))
        leaves, tree = jax.tree.flatten((f, args, kwargs), is_leaf=is_named_array)
        held, held_tree = jax.tree.flatten(blocks.held(f))
        given = [*_spread("in_specs", None, f), *_spread("in_specs", options.in_specs, args)]
        given += [*_spread("in_specs", None, kwargs), *map(_spec_of, held)]
        arrays, specs = blocks.cut([*leaves, *held], given, mappings)
        names = frozenset(names_of((f, args, kwargs)))
        scope = Scope(mappings, frozenset(blocks.whole))
        strict = [own for own in (options.mapping, options.out_mapping) if own is not None and options.strict]
        ledger = layout.Ledger(layout.current().ledger, names, strict)
        out_mappings = options.out_mapping or mappings
        # JAX reads the layout of the results after tracing the function, when their names are known.
        out_specs: list[PartitionSpec] = []
        results: list[Any] = []

        def local(*local_arrays: jax.Array) -> list[jax.Array]:
            rest = iter(local_arrays)
            filled = [_refill(leaf, next(rest)) if _holds_array(leaf) else leaf for leaf in [*leaves, *held]]
            its_f, its_args, its_kwargs = jax.tree.unflatten(tree, filled[: len(leaves)])
            its_f = _captured.with_variables(its_f, jax.tree.unflatten(held_tree, filled[len(leaves) :]))
            with layout.context(mapping=mappings.compute, scope=scope, ledger=ledger):
                try:
                    result = its_f(*its_args, **its_kwargs)
                except (NotImplementedError, ValueError) as flaw:
                    # Ours have other types; JAX's speak of meshes, and a user's mostly do not.
                    if type(flaw) in (NotImplementedError, ValueError) and re.search("mesh|shard", str(flaw)):
                        blocks.check_variables(its_f, flaw)
                    raise
            blocks_out, out_specs[:] = blocks.join(result, options.out_specs, out_mappings)
            results[:] = [jax.tree.map(_without_data, result, is_leaf=is_named_array)]
            return blocks_out

        # To JAX, no Manual axes mean all axes.
        if blocks.manual:
            local = jax.shard_map(
                local,
                mesh=None if is_nested else options.mesh,
                in_specs=tuple(specs),
                out_specs=out_specs,
                # JAX wants the Auto axes of a surrounding vmap among them; none of our arrays is split over these.
                axis_names={*blocks.manual, *_taken_auto(mesh)},
                check_vma=options.check,
            )
        whole = local(*arrays)
        (result,) = results
        for own in strict:
            for mapping in (own.parameters, own.compute):
                check_keys("shard_map", mapping, names | names_of(result), mesh, ledger=ledger)
        rest = iter(whole)
        out_leaves, out_tree = jax.tree.flatten(result, is_leaf=is_named_array)
        return jax.tree.unflatten(
            out_tree, [_refill(leaf, next(rest)) if _holds_array(leaf) else leaf for leaf in out_leaves]
        )


def _mesh(given: MeshLike | None, mappings: Mappings) -> tuple[MeshLike, bool]:
    """Choose the mesh, and return whether it is that of a surrounding shard_map."""
    current, given = layout.context_mesh(), None if given is None else layout.context_mesh(given)
    if current is None:
        if given is None:
            raise no_mesh("shard_map", mappings.compute)
        return given, False
    types = layout.mesh_types(current)
    if given is not None:
        asked = {
            axis: AxisType.Manual if types.get(axis) is AxisType.Manual else kind
            for axis, kind in layout.mesh_types(given).items()
        }
        if dict(given.shape) != dict(current.shape) or asked != types:
            facts = [
                f"{which}: {layout.describe_mesh(mesh)} ({', '.join(kind.name for kind in mesh.axis_types)})"
                for which, mesh in (("given", given), ("current", current))
            ]
            hint = "leave the mesh out, or call outside of axn.set_mesh and of other shard_maps"
            raise ShardingError(message("shard_map", "the given mesh is not the current one", *facts, hint=hint))
    is_nested = AxisType.Manual in types.values()
    return (current if given is None or is_nested else given), is_nested


def _manual_axes(mesh: MeshLike, asked: Entry | None) -> Entry:
    """Check the mesh axes that are to be Manual; leave out those of a surrounding shard_map."""
    for axis in asked or ():
        if axis not in mesh.axis_names:
            problem = f"manual axis {axis!r} is not an axis of the mesh"
            facts = f"mesh: {layout.describe_mesh(mesh)}"
            raise ShardingError(message("shard_map", problem, facts, hint=suggestion(axis, mesh.axis_names)))
    types, taken = layout.mesh_types(mesh), layout.taken_axes()
    wanted = mesh.axis_names if asked is None else asked
    return tuple(axis for axis in wanted if types[axis] is not AxisType.Manual and axis not in taken)


def _taken_auto(mesh: MeshLike) -> Entry:
    types = layout.mesh_types(mesh)
    return tuple(axis for axis in layout.taken_axes() if types.get(axis) is AxisType.Auto)


def _holds_array(leaf: Any) -> bool:
    array = leaf.array if isinstance(leaf, NamedArray) else leaf
    return hasattr(array, "shape") and hasattr(array, "dtype")


def _spec_of(leaf: Any) -> PartitionSpec | None:
    """Return the layout that the type of an array has, if it is one."""
    return layout.spec_from(_constraints.entries_of(leaf)) if isinstance(leaf, jax.Array) else None


def _refill(leaf: Any, array: Any) -> Any:
    return NamedArray(array, leaf.names) if isinstance(leaf, NamedArray) else array


def _without_data(leaf: Any) -> Any:
    """Keep a placeholder for an array: a tracer must not outlive its trace."""
    if not _holds_array(leaf):
        return leaf
    array = leaf.array if isinstance(leaf, NamedArray) else leaf
    return _refill(leaf, jax.ShapeDtypeStruct(array.shape, array.dtype))


def _spread(what: str, specs: Any, tree: Any) -> list[PartitionSpec | None]:
    """Spread the specs of plain arrays, a prefix of a tree, over all its leaves."""
    found: list[PartitionSpec | None] = []

    def one(spec: Any, below: Any) -> None:
        if spec is not None and (not isinstance(spec, PartitionSpec) or is_named_array(below)):
            got = "a NamedArray, which the mapping lays out" if isinstance(spec, PartitionSpec) else repr(spec)
            problem = f"{what} takes a PartitionSpec for a plain array, and None elsewhere; got {got}"
            raise OperandError(message("shard_map", problem))
        found.extend([spec] * len(jax.tree.leaves(below, is_leaf=is_named_array)))

    try:
        jax.tree.map(one, specs, tree, is_leaf=lambda x: x is None or isinstance(x, PartitionSpec))
    except ValueError as error:
        problem = f"{what} does not match the structure of its tree"
        hint = "give one PartitionSpec or None for each part of the tree, in the same tuples, lists and dicts"
        raise OperandError(message("shard_map", problem, hint=hint)) from error
    return found


@dataclasses.dataclass(frozen=True)
class _Blocks:
    """How the arrays of one call are split into blocks and assembled."""

    mesh: MeshLike
    manual: Entry
    check: bool
    given: Any
    whole: set[tuple[str, int]] = dataclasses.field(default_factory=set)

    def cut(
        self, leaves: list[Any], given: list[PartitionSpec | None], mappings: Mappings
    ) -> tuple[list[Any], list[PartitionSpec]]:
        """Lay out the arguments, and return how they are split."""
        arrays, specs = [], []
        for leaf, spec in zip(leaves, given, strict=True):
            if not _holds_array(leaf):
                continue
            if isinstance(leaf, NamedArray):
                mapping, shape = mappings.of(leaf.names), shape_of("shard_map", leaf.array, leaf.names)
                layout.note(mapping, leaf.names)
                spec = layout.partition_spec(leaf.names, shape, mapping, self.mesh, "shard_map")
                self.whole.update(leaf.shape.items())
            array = jnp.asarray(leaf.array if isinstance(leaf, NamedArray) else leaf)
            full = self._fitting("in_specs", spec, array.shape, whole=True)
            arrays.append(self._moved(array, full))
            specs.append(self._only_manual(full))
        return arrays, specs

    def held(self, f: Any) -> dict[str, Any]:
        """Return the variables with arrays that a function closes over, and that are whole on each device."""
        variables = _captured.typed_variables(f)
        return {name: value for name, value in variables.items() if not any(map(self._splits, jax.tree.leaves(value)))}

    def _splits(self, leaf: Any) -> bool:
        used = [axis for entry in layout.entries_in(_spec_of(leaf) or PartitionSpec()) for axis in entry]
        return any(axis in self.manual for axis in used)

    def check_variables(self, f: Any, flaw: Exception) -> None:
        """Raise ShardingError, where JAX raised another error, if a function closes over split arrays."""
        variables = _captured.typed_variables(f)
        if not variables:
            return
        facts = [
            f"{name}: {', '.join(str(jax.typeof(array)) for array in _captured.arrays_in(value))}"
            for name, value in variables.items()
        ]
        problem = f"the function closes over {', '.join(variables)}, on Explicit axes of the mesh"
        hint = "pass it as an argument: each device gets its block by the mapping"
        raise ShardingError(message("shard_map", problem, *facts, hint=hint)) from flaw

    def _fitting(self, what: str, spec: PartitionSpec | None, shape: tuple[int, ...], whole: bool) -> PartitionSpec:
        """Check the spec of a plain array."""
        entries = [] if spec is None else layout.entries_in(spec)
        used = [axis for entry in entries for axis in entry]
        problem = hint = None
        for axis in used:
            if axis not in self.mesh.axis_names:
                problem, hint = f"{axis!r} is not an axis of the mesh", suggestion(axis, self.mesh.axis_names)
            elif used.count(axis) > 1:
                problem = f"mesh axis {axis!r} is used twice"
        if len(entries) > len(shape):
            problem = f"it is for at least {len(entries)} dimensions"
        elif whole and problem is None:
            for size, entry in zip(shape, entries, strict=False):
                ways = layout.ways_on(self.mesh, entry)
                if size % ways:
                    problem = f"{size} cannot be split evenly in {ways} over mesh axis {', '.join(entry)}"
        if problem is not None:
            facts = f"array has: shape {shape}", f"mesh: {layout.describe_mesh(self.mesh)}"
            raise ShardingError(message("shard_map", f"{what} has {spec}, but {problem}", *facts, hint=hint))
        return PartitionSpec() if spec is None else spec

    def _only_manual(self, spec: PartitionSpec) -> PartitionSpec:
        entries = layout.entries_in(spec)
        return layout.spec_from([tuple(axis for axis in entry if axis in self.manual) for entry in entries])

    def _moved(self, array: jax.Array, spec: PartitionSpec) -> jax.Array:
        """Move an argument by type where mesh axes are Explicit; JAX does so for Auto ones."""
        types = layout.mesh_types(self.mesh)
        if AxisType.Explicit not in types.values():
            return array
        explicit = {axis for axis, kind in types.items() if kind is AxisType.Explicit} - set(layout.taken_axes())
        # JAX puts Manual axes before others that split the same dimension.
        ordered = [sorted(entry, key=lambda axis: axis not in self.manual) for entry in layout.entries_in(spec)]
        wanted = [tuple(axis for axis in entry if axis in explicit) for entry in ordered]
        wanted += [()] * (array.ndim - len(wanted))
        if tuple(wanted) == _constraints.entries_of(array):
            return array
        moved: jax.Array = jax.reshard(array, NamedSharding(self.mesh, layout.spec_from(wanted)))
        return moved

    def join(self, result: Any, out_specs: Any, mappings: Mappings) -> tuple[list[jax.Array], list[PartitionSpec]]:
        """Return how the blocks of the results are assembled, and check that they can be."""
        leaves = jax.tree.leaves_with_path(result, is_leaf=is_named_array)
        given = _spread("out_specs", out_specs, result)
        arrays, specs = [], []
        for (path, leaf), spec in zip(leaves, given, strict=True):
            if not _holds_array(leaf):
                continue
            array = jnp.asarray(leaf.array if isinstance(leaf, NamedArray) else leaf)
            if isinstance(leaf, NamedArray):
                mapping, shape = mappings.of(leaf.names), shape_of("shard_map", array, leaf.names)
                layout.note(mapping, leaf.names)
                table = layout.entries_for(leaf.names, shape, mapping, self.mesh, "shard_map")
                anonymous = [()] * (len(shape) - len(leaf.names))
                spec = layout.spec_from([*anonymous, *(table.get(name, ()) for name in leaf.names)])
            spec = self._only_manual(self._fitting("out_specs", spec, array.shape, whole=False))
            if self.check:
                self._check(jax.tree_util.keystr(path), leaf, array, spec, mappings)
            arrays.append(array)
            specs.append(spec)
        return arrays, specs

    def _check(self, path: str, leaf: Any, array: jax.Array, spec: PartitionSpec, mappings: Mappings) -> None:
        """Raise ShardingError for a result that cannot have its layout."""
        entries = layout.entries_in(spec)
        names = leaf.names if isinstance(leaf, NamedArray) else ()
        promised = {axis for entry in entries for axis in entry}
        varying = [axis for axis in self.manual if axis in jax.typeof(array).mat.varying and axis not in promised]
        where = f"the result at {path}" if path else "the result"
        facts = [f"it has: {describe(names, array.shape)}", *self._mapping_facts(mappings, names)]
        if varying:
            problem = f"{where} differs between the devices of mesh axis {varying[0]!r}, but is not split over it"
            raise ShardingError(message("shard_map", problem, *facts, hint=_missing_collective(varying[0], mappings)))
        sizes = array.shape[array.ndim - len(names) :]
        for name, size, entry in zip(names, sizes, entries[len(entries) - len(names) :], strict=bool(names)):
            ways = layout.ways_on(self.mesh, entry)
            then = f"assembled, it would have {ways} times {size}"
            if ways == 1 or (name, size * ways) in self.whole or (name, size * ways) in self._declared():
                continue
            if (name, size) in self.whole:
                problem = f"{where} has axis {name!r} whole, but its layout splits it over {', '.join(entry)}"
                block = f'x["{name}", axn.dblock(axn.axis_index({spelled(entry)}), {size // ways})]'
                hint = f'axn.psum_scatter(x, "{name}") for a part of a sum, {block} for a whole; '
                hint += f'or pass out_mapping={{"{name}": None, ...}}'
                raise ShardingError(message("shard_map", problem, *facts, then, hint=hint))
            computed = layout.looked_up(mappings.compute, name) or ()
            computed = tuple(axis for axis in computed if axis in self.manual)
            if (name, size * layout.ways_on(self.mesh, computed)) in self.whole:
                problem = f"{where} has axis {name!r} split over {', '.join(computed)}, as it is computed, "
                problem += f"but its layout, that of parameters, splits it over {', '.join(entry)}"
                hint = f'name the mesh axes of its blocks: out_mapping={{"{name}": {spelled(computed)}, ...}}'
                raise ShardingError(message("shard_map", problem, *facts, then, hint=hint))
            same = [axis for axis in entry if axis not in jax.typeof(array).mat.varying]
            if same:
                problem = f"{where} is the same on all devices of mesh axis {same[0]!r}, but split over it by {name!r}"
                hint = f'if it is a block, axn.pcast(x, "{same[0]}"); or pass out_mapping={{"{name}": None, ...}}'
                raise ShardingError(message("shard_map", problem, *facts, then, hint=hint))

    def _declared(self) -> set[tuple[str, int]]:
        """Collect the axes in static fields of modules: alternating layers are stored by repetition."""
        found = set[tuple[str, int]]()

        def visit(node: Any) -> bool:
            if isinstance(node, eqx.Module):
                found.update((axis.name, axis.size) for axes in static_axes(node).values() for axis in axes)
            return False

        jax.tree.leaves(self.given, is_leaf=visit)
        return found

    def _mapping_facts(self, mappings: Mappings, names: tuple[str, ...]) -> Iterator[str]:
        yield f"mapping of the results: {mappings.of(names)}"
        yield f"mesh: {layout.describe_mesh(self.mesh)}"


def _missing_collective(mesh_axis: str, mappings: Mappings) -> str:
    """Return the hint that makes a value the same on all devices of a mesh axis."""
    both = (*mappings.compute.entries, *mappings.parameters.entries)
    name = next((name for name, entry in both if mesh_axis in entry), mesh_axis)
    return (
        f'axn.psum(x, "{name}") or axn.pmean for a part of a sum, axn.all_gather(x, "{name}", to="invarying") for a '
        f"block; or map an axis of the result to {mesh_axis!r} with out_mapping"
    )
