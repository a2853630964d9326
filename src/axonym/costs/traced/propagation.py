"""Internal. The layout of a result if devices use only their shards, and the resulting unfinished sums.

`Walk` compares it with the layout in the type. One rule stands here for each kind of equation.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from ...engine import Entry, without
from .equations import Equation, Value, find_layout, label_dimensions


class Sum(NamedTuple):
    """An unfinished sum over a dimension: each device has a partial sum.

    Attributes:
        mesh_axes: the mesh axes along which devices have parts.
        size: the size of the dimension.
    """

    mesh_axes: Entry
    size: int


# The mesh axes of each dimension, and the unfinished sums.
Natural: TypeAlias = tuple[list[Entry], tuple[Sum, ...]]
Rule: TypeAlias = Callable[[Equation, Sequence[Value]], Natural]


def propagate(equation: Equation, inputs: Sequence[Value]) -> Natural:
    """Return the layout of an equation's first result if each device uses only its shards, and the unfinished sums."""
    name = equation.primitive.name
    if name.startswith(("reduce_", "arg")) and "axes" in equation.params:
        return _reduce(equation, inputs)
    if name.startswith("scatter"):
        return _scatter(equation, inputs)
    return _RULES.get(name, _align)(equation, inputs)


def _align(equation: Equation, inputs: Sequence[Value]) -> Natural:
    """Lay out each dimension like the first operand of the same rank that has the same size in this dimension."""
    shape = find_layout(equation.outvars[0]).shape
    entries: list[Entry] = [()] * len(shape)
    used: set[str] = set()
    for value in inputs:
        # A scalar, such as the operand of a clamp, does not count.
        if len(value.shape) != len(shape):
            continue
        for i, size in enumerate(shape):
            own = value.entries[i]
            if own and not entries[i] and value.shape[i] == size:
                entries[i] = without(own, used)
                used.update(entries[i])
    return entries, ()


def _reduce(equation: Equation, inputs: Sequence[Value]) -> Natural:
    value = inputs[0]
    axes = equation.params["axes"]
    entries: list[Entry] = []
    sums: list[Sum] = []
    for i, entry in enumerate(value.entries):
        if i not in axes:
            entries.append(entry)
        elif entry:
            sums.append(Sum(entry, value.shape[i]))
    return entries, tuple(sums)


def _multiply(equation: Equation, inputs: Sequence[Value]) -> Natural:
    entries: list[Entry] = []
    sums: list[Sum] = []
    for label in label_dimensions(equation, inputs).values():
        if not label.is_summed:
            entries.append(label.entry)
        elif label.entry:
            sums.append(Sum(label.entry, label.size))
    return entries, tuple(sums)


def _convolve(equation: Equation, inputs: Sequence[Value]) -> Natural:
    image, kernel = inputs[:2]
    numbers = equation.params["dimension_numbers"]
    entries: list[Entry] = [()] * len(image.shape)
    batch, features = numbers.lhs_spec[:2]
    entries[numbers.out_spec[0]] = image.entries[batch]
    entries[numbers.out_spec[1]] = kernel.entries[numbers.rhs_spec[0]]
    sums: list[Sum] = []
    places = numbers.lhs_spec[2:], numbers.rhs_spec[2:], numbers.out_spec[2:]
    for own, along, at in zip(*places, strict=True):
        # The gradient of a weight sums over the places of the result. Elsewhere, devices compute their own places.
        if over := kernel.entries[along]:
            sums.append(Sum(over, kernel.shape[along]))
        else:
            entries[at] = image.entries[own]
    # With groups of features, each device has complete groups, and sums over no others.
    is_grouped = image.shape[features] != kernel.shape[numbers.rhs_spec[1]]
    parts = image.entries[features] or kernel.entries[numbers.rhs_spec[1]]
    if parts and not is_grouped:
        sums.append(Sum(parts, image.shape[features]))
    return entries, tuple(sums)


def _transpose(equation: Equation, inputs: Sequence[Value]) -> Natural:
    entries = [inputs[0].entries[i] for i in equation.params["permutation"]]
    return entries, ()


