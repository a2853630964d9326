"""Internal. Arrays that share memory: views, and arrays that are written over an operand which nothing reads later.

`memory` calls it for a program without calls.
"""

from collections.abc import Sequence

from .equations import (
    Equation,
    Program,
    Variable,
    count_unstacked,
    find_layout,
    is_auto,
    is_literal,
    iterate_arrays,
    list_bodies,
    remember,
)
from .fusions import Fusion, Step, has_programs, is_barrier, is_kernel
from .inlining import Inlined, inline

# An argument, and the result that takes its memory.
Pair = tuple[Variable, Variable]

# These have the bytes of their operand: compilers choose in which order dimensions are in memory, by their readers.
_VIEWS = ("expand_dims", "name", "pvary", "reshape", "squeeze", "transpose")
# Products read these in the memory of their operand.
_SLICES = ("dynamic_slice", "slice")
# These compute an element of other elements than the one at its place.
_MOVING = ("broadcast_in_dim", "concatenate", "dynamic_slice", "pad", "rev", "slice", "split")


@remember
def order_equations(program: Program) -> tuple[Inlined, list[Step]]:
    """Return a program without calls, and its equations with the arrays in memory that they read and write."""
    inlined = inline(program)
    fusion = Fusion(inlined.equations, [*inlined.results, *inlined.awaited])
    return inlined, list(fusion.iterate_all())


class Sharing:
    """The arrays of a program that share memory.

    These have the memory of an operand: views; slices of arguments that only products read; and arrays that update a
    part of it or that a loop carries, if the program may write over it and all other readers of the operand can run
    before. A compiler lets them, wherever they are in the program, unless they need the new array.

    Args:
        program: the program.
        replaced: the arguments that the program may write over, each with the result that takes its memory.
    """

    def __init__(self, program: Program, replaced: Sequence[Pair]) -> None:
        inlined, order = order_equations(program)
        self._roots: dict[int, Variable] = {}
        self._names: dict[int, list[Variable]] = {}
        self._order = order
        # The places of the readers of each array, by the id of the array, and later of all arrays in its memory.
        self._reads: dict[int, list[int]] = {}
        for i, (_, operands, _) in enumerate(order):
            for variable in operands:
                self._reads.setdefault(id(variable), []).append(i)
        for variable in inlined.results:
            self._reads.setdefault(id(variable), []).append(len(order))
        self._made: dict[int, int] = {}
        self._alike: dict[int, set[int]] = {}
        given = set(map(id, inlined.given))
        fixed = given - {id(one) for one, _ in replaced}
        alone = _find_alone(order, inlined.results)
        # For arrays that are not in memory: their sources, and whether each element comes from one at its place.
        chains: dict[int, dict[int, bool]] = {}
        for i, (equation, _, made) in enumerate(order):
            read = self._find_read(equation, chains)
            chains.update((id(variable), read) for variable in equation.outvars)
            for variable in made:
                del chains[id(variable)]
                self._made[id(variable)] = i
                self._alike[id(variable)] = {key for key, is_alike in read.items() if is_alike}
            for source, variable in list_written(equation)[0]:
                key = self.find_key(source)
                if key not in fixed and not self._is_read_after(key, i):
                    self._join(source, variable)
            for source, variable in _list_views(equation):
                # An array that is not in memory is computed again for each reader.
                is_stored = id(source) not in chains or id(source) in self._roots
                if is_stored or equation.primitive.name in _VIEWS:
                    self._join(source, variable)
            if equation.primitive.name in _SLICES:
                source, variable = equation.invars[0], equation.outvars[0]
                if id(variable) not in alone and self.find_key(source) in given:
                    self._join(source, variable)

    def _join(self, source: Variable, variable: Variable) -> None:
        root = self._roots[id(variable)] = self._roots.get(id(source), source)
        self._reads.setdefault(id(root), []).extend(self._reads.get(id(variable), ()))
        self._names.setdefault(id(root), [root]).append(variable)

    def _find_read(self, equation: Equation, chains: dict[int, dict[int, bool]]) -> dict[int, bool]:
        is_alone = is_kernel(equation) or has_programs(equation) or is_barrier(equation)
        is_alike = not is_alone and equation.primitive.name not in _MOVING
        found: dict[int, bool] = {}
        for variable in iterate_arrays(equation.invars):
            own = chains.get(id(variable))
            if own is None:
                own = {self.find_key(variable): True}
            for key, alike in own.items():
                found[key] = found.get(key, True) and alike and is_alike
        return found

    def find_key(self, variable: Variable) -> int:
        """Return what identifies the memory of an array."""
        return id(self._roots.get(id(variable), variable))

    def list_names(self, variable: Variable) -> list[Variable]:
        """Return the arrays that have the memory of an array one after another, first of all the one that makes it."""
        return self._names.get(self.find_key(variable), [variable])

    def is_written_over(self, argument: Variable, result: Variable) -> bool:
        """Return whether a result can be written into the memory of an argument, after all other readers have run."""
        key, own = self.find_key(argument), self.find_key(result)
        at = self._made.get(own)
        if own == key or at is None:
            return True
        is_read = at in self._reads.get(key, ()) and key not in self._alike[own]
        return not is_read and not self._is_read_after(key, at)

    def _is_read_after(self, key: int, at: int) -> bool:
        """Return whether something reads an array that must run after an equation: it needs its results."""
        later = {i for i in self._reads.get(key, ()) if i > at}
        if len(self._order) in later:
            return True
        made = set(map(id, self._order[at][0].outvars))
        for i in range(at + 1, max(later, default=at) + 1):
            equation = self._order[i][0]
            if not made.isdisjoint(map(id, equation.invars)):
                if i in later:
                    return True
                made.update(map(id, equation.outvars))
        return False


