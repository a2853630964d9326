"""What a generator of expressions can ask for: variables that are there, axes of them, masks, numbers."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from tests.fuzz.table import Table

__all__ = ["Draw", "UnsuitableError"]

T = TypeVar("T")
_NEW = "hijkpqrst"


class UnsuitableError(Exception):
    """The variables that are there do not suit an operation."""


class Draw:
    """Random choices among the variables of a program; axes in `kept` are never touched, names in `taken` never new."""

    def __init__(
        self,
        rng: np.random.Generator,
        values: dict[str, Table],
        kept: frozenset[str] = frozenset(),
        taken: frozenset[str] = frozenset(),
    ) -> None:
        self.rng, self.values, self.kept, self.taken = rng, values, kept, taken

    def one(self, choices: Sequence[T]) -> T:
        if not len(choices):
            raise UnsuitableError
        return choices[int(self.rng.integers(len(choices)))]

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def between(self, low: int, high: int) -> int:
        """Return an integer from `low` to `high`, both included."""
        return int(self.rng.integers(low, high + 1))

    def some(self, choices: Sequence[T], least: int = 1, most: int | None = None) -> list[T]:
        """Return some of the choices in random order."""
        top = len(choices) if most is None else min(most, len(choices))
        if top < least:
            raise UnsuitableError
        count = self.between(least, top)
        return [choices[int(i)] for i in self.rng.permutation(len(choices))[:count]]

    def variable(self, suits: Callable[[Table], Any] = lambda _: True) -> str:
        """Return a variable, rather one of the last."""
        found = [name for name, value in self.values.items() if suits(value)]
        if found and self.chance(0.5):
            return found[-1]
        return self.one(found)

    def number(self, suits: Callable[[Table], Any] = lambda _: True) -> str:
        """Return a variable of real numbers."""
        return self.variable(lambda x: x.kind in ("int", "float") and suits(x))

    def real(self, suits: Callable[[Table], Any] = lambda _: True) -> str:
        """Return a variable of floats."""
        return self.variable(lambda x: x.kind == "float" and suits(x))

    def free(self, x: str, suits: Callable[[int], Any] = lambda _: True) -> list[str]:
        """Return the axes of a variable that may be touched."""
        return [name for name, size in self.values[x].shape.items() if name not in self.kept and suits(size)]

    def axis(self, x: str, suits: Callable[[int], Any] = lambda _: True) -> str:
        return self.one(self.free(x, suits))

    def axes(self, x: str, least: int = 1, suits: Callable[[int], Any] = lambda _: True) -> str:
        """Return an axis argument as text: one name, several, or None for all."""
        free = self.free(x, suits)
        if self.chance(0.15) and len(free) == len(self.values[x].names) and len(free) >= least:
            return "None"
        names = self.some(free, max(least, 1))
        return repr(names[0]) if len(names) == 1 and self.chance(0.8) else repr(tuple(names))

    def size(self, x: str, axis: str) -> int:
        return self.values[x].shape[axis]

    def fresh(self, *taken: str) -> str:
        """Return a name that no variable has."""
        used = {name for value in self.values.values() for name in value.names} | self.taken | set(taken)
        free = [name for name in _NEW if name not in used]
        return self.one(free[:1])

    def beside(self, x: str, suits: Callable[[Table], Any] = lambda _: True) -> str:
        """Return a variable whose axes are among those of `x`, with the same sizes."""
        shape = self.values[x].shape

        def fits(other: Table) -> bool:
            return all(shape.get(name) == size for name, size in other.shape.items())

        return self.variable(lambda other: fits(other) and suits(other))

    def mask(self, x: str) -> str:
        """Return the text of booleans whose axes are among those of `x`."""
        if self.chance(0.3):
            return self.beside(x, lambda other: other.kind == "bool")
        other = self.beside(x, lambda other: other.kind in ("int", "float"))
        if self.chance(0.3):
            # Axes on the left and on the right of the comparison may differ.
            return f"({other} < {x})" if self.values[x].kind != "complex" else f"({other} < 0.5)"
        return f"({other} {self.one(['>', '<=', '!='])} {self.one(['0', '1', '0.5'])})"