def _broadcast(equation: Equation, inputs: Sequence[Value]) -> Natural:
    shape = equation.params["shape"]
    entries: list[Entry] = [()] * len(shape)
    for i, at in enumerate(equation.params["broadcast_dimensions"]):
        # A dimension of size 1 that is repeated is on all devices.
        if inputs[0].shape[i] == shape[at]:
            entries[at] = inputs[0].entries[i]
    return entries, ()


def _reshape(equation: Equation, inputs: Sequence[Value]) -> Natural:
    """Keep the mesh axes of the first of several dimensions that are merged or split.

    Two dimensions match if the product of the sizes from each one to the last is equal.
    """
    before: dict[int, Entry] = {}
    # The number of elements from a dimension to the last one is its place; sizes of 1 have none.
    place = 1
    for size, entry in zip(reversed(inputs[0].shape), reversed(inputs[0].entries), strict=True):
        place *= size
        if size > 1:
            before[place] = entry
    shape = find_layout(equation.outvars[0]).shape
    entries: list[Entry] = []
    place = 1
    for size in reversed(shape):
        place *= size
        own: Entry = before.pop(place, ()) if size > 1 else ()
        entries.append(own)
    entries.reverse()
    return entries, ()


def _gather(equation: Equation, inputs: Sequence[Value]) -> Natural:
    """Look up each row on the device that has it; the other devices contribute zeros."""
    table, indices = inputs[:2]
    numbers = equation.params["dimension_numbers"]
    sizes = equation.params["slice_sizes"]
    dropped = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    parts: list[str] = []
    sums: list[Sum] = []
    kept: list[Entry] = []
    rows = list(indices.entries[:-1])
    for i, at in zip(
        numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True
    ):
        # Each row of the indices has a table of its own.
        rows[at] = rows[at] or table.entries[i]
    for i, entry in enumerate(table.entries):
        if i in numbers.operand_batching_dims:
            continue
        # A slice of a divided dimension is on some of its devices.
        is_whole = sizes[i] == table.shape[i]
        if entry and (i in numbers.collapsed_slice_dims or not is_whole):
            parts += entry
            sums.append(Sum(entry, table.shape[i]))
        if i not in dropped:
            kept.append(entry if is_whole else ())
    shape = find_layout(equation.outvars[0]).shape
    entries: list[Entry] = []
    for i in range(len(shape)):
        source = kept if i in numbers.offset_dims else rows
        entries.append(without(source.pop(0), parts))
    return _drop_repeats(entries), tuple(sums)


def _scatter(equation: Equation, inputs: Sequence[Value]) -> Natural:
    """Add the updates of each device on this device; sharded updates give unfinished sums."""
    table, _, updates = inputs[:3]
    numbers = equation.params["dimension_numbers"]
    windows = list(numbers.update_window_dims)
    dropped = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    entries = list(table.entries)
    rows = [i for i in range(len(updates.shape)) if i not in numbers.update_window_dims]
    for i, at in zip(
        numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True
    ):
        entries[i] = entries[i] or updates.entries[rows[at]]
    for i, size in enumerate(table.shape):
        if i in dropped:
            continue
        # Dimensions of a window stand in the order of the table.
        at = windows.pop(0)
        if updates.shape[at] == size:
            entries[i] = entries[i] or updates.entries[at]
    # Updates along a mesh axis that divides no window are added on different devices.
    entries = _drop_repeats(entries)
    used = {axis for entry in entries for axis in entry}
    sums: list[Sum] = []
    for i, entry in enumerate(updates.entries):
        own = without(entry, used)
        if i not in numbers.update_window_dims and own:
            sums.append(Sum(own, updates.shape[i]))
    return entries, tuple(sums)


def _drop_repeats(entries: Sequence[Entry]) -> list[Entry]:
    """Keep a mesh axis only in the first of several dimensions that have it."""
    used: set[str] = set()
    found: list[Entry] = []
    for entry in entries:
        found.append(without(entry, used))
        used.update(entry)
    return found


_RULES: Mapping[str, Rule] = {
    "broadcast_in_dim": _broadcast,
    "conv_general_dilated": _convolve,
    "dot_general": _multiply,
    "gather": _gather,
    "reshape": _reshape,
    "squeeze": _reshape,
    "transpose": _transpose,
}
