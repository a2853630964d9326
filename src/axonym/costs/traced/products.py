"""Internal. Products on Auto mesh axes whose operands are split along one mesh axis in different dimensions.

`Walk` asks what the compiler gathers for them. On Explicit axes, types have settled it before.
"""

from collections.abc import Mapping, Sequence

from ...engine import find_auto_axes, only, without
from .equations import Equation, Value, divide_shape, label_dimensions
from .lookups import Part
from .moves import Move


def find_product_moves(
    equation: Equation, inputs: Sequence[Value], mesh: Mapping[str, int]
) -> list[Part]:
    """List the all-gathers of the operands of a product, so that each mesh axis divides one of its dimensions."""
    auto = find_auto_axes(equation.outvars[0].aval.sharding.mesh)
    if not auto:
        return []
    left, right = inputs[:2]
    numbers = equation.params["dimension_numbers"]
    (left_over, right_over), (left_shared, right_shared) = numbers
    labels = label_dimensions(left, right, numbers)
    sides = (
        (left, "left", dict(zip(left_over, left_over, strict=True)), left_shared),
        (right, "right", dict(zip(right_over, left_over, strict=True)), right_shared),
    )
    # One mesh axis cannot divide two dimensions of a result: the operand that loses it is gathered.
    found: list[Part] = []
    for value, side, over, shared in sides:
        for i, entry in enumerate(value.entries):
            key = (side, i)
            if i in over:
                key = ("over", over[i])
            elif i in shared:
                key = ("shared", left_shared[shared.index(i)])
            if lost := only(without(entry, labels[key].entry), auto):
                part = divide_shape(value.shape, value.entries, mesh)
                found.append(Part(Move("all-gather", lost, part, (value.shape[i],)), value))
    return found
