"""Internal. A program that is traced once, and read for many mappings.

A search would trace a step anew for each mapping. A template is traced for a mesh with two axes of one device for each
named axis: one for where arrays are stored, and one for where they are computed. So the types of its program have the
names of all dimensions, and a reading replaces these mesh axes by the ones of a mapping. The result is an estimate: a
layer that shares its work among devices in another way, such as attention to split positions, does so only if it is
traced for several devices.
"""

import dataclasses
import itertools
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence, Set
from contextlib import suppress
from typing import Any, NamedTuple

from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from ... import Mappings
from ...engine import (
    Entry,
    Layout,
    Ledger,
    Machine,
    Mixture,
    Table,
    Tree,
    find_auto_axes,
    make_mesh,
)
from ...errors import ShardingError, message
from ...partitioning import if_free
from ...report import unwrapped
from ..report.cost import Cost
from ..shared.arguments import lay_out_arguments
from ..shared.targets import Target
from .equations import Equation, Program, Variable, count_shards, is_literal
from .inlining import Operation
from .mixtures import Share, share_mixture
from .reader import Trace, read_trace, trace_program
from .tables import find_axes, list_axes, name_layouts

_STORED, _COMPUTED, _KEPT = "{} stored", "{} computed", "{} kept"
# Sums among devices, which change nothing over no mesh axes.
_SUMS = ("psum", "psum2", "psum_invariant")
# Parameters of equations that have names of mesh axes.
_NAMING = ("axes", "axis_name", "in_specs", "newly_manual_axes", "out_specs")


class Template:
    """A traced step whose mesh axes stand for named axes.

    Args:
        fn: the function, as in `axn.cost`.
        args: its arguments.
        kwargs: its keyword arguments.
        target: the target.
        parameters: the names of the axes of parameters.
        names: the names of the axes of all arguments.
        states: the patterns of the overrides of mappings.
        yielding: the axes that take mesh axes only where others leave them free.

    Raises:
        AxonymError: if the step cannot be traced so.
    """

    def __init__(
        self,
        fn: Tree,
        args: tuple[Tree, ...],
        kwargs: dict[str, Tree],
        target: Target,
        *,
        parameters: Sequence[str],
        names: Sequence[str],
        states: Sequence[str],
        yielding: Set[str] = frozenset(),
    ) -> None:
        self._call = fn, args, kwargs
        stored, kept = (
            {name: role.format(name) for name in parameters} for role in (_STORED, _KEPT)
        )
        computed = {name: _COMPUTED.format(name) for name in names}
        mapped = {
            name: if_free(axis) if name in yielding else axis for name, axis in computed.items()
        }
        self._mappings = Mappings(stored, mapped, dict.fromkeys(states, kept))
        self._axes = dict.fromkeys((*stored.values(), *kept.values(), *computed.values()), 1)
        self._platform = target.platform
        self._forms: dict[Hashable, _Form] = {}
        self._mixtures: tuple[Mixture, ...] = ()
        self._tables: tuple[Table, ...] = ()
        first = self._make_trace(())
        self._mixtures, self._tables = tuple(first.ledger.mixtures), tuple(first.ledger.tables)
        # The traces by how devices share the mixtures of experts; None for those that failed.
        self._traces: dict[tuple[Hashable, ...], Trace | None] = {}
        if not (self._mixtures or self._tables):
            self._traces[()] = first

    def estimate(self, mappings: Mappings, abstract: AbstractMesh, target: Target) -> Cost:
        """Return the cost of the step under a mapping.

        Args:
            mappings: the mapping.
            abstract: the mesh.
            target: the target of this template, perhaps with links for mesh axes.

        Raises:
            ShardingError: if the mapping does not fit the arguments, or arrays inside.
            NotImplementedError: if a template cannot have the program of a device.
        """
        fn, args, kwargs = self._call
        explicit = make_mesh(dict(abstract.shape), "Explicit")
        given = lay_out_arguments(fn, mappings, explicit, args, kwargs)
        shares = [
            share_mixture(number, mixture, mappings.compute, explicit)
            for number, mixture in enumerate(self._mixtures)
        ]
        found = self._find_trace(shares)
        tables = {
            axis: entry
            for number, table in enumerate(self._tables)
            for axis, entry in find_axes(number, table, mappings, explicit).items()
        }
        relabeling = _Relabeling(mappings, explicit, self._forms, shares, tables)
        program = relabeling.relabel(found.program)
        # Mappings that the ledger saw are those of the template.
        ledger = Ledger()
        ledger.sizes = found.ledger.sizes
        trace = Trace(program, found.donated, ledger)
        return read_trace(trace, unwrapped(fn, args, kwargs).name, given, abstract, target)

    def _find_trace(self, shares: Sequence[Share]) -> Trace:
        """Return the program in which devices share mixtures of experts so.

        Raises:
            NotImplementedError: if the step cannot be traced so.
        """
        key = tuple(share.key for share in shares)
        if key not in self._traces:
            self._traces[key] = None
            # The step may do anything; a mistake in it is raised where it is traced for a mesh.
            with suppress(Exception):
                self._traces[key] = self._make_trace(shares)
        found = self._traces[key]
        if found is None:
            raise NotImplementedError(
                "the step cannot be traced for this number of experts on a device"
            )
        return found

    def _make_trace(self, shares: Sequence[Share]) -> Trace:
        fn, args, kwargs = self._call
        sizes = dict(self._axes)
        for share in shares:
            sizes |= share.sizes
        tables = [(table, name_layouts(i, table)) for i, table in enumerate(self._tables)]
        for _, named in tables:
            sizes |= dict.fromkeys(list_axes(named), 1)
        mesh = make_mesh(sizes, "Explicit")
        given = lay_out_arguments(fn, self._mappings, mesh, args, kwargs)
        mixtures = zip(self._mixtures, (share.entries for share in shares), strict=True)
        machine = Machine(
            self._platform, is_typed=True, mixtures=tuple(mixtures), tables=tuple(tables)
        )
        return trace_program(given, mesh, Ledger(), machine)


