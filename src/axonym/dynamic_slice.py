"""A window of static length whose start may be traced, as a selector in `x[...]` and `x.at[...]`."""

import builtins
import operator
from typing import Any

import jax
from jax.export import is_symbolic_dim

from .axis import Axis
from .base.dtypes import widen_positions
from .base.kinds import type_text
from .errors import AxisSizeError, OperandError, message

__all__ = ["dblock", "ds", "dslice"]


@jax.tree_util.register_pytree_node_class
class dslice:  # noqa: N801  # the name that Haliax and Pallas know it by
    """Select `length` elements from a `start` that may be traced.

    Like a slice, it keeps the axis in place. Positions beyond either end of the axis read as 0, or as the `fill_value`
    of `x.at[...].get`, and writes there are dropped. So an incomplete last block needs no special case. If the start is
    a Python int, at least one element must be in range.

    Args:
        start: the first position, an int or one traced integer. A negative one is before the first element.
        length: the number of elements, static; for an `Axis`, its size.

    Raises:
        AxisSizeError: if `length` is negative.
        OperandError: if it is not an int.

    Examples:
        >>> x = axn.arange(axn.Axis("pos", 5))
        >>> jax.jit(lambda start: x["pos", axn.dslice(start, 3)])(3)
        NamedArray(int32[pos=3])
        [3 4 0]
    """

    __slots__ = ("size", "start")
    start: Any
    size: int

    def __init__(self, start: Any, length: int | Axis) -> None:
        given: Any = length.size if isinstance(length, Axis) else length
        # A symbolic dimension of jax.export is a static length that has no value yet, and `index` would fail.
        try:
            size: Any = given if is_symbolic_dim(given) else operator.index(given)
        except TypeError:
            problem = f"the length must be an int or an Axis, not {type_text(length)}"
            hint = "the start may be traced, the length may not"
            raise OperandError(message("dslice", problem, hint=hint)) from None
        if size < 0:
            raise AxisSizeError(message("dslice", f"the length must not be negative, got {size}"))
        self.start, self.size = start, size

    def __repr__(self) -> str:
        start = self.start if isinstance(self.start, int) else type(self.start).__name__
        return f"dslice({start}, {self.size})"

    def tree_flatten(self) -> tuple[tuple[Any], int]:
        """Return the start as the only child."""
        return (self.start,), self.size

    @classmethod
    def tree_unflatten(cls, size: int, children: tuple[Any]) -> "dslice":
        """Put the start back, whatever it is."""
        # JAX unflattens with placeholders, which the checks of `__init__` would refuse.
        made = object.__new__(cls)
        (made.start,), made.size = children, size
        return made

    @staticmethod
    def block(idx: Any, size: int) -> "dslice":
        """Select block number `idx`, also a traced one, of blocks of `size` elements."""
        # The product may not fit the dtype of the index: block 2 of 100 elements is beyond int8.
        return dslice(widen_positions(idx) * size, size)

    def to_slice(self) -> "builtins.slice[int, int, None]":
        """Return the slice of the same elements; the start must be an int."""
        start = operator.index(self.start)
        return builtins.slice(start, start + self.size)


ds = dslice


def dblock(idx: Any, size: int) -> dslice:
    """Select block number `idx` of blocks of `size` elements: `dslice(idx * size, size)`.

    Args:
        idx: the number of the block, an int or one traced integer.
        size: the number of elements of a block, static.

    Examples:
        >>> x = axn.arange(axn.Axis("pos", 6))
        >>> x["pos", axn.dblock(1, 2)].tolist()
        [2, 3]
    """
    return dslice.block(idx, size)
