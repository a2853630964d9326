"""Internal. A program without calls: the equations of a called program replace the call, as in compilers.

`memory` and `fusions` read it. So an array that a call returns can be fused with its readers, and can be freed within
the next call. It must not know layouts.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .equations import (
    Equation,
    Program,
    Used,
    Variable,
    find_needed,
    find_used,
    find_used_inside,
    list_bodies,
    write_source,
)
from .loops import is_barrier

_REPEATED = ("scan", "while", "cond")


class Instance:
    """An array of one call: if a program is called twice, each of its arrays has two instances.

    Attributes:
        variable: the array in the program.
    """

    def __init__(self, variable: Variable) -> None:
        self.variable = variable

    @property
    def aval(self) -> Any:
        """Its type, which a template changes."""
        return self.variable.aval


@dataclasses.dataclass(eq=False, slots=True, weakref_slot=True)
class Operation:
    """An equation between instances of arrays.

    Attributes:
        prefix: the names of the calls that it is in.
    """

    primitive: Any
    params: dict[str, Any]
    effects: Any
    invars: Sequence[Variable]
    outvars: Sequence[Variable]
    source_info: Any
    prefix: str = ""


def find_own(variable: Variable) -> Variable:
    """Return the variable of an array, which the walk knows."""
    return variable.variable if isinstance(variable, Instance) else variable


class Inlined(NamedTuple):
    """A program without calls.

    Attributes:
        equations: its equations, without calls.
        given: its arguments and constants.
        results: its results.
        awaited: the operands that recomputations wait for, so they are in memory.
    """

    equations: list[Equation]
    given: list[Variable]
    results: list[Variable]
    awaited: list[Variable]


def inline(
    program: Program, used: Used = None, repeated: Mapping[int, int | None] | None = None
) -> Inlined:
    """Return a program without calls, and without equations whose results are not used.

    Args:
        program: the program.
        used: which of its results are used; by default all.
        repeated: the places of equations that repeat others, which a compiler does not run, each with the place of the
            first one, if it is in this program. Calls have no place.
    """
    equations: list[Equation] = []
    awaited: list[Variable] = []
    made: list[list[Variable]] = []
    known = repeated or {}

    def run(
        body: Program, names: dict[int, Variable], used: Used = None, prefix: str = ""
    ) -> list[Variable]:
        def find(variables: Sequence[Variable]) -> list[Variable]:
            return [names.get(id(variable), variable) for variable in variables]

        is_used = find_used(body, used)
        for equation in find_needed(body, used):
            operands, inner = find(equation.invars), find_inlined(equation)
            if inner is None:
                results: list[Variable] = list(map(Instance, equation.outvars))
                first = known.get(len(made))
                if first is not None:
                    results = made[first]
                elif len(made) not in known:
                    own = equation.primitive, equation.params, equation.effects
                    equations.append(
                        Operation(*own, operands, results, equation.source_info, prefix)
                    )
                made.append(results)
            else:
                if is_barrier(equation):
                    awaited.extend(operands)
                given = dict(zip(map(id, inner.invars), operands, strict=True))
                inside = find_used_inside(equation, inner, list(map(is_used, equation.outvars)))
                results = run(inner, given, inside, write_source(equation, prefix))
            names.update(zip(map(id, equation.outvars), results, strict=True))
        return find(body.outvars)

    results = run(program, {}, used)
    return Inlined(equations, [*program.invars, *program.constvars], results, awaited)


def find_inlined(equation: Equation) -> Program | None:
    """Return the program of a call; None for other equations."""
    bodies = list_bodies(equation)
    if equation.primitive.name in _REPEATED or len(bodies) != 1:
        return None
    (body,) = bodies
    is_call = len(body.invars) == len(equation.invars)
    return body if is_call and len(body.outvars) == len(equation.outvars) else None
