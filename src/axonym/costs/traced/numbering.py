"""Internal. Common subexpressions: a compiler computes equal equations once.

`Walk` uses it for each equation. It numbers arrays as compilers number values; it must not know layouts.
"""

import itertools
from collections.abc import Sequence

import numpy as np

from .equations import Equation, Variable, count_unstacked, has_effect, is_literal

_fresh = itertools.count()
# JAX has renamed checkpoints: these are their names so far.
RECOMPUTED = ("remat2", "remat", "checkpoint")
_CALLS = ("jit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call")


class Places:
    """The places of the equations of a program without calls, and those that repeat others."""

    def __init__(self) -> None:
        self._count = 0
        self._firsts: dict[int, int] = {}
        self.repeated: list[tuple[int, int | None]] = []

    def note(self, number: int, *, is_repeated: bool) -> None:
        """Note the next equation.

        Args:
            number: the number of its first result.
            is_repeated: whether it repeats an earlier one.
        """
        if is_repeated:
            self.repeated.append((self._count, self._firsts.get(number)))
        else:
            self._firsts[number] = self._count
        self._count += 1


class Numbering:
    """Numbers of arrays: equal arrays have equal numbers, as in the value numbering of a compiler.

    A loop has a separate scope, since a compiler merges nothing across its border. The body of a `shard_map` also has a
    scope, shared with other `shard_map`s over the same mesh axes.

    Args:
        merges: whether the compiler merges a recomputed value with the original one, and looks through barriers, as the
            compiler for CPU does, although a checkpoint forbids this.
    """

    def __init__(self, *, merges: bool = False) -> None:
        self._merges = merges
        self._numbers: dict[int, int] = {}
        self._known: dict[object, list[int]] = {}
        self.scope = 0

    def find(self, variable: Variable) -> int:
        """Return the number of an array, which is new if it has none."""
        if is_literal(variable):
            # The bytes also tell apart what is not equal to itself.
            return self._make(("literal", np.asarray(variable.val).tobytes(), variable.aval), 1)[0]
        key = id(variable)
        if key not in self._numbers:
            self._numbers[key] = next(_fresh)
        return self._numbers[key]

    def assign(self, variable: Variable, number: int | None = None) -> None:
        """Give an array a number, by default a new one."""
        if number is None:
            number = next(_fresh)
        self._numbers[id(variable)] = number

    def is_repeated(self, equation: Equation) -> bool:
        """Return whether an earlier equation computed the same, and give numbers to the results."""
        if self._merges and equation.primitive.name == "optimization_barrier":
            for variable, result in zip(equation.invars, equation.outvars, strict=True):
                self.assign(result, self.find(variable))
            return False
        # Equal equations have equal operands and parameters, in the same scope.
        try:
            operands = tuple(map(self.find, equation.invars))
            key = (
                self.scope,
                equation.primitive.name,
                frozenset(equation.params.items()),
                operands,
            )
            before = len(self._known)
            numbers = self._make(key, len(equation.outvars))
        except TypeError:
            # A parameter without a hash cannot be compared, so the results are new.
            for variable in equation.outvars:
                self.assign(variable)
            return False
        for variable, number in zip(equation.outvars, numbers, strict=True):
            self.assign(variable, number)
        return len(self._known) == before and not has_effect(equation)

    def is_new(self, variable: Variable, what: object) -> bool:
        """Return whether no equal array was requested before for the same purpose."""
        before = len(self._known)
        self._make(("asked", self.find(variable), what), 1)
        return len(self._known) > before

    def _make(self, key: object, count: int) -> list[int]:
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = [next(_fresh) for _ in range(count)]
        return known

    def find_slice(self, variable: Variable) -> int:
        """Return the number of the only element of an array."""
        return self._make(("sliced", self.find(variable)), 1)[0]

    def stack(self, stacked: Variable, only: Variable) -> None:
        """Note that an array has another array as its only element."""
        number = next(_fresh)
        self.assign(stacked, number)
        self._known["sliced", number] = [self.find(only)]

    def enter(self, equation: Equation, inner: Sequence[Variable]) -> int:
        """Give numbers to the arguments of a program that an equation runs; return the scope around it."""
        outer = self.scope
        outside, name = list(equation.invars), equation.primitive.name
        if name == "shard_map":
            specs = equation.params["in_specs"]
            for variable, argument, spec in zip(outside, inner, specs, strict=True):
                self.assign(argument, self._find_part(self.find(variable), spec))
            self.scope = self._find_scope(equation)
            return outer
        if self._is_once(equation):
            whole = len(outside)
            if name == "scan":
                whole = count_unstacked(outside, inner)
            # A scan of one iteration slices each array into its only element.
            for i, (variable, argument) in enumerate(zip(outside, inner, strict=True)):
                if i < whole:
                    self.assign(argument, self.find(variable))
                else:
                    self.assign(argument, self.find_slice(variable))
            return outer
        # The body runs several times, so its arguments are new in each run.
        self.scope = next(_fresh)
        for argument in inner:
            self.assign(argument)
        return outer

    def leave(self, equation: Equation, inner: Sequence[Variable], outer: int) -> None:
        """Copy the numbers of a program's results to the results of its equation."""
        self.scope = outer
        if equation.primitive.name == "shard_map":
            specs = equation.params["out_specs"]
            within = self._find_scope(equation)
            for variable, result, spec in zip(equation.outvars, inner, specs, strict=True):
                number = self.find(result)
                whole = self._make(("whole", within, number, str(spec)), 1)[0]
                self.assign(variable, whole)
                # An array that is put together and then taken apart again is the same.
                self._known["part", whole, str(spec)] = [number]
            return
        carried = len(inner)
        if equation.primitive.name == "scan":
            carried = count_unstacked(equation.outvars, inner)
        for i, (variable, result) in enumerate(zip(equation.outvars, inner, strict=False)):
            if not self._is_once(equation):
                self.assign(variable)
            elif i < carried:
                self.assign(variable, self.find(result))
            else:
                self.stack(variable, result)

    def _find_part(self, number: int, spec: object) -> int:
        """Return the number of a device's shard of an array in a `shard_map`."""
        return self._make(("part", number, str(spec)), 1)[0]

    def _find_scope(self, equation: Equation) -> int:
        """Return the scope inside of a `shard_map`, shared by all in this scope over the same mesh axes."""
        params = equation.params
        divided = tuple(sorted(map(str, params["newly_manual_axes"])))
        return self._make(("within", self.scope, str(params["mesh"]), divided), 1)[0]

    def _is_once(self, equation: Equation) -> bool:
        """Return whether an equation runs its program only once, as if the program were inlined."""
        name, params = equation.primitive.name, equation.params
        if name == "scan":
            return bool(params["length"] == 1)
        if name in RECOMPUTED:
            return self._merges or not params.get("prevent_cse", True)
        return name in _CALLS
