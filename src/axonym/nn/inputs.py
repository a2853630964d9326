"""Internal. Checks of what layers get: inputs, the axis that a layer runs along, and positions.

Layers call these before they compute, so that an error names the layer and its axes, not an operation inside of it.
"""

import jax
import numpy as np

from ..array import NamedArray
from ..axis import Axis, AxisSelector, Pairs, selector, shown, sized
from ..base.kinds import type_text
from ..create import arange
from ..engine import checks
from ..engine.core import Core, facts, shape_of
from ..errors import AxisClashError, AxisSizeError, OperandError, message
from ..layout.scope import current_scope


def check_input(
    layer: str,
    x: NamedArray,
    inputs: tuple[Axis, ...],
    outputs: tuple[Axis, ...],
    *,
    blocks: bool = False,
) -> None:
    """Check that an input has the axes that a layer needs, and none that the layer adds.

    Args:
        layer: the name for errors.
        x: the input.
        inputs: the axes that `x` needs, of these sizes.
        outputs: the axes of the result that `x` must not have, unless they are inputs, too.
        blocks: whether `x` may be a local block inside of a `shard_map`, with a divisor of each size.

    Raises:
        AxisNotFoundError: if `x` lacks an input.
        AxisSizeError: if one has another size.
        AxisClashError: if `x` already has an output.
    """
    needed = tuple(axis.name for axis in inputs)
    if not isinstance(x, Core):
        raise checks.no_names(layer, x, *needed)
    names = x.names
    # Only names are checked here: a block may have other sizes, which the loop below compares.
    if not set(needed).issubset(names):
        checks.require(layer, x, needed, "input", needs=f"the layer works over: {shown(*inputs)}")

    shape = shape_of(layer, x.array, names)
    for axis in inputs:
        size = shape[names.index(axis.name) - len(names)]
        # A size that does not divide evenly is a mistake even inside of a shard_map.
        is_block = blocks and current_scope() is not None and size and not axis.size % size
        if size != axis.size and not is_block:
            problem = f"axis {axis.name!r} of the input has size {size}, but the layer was made for {axis.size}"
            raise AxisSizeError(message(layer, problem, f"input has: {facts(x)}"))

    for axis in outputs:
        if axis.name in names and axis.name not in needed:
            problem = f"the input already has axis {axis.name!r}, which the layer adds"
            hint = f"rename it first: x.rename({{{axis.name!r}: ...}})"
            raise AxisClashError(message(layer, problem, f"input has: {facts(x)}", hint=hint))


def list_sized_axes(pairs: Pairs) -> tuple[Axis, ...]:
    """Return the axes of a selection that were given with sizes, which an input must have."""
    return tuple(Axis(name, size) for name, size in pairs if size is not None)


def find_axis_name(layer: str, x: NamedArray, axis: AxisSelector) -> str:
    """Return the name of the axis that a layer runs along.

    Raises:
        AxisNotFoundError: if `x` lacks the axis.
        AxisSizeError: if `axis` is an `Axis` of another size.
    """
    if not isinstance(x, Core):
        raise checks.no_names(layer, x)
    name, _ = selector(axis, layer)
    if name not in x.names:
        checks.require(layer, x, name)
    return name


def check_positions(function: str, positions: object) -> None:
    """Check that positions are not an array without names; what else they may be is for the caller to check.

    Raises:
        OperandError: if they are a number or a plain array.
    """
    if isinstance(positions, int | np.ndarray | np.generic | jax.Array):
        problem = f"positions must be an axis or a NamedArray, not {type_text(positions)}"
        names = '"pos"' if np.ndim(positions) else "()"
        hint = f"name them: axn.named(positions, {names})"
        raise OperandError(message(function, problem, hint=hint))


def number_positions(function: str, positions: Axis | NamedArray) -> NamedArray:
    """Return positions as numbers; along an axis they count from zero.

    Raises:
        OperandError: if they are neither an axis nor a NamedArray.
    """
    if isinstance(positions, NamedArray):
        return positions
    check_positions(function, positions)
    return arange(sized(positions, function))
