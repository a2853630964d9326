"""Internal. Sums among devices whose results are only added: a compiler that adds first needs only one collective.

`Walk` asks it about each addition. It must not know layouts.
"""

from collections.abc import Mapping, Sequence, Set

from .equations import PASSING, Equation, Variable
from .moves import Sent

_ADDING = ("add", "add_any")
# These move numbers, and neither compute nor round them.
_MOVING = tuple(name for name in PASSING if name != "convert_element_type")


class Additions:
    """The arrays that are direct results of a sum among devices.

    If `a` and `b` are such sums, a compiler sums `a + b` among devices instead, which saves one of the two collectives.
    """

    def __init__(self) -> None:
        self._sums: dict[int, Sent] = {}

    def note(self, variable: Variable, sent: Sent) -> None:
        """Note that an array is the result of a collective."""
        self._sums[id(variable)] = sent

    def note_results(
        self, inside: Sequence[Variable], outside: Sequence[Variable], body: Sequence[Equation]
    ) -> None:
        """Note that the results of a body are the results of its equation, unless the body also reads them."""
        read = {id(one) for equation in body for one in equation.invars}
        for own, result in zip(inside, outside, strict=False):
            found = self._sums.get(id(own))
            if found is not None and id(own) not in read:
                self._sums[id(result)] = found

    def find_redundant(
        self,
        equation: Equation,
        readers: Mapping[int, Sequence[Equation]],
        returned: Set[int],
    ) -> Sent | None:
        """Return the redundant collective if an equation adds two arrays that were summed over the same devices."""
        name = equation.primitive.name
        if name not in (*_ADDING, *_MOVING):
            return None
        found: list[Sent] = []
        for variable in equation.invars:
            own = self._sums.get(id(variable))
            # Another reader needs the sum of this array by itself.
            if own is None or id(variable) in returned or len(readers[id(variable)]) != 1:
                return None
            found.append(own)
        first, *others = found
        for other in others:
            # Sums over other mesh axes, or in another loop, cannot be one.
            same = first.move.kind, first.move.mesh_axes, first.runs, first.move.elements
            if same != (other.move.kind, other.move.mesh_axes, other.runs, other.move.elements):
                return None
        self._sums[id(equation.outvars[0])] = first
        return others[0] if others and others[0] is not first else None
