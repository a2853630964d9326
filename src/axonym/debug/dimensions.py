"""Internal. The named axes along the dimensions of arrays inside a program, where arrays have no names.

Names come from the arguments and follow the operations. A dimension may hold several axes, such as merged batch and
positions, and an axis may be split over several dimensions, such as into microbatches. A new dimension, such as one of
`iota`, has no name until an operation combines it with a named dimension.
"""

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

Shape: TypeAlias = tuple[int, ...]


class Part(NamedTuple):
    """A dimension, or a part of one, along an axis: `first + step * coordinate` is a position of the axis.

    Attributes:
        name: the axis; empty if there is none, as in a constant.
        size: the number of coordinates.
        step: by how many positions the next coordinate advances.
        first: the position of the first coordinate.
    """

    name: str
    size: int
    step: int = 1
    first: int = 0


# The name of a lost axis: if it is chosen from, the other operands' elements have no known positions either.
_LOST = "?"
# The parts of one dimension, the last one varying fastest; and all dimensions.
Parts: TypeAlias = tuple[Part, ...]
Dimensions: TypeAlias = tuple[Parts, ...]


def start(names: Sequence[str], shape: Shape) -> Dimensions:
    """Return the dimensions of an array with names, which belong to its last dimensions."""
    padded = [*[""] * (len(shape) - len(names)), *names]
    return tuple((Part(*each),) for each in zip(padded, shape, strict=True))


def unknown(shape: Shape) -> Dimensions:
    """Return dimensions with unknown axes."""
    return start((), shape)


def follow(
    equation: Any, operands: Sequence[Dimensions], shapes: Sequence[Shape]
) -> list[Dimensions]:
    """Return the dimensions of the results of an operation.

    Args:
        equation: the operation.
        operands: the dimensions of its operands.
        shapes: the shapes of the results.
    """
    name = equation.primitive.name
    rule = _RULES.get(name) or (_reduce if name.startswith(("reduce_", "arg")) else None)
    if rule is None:
        return [merge(operands, shape) for shape in shapes]
    if name == "split":
        return _split(equation.params, operands[0])
    if name == "sort":
        return [_sort(equation.params, operands, shape) for shape in shapes]
    found = rule(equation.params, operands, shapes[0])
    # Devices and releases of JAX have operations of other forms; a name in a wrong place would mislead.
    fits = tuple(math.prod(part.size for part in parts) for parts in found) == shapes[0]
    return [found if fits else unknown(shapes[0])]


def _has_name(parts: Parts) -> bool:
    return bool(_list_names([parts]))


def merge(operands: Sequence[Dimensions], shape: Shape) -> Dimensions:
    """Return the dimensions of the result of an elementwise operation, which come from its operands."""
    found, unclear = list(unknown(shape)), set[str]()
    for operand, d in itertools.product(operands, range(len(shape))):
        is_alike = len(operand) == len(shape) and _count(operand[d]) == shape[d]
        if not is_alike or not _has_name(operand[d]):
            continue
        if not _has_name(found[d]):
            found[d] = operand[d]
        elif found[d] != operand[d]:
            # A rename, or elements that come from several positions, such as those of two microbatches.
            unclear |= _list_names([found[d]]) & _list_names([operand[d]])
    return forget(found, unclear)


def _choose(params: Any, operands: Sequence[Dimensions], shape: Shape) -> Dimensions:
    found = merge(operands, shape)
    lost = [
        d
        for operand in operands
        for d, parts in enumerate(operand)
        if len(operand) == len(shape) and parts[0].name == _LOST
    ]
    return forget(found, _list_names([found[d] for d in lost]))


def _list_names(dimensions: Sequence[Parts]) -> set[str]:
    return {part.name for parts in dimensions for part in parts} - {"", _LOST}


def forget(dimensions: Sequence[Parts], names: set[str]) -> Dimensions:
    """Return dimensions without some axes, which are no longer known."""
    return tuple(
        (Part(_LOST, _count(parts)),) if names & _list_names([parts]) else parts
        for parts in dimensions
    )


def _drop(dimensions: Sequence[Parts], gone: Collection[int]) -> Dimensions:
    """Remove dimensions that are summed over, or in which unknown positions are chosen."""
    kept = [parts for d, parts in enumerate(dimensions) if d not in gone]
    return forget(kept, _list_names([dimensions[d] for d in gone]))


def take(dimensions: Dimensions, d: int, index: int) -> Dimensions:
    """Return the dimensions of an array after one coordinate of a dimension is chosen."""
    digits = np.unravel_index(index, [part.size for part in dimensions[d]])
    pairs = zip(dimensions[d], digits, strict=True)
    moves = [(part.name, part.first + part.step * int(digit)) for part, digit in pairs]
    return _move([parts for i, parts in enumerate(dimensions) if i != d], moves)


