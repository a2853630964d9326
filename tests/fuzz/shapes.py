"""The reference's changes of shape: order, splitting, merging, joining, copies and padding; and its contractions."""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from types import EllipsisType
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from tests.fuzz.table import RejectedError, Table, dtype_of, lined, made, names_of_all, one_size, rounded

__all__ = ["FUNCTIONS", "Axis"]


class Axis(NamedTuple):
    """A name and a size."""

    name: str
    size: int


def rename(x: Table, renames: Mapping[str, str]) -> Table:
    return Table(x.values, tuple(renames.get(name, name) for name in x.names), x.dtype)


def rearrange(x: Table, order: str | Sequence[str | EllipsisType], **bindings: int) -> Table:
    if isinstance(order, str):
        return _by_expression(x, order, bindings)
    rest = [name for name in x.names if name not in order]
    names = list(itertools.chain.from_iterable(rest if entry is ... else [entry] for entry in order))
    return Table(lined(x, names), tuple(names), x.dtype)


def flatten_axes(x: Table, old: Sequence[str], new: str) -> Table:
    """Merge axes in the place of the first of them."""
    first = min(old, key=x.names.index)
    order = list(
        itertools.chain.from_iterable(
            old if name == first else [name] for name in x.names if name == first or name not in old
        )
    )
    names = [new if name == first else name for name in x.names if name == first or name not in old]
    values = lined(x, order)
    shape = [math.prod(x.shape[each] for each in old) if name == new else x.shape[name] for name in names]
    return Table(values.reshape(shape), tuple(names), x.dtype)


def flatten(x: Table, new: str) -> Table:
    return Table(x.values.reshape(-1), (new,), x.dtype)


def unflatten_axis(x: Table, axis: str, new: Mapping[str, int]) -> Table:
    if math.prod(new.values()) != x.shape[axis]:
        raise RejectedError("the sizes do not fit")
    names = list(itertools.chain.from_iterable(new if name == axis else [name] for name in x.names))
    return Table(
        x.values.reshape([new.get(name) if name in new else x.shape[name] for name in names]), tuple(names), x.dtype
    )


def broadcast_axis(x: Table, axes: Mapping[str, int]) -> Table:
    fresh = {name: size for name, size in axes.items() if name not in x.names}
    values = np.broadcast_to(x.values, (*fresh.values(), *x.values.shape))
    return Table(values, (*fresh, *x.names), x.dtype)


def squeeze(x: Table, axis: str) -> Table:
    if x.shape[axis] != 1:
        raise RejectedError("not of size one")
    return Table(x.values.squeeze(x.names.index(axis)), tuple(name for name in x.names if name != axis), x.dtype)


def stack(axis: str, arrays: Sequence[Table]) -> Table:
    one_size(arrays)
    names = arrays[0].names
    values = np.stack([_exactly(x, names) for x in arrays])
    return made(values, (axis, *names), _joint(arrays))


def _exactly(x: Table, names: Sequence[str]) -> np.ndarray:
    if set(x.names) != set(names):
        raise RejectedError("other axes")
    return lined(x, names)


def _joint(arrays: Sequence[Table]) -> str:
    return dtype_of(lambda *own: jnp.stack(own), *arrays)


def concatenate(axis: str, arrays: Sequence[Table]) -> Table:
    one_size([Table(x.values.take(0, x.names.index(axis)) if x.shape[axis] else x.values.sum(x.names.index(axis)),
                    tuple(name for name in x.names if name != axis), x.dtype) for x in arrays])  # fmt: skip
    names = arrays[0].names
    values = np.concatenate([_exactly(x, names) for x in arrays], names.index(axis))
    return made(values, names, _joint(arrays))


def split(x: Table, axis: str, new: Sequence[Axis]) -> tuple[Table, ...]:
    if sum(size for _, size in new) != x.shape[axis]:
        raise RejectedError("the sizes do not add up")
    ends = np.cumsum([size for _, size in new])[:-1]
    parts = np.split(x.values, ends, x.names.index(axis))
    return tuple(
        rename(Table(part, x.names, x.dtype), {axis: name}) for part, (name, _) in zip(parts, new, strict=True)
    )


def unbind(x: Table, axis: str) -> tuple[Table, ...]:
    at = x.names.index(axis)
    rest = tuple(name for name in x.names if name != axis)
    return tuple(Table(x.values.take(i, at), rest, x.dtype) for i in range(x.shape[axis]))


def delete(x: Table, index: Any, axis: str) -> Table:
    return Table(np.delete(x.values, index, x.names.index(axis)), x.names, x.dtype)


