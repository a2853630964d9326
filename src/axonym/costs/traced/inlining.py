"""Internal. A program without calls: the equations of a called program replace the call, as in compilers.

`memory` reads it. So an array that a call returns can be fused with its readers, and can be freed within the next call.
It must not know layouts.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from .equations import Equation, Program, Variable, has_effect, is_literal, list_bodies
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
    """An equation between instances of arrays."""

    primitive: Any
    params: dict[str, Any]
    effects: Any
    invars: Sequence[Variable]
    outvars: Sequence[Variable]
    source_info: Any


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


def inline(program: Program) -> Inlined:
    """Return a program without calls, and without equations whose results are not used."""
    equations: list[Equation] = []
    awaited: list[Variable] = []

    def run(body: Program, names: dict[int, Variable]) -> list[Variable]:
        def find(variables: Sequence[Variable]) -> list[Variable]:
            return [names.get(id(variable), variable) for variable in variables]

        for equation in body.eqns:
            operands, inner = find(equation.invars), _find_inlined(equation)
            if inner is None:
                results: list[Variable] = list(map(Instance, equation.outvars))
                own = equation.primitive, equation.params, equation.effects
                equations.append(Operation(*own, operands, results, equation.source_info))
            else:
                if is_barrier(equation):
                    awaited.extend(operands)
                results = run(inner, dict(zip(map(id, inner.invars), operands, strict=True)))
            names.update(zip(map(id, equation.outvars), results, strict=True))
        return find(body.outvars)

    results = run(program, {})
    return Inlined(
        _drop_unused(equations, results), [*program.invars, *program.constvars], results, awaited
    )


def _find_inlined(equation: Equation) -> Program | None:
    """Return the program of a call; None for other equations."""
    bodies = list_bodies(equation)
    if equation.primitive.name in _REPEATED or len(bodies) != 1:
        return None
    (body,) = bodies
    is_call = len(body.invars) == len(equation.invars)
    return body if is_call and len(body.outvars) == len(equation.outvars) else None


def _drop_unused(equations: Sequence[Equation], results: Sequence[Variable]) -> list[Equation]:
    live = set(map(id, results))
    found: list[Equation] = []
    # Readers come after what they read, so one pass from the end finds all.
    for equation in reversed(equations):
        if has_effect(equation) or live.intersection(map(id, equation.outvars)):
            found.append(equation)
            live.update(id(variable) for variable in equation.invars if not is_literal(variable))
    return found[::-1]
