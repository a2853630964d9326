"""Internal. Lookups in a table that is sharded along the same mesh axes as the indices.

`Walk` uses it to count the bytes that a `gather` of rows and its gradient send. Other gathers are left to
`propagation`.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...engine import Entry, only, without
from .equations import Equation, Value, Variable, divide_shape, find_layout
from .moves import Move, order


class Part(NamedTuple):
    """One collective of a lookup.

    Attributes:
        move: the collective.
        value: the array that is sent.
    """

    move: Move
    value: Value


def find_lookup_moves(
    equation: Equation, inputs: Sequence[Value], result: Value, mesh: Mapping[str, int]
) -> list[Part]:
    """List the collectives of a `gather` of rows, if each device has separate indices and a part of each row.

    The indices are gathered, and each device looks up its part of all rows. Then an all-to-all brings the parts of a
    row to the device that needs it.
    """
    table, indices = inputs[:2]
    numbers = equation.params["dimension_numbers"]
    dropped = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    by_rows = set(itertools.chain.from_iterable(indices.entries[:-1]))
    found: list[Part] = []
    for i, entry in enumerate(table.entries):
        # Only mesh axes that divide both the indices and the rows of the table need this.
        both = order(only(entry, by_rows), mesh)
        if not both or i in dropped or equation.params["slice_sizes"][i] != table.shape[i]:
            continue
        if entry not in indices.entries:
            # The parts of a row would be exchanged twice, so the compiler gathers the table.
            whole = divide_shape(table.shape, table.entries, mesh)
            found.append(Part(Move("all-gather", both, whole, (table.shape[i],)), table))
            continue
        ids = divide_shape(indices.shape, indices.entries, mesh)
        found.append(Part(Move("all-gather", both, ids, ()), indices))
        rows = divide_shape(result.shape, result.entries, mesh)
        found.append(Part(Move("all-to-all", both, rows, (table.shape[i],)), result))
    return found


def find_gradient_moves(
    equation: Equation,
    inputs: Sequence[Value],
    users: Sequence[Equation],
    parts: Entry,
    mesh: Mapping[str, int],
) -> tuple[list[Part], list[Entry]] | None:
    """List the collectives for the gradient of such a lookup, with the layout of the gradient after them.

    An all-to-all brings the parts of each row to the device that stores them, which adds them.

    Args:
        equation: a `scatter-add`.
        inputs: its operands.
        users: the equations that read its result.
        parts: the mesh axes along which devices have different rows.
        mesh: sizes of the mesh axes.

    Returns:
        The collectives and the layout; None if the only reader does not divide the gradient so. Devices then add the
        rows that they have, and send the sums.
    """
    if not parts or len(users) != 1 or users[0].primitive.name != "reshard":
        return None
    numbers = equation.params["dimension_numbers"]
    dropped = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    wanted: Variable = users[0].outvars[0]
    entries = list(find_layout(wanted).entries)
    table, updates = inputs[0], inputs[2]
    found: list[Part] = []
    # Each mesh axis of the rows must divide some dimension of the gradient.
    rest = parts
    for i, size in enumerate(table.shape):
        own = order(only(entries[i], rest), mesh)
        if i in dropped:
            entries[i] = table.entries[i]
        elif own:
            if entries[i] not in updates.entries:
                return None
            rest = without(rest, own)
            rows = divide_shape(updates.shape, updates.entries, mesh)
            found.append(Part(Move("all-to-all", own, rows, (size,)), updates))
    # Devices have partial sums along a mesh axis that divides no row.
    return None if rest else (found, entries)


def find_sum_layout(
    entries: Sequence[Entry], parts: Entry, users: Sequence[Equation]
) -> list[Entry]:
    """Return the layout of a sum over rows, if each device adds only the rows of the table that it stores.

    Args:
        entries: the mesh axes of the sum by those of its operands.
        parts: the mesh axes along which devices have different rows.
        users: the equations that read the sum.
    """
    found = list(entries)
    if len(users) != 1 or users[0].primitive.name != "reshard":
        return found
    wanted: Variable = users[0].outvars[0]
    used = set(itertools.chain(parts, *entries))
    for i, entry in enumerate(find_layout(wanted).entries):
        found[i] = found[i] or without(entry, used)
    return found
