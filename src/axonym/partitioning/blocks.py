"""Blocks that users write around a computation: its mapping, how pipelines cut, and which reshards are reported."""

import dataclasses
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any, Literal

from ..axis import AxisSelector, selector
from ..current.features import Block, Values, raise_at_next_read
from ..errors import ArgumentError, message
from ..layout.assignment import (
    AxisMapping,
    MeshAxes,
    ResourceMapping,
    checked_mapping,
    normalized,
)
from ..layout.context import MAPPING
from ..layout.records import LEDGER
from ..layout.reshards import LIMIT, Limit
from .options import MICROBATCHES, Microbatches

__all__ = ["axis_mapping", "limit_reshards", "pipelined"]


def axis_mapping(
    mapping: ResourceMapping, *, merge: bool = False, **more: MeshAxes
) -> AbstractContextManager[Any]:
    """Make a mapping the current one, inside a `with` block.

    Args:
        mapping: axis names to mesh axes; a tuple of mesh axes shards over all of them, None over none.
        merge: keep the entries of the current mapping; where both have a name, the new one wins.
        more: further entries, by keyword.

    Examples:
        >>> with axn.axis_mapping({"batch": "data"}, mlp="model"):
        ...     print(axn.current_mapping())
        {'batch': 'data', 'mlp': 'model'}
    """
    normal = normalized({**dict(checked_mapping(mapping)), **more})
    # An AxisMapping may be of a subclass, which stays as it is.
    kind = mapping if isinstance(mapping, AxisMapping) else normal

    def change(values: Values) -> Values:
        outer, ledger = MAPPING.pick(values), LEDGER.pick(values)
        entries = {**(outer or {}), **normal} if merge else dict(normal)
        inner = dataclasses.replace(kind, entries=tuple(entries.items()))
        if ledger is not None:
            values = LEDGER.put(values, ledger.entering(inner))
        return MAPPING.put(values, inner)

    return _MappingBlock(change, normal, _line_above(inspect.currentframe()))


class _MappingBlock(Block):
    """The block of an `axis_mapping`, which notices if it is never entered."""

    def __init__(
        self, change: Callable[[Values], Values], mapping: AxisMapping, place: str
    ) -> None:
        super().__init__(change)
        self._unused: tuple[AxisMapping, str] | None = mapping, place

    def __enter__(self) -> None:
        self._unused = None
        super().__enter__()

    def __del__(self) -> None:
        if self._unused is not None:
            mapping, place = self._unused
            facts = f"mapping: {mapping}", f"made in: {place}"
            problem = "a mapping was made, and never made current"
            hint = "use a block: with axn.axis_mapping(...):"
            text = message("axis_mapping", problem, *facts, hint=hint)
            raise_at_next_read(text)


def _line_above(frame: FrameType | None) -> str:
    """Write the line that called the function of a frame."""
    if frame is None or frame.f_back is None:
        return ""
    caller = frame.f_back
    return f"{caller.f_code.co_filename}, line {caller.f_lineno}"


def pipelined(axis: AxisSelector, microbatches: int) -> AbstractContextManager[Any]:
    """Say how pipelines cut their work, inside a `with` block.

    Where the current mapping has the layer axis of a `nn.Stacked` or an `nn.Interleaved`, each device applies its own
    layers, and microbatches go from one device to the next. A device starts with its next microbatch while the others
    work on theirs.

    Args:
        axis: the axis of the activations that is cut, such as the batch.
        microbatches: their number: a multiple of the number of stages. The more there are, the shorter devices wait.

    Raises:
        ArgumentError: if there is not at least one microbatch.

    Reference:
        Huang et al. (2019), GPipe: efficient training of giant neural networks using pipeline parallelism.
    """
    name, _ = selector(axis, "pipelined")
    if not isinstance(microbatches, int) or isinstance(microbatches, bool) or microbatches < 1:
        problem = f"the number of microbatches must be a positive int, not {microbatches!r}"
        hint = f'write axn.pipelined("{name}", 8)'
        raise ArgumentError(message("pipelined", problem, hint=hint))
    return MICROBATCHES.using(Microbatches(name, microbatches))


def limit_reshards(
    limit_bytes: int = 0, *, action: Literal["error", "warn"] = "error"
) -> AbstractContextManager[Any]:
    """Report each large array that an operation moves between devices by itself, inside a `with` block.

    On Explicit mesh axes, JAX refuses operations whose operands do not fit together; here, an operand is moved. That is
    convenient, and expensive for a large array. Not reported is what was asked for: the layouts of `shard`, of the
    arguments and results of `named_jit`, and those that the current mapping gives, such as weights that are gathered
    where they are used. Nor are moves in which each device keeps a part of what it has, arrays of one device that are
    put on the mesh, and elements that an index or an update fetches from other devices. On Auto axes the compiler
    moves arrays, and nothing is reported.

    Compiled functions are traced again inside, and report while they are traced.

    Args:
        limit_bytes: the bytes of a whole array from which on, exclusively, it is reported.
        action: raise a ShardingError, always; or warn, once for each operation, sizes and layouts of its operands,
            since JAX traces it once.

    Raises:
        ArgumentError: for a negative limit, or another action.

    Examples:
        >>> with axn.partitioning.limit_reshards(2**20, action="warn"):
        ...     pass
    """
    if limit_bytes < 0 or action not in ("error", "warn"):
        problem = f"limit_bytes={limit_bytes!r}, action={action!r}"
        hint = 'write limit_reshards(2**20, action="warn"), or action="error"'
        raise ArgumentError(message("limit_reshards", problem, hint=hint))
    return LIMIT.using(Limit(limit_bytes, action))
