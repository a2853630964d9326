"""Internal. Report the arrays that an operation reshards by itself, on Explicit mesh axes.

`limit_reshards` in `partitioning` sets the limit; `explicit` reports each move.
"""

import math
import warnings
from collections.abc import Sequence
from typing import Literal, NamedTuple

import jax

from ..base.callers import users_line
from ..current.features import Feature
from ..errors import ShardingError, describe, message
from ..names.plans import Names
from .assignment import Entry
from .context import current_mapping, map_names
from .layout import Layout


class Limit(NamedTuple):
    """The limit on the size of a reshard that nobody asked for, and how larger ones are reported.

    Attributes:
        limit_bytes: the bytes of the largest array that is not reported.
        action: raise an error, or warn.
    """

    limit_bytes: int
    action: Literal["error", "warn"]


LIMIT: Feature[Limit | None] = Feature(None, depends_on_names=True)
"""The limit of the innermost `limit_reshards`."""


def report_move(
    array: jax.Array, own: Sequence[Entry], wanted: Sequence[Entry], names: Names
) -> None:
    """Report, as `limit_reshards` says, that an operation sends a large array from device to device.

    Nothing is sent if each device keeps a part of its block. A move to the layout of the current mapping counts as
    asked for.

    Args:
        array: the array.
        own: the mesh axes of its dimensions.
        wanted: the mesh axes to which they move.
        names: its names, if they are known.
    """
    limit, nbytes = LIMIT.get(), math.prod(array.shape) * array.dtype.itemsize
    if not own or limit is None or nbytes <= limit.limit_bytes:
        return
    # More mesh axes behind those of a dimension cut each block further, where it is.
    if all(new[: len(old)] == old for old, new in zip(own, wanted, strict=True)):
        return
    if _is_mapped_to(names, array.shape, wanted):
        return

    problem = f"an operation moves an array of {nbytes:,} bytes between devices, though nobody asked for it"
    facts = (
        f"array has: {describe(names, array.shape)}",
        f"its layout: {Layout(own).spec}, then {Layout(wanted).spec}",
        f"limit: {limit.limit_bytes:,} bytes",
        f"in: {users_line()[0]}",
    )
    hint = "lay it out before, by axn.shard or the mapping; "
    hint += "or write that it may move: axn.shard(x, {...})"
    text = message("limit_reshards", problem, *facts, hint=hint)
    if limit.action == "error":
        raise ShardingError(text)
    warnings.warn(text, stacklevel=users_line()[1])


def _is_mapped_to(names: Names, shape: Sequence[int], entries: Sequence[Entry]) -> bool:
    """Return whether this is the layout that the current mapping gives to all dimensions of an array."""
    if current_mapping() is None or len(names) != len(entries):
        return False
    asked = map_names(dict(zip(names, shape, strict=True)))
    return [asked.get(name, ()) for name in names] == list(entries)
