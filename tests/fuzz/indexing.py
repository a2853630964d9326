"""The reference's indexing and updates: each is a table of the places of elements, read or written one by one."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.fuzz.table import Names, RejectedError, Table, lined, made, names_of_all, one_size, rounded

__all__ = ["FUNCTIONS", "Piece"]


class Piece:
    """A piece of an axis: `length` elements from `start`, of which those outside are missing."""

    def __init__(self, start: Any, length: int) -> None:
        self.start, self.length = start, length


def dslice(start: Any, length: int) -> Piece:
    return Piece(start, length)


def number(x: Any) -> int:
    """Return the number in a table without axes."""
    return int(x.values) if isinstance(x, Table) else int(x)


def selectors_of(item: Any) -> dict[str, Any]:
    """Read pairs of a name and a selector."""
    if isinstance(item, Mapping):
        return dict(item)
    return dict(zip(item[::2], item[1::2], strict=True))


def places(x: Table, item: Any) -> tuple[Table, np.ndarray]:
    """Return the place of each element that an index reads, clipped to the array, and which of them are outside."""
    selectors = selectors_of(item)
    ids = np.arange(x.values.size).reshape(x.values.shape)
    outside = np.zeros(ids.shape, bool)
    names = list(x.names)
    for name, selector in selectors.items():
        at = names.index(name)
        size = ids.shape[at]
        if isinstance(selector, slice):
            cut = [slice(None)] * at + [selector]
            ids, outside = ids[tuple(cut)], outside[tuple(cut)]
        elif isinstance(selector, Piece):
            wanted = number(selector.start) + np.arange(selector.length)
            if not size:
                raise RejectedError("a piece of nothing")
            missing = (wanted < 0) | (wanted >= size)
            if missing.all():
                raise RejectedError("a piece outside of the axis")
            ids, outside = ids.take(wanted.clip(0, size - 1), at), outside.take(wanted.clip(0, size - 1), at)
            outside = outside | missing.reshape([-1 if i == at else 1 for i in range(ids.ndim)])
        elif not isinstance(selector, Table | list) or (isinstance(selector, Table) and not selector.names):
            wanted = np.int64(number(selector))
            if not isinstance(selector, Table) and not -size <= wanted < size:
                raise RejectedError("out of range")
            if not size:
                raise RejectedError("an element of nothing")
            ids, outside = _element(ids, outside, at, wanted, size)
            names.pop(at)
    arrays = {name: s for name, s in selectors.items() if isinstance(s, list) or (isinstance(s, Table) and s.names)}
    tables = {
        name: Table(np.array(s, np.int64), (name,), "int32") if isinstance(s, list) else s for name, s in arrays.items()
    }
    if not tables:
        return Table(ids, tuple(names), "int32"), outside
    return _gathered(Table(ids, tuple(names), "int32"), outside, tables)


def _element(ids: np.ndarray, outside: np.ndarray, at: int, wanted: Any, size: int) -> tuple[np.ndarray, np.ndarray]:
    place = wanted + size if wanted < 0 else wanted
    clipped = min(max(int(place), 0), size - 1)
    return ids.take(clipped, at), outside.take(clipped, at) | (place != clipped)


def _gathered(ids: Table, outside: np.ndarray, tables: Mapping[str, Table]) -> tuple[Table, np.ndarray]:
    at = [ids.names.index(name) for name in tables]
    ranked = sorted(tables.values(), key=lambda table: -len(table.names))
    rest = tuple(name for name in ids.names if name not in tables)
    fresh = tuple(name for name in names_of_all(ranked) if name not in rest)
    adjacent = max(at) - min(at) + 1 == len(at)
    first = min(at) if adjacent else 0
    before = tuple(name for name in ids.names[:first] if name not in tables)
    target = (*before, *fresh, *(name for name in rest if name not in before))
    kept = Table(np.zeros([ids.shape[name] for name in rest]), rest, "float32")
    sizes = one_size([kept, *tables.values()])
    index: list[Any] = []
    missing = np.zeros([sizes[name] for name in target], bool)
    for name in ids.names:
        if name not in tables:
            index.append(np.arange(ids.shape[name]).reshape([-1 if each == name else 1 for each in target]))
            continue
        size = ids.shape[name]
        if not size:
            raise RejectedError("an element of nothing")
        wanted = lined(tables[name], target)
        wanted = np.where(wanted < 0, wanted + size, wanted)
        missing = missing | (wanted < 0) | (wanted >= size)
        index.append(wanted.clip(0, size - 1))
    shape = [sizes[name] for name in target]
    picked = np.broadcast_to(ids.values[tuple(index)], shape)
    return Table(picked, target, "int32"), np.broadcast_to(outside[tuple(index)], shape) | missing


def getitem(x: Table, item: Any) -> Table:
    where, outside = places(x, item)
    pieces = [s for s in selectors_of(item).values() if isinstance(s, Piece)]
    values = x.values.reshape(-1)[where.values]
    if pieces:
        # Beyond an end, a piece reads zeros, where an index array reads the nearest element.
        values = np.where(outside, np.zeros((), values.dtype), values)
        if len(pieces) != len(selectors_of(item)):
            _certain(outside)
    return Table(values, where.names, x.dtype)


def _certain(outside: np.ndarray) -> None:
    if outside.any():
        raise RejectedError("two rules for what lies outside")


def take(x: Table, axis: str, index: Any, *, mode: str = "fill", fill_value: float | None = None) -> Table:
    picks = index if isinstance(index, Table | list) else Table(np.array(index), (), "int32")
    size = x.shape[axis]
    if mode == "wrap":
        if not size:
            raise RejectedError("an element of nothing")
        wrapped = (
            [i % size for i in picks] if isinstance(picks, list) else Table(picks.values % size, picks.names, "int32")
        )
        return getitem(x, {axis: wrapped})
    if mode == "clip":
        low = (
            [max(i, 0) for i in picks]
            if isinstance(picks, list)
            else Table(np.maximum(picks.values, 0), picks.names, "int32")
        )
        return getitem(x, {axis: low})
    where, outside = places(x, {axis: picks})
    values = x.values.reshape(-1)[where.values]
    if outside.any() and fill_value is None:
        if x.kind != "float":
            raise RejectedError("filled with the lowest number")
        fill_value = np.nan
    return made(np.where(outside, fill_value if outside.any() else 0, values), where.names, x.dtype)


def take_along_axis(x: Table, indices: Table, axis: str) -> Table:
    return take(x, axis, indices)


def slice_(x: Table, axis: str, *, start: Any = 0, length: int) -> Table:
    size = x.shape[axis]
    first = number(start)
    if not isinstance(start, Table) and not 0 <= first <= size - length:
        raise RejectedError("out of range")
    if length > size:
        raise RejectedError("too long")
    first = min(max(first + size if first < 0 else first, 0), size - length)
    return Table(x.values.take(np.arange(first, first + length), x.names.index(axis)), x.names, x.dtype)


def updated_slice(x: Table, start: Mapping[str, Any], update: Any) -> Table:
    values = x.values.copy()
    update = update if isinstance(update, Table) else Table(np.array(update), (), x.dtype)
    cut = []
    for name in x.names:
        size = x.shape[name]
        length = update.shape.get(name, 1 if name in start else size)
        first = number(start.get(name, 0))
        if length > size or (not isinstance(start.get(name, 0), Table) and not 0 <= first <= size - length):
            raise RejectedError("does not fit")
        first = min(max(first + size if first < 0 else first, 0), size - length)
        cut.append(slice(first, first + length))
    values[tuple(cut)] = lined(update, x.names)
    return made(values, x.names, x.dtype)


class Part:
    """What `x.at[...]` selects."""

    def __init__(self, x: Table, item: Any) -> None:
        self.x = x
        self.where, self.outside = places(x, item)

    def _write(self, update: Any, write: Any) -> Table:
        update = update if isinstance(update, Table) else Table(np.array(update), (), self.x.dtype)
        if np.result_type(update.values, self.x.values) != self.x.values.dtype:
            raise RejectedError("a wider update")
        values = self.x.values.reshape(-1).copy()
        every = np.broadcast_to(lined(update, self.where.names), self.where.values.shape)
        write(values, self.where.values[~self.outside], every[~self.outside])
        return made(values.reshape(self.x.values.shape), self.x.names, self.x.dtype)

    def set(self, update: Any) -> Table:
        inside = self.where.values[~self.outside]
        if len(np.unique(inside)) != inside.size:
            raise RejectedError("an element is set twice")
        return self._write(update, np.ndarray.__setitem__)

    def add(self, update: Any) -> Table:
        return _summed(self._write(update, np.add.at))

    def multiply(self, update: Any) -> Table:
        return _summed(self._write(update, np.multiply.at))

    def min(self, update: Any) -> Table:
        return self._write(update, np.minimum.at)

    def max(self, update: Any) -> Table:
        return self._write(update, np.maximum.at)

    def get(self, *, fill_value: float) -> Table:
        values = self.x.values.reshape(-1)[self.where.values]
        return made(np.where(self.outside, fill_value, values), self.where.names, self.x.dtype)


@rounded
def _summed(x: Table) -> Table:
    return x


class At:
    """The type of `x.at`."""

    def __init__(self, x: Table) -> None:
        self.x = x

    def __getitem__(self, item: Any) -> Part:
        return Part(self.x, item)


Table.__getitem__ = getitem  # type: ignore[attr-defined]
Table.at = property(At)  # type: ignore[attr-defined]


def one_hot(x: Table, classes: Any, *, dtype: str) -> Table:
    name, size = classes
    return made(x.values[..., None] == np.arange(size), (*x.names, name), dtype)


def named(values: Any, names: Names) -> Table:
    array = np.asarray(values)
    return made(array, tuple(names), {"i": "int32", "b": "bool", "f": "float32"}[array.dtype.kind])


FUNCTIONS: dict[str, Any] = {
    "dslice": dslice,
    "take": take,
    "take_along_axis": take_along_axis,
    "slice": slice_,
    "updated_slice": updated_slice,
    "one_hot": one_hot,
    "named": named,
}
