"""Claims about permutations along an axis: they permute the results in the same way, or change nothing."""

import itertools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..axis import AxisSelector, axis_name
from ..base.kinds import Tree
from ..errors import AxisNotFoundError, message
from .blame import find_place, list_views
from .differences import differences
from .explain import fail, first_place, write_place
from .program import Arrays, Place, Program
from .proving import is_proven_alone
from .trace import Trace

__all__ = ["assert_equivariant", "assert_invariant"]

Order = np.ndarray[Any, Any]
# The number of positions that are tried to name a pair.
_MOST_PAIRS = 64


def assert_equivariant(f: Callable[..., Any], axis: AxisSelector, *args: Tree) -> None:
    """Check that a permutation of the arguments along an axis permutes the results, and changes nothing else.

    Axes derived from the axis, such as `pos.key` from `pos`, are permuted along with it: in arguments, in parameters
    that the function holds, and in results.

    Args:
        f: any function of named arrays, a module or its method; some result has the axis.
        axis: the axis, such as one of experts, heads, or elements of a set.
        args: its arguments.

    Raises:
        ClaimError: with a pair of positions whose exchange does more than exchange results, and the layer.

    Examples:
        >>> x = axn.random.normal(jax.random.key(0), axn.make_axes(points=5, embed=4))
        >>> axn.testing.assert_equivariant(lambda x: x - x.mean("points"), "points", x)
    """
    name = axis_name(axis)
    if not is_proven_alone("equivariant", Program("assert_equivariant", f, args), name):
        _check("equivariant", f, name, args)


def assert_invariant(f: Callable[..., Any], axis: AxisSelector, *args: Tree) -> None:
    """Check that a permutation of the arguments along an axis changes no result.

    Arrays that the function holds are permuted, too, so experts or heads of a model can be exchanged together with
    their parameters.

    Args:
        f: any function of named arrays, a module or its method.
        axis: see `assert_equivariant`.
        args: its arguments.

    Raises:
        ClaimError: with a pair of positions whose exchange has an effect, and the layer.

    Examples:
        >>> Embed, Heads, HeadDim, Pos = axn.make_axes(embed=8, heads=2, head_dim=4, pos=5)
        >>> attention = axn.nn.Attention.init(Embed, Heads, HeadDim, key=jax.random.key(0))
        >>> axn.testing.assert_invariant(attention, Heads, axn.random.normal(jax.random.key(1), (Pos, Embed)))
    """
    _check("invariant", f, axis_name(axis), args)


def _check(claim: str, f: Callable[..., Any], axis: str, args: tuple[Tree, ...]) -> None:
    program = Program(f"assert_{claim}", f, args)
    carriers = program.carriers(axis, with_held=True)
    size = program.size_of(axis, carriers)
    base = program(program.arrays)
    if claim == "equivariant" and not any(axis in place.names for place in program.results):
        problem = f"no result has axis {axis!r}"
        hint = "if permutations change nothing, write assert_invariant"
        raise AxisNotFoundError(message(program.function, problem, hint=hint))

    def is_permuted(place: Place, name: str, array: Any) -> bool:
        is_derived = name == axis or name.startswith(f"{axis}.")
        return is_derived and np.shape(array)[place.find_dimension(name, array)] == size

    def permute(places: list[Place], arrays: Arrays, order: Order) -> Arrays:
        found = list(arrays)
        for i, place in enumerate(places):
            for name in place.names:
                if is_permuted(place, name, found[i]):
                    dimension = place.find_dimension(name, found[i])
                    found[i] = jnp.take(found[i], jnp.asarray(order), axis=dimension)
        return found

    def find_change(order: Order, run: Callable[[Arrays], Arrays]) -> tuple[Place, Any] | None:
        changed = run(permute(program.places, program.arrays, order))
        wanted = permute(program.results, base, order) if claim == "equivariant" else base
        for place, one, other in zip(program.results, wanted, changed, strict=True):
            change = differences(one, other, is_same_program=False)
            if change.any():
                return place, change
        return None

    orders = [np.roll(np.arange(size), 1), np.random.default_rng(2).permutation(size)]
    broken = next((found for order in orders if (found := find_change(order, program))), None)
    if broken is None:
        return
    pair, order = (0, 1), orders[0]
    for one, other in itertools.islice(itertools.combinations(range(size), 2), _MOST_PAIRS):
        exchanged = np.arange(size)
        exchanged[[one, other]] = other, one
        found = find_change(exchanged, program)
        if found is not None:
            pair, order, broken = (one, other), exchanged, found
            break
    place, change = broken
    trace = Trace(program.run_unwrapped, program.arrays, program)
    changed = permute(program.places, program.arrays, order)
    where = find_place(trace, program.arrays, changed, lambda x, y: _is_permuted(x, y, size, order))
    source, target = {axis: pair[0]}, first_place(place, change)
    problem = f"to exchange {axis}={pair[0]} and {axis}={pair[1]} changes {write_place(target) or 'the result'}"
    if claim == "equivariant":
        problem += ", beyond the same exchange"
    raise fail(
        claim,
        problem,
        *((f"result: {place.path}",) if place.path else ()),
        axis=axis,
        causes="symmetric",
        source=source,
        target=target,
        effect=float(change.max()),
        place=where,
    )


def _is_permuted(x: Any, y: Any, size: int, order: Order) -> bool:
    """Return whether a value equals another one after a permutation along at most two dimensions."""
    one, other = np.asarray(x), np.asarray(y)
    if one.shape != other.shape:
        return False

    def turned(array: Order) -> list[Order]:
        return [
            array.reshape(view).take(order, 1).reshape(array.shape)
            for view in list_views(array.shape, size)
        ]

    once = turned(one)
    candidates = itertools.chain([one], once, (both for each in once for both in turned(each)))
    return any(not differences(each, other, is_same_program=False).any() for each in candidates)
