"""Internal. Loop-invariant operations: compilers run them once, before the loop.

`Walk` uses it to find how often an equation runs. The module must not know layouts or costs.
"""

import math
from collections.abc import Sequence

from .equations import Equation, Program, Variable, count_unstacked, is_literal
from .numbering import RECOMPUTED

_BRANCHING = ("cond", "while")


class Loops:
    """The number of loops that each array depends on, the outermost loop first.

    An array that depends on the two outermost of three loops is the same in all iterations of the third one.
    """

    def __init__(self) -> None:
        self._depths: dict[int, int] = {}
        self._lengths: list[int] = []

    def note(self, equation: Equation) -> None:
        """Note that the results of an equation depend on the same loops as its operands."""
        self._set_depths(equation.outvars, self._find_deepest(equation.invars))

    def count_runs(self, equation: Equation, count: int) -> int:
        """Return how often an equation runs, if a compiler moves it out of loops that it does not depend on.

        Args:
            equation: the equation.
            count: how often it runs at its place in the program.
        """
        depth = self._find_deepest(equation.invars)
        return count // math.prod(self._lengths[depth:])

    def enter(self, equation: Equation, body: Program) -> int:
        """Note the loops that the arguments of a body depend on; return the number of loops around its equation."""
        outer = len(self._lengths)
        outside, inside = equation.invars, body.invars
        name = equation.primitive.name
        if name == "scan" and equation.params["length"] != 1:
            self._lengths.append(equation.params["length"])
            # Constants are the same in all iterations; carried arrays and slices are not.
            whole = count_unstacked(outside, inside) - _count_carried(equation, body)
            self._copy_depths(outside[:whole], inside[:whole])
            self._set_depths(inside[whole:], outer + 1)
        elif name in _BRANCHING:
            # Compilers move nothing out of a branch, and a loop of unknown length counts as one iteration.
            self._lengths.append(1)
            self._set_depths(inside, outer + 1)
        elif len(outside) != len(inside) or is_barrier(equation):
            # A checkpoint waits for all of its operands, so it depends on everything that they depend on.
            self._set_depths(inside, self._find_deepest(outside))
        else:
            self._copy_depths(outside, inside)
        return outer

    def leave(self, equation: Equation, body: Program, outer: int) -> None:
        """Note the loops that the results of an equation depend on, after a walk through its body."""
        is_loop = len(self._lengths) > outer
        del self._lengths[outer:]
        if is_loop or len(equation.outvars) != len(body.outvars):
            self.note(equation)
        else:
            self._copy_depths(body.outvars, equation.outvars)

    def _find_deepest(self, variables: Sequence[Variable]) -> int:
        return max(map(self._find_depth, variables), default=0)

    def _find_depth(self, variable: Variable) -> int:
        return 0 if is_literal(variable) else self._depths.get(id(variable), 0)

    def _copy_depths(self, given: Sequence[Variable], taken: Sequence[Variable]) -> None:
        for one, other in zip(given, taken, strict=True):
            self._depths[id(other)] = self._find_depth(one)

    def _set_depths(self, variables: Sequence[Variable], depth: int) -> None:
        for variable in variables:
            self._depths[id(variable)] = depth


def _count_carried(equation: Equation, body: Program) -> int:
    """Return the number of arrays that a scan carries from one iteration to the next."""
    return count_unstacked(equation.outvars, body.outvars)


def is_barrier(equation: Equation) -> bool:
    """Return whether an equation recomputes for the backward pass, and waits for all of its operands."""
    params = equation.params
    is_recomputed = equation.primitive.name in RECOMPUTED and params.get("differentiated", False)
    return bool(is_recomputed and params.get("prevent_cse", True))
