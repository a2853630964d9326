"""Internal. Splash attention, the kernel for TPUs that comes with JAX; on other platforms it is simulated.

It takes masks as conditions that it knows: causal, windows and segments. Any other condition of a mask is an obstacle.
"""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ....array import NamedArray
from ..blocks.plan import BLOCK
from ..call import KEYS, QUERIES, AttentionCall
from ..masks.conditions import Near, SameSegment, complete, is_made_of
from ..masks.mask import AttentionMask
from . import adapter
from .adapter import FEATURES, OUT, Kernel, Operands, Rest, Roles, find_sizes, fold, unfold

# The smallest number of positions in a block: the width of a register.
LANES = 128


def _list_obstacles(call: AttentionCall) -> Iterator[str]:
    """Yield what the splash kernel does not support."""
    yield from adapter.list_obstacles(call)
    yield from adapter.list_obstacles_of_checks(call)
    if call.query.dtype not in (jnp.bfloat16, jnp.float32):
        yield "it supports only bfloat16 and float32"
    if call.bias is not None:
        yield "it does not support a bias"
    if call.sinks is not None and call.q_pos in call.sinks.names:
        yield "the sinks have the axis of positions"
    if any(size % LANES for size in adapter.count_positions(call)):
        yield f"the number of positions must be a multiple of {LANES}"
    mask = call.mask or AttentionMask()
    ids = [x for pair in mask.segment_ids for x in pair if x is not None]
    known = {call.q_pos, call.k_pos, *adapter.list_shared(call)[:1]}
    if not is_made_of(mask, Near, SameSegment) or len(mask.segment_ids) > 1:
        yield "it supports only causal masks, windows and segments, combined by &"
    elif not all(known.issuperset(x.names) for x in ids):
        yield "segment ids have an axis other than positions and batch"
    if not isinstance(call.q_start, int) or not isinstance(call.k_start, int):
        yield "q_start and k_start must be Python ints"
    elif _hides_all_keys(mask, call.q_start - call.k_start, *adapter.count_positions(call)):
        yield "a query sees no key"


def _hides_all_keys(mask: AttentionMask, offset: int, queries: int, keys: int) -> bool:
    """Return whether some query sees no key, because all keys are after it or outside its window."""
    if mask.window is None:
        return mask.causal and offset < 0
    # The first query may lie too far before the keys, and the last one too far behind.
    before = 1 if mask.causal else mask.window
    return offset <= -before or queries + offset - keys >= mask.window


def _list_drawbacks(call: AttentionCall) -> Iterator[str]:
    """Yield that a query may see no key of its segment: the kernel's result is then undefined."""
    mask = call.mask
    if mask is None or not mask.segment_ids:
        return
    # Without other ids for the keys, a query sees itself.
    if call.q_start != call.k_start or any(of_keys is not None for _, of_keys in mask.segment_ids):
        yield "a query may see no key of its segment"


def _compute(roles: Roles, operands: Operands, rest: Rest) -> NamedArray:
    # Imported on use: few need it, and not every build of jaxlib has what it imports.
    from jax.experimental.pallas.ops.tpu import splash_attention as library

    query, keys, values = operands
    mask, sizes = rest.mask, find_sizes(operands)
    shape = sizes[QUERIES], sizes[KEYS]
    # The kernel has no scale.
    q = fold(query * roles.scale, sizes, roles.batch, roles.q_heads, (QUERIES,), (FEATURES,))
    k = fold(keys, sizes, roles.batch, roles.heads, (KEYS,), (FEATURES,))
    v = fold(values, sizes, roles.batch, roles.heads, (KEYS,), (OUT,))
    ids = None
    if mask is not None and mask.segment_ids:
        pair = complete(mask.segment_ids[0], QUERIES, KEYS, "segment ids")
        both: list[jax.Array] = []
        for x, positions in zip(pair, (QUERIES, KEYS), strict=True):
            folded = fold(x, sizes, roles.batch, (positions,))
            both.append(jnp.broadcast_to(folded, (q.shape[0], folded.shape[1])))
        ids = library.SegmentIds(*both)

    sinks = None
    if rest.sinks is not None:
        folded = fold(rest.sinks, sizes, roles.batch, roles.q_heads)
        sinks = jnp.broadcast_to(folded.astype(jnp.float32), q.shape[:2])

    # Made while tracing for a platform: on CPUs the kernel is interpreted.
    def run(
        q: jax.Array, k: jax.Array, v: jax.Array, ids: Any, sinks: Any, *, interpret: bool
    ) -> Any:
        of_head = _make_mask(library, mask, shape, rest.q_start - rest.k_start)
        kernel = library.make_splash_mha(
            mask=library.MultiHeadMask([of_head] * q.shape[1]),
            block_sizes=_choose_block_sizes(library, roles, shape),
            head_shards=1,
            q_seq_shards=1,
            attn_logits_soft_cap=roles.soft_cap,
            interpret=interpret,
        )
        return jax.vmap(kernel)(q, k, v, ids, sinks)

    runs = {place: functools.partial(run, interpret=place == "cpu") for place in ("cpu", "tpu")}
    out = lax.platform_dependent(q, k, v, ids, sinks, **runs)
    return unfold(roles, out, sizes, roles.batch, roles.q_heads, (QUERIES,), (OUT,))


def _make_mask(
    library: Any, mask: AttentionMask | None, shape: tuple[int, int], offset: int
) -> Any:
    """Make the mask of the splash kernel, for conditions on positions."""
    if mask is not None and mask.window is not None:
        before = mask.window - 1
        after = 0 if mask.causal else before
        return library.LocalMask(shape, (before, after), offset)
    if mask is not None and mask.causal:
        return library.CausalMask(shape, offset)
    return library.FullMask(shape)


def _choose_block_sizes(library: Any, roles: Roles, shape: tuple[int, int]) -> Any:
    """Choose the largest blocks, up to the requested size, that divide the positions."""

    def find_largest(size: int, most: int) -> int:
        blocks = range(LANES, max(most, LANES) + 1, LANES)
        return max(block for block in blocks if size % block == 0)

    q, kv = map(find_largest, shape, roles.block_size or (BLOCK, BLOCK))
    # For the forward pass, for gradients of keys and values, and for those of queries.
    return library.BlockSizes(q, kv, kv, q, kv, kv, q, kv)


SPLASH = Kernel(
    "splash",
    _list_obstacles,
    _list_drawbacks,
    _compute,
    platforms=("tpu",),
    # One kernel for the gradients by keys and values, and one for those by queries: each computes the scores, and the
    # gradients by the weights.
    backward=(4, 3),
)
