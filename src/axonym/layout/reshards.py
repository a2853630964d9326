"""Report arrays that operations move between devices by themselves."""

from contextlib import AbstractContextManager
from typing import Any, Literal

from ..errors import ArgumentError, message
from . import context

__all__ = ["limit_reshards"]


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
    return context.context(reshard_limit=limit_bytes, reshard_action=action)
