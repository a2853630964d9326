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
from .inlining import inline
from .sharing import Pair, Sharing, find_own, list_written, order_equations
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


def find_peak(
    program: Program,
    walk: Walk,
    *,
    is_whole: bool = False,
    on_host: bool = False,
    replaced: Sequence[Pair] = (),
) -> int:
    """Return the peak of the bytes that a program holds in arrays that it makes.

    Args:
        program: the program.
        walk: the walk through it, which knows the layouts.
        is_whole: whether the caller counts the results.
        on_host: whether to count the memory of the host instead of the memory of the device.
        replaced: arguments that the program may write over, each with the result that takes its memory: donated
            arguments, or the arrays that a loop carries.
    """
    inlined = inline(program)
    order = order_equations(inlined)
    own = zip(program.outvars, inlined.results, strict=True)
    names = {id(variable): result for variable, result in own}
    pairs = [(one, names[id(other)]) for one, other in replaced]
    sharing = Sharing(order, inlined, pairs, walk)
    count = walk.count_host_bytes if on_host else walk.count_bytes

    def find_keys(variables: Sequence[Variable]) -> list[int]:
        return list(map(sharing.find_key, variables))

    # An array is held until the last reader of its bytes; results are held until the end.
    last = {key: i for i, (_, operands, _) in enumerate(order) for key in find_keys(operands)}
    last.update(dict.fromkeys(find_keys(inlined.results), len(order)))
    # The caller counts these.
    given = set(find_keys(inlined.given))
    free = set(given)
    if is_whole:
        free.update(find_keys(inlined.results))
    for argument, result in pairs:
        if sharing.is_written_over(argument, result):
            free.add(sharing.find_key(result))
        elif sharing.find_key(result) not in given:
            # The result is copied there when nothing reads the argument any more.
            free.discard(sharing.find_key(result))

    held: dict[int, int] = {}
    now = peak = 0
    for i, (equation, _, made) in enumerate(order):
        for key, variable in zip(find_keys(made), made, strict=True):
            if key not in free and key not in held:
                # A compiler lays out zeros like the result of the update that writes over them.
                held[key] = min(count(find_own(one)) for one in sharing.list_names(variable))
                now += held[key]
        # While a body runs, its arrays are held beside those around it.
        inside = 0
        if has_programs(equation):
            inside = _find_inner_peak(equation, walk, on_host)
        peak = max(peak, now + inside)
        for key in [key for key in held if last.get(key, i) <= i]:
            now -= held.pop(key)
    return peak


def _find_inner_peak(equation: Equation, walk: Walk, on_host: bool) -> int:
    """Return the bytes that bodies need in addition to operands and the results of their equation."""
    # A loop writes each result into the stacked array, so both are held; a copy to the host goes there directly. Other
    # bodies have the results of the equation, which count there.
    is_whole = on_host or equation.primitive.name not in ("scan", "while")
    _, written = list_written(equation, walk)
    return max(
        find_peak(body, walk, is_whole=is_whole, on_host=on_host, replaced=replaced)
        for body, replaced in zip(list_bodies(equation), written, strict=True)
    )


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


def pair_donated(
    given: Sequence[Variable],
    donated: Sequence[bool],
    results: Sequence[Variable],
    walk: Walk,
) -> list[Pair]:
    """Return the donated arguments, each with the result of its shape, dtype and layout that takes its memory."""
    free: dict[object, list[Variable]] = {}
    for variable, is_donated in zip(given, donated, strict=True):
        if is_donated:
            free.setdefault(walk.find_value(variable), []).append(variable)
    pairs: list[Pair] = []
    for variable in results:
        # JAX takes the first one that fits.
        if several := free.get(walk.find_value(variable)):
            pairs.append((several.pop(0), variable))
    return pairs
