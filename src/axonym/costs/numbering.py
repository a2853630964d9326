"""Which equations compute the same: a compiler computes it once."""

import itertools
from collections.abc import Sequence

from .equations import Equation, Variable, is_literal, unstacked

_fresh = itertools.count()
_RECOMPUTED = ("remat2", "remat", "checkpoint")
_CALLS = ("jit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call")


class Numbering:
    """Numbers of arrays, equal for those that are the same.

    A loop has a scope of its own: what is computed in it is not what is computed before.

    Args:
        merges: whether the compiler merges what a checkpoint computes again with what was computed before, though the
            checkpoint asks for no such thing, as the one for CPU does.
    """

    def __init__(self, *, merges: bool = False) -> None:
        self._merges = merges
        self._numbers: dict[int, int] = {}
        self._known: dict[object, list[int]] = {}
        self.scope = 0

    def of(self, variable: Variable) -> int:
        """Return the number of an array, a new one if it has none."""
        if is_literal(variable):
            return self._made(("literal", str(variable.val), str(variable.aval)), 1)[0]
        key = id(variable)
        if key not in self._numbers:
            self._numbers[key] = next(_fresh)
        return self._numbers[key]

    def let(self, variable: Variable, number: int | None = None) -> None:
        """Give an array a number, by default a new one."""
        if number is None:
            number = next(_fresh)
        self._numbers[id(variable)] = number

    def is_repeated(self, equation: Equation) -> bool:
        """Return whether an equation computes what another one did, and number its results."""
        try:
            operands = tuple(map(self.of, equation.invars))
            params = tuple(sorted(equation.params.items(), key=lambda item: str(item[0])))
            name = equation.primitive.name
            key = (self.scope, name, params, operands)
            before = len(self._known)
            numbers = self._made(key, len(equation.outvars))
        except TypeError:
            # A parameter has no hash.
            for variable in equation.outvars:
                self.let(variable)
            return False
        for variable, number in zip(equation.outvars, numbers, strict=True):
            self.let(variable, number)
        return len(self._known) == before and not equation.effects

    def _made(self, key: object, count: int) -> list[int]:
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = [next(_fresh) for _ in range(count)]
        return known

    def sliced(self, variable: Variable) -> int:
        """Return the number of the only element of an array."""
        return self._made(("sliced", self.of(variable)), 1)[0]

    def stack(self, stacked: Variable, only: Variable) -> None:
        """Say that an array has another one as its only element."""
        number = next(_fresh)
        self.let(stacked, number)
        self._known["sliced", number] = [self.of(only)]

    def enter(self, equation: Equation, inner: Sequence[Variable]) -> int:
        """Give numbers to the arguments of a program that an equation runs; return the scope around it."""
        outer = self.scope
        outside, name = list(equation.invars), equation.primitive.name
        if self._is_once(equation):
            whole = len(outside)
            if name == "scan":
                whole = unstacked(outside, inner)
            for i, (variable, argument) in enumerate(zip(outside, inner, strict=True)):
                if i < whole:
                    self.let(argument, self.of(variable))
                else:
                    self.let(argument, self.sliced(variable))
            return outer
        self.scope = next(_fresh)
        for argument in inner:
            self.let(argument)
        return outer

    def leave(self, equation: Equation, inner: Sequence[Variable], outer: int) -> None:
        """Give numbers to the results of an equation, by those of the program that it ran."""
        self.scope = outer
        carried = len(inner)
        if equation.primitive.name == "scan":
            carried = unstacked(equation.outvars, inner)
        for i, (variable, result) in enumerate(zip(equation.outvars, inner, strict=False)):
            if not self._is_once(equation):
                self.let(variable)
            elif i < carried:
                self.let(variable, self.of(result))
            else:
                self.stack(variable, result)

    def _is_once(self, equation: Equation) -> bool:
        """Return whether an equation runs its program once, among the equations around it."""
        name, params = equation.primitive.name, equation.params
        if name == "scan":
            return bool(params["length"] == 1)
        if name in _RECOMPUTED:
            return self._merges or not params.get("prevent_cse", True)
        return name in _CALLS