def _move(dimensions: Sequence[Parts], moves: Sequence[tuple[str, int]]) -> Dimensions:
    """Shift the positions of axes by the offsets of removed dimensions."""
    found = [list(parts) for parts in dimensions]
    for name, by in moves:
        places = ((d, i) for d, parts in enumerate(found) for i in range(len(parts)))
        own = next(((d, i) for d, i in places if name and found[d][i].name == name), None)
        if own is not None:
            d, i = own
            found[d][i] = found[d][i]._replace(first=found[d][i].first + by)
    return tuple(map(tuple, found))


def _count(parts: Parts) -> int:
    return math.prod(part.size for part in parts)


def _reshape(params: Any, operands: Sequence[Dimensions], shape: Shape) -> Dimensions:
    every = [part for parts in operands[0] for part in parts]
    waiting = [part for part in every if part.size != 1]
    found: list[Parts] = []
    for size in shape:
        own: list[Part] = []
        while (rest := size // max(_count(tuple(own)), 1)) > 1:
            part = waiting.pop(0) if waiting else Part("", 0)
            if part.size and rest % part.size == 0:
                own.append(part)
            elif part.size and part.size % rest == 0:
                inner = part.size // rest
                own.append(part._replace(size=rest, step=part.step * inner))
                waiting.insert(0, part._replace(size=inner, first=0))
            else:
                return unknown(shape)
        found.append(tuple(own) or (Part("", size),))
    return _move(found, [(part.name, part.first) for part in every if part.size == 1])


def _broadcast(params: Any, operands: Sequence[Dimensions], shape: Shape) -> Dimensions:
    found = list(unknown(shape))
    for parts, d in zip(operands[0], params["broadcast_dimensions"], strict=True):
        if _count(parts) == shape[d]:
            found[d] = parts
    return tuple(found)


def _reduce(params: Any, operands: Sequence[Dimensions], shape: Shape) -> Dimensions:
    return _drop(operands[0], params.get("axes", ()))


def _squeeze(params: Any, operands: Sequence[Dimensions], shape: Shape) -> Dimensions:
    found = operands[0]
    for d in sorted((d % len(found) for d in params["dimensions"]), reverse=True):
        found = take(found, d, 0)
    return found


def _dot(params: Any, operands: Sequence[Dimensions], shape: Shape) -> Dimensions:
    contracted, batch = params["dimension_numbers"]
    gone = [operand[d] for operand, own in zip(operands, contracted, strict=False) for d in own]
    free = [
        parts
        for operand, *others in zip(operands, contracted, batch, strict=False)
        for d, parts in enumerate(operand)
        if d not in itertools.chain(*others)
    ]
    pairs = [(operands[0][i], operands[1][j]) for i, j in zip(*batch, strict=True)]
    shared = [one if _has_name(one) else other for one, other in pairs]
    # Positions that are contracted in one operand and free in the other are queries and keys: both stay.
    cut = {name for name in _list_names(gone) if _list_names(shared) & {name}}
    return forget([*shared, *free], cut)


def _slice(params: Any, operands: Sequence[Dimensions], shape: Shape) -> Dimensions:
    strides = params["strides"] or [1] * len(shape)
    each = zip(operands[0], params["start_indices"], shape, strides, strict=True)
    return _settle(operands[0], [_take(*one) for one in each])


def _slice_somewhere(params: Any, operands: Sequence[Dimensions], shape: Shape) -> Dimensions:
    pairs = zip(operands[0], shape, strict=True)
    return _settle(
        operands[0],
        [parts if _count(parts) == size else (Part("", size),) for parts, size in pairs],
    )


def _settle(before: Sequence[Parts], after: Sequence[Parts]) -> Dimensions:
    """Forget axes that a dimension had before but lost."""
    pairs = zip(before, after, strict=True)
    lost = [_list_names([old]) - _list_names([new]) for old, new in pairs]
    return forget(after, set().union(*lost))


def _take(parts: Parts, first: int, size: int, stride: int = 1) -> Parts:
    """Return the axes along a part of a dimension."""
    if size == _count(parts) and not first:
        return parts
    own, *others = parts
    if others or not own.name:
        return (Part("", size),)
    return (Part(own.name, size, own.step * stride, own.first + own.step * first),)


def _pad(params: Any, operands: Sequence[Dimensions], shape: Shape) -> Dimensions:
    each = zip(operands[0], params["padding_config"], shape, strict=True)
    found = [
        (Part("", size),) if inner else _take(parts, -low, size)
        for parts, (low, _, inner), size in each
    ]
    return _settle(operands[0], found)


def _reverse(params: Any, operands: Sequence[Dimensions], shape: Shape) -> Dimensions:
    found = [
        _take(parts, _count(parts) - 1, _count(parts), -1) if d in params["dimensions"] else parts
        for d, parts in enumerate(operands[0])
    ]
    return _settle(operands[0], found)


def _sort(params: Any, operands: Sequence[Dimensions], shape: Shape) -> Dimensions:
    found = list(_choose(params, operands, shape))
    d = params["dimension"]
    return _settle(found, [*found[:d], (Part("", shape[d]),), *found[d + 1 :]])


def _split(params: Any, operand: Dimensions) -> list[Dimensions]:
    d, sizes = params["axis"], params["sizes"]
    firsts = itertools.accumulate(sizes, initial=0)
    return [
        _settle(operand, [*operand[:d], _take(operand[d], first, size), *operand[d + 1 :]])
        for first, size in zip(firsts, sizes, strict=False)
    ]


def _concatenate(params: Any, operands: Sequence[Dimensions], shape: Shape) -> Dimensions:
    return _sort(params, operands, shape)


def _gather(params: Any, operands: Sequence[Dimensions], shape: Shape) -> Dimensions:
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    pairs = zip(operands[0], sizes, strict=True)
    found = [parts if _count(parts) == size else (Part("", size),) for parts, size in pairs]
    windows = _drop(_settle(operands[0], found), gone)
    own, others = iter(windows), iter(operands[1][:-1])
    return tuple(next(own if d in numbers.offset_dims else others) for d in range(len(shape)))


def _convolve(params: Any, operands: Sequence[Dimensions], shape: Shape) -> Dimensions:
    numbers, found = params["dimension_numbers"], list(unknown(shape))
    inputs, weights, outputs = numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec
    pairs = zip(inputs[2:], outputs[2:], strict=True)
    sources = [(outputs[0], operands[0][inputs[0]]), (outputs[1], operands[1][weights[0]])]
    for d, parts in (*sources, *((out, operands[0][i]) for i, out in pairs)):
        if _count(parts) == shape[d]:
            found[d] = parts
    return tuple(found)


_RULES: Mapping[str, Callable[[Any, Sequence[Dimensions], Shape], Dimensions]] = {
    "broadcast_in_dim": _broadcast,
    "concatenate": _concatenate,
    "conv_general_dilated": _convolve,
    "dot_general": _dot,
    "dynamic_slice": _slice_somewhere,
    "dynamic_update_slice": _choose,
    "gather": _gather,
    "pad": _pad,
    "reshape": _reshape,
    "rev": _reverse,
    "select_n": _choose,
    "slice": _slice,
    "sort": _sort,
    "split": lambda params, operands, shape: operands[0],
    "squeeze": _squeeze,
    "transpose": lambda params, operands, shape: tuple(
        operands[0][d] for d in params["permutation"]
    ),
}


def find_positions(
    dimensions: Dimensions, at: Any, fetch: Callable[[Any], np.ndarray[Any, Any]] = np.asarray
) -> dict[str, tuple[tuple[int, ...], int]]:
    """Return the positions along each axis where a mask is true, and the number of positions along the axis.

    Args:
        dimensions: the dimensions of the mask.
        at: the mask, which may be on devices.
        fetch: reads an array; only projections of the mask are read.
    """
    named = [
        parts if _has_name(parts) else (Part(f"dimension {d}", at.shape[d]),)
        for d, parts in enumerate(dimensions)
    ]
    found: dict[str, tuple[tuple[int, ...], int]] = {}
    for title, name, own in _group(named) if all(at.shape) else ():
        others = tuple(d for d in range(len(named)) if d not in own)
        where = np.argwhere(fetch(at.any(others)))
        positions, count = _decode(name, [named[d] for d in own], where)
        found[title] = tuple(sorted(set(positions.tolist()))), count
    return found


def _group(dimensions: Sequence[Parts]) -> list[tuple[str, str, list[int]]]:
    """Return each axis with its title and the dimensions that it is split over.

    Two dimensions with the same steps, such as queries and keys of scores, are two axes of one name.
    """
    groups: dict[str, tuple[str, list[int], list[Part]]] = {}
    for d, parts in enumerate(dimensions):
        for name in dict.fromkeys(part.name for part in parts if part.name not in {"", _LOST}):
            steps = [part for part in parts if part.name == name]
            _, own, known = groups.setdefault(name, (name, [], []))
            if any(_overlap(one, other) for one in known for other in steps):
                groups[f"{name} of dimension {d}"] = name, [d], steps
            else:
                own.append(d)
                known += steps
    return [(title, name, own) for title, (name, own, _) in groups.items()]


def _overlap(one: Part, other: Part) -> bool:
    low, high = sorted((one, other), key=lambda part: abs(part.step))
    # A single position, such as a device's, enumerates nothing.
    return min(one.size, other.size) > 1 and abs(low.step) * low.size > abs(high.step)


def _decode(
    name: str, dimensions: Sequence[Parts], at: np.ndarray[Any, Any]
) -> tuple[np.ndarray[Any, Any], int]:
    """Return the positions along one axis for elements at given coordinates."""
    positions, count = np.zeros(len(at), int), 1
    for parts, coordinates in zip(dimensions, at.T, strict=True):
        digits = np.unravel_index(coordinates, [part.size for part in parts])
        for part, digit in zip(parts, digits, strict=True):
            if part.name == name:
                positions += part.first + part.step * digit
                count *= part.size
    return positions, count
