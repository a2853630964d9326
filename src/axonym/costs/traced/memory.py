"""Internal. The memory of a traced function: at its peak, and from the forward to the backward pass.

The reader calls it after a `Walk`, which knows the layouts. It must not know collectives.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..shared.places import Place
from ..shared.rows import Phase
from .equations import (
    Equation,
    Program,
    Variable,
    count_unstacked,
    find_needed,
    list_bodies,
    write_source,
)
from .fusions import Fusion, has_programs
from .inlining import Inlined, inline
from .walk import Walk


class Residual(NamedTuple):
    """An array that the forward pass makes and the backward pass reads.

    Attributes:
        variable: the array.
        layer: where it is made.
        several: the number of such arrays: a loop stacks one from each iteration.
    """

    variable: Variable
    layer: str
    several: int


# These have the bytes of their operand: compilers choose in which order dimensions are in memory, by their readers.
_VIEWS = ("expand_dims", "name", "pvary", "reshape", "squeeze", "transpose")


def find_peak(
    program: Program,
    count: Callable[[Variable], int],
    *,
    is_whole: bool = False,
    in_place: bool = False,
) -> int:
    """Return the peak of the bytes that a program holds in arrays that it makes.

    Args:
        program: the program.
        count: returns the bytes of an array in the requested memory.
        is_whole: whether the caller counts the results.
        in_place: whether a loop writes each result directly into the stacked array, as a copy to the host does.
    """
    inlined = inline(program)
    fusion = Fusion(inlined.equations, [*inlined.results, *inlined.awaited])
    order = list(fusion.iterate_all())
    roots = _find_roots(inlined)

    def find_keys(variables: Sequence[Variable]) -> list[int]:
        return [id(roots.get(id(variable), variable)) for variable in variables]

    # An array is held until the last reader of its bytes; results are held until the end.
    last = {key: i for i, (_, operands, _) in enumerate(order) for key in find_keys(operands)}
    last.update(dict.fromkeys(find_keys(inlined.results), len(order)))
    # The caller counts these.
    free = set(find_keys(inlined.given))
    if is_whole:
        free.update(find_keys(inlined.results))

    held: dict[int, int] = {}
    now = peak = 0
    for i, (equation, _, made) in enumerate(order):
        for key, variable in zip(find_keys(made), made, strict=True):
            if key not in free and key not in held:
                held[key] = count(variable.variable)
                now += held[key]
        # While a body runs, its arrays are held beside those around it.
        inside = 0
        if has_programs(equation):
            inside = max(
                _find_inner_peak(equation, one, count, in_place) for one in list_bodies(equation)
            )
        peak = max(peak, now + inside)
        for key in [key for key in held if last.get(key, i) <= i]:
            now -= held.pop(key)
    return peak


def _find_roots(inlined: Inlined) -> dict[int, Variable]:
    """Return, by the id of each view, the array whose memory it shares."""
    roots: dict[int, Variable] = {}
    for equation in inlined.equations:
        if equation.primitive.name in _VIEWS:
            (view,), source = equation.outvars, equation.invars[0]
            roots[id(view)] = roots.get(id(source), source)
    return roots


def _find_inner_peak(
    equation: Equation, body: Program, count: Callable[[Variable], int], in_place: bool
) -> int:
    """Return the bytes that a body needs in addition to its operands and the results of its equation."""
    if equation.primitive.name in ("scan", "while") and not in_place:
        # A loop writes each result into the stacked array, so both are held.
        return find_peak(body, count, in_place=in_place)
    # The results of the body are the results of the equation, and count there.
    return find_peak(body, count, is_whole=True, in_place=in_place)


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
            # The results of a forward loop are stacked, and their readers are in this program.
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
    # The layer is the layer of the inner equation that makes it.
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
    """Return the bytes of results that reuse the memory of donated arguments of the same shape, dtype and layout."""
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
