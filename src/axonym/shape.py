"""The sizes of an array by name."""

from collections.abc import ItemsView, Iterable, KeysView, Mapping, ValuesView
from typing import NoReturn

from .axis import Axis
from .errors import AxisError, ShapeKeyError, message, suggestion

__all__ = ["Shape"]


class Shape(Mapping[str, int]):
    """The sizes of named axes by name, like a dict in storage order, which cannot be iterated.

    A loop over it would give names, where code that was written for a positional array wants sizes, as in
    `batch, time = x.shape`, and the two cannot be told apart. So one says which: `keys()`, `values()` or `items()`.
    """

    __slots__ = ("_sizes",)

    def __init__(self, axes: Iterable[Axis]) -> None:
        self._sizes = {axis.name: axis.size for axis in axes}

    def __getitem__(self, name: str) -> int:
        try:
            return self._sizes[name]
        except (KeyError, TypeError):
            pass
        if isinstance(name, str):
            problem, hint = f"no axis named {name!r}", suggestion(name, self._sizes)
        else:
            problem, hint = (
                f"{name!r} is not the name of an axis",
                "a position counts in x.axes and in x.array.shape",
            )
        raise ShapeKeyError(message("shape", problem, self._facts(), hint=hint))

    def __iter__(self) -> NoReturn:
        problem = "sizes by name cannot be iterated or unpacked, which would give the names"
        hint = "write x.shape.values() for the sizes, x.names for the names, x.axes for both"
        raise AxisError(message("shape", problem, self._facts(), hint=hint))

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

    def _facts(self) -> str:
        return (
            f"array has: {', '.join(f'{name}={size}' for name, size in self.items()) or 'no axes'}"
        )
