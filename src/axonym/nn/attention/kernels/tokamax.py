"""Internal. Attention by the library Tokamax, which chooses a kernel and falls back to XLA.

It is never the default, since it has not been measured on an accelerator. The library is imported
where it is used, since few users have it.
"""

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from ....array import NamedArray
from ....base.lazy import library
from ..call import FUNCTION, AttentionCall
from . import adapter
from .adapter import Kernel, Operands, Rest, Roles
from .jax_nn import compute


def _list_obstacles(call: AttentionCall) -> Iterator[str]:
    """Yield what Tokamax does not support."""
    yield from adapter.list_obstacles(call)
    yield from adapter.list_obstacles_of_checks(call)
    if call.sinks is not None:
        yield "it does not support sinks"
    if call.soft_cap is not None and call.bias is not None:
        yield "it adds the bias before soft_cap, and this function after it"


def _compute(roles: Roles, operands: Operands, rest: Rest) -> NamedArray:
    flags = library(FUNCTION, "absl.flags").FLAGS
    attend = functools.partial(_attend, library(FUNCTION, "tokamax").dot_product_attention)
    if not flags.is_parsed():
        # Tokamax reads its settings from the command line, and would refuse what a program has there for itself.
        flags(sys.argv, known_only=True)
    if roles.soft_cap is not None:
        attend = functools.partial(attend, logits_soft_cap=roles.soft_cap)
    return compute(attend, roles, operands, rest)


def _attend(
    attend: Callable[..., jax.Array],
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None,
    mask: jax.Array | None,
    *,
    local_window_size: tuple[int, int] | None = None,
    **options: Any,
) -> jax.Array:
    """Call Tokamax, which allows windows only for as many queries as keys."""
    queries, keys = query.shape[1], key.shape[1]
    if local_window_size is not None and queries != keys:
        distance = jnp.arange(queries)[:, None] - jnp.arange(keys)
        mask, local_window_size = (distance <= local_window_size[0])[None, None], None
    return attend(query, key, value, bias, mask, local_window_size=local_window_size, **options)


TOKAMAX = Kernel(
    "tokamax", _list_obstacles, lambda _: iter(()), _compute, platforms=("cuda", "tpu")
)