def insert(x: Table, index: Any, values: float, axis: str) -> Table:
    return made(np.insert(x.values, index, values, x.names.index(axis)), x.names, x.dtype)


def repeat(x: Table, repeats: Any, axis: str) -> Table:
    return Table(np.repeat(x.values, repeats, x.names.index(axis)), x.names, x.dtype)


def tile(x: Table, reps: Mapping[str, int]) -> Table:
    wide = broadcast_axis(x, {name: 1 for name in reps if name not in x.names})
    return Table(np.tile(wide.values, [reps.get(name, 1) for name in wide.names]), wide.names, x.dtype)


def pad(
    x: Table, widths: Mapping[str, tuple[int, int]], *, mode: str = "constant", constant_values: float = 0
) -> Table:
    every = [widths.get(name, (0, 0)) for name in x.names]
    if mode != "constant":
        if any(not x.shape[name] for name in widths):
            raise RejectedError("nothing to extend")
        return made(np.pad(x.values, every, mode), x.names, x.dtype)  # type: ignore[call-overload]
    return made(np.pad(x.values, every, constant_values=constant_values), x.names, x.dtype)


# contractions


@rounded
def _contracted(arrays: Sequence[Table], out: Sequence[str]) -> Table:
    """Multiply arrays over all their axes, and sum over those that are not in `out`."""
    every = names_of_all(arrays)
    sizes = one_size(arrays)
    lone = [name for name in every if name not in out and sum(name in x.names for x in arrays) == 1]
    if lone and len(arrays) > 1 and not all(np.isfinite(x.values).all() for x in arrays):
        raise RejectedError(
            "infinite, or not a number: as the sum of one operand is taken before the product or after it"
        )
    product = np.ones([sizes[name] for name in every])
    for x in arrays:
        product = product * lined(x, every)
    dtype = (
        dtype_of(jnp.einsum, "a->a", arrays[0]) if len(arrays) == 1 else dtype_of(lambda *own: jnp.stack(own), *arrays)
    )
    if made(0, (), dtype).kind == "bool":
        product = product != 0
        summed: Any = product.any(tuple(every.index(name) for name in every if name not in out))
    else:
        summed = product.sum(tuple(every.index(name) for name in every if name not in out))
    kept = tuple(name for name in every if name in out)
    return made(np.transpose(summed, [kept.index(name) for name in out]), tuple(out), dtype)


def dot(*arrays: Table, axis: Any, out_axes: Sequence[str] | None = None) -> Table:
    every = names_of_all(arrays)
    over = every if axis is None else (axis,) if isinstance(axis, str) else tuple(axis)
    rest = [name for name in every if name not in over]
    if out_axes is None:
        return _contracted(arrays, rest)
    named = [name for name in out_axes if name is not ...]
    order = itertools.chain.from_iterable(
        [name for name in rest if name not in named] if entry is ... else [entry] for entry in out_axes
    )
    return _contracted(arrays, list(order))


def outer(x: Table, y: Table) -> Table:
    return _contracted([x, y], names_of_all([x, y]))


def vecdot(x: Table, y: Table, axis: str) -> Table:
    conjugate = made(np.conj(x.values), x.names, x.dtype)
    return dot(conjugate, y, axis=axis)


# expressions

_TOKEN = re.compile(r"->|\.\.\.|[{}(),:]|\w+")


class _Group(NamedTuple):
    name: str | None
    parts: list[str]


def _terms(text: str) -> tuple[list[_Group], bool]:
    """Read one side of an expression: its axes, groups in parentheses among them, and whether it has braces."""
    tokens = _TOKEN.findall(text)
    braces = bool(tokens) and tokens[0] == "{"
    if braces:
        tokens = tokens[1:-1]
    groups: list[_Group] = []
    inside: _Group | None = None
    for token in tokens:
        if token == "(":
            inside = _Group(None, [])
        elif token == ")" and inside is not None:
            groups.append(inside)
            inside = None
        elif token == ":" and inside is not None:
            inside = _Group(inside.parts[0], [])
        elif inside is not None:
            inside.parts.append(token)
        else:
            groups.append(_Group(token, [token]))
    return groups, braces


