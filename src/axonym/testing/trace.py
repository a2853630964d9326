"""Internal. A program as a list of operations with their layers, which can run with some values replaced in the middle.

JAX's trace is flattened: calls, checkpoints and loops of known length are replaced by their operations, so each
operation runs once. A branch, a loop of unknown length or a `shard_map` stays one operation.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence, Set
from typing import Any, NamedTuple

import jax

from .equations import Site, Visitor
from .program import Arrays, Program


class Operation(NamedTuple):
    """One operation of a flat program.

    Attributes:
        run: computes the results from the operands.
        operands: the numbers of values that it reads.
        results: the numbers of values that it makes.
        layer: the path of its layer.
        name: the name of the primitive.
        line: the line of the user's program, such as `model.py:12`; empty if unknown.
        turns: the iteration of each loop that it runs in, the outermost first.
    """

    run: Callable[..., Sequence[Any]]
    operands: tuple[int, ...]
    results: tuple[int, ...]
    layer: tuple[str, ...]
    name: str
    line: str
    turns: tuple[int, ...]

    @property
    def place(self) -> tuple[str, str, str]:
        """The layer, the operation with the iterations of its loops, and the line."""
        turn = "".join(f" (turn {turn} of its loop)" for turn in self.turns)
        return ".".join(self.layer), f"{self.name}{turn}", self.line


class Trace(Visitor):
    """The flat list of the operations of a program; values are numbers.

    Attributes:
        operations: in their order.
        inputs: the numbers of the values of the inputs.
        outputs: those of the results.
    """

    # The trace of a longer loop would be too long.
    most_turns = 128

    def __init__(self, run: Callable[..., Any], arrays: Arrays, program: Program) -> None:
        super().__init__(run, arrays, program)
        self._count = itertools.count()
        self._constants: dict[int, Any] = {}
        self.operations: list[Operation] = []
        self.inputs = tuple(next(self._count) for _ in self.program.jaxpr.invars)
        self.outputs = self.inline(self.program, self.inputs, Site())

    def run(self, arrays: Arrays) -> dict[int, Any]:
        """Run all operations, and return all values."""
        values = {**self._constants, **dict(zip(self.inputs, jax.tree.leaves(arrays), strict=True))}
        return self.resume(values, self.operations)

    def resume(
        self, values: dict[int, Any], operations: Iterable[Operation], keep: Set[int] = frozenset()
    ) -> dict[int, Any]:
        """Run some operations on given values, without changing the values in `keep`."""
        found = dict(values)
        for operation in operations:
            results = operation.run(*(found[i] for i in operation.operands))
            pairs = zip(operation.results, results, strict=True)
            found |= {i: result for i, result in pairs if i not in keep}
        return found

    def apply(
        self,
        run: Callable[..., Sequence[Any]],
        operands: Sequence[int],
        count: int,
        equation: Any,
        site: Site,
    ) -> tuple[int, ...]:
        """Add an operation."""
        results = tuple(next(self._count) for _ in range(count))
        layer, line = self.find_layer(equation, site), site.enter(equation).line
        name = equation.primitive.name
        self.operations.append(
            Operation(run, tuple(operands), results, layer, name, line, site.turns)
        )
        return results

    def keep(self, array: Any) -> int:
        """Give a constant a number."""
        number = next(self._count)
        self._constants[number] = array
        return number
