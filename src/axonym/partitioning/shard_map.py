"""`shard_map`: run a function once per device, on local blocks by a mapping.

Use it to decide yourself what devices send each other, by `axn.collectives`. The mapping splits arguments
and assembles results by name, so that there are no specs to write, and names show which results cannot be assembled.
"""

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Collection, Sequence, Set
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from ..array import NamedArray, is_named_array
from ..base.kinds import type_text
from ..current.features import Feature, using
from ..engine.core import shape_of
from ..engine.operands import own_names
from ..errors import OperandError, ShardingError, describe, message, suggestion
from ..layout import assignment, context, explicit, modes, partition, tracing
from ..layout.assignment import Entry, Mappings, MeshLike, ResourceMapping
from ..layout.context import MAPPING, STORED
from ..layout.layout import Layout
from ..layout.records import LEDGER, Ledger, note
from ..layout.scope import SCOPE, Scope
from . import captured
from .addresses import spell
from .arguments import as_module, check_mesh
from .held import array_of, fill, holds_array, spec_of, without_data
from .jit import NamedJit, Roles
from .keys import check_keys
from .manual import choose_mesh, find_manual_axes, find_vmapped_axes
from .trees import collect_names, find_static_axes, list_sizes, no_mapping

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
    in_specs: object = None,
    out_specs: object = None,
    strict: bool = True,
) -> Any:
    """Run a function once per device, on the local blocks of its arguments by a mapping.

    Inside, arrays have the same names and local sizes, and devices communicate by `axn.collectives`. Values that are
    not arrays are passed through. A call outside `jax.jit` is compiled, and cached as in `named_jit`. `jax.shard_map`
    takes a mesh and specs by position.

    Args:
        f: the function; without it, a decorator is returned.
        mapping: splits the arguments; by default the current mapping. `Mappings` has separate layouts for parameters
            and data. It is also the current one inside, for collectives and for mesh axes that are not Manual.
        mesh: by default the mesh of `set_mesh`.
        out_mapping: the mapping by which results are assembled; by default `mapping`.
        manual_axes: the mesh axes over which the function runs once per device; by default all. All other mesh axes
            stay Auto or Explicit, and arrays inside are not cut along them.
        check: raise for results that differ between devices although their layout says otherwise, and if a size shows
            that a block is already the complete axis. Without it, gradients of replicated arguments are not summed
            either.
        in_specs: PartitionSpecs of plain arrays among the positional arguments, as a prefix of their tree, None
            elsewhere; plain arrays are replicated by default.
        out_specs: the same for plain arrays of the result.
        strict: raise for keys of a given mapping that no array has.

    Returns:
        A `ShardMap`, which is called like `f`. Its results have the names that `f` returned, and global sizes.

    Raises:
        ShardingError: at the call, if there is no mapping or mesh, if they do not fit the arrays, or by `check`.

    Examples:
        >>> Batch = axn.Axis("batch", 8)
        >>> mesh = jax.make_mesh((4,), ("data",))
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
        problem = f"the first argument is the function; got {type_text(f)}"
        raise OperandError(
            message("shard_map", problem, hint="as a decorator: @axn.shard_map(mapping={...})")
        )
    # A string would be a collection of its letters.
    manual = manual_axes
    if isinstance(manual, str):
        manual = (manual,)
    options = _Options(
        mapping=_make_pair(mapping),
        out_mapping=_make_pair(out_mapping),
        mesh=mesh,
        manual=None if manual is None else tuple(manual),
        check=check,
        strict=strict,
        in_specs=in_specs,
        out_specs=out_specs,
    )
    return ShardMap(f, options)


def _make_pair(mapping: ResourceMapping | Mappings | None) -> Mappings | None:
    if mapping is None or isinstance(mapping, Mappings):
        return mapping
    return Mappings(mapping)


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

    def strict_mappings(self) -> list[Mappings]:
        """Return the mappings in which each key must be an axis of some array."""
        if not self.strict:
            return []
        return [own for own in (self.mapping, self.out_mapping) if own is not None]


class ShardMap(Generic[P, R]):
    """A function that runs once per device, made by `shard_map`.

    As a method of a class, it is bound to instances like any other.

    Examples:
        >>> mesh = jax.make_mesh((4,), ("data",))
        >>> local_size = axn.shard_map(lambda x: 0 * x + x.axis_size("batch"), {"batch": "data"}, mesh)
        >>> isinstance(local_size, axn.partitioning.shard_map.ShardMap), local_size(axn.ones({"batch": 8})).max().item()
        (True, 2.0)
    """

    def __init__(self, f: Callable[P, R], options: _Options) -> None:
        f = as_module(f)
        functools.update_wrapper(self, f, updated=())
        self._f = f
        self._options = options
        # Outside of jit, one program runs, not one for each operation.
        self._compiled = NamedJit(self._run, Roles(function="shard_map"), None, None, {})

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function on each device.

        Raises:
            ShardingError: as `shard_map` says.

        Examples:
            >>> mesh = jax.make_mesh((4,), ("data",))
            >>> number = axn.shard_map(lambda x: x + axn.axis_index("batch"), {"batch": "data"}, mesh)
            >>> number(axn.zeros({"batch": 4})).array
            Array([0., 1., 2., 3.], dtype=float32)
        """
        mappings = self._options.mapping or _make_pair(context.current_mapping())
        if mappings is None:
            raise no_mapping("shard_map")
        # Within a trace, the program around it compiles all of this.
        run: Callable[..., Any] = self._run if tracing.tracing() else self._compiled
        # The mapping is an argument: as the current one, it would shard the arguments of `_compiled` once more.
        with MAPPING.using(None):
            result: R = run(self._f, mappings, args, kwargs)
        return result

    @overload  # not Self: for a class method, the class is the first argument already
    def __get__(self, instance: None, owner: Any = None) -> "ShardMap[..., R]": ...
    @overload
    def __get__(
        self: Callable[Concatenate[T, Rest], R], instance: T, owner: Any = None
    ) -> Callable[Rest, R]: ...
    @overload  # a static method has no place for the instance
    def __get__(self, instance: Any, owner: Any = None) -> Callable[..., R]: ...
    def __get__(self, instance: Any, owner: object = None) -> Any:
        """Bind a method to its instance."""
        if instance is None:
            return self
        return functools.partial(self, instance)

    def _run(self, f: Callable[P, R], mappings: Mappings, args: object, kwargs: object) -> Any:
        """Shard the arguments, run the function on their blocks, and assemble its results."""
        options = self._options
        mesh, is_nested = choose_mesh(options.mesh, mappings)
        check_mesh("shard_map", f, mesh, args, kwargs)
        mappings = mappings.settle(list_sizes((f, args, kwargs)), mesh, "shard_map")
        blocks = _Blocks(
            mesh, find_manual_axes(mesh, options.manual), options.check, (f, args, kwargs)
        )
        leaves, tree = jax.tree.flatten((f, args, kwargs), is_leaf=is_named_array)
        held, held_tree = jax.tree.flatten(blocks.find_variables(f))
        given = [
            # Only positional arguments have specs: plain arrays of the function and of keywords are replicated.
            *_repeat_specs("in_specs", None, f),
            *_repeat_specs("in_specs", options.in_specs, args),
            *_repeat_specs("in_specs", None, kwargs),
            *map(spec_of, held),
        ]
        arrays, specs = blocks.split([*leaves, *held], given, mappings)
        # Collectives compare sizes of blocks with these, the sizes outside.
        scope = Scope(mappings, frozenset(blocks.whole))
        strict, names = options.strict_mappings(), frozenset(collect_names((f, args, kwargs)))
        ledger = Ledger(LEDGER.get(), names, strict)
        # The layout of the results follows from their names, which are known when the function was traced. JAX reads
        # `out_specs` after that (tests/upstream/test_out_specs.py); if it did before, an empty list would be an error.
        out_specs: list[PartitionSpec] = []
        results: list[object] = []

        def local(*local_arrays: jax.Array) -> list[jax.Array]:
            # Arrays come back in the order in which they were flattened: arguments first, then closed-over variables.
            filled = fill([*leaves, *held], local_arrays)
            its_f, its_args, its_kwargs = jax.tree.unflatten(tree, filled[: len(leaves)])
            variables = jax.tree.unflatten(held_tree, filled[len(leaves) :])
            its_f = captured.with_variables(its_f, variables)
            changes: dict[Feature[Any], object]
            changes = {MAPPING: mappings.compute, SCOPE: scope, LEDGER: ledger, STORED: None}
            with using(changes):
                result = blocks.call(its_f, its_args, its_kwargs)
            out_mappings = options.out_mapping or mappings
            blocks_out, out_specs[:] = blocks.join(result, options.out_specs, out_mappings)
            # Placeholders replace the arrays, since tracers must not outlive this trace.
            results[:] = [jax.tree.map(without_data, result, is_leaf=is_named_array)]
            return blocks_out

        # To JAX, no Manual axes mean all axes.
        if blocks.manual:
            local = jax.shard_map(
                local,
                # A nested call must take the mesh of the outer one, which JAX finds by itself.
                mesh=None if is_nested else options.mesh,
                in_specs=tuple(specs),
                out_specs=out_specs,
                # JAX wants the Auto axes of a surrounding vmap among them; none of our arrays is split over these.
                axis_names={*blocks.manual, *find_vmapped_axes(mesh)},
                check_vma=options.check,
            )
        whole = local(*arrays)
        (result,) = results
        # The call has shown the names of the results and of arrays inside.
        for own in strict:
            for mapping in (own.parameters, own.compute):
                check_keys("shard_map", mapping, names | collect_names(result), mesh, ledger=ledger)
        out_leaves, out_tree = jax.tree.flatten(result, is_leaf=is_named_array)
        return jax.tree.unflatten(out_tree, fill(out_leaves, whole))


