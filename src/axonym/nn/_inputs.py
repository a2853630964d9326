"""What a layer demands of its input."""

from .. import plans
from ..array import NamedArray
from ..axis import Axis, AxisSelector, selector, shown
from ..core import Core, facts, shape_of
from ..errors import AxisClashError, AxisError, AxisNotFoundError, AxisSizeError, message, suggestion
from ..layout import current_scope
from ..ops import _lift

__all__ = ["check_input", "named_axis"]


def check_input(
    layer: str, x: NamedArray, inputs: tuple[Axis, ...], outputs: tuple[Axis, ...], *, blocks: bool = False
) -> None:
    """Check that an input has what a layer needs and not what it adds; inside of a shard_map, maybe a block of it."""
    if not isinstance(x, Core):
        raise _lift.unnamed(layer, x)
    names = x.names
    needed = [axis.name for axis in inputs]
    for name in needed:
        if name not in names:
            problem = f"the input lacks axis {name!r}"
            wants = f"the layer works over: {shown(*inputs)}"
            raise AxisNotFoundError(
                message(layer, problem, f"input has: {facts(x)}", wants, hint=suggestion(name, names))
            )
    shape = shape_of(layer, x.array, names)
    for axis in inputs:
        size = shape[names.index(axis.name) - len(names)]
        is_block = blocks and current_scope() is not None and size and not axis.size % size
        if size != axis.size and not is_block:
            problem = f"axis {axis.name!r} of the input has size {size}, but the layer was made for {axis.size}"
            raise AxisSizeError(message(layer, problem, f"input has: {facts(x)}"))
    for axis in outputs:
        if axis.name in names and axis.name not in needed:
            problem = f"the input already has axis {axis.name!r}, which the layer adds"
            hint = f"rename it first: x.rename({{{axis.name!r}: ...}})"
            raise AxisClashError(message(layer, problem, f"input has: {facts(x)}", hint=hint))


def named_axis(layer: str, x: NamedArray, axis: AxisSelector) -> str:
    """Return the name of an axis that a layer goes along, which the input must have."""
    if not isinstance(x, Core):
        raise _lift.unnamed(layer, x)
    name, _ = selector(axis, layer)
    try:
        plans.require(x.names, (name,))
    except AxisError as flaw:
        _lift.fail(layer, flaw, x)
    return name
