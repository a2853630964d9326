"""Internal. The plain implementation: all scores at once, by the operations of the library.

It can do every call, JAX differentiates it to any order, and it is the reference for all others. `choose` calls it, and
`local` where there is nothing to cut into blocks. It knows neither devices nor blocks.
"""

import dataclasses
from typing import Any

import jax

from ...array import NamedArray, is_named_array
from ...axis import Axis
from ...engine.core import axes_of
from ...faults.copied_scores import find_single_axes
from ...names.plans import Names
from ...ops.contract import dot
from ...ops.index import index
from ...ops.reduce import logsumexp
from ...ops.shape import broadcast_axis, rearrange
from ...ops.softmax import softmax
from ...ops.where import where
from .call import FUNCTION, AttentionCall, find_lowest, weigh_against_sinks
from .dropping import drop
from .masks.conditions import Pairing, count_positions, find_visible


def compute_weights(call: AttentionCall) -> NamedArray:
    """Return the weight of each key, before dropout."""
    scores = call.scoring(call.scoring_query, call.keys, call.bias)
    if call.mask is not None:
        Queries = None
        if call.q_pos is not None and call.query.axis_size(call.q_pos) != 1:
            # The one position of a step of decoding broadcasts without an axis.
            Queries = call.query.resolve_axis(call.q_pos)
        queries = count_positions(Queries, call.q_start)
        keys = count_positions(call.keys.resolve_axis(call.k_pos), call.k_start)
        seen = find_visible(call.mask, Pairing(queries, keys, call.q_pos, call.k_pos))
        if seen is not None:
            # A finite number: a query that sees no key then gives all the same weight, and not NaN.
            scores = where(seen, scores, find_lowest(scores.dtype))
    weights = softmax(scores, call.k_pos)
    if call.sinks is not None:
        weights = weights * weigh_against_sinks(logsumexp(scores, call.k_pos), call.sinks)
    return weights.astype(call.query.dtype)


def attend_plainly(call: AttentionCall) -> NamedArray:
    """Compute attention with all scores at once."""
    query = axes_of(FUNCTION, call.query)
    known = (*call.keys.names, *call.values.names, str(call.q_pos))
    single = find_single_axes({axis.name: axis.size for axis in query}, known)
    shorter = _drop_axes(call, single)
    out = dot(
        drop(compute_weights(shorter), call.dropout, call.key),
        shorter.values,
        axis=call.k_pos,
        out_axes=shorter.out_names,
        precision=call.precision,
    )
    if not single:
        return out
    return rearrange(broadcast_axis(out, [Axis(name, 1) for name in single]), call.out_names)


def _drop_axes(call: AttentionCall, names: Names) -> AttentionCall:
    """Take the one element along some axes of all arrays."""
    if not names:
        return call

    def take_first(x: Any) -> Any:
        if not isinstance(x, NamedArray):
            return x
        return index(x, {name: 0 for name in names if name in x.names})

    fields = ("query", "mask", "bias", "sinks", "q_start", "k_start")
    given = {name: getattr(call, name) for name in fields}
    return dataclasses.replace(call, **jax.tree.map(take_first, given, is_leaf=is_named_array))
