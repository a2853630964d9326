"""What attention over blocks of scores is given: the plan, the operands, and how a block is read and written.

If blocks do not divide an axis, the last one begins earlier, and hides the positions that it has twice.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.export import is_symbolic_dim
from jax.typing import DTypeLike

from ....array import NamedArray, is_named_array
from ....core import Operand, wrap
from ....dtypes import at_least_float32
from ....errors import ArgumentError, message
from ....layout import tracing
from ....partitioning.shard import auto_sharded
from ..call import KEYS, QUERIES, AttentionCall, Scoring, rename_all, renamed
from ..masks.mask import AttentionMask

BLOCK = 512

Number: TypeAlias = Any
"""A Python number, a traced one, or a named array of them."""

Tree: TypeAlias = Any
"""A tree of named arrays, or what stands for it in a loop or a pass of JAX."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """The static part of a call.

    Attributes:
        scoring: how scores are computed.
        out_names: the axes of the result.
        dtype: that of the result.
        dropout: the probability that a weight is dropped.
        sizes: the numbers of queries and of keys that a device computes with.
        blocks: those of a block.
        all_sizes: of all axes of the scores, on all devices.
    """

    scoring: Scoring
    out_names: tuple[str, ...]
    dtype: Any
    dropout: float
    sizes: tuple[int, int]
    blocks: tuple[int, int]
    all_sizes: tuple[tuple[str, int], ...]

    @property
    def counts(self) -> tuple[int, int]:
        """The numbers of blocks."""
        return -(-self.sizes[0] // self.blocks[0]), -(-self.sizes[1] // self.blocks[1])

    def start(self, which: int, number: Number) -> Number:
        """Return the first position of a block; the last block ends where the axis ends."""
        size, block = self.sizes[which], self.blocks[which]
        if size == block:
            return 0
        start = number * block
        if size % block:
            return jnp.minimum(start, size - block)
        return start


class At(NamedTuple):
    """Which block of queries and which of keys, and the first position of each."""

    numbers: tuple[Number, Number]
    starts: tuple[Number, Number]

    def with_keys(self, plan: Plan, number: Number) -> "At":
        """Return the same block of queries with another block of keys."""
        return At((self.numbers[0], number), (self.starts[0], plan.start(1, number)))


class Operands(NamedTuple):
    """The operands with gradients."""

    query: NamedArray
    key: NamedArray
    value: NamedArray
    bias: NamedArray | None


class Rest(NamedTuple):
    """The operands without gradients; positions that start at 0 are None, so that nothing is added.

    Attributes:
        mask: which keys each query sees.
        q_start: the position of the first query.
        k_start: the position of the first key.
        key: for dropout.
        offsets: the index of the first element along an axis of which this device has a part.
    """

    mask: AttentionMask | None
    q_start: Tree
    k_start: Tree
    key: Tree
    offsets: Mapping[str, Number] = {}  # never changed

    def start(self, which: int) -> Number:
        """Return the position of the first query, or of the first key, that this device has."""
        name = (QUERIES, KEYS)[which]
        return plus((self.q_start, self.k_start)[which], self.offsets.get(name))


def prepared(call: AttentionCall) -> tuple[Plan, Operands, Rest]:
    """Return the plan and the operands of a call, with `QUERIES` and `KEYS` as names of positions."""
    q_pos = str(call.q_pos)
    sizes = call.query.axis_size(q_pos), call.keys.axis_size(call.k_pos)
    new = {q_pos: QUERIES, call.k_pos: KEYS}
    operands = Operands(call.scoring_query, call.keys, call.values, call.bias)
    rest = Rest(
        call.mask,
        without_zero(call.q_start),
        without_zero(call.k_start),
        call.key if call.dropout else None,
    )
    operands, rest = rename_all((led(operands, rest), rest), new)

    scoring = call.scoring
    scoring = dataclasses.replace(
        scoring,
        names=renamed(scoring.names, new),
        dtype=at_least_float32(scoring.dtype),
    )
    dtype = jnp.promote_types(call.query.dtype, call.values.dtype)
    out_names = renamed(call.out_names, new)
    blocks = sizes_of_blocks(call.block_size, sizes)
    all_sizes = tuple(zip(scoring.names, call.score_sizes, strict=True))
    plan = Plan(scoring, out_names, dtype, call.dropout, sizes, blocks, all_sizes)
    return plan, operands, rest


def without_zero(start: int | Operand) -> int | Operand | None:
    """Return None for 0, which adds no operation."""
    if isinstance(start, int) and start == 0:
        return None
    return start


def led(operands: Operands, rest: Rest) -> Operands:
    """Give the query the anonymous dimensions of all arrays, so that scores and results have these."""
    leaves = jax.tree.leaves((operands, rest), is_leaf=is_named_array)
    given = [x for x in leaves if isinstance(x, NamedArray)]
    lead = jnp.broadcast_shapes(*(x.array.shape[: x.array.ndim - len(x.names)] for x in given))
    query = operands.query
    array = jnp.broadcast_to(query.array, (*lead, *query.array.shape[-len(query.names) :]))
    return operands._replace(query=wrap(query, array, query.names))


def sizes_of_blocks(
    given: tuple[int, int] | None, sizes: tuple[Number, Number]
) -> tuple[Number, Number]:
    """Choose block sizes for which the last block hides least.

    A size that only `jax.export` knows later is not cut, unless it is a multiple of the block: whether a block fits
    must be known now.
    """
    given = given or (BLOCK, BLOCK)
    if min(given) < 1:
        problem = f"a block must have at least one position, not {min(given)}"
        raise ArgumentError(message("dot_product_attention", problem))
    queries, keys = map(_block, sizes, given)
    return queries, keys


def _block(size: Number, given: int) -> Number:
    if is_symbolic_dim(size):
        if size % given == 0:
            return given
        return size
    count = -(-size // given)
    return -(-size // count)


def filled(
    plan: Plan, operands: Operands, names: tuple[str, ...], value: float, **sizes: int
) -> NamedArray:
    """Make an array that a loop fills, with the sizes of the operands except the given ones."""
    known: dict[str, int] = {}
    for x in operands:
        if x is not None:
            known.update(x.shape.items())
    known.update(sizes)

    query = operands.query
    lead = query.array.shape[: -len(query.names)]
    shape = (*lead, *map(known.__getitem__, names))
    return made(operands, shape, names, value, plan.scoring.dtype)


def made(
    operands: Operands,
    shape: tuple[int, ...],
    names: tuple[str, ...],
    value: float,
    dtype: DTypeLike,
) -> NamedArray:
    """Make an array that varies over devices as the query does."""
    varying = jax.typeof(operands.query.array).mat.varying
    array = tracing.varying(jnp.full(shape, value, dtype), varying)
    return auto_sharded(NamedArray(array, names))


def take(x: object, plan: Plan, at: At) -> Tree:
    """Slice an array to a block of queries and of keys, if it has their axes; numbers stay as they are."""
    if not isinstance(x, NamedArray):
        return x
    starts, sizes = _window(plan, x, at)
    if sizes == x.array.shape:
        return x
    return wrap(x, lax.dynamic_slice(x.array, starts, sizes, allow_negative_indices=False), x.names)


def _window(plan: Plan, x: NamedArray, at: At) -> tuple[list[Tree], tuple[int, ...]]:
    starts: list[object] = [0] * x.array.ndim
    sizes = list(x.array.shape)
    for name, start, block in zip((QUERIES, KEYS), at.starts, plan.blocks, strict=True):
        if name in x.names:
            dim = x.names.index(name) - len(x.names)
            starts[dim], sizes[dim] = start, block
    return starts, tuple(sizes)


def put(plan: Plan, x: NamedArray, block: NamedArray, at: At, *, add: bool = False) -> NamedArray:
    """Write a block, or add it to the previous values."""
    update = block.rearrange(x.names).array.astype(x.dtype)
    if add:
        update = update + take(x, plan, at).array
    starts, sizes = _window(plan, x, at)
    if sizes == x.array.shape:
        return wrap(x, update, x.names)
    written = lax.dynamic_update_slice(x.array, update, starts, allow_negative_indices=False)
    return wrap(x, written, x.names)


def plus(x: Number, y: Number) -> Number:
    """Add two numbers; None stands for 0 and adds no operation."""
    if y is None or (isinstance(y, int) and y == 0):
        return x
    if x is None:
        return y
    return x + y
