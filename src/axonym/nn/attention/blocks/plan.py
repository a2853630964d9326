"""Internal. The input of the loops over blocks of scores: the plan, the operands, and how to read and write a block.

The loops and the modules that move keys call it. It knows neither devices nor masks: a mask is just another tree of
arrays to slice. If blocks do not divide an axis, the last block begins earlier, and hides the positions that overlap.
"""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.export import is_symbolic_dim
from jax.typing import DTypeLike

from ....array import NamedArray, is_named_array
from ....base.dtypes import at_least_float32
from ....engine.core import Operand, wrap
from ....errors import ArgumentError, message
from ....layout import tracing
from ....names.plans import Names
from ....partitioning.shard import auto_sharded
from ..call import KEYS, QUERIES, AttentionCall, Scoring, rename, rename_all
from ..masks.conditions import Number, add
from ..masks.mask import AttentionMask

# Scores of one block of 512 by 512 take 1 MiB in float32: few steps of a loop, and little memory.
BLOCK = 512

Tree: TypeAlias = Any
"""A tree of named arrays, or what stands for it in a loop or a pass of JAX."""


@dataclasses.dataclass(frozen=True)
class BlockPlan:
    """The static part of a call whose scores are computed block by block.

    Attributes:
        scoring: how scores are computed.
        out_names: the axes of the result.
        dtype: that of the result.
        dropout: the probability that a weight is set to zero.
        sizes: the numbers of queries and of keys that a device computes with.
        blocks: those of a block.
        all_sizes: of all axes of the scores, on all devices.
    """

    scoring: Scoring
    out_names: Names
    dtype: Any
    dropout: float
    sizes: tuple[int, int]
    blocks: tuple[int, int]
    all_sizes: tuple[tuple[str, int], ...]

    @property
    def row_names(self) -> Names:
        """The axes of numbers that each query has, such as its largest score."""
        return tuple(name for name in self.scoring.names if name != KEYS)

    @property
    def counts(self) -> tuple[int, int]:
        """The numbers of blocks."""
        return -(-self.sizes[0] // self.blocks[0]), -(-self.sizes[1] // self.blocks[1])

    def start(self, which: int, number: Number) -> Number:
        """Return the first position of a block; the last block ends where the axis ends."""
        size, block = self.sizes[which], self.blocks[which]
        if size == block:
            return 0  # a Python number, which adds no operation
        start = number * block
        return jnp.minimum(start, size - block) if size % block else start


class Block(NamedTuple):
    """A block of queries and a block of keys: their numbers and first positions."""

    numbers: tuple[Number, Number]
    starts: tuple[Number, Number]

    @classmethod
    def of_queries(cls, plan: BlockPlan, number: Number) -> "Block":
        """Return a block of queries, with the first block of keys."""
        return cls((number, 0), (plan.start(0, number), 0))

    def with_keys(self, plan: BlockPlan, number: Number) -> "Block":
        """Return the same block of queries with another block of keys."""
        return Block((self.numbers[0], number), (self.starts[0], plan.start(1, number)))


class Operands(NamedTuple):
    """The operands with gradients."""

    query: NamedArray
    key: NamedArray
    value: NamedArray
    bias: NamedArray | None


class Rest(NamedTuple):
    """The operands without gradients; a start of 0 is None, so that nothing is added.

    Attributes:
        mask: which keys each query sees.
        q_start: the position of the first query.
        k_start: the position of the first key.
        key: for dropout.
        offsets: the index of the first element along an axis of which this device has a part; never changed in place.
    """

    mask: AttentionMask | None
    q_start: Tree
    k_start: Tree
    key: Tree
    offsets: Mapping[str, Number] = {}

    def start(self, which: int) -> Number:
        """Return the position of the first query, or of the first key, that this device has."""
        return add((self.q_start, self.k_start)[which], self.offsets.get((QUERIES, KEYS)[which]))


def prepare(call: AttentionCall) -> tuple[BlockPlan, Operands, Rest]:
    """Return the plan and the operands of a call, with `QUERIES` and `KEYS` as names of positions."""
    q_pos = str(call.q_pos)
    sizes = call.query.axis_size(q_pos), call.keys.axis_size(call.k_pos)
    # The scale is in the query where that loses nothing: once, and not in each block.
    operands = Operands(call.scoring_query, call.keys, call.values, call.bias)
    q_start, k_start = _drop_zero(call.q_start), _drop_zero(call.k_start)
    rest = Rest(call.mask, q_start, k_start, call.key if call.dropout else None)
    # No mapping lays out these names: a loop over blocks cannot cut what is split.
    new = {q_pos: QUERIES, call.k_pos: KEYS}
    operands, rest = rename_all((_broadcast_anonymous(operands, rest), rest), new)

    scoring = call.scoring
    # Running sums over many blocks lose too much in a narrow dtype.
    scoring = dataclasses.replace(
        scoring, names=rename(scoring.names, new), dtype=at_least_float32(scoring.dtype)
    )
    plan = BlockPlan(
        scoring,
        rename(call.out_names, new),
        jnp.promote_types(call.query.dtype, call.values.dtype),
        call.dropout,
        sizes,
        choose_block_sizes(call.block_size, sizes),
        tuple(zip(scoring.names, (axis.size for axis in call.score_axes), strict=True)),
    )
    return plan, operands, rest


def _drop_zero(start: int | Operand) -> int | Operand | None:
    """Return None for 0, which adds no operation."""
    return None if isinstance(start, int) and start == 0 else start


def _broadcast_anonymous(operands: Operands, rest: Rest) -> Operands:
    """Give the query the anonymous dimensions of all arrays, so that scores and results have these."""
    leaves = jax.tree.leaves((operands, rest), is_leaf=is_named_array)
    given = [x for x in leaves if isinstance(x, NamedArray)]
    lead = jnp.broadcast_shapes(*(x.array.shape[: x.array.ndim - len(x.names)] for x in given))
    query = operands.query
    array = jnp.broadcast_to(query.array, (*lead, *query.array.shape[-len(query.names) :]))
    return operands._replace(query=wrap(query, array, query.names))


def choose_block_sizes(
    given: tuple[int, int] | None, sizes: tuple[Number, Number]
) -> tuple[Number, Number]:
    """Choose block sizes for which the last block hides least.

    A symbolic size of `jax.export` is not split, unless it is a multiple of the block: the fit must be known now.
    """
    given = given or (BLOCK, BLOCK)
    if min(given) < 1:
        problem = f"a block must have at least one position, not {min(given)}"
        raise ArgumentError(message("dot_product_attention", problem))
    queries, keys = map(_choose_block_size, sizes, given)
    return queries, keys


def _choose_block_size(size: Number, given: int) -> Number:
    if is_symbolic_dim(size):
        return given if size % given == 0 else size
    # As many blocks as the given size needs, but of equal sizes: 513 positions are 257 and 256, not 512 and 1.
    count = -(-size // given)
    return -(-size // count)


def fill(
    plan: BlockPlan, operands: Operands, names: Names, value: float, **sizes: int
) -> NamedArray:
    """Make an array that a loop writes, with the sizes of the operands except the given ones."""
    # Each axis of scores and results is one of an operand.
    shapes = [x.shape for x in operands if x is not None]
    known = dict(itertools.chain(*(shape.items() for shape in (*shapes, sizes))))
    query = operands.query
    shape = (*query.array.shape[: -len(query.names)], *map(known.__getitem__, names))
    return make_like_query(operands, shape, names, value, plan.scoring.dtype)


def make_like_query(
    operands: Operands, shape: tuple[int, ...], names: Names, value: float, dtype: DTypeLike
) -> NamedArray:
    """Make an array that varies over devices as the query does, since the carry of a loop keeps its type."""
    varying = tracing.varying_over(operands.query.array)
    array = tracing.varying(jnp.full(shape, value, dtype), varying)
    return auto_sharded(NamedArray(array, names))


def slice_block(x: object, plan: BlockPlan, block: Block) -> Tree:
    """Slice an array to a block of queries and of keys, if it has their axes; numbers stay as they are."""
    if not isinstance(x, NamedArray):
        return x
    starts, sizes = _find_window(plan, x, block)
    if sizes == x.array.shape:
        return x
    # Starts are never negative, so that no operation needs to wrap them.
    return wrap(x, lax.dynamic_slice(x.array, starts, sizes, allow_negative_indices=False), x.names)


def write(
    plan: BlockPlan, x: NamedArray, values: NamedArray, block: Block, *, add: bool = False
) -> NamedArray:
    """Write values of a block, or add them to the previous ones."""
    update = values.rearrange(x.names).array.astype(x.dtype)
    if add:
        update = update + slice_block(x, plan, block).array
    starts, sizes = _find_window(plan, x, block)
    if sizes == x.array.shape:  # the block is all there is
        return wrap(x, update, x.names)
    written = lax.dynamic_update_slice(x.array, update, starts, allow_negative_indices=False)
    return wrap(x, written, x.names)


def _find_window(
    plan: BlockPlan, x: NamedArray, block: Block
) -> tuple[list[Number], tuple[int, ...]]:
    """Return where a block starts along each dimension of an array, and its sizes."""
    starts: list[Number] = [0] * x.array.ndim
    sizes = list(x.array.shape)
    for name, start, size in zip((QUERIES, KEYS), block.starts, plan.blocks, strict=True):
        if name in x.names:
            dim = x.names.index(name) - len(x.names)
            starts[dim], sizes[dim] = start, size
    return starts, tuple(sizes)
