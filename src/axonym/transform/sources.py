"""Internal. Which arguments each result of a program depends on."""

from collections.abc import Sequence
from typing import Any, TypeAlias

Sources: TypeAlias = frozenset[int]
"""Numbers of what a value depends on."""


def find_sources(jaxpr: Any, given: Sequence[Sources]) -> list[Sources]:
    """Return the sources of each result of a jaxpr, given the sources of each argument.

    Calls and branches are looked into. Each result of a loop, or of any other operation, depends on all its operands.
    """
    none: Sources = frozenset()
    # By identity: literals, which depend on nothing, have no hash.
    known: dict[int, Sources] = dict(zip(map(id, jaxpr.invars), given, strict=True))

    def read(variables: Sequence[Any]) -> list[Sources]:
        return [known.get(id(variable), none) for variable in variables]

    for equation in jaxpr.eqns:
        own, inner = read(equation.invars), equation.params
        name = equation.primitive.name
        if name == "cond":
            choice, *operands = own
            ways = [find_sources(branch.jaxpr, operands) for branch in inner["branches"]]
            made = [none.union(choice, *each) for each in zip(*ways, strict=True)]
        elif name in ("pjit", "jit"):
            made = find_sources(inner["jaxpr"].jaxpr, own)
        else:
            made = [none.union(*own)] * len(equation.outvars)
        known.update(zip(map(id, equation.outvars), made, strict=True))
    return read(jaxpr.outvars)