def _by_expression(x: Table, text: str, sizes: Mapping[str, int]) -> Table:
    left, right = text.split("->")
    given, braces = _terms(left)
    wanted, _ = _terms(right)
    meaning: dict[str, str] = {}
    rest: list[str] = []
    if braces:
        bound = [(group, group.name or "") for group in given]
        rest = [name for name in x.names if name not in {name for _, name in bound}]
    else:
        places = [group.name for group in given]
        at = places.index("...") if "..." in places else len(places)
        tail = len(places) - at - 1 if "..." in places else 0
        rest = list(x.names[at : len(x.names) - tail]) if "..." in places else []
        names = [*x.names[:at], *x.names[len(x.names) - tail :]] if "..." in places else list(x.names)
        bound = list(zip([group for group in given if group.name != "..."], names, strict=True))
    for group, name in bound:
        if group.parts == [group.name]:
            meaning[group.parts[0]] = name
            continue
        known = {part: sizes[part] for part in group.parts if part in sizes}
        open_ = [part for part in group.parts if part not in sizes]
        total = x.shape[name]
        for part in open_:
            known[part] = total // math.prod(known.values())
        x = unflatten_axis(x, name, {part: known[part] for part in group.parts})
        meaning |= {part: part for part in group.parts}
    order: list[str] = []
    merged: list[tuple[list[str], str]] = []
    for group in wanted:
        parts = list(itertools.chain.from_iterable(rest if p == "..." else [meaning[p]] for p in group.parts))
        order += parts
        if group.parts != [group.name] and group.name is not None:
            merged.append((parts, group.name))
    x = rearrange(x, order)
    for parts, name in merged:
        x = flatten_axes(x, parts, name)
    return x


def einsum(text: str, *arrays: Table) -> Table:
    left, right = text.split("->")
    wanted = [group.name or "" for group in _terms(right)[0]]
    every = names_of_all(arrays)
    if not left.strip():
        return _contracted(arrays, wanted)
    meaning: dict[str, str] = {}
    named: set[str] = set()
    braced = "{" in left
    for term, x in zip(left.split(","), arrays, strict=True):
        places = [group.name or "" for group in _terms(term)[0]]
        if braced:
            meaning |= {name: name for name in places if name != "..."}
            continue
        at = places.index("...") if "..." in places else len(places)
        tail = places[at + 1 :]
        meaning |= dict(zip(places[:at], x.names, strict=False))
        meaning |= dict(zip(reversed(tail), reversed(x.names), strict=False))
    named = set(meaning.values())
    rest = [name for name in every if name not in named]
    here = [meaning.get(name, name) for name in wanted]
    if braced and "..." not in wanted:
        if "..." in left:
            rest = []
        rest = [name for name in rest if name not in here]
        return _contracted(arrays, [*rest, *here])
    rest = [name for name in rest if name not in here]
    out = itertools.chain.from_iterable(rest if name == "..." else [name] for name in here)
    return _contracted(arrays, list(out))


# two axes as the rows and columns of matrices


def _offsets(x: Table, rows: str, columns: str) -> np.ndarray:
    row = np.arange(x.shape[rows]).reshape([-1 if name == rows else 1 for name in x.names])
    column = np.arange(x.shape[columns]).reshape([-1 if name == columns else 1 for name in x.names])
    return column - row


def tril(x: Table, rows: str, columns: str, k: int = 0) -> Table:
    return made(np.where(_offsets(x, rows, columns) <= k, x.values, 0), x.names, x.dtype)


def triu(x: Table, rows: str, columns: str, k: int = 0) -> Table:
    return made(np.where(_offsets(x, rows, columns) >= k, x.values, 0), x.names, x.dtype)


def diagonal(x: Table, rows: str, columns: str, new: str, offset: int = 0) -> Table:
    values = np.diagonal(x.values, offset, x.names.index(rows), x.names.index(columns))
    rest = tuple(name for name in x.names if name not in (rows, columns))
    return Table(values, (*rest, new), x.dtype)


@rounded
def trace(x: Table, rows: str, columns: str, offset: int = 0) -> Table:
    part = diagonal(x, rows, columns, "_", offset)
    return made(part.values.sum(-1), part.names[:-1], dtype_of(jnp.sum, x))


def diag(x: Table, axis: str, rows: str, columns: str, k: int = 0) -> Table:
    size = x.shape[axis] + abs(k)
    rest = tuple(name for name in x.names if name != axis)
    values = np.zeros((*(x.shape[name] for name in rest), size, size), x.values.dtype)
    at = np.arange(x.shape[axis])
    values[..., at + max(-k, 0), at + max(k, 0)] = lined(x, (*rest, axis))
    return Table(values, (*rest, rows, columns), x.dtype)


FUNCTIONS: dict[str, Any] = {
    fn.__name__: fn
    for fn in (
        rename, rearrange, flatten_axes, flatten, unflatten_axis, broadcast_axis, squeeze, stack, concatenate, split,
        unbind, delete, insert, repeat, tile, pad, dot, outer, einsum, tril, triu, diagonal, trace, diag,
    )
}  # fmt: skip
FUNCTIONS["vecdot"] = vecdot
