"""Internal. The arguments of a function, sharded over a mesh without values.

Both readers call `lay_out_arguments` before they trace or compile, and `Arguments.describe` after it. The module knows
trees and mappings; it must not know the contents of programs.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, NamedSharding

from ... import Mappings, NamedJit, ResourceMapping, is_named_array, set_mesh
from ...engine import (
    LEDGER,
    MACHINE,
    MAPPING,
    AxisMapping,
    Ledger,
    Machine,
    MeshLike,
    Payload,
    Tree,
    payload_of,
    resolve_mapping,
)
from ...partitioning import show
from ...report import (
    ArrayLayout,
    abstract_array,
    by_parameter,
    find_several,
    get_memory_kind,
    identifiers,
    is_array,
    is_optimiser_state,
    labels,
    no_mapping,
    refilled,
    remapped,
    shard_tree,
    unwrapped,
)
from .names import NameTable, collect_names

_INDEX = re.compile(r"\[['\"]?([^\]'\"]*)['\"]?\]")


class Arguments(NamedTuple):
    """A function with arguments that are sharded over a mesh.

    Attributes:
        fn: a `NamedJit`, or a result of `jax.jit`.
        args: abstract arguments by position.
        kwargs: abstract arguments by name.
        mappings: the mappings of parameters and of the computation.
    """

    fn: Any
    args: tuple[Tree, ...]
    kwargs: dict[str, Tree]
    mappings: Mappings

    def write_title(self, name: str) -> str:
        """Return the title of the report of a function with this name."""
        mappings = self.mappings
        is_one = mappings.parameters == mappings.compute
        return f"{name}, mapping {mappings.compute if is_one else mappings}"

    @contextmanager
    def enter(self, mesh: MeshLike, ledger: Ledger, machine: Machine | None) -> Generator[None]:
        """Make a mesh, the mappings, a ledger and a machine current while a reader traces or compiles the function.

        Without a machine, the function is traced for the devices of this machine.
        """
        # JAX forgets what it traced before under another ledger, so that all axes are noted anew.
        ledger.is_alone, ledger.sizes = True, {}
        # A `NamedJit` enters its own mappings.
        is_named = isinstance(self.fn, NamedJit)
        mapping = nullcontext() if is_named else MAPPING.using(self.mappings.compute)
        with set_mesh(mesh), LEDGER.using(ledger), MACHINE.using(machine), mapping:
            yield

    def describe(
        self, ledger: Ledger, mesh: AbstractMesh
    ) -> tuple[dict[str, tuple[ArrayLayout, ...]], NameTable]:
        """Return the rows of the arguments by kind, and the table of names for the program that a ledger saw."""
        rows = list_rows(self)
        kinds = sort_by_kind(self, rows)
        return kinds, collect_names(self.mappings, ledger, rows, kinds["parameters"], mesh)


def lay_out_arguments(
    fn: Tree,
    mapping: ResourceMapping | Mappings | None,
    mesh: MeshLike,
    args: tuple[Tree, ...],
    kwargs: dict[str, Tree],
) -> Arguments:
    """Lay out the arguments of a function on a mesh. The arrays need not exist.

    Args:
        fn: a function or a module, as in `axn.cost`.
        mapping: the mapping; None for the mapping of the function, or the current one.
        mesh: the mesh, with or without devices.
        args: arguments by position.
        kwargs: arguments by name.

    Raises:
        ShardingError: if there is no mapping, or it does not fit.
    """
    call = unwrapped(fn, args, kwargs)
    jitted: Any = fn
    if isinstance(fn, functools.partial) and isinstance(fn.func, NamedJit):
        jitted = fn.func
    args, kwargs = call.args, call.kwargs
    own = None
    if isinstance(jitted, NamedJit):
        roles = jitted.roles
        told = [roles.arguments, roles.inside, roles.results]
        own = next((each for each in told if each is not None), None)
    elif any(map(is_array, jax.tree.leaves(call.target))):
        # The arrays of a module must be arguments: constants have no layout.
        jitted, args = _call_module, (call.target, *args)

    mappings = _find_mappings(mapping, own)
    is_named = isinstance(jitted, NamedJit)
    # A result of `jax.jit` keeps its own layouts and donations; other functions are compiled anew.
    is_compiled = isinstance(jitted, jax.stages.Wrapped) and not is_named
    if not is_compiled and not (is_named and mapping is None):
        jitted = remapped(jitted, mappings, "cost", strict=mapping is not None)
    # Values are dropped first, so that laying out moves nothing.
    parts = (args, kwargs)
    abstract = jax.tree.map(_make_abstract, parts, is_leaf=is_named_array)
    lay_out = functools.partial(
        shard_tree, mapping=mappings, mesh=mesh, several=find_several(abstract), function="cost"
    )
    shown = functools.partial(by_parameter, _unwrap(jitted))
    placed = (lay_out(abstract[0], shown=shown), lay_out(abstract[1]))
    placed = jax.tree.map(_keep_memory, parts, placed, is_leaf=is_named_array)
    if mapping is None:
        keep = functools.partial(_keep_layout, mesh=mesh)
        # Arrays that such a mesh already shards stay so if there is no mapping.
        placed = jax.tree.map(keep, parts, placed, is_leaf=is_named_array)
    return Arguments(jitted, placed[0], placed[1], mappings)


def _unwrap(compiled: Any) -> Any:
    """Return the function that was compiled."""
    return compiled.__wrapped__


def _call_module(module: Callable[..., Any], *args: Tree, **kwargs: Tree) -> Any:
    return module(*args, **kwargs)


def _find_mappings(
    mapping: ResourceMapping | Mappings | None, own: AxisMapping | Mappings | None
) -> Mappings:
    """Return the mappings of the caller, else of the function, else the current ones."""
    if isinstance(mapping, Mappings):
        return mapping
    if mapping is None and isinstance(own, Mappings):
        return own
    if mapping is None and isinstance(own, AxisMapping):
        return Mappings(own)
    resolved = resolve_mapping(mapping)
    if resolved is None:
        raise no_mapping("cost")
    return Mappings(resolved)


def _make_abstract(leaf: Payload) -> Any:
    """Return an array without its values; other leaves stay as they are."""
    payload = payload_of(leaf)
    return refilled(leaf, abstract_array(payload)) if is_array(payload) else leaf


def _keep_memory(leaf: Payload, placed: Payload) -> Any:
    """Return a layout in the memory of the host, if the array is there."""
    kind = get_memory_kind(payload_of(leaf))
    array = payload_of(placed)
    if not kind or not isinstance(getattr(array, "sharding", None), NamedSharding):
        return placed
    there = array.sharding.with_memory_kind(kind)
    return refilled(placed, array.update(sharding=there))


def _keep_layout(leaf: Payload, placed: Payload, mesh: MeshLike) -> Any:
    """Return the layout that an array already has on a mesh of the same sizes; otherwise, the new one."""
    sharding = getattr(payload_of(leaf), "sharding", None)
    if not isinstance(sharding, NamedSharding) or dict(sharding.mesh.shape) != dict(mesh.shape):
        return placed
    array = abstract_array(payload_of(leaf))
    own = NamedSharding(mesh, sharding.spec, memory_kind=get_memory_kind(payload_of(leaf)) or None)
    there = jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=own, weak_type=array.weak_type)
    return refilled(leaf, there)


def list_rows(given: Arguments) -> dict[str, ArrayLayout]:
    """Return the layouts of the arguments, by their names in the program."""
    leaves = labels(given.fn.__wrapped__, given.args, given.kwargs, is_named_array)
    found: dict[str, ArrayLayout] = {}
    for name, (label, leaf) in zip(identifiers(label for label, _ in leaves), leaves, strict=True):
        for row in show(leaf).arrays:
            found[name] = dataclasses.replace(row, path=_write_path(label))
    return found


def _write_path(label: str) -> str:
    """Write the label of an argument as a path: `model.layers[0].weight` is `model.layers.0.weight`."""
    return _INDEX.sub(r".\1", label)


def sort_by_kind(
    given: Arguments, rows: Mapping[str, ArrayLayout]
) -> dict[str, tuple[ArrayLayout, ...]]:
    """Sort arguments into `parameters`, state of an `optimizer` and `data`."""
    fn, args, kwargs = given.fn.__wrapped__, given.args, given.kwargs
    states = [
        _write_path(label)
        for label, node in labels(fn, args, kwargs, is_optimiser_state)
        if is_optimiser_state(node)
    ]
    arguments = [*args, *(argument for _, argument in sorted(kwargs.items()))]
    # Arrays that are an argument by themselves, and not a part of one.
    whole: list[str] = []
    owners: dict[str, int] = {}
    own = [
        (at, leaf is argument)
        for at, argument in enumerate(arguments)
        for leaf in jax.tree.leaves(argument, is_leaf=is_named_array)
    ]
    for (label, _), (at, is_whole) in zip(
        labels(fn, args, kwargs, is_named_array), own, strict=True
    ):
        owners[_write_path(label)] = at
        if is_whole:
            whole.append(_write_path(label))

    mappings = given.mappings
    found: dict[str, list[ArrayLayout]] = {"parameters": [], "optimizer": [], "data": []}
    alone: list[ArrayLayout] = []
    for row in rows.values():
        # The layout of the computation marks data, if parameters have another one.
        is_data = mappings.of(row.names) == mappings.compute != mappings.parameters
        if any(row.path == state or row.path.startswith(f"{state}.") for state in states):
            found["optimizer"].append(row)
        elif is_data or not _is_floating(row):
            found["data"].append(row)
        elif row.path in whole:
            alone.append(row)
        else:
            found["parameters"].append(row)
    # Beside a model, an array that is an argument of its own is data.
    kind = "parameters"
    if found[kind]:
        kind = "data"
    found[kind] += alone
    found = _move_data(found, owners)
    return {kind: tuple(own) for kind, own in found.items()}


def _move_data(
    found: Mapping[str, list[ArrayLayout]], owners: Mapping[str, int]
) -> dict[str, list[ArrayLayout]]:
    """Return the kinds with floating arrays of data among data, such as images beside labels, or a cache of keys.

    They are in other arguments than the model, and have an axis of data that the model lacks, such as the batch.
    """
    parameters = found["parameters"]
    others = [
        owners[row.path] for row in parameters if owners[row.path] != owners[parameters[0].path]
    ]
    if not others:
        return dict(found)
    # A second model has a state of the optimiser, or its axes are no axes of data.
    states = {name for row in found["optimizer"] for name in row.names}
    model = {name for row in parameters if owners[row.path] not in others for name in row.names}
    data = {name for row in found["data"] for name in row.names}
    if states and not data:
        # A training step without integers has its data in the last argument.
        data = {name for row in parameters if owners[row.path] == others[-1] for name in row.names}
    own: list[ArrayLayout] = []
    moved: list[ArrayLayout] = []
    for row in parameters:
        is_data = owners[row.path] in others and not (data - model - states).isdisjoint(row.names)
        (moved if is_data else own).append(row)
    return {**found, "parameters": own, "data": [*found["data"], *moved]}


def _is_floating(row: ArrayLayout) -> bool:
    try:
        return bool(jnp.issubdtype(jnp.dtype(row.dtype), jnp.inexact))
    except TypeError:
        # A key of random numbers.
        return False
