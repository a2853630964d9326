"""Values that a plan chooses layer by layer."""

import math
from collections.abc import Iterator, Sequence
from typing import overload

from ...engine import Tree
from ...errors import ArgumentError, message

__all__ = ["EachLayer"]


class EachLayer(Sequence[Tree]):
    """Values that `axn.plan` chooses for each layer, as one of its `choices`: what to recompute, keep or offload.

    Layers are alike, so only the number of layers with each value matters. The step gets a list of values that the
    layers repeat in order, as `gradient_checkpointing` accepts it, or a single value for all layers. The plan finds
    these numbers from the costs of steps in which all layers have the same value. The search begins with the first
    value, so put the value that needs least memory first.

    It is a sequence: the values themselves, and then all lists.

    Args:
        values: the values to choose from.
        layers: the number of layers, or of layers in a stage if there may be a pipeline.
        longest: the largest length of a list. An iteration of the compiled loop has this many layers, so long lists
            take longer to compile. The actual length is the largest divisor of the number of layers up to `longest`
            that leaves at least two iterations. If the number of layers is prime, all layers have the same value.

    Raises:
        ArgumentError: if there are no values, or a number is not positive.

    Examples:
        >>> from axonym.partitioning import EachLayer
        >>> list(EachLayer([True, False], layers=80, longest=4))
        [True, False, [True, True, True, False], [True, False], [True, False, False, False]]
    """

    def __init__(self, values: Sequence[Tree], layers: int, *, longest: int = 10) -> None:
        for what, number in (("values", len(values)), ("layers", layers), ("longest", longest)):
            if number < 1:
                problem = f"the number of {what} must be positive, not {number}"
                if what == "longest":
                    problem = f"longest must be positive, not {number}"
                raise ArgumentError(message("EachLayer", problem))
        self.values = tuple(values)
        # The compiler would inline a loop of one iteration, and keep gathered weights of all its layers.
        longest = max(1, min(longest, layers // 2))
        length = max(own for own in range(1, longest + 1) if layers % own == 0)
        count = len(self.values)
        pure = [tuple(int(at == own) for at in range(count)) for own in range(count)]
        mixed = [own for own in _split(length, count) if max(own) < length]
        self.counts = (*pure, *mixed)
        self._items = [*self.values, *map(self._make_list, mixed)]

    def _make_list(self, counts: Sequence[int]) -> list[Tree]:
        # A list that repeats itself would only make the program longer.
        shortest = math.gcd(*counts)
        pairs = zip(self.values, counts, strict=True)
        return [value for value, count in pairs for _ in range(count // shortest)]

    @property
    def shares(self) -> list[tuple[float, ...]]:
        """For each item, the share of layers that have each value.

        Examples:
            >>> axn.partitioning.EachLayer([True, False], layers=4).shares
            [(1.0, 0.0), (0.0, 1.0), (0.5, 0.5)]
        """
        return [tuple(count / sum(own) for count in own) for own in self.counts]

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self._items)

    @overload
    def __getitem__(self, at: int) -> Tree: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Tree]: ...
    def __getitem__(self, at: int | slice) -> Tree:
        """Return an item by its number."""
        return self._items[at]

    def __repr__(self) -> str:
        """Return a text with the values and the number of lists."""
        return f"EachLayer({list(self.values)!r}, {len(self) - len(self.values)} lists)"


def _split(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Yield all ways to split a number into an ordered sum, starting with the largest first parts."""
    for first in range(total, -1, -1) if parts > 1 else [total]:
        rest = _split(total - first, parts - 1) if parts > 1 else [()]
        yield from ((first, *own) for own in rest)
