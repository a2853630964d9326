"""The claim that a loss is a mean over an axis, such as the examples of a batch."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..array import NamedArray, is_named_array
from ..axis import AxisSelector, axis_name
from ..base.kinds import Tree
from ..errors import ArgumentError, message
from .blame import find_place
from .differences import differences, find_largest
from .explain import fail, find_factor
from .failure import ClaimError
from .program import Program, Pullback, check_where, is_float, note
from .trace import Trace

__all__ = ["assert_mean_over"]


def assert_mean_over(
    f: Callable[..., Any], axis: AxisSelector, *args: Tree, where: NamedArray | None = None
) -> None:
    """Check that doubling every example keeps the loss and gradients, and that a masked example counts as absent.

    Args:
        f: any function of named arrays, a module or its method, that returns a loss, or several.
        axis: the axis of examples.
        args: its arguments. Those with the axis are repeated or cut along it.
        where: one of the arguments: booleans, with the axis, that say which examples count. Then a batch with a masked
            example must give the same as a batch without this example.

    Raises:
        ClaimError: with the result or the parameter that differs, the factor, and the layer.

    Examples:
        >>> Batch, Embed = axn.make_axes(batch=4, embed=8)
        >>> x = axn.random.normal(jax.random.key(0), (Batch, Embed))
        >>> axn.testing.assert_mean_over(lambda x: axn.square(x).mean(), Batch, x)
    """
    name = axis_name(axis)
    program = Program("assert_mean_over", f, args)
    program.size_of(name, program.carriers(name))
    doubled = _change(args, lambda x: _concatenate(x, name), name)
    _compare(program, Program(program.function, f, doubled), name, "every example twice", _is_twice)
    if where is None:
        return
    check_where(program.function, where, name)
    if not any(
        x.array is where.array
        for x in jax.tree.leaves(args, is_leaf=is_named_array)
        if is_named_array(x)
    ):
        problem = "where must be one of the arguments, since the function has to read it"
        raise ArgumentError(message(program.function, problem))
    without = where.at[name, 0].set(False)
    masked = jax.tree.map(
        lambda x: without if is_named_array(x) and x.array is where.array else x,
        args,
        is_leaf=is_named_array,
    )
    absent = _change(args, lambda x: x[name, 1:], name)
    _compare(
        Program(program.function, f, masked),
        Program(program.function, f, absent),
        name,
        f"a batch without {name}=0, which is masked,",
        _is_cut,
    )


def _change(args: tuple[Tree, ...], change: Callable[[NamedArray], NamedArray], axis: str) -> Any:
    return jax.tree.map(
        lambda x: change(x) if is_named_array(x) and axis in x.names else x,
        args,
        is_leaf=is_named_array,
    )


def _concatenate(x: NamedArray, axis: str) -> NamedArray:
    dimension = x.array.ndim - len(x.names) + x.names.index(axis)
    return NamedArray(jnp.concatenate([x.array, x.array], dimension), x.names)


def _is_twice(x: Any, y: Any) -> bool:
    """Return whether a value of a doubled batch is right: the same, repeated along a dimension, or a doubled sum."""
    halves = [np.concatenate([x, x], d) for d in range(np.ndim(x))]
    return not is_float(x) or _is_among(y, [x, *halves, 2 * np.asarray(x)])


def _is_cut(x: Any, y: Any) -> bool:
    """Return whether a value is right after the first example was removed."""
    cut = [np.asarray(x).take(range(1, size), d) for d, size in enumerate(np.shape(x)) if size > 1]
    return not is_float(x) or _is_among(y, [x, *cut])


def _is_among(y: Any, candidates: list[Any]) -> bool:
    return any(
        np.shape(x) == np.shape(y) and not differences(x, y, is_same_program=False).any()
        for x in candidates
    )


def _compare(
    one: Program, other: Program, axis: str, what: str, is_explained: Callable[[Any, Any], bool]
) -> None:
    """Raise if two batches that should have the same mean differ in a result without the axis, or in a gradient."""
    before = one(one.arrays)
    with note(
        f"{one.function}: it was called with {what.rstrip(',')}: no size of {axis!r} may be fixed in it"
    ):
        after = other(other.arrays)
    outs = [i for i, place in enumerate(one.results) if axis not in place.names]
    if not outs:
        hint = "return the loss, or its mean"
        raise ArgumentError(message(one.function, f"every result has axis {axis!r}", hint=hint))
    for i in outs:
        change = differences(before[i], after[i], is_same_program=False)
        if change.any():
            path = one.results[i].path or "the result"
            # A step returns gradients, or the next parameters.
            own = one.find_parameters([one.results[i]]).get(path)
            raise _explain(one, other, axis, what, path, own, before[i], after[i], is_explained)
    pulls = [Pullback(program, outs) for program in (one, other)]
    gradients = [
        pull(program.arrays, [np.ones_like(before[i]) for i in pull.outs])
        for pull, program in zip(pulls, (one, other), strict=True)
    ]
    among = find_largest(gradients[0])
    for i, x, y in zip(pulls[0].inputs if pulls[0].inputs else (), *gradients, strict=True):
        place = one.places[i]
        is_parameter = axis not in place.names or place.is_held
        if is_parameter and differences(x, y, is_same_program=False, among=among).any():
            path = place.path or "the function"
            raise _explain(
                one, other, axis, what, f"the gradient of {path}", path, x, y, is_explained
            )


def _explain(
    one: Program,
    other: Program,
    axis: str,
    what: str,
    path: str,
    parameter: str | None,
    x: Any,
    y: Any,
    is_explained: Callable[[Any, Any], bool],
) -> ClaimError:
    if parameter is None:
        traces = [Trace(each.run_unwrapped, each.arrays, each) for each in (one, other)]
        place = find_place(traces[0], one.arrays, other.arrays, is_explained, another=traces[1])
    else:
        place = parameter.rpartition(".")[0], "", ""
    factor = find_factor(x, y)
    facts = () if factor is None else (f"factor: {factor:g}",)
    return fail(
        "mean_over",
        f"{what} changes {path}",
        *facts,
        axis=axis,
        causes="mean_over",
        source={axis: 0},
        effect=float(differences(x, y, is_same_program=False).max()),
        place=place,
        parameter=parameter,
        factor=factor,
    )