def _repeat_specs(what: str, specs: object, tree: Any) -> list[PartitionSpec | None]:
    """Repeat the specs of plain arrays, a prefix of a tree, for all its leaves."""
    found: list[PartitionSpec | None] = []

    def one(spec: Any, below: Any) -> None:
        is_spec = isinstance(spec, PartitionSpec)
        if spec is not None and (not is_spec or is_named_array(below)):
            got = "a NamedArray, which the mapping lays out" if is_spec else repr(spec)
            problem = f"{what} takes a PartitionSpec for a plain array, and None elsewhere; "
            problem += f"got {got}"
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
    """How the arrays of one call are split into blocks and assembled.

    Attributes:
        mesh: the mesh.
        manual: its Manual axes.
        check: the option of `shard_map`.
        given: the function and its arguments.
        whole: the axes of arguments with their sizes outside, which `split` adds.
    """

    mesh: MeshLike
    manual: Entry
    check: bool
    given: Any
    whole: set[tuple[str, int]] = dataclasses.field(default_factory=set)

    def split(
        self, leaves: list[object], given: list[PartitionSpec | None], mappings: Mappings
    ) -> tuple[list[jax.Array], list[PartitionSpec]]:
        """Shard the arguments, and return their specs."""
        arrays: list[jax.Array] = []
        specs: list[PartitionSpec] = []
        for leaf, spec in zip(leaves, given, strict=True):
            if not holds_array(leaf):
                continue
            if isinstance(leaf, NamedArray):
                mapping = mappings.of(leaf.names)
                shape = shape_of("shard_map", leaf.array, leaf.names)
                note(mapping, leaf.names)
                spec = partition.find_layout(
                    leaf.names, shape, mapping, self.mesh, "shard_map"
                ).spec
                self.whole.update(leaf.shape.items())
            array = jnp.asarray(array_of(leaf))
            full = self._check_spec("in_specs", spec, array.shape, whole=True)
            arrays.append(self._reshard(array, full))
            specs.append(self._keep_manual(full))
        return arrays, specs

    def call(self, f: Any, args: Any, kwargs: Any) -> Any:
        """Call the function on blocks, and explain errors of JAX about arrays that it closes over."""
        try:
            return f(*args, **kwargs)
        except (NotImplementedError, ValueError) as flaw:
            # Ours have other types; JAX's speak of meshes, and a user's mostly do not.
            is_plain = type(flaw) in (NotImplementedError, ValueError)
            if is_plain and re.search("mesh|shard", str(flaw)):
                self._check_variables(f, flaw)
            raise
        except AssertionError as flaw:
            if flaw.args or not _is_raised_by_jax(flaw):
                raise
            raise _mesh_axis_error(self.mesh) from flaw

    def find_variables(self, f: object) -> dict[str, Any]:
        """Return the variables that a function closes over and whose arrays are replicated on all devices.

        Sharded arrays stay where they are: JAX refuses them, and `call` explains what to write.
        """
        variables = captured.find_typed_variables(f)
        return {name: value for name, value in variables.items() if not self._has_split(value)}

    def _has_split(self, tree: object) -> bool:
        specs = (spec_of(leaf) or PartitionSpec() for leaf in jax.tree.leaves(tree))
        entries = itertools.chain.from_iterable(map(Layout.from_spec, specs))
        return any(partition.only(entry, self.manual) for entry in entries)

    def _check_variables(self, f: object, flaw: Exception) -> None:
        """Raise ShardingError instead of the error of JAX if a function closes over sharded arrays."""
        variables = captured.find_all_typed_variables(f)
        if not variables:
            return
        arrays = {name: captured.arrays_in(value) for name, value in variables.items()}
        types = {name: ", ".join(str(jax.typeof(x)) for x in own) for name, own in arrays.items()}
        facts = [f"{name}: {text}" for name, text in types.items()]
        problem = f"the function closes over {', '.join(variables)}, on Explicit axes of the mesh"
        hint = "pass it as an argument: each device gets its block by the mapping"
        raise ShardingError(message("shard_map", problem, *facts, hint=hint)) from flaw

    def _check_spec(
        self, what: str, spec: PartitionSpec | None, shape: tuple[int, ...], whole: bool
    ) -> PartitionSpec:
        """Check the spec of a plain array."""
        if spec is None:
            spec = PartitionSpec()
        entries = Layout.from_spec(spec)
        used = list(itertools.chain.from_iterable(entries))
        known = self.mesh.axis_names
        problem = hint = None
        # All flaws of a spec share one error, which shows the array and the mesh.
        for axis in used:
            if axis not in known:
                problem, hint = f"{axis!r} is not an axis of the mesh", suggestion(axis, known)
            elif used.count(axis) > 1:
                problem = f"mesh axis {axis!r} is used twice"
        if len(entries) > len(shape):
            problem = f"it is for at least {len(entries)} dimensions"
        elif whole and problem is None:
            problem = self._describe_uneven(shape, entries)
        if problem is not None:
            problem = f"{what} has {spec}, but {problem}"
            facts = f"array has: shape {shape}", f"mesh: {partition.describe_mesh(self.mesh)}"
            raise ShardingError(message("shard_map", problem, *facts, hint=hint))
        return spec

    def _describe_uneven(self, shape: tuple[int, ...], entries: Sequence[Entry]) -> str | None:
        for size, entry in zip(shape, entries, strict=False):
            count = partition.count_shards(self.mesh, entry)
            if size % count:
                over = ", ".join(entry)
                return f"{size} cannot be split evenly in {count} over mesh axis {over}"
        return None

    def _keep_manual(self, spec: PartitionSpec) -> PartitionSpec:
        entries = Layout.from_spec(spec)
        return Layout([partition.only(entry, self.manual) for entry in entries]).spec

    def _reshard(self, array: jax.Array, spec: PartitionSpec) -> jax.Array:
        """Reshard an argument over Explicit mesh axes; JAX itself does this for Auto ones."""
        free = modes.find_explicit_axes(self.mesh)
        if not free:
            return array
        # A surrounding vmap adds its mesh axes to the types itself.
        free -= set(context.get_taken_axes())
        wanted: list[Entry] = []
        for entry in Layout.from_spec(spec):
            # JAX puts Manual axes before others that split the same dimension.
            ordered = sorted(entry, key=lambda axis: axis not in self.manual)
            wanted.append(partition.only(ordered, free))
        wanted += [()] * (array.ndim - len(wanted))
        if tuple(wanted) == explicit.get_layout(array):
            return array
        resharded: jax.Array = jax.reshard(array, NamedSharding(self.mesh, Layout(wanted).spec))
        return resharded

    def join(
        self, result: object, out_specs: object, mappings: Mappings
    ) -> tuple[list[jax.Array], list[PartitionSpec]]:
        """Return how the blocks of the results are assembled, and check that they can be."""
        leaves = jax.tree.leaves_with_path(result, is_leaf=is_named_array)
        given = _repeat_specs("out_specs", out_specs, result)
        arrays: list[jax.Array] = []
        specs: list[PartitionSpec] = []
        for (path, leaf), spec in zip(leaves, given, strict=True):
            if not holds_array(leaf):
                continue
            array = jnp.asarray(array_of(leaf))
            if isinstance(leaf, NamedArray):
                mapping, shape = mappings.of(leaf.names), shape_of("shard_map", array, leaf.names)
                note(mapping, leaf.names)
                table = partition.assign_mesh_axes(
                    leaf.names, shape, mapping, self.mesh, "shard_map"
                )
                # Not `find_layout`, which would check that the block divides: it is multiplied here.
                entries: list[Entry] = [()] * (len(shape) - len(leaf.names))
                entries += [table.get(name, ()) for name in leaf.names]
                spec = Layout(entries).spec
            spec = self._keep_manual(self._check_spec("out_specs", spec, array.shape, whole=False))
            if self.check:
                self._check_result(jax.tree_util.keystr(path), leaf, array, spec, mappings)
            arrays.append(array)
            specs.append(spec)
        return arrays, specs

    def _check_result(
        self, path: str, leaf: object, array: jax.Array, spec: PartitionSpec, mappings: Mappings
    ) -> None:
        """Raise ShardingError for a result that cannot have its layout."""
        names, entries = own_names(leaf), Layout.from_spec(spec)
        where = f"the result at {path}" if path else "the result"
        facts = (
            f"it has: {describe(names, array.shape)}",
            f"mapping of the results: {mappings.of(names)}",
            f"mesh: {partition.describe_mesh(self.mesh)}",
        )
        # JAX itself tracks what varies; sizes show the other flaws.
        promised = set(itertools.chain.from_iterable(entries))
        varying = jax.typeof(array).mat.varying
        for axis in self.manual:
            if axis in varying and axis not in promised:
                problem = f"{where} differs between the devices of mesh axis {axis!r}, "
                problem += "but is not split over it"
                hint = _missing_collective(axis, mappings)
                raise ShardingError(message("shard_map", problem, *facts, hint=hint))

        sizes = array.shape[array.ndim - len(names) :]
        named_entries = entries[len(entries) - len(names) :]
        for name, size, entry in zip(names, sizes, named_entries, strict=bool(names)):
            flaw = self._block_flaw((name, size), entry, varying, mappings)
            if flaw is not None:
                count = partition.count_shards(self.mesh, entry)
                then = f"assembled, it would have {count} times {size}"
                problem, hint = flaw
                problem = f"{where} {problem}"
                raise ShardingError(message("shard_map", problem, *facts, then, hint=hint))

    def _block_flaw(
        self, axis: tuple[str, int], entry: Entry, varying: Set[str], mappings: Mappings
    ) -> tuple[str, str] | None:
        """Explain why an axis of a result cannot be a block over mesh axes, and what would work; None if it can."""
        name, size = axis
        count = partition.count_shards(self.mesh, entry)
        assembled = (name, size * count)
        # An axis that was made inside has a size that no argument has: nothing speaks against it then.
        if count == 1 or assembled in self.whole or assembled in self._list_static_axes():
            return None

        over = ", ".join(entry)
        # The surest sign comes first: a global size, the size of a block by the other mapping, equal values.
        if axis in self.whole:
            problem = f"has axis {name!r} whole, but its layout splits it over {over}"
            block = f'x["{name}", axn.dblock(axn.axis_index({spell(entry)}), {size // count})]'
            hint = f'axn.psum_scatter(x, "{name}") for a part of a sum, {block} for a whole; '
            hint += f'or pass out_mapping={{"{name}": None, ...}}'
            return problem, hint

        computed = partition.only(assignment.find_entry(mappings.compute, name) or (), self.manual)
        if (name, size * partition.count_shards(self.mesh, computed)) in self.whole:
            problem = f"has axis {name!r} split over {', '.join(computed)}, as it is computed, "
            problem += f"but its layout, that of parameters, splits it over {over}"
            hint = "name the mesh axes of its blocks: "
            hint += f'out_mapping={{"{name}": {spell(computed)}, ...}}'
            return problem, hint

        same = partition.without(entry, varying)
        if same:
            problem = f"is the same on all devices of mesh axis {same[0]!r}, "
            problem += f"but split over it by {name!r}"
            hint = f'if it is a block, axn.pcast(x, "{same[0]}"); '
            hint += f'or pass out_mapping={{"{name}": None, ...}}'
            return problem, hint
        return None

    def _list_static_axes(self) -> set[tuple[str, int]]:
        """Collect the axes in static fields of modules: alternating layers are stored by repetition."""
        found = set[tuple[str, int]]()

        # As `is_leaf`, it sees each node on the way to the leaves.
        def visit(node: object) -> bool:
            if isinstance(node, eqx.Module):
                for axes in find_static_axes(node).values():
                    found.update((axis.name, axis.size) for axis in axes)
            return False

        jax.tree.leaves(self.given, is_leaf=visit)
        return found


