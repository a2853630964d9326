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
    list_bodies,
    remember,
    write_source,
)
from .fusions import has_programs
from .sharing import Pair, Sharing, list_written, order_equations
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
    count = walk.count_host_bytes if on_host else walk.count_bytes
    held: dict[int, int] = {}
    now = peak = 0
    for moment in _list_moments(program, is_whole, tuple(replaced)):
        for key, names in moment.made.items():
            # A compiler lays out zeros like the result of the update that writes over them.
            held[key] = min(map(count, names))
            now += held[key]
        # While a body runs, its arrays are held beside those around it.
        inside = [
            find_peak(
                body, walk, is_whole=on_host or not moment.is_loop, on_host=on_host, replaced=own
            )
            for body, own in moment.bodies
        ]
        peak = max(peak, now + max(inside, default=0))
        now -= sum(map(held.pop, moment.freed))
    return peak


class _Moment(NamedTuple):
    """An equation while it runs.

    Attributes:
        made: the arrays in memory that it makes, by their keys, each with all arrays that have its memory.
        freed: the keys of arrays that are freed after it.
        bodies: the programs that it runs, each with the arguments that it may write over.
        is_loop: whether it writes each result of a body into a stacked array, so that both are held; a copy to the host
            goes there directly. Other bodies have the results of the equation, which count there.
    """

    made: dict[int, list[Variable]]
    freed: list[int]
    bodies: list[tuple[Program, list[Pair]]]
    is_loop: bool


@remember
def _list_moments(program: Program, is_whole: bool, replaced: tuple[Pair, ...]) -> list[_Moment]:
    """List the equations of a program with the arrays that they make and free."""
    inlined, order = order_equations(program)
    own = zip(program.outvars, inlined.results, strict=True)
    names = {id(variable): result for variable, result in own}
    pairs = [(one, names[id(other)]) for one, other in replaced]
    sharing = Sharing(program, pairs)

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

    found: list[_Moment] = []
    held: set[int] = set()
    for i, (equation, _, made) in enumerate(order):
        new = {
            key: sharing.list_names(variable)
            for key, variable in zip(find_keys(made), made, strict=True)
            if key not in free and key not in held
        }
        held |= new.keys()
        freed = [key for key in held if last.get(key, i) <= i]
        held -= {*freed}
        bodies: list[tuple[Program, list[Pair]]] = []
        if has_programs(equation):
            bodies = list(zip(list_bodies(equation), list_written(equation)[1], strict=True))
        is_loop = equation.primitive.name in ("scan", "while")
        found.append(_Moment(new, freed, bodies, is_loop))
    return found


def list_residuals(
    program: Program, place_of: Callable[[str], Place], source: str = ""
) -> list[Residual]:
    """List the arrays that the forward pass keeps for the backward pass.

    Args:
        program: the program.
        place_of: returns the place of an operation.
        source: the name of the equation whose program this is.
    """
    phases: dict[int, Phase] = {}
    makers: dict[int, Equation] = {}
    found: dict[int, Residual] = {}
    more: list[Residual] = []
    for equation, operands, made in order_equations(program)[1]:
        own = _write_inlined(equation, source)
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


def _write_inlined(equation: Equation, source: str) -> str:
    """Return the name of an operation of a program without calls."""
    prefix = getattr(equation, "prefix", "")
    return write_source(equation, "/".join(filter(None, (source, prefix))))


def _find_origin(
    maker: Equation, variable: Variable, place_of: Callable[[str], Place], source: str
) -> tuple[str, int]:
    """Return the layer that makes an array, and the number of such arrays that a loop stacks."""
    own = _write_inlined(maker, source)
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
