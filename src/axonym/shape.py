"""The sizes of an array by name."""

import warnings
from collections.abc import ItemsView, Iterable, KeysView, Mapping, ValuesView
from typing import NoReturn

from .axis import Axis
from .errors import AxisError, ShapeKeyError, message, suggestion

__all__ = ["Shape"]

_ELSEWHERE = "functions of other libraries take x.array, and axn.nmap(f)(x) applies f by name"


class Shape(Mapping[str, int]):
    """The sizes of named axes by name, like a dict in storage order, which cannot be iterated.

    A loop would give names, but code for positional arrays expects sizes, as in `batch, time = x.shape`, and no check
    could notice this. So you say which: `keys()`, `values()` or `items()`.

    Args:
        axes: the axes, with their sizes.

    Raises:
        ShapeKeyError: for anything but the name of an axis, as an index.
        AxisError: if it is iterated, unpacked or added to.

    Examples:
        >>> shape = axn.zeros({"batch": 2, "embed": 3}).shape
        >>> shape["embed"], list(shape.values()), shape == {"embed": 3, "batch": 2}
        (3, [2, 3], True)
    """

    __slots__ = ("_sizes",)

    def __init__(self, axes: Iterable[Axis]) -> None:
        self._sizes = {axis.name: axis.size for axis in axes}

    def __getitem__(self, name: str) -> int:
        # A list is not hashable. The error is raised below, so that it has no other one as its context.
        try:
            return self._sizes[name]
        except (KeyError, TypeError):
            pass
        if isinstance(name, str):
            problem, hint = f"no axis named {name!r}", suggestion(name, self._sizes)
        else:
            problem = f"{name!r} is not the name of an axis"
            hint = f"a position counts in x.axes and in x.array.shape; {_ELSEWHERE}"
        raise ShapeKeyError(message("shape", problem, self._facts(), hint=hint))

    def __iter__(self) -> NoReturn:
        raise self._refuse_use("iterated or unpacked, which would give the names")

    def __add__(self, other: object) -> NoReturn:
        raise self._refuse_use("added to others, which have no names")

    __radd__ = __add__

    def __eq__(self, other: object) -> bool:
        # A tuple of other sizes differs from the shape of any array, so that False is right.
        if isinstance(other, tuple | list) and other and list(other) == list(self.values()):
            problem = f"sizes by name are never equal to {other!r}"
            hint = 'write x.shape == {"batch": 8}, or x.array.shape == (8,)'
            warnings.warn(message("shape", problem, self._facts(), hint=hint), stacklevel=2)
        return super().__eq__(other)

    def __len__(self) -> int:
        return len(self._sizes)

    def __contains__(self, name: object) -> bool:
        return name in self._sizes

    def __repr__(self) -> str:
        return repr(self._sizes)

    def __or__(self, other: Mapping[str, int]) -> dict[str, int]:
        return {**self, **other}

    def __ror__(self, other: Mapping[str, int]) -> dict[str, int]:
        return {**other, **self}

    def keys(self) -> KeysView[str]:
        """Return the names, in storage order."""
        return self._sizes.keys()

    def values(self) -> ValuesView[int]:
        """Return the sizes, in storage order."""
        return self._sizes.values()

    def items(self) -> ItemsView[str, int]:
        """Return pairs of a name and a size, in storage order."""
        return self._sizes.items()

    def _refuse_use(self, use: str) -> AxisError:
        problem = f"sizes by name cannot be {use}"
        hint = "write x.shape.values() for the sizes, x.names for the names, x.axes for both"
        return AxisError(message("shape", problem, self._facts(), hint=f"{hint}; {_ELSEWHERE}"))

    def _facts(self) -> str:
        sizes = ", ".join(f"{name}={size}" for name, size in self.items())
        return f"array has: {sizes or 'no axes'}"
