"""Internal. Consecutive operations as one program, which also checks each of its results.

Compiling operations one by one takes longer than compiling a layer, and the body of a loop is compiled once. So
operations run one by one only if a check of all of them together found something.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..testing.equations import Site, Visitor, find_call, list_variables, make_program
from .devices import Split, make_untyped
from .dimensions import Dimensions, follow, unknown

# The codes that a check returns: what is wrong with an array.
FINE, LARGE, INFINITE, NAN = range(4)


@functools.partial(jax.jit, static_argnums=1)
def look(x: Any, bound: float) -> Any:
    """Return a traced code for the worst number in an array: fine, large, infinite or NaN."""
    if not is_inexact(x):
        return jnp.int32(FINE)
    wrong = [jnp.isnan(x).any(), jnp.isinf(x).any(), (jnp.abs(x) > bound).any()]
    return jnp.select(wrong, [NAN, INFINITE, LARGE], FINE).astype(jnp.int32)


def is_inexact(x: Any) -> bool:
    """Return whether an array can have wrong numbers."""
    return bool(jnp.issubdtype(jnp.result_type(x), jnp.inexact))


@functools.partial(jax.jit, static_argnums=(1, 2))
def find_wrong(x: Any, seen: int, bound: float) -> Any:
    """Return a mask of the wrong numbers of an array, for the result of its check."""
    if seen == LARGE:
        return jnp.abs(x) > bound
    return ~jnp.isfinite(x)


@dataclasses.dataclass(frozen=True, eq=False)
class Segment:
    """Consecutive operations without loops and branches: a part of a program.

    Attributes:
        program: the part, as a program.
        invars: the variables of its arguments.
        outvars: the variables of the results that the rest of the program reads.
    """

    program: Any
    invars: Sequence[Any]
    outvars: Sequence[Any]
    known: dict[tuple[Dimensions, ...], Sequence[Dimensions]] = dataclasses.field(
        default_factory=dict[tuple[Dimensions, ...], Sequence[Dimensions]]
    )

    def follow(
        self, dimensions: tuple[Dimensions, ...], split: Split | None
    ) -> Sequence[Dimensions]:
        """Return the dimensions of the results, cached because iterations of a loop ask for the same again."""
        if dimensions not in self.known:
            site = Site(devices=split)
            self.known[dimensions] = _Names().inline(self.program, dimensions, site)
        return self.known[dimensions]


def group(program: Any) -> Iterator[Any]:
    """Yield the equations of a program; consecutive ones without branches, loops or devices form a segment."""
    place = {id(equation): i for i, equation in enumerate(program.eqns)}
    readers: dict[Any, int] = dict.fromkeys(list_variables(program.outvars), len(place))
    for equation in reversed(program.eqns):
        for atom in list_variables(equation.invars):
            readers.setdefault(atom, place[id(equation)])
    for is_plain, each in itertools.groupby(program.eqns, _is_plain):
        group = list(each)
        if not is_plain:
            yield from group
            continue
        made = [variable for equation in group for variable in equation.outvars]
        last = place[id(group[-1])]
        results = [variable for variable in made if readers.get(variable, -1) > last]
        read = (atom for equation in group for atom in list_variables(equation.invars))
        given = [atom for atom in dict.fromkeys(read) if atom not in set(made)]
        yield Segment(make_program(group, given, results), given, results)


def _is_plain(equation: Any) -> bool:
    inner = find_call(equation)
    if inner is not None:
        return all(map(_is_plain, getattr(inner, "jaxpr", inner).eqns))
    return equation.primitive.name not in {"cond", "scan", "shard_map", "while"}


class _Looks(Visitor):
    """A walk through a segment that is being compiled, which checks each result."""

    def __init__(self, bound: float) -> None:
        self._bound = bound
        self.found: list[Any] = []

    def make(self, equation: Any) -> Callable[..., Sequence[Any]]:
        """Return an operation as a function, also on devices."""
        return make_untyped(equation)

    def apply(
        self,
        run: Callable[..., Sequence[Any]],
        operands: Sequence[Any],
        count: int,
        equation: Any,
        site: Site,
    ) -> Sequence[Any]:
        """Run an operation, and check its results."""
        results = run(*operands)
        self.found += [look(x, self._bound) for x in results if x is not None and is_inexact(x)]
        return results


def run_with_looks(segment: Segment, bound: float, *arrays: Any) -> list[Any]:
    """Return the results of a segment, and the results of checks: the worst of all, and one for each result."""
    looks = _Looks(bound)
    results = looks.inline(segment.program, arrays, Site())
    own = [look(x, bound) for x in results]
    worst = jnp.max(jnp.stack([*looks.found, jnp.int32(FINE)]))
    return [*results, jnp.stack([worst, *own])]


class _Names(Visitor):
    """A walk through a segment that computes nothing: its values are the dimensions of arrays."""

    def __init__(self) -> None:
        pass

    def apply(
        self,
        run: Callable[..., Sequence[Any]],
        operands: Sequence[Dimensions],
        count: int,
        equation: Any,
        site: Site,
    ) -> Sequence[Dimensions]:
        """Follow an operation."""
        shapes = [variable.aval.shape for variable in equation.outvars]
        return (site.devices.follow if site.devices else follow)(equation, operands, shapes)

    def keep(self, array: Any) -> Dimensions:
        """Return the dimensions of a constant, whose axes are unknown."""
        return unknown(np.shape(array))