class _Type(NamedTuple):
    shape: tuple[int, ...]
    dtype: Any
    sharding: NamedSharding
    memory_space: Any


@dataclasses.dataclass(eq=False, slots=True)
class _Array:
    aval: Any


class _Form:
    """A program of a template, without the reshards that change nothing under some mappings.

    All these mappings share it: a reading changes its types in place, so what only depends on equations is found once.

    Args:
        program: the program of the template.
        idle: its reshards without a change, by their places.
        inner: the forms of the programs inside, by the ids of programs.

    Attributes:
        invars: the arguments, as in JAX.
        constvars: the constants.
        eqns: the equations.
        outvars: the results.
    """

    def __init__(
        self, program: Program, idle: Collection[int], inner: Mapping[int, "_Form"]
    ) -> None:
        self._avals: dict[int, tuple[_Array, Any]] = {}
        self._params: list[tuple[dict[str, Any], str, Any]] = []
        known: dict[int, Variable] = {}

        def find(variable: Variable) -> Variable:
            if is_literal(variable):
                return variable
            if id(variable) not in known:
                own = known[id(variable)] = _Array(None)
                self._avals[id(variable)] = own, variable.aval
            return known[id(variable)]

        def replace(value: Any) -> Any:
            if isinstance(value, tuple) and any(map(_has_program, value)):
                return tuple(map(replace, value))
            # A closed jaxpr wraps an open one.
            return inner[id(getattr(value, "jaxpr", value))] if _has_program(value) else value

        self.eqns: list[Equation] = []
        for i, equation in enumerate(program.eqns):
            operands = list(map(find, equation.invars))
            if i in idle:
                known.update(zip(map(id, equation.outvars), operands, strict=True))
                continue
            params = {key: replace(value) for key, value in equation.params.items()}
            self._params += [
                (params, key, value)
                for key, value in params.items()
                if isinstance(value, NamedSharding) or key in _NAMING
            ]
            results = list(map(find, equation.outvars))
            own = equation.primitive, params, equation.effects
            self.eqns.append(Operation(*own, operands, results, equation.source_info))
        self.invars, self.constvars, self.outvars = (
            list(map(find, own)) for own in (program.invars, program.constvars, program.outvars)
        )

    def set_types(
        self,
        find_type: Callable[[Any], Any],
        find_param: Callable[[Any], Any],
    ) -> None:
        """Give all arrays and equations the types of a mapping."""
        for variable, aval in self._avals.values():
            variable.aval = find_type(aval)
        for params, key, value in self._params:
            params[key] = find_param(value)