def _list_views(equation: Equation) -> list[Pair]:
    """Return the operands of an equation that computes and moves nothing, each with its result."""
    name = equation.primitive.name
    pairs = zip(equation.invars, equation.outvars, strict=False)
    if name == "optimization_barrier":
        return [(one, other) for one, other in pairs if not is_literal(one)]
    if name in _VIEWS:
        return list(pairs)[:1]
    if name == "reshard":
        # From a type with a layout to one that leaves it to the compiler, or back, an array stays as it is. A template
        # changes types, but has no reshards between equal layouts, so the answer stays the same.
        return [
            one
            for one in pairs
            if len({*map(find_layout, one)}) == 1 or len({*map(is_auto, one)}) == 2
        ]
    return []


def list_written(equation: Equation) -> tuple[list[Pair], list[list[Pair]]]:
    """Return the operands that an equation may write over, each with its result; and those of each of its bodies."""
    name, params = equation.primitive.name, equation.params
    if name == "dynamic_update_slice" or name.startswith("scatter"):
        return [(equation.invars[0], equation.outvars[0])], []
    bodies = list_bodies(equation)
    # The operands that a body does not get come first.
    skipped = 0
    places: list[tuple[int, int]] = []
    if name == "cond":
        skipped = 1
        several = [_list_updated(body) for body in bodies]
        places = [one for one in several[0] if all(one in other for other in several)]
    elif name in ("scan", "while"):
        (body,) = bodies
        count = count_unstacked(equation.outvars, body.outvars)
        skipped = params.get("cond_nconsts", 0)
        # Constants come before the carried arguments, and slices after them.
        taken = equation.invars[skipped:]
        first = count_unstacked(taken, body.invars) - count
        places = [(first + i, i) for i in range(count)]
    outside = [(equation.invars[skipped + i], equation.outvars[j]) for i, j in places]
    inside = [[(body.invars[i], body.outvars[j]) for i, j in places] for body in bodies]
    return [(one, other) for one, other in outside if not is_literal(one)], inside


def _list_updated(body: Program) -> list[tuple[int, int]]:
    """Return the arguments of a branch that are the memory of results, by their places."""
    inlined, _ = order_equations(body)
    sharing = Sharing(body, [(variable, variable) for variable in body.invars])
    given = {sharing.find_key(variable): i for i, variable in enumerate(body.invars)}
    keys = map(sharing.find_key, inlined.results)
    return [(given[key], j) for j, key in enumerate(keys) if key in given]


def _find_alone(order: Sequence[Step], results: Sequence[Variable]) -> set[int]:
    """Return the arrays that must be in memory by themselves: results, and what others than products read, or views."""
    found = set(map(id, results))
    for equation, _, _ in reversed(order):
        name = equation.primitive.name
        is_alone = has_programs(equation) or is_barrier(equation) or is_kernel(equation)
        if is_alone and name != "dot_general":
            found.update(map(id, equation.invars))
        elif name in _VIEWS and id(equation.outvars[0]) in found:
            found.add(id(equation.invars[0]))
    return found
