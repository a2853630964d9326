"""Internal. The equations that a compiler fuses: chains of elementwise operations, with the sums at their ends.

`Walk` uses it to count memory accesses, and `memory` to count memory. It must not know layouts.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import TypeAlias

from .equations import (
    Equation,
    Program,
    Used,
    Variable,
    find_readers,
    is_copy,
    is_kernel_call,
    is_literal,
    is_wider,
    iterate_arrays,
    list_bodies,
    remember,
)
from .inlining import inline

# These read and write arrays in memory; other equations are computed where their results are used.
_KERNELS = (
    "all_gather",
    "all_to_all",
    "argmax",
    "argmin",
    "conv_general_dilated",
    "cumsum",
    "dot_general",
    "dynamic_update_slice",
    "gather",
    "pallas_call",
    "ppermute",
    "psum",
    "ragged_dot",
    "ragged_dot_general",
    "reduce_scatter",
    "sort",
    "top_k",
)
# A compiler converts their operands on the way from memory.
_PRODUCTS = ("conv_general_dilated", "dot_general", "ragged_dot", "ragged_dot_general")
_SUMS = ("reduce_", "argm", "cum")
_REDUCTIONS = (
    "argmax",
    "argmin",
    "reduce_and",
    "reduce_max",
    "reduce_min",
    "reduce_or",
    "reduce_sum",
)
# They compute an operand while they read it, if no other equation needs it, and sums of their result beside it.
_FUSING = ("conv_general_dilated", "dot_general")


def is_barrier(equation: Equation) -> bool:
    """Return whether an equation passes arrays on, and computes nothing."""
    return bool(equation.primitive.name == "optimization_barrier")


def has_programs(equation: Equation) -> bool:
    """Return whether an equation runs programs, such as a loop: calls are inlined before."""
    return bool(list_bodies(equation))


def is_kernel(equation: Equation) -> bool:
    """Return whether an equation is computed by itself."""
    name = str(equation.primitive.name)
    is_named = name in _KERNELS or name.startswith(("scatter", *_SUMS))
    return is_named or is_kernel_call(equation) or is_copy(equation)


def _is_alone(equation: Equation) -> bool:
    return is_kernel(equation) or has_programs(equation)


def _skips_elements(equation: Equation) -> bool:
    """Return whether an equation reads or writes every other element, as an associative scan and its gradient do.

    At each level of the scan, two such equations read the same array. A fused chain through all levels would compute
    the first array again for every path through them, so a compiler keeps the array of each level.
    """
    name, params = equation.primitive.name, equation.params
    if name == "slice":
        return any(step > 1 for step in params["strides"] or ())
    return name == "pad" and any(interior for *_, interior in params["padding_config"])


# An equation whose results are in memory, with the arrays that it reads.
Kernel: TypeAlias = tuple[Equation, list[Variable]]
# An equation, with the arrays in memory that it reads and writes.
Step: TypeAlias = tuple[Equation, list[Variable], list[Variable]]


class Fusion:
    """The arrays of a program that are in memory, if chains of elementwise operations are computed together.

    These are in memory: arguments and results of the program; results of kernels; and operands of barriers, of kernels
    other than sums, and of equations that read or write every other element. A product reads an operand in the dtype
    that it has in memory. A sum is computed at the end of a chain, so its operand is never written to memory.

    Args:
        equations: the equations of the program.
        results: the results of the program.
        is_lean: whether products compute operands that nothing else reads. The compiler for TPU does so for scores of
            attention; one for GPU computes the softmax in one kernel, and moves as many bytes.
    """

    def __init__(
        self,
        equations: Sequence[Equation],
        results: Sequence[Variable],
        *,
        is_lean: bool = False,
    ) -> None:
        self._equations = equations
        self._stored: set[int] = set(map(id, results))
        self._made: dict[int, Equation] = {}
        self._places: dict[int, int] = {}
        readers = find_readers(equations)
        for i, equation in enumerate(equations):
            is_alone = _is_alone(equation)
            if is_alone:
                self._stored.update(map(id, equation.outvars))
            # A sum reads a chain at its end, while other kernels read arrays from memory.
            is_sum = equation.primitive.name.startswith(_SUMS)
            if (is_alone and not is_sum) or _skips_elements(equation) or is_barrier(equation):
                read = set(map(id, equation.invars))
                if is_lean and equation.primitive.name in _FUSING:
                    read = {key for key in read if len(readers.get(key, ())) > 1}
                self._stored |= read
            for variable in equation.outvars:
                self._made[id(variable)] = equation
                self._places[id(variable)] = i
        self._stored -= self._find_converted(set(map(id, results)), readers)
        self._sources: dict[int, dict[int, Variable]] = {}
        self._read: dict[int, dict[int, Variable]] = {}

    def _find_converted(
        self, results: Set[int], readers: Mapping[int, Sequence[Equation]]
    ) -> set[int]:
        """Return the arrays that products read as they were before a conversion, such as quantised weights."""
        found: set[int] = set()
        for equation in self._equations:
            if equation.primitive.name != "convert_element_type":
                continue
            (source,), (result,) = equation.invars, equation.outvars
            users = readers.get(id(result), ())
            is_multiplied = all(user.primitive.name in _PRODUCTS for user in users)
            # Several products of narrower numbers share one conversion.
            is_alone = len(users) == 1 or is_wider(result, source)
            is_read = is_multiplied and is_alone and id(result) not in results
            if is_read and not is_literal(source) and self.is_stored(source):
                found.add(id(result))
        return found

    def is_stored(self, variable: Variable) -> bool:
        """Return whether an array is in memory."""
        # An array that no equation here makes is an argument.
        return id(variable) in self._stored or id(variable) not in self._made

    def find_operands(self, equation: Equation) -> list[Variable]:
        """Return the arrays in memory that an equation reads, directly or through the chain before it."""
        found: dict[int, Variable] = {}
        for variable in iterate_arrays(equation.invars):
            found.update(self._find_sources(variable, self._sources))
        return list(found.values())

    def _find_read(self, equation: Equation) -> list[Variable]:
        """Return the arrays whose elements an equation reads: for a slice of an array in memory, this is the slice."""
        found: dict[int, Variable] = {}
        for variable in iterate_arrays(equation.invars):
            found.update(self._find_sources(variable, self._read))
        return list(found.values())

    def _is_sliced(self, equation: Equation) -> bool:
        """Return whether an equation only reshapes a slice: then its readers read the slice in place."""
        if equation.primitive.name not in ("squeeze", "reshape"):
            return False
        maker = self._made.get(id(equation.invars[0]))
        return maker is not None and maker.primitive.name == "dynamic_slice"

    def _find_sources(
        self, variable: Variable, found: dict[int, dict[int, Variable]]
    ) -> dict[int, Variable]:
        if self.is_stored(variable):
            return {id(variable): variable}
        known = found.get(id(variable))
        if known is None:
            known = {}
            maker = self._made[id(variable)]
            if found is self._read and maker.primitive.name == "dynamic_slice":
                known[id(variable)] = variable
            else:
                # The results of earlier equations are known already, so this does not recurse deeply.
                for operand in iterate_arrays(maker.invars):
                    known.update(self._find_sources(operand, found))
            found[id(variable)] = known
        return known

    def iterate_kernels(self) -> Iterator[Kernel]:
        """Yield the equations whose results are in memory, with the arrays that they read, in order."""
        for equation in self._equations:
            # Asked for each equation in order, so that `_find_sources` finds earlier ones known.
            operands = self._find_read(equation)
            if has_programs(equation) or is_barrier(equation) or self._is_sliced(equation):
                continue
            if any(map(self.is_stored, equation.outvars)):
                yield equation, self._find_read_alone(equation, operands)

    def _find_read_alone(self, equation: Equation, operands: list[Variable]) -> list[Variable]:
        """Return what a sum reads again: it is computed while its last operand is made, if both have the same elements.

        So the largest score is found while scores are computed, and the sum of a norm while a layer adds to its input.
        """
        if not operands or not equation.primitive.name.startswith(_REDUCTIONS):
            return operands
        last = max(operands, key=lambda one: self._places.get(id(one), -1))
        maker = self._made.get(id(last))
        if maker is None or last.aval.shape != equation.invars[0].aval.shape:
            return operands
        is_chain_end = not (_is_alone(maker) or is_barrier(maker))
        is_fused = is_chain_end or maker.primitive.name in _FUSING
        return [one for one in operands if one is not last or not is_fused]

    def iterate_all(self) -> Iterator[Step]:
        """Yield all equations, with the arrays in memory that they read and write."""
        for equation in self._equations:
            made = [variable for variable in equation.outvars if self.is_stored(variable)]
            yield equation, self.find_operands(equation), made


@remember
def list_kernels(
    program: Program, used: Used, repeated: tuple[tuple[int, int | None], ...]
) -> list[Kernel]:
    """List the equations of a program and of its calls that read or write memory, with the arrays that they read.

    Args:
        program: the program.
        used: which of its results are used.
        repeated: as for `inline`.
    """
    inlined = inline(program, used, dict(repeated))
    results = [one for i, one in enumerate(inlined.results) if used is None or used[i]]
    fusion = Fusion(inlined.equations, [*results, *inlined.awaited], is_lean=True)
    return list(fusion.iterate_kernels())