class _Relabeling:
    """The mesh axes that those of a template stand for.

    Args:
        mappings: the mappings.
        mesh: the mesh of the mappings, with Explicit axes.
        forms: the forms of programs that were read before.
        shares: how devices share mixtures of experts.
        tables: the mesh axes that those of lookups stand for.
    """

    def __init__(
        self,
        mappings: Mappings,
        mesh: AbstractMesh,
        forms: dict[Hashable, _Form],
        shares: Sequence[Share],
        tables: Mapping[str, Entry],
    ) -> None:
        self._mesh = mesh
        # Types on Auto mesh axes have no layout, since the compiler decides: their arrays may be sharded.
        self._auto_mesh = make_mesh(dict(mesh.shape), "Auto")
        self._axes: dict[str, Entry] = dict(tables)
        for role, mapping in (
            (_STORED, mappings.parameters),
            (_COMPUTED, mappings.compute),
            *((_KEPT, extra) for _, extra in mappings.overrides[:1]),
        ):
            self._axes |= {role.format(name): entry for name, entry in mapping.items()}
        self._yielding = {_COMPUTED.format(name) for name in mappings.compute.yielding}
        self._shares = shares
        # The mesh axes of a mixture that have several devices in the template, too.
        self._real: dict[str, Entry] = {}
        for share in shares:
            self._axes |= {**share.routed, **share.real}
            self._real |= share.real
        # The keys are ids, which is safe because the template keeps its types and programs alive.
        self._types: dict[int, Any] = {}
        self._programs: dict[int, _Form] = {}
        self._shardings: dict[NamedSharding, NamedSharding] = {}
        self._forms = forms

    def relabel(self, program: Program) -> _Form:
        """Return a program with the new mesh axes in its types, and without reshards that change nothing.

        Raises:
            ShardingError: if a mesh axis would shard two dimensions of an array, or does not divide a size.
            NotImplementedError: if the program has a `shard_map` for other mesh axes.
        """
        if id(program) in self._programs:
            return self._programs[id(program)]
        idle: list[int] = []
        inner: dict[int, _Form] = {}
        for i, equation in enumerate(program.eqns):
            name = equation.primitive.name
            if name == "shard_map" and not self._is_of_mixture(equation):
                raise NotImplementedError("a shard_map is written for other mesh axes")
            if self._is_idle(equation):
                idle.append(i)
            for value in equation.params.values():
                for part in value if isinstance(value, tuple) else (value,):
                    if _has_program(part):
                        own = getattr(part, "jaxpr", part)
                        inner[id(own)] = self.relabel(own)
        key = id(program), tuple(idle), tuple(map(id, inner.values()))
        if key not in self._forms:
            self._forms[key] = _Form(program, {*idle}, inner)
        found = self._programs[id(program)] = self._forms[key]
        found.set_types(self._find_type, self._find_param)
        return found

    def _is_idle(self, equation: Equation) -> bool:
        """Return whether an equation is a reshard that changes nothing, or a sum over no mesh axes."""
        name = equation.primitive.name
        if name in _SUMS:
            return not self._find_param(equation.params["axes"])
        if name != "reshard":
            return False
        pair = (*equation.invars, *equation.outvars)
        before, after = (self._find_type(one.aval) for one in pair)
        return bool(before.sharding == after.sharding)

    def _is_of_mixture(self, shard_map: Equation) -> bool:
        """Return whether a `shard_map` is that of a mixture of experts, whose blocks have the sizes of this mapping."""
        specs = (*shard_map.params["in_specs"], *shard_map.params["out_specs"])
        used = {axis for spec in specs for entry in Layout.from_spec(spec) for axis in entry}
        known = self._real.keys() | {axis for share in self._shares for axis in share.routed}
        return used <= known and bool(used or not shard_map.outvars)

    def _find_param(self, value: Any) -> Any:
        """Return a parameter of an equation with the new mesh axes."""
        if isinstance(value, NamedSharding):
            return self._find_sharding(value)
        if isinstance(value, frozenset):
            # A `shard_map` has all mesh axes.
            return frozenset(self._mesh.axis_names)
        if isinstance(value, str):
            value = (value,)
        if any(isinstance(part, PartitionSpec) for part in value):
            entries = (self._find_entries(Layout.from_spec(spec)) for spec in value)
            return tuple(Layout(own).spec for own in entries)
        # Dimensions, and the mesh axes of a collective; blocks of tokens have no others than those of the mixture.
        parts = (self._real.get(part, ()) if isinstance(part, str) else (part,) for part in value)
        return tuple(itertools.chain.from_iterable(parts))

    def _find_type(self, aval: Any) -> Any:
        if getattr(aval, "sharding", None) is None:
            return aval
        found = self._types.get(id(aval))
        if found is None:
            sharding = self._find_sharding(aval.sharding)
            for size, entry in zip(aval.shape, Layout.from_spec(sharding.spec), strict=False):
                if size % count_shards(entry, self._mesh.shape):
                    raise _refuse(f"mesh axes {', '.join(entry)} do not divide {size}")
            found = _Type(aval.shape, aval.dtype, sharding, aval.memory_space)
            self._types[id(aval)] = found
        return found

    def _find_sharding(self, sharding: NamedSharding) -> NamedSharding:
        if sharding.mesh.empty:
            return sharding
        found = self._shardings.get(sharding)
        if found is None:
            entries = self._find_entries(Layout.from_spec(sharding.spec))
            mesh = self._auto_mesh if find_auto_axes(sharding.mesh) else self._mesh
            found = self._shardings[sharding] = NamedSharding(mesh, Layout(entries).spec)
        return found

    def _find_entries(self, layout: Sequence[Entry]) -> list[Entry]:
        used: set[str] = set()
        found: list[Entry] = [()] * len(layout)
        # Axes with an `if_free` choose last.
        for at in sorted(range(len(layout)), key=lambda at: bool(self._yielding & {*layout[at]})):
            roles = layout[at]
            for share in self._shares:
                roles = share.choose(roles)
            own = [axis for role in roles for axis in self._axes.get(role, ())]
            if self._yielding & {*layout[at]}:
                own = [axis for axis in own if axis not in used]
            if len({*own} - used) < len(own):
                raise _refuse(f"mesh axes {', '.join(own)} would shard two dimensions")
            used |= {*own}
            found[at] = tuple(own)
        return found


def _has_program(value: Any) -> bool:
    return hasattr(getattr(value, "jaxpr", value), "eqns")


def _refuse(problem: str) -> ShardingError:
    return ShardingError(message("plan", problem))
