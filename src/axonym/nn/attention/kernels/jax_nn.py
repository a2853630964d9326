"""Internal. The kernels of `jax.nn.dot_product_attention`: XLA's runs on all platforms, the other one is cuDNN's.

They take a mask as options where possible, and otherwise as an array as large as the scores.

Reference:
    Dao (2023), FlashAttention-2.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, Literal

import jax
import jax.numpy as jnp

from ....array import NamedArray
from ....names.plans import Names
from ..call import KEYS, QUERIES, AttentionCall
from ..masks.conditions import Near, Pairing, Prefix, count_positions, find_visible, is_made_of
from . import adapter
from .adapter import FEATURES, OUT, Kernel, Operands, Rest, Roles, find_sizes, fold, unfold


def _list_obstacles(call: AttentionCall) -> Iterator[str]:
    """Yield what `jax.nn.dot_product_attention` does not support."""
    yield from adapter.list_obstacles(call)
    if call.soft_cap is not None or call.sinks is not None:
        yield "it does not support soft_cap or sinks"
    if call.keys.size != call.values.size:
        yield "keys and values have different numbers of features"


def _list_drawbacks_of_cudnn(call: AttentionCall) -> Iterator[str]:
    """Yield what cuDNN does not support, or only with a mask as large as the scores."""
    yield from adapter.list_obstacles_of_checks(call)
    if call.query.dtype not in (jnp.bfloat16, jnp.float16):
        yield "it supports only bfloat16 and float16"
    size = call.query.axis_size(call.feature)
    if size % 8 or size > 128:
        yield "the number of features must be a multiple of 8, at most 128"
    if call.bias is not None or (call.mask is not None and not _is_causal(call)):
        yield "it supports only causal masks, with or without a window, for as many queries as keys"


def _is_causal(call: AttentionCall) -> bool:
    """Return whether a mask is only causal, maybe with a window, for as many queries as keys."""
    queries, keys = adapter.count_positions(call)
    mask = call.mask
    if mask is None or queries != keys or not mask.causal or not is_made_of(mask, Near):
        return False
    return _fits_options(Rest(mask, None, call.q_start, call.k_start), ())


def _fits_options(rest: Rest, batch: Names) -> bool:
    """Return whether options of `jax.nn` can express a mask: causal, perhaps with a window, and lengths of keys."""
    mask, start = rest.mask, rest.q_start
    if mask is None or not is_made_of(mask, Near, Prefix):
        return False
    # The options count positions of queries and keys alike.
    if not isinstance(start, int) or not isinstance(rest.k_start, int) or start != rest.k_start:
        return False
    if mask.window is not None and not mask.causal:
        return False
    if mask.prefix is None:
        return True
    # The prefix is then the number of keys: for all sequences, or for each.
    axes = mask.prefix.names if isinstance(mask.prefix, NamedArray) else ()
    return start == 0 and set(batch).issuperset(axes)


def compute(
    attend: Callable[..., jax.Array], roles: Roles, operands: Operands, rest: Rest
) -> NamedArray:
    """Compute attention by a function with the signature of `jax.nn.dot_product_attention`."""
    query, keys, values = operands
    sizes = find_sizes(operands)
    q = fold(query, sizes, roles.batch, (QUERIES,), roles.q_heads, (FEATURES,))
    k = fold(keys, sizes, roles.batch, (KEYS,), roles.heads, (FEATURES,))
    v = fold(values, sizes, roles.batch, (KEYS,), roles.heads, (OUT,))
    scores = roles.batch, roles.q_heads, (QUERIES,), (KEYS,)
    mask, seen = rest.mask, None
    # An array is as large as the scores, which cuDNN would read besides.
    options: dict[str, Any] = {}
    if mask is not None and _fits_options(rest, roles.batch):
        options["is_causal"] = mask.causal
        if mask.window is not None:
            # It counts the positions before the query; ours counts its own too.
            options["local_window_size"] = (mask.window - 1, 0)
        if mask.prefix is not None:
            lengths = mask.prefix
            if isinstance(lengths, NamedArray):
                lengths = fold(lengths, sizes, roles.batch)
            lengths = jnp.asarray(lengths, jnp.int32)
            options["key_value_seq_lengths"] = jnp.broadcast_to(lengths, q.shape[:1])
    elif mask is not None:
        q_places = count_positions(query.resolve_axis(QUERIES), rest.q_start)
        k_places = count_positions(keys.resolve_axis(KEYS), rest.k_start)
        seen = find_visible(mask, Pairing(q_places, k_places, QUERIES, KEYS))

    bias = rest.bias
    out = attend(
        q,
        k,
        v,
        None if bias is None else fold(bias.astype(query.dtype), sizes, *scores),
        None if seen is None else fold(seen, sizes, *scores),
        scale=roles.scale,
        **options,
    )
    return unfold(roles, out, sizes, roles.batch, (QUERIES,), roles.q_heads, (OUT,))


def _compute(
    implementation: Literal["xla", "cudnn"], roles: Roles, operands: Operands, rest: Rest
) -> NamedArray:
    attend = functools.partial(jax.nn.dot_product_attention, implementation=implementation)
    return compute(attend, roles, operands, rest)


XLA = Kernel(
    "xla",
    _list_obstacles,
    lambda _: iter(()),
    functools.partial(_compute, "xla"),
    is_checked=True,
)
CUDNN = Kernel(
    "cudnn",
    _list_obstacles,
    _list_drawbacks_of_cudnn,
    functools.partial(_compute, "cudnn"),
    platforms=("cuda",),
    skips=lambda roles, rest: _fits_options(rest, roles.batch),
)
