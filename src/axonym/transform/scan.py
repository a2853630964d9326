"""Loops over a named axis: `scan`, `fold` and `map`, compiled once however long the axis is."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..array import NamedArray, is_named_array
from ..axis import AxisSelector, selection
from ..core import wrap
from ..errors import AxisError, OperandError, describe, message
from ..ops import _lift
from ._leaves import Arguments, Outputs, is_array
from .checkpoint import ScanCheckpointPolicy, ScanCheckpointSpec

__all__ = ["fold", "map", "scan"]


def is_scanned_by_default(leaf: object) -> bool:
    """Tell whether a leaf is scanned: named arrays that have the axis are, and plain arrays with a dimension."""
    return isinstance(leaf, NamedArray) or (is_array(leaf) and leaf.ndim > 0)  # type: ignore[attr-defined]


def scan(
    fn: Callable[..., Any],
    axis: AxisSelector,
    *,
    remat: ScanCheckpointSpec = False,
    reverse: bool = False,
    unroll: int | bool = 1,
    is_scanned: Callable[[Any], bool] = is_scanned_by_default,
) -> Callable[..., Any]:
    """Loop over an axis with a carry.

    `scan(fn, axis)(init, *args, **kwargs)` calls `fn(carry, *args, **kwargs)`, which returns the next carry and an
    output, once per position. Named arrays that have the axis, and plain arrays over dimension 0, are passed position
    by position; everything else is passed whole.

    Args:
        fn: the step.
        axis: the axis; an `Axis` if no argument has it.
        remat: what to keep for the backward pass, see `ScanCheckpointPolicy`.
        reverse: go from the last position to the first.
        unroll: how many steps to write out in one iteration of the compiled loop; True writes out all.
        is_scanned: which of the arguments' leaves may be scanned.

    Returns:
        A function that returns the last carry and the outputs, stacked along the axis, which comes first.

    Raises:
        AxisSizeError: if sizes of the axis differ, or nothing tells its size.
        AxisError: if a step changes the axes of the carry.
        OperandError: if a step does not return a pair.

    Example:
        >>> Time = axn.Axis("time", 4)
        >>> total, sums = axn.scan(lambda carry, x: (carry + x, carry + x), Time)(axn.zeros(()), axn.ones(Time))
        >>> sums
        NamedArray(float32[time=4])
        [1. 2. 3. 4.]
    """
    ((name, size),) = selection(axis, "scan")
    policy = ScanCheckpointPolicy.make(remat)

    @functools.wraps(fn)
    def scanned(init: Any, *args: Any, **kwargs: Any) -> Any:
        def dimension(_: int, leaf: Any) -> int | None:
            if not is_scanned(leaf):
                return None
            if isinstance(leaf, NamedArray):
                return leaf.names.index(name) - len(leaf.names) if name in leaf.names else None
            return 0 if is_array(leaf) and leaf.ndim else None

        arguments = Arguments("scan", (name, size), (args, kwargs), dimension)
        return _loop(fn, arguments, init, policy, reverse=reverse, unroll=unroll)

    return scanned


def _loop(
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
            raise OperandError(message("scan", problem, hint="use fold for a step that returns the carry alone"))
        following, out = result
        outputs[:] = [Outputs(out)]
        return Outputs(same_axes("scan", init, following)).arrays, outputs[0].arrays

    xs = [_leading(array, dim) for array, dim in zip(arguments.arrays, arguments.dims, strict=True)]
    carry = [jnp.asarray(array) for array in start.arrays]
    groups = policy.groups(arguments.size)
    step = policy.wrap(step)
    run = functools.partial(lax.scan, reverse=reverse, unroll=unroll)
    if groups == 1:
        last, ys = run(step, carry, xs, length=arguments.size)
    else:
        length = arguments.size // groups
        inner = policy.wrap(lambda c, group: run(step, c, group, length=length))
        grouped = [x.reshape(groups, length, *x.shape[1:]) for x in xs]
        last, ys = lax.scan(inner, carry, grouped, length=groups, reverse=reverse)
        ys = [y.reshape(groups * length, *y.shape[2:]) for y in ys]
    return start.rebuild(last), outputs[0].rebuild(ys, arguments.axis)


def _leading(array: Any, dim: int) -> jax.Array:
    array = jnp.asarray(array)
    return jnp.moveaxis(_lift.whole(array, (dim,)), dim, 0)


def same_axes(function: str, before: Any, after: Any) -> Any:
    """Give the carry of a step the axis order that it had before.

    Raises:
        AxisError: if an array has other axes than before.
    """

    def match(old: Any, new: Any) -> Any:
        if not (isinstance(old, NamedArray) and isinstance(new, NamedArray)) or old.names == new.names:
            return new
        if set(old.names) != set(new.names):
            was, now = (describe(x.names, getattr(x.array, "shape", None)) for x in (old, new))
            raise AxisError(message(function, "a step changes the axes of the carry", f"before: {was}", f"after: {now}"))
        return wrap(new, _lift.lined_up(new.array, new.names, old.names), old.names)

    if jax.tree.structure(before, is_leaf=is_named_array) != jax.tree.structure(after, is_leaf=is_named_array):
        return after
    return jax.tree.map(match, before, after, is_leaf=is_named_array)


def fold(
    fn: Callable[..., Any],
    axis: AxisSelector,
    *,
    remat: ScanCheckpointSpec = False,
    reverse: bool = False,
    unroll: int | bool = 1,
    is_scanned: Callable[[Any], bool] = is_scanned_by_default,
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

    looped = scan(step, axis, remat=remat, reverse=reverse, unroll=unroll, is_scanned=is_scanned)

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
    is_mapped: Callable[[Any], bool] = is_scanned_by_default,
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

    looped = scan(step, axis, remat=remat, reverse=reverse, unroll=unroll, is_scanned=is_mapped)

    @functools.wraps(fn)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        return looped(None, *args, **kwargs)[1]

    return mapped
