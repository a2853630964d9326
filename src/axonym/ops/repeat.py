"""Functions that make axes longer by copies of elements or of whole arrays."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ..axis import AxisKey, AxisSelection, AxisSelector, Pairs, names_in, selection, selector
from ..base.calls import explain_calls
from ..base.dtypes import widen_positions
from ..base.kinds import type_text
from ..base.phrases import write_size_conflict
from ..engine import along, auto, checks, kernels
from ..engine.batched import apply_batched
from ..engine.core import Core, Operand, facts, shape_of, wrap
from ..engine.operands import convert_list, payload, static_count
from ..engine.renaming import share_by_renaming
from ..errors import ArgumentError, AxisSizeError, OperandError, message
from ..names import plans
from ..names.plans import Names

if TYPE_CHECKING:
    from ..array import NamedArray


__all__ = ["repeat", "tile"]


def repeat(
    x: "NamedArray",
    repeats: Operand | Sequence[int],
    axis: AxisSelector,
    total_repeat_length: int | None = None,
) -> "NamedArray":
    """Repeat each element along an axis, which keeps its name.

    Args:
        x: axes {axis, ...}.
        repeats: how often; one integer for all, or one for each position of `axis`, which may be traced and have more
            axes of `x`.
        axis: the axis.
        total_repeat_length: the new size of the axis, needed if `repeats` is traced or has more axes; the result is
            cut, or padded with the last element, to this size.

    Returns:
        The axes of `x`.

    Raises:
        AxisNotFoundError: if `axis` is missing.
        ArgumentError: if the new size is not known.

    Examples:
        >>> axn.repeat(axn.named([1, 2], "x"), 2, "x").tolist()
        [1, 1, 2, 2]
        >>> axn.repeat(axn.named([1, 2], "x"), [3, 1], "x").tolist()
        [1, 1, 1, 2]
    """
    name, _ = selector(axis, "repeat")
    if isinstance(repeats, int | np.integer) and not isinstance(repeats, bool):
        count = static_count("repeat", repeats, axis)
        length = total_repeat_length
        return along.along_with(jnp.repeat, x, axis, repeats=count, total_repeat_length=length)
    if isinstance(repeats, list | tuple):
        repeats = convert_list(repeats)
    values = payload("repeat", repeats)
    dtype = jnp.result_type(values)
    if not jnp.issubdtype(dtype, jnp.integer):
        raise OperandError(message("repeat", f"repeats must be integers, not {dtype}"))
    # Otherwise the repeats themselves say how long the result is, if they are known.
    if total_repeat_length is None:
        if isinstance(values, Tracer) or jnp.ndim(values) > 1:
            problem = "the new size of the axis cannot be computed from these repeats"
            raise ArgumentError(message("repeat", problem, hint="give it: total_repeat_length=..."))
        known = np.asarray(values)
        if not known.ndim:  # one number of NumPy, a static one
            return repeat(x, known[()], axis)
        static_count("repeat", known.min(initial=0), axis)
        total_repeat_length = int(known.sum())

    # A named array without names has one number for each position of its anonymous dimensions.
    is_one = not (repeats.names if isinstance(repeats, Core) else jnp.ndim(values))
    core: list[AxisSelection] = [axis, () if is_one else axis]
    return apply_batched(
        _repeat,
        (x, repeats),
        core,
        (name,),
        each=True,
        in_place=True,
        total_repeat_length=total_repeat_length,
    )


def _repeat(array: jax.Array, repeats: jax.Array, *, total_repeat_length: int) -> jax.Array:
    # JAX sums up the repeats in their own dtype, where those of few bits overflow.
    return jnp.repeat(array, widen_positions(repeats), total_repeat_length=total_repeat_length)


def tile(x: "NamedArray", reps: Mapping[AxisKey, int]) -> "NamedArray":
    """Repeat a whole array along axes.

    Args:
        x: the array.
        reps: a mapping from axes to numbers of copies; for an axis that `x` lacks, its size.

    Returns:
        The axes that `x` lacked, then those of `x`.

    Raises:
        ArgumentError: if a number is negative.

    Examples:
        >>> axn.tile(axn.named([1, 2], "x"), {"x": 2, "copy": 2})
        NamedArray(int32[copy=2, x=4])
        [[1 2 1 2]
         [1 2 1 2]]
    """
    if not isinstance(x, Core):
        raise checks.no_names("tile", x)
    (array,), names = x.node
    if not isinstance(reps, Mapping):
        problem = f"reps must be a dict from axes to ints, not {type_text(reps)}"
        hint = 'write {"pos": 2}'
        raise OperandError(message("tile", problem, f"array has: {facts(x)}", hint=hint))
    given = selection(tuple(reps), "tile")
    counts = tuple(static_count("tile", count, axis) for axis, count in reps.items())
    kernel = checks.run_plan("tile", (x,), _make_tiling, names, given, counts)
    return wrap(x, kernel.call(array), kernel.names)


@share_by_renaming("names", "given")
def _make_tiling(names: Names, given: Pairs, counts: tuple[int, ...]) -> kernels.Kernel:
    table = dict(zip(names_in(given), counts, strict=True))
    new = plans.without(tuple(table), names)
    target = (*new, *names)
    present: list[tuple[str, int | None]] = []
    for name, size in given:
        if name in names:
            present.append((name, size))
        elif size not in (None, table[name]):
            but = f"there are {table[name]} copies"
            raise AxisSizeError(write_size_conflict(name, size, but))
    there = tuple(present)

    def body(array: jax.Array) -> jax.Array:
        shape = shape_of("tile", array, names)
        checks.check_given("tile", there, names, shape)
        # The size of an added axis comes from copies of one position.
        lined = kernels.line_up(array, names, target)
        reps = [table.get(name, 1) for name in target]
        copy = partial(jnp.tile, reps=[*[1] * (len(shape) - len(names)), *reps])
        return auto.move_elements(copy, [lined])

    return kernels.Kernel(target, body)


explain_calls(globals(), __all__)
