"""Internal. The implementations of attention, and the one function that picks one for a call.

A new implementation is a function of an `AttentionCall`, or a `Kernel`, and a word in `IMPLEMENTATIONS`. The public
function asks here once for each call. Only the file of an implementation knows what it supports and how it works.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import jax.numpy as jnp

from ...array import NamedArray
from ...current.machine import find_platform
from ...errors import ArgumentError, message, suggestion
from ...layout.context import current_mapping
from ...layout.records import note_decisive
from .call import FUNCTION, AttentionCall
from .kernels.adapter import Kernel, attend
from .kernels.jax_nn import CUDNN, XLA
from .kernels.splash import SPLASH
from .kernels.tokamax import TOKAMAX
from .plain import attend_plainly
from .travel.context import METHODS, attend_over_devices, count_hops, find_heads, find_sharding
from .travel.devices import Method, PositionSharding
from .travel.exchange import EXCHANGE
from .travel.local import LOCAL, attend_by_blocks
from .travel.ring import RING

Implementation: TypeAlias = Callable[[AttentionCall], NamedArray]

# By their names in `implementation=`. Each checks whether it can do a call.
IMPLEMENTATIONS: Mapping[str, Implementation] = {
    "plain": attend_plainly,
    LOCAL.name: attend_by_blocks,
    **{kernel.name: functools.partial(attend, kernel) for kernel in (XLA, CUDNN, SPLASH, TOKAMAX)},
    **{name: functools.partial(attend_over_devices, each) for name, each in METHODS.items()},
}


class Chosen(NamedTuple):
    """The implementation of one call.

    Attributes:
        name: its name.
        compute: the implementation.
        reason: why no kernel of the platform computes the call; empty if one does, or if none was looked for.
    """

    name: str
    compute: Implementation
    reason: str = ""


# The kernels that are the default where they support a call.
_KERNELS: Mapping[str, Kernel] = {"cuda": CUDNN, "tpu": SPLASH}


def choose(call: AttentionCall) -> Chosen:
    """Choose the implementation of a call by its layout, the platform, and the support of the kernels."""
    has_sizes = all(
        isinstance(size, int) for x in (call.query, call.keys) for size in x.array.shape
    )
    # Sizes that only `jax.export` knows later cannot be split.
    sharding = find_sharding(call) if has_sizes else None
    if sharding is not None and sharding.queries == sharding.keys:
        # An all-gather never sends less than a ring.
        methods = [RING] if find_heads(call, sharding) is None else [RING, EXCHANGE]
        method = min(methods, key=lambda own: count_bytes(own, call, sharding))
        compute = functools.partial(attend_over_devices, method, sharding=sharding)
        return Chosen(method.name, compute)
    kernel = _KERNELS.get(find_platform())
    mapping, pos = current_mapping(), call.q_pos
    if kernel is not None and pos is not None:
        # A cost for several mappings traces a program with the kernel, and one without it.
        note_decisive(pos)
    if mapping is not None and pos is not None and mapping.has_own(pos) and mapping[pos]:
        # A kernel of each device would compute all queries.
        return Chosen(
            "plain", attend_plainly, "the positions of queries are split, those of keys are not"
        )
    reason = "" if kernel is None else kernel.find_obstacle(call)
    if kernel is None or reason:
        return Chosen(
            "plain", attend_plainly, reason and f"{kernel.name}: {reason}" if kernel else ""
        )
    return Chosen(kernel.name, IMPLEMENTATIONS[kernel.name])


def find(name: str) -> Chosen:
    """Return the implementation with a name."""
    if name in IMPLEMENTATIONS:
        return Chosen(name, IMPLEMENTATIONS[name])
    problem, known = f"unknown implementation {name!r}", ", ".join(map(repr, IMPLEMENTATIONS))
    hint = suggestion(name, IMPLEMENTATIONS)
    raise ArgumentError(message(FUNCTION, problem, f"known: {known}", hint=hint))


def count_bytes(method: Method, call: AttentionCall, sharding: PositionSharding) -> float:
    """Return how many bytes each device sends for queries, keys, values and results, forwards and backwards.

    In a ring of n devices, keys and values go n - 1 hops in each pass, or as far as a causal window reaches; in the
    backward pass, their gradients go as many hops, in the dtype of scores. With all-gather it is the same. With
    all-to-all, each device keeps one of n parts of queries, keys, values and the result, and sends the other parts, in
    both passes.
    """
    n = sharding.ways
    parts = n * math.prod(sharding.count_parts(name) for name, _ in sharding.entries)
    query, keys, values = call.query.nbytes, call.keys.nbytes, call.values.nbytes
    if method.by_heads:
        dtype = jnp.promote_types(call.query.dtype, call.values.dtype)
        result = math.prod(call.out_shape.values()) * dtype.itemsize
        return 2 * (query + keys + values + result) / parts * (n - 1) / n
    hops = count_hops(call, sharding) if method is RING else n - 1
    # Gradients of keys and values travel in the dtype of scores until all devices have added theirs.
    wide = (call.keys.size + call.values.size) * call.dtype.itemsize
    sent: float = hops * (2 * (keys + values) + wide) / parts
    return sent