def _is_raised_by_jax(error: BaseException) -> bool:
    """Return whether JAX itself raised an error, not a function that it called."""
    trace = error.__traceback__
    # The innermost frame is the one that raised.
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith("jax.")


def _mesh_axis_error(mesh: MeshLike) -> ShardingError:
    """Build the error for an assertion of JAX without a message: one of its collectives met an unknown name."""
    problem = "a collective of jax.lax got a name that is not a mesh axis of this shard_map"
    hint = 'axn.psum(x, "batch") takes names of axes, jax.lax.psum those of the mesh'
    return ShardingError(
        message("shard_map", problem, f"mesh: {partition.describe_mesh(mesh)}", hint=hint)
    )


def _missing_collective(mesh_axis: str, mappings: Mappings) -> str:
    """Return a hint: how to make a value the same on all devices of a mesh axis."""
    # Users know the axes of arrays; a mesh axis without one stands for itself.
    both = (*mappings.compute.entries, *mappings.parameters.entries)
    name = next((name for name, entry in both if mesh_axis in entry), mesh_axis)
    return (
        f'axn.psum(x, "{name}") or axn.pmean for a part of a sum, axn.all_gather(x, "{name}", to="invarying") for a '
        f"block; or map an axis of the result to {mesh_axis!r} with out_mapping"
    )
