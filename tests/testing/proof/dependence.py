"""Which elements of results change with which positions of an axis: as a proof allows, and as numbers show."""

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import jaxpr_as_fun

from axonym.testing.program import Program
from axonym.testing.proof.claims import Claim, Traced, check, start, trace
from axonym.testing.proof.facts import Known
from axonym.testing.proof.walk import Walk

Arrays = Sequence[Any]
Function = Callable[[Arrays], Arrays]


def trace_call(function: Callable[..., Any], args: Sequence[Any], *, is_gradient: bool = False) -> Traced:
    """Trace a function, or its gradient, for given arguments."""
    return trace(Program("prove", function, args), is_gradient=is_gradient)


def refute(traced: Traced, axis: str, function: Function, arrays: Arrays) -> list[str]:
    """Return what numbers show and a proof excludes: dependences of elements, and permutations that do not pass.

    Args:
        traced: the program.
        axis: the axis to follow.
        function: computes the results of the program, in its order of dimensions.
        arrays: arguments of the program.
    """
    places = [names.index(axis) if axis in names else None for names in traced.arguments]
    found: list[str] = []
    for k, (known, depends) in enumerate(zip(follow(traced, axis), measure(function, arrays, places), strict=True)):
        excess = depends & ~allow(known, depends.shape[:-1], depends.shape[-1])
        if excess.any():
            found.append(f"result {k} depends on {axis}: {np.argwhere(excess)[:3].tolist()}")
    if check(traced, Claim("equivariant", axis)) and not passes_permutations(traced, axis, function, arrays, places):
        found.append(f"a permutation of {axis} does not pass")
    return found


def follow(traced: Traced, axis: str) -> list[Known]:
    """Follow an axis through a program."""
    program = traced.program.jaxpr
    pairs = zip(program.invars, traced.arguments, strict=True)
    inputs = [start(axis, names, variable.aval.shape) for variable, names in pairs]
    return Walk().run(program, inputs, traced.program.consts)


def allow(known: Known, shape: tuple[int, ...], size: int) -> np.ndarray:
    """Return for each element of a result, and each position of the axis, whether the one may depend on the other."""
    found = np.zeros((*shape, size), bool)
    coordinates, positions = np.indices(shape), np.arange(size)
    for digits, span in known.reach.items():
        base = np.zeros(shape)
        for digit in digits:
            base = base + float(digit.weight) * (coordinates[digit.place] // digit.inner % digit.size)
        offsets = positions - base[..., None]
        found |= (float(span.low) <= offsets) & (offsets <= float(span.high))
    return found


def measure(function: Function, arrays: Arrays, places: Sequence[int | None]) -> list[np.ndarray]:
    """Return the same by changing each position in turn, in all arrays that have it, and in one after the other."""
    rng = np.random.default_rng(0)
    size = next(array.shape[place] for array, place in zip(arrays, places, strict=True) if place is not None)
    before = function(arrays)
    found = [np.zeros((*np.shape(one), size), bool) for one in before]
    holders = [k for k, place in enumerate(places) if place is not None]
    for chosen in [holders, *([k] for k in holders if len(holders) > 1)]:
        for i in range(size):
            changed = list(arrays)
            for k in chosen:
                changed[k] = change(rng, np.asarray(arrays[k]), places[k] or 0, i)
            try:
                after = function(changed)
            except (ArithmeticError, ValueError):
                continue  # NumPy has no answer for these numbers
            for depends, one, other in zip(found, before, after, strict=True):
                depends[..., i] |= differ(one, other)
    return found


def passes_permutations(
    traced: Traced, axis: str, function: Function, arrays: Arrays, places: Sequence[int | None]
) -> bool:
    """Return whether results of permuted arguments are permuted results."""
    size = next(array.shape[place] for array, place in zip(arrays, places, strict=True) if place is not None)
    order = np.roll(np.arange(size)[::-1], 1)

    def permute(array: Any, place: int | None) -> Any:
        return array if place is None else np.take(np.asarray(array), order, place)

    after = function([permute(*pair) for pair in zip(arrays, places, strict=True)])
    owns = [names.index(axis) if axis in names else None for _, names in traced.results]
    expected = [permute(one, place) for one, place in zip(function(arrays), owns, strict=True)]
    return not any(differ(one, other).any() for one, other in zip(after, expected, strict=True))


def change(rng: np.random.Generator, array: np.ndarray, place: int, i: int) -> np.ndarray:
    """Change the elements at one position."""
    result = array.copy()
    index = (slice(None),) * place + (i,)
    part = result[index]
    if array.dtype.kind in "fc":
        part = part * rng.choice([-3, 0.5, 2], part.shape) + rng.normal(size=part.shape)
    else:
        part = rng.choice(array.reshape(-1), part.shape)
    result[index] = part
    return result


def differ(one: Any, other: Any) -> np.ndarray:
    one, other = np.asarray(one), np.asarray(other)
    if one.dtype.kind not in "fc":
        return one != other
    # Sums in another order round otherwise.
    tolerance = 1e-6 if one.dtype.itemsize > 4 else 1e-5
    with warnings.catch_warnings(action="ignore"):
        return ~np.isclose(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)


def compile_programs(several: Iterable[Traced]) -> Callable[[Arrays], list[Arrays]]:
    """Return programs of the same arguments as one function that JAX runs."""
    functions = [jaxpr_as_fun(traced.program) for traced in several]
    compiled = jax.jit(lambda arrays: [function(*arrays) for function in functions])
    return lambda arrays: jax.tree.map(np.asarray, compiled(list(arrays)))
