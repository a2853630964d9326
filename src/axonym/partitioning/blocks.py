"""`with` blocks around a computation: its mapping, the microbatches of pipelines, and which reshards are reported."""

import dataclasses
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any, Literal

from ..axis import AxisSelector, selector
from ..current.features import Block, Values, raise_at_next_read
from ..errors import ArgumentError, message
from ..layout.assignment import AxisMapping, MeshAxes, ResourceMapping, check_mapping, normalized
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
        merge: keep the entries of the current mapping; if both mappings have a name, the new entry wins.
        more: further entries, by keyword.

    Returns:
        A context manager. `current_mapping` returns the mapping inside, and layers, random values and contractions
        follow it. Without a block the mapping is never current; the next use of a mapping then raises an error.

    Examples:
        >>> with axn.axis_mapping({"batch": "data"}, mlp="model"):
        ...     print(axn.current_mapping())
        {'batch': 'data', 'mlp': 'model'}
    """
    normal = normalized({**dict(check_mapping(mapping)), **more})
    # An AxisMapping may be of a subclass, which stays as it is.
    kind = mapping if isinstance(mapping, AxisMapping) else normal

    def change(values: Values) -> Values:
        # A surrounding `named_jit` checks the keys of this mapping at its end.
        outer, ledger = MAPPING.pick(values), LEDGER.pick(values)
        whole = outer.updated(normal) if merge and outer is not None else normal
        inner = dataclasses.replace(
            kind, entries=whole.entries, fallbacks=whole.fallbacks, yielding=whole.yielding
        )
        if ledger is not None:
            values = LEDGER.put(values, ledger.entering(inner))
        return MAPPING.put(values, inner)

    return _MappingBlock(change, normal, _line_above(inspect.currentframe()))


class _MappingBlock(Block):
    """The block of an `axis_mapping`; if it is never entered, the next use of a mapping raises an error."""

    def __init__(
        self, change: Callable[[Values], Values], mapping: AxisMapping, place: str
    ) -> None:
        super().__init__(change)
        self._unused: tuple[AxisMapping, str] | None = mapping, place

    def __enter__(self) -> None:
        self._unused = None
        super().__enter__()

    def __del__(self) -> None:
        # An error here would only be printed, so the next reader of a mapping raises it.
        if self._unused is not None:
            mapping, place = self._unused
            facts = f"mapping: {mapping}", f"made in: {place}"
            problem = "a mapping was made, and never made current"
            hint = "use a block: with axn.axis_mapping(...):"
            text = message("axis_mapping", problem, *facts, hint=hint)
            raise_at_next_read(text)


def _line_above(frame: FrameType | None) -> str:
    """Return the line that called the function of a frame, as text."""
    if frame is None or frame.f_back is None:
        return ""
    # A frame is enough: a traceback would read source files at each block.
    caller = frame.f_back
    return f"{caller.f_code.co_filename}, line {caller.f_lineno}"


def pipelined(axis: AxisSelector, microbatches: int) -> AbstractContextManager[Any]:
    """Set the number of microbatches into which pipelines split a batch, inside a `with` block.

    If the current mapping has the layer axis of a `nn.Stacked` or an `nn.Interleaved`, each device applies its own
    layers, and microbatches go from one device to the next. A device starts with its next microbatch while the others
    work on theirs.

    Args:
        axis: the axis of the activations that is cut, such as the batch.
        microbatches: the number of microbatches, a multiple of the number of stages. With more of them, devices wait
            less.

    Returns:
        A context manager. The results of a stack inside are those of a plain loop over its layers, up to rounding.

    Raises:
        ArgumentError: if there is not at least one microbatch.

    Reference:
        Huang et al. (2019), GPipe: efficient training of giant neural networks using pipeline parallelism.

    Examples:
        >>> Layers, Embed = axn.make_axes(layers=2, embed=2)
        >>> stack = axn.nn.Stacked.init(Layers, axn.nn.LayerNorm.init)(Embed)
        >>> run = axn.named_jit(lambda stack, x: stack.fold(x), {"layers": "stage"})
        >>> with axn.set_mesh(jax.make_mesh((2,), ("stage",))), axn.pipelined("batch", microbatches=4):
        ...     jax.eval_shape(run, stack, axn.ones({"batch": 4, "embed": 2})).shape
        {'batch': 4, 'embed': 2}
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
    """Report, inside a `with` block, each large array that an operation moves between devices without being asked.

    On Explicit mesh axes, JAX refuses operations whose operands do not fit together; here, an operand is moved. That is
    convenient, and expensive for a large array. On Auto axes the compiler moves arrays, and nothing is reported.

    These moves are not reported either:

    - moves to layouts that you asked for, by `shard`, by `named_jit` for arguments and results, or by the current
      mapping, such as weights that are gathered where they are used;
    - moves in which each device only drops a part of its data;
    - arrays of one device that are put on the mesh;
    - elements that an index or an update fetches from other devices.

    Compiled functions are traced again inside, and report while they are traced.

    Args:
        limit_bytes: the number of bytes that an array may have, over all devices, without a report.
        action: always raise a ShardingError; or warn, once for each combination of an operation, sizes and layouts,
            since JAX traces each once.

    Returns:
        A context manager.

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
