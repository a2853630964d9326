"""Internal. What a traced function holds: at its peak, and from the forward to the backward pass.

The reader calls it after a `Walk`, which knows the layouts. It must not know collectives.
"""

from collections import Counter
from collections.abc import Callable, Sequence, Set
from typing import NamedTuple

from ..shared.places import Place
from ..shared.rows import Phase
from .equations import (
    Equation,
    Program,
    Variable,
    count_unstacked,
    find_needed,
    is_literal,
    list_bodies,
    write_source,
)
from .fusions import Fusion, has_programs
from .walk import Walk


class Residual(NamedTuple):
    """An array that the forward pass makes and the backward pass reads.

    Attributes:
        variable: the array.
        layer: where it is made.
        several: the number of such arrays: a loop stacks one of each iteration.
    """

    variable: Variable
    layer: str
    several: int


def find_peak(
    program: Program,
    count: Callable[[Variable], int],
    *,
    is_whole: bool = False,
    in_place: bool = False,
    owned: Sequence[Variable] = (),
) -> int:
    """Return the bytes of the arrays that a program makes, at the time when it holds most.

    Args:
        program: the program.
        count: returns the bytes of an array, in the memory that is asked for.
        is_whole: whether the caller counts the results.
        in_place: whether a loop makes each result where the stacked array has it, as a copy to the host does.
        owned: arguments that the caller does not read again, so the program may free them; the caller counts them.
    """
    equations = find_needed(program)
    fusion = Fusion(equations, program.outvars)
    order = list(fusion.iterate_all())
    # An array is held until its last reader; results are held until the end.
    last = {id(variable): i for i, (_, operands, _) in enumerate(order) for variable in operands}
    for variable in program.outvars:
        last[id(variable)] = len(order)
    free: set[int] = set()
    if is_whole:
        free = set(map(id, program.outvars))

    held = {id(variable): count(variable) for variable in owned}
    before = now = peak = sum(held.values())
    for i, (equation, _, made) in enumerate(order):
        for variable in made:
            if id(variable) not in free:
                held[id(variable)] = count(variable)
                now += held[id(variable)]
        # While a body runs, its arrays are held beside those around it.
        inside = 0
        if has_programs(equation):
            dying = {key for key in held if last.get(key, i) <= i} - set(map(id, made))
            inside = max(
                _find_inner_peak(equation, one, count, in_place, _find_owned(equation, one, dying))
                for one in list_bodies(equation)
            )
        peak = max(peak, now + inside)
        for key in [key for key in held if last.get(key, i) <= i]:
            now -= held.pop(key)
    return peak - before


def _find_owned(equation: Equation, body: Program, dying: Set[int]) -> list[Variable]:
    """Return the arguments of a body that it may free, since nobody reads these operands after it.

    Compilers inline calls, so they free arrays within them. A loop reads its operands in each iteration.
    """
    if equation.primitive.name in ("scan", "while"):
        return []
    # The first operand of a `cond` chooses the body.
    operands = equation.invars[len(equation.invars) - len(body.invars) :]
    if len(operands) != len(body.invars):
        return []
    times = Counter(map(id, operands))
    return [
        own
        for own, operand in zip(body.invars, operands, strict=True)
        if id(operand) in dying and times[id(operand)] == 1
    ]


def _find_inner_peak(
    equation: Equation,
    body: Program,
    count: Callable[[Variable], int],
    in_place: bool,
    owned: Sequence[Variable],
) -> int:
    """Return the bytes that a body needs beside its operands and the results of its equation."""
    needs = find_peak(body, count, in_place=in_place, owned=owned)
    if equation.primitive.name in ("scan", "while") and not in_place:
        # A loop writes each result into the stacked array, so both are held.
        return needs
    # The results of the body are those of the equation, and count there.
    made = set(map(id, find_needed_results(body)))
    own = sum(count(variable) for variable in body.outvars if id(variable) in made)
    return max(0, needs - own)


def find_needed_results(program: Program) -> list[Variable]:
    """Return the results that a program makes itself; others are arguments that it passes on."""
    given = set(map(id, (*program.invars, *program.constvars)))
    found = {
        id(variable): variable
        for variable in program.outvars
        if not is_literal(variable) and id(variable) not in given
    }
    return list(found.values())


def list_residuals(
    program: Program, place_of: Callable[[str], Place], source: str = ""
) -> list[Residual]:
    """List the arrays that the forward pass keeps for the backward pass.

    Args:
        program: the program.
        place_of: returns the place of an operation.
        source: the name of the equation whose program this is.
    """
    equations = find_needed(program)
    fusion = Fusion(equations, program.outvars)
    phases: dict[int, Phase] = {}
    makers: dict[int, Equation] = {}
    found: dict[int, Residual] = {}
    more: list[Residual] = []
    for equation, operands, made in fusion.iterate_all():
        own = write_source(equation, source)
        phase = place_of(own).phase
        for variable in made:
            phases[id(variable)] = phase
            makers[id(variable)] = equation
        if phase in ("backward", "recomputed"):
            for variable in operands:
                # Arguments have no phase: they are parameters and data, which count as such.
                if phases.get(id(variable)) == "forward":
                    layer, count = _find_origin(makers[id(variable)], variable, place_of, source)
                    found[id(variable)] = Residual(variable, layer, count)
        elif has_programs(equation) and equation.primitive.name != "scan":
            # The results of a forward loop are stacked, and their readers stand in this program.
            for body in list_bodies(equation):
                more += list_residuals(body, place_of, own)
    return [*found.values(), *more]


def _find_origin(
    maker: Equation, variable: Variable, place_of: Callable[[str], Place], source: str
) -> tuple[str, int]:
    """Return the layer that makes an array, and the number of such arrays that a loop stacks."""
    own = write_source(maker, source)
    if maker.primitive.name != "scan":
        return place_of(own).layer, 1
    at = list(map(id, maker.outvars)).index(id(variable))
    count = 1
    (body,) = list_bodies(maker)
    if at >= count_unstacked(maker.outvars, body.outvars):
        count = int(maker.params["length"])
    # The layer is that of the equation inside which makes it.
    inner = body.outvars[at]
    for equation in body.eqns:
        if id(inner) in set(map(id, equation.outvars)):
            return _find_origin(equation, inner, place_of, own)[0], count
    return place_of(own).layer, count


def count_donated(
    given: Sequence[Variable],
    donated: Sequence[bool],
    results: Sequence[Variable],
    walk: Walk,
    count: Callable[[Variable], int],
) -> int:
    """Return the bytes of results that take the place of donated arguments of the same shape, dtype and layout."""
    free: dict[object, int] = {}
    for variable, is_donated in zip(given, donated, strict=True):
        if is_donated:
            key = walk.find_value(variable)
            free[key] = free.get(key, 0) + 1
    total = 0
    for variable in results:
        key = walk.find_value(variable)
        if free.get(key):
            free[key] -= 1
            total += count(variable)
    return total
