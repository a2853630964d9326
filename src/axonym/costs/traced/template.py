"""Internal. A program that is traced once, and read for many mappings.

A search would trace a step anew for each mapping. A template is traced for a mesh with two axes of one device for each
named axis: one for where arrays are stored, and one for where they are computed. So the types of its program have the
names of all dimensions, and a reading replaces these mesh axes by the ones of a mapping. The result is an estimate: a
layer that shares its work among devices in another way, such as attention to split positions, does so only if it is
traced for several devices.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from jax.sharding import AbstractMesh, NamedSharding

from ... import Mappings
from ...engine import Entry, Layout, Ledger, Machine, Tree, make_mesh
from ...errors import ShardingError, message
from ...report import unwrapped
from ..report.cost import Cost
from ..shared.arguments import lay_out_arguments
from ..shared.targets import Target
from .equations import Equation, Program, Variable, count_shards, is_literal
from .inlining import Operation
from .reader import Trace, read_trace, trace_program

_STORED, _COMPUTED, _KEPT = "{} stored", "{} computed", "{} kept"


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
    ) -> None:
        self._call = fn, args, kwargs
        stored, kept = (
            {name: role.format(name) for name in parameters} for role in (_STORED, _KEPT)
        )
        computed = {name: _COMPUTED.format(name) for name in names}
        mappings = Mappings(stored, computed, dict.fromkeys(states, kept))
        axes = [*stored.values(), *kept.values(), *computed.values()]
        mesh = make_mesh(dict.fromkeys(axes, 1), "Explicit")
        given = lay_out_arguments(fn, mappings, mesh, args, kwargs)
        self._trace = trace_program(given, mesh, Ledger(), Machine(target.platform))

    def estimate(self, mappings: Mappings, abstract: AbstractMesh, target: Target) -> Cost:
        """Return the cost of the step under a mapping.

        Args:
            mappings: the mapping.
            abstract: the mesh.
            target: the target of this template, perhaps with links for mesh axes.

        Raises:
            ShardingError: if the mapping does not fit the arguments, or arrays inside.
        """
        fn, args, kwargs = self._call
        explicit = make_mesh(dict(abstract.shape), "Explicit")
        given = lay_out_arguments(fn, mappings, explicit, args, kwargs)
        program = _Relabeling(mappings, explicit).relabel(self._trace.program)
        # Mappings that the ledger saw are those of the template.
        ledger = Ledger()
        ledger.sizes = self._trace.ledger.sizes
        trace = Trace(program, self._trace.donated, ledger)
        return read_trace(trace, unwrapped(fn, args, kwargs).name, given, abstract, target)


class _Type(NamedTuple):
    shape: tuple[int, ...]
    dtype: Any
    sharding: NamedSharding
    memory_space: Any


@dataclasses.dataclass(eq=False, slots=True, weakref_slot=True)
class _Array:
    aval: Any


@dataclasses.dataclass(eq=False, slots=True, weakref_slot=True)
class _Body:
    invars: list[Variable]
    constvars: list[Variable]
    eqns: list[Equation]
    outvars: list[Variable]


class _Relabeling:
    """The mesh axes that those of a template stand for.

    Args:
        mappings: the mappings.
        mesh: the mesh of the mappings, with Explicit axes.
    """

    def __init__(self, mappings: Mappings, mesh: AbstractMesh) -> None:
        self._mesh = mesh
        self._axes: dict[str, Entry] = {}
        for role, mapping in (
            (_STORED, mappings.parameters),
            (_COMPUTED, mappings.compute),
            *((_KEPT, extra) for _, extra in mappings.overrides[:1]),
        ):
            self._axes |= {role.format(name): entry for name, entry in mapping.items()}
        self._yielding = {_COMPUTED.format(name) for name in mappings.compute.yielding}
        # The keys are ids, which is safe because the template keeps its types and programs alive.
        self._types: dict[int, Any] = {}
        self._programs: dict[int, Program] = {}
        self._shardings: dict[NamedSharding, NamedSharding] = {}

    def relabel(self, program: Program) -> Program:
        """Return a program with the new mesh axes in its types, and without reshards that change nothing.

        Raises:
            ShardingError: if a mesh axis would shard two dimensions of an array, or does not divide a size.
        """
        if id(program) in self._programs:
            return self._programs[id(program)]
        known: dict[int, Variable] = {}

        def find(variable: Variable) -> Variable:
            if is_literal(variable):
                return variable
            if id(variable) not in known:
                known[id(variable)] = _Array(self._find_type(variable.aval))
            return known[id(variable)]

        equations: list[Equation] = []
        for equation in program.eqns:
            name, operands = equation.primitive.name, list(map(find, equation.invars))
            if name == "shard_map":
                raise _refuse("a shard_map is written for other mesh axes")
            results = list(map(find, equation.outvars))
            if name == "reshard" and operands[0].aval.sharding == results[0].aval.sharding:
                known[id(equation.outvars[0])] = operands[0]
                continue
            params = {key: self._relabel_param(value) for key, value in equation.params.items()}
            own = equation.primitive, params, equation.effects
            equations.append(Operation(*own, operands, results, equation.source_info))
        given, constants, results = (
            list(map(find, own)) for own in (program.invars, program.constvars, program.outvars)
        )
        found = _Body(given, constants, equations, results)
        self._programs[id(program)] = found
        return found

    def _relabel_param(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return (
                tuple(map(self._relabel_param, value)) if any(map(_has_program, value)) else value
            )
        if isinstance(value, NamedSharding):
            return self._find_sharding(value)
        # A closed jaxpr wraps an open one.
        return self.relabel(getattr(value, "jaxpr", value)) if _has_program(value) else value

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
            found = self._shardings[sharding] = NamedSharding(self._mesh, Layout(entries).spec)
        return found

    def _find_entries(self, layout: Sequence[Entry]) -> list[Entry]:
        used: set[str] = set()
        found: list[Entry] = [()] * len(layout)
        # Axes with an `if_free` choose last.
        for at in sorted(range(len(layout)), key=lambda at: bool(self._yielding & {*layout[at]})):
            own = [axis for role in layout[at] for axis in self._axes.get(role, ())]
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
