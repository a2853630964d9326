"""Internal. Choose experts for tokens, and report how even the choice is.

The mixture has scores of all experts for each token. Each token goes to those with the largest weights, which may be
limited to a few groups of experts, and balanced by a bias of each expert. Nothing here knows of devices.
"""

from collections.abc import Callable

import jax.numpy as jnp

from ...array import NamedArray
from ...axis import Axis
from ...create import one_hot, zeros
from ...names import plans
from ...ops.contract import dot
from ...ops.elementwise import maximum, stop_gradient
from ...ops.reduce import logsumexp
from ...ops.softmax import softmax
from ...ops.sorting import top_k
from ...ops.where import where as select
from ..activation import sigmoid
from .layout import CHOICE, GROUP, PLACE
from .routing import Routing

# They make weights of experts of the scores of a token, before those of chosen experts are normalised.
WEIGHINGS: dict[str, Callable[[NamedArray, str], NamedArray]] = {
    "softmax": lambda scores, axis: softmax(scores, axis),
    "sigmoid": lambda scores, axis: sigmoid(scores),
}

# Added to sums of weights, which sigmoids of very small scores round to zero; as in DeepSeek-V3.
_TINY = 1e-20


def choose_experts(
    weights: NamedArray,
    Router: Axis,
    count: int,
    bias: NamedArray | None,
    groups: tuple[int, int] | None,
) -> tuple[NamedArray, NamedArray]:
    """Choose the experts of each token.

    Args:
        weights: those of all experts, axes {Router, ...}.
        Router: the axis of experts.
        count: how many to choose.
        bias: added to the weights for the choice alone, axes {Router}.
        groups: in how many groups experts are, and from how many of them a token may choose.

    Returns:
        The weights and the numbers of those that were chosen, axes {..., CHOICE}.
    """
    ranks = stop_gradient(weights if bias is None else weights + bias)
    if groups is not None:
        ranks = _rule_out_groups(ranks, Router, *groups)
    _, chosen = top_k(ranks, Router.name, count, CHOICE)
    # A comparison with all experts stays on the device of a token, forwards and backwards; an index may not.
    return select(one_hot(chosen, Router, dtype=bool), weights, 0).sum(Router.name), chosen


def _rule_out_groups(ranks: NamedArray, Router: Axis, groups: int, kept: int) -> NamedArray:
    """Rank experts last that are outside of the best groups: those with the largest sum of their two best experts.

    DeepSeek-V3 (2024), section 2.1.2, does the same to limit the number of machines that receive a token.
    """
    Group, Member = Axis(GROUP, groups), Axis(PLACE, Router.size // groups)
    grouped = ranks.unflatten_axis(Router.name, (Group, Member))
    best, _ = top_k(grouped, PLACE, min(2, Member.size))
    _, chosen = top_k(best.sum(PLACE), GROUP, kept, CHOICE)
    is_chosen = one_hot(chosen, Group, dtype=bool).any(CHOICE)
    return select(is_chosen, grouped, -jnp.inf).flatten_axes((GROUP, PLACE), Router.name)


def normalize_weights(weights: NamedArray, axis: str) -> NamedArray:
    """Divide weights by their sum."""
    return weights / (weights.sum(axis) + _TINY)


def report_routing(
    scores: NamedArray, weights: NamedArray, chosen: NamedArray, where: NamedArray | None
) -> tuple[Routing, NamedArray]:
    """Compute losses and statistics without the dropped choices, and count all choices.

    Args:
        scores: those of all experts, the last axis.
        weights: the weights of all experts, with the same axes.
        chosen: the numbers of experts that were chosen; beyond the last one where a token is masked.
        where: which tokens there are.
    """
    Router = scores.axes[-1]
    counts = one_hot(chosen, Router).sum(chosen.names)
    # This tells the number of tokens, too: to sum `where` would be one more collective.
    choices = maximum(counts.sum(), 1)
    tokens = choices / chosen.axis_size(CHOICE)
    shares = normalize_weights(weights, Router.name)
    mean = shares.sum(plans.without(shares.names, (Router.name,)), where=where) / tokens
    z, load = logsumexp(scores, Router.name), counts / choices
    routing = Routing(
        load_balance=dot(load, mean, axis=Router.name) * Router.size,
        router_z=(z * z).sum(where=where) / tokens,
        load=load,
        dropped=zeros(()),
    )
    return routing, choices
