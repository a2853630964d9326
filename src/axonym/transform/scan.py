"""Loops over a named axis: `scan`, `fold` and `map`, compiled once however long the axis is."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .. import _constraints
from ..array import NamedArray, is_named_array
from ..axis import AxisSelector, selection
from ..core import wrap
from ..errors import AxisError, AxisSizeError, OperandError, describe, message
from ..ops import _lift
from ._leaves import Arguments, Outputs, axis_first, is_array, spread
from .checkpoint import ScanCheckpointPolicy, ScanCheckpointSpec

__all__ = ["fold", "map", "scan"]


def _scanned_by_default(leaf: object) -> bool:
    """Tell whether a leaf is scanned: named arrays that have the axis are, and plain arrays with a dimension."""
    return isinstance(leaf, NamedArray) or (is_array(leaf) and leaf.ndim > 0)  # type: ignore[attr-defined]  # an array has ndim


def scan(
    f: Callable[..., Any],
    axis: AxisSelector,
    *,
    remat: ScanCheckpointSpec = False,
    reverse: bool = False,
    unroll: int | bool = 1,
    is_scanned: Any = _scanned_by_default,
) -> Callable[..., Any]:
    """Loop over an axis with a carry.

    `scan(f, axis)(init, *args, **kwargs)` calls `f(carry, *args, **kwargs)`, which returns the next carry and an
    output, once per position. Named arrays that have the axis, and plain arrays over dimension 0, are passed position
    by position; everything else is passed whole.

    Args:
        f: the step.
        axis: the axis; an `Axis` if no argument has it.
        remat: what to keep for the backward pass, see `ScanCheckpointPolicy`.
        reverse: go from the last position to the first.
        unroll: how many steps to write out in one iteration of the compiled loop; True writes out all.
        is_scanned: which of the arguments' leaves may be scanned: a function of a leaf, a bool, or a tree of these that
            is a prefix of `(args, kwargs)`.

    Returns:
        A function that returns the last carry and the outputs, stacked along the axis, which comes first.

    Raises:
        AxisSizeError: if sizes of the axis differ, or nothing tells its size.
        AxisError: if a step changes the axes of the carry.
        AxisClashError: if an output already has the axis.
        OperandError: if a step does not return a pair, or changes the structure of the carry.

    Example:
        >>> Time = axn.Axis("time", 4)
        >>> total, sums = axn.scan(lambda carry, x: (carry + x, carry + x), Time)(axn.zeros(()), axn.ones(Time))
        >>> sums
        NamedArray(float32[time=4])
        [1. 2. 3. 4.]
    """
    return _loop("scan", f, axis, remat, reverse, unroll, is_scanned)


def _loop(
    function: str,
    step: Callable[..., Any],
    axis: AxisSelector,
    remat: ScanCheckpointSpec,
    reverse: bool,
    unroll: int | bool,
    is_scanned: Any,
) -> Callable[..., Any]:
    """Make the function `(init, *args, **kwargs)` that loops `step` over the axis."""
    ((name, size),) = selection(axis, function)
    policy = ScanCheckpointPolicy.make(remat)

    @functools.wraps(step)
    def looped(init: Any, *args: Any, **kwargs: Any) -> Any:
        tells = is_scanned if callable(is_scanned) else None
        given = None if tells else spread(function, is_scanned, (args, kwargs))

        def dimension(i: int, leaf: Any) -> int | None:
            if isinstance(leaf, NamedArray):
                at = leaf.names.index(name) - len(leaf.names) if name in leaf.names else None
            else:
                at = 0 if is_array(leaf) and leaf.ndim else None
            told = tells if given is None else given[i]
            return at if at is not None and (told(leaf) if callable(told) else told) else None

        arguments = Arguments(function, (name, size), (args, kwargs), dimension)
        return _run(function, step, arguments, init, policy, reverse=reverse, unroll=unroll)

    return looped


def _run(
    function: str,
    fn: Callable[..., Any],
    arguments: Arguments,
    init: Any,
    policy: ScanCheckpointPolicy,
    *,
    reverse: bool,
    unroll: int | bool,
) -> Any:
    start = Outputs(init)
    outputs: list[Outputs] = []

    def step(arrays: Any, scanned: Any) -> Any:
        carry = start.rebuild(policy.mark_carry(arrays))
        args, kwargs = arguments.rebuild(scanned)
        result = fn(carry, *args, **kwargs)
        if not isinstance(result, tuple) or len(result) != 2:
            problem = f"the step must return a pair of carry and output, not {type(result).__name__}"
            raise OperandError(message(function, problem, hint="use fold for a step that returns the carry alone"))
        following, out = result
        outputs[:] = [Outputs(out)]
        after = Outputs(_same_axes(function, init, following)).arrays
        return [_constraints.laid_out_like(jnp.asarray(new), old) for old, new in zip(arrays, after, strict=True)], (
            outputs[0].arrays
        )

    xs = [_leading(array, dim) for array, dim in zip(arguments.arrays, arguments.dims, strict=True)]
    carry = [jnp.asarray(array) for array in start.arrays]
    groups = policy.groups(arguments.size)
    step = policy.wrap(step, unrolled=unroll is True or unroll >= arguments.size // groups)
    run = functools.partial(lax.scan, reverse=reverse, unroll=unroll)
    if groups == 1:
        last, ys = run(step, carry, xs, length=arguments.size)
    else:
        length = arguments.size // groups
        inner = policy.wrap(lambda c, group: run(step, c, group, length=length))
        grouped = [x.reshape(groups, length, *x.shape[1:]) for x in xs]
        last, ys = lax.scan(inner, carry, grouped, length=groups, reverse=reverse)
        ys = [y.reshape(groups * length, *y.shape[2:]) for y in ys]
    return start.rebuild(last), outputs[0].rebuild(ys, axis_first(function, arguments.axis))


def _leading(array: Any, dim: int) -> jax.Array:
    array = jnp.asarray(array)
    return jnp.moveaxis(_lift.whole(array, (dim,)), dim, 0)


def _same_axes(function: str, before: Any, after: Any) -> Any:
    """Give the carry of a step the axis order that it had before.

    Raises:
        AxisError: if an array has other axes than before; AxisSizeError if other sizes.
        OperandError: if anything else changes but the values of arrays and their dtypes, which JAX checks.
    """
    tree: Any
    olds, tree = jax.tree.flatten(before, is_leaf=is_named_array)
    news, other = jax.tree.flatten(after, is_leaf=is_named_array)
    if tree != other:
        lines = (f"before: {tree}", f"after: {other}")
        raise OperandError(message(function, "a step changes the structure of the carry", *lines))
    return jax.tree.unflatten(tree, [_same(function, old, new) for old, new in zip(olds, news, strict=True)])


def _same(function: str, old: Any, new: Any) -> Any:
    """Check one leaf of a carry, and give it the axis order that it had before."""
    if _is_data(old) and _is_data(new):
        before, after = old, new
    elif isinstance(old, NamedArray) and isinstance(new, NamedArray) and _holds_data(old) and _holds_data(new):
        if set(old.names) != set(new.names):
            raise AxisError(_changed(function, "changes the axes of the carry", old, new))
        if old.names != new.names:
            new = wrap(new, _lift.lined_up(new.array, new.names, old.names), old.names)
        before, after = old.array, new.array
    elif not (_holds_data(old) or _holds_data(new)) and (old is new or _static(old) == _static(new)):
        return new
    else:
        raise OperandError(_changed(function, "changes what an entry of the carry is", old, new))
    if jnp.shape(before) != jnp.shape(after):
        raise AxisSizeError(_changed(function, "changes sizes of the carry", old, new))
    return new


def _is_data(leaf: Any) -> bool:
    return is_array(leaf) or isinstance(leaf, int | float | complex)


def _holds_data(leaf: Any) -> bool:
    return _is_data(leaf.array if isinstance(leaf, NamedArray) else leaf)


def _static(leaf: Any) -> Any:
    return (NamedArray, leaf.names, leaf.array) if isinstance(leaf, NamedArray) else leaf


def _changed(function: str, what: str, old: Any, new: Any) -> str:
    return message(function, f"a step {what}", f"before: {_kind(old)}", f"after: {_kind(new)}")


def _kind(leaf: Any) -> str:
    if isinstance(leaf, NamedArray):
        return f"a NamedArray with {describe(leaf.names, getattr(leaf.array, 'shape', None))}"
    return f"a plain array of shape {leaf.shape}" if is_array(leaf) else repr(leaf)


def fold(
    fn: Callable[..., Any],
    axis: AxisSelector,
    *,
    remat: ScanCheckpointSpec = False,
    reverse: bool = False,
    unroll: int | bool = 1,
    is_scanned: Any = _scanned_by_default,
) -> Callable[..., Any]:
    """Loop over an axis with a carry and nothing else: `fn(carry, *args, **kwargs)` returns the next carry.

    See `scan` for the arguments.

    Example:
        >>> Time = axn.Axis("time", 4)
        >>> axn.fold(lambda carry, x: carry + x, Time)(axn.zeros(()), axn.ones(Time)).item()
        4.0
    """

    @functools.wraps(fn)
    def step(carry: Any, *args: Any, **kwargs: Any) -> Any:
        return fn(carry, *args, **kwargs), None

    looped = _loop("fold", step, axis, remat, reverse, unroll, is_scanned)

    @functools.wraps(fn)
    def folded(init: Any, *args: Any, **kwargs: Any) -> Any:
        return looped(init, *args, **kwargs)[0]

    return folded


def map(
    fn: Callable[..., Any],
    axis: AxisSelector,
    *,
    remat: ScanCheckpointSpec = False,
    reverse: bool = False,
    unroll: int | bool = 1,
    is_mapped: Any = _scanned_by_default,
) -> Callable[..., Any]:
    """Apply a function at each position of an axis, one after the other; `vmap` does them at once.

    See `scan` for the arguments.

    Example:
        >>> Time = axn.Axis("time", 3)
        >>> axn.map(lambda x: x * 2, Time)(axn.ones(Time)).tolist()
        [2.0, 2.0, 2.0]
    """

    @functools.wraps(fn)
    def step(_: None, *args: Any, **kwargs: Any) -> Any:
        return None, fn(*args, **kwargs)

    looped = _loop("map", step, axis, remat, reverse, unroll, is_mapped)

    @functools.wraps(fn)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        return looped(None, *args, **kwargs)[1]

    return mapped
