"""Internal. Products whose operands are split along one mesh axis in different dimensions.

`Walk` uses it to find the operand that the compiler gathers: if positions and features share a mesh axis, this is the
gradient of a product's result.
"""

from collections.abc import Iterator, Mapping, Sequence

from ...engine import without
from .equations import Equation, Value, Variable, divide_shape, label_dimensions
from .lookups import Part
from .moves import Move


def find_product_moves(
    equation: Equation, inputs: Sequence[Value], mesh: Mapping[str, int]
) -> Iterator[tuple[Variable, Part]]:
    """Yield the operands of a product that are gathered, so that each mesh axis divides only one dimension."""
    left, right = inputs[:2]
    (left_over, right_over), (left_shared, right_shared) = equation.params["dimension_numbers"]
    labels = label_dimensions(equation, inputs)
    sides = (
        (left, "left", dict(zip(left_over, left_over, strict=True)), left_shared),
        (right, "right", dict(zip(right_over, left_over, strict=True)), right_shared),
    )
    # One mesh axis cannot divide two dimensions of a result: the operand that loses it is gathered.
    for variable, (value, side, over, shared) in zip(equation.invars, sides, strict=True):
        for i, entry in enumerate(value.entries):
            key = (side, i)
            if i in over:
                key = ("over", over[i])
            elif i in shared:
                key = ("shared", left_shared[shared.index(i)])
            if lost := without(entry, labels[key].entry):
                part = divide_shape(value.shape, value.entries, mesh)
                move = Move("all-gather", lost, part, (value.shape[i],))
                yield variable, Part(move, value)
