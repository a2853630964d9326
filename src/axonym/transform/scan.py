"""Loops over a named axis: `scan`, `fold` and `map`, whose step is compiled once.

`scan` has a carry and outputs, `fold` only a carry, and `map` only outputs. All three run position by position, so that
memory holds the intermediates of one step; `vmap` computes all positions at once.
"""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from ..axis import AxisSelector
from ..base.calls import explain_calls
from .checkpoint import ScanCheckpointSpec
from .loop import is_scanned_by_default, loop

__all__ = ["fold", "map", "scan"]

P = ParamSpec("P")
R = TypeVar("R")
Carry = TypeVar("Carry")
Output = TypeVar("Output")


def scan(
    f: Callable[P, tuple[Carry, Output]],
    axis: AxisSelector,
    *,
    remat: ScanCheckpointSpec = False,
    reverse: bool = False,
    unroll: int | bool = 1,
    is_scanned: object = is_scanned_by_default,
    out_axis: int = 0,
) -> Callable[P, tuple[Carry, Output]]:
    """Loop over an axis with a carry.

    `scan(f, axis)(init, *args, **kwargs)` calls `f(carry, *args, **kwargs)`, which returns the next carry and an
    output, once per position. Named arrays that have the axis, and plain arrays over dimension 0, are passed position
    by position; everything else is passed whole. `jax.lax.scan` takes one tree of arrays, all over dimension 0.

    Outside other transformations, the compiled loop is kept as long as `f` lives, and reused by later calls with arrays
    of the same shapes. Until then, values that `f` closes over must not change, as with `jax.lax.scan`; arguments may.
    A loop whose step closes over arrays with dimensions is not kept, so that no program holds copies of them.

    Args:
        f: the step. Its arguments lack the axis; the carry that it returns has the same axes as the carry that it got.
        axis: the axis; an `Axis` if no argument has it.
        remat: what to keep for the backward pass, see `ScanCheckpointPolicy`.
        reverse: run from the last position to the first.
        unroll: the number of steps in one iteration of the compiled loop; True unrolls all.
        is_scanned: which of the arguments' leaves may be scanned: a function of a leaf, a bool, or a tree of these that
            is a prefix of `(args, kwargs)`.
        out_axis: the place of the axis in the outputs, as in `jax.vmap`: 0 is first, and -1 last.

    Returns:
        A function that returns the last carry and the outputs, stacked along the axis in the order of positions.

    Raises:
        AxisSizeError: if sizes of the axis differ or are unknown.
        AxisError: if a step changes the axes of the carry.
        AxisClashError: if an output already has the axis.
        ArgumentError: if an output has no such place as `out_axis`.
        OperandError: if a step does not return a pair, or changes the structure or a dtype of the carry.

    Examples:
        >>> Time = axn.Axis("time", 4)
        >>> total, sums = axn.scan(lambda carry, x: (carry + x, carry + x), Time)(axn.zeros(()), axn.ones(Time))
        >>> sums
        NamedArray(float32[time=4])
        [1. 2. 3. 4.]
    """
    return loop("scan", f, axis, remat, reverse, unroll, is_scanned, out_axis=out_axis)


def fold(
    fn: Callable[P, R],
    axis: AxisSelector,
    *,
    remat: ScanCheckpointSpec = False,
    reverse: bool = False,
    unroll: int | bool = 1,
    is_scanned: object = is_scanned_by_default,
) -> Callable[P, R]:
    """Loop over an axis with a carry and no outputs: `fn(carry, *args, **kwargs)` returns the next carry.

    See `scan` for the other arguments and for errors.

    Args:
        fn: the step.

    Returns:
        A function that returns the last carry.

    Examples:
        >>> Time = axn.Axis("time", 4)
        >>> axn.fold(lambda carry, x: carry + x, Time)(axn.zeros(()), axn.ones(Time)).item()
        4.0
    """
    # `_no_output` is one function for all calls: compiled loops are found by the identity of the step and of it.
    run = loop("fold", fn, axis, remat, reverse, unroll, is_scanned, pairs=_no_output)

    @functools.wraps(fn)
    def run_fold(init: object, *args: object, **kwargs: object) -> Any:
        return run(init, *args, **kwargs)[0]

    return cast("Callable[P, R]", run_fold)


def map(
    fn: Callable[P, R],
    axis: AxisSelector,
    *,
    remat: ScanCheckpointSpec = False,
    reverse: bool = False,
    unroll: int | bool = 1,
    is_mapped: Any = is_scanned_by_default,
    out_axis: int = 0,
) -> Callable[P, R]:
    """Apply a function at each position of an axis in sequence; `vmap` does so in parallel.

    See `scan` for the other arguments and for errors.

    Args:
        fn: a function whose array arguments lack the axis.
        is_mapped: which leaves of the arguments may be mapped, as `is_scanned` of `scan`.

    Returns:
        A function that returns the results, stacked along the axis.

    Examples:
        >>> Time = axn.Axis("time", 3)
        >>> axn.map(lambda x: x * 2, Time)(axn.ones(Time)).tolist()
        [2.0, 2.0, 2.0]
    """
    run = loop(
        "map", fn, axis, remat, reverse, unroll, is_mapped, pairs=_no_carry, out_axis=out_axis
    )

    @functools.wraps(fn)
    def run_map(*args: P.args, **kwargs: P.kwargs) -> R:
        results: R = run(None, *args, **kwargs)[1]
        return results

    return run_map


def _no_output(_: str, fn: Callable[..., Any], *args: object, **kwargs: object) -> tuple[Any, None]:
    return fn(*args, **kwargs), None


def _no_carry(
    _: str, fn: Callable[..., Any], carry: None, *args: object, **kwargs: object
) -> tuple[None, Any]:
    return carry, fn(*args, **kwargs)


explain_calls(globals(), __all__)
